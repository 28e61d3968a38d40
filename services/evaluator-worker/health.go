package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// health serves /healthz, which depends on nothing, and /readyz, which needs the database and its schema.
type health struct {
	address string
	ready   func(context.Context) error // whether the database is
}

const (
	readyTimeout  = 2 * time.Second
	headerTimeout = 5 * time.Second
)

func (h health) run(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
		defer cancel()
		if err := h.ready(ctx); err != nil {
			slog.WarnContext(ctx, "not ready", slog.Any("error", err))
			http.Error(w, "the database does not answer, or its schema is older than this service", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ready\n"))
	})
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", h.address)
	if err != nil {
		return err
	}
	slog.InfoContext(ctx, "serving health", slog.String("address", listener.Addr().String()))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
