package rpc

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

const (
	readyTimeout = 2 * time.Second
	readyFor     = time.Second
)

// readiness answers /readyz. It is open to everybody, so one answer of the check holds for a second: asking
// often costs the dependencies nothing.
type readiness struct {
	check func(context.Context) error
	log   *slog.Logger

	mu       sync.Mutex
	asked    time.Time
	err      error
	stopping bool
}

func (r *readiness) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if !r.ready(req.Context()) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte("not ready\n"))
		return
	}
	_, _ = w.Write([]byte("ready\n"))
}

func (r *readiness) ready(ctx context.Context) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopping {
		return false
	}
	if now := time.Now(); now.Sub(r.asked) >= readyFor {
		// Not the request's own context: the answer is for the others too, and this caller may leave.
		check, cancel := context.WithTimeout(context.WithoutCancel(ctx), readyTimeout)
		defer cancel()
		r.err = r.check(check)
		r.asked = time.Now()
		if r.err != nil {
			r.log.WarnContext(ctx, "not ready", slog.String("cause", r.err.Error()))
		}
	}
	return r.err == nil
}

func (r *readiness) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopping = true
}
