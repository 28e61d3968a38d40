package submit

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Insert stores one request in a transaction that the test ends when it likes.
func Insert(ctx context.Context, s *Submitter, tx pgx.Tx, r Request) (Receipt, error) {
	receipts, _, err := s.insert(ctx, tx, []Request{r})
	if err != nil {
		return Receipt{}, err
	}
	return receipts[0], nil
}
