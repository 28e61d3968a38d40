// Package health serves what looks after a process: whether it lives, whether it is ready, and what it measures. It is
// plain HTTP without credentials, for the network of the cluster alone, on an address of its own.
package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

const (
	readyTimeout  = 2 * time.Second
	headerTimeout = 5 * time.Second
	writeTimeout  = time.Minute // of a profile of Prometheus' longest patience
)

// Server serves /healthz, which depends on nothing, /readyz and /metrics.
type Server struct {
	Address string
	// Ready says whether the process can do its work.
	Ready func(context.Context) error
	// Remarks are told by a process that is ready; none when nil.
	Remarks func() []string
	Metrics http.Handler
}

// Run serves until ctx ends.
func (s Server) Run(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", s.ready)
	mux.Handle("GET /metrics", s.Metrics)
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", s.Address)
	if err != nil {
		return fmt.Errorf("listen for health: %w", err)
	}
	slog.InfoContext(ctx, "serving health", slog.String("address", listener.Addr().String()))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout, WriteTimeout: writeTimeout}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve health: %w", err)
	}
	return nil
}

func (s Server) ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
	defer cancel()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if err := s.Ready(ctx); err != nil {
		slog.WarnContext(ctx, "not ready", slog.Any("error", err))
		http.Error(w, "the database does not answer, or its schema is older than this service", http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write([]byte("ready\n"))
	if s.Remarks == nil {
		return
	}
	for _, remark := range s.Remarks() {
		_, _ = fmt.Fprintln(w, remark)
	}
}
