package evaluate

import "context"

// FixedBytes is what tests measure requests against.
const FixedBytes = fixedBytes

// Refresh reads the routes, as whoever reports a failure of one does.
func (w *Worker) Refresh(ctx context.Context) error { return w.refresh(ctx) }
