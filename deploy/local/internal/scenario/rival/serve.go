package rival

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// Schema is the tables of both designs.
//
//go:embed schema.sql
var Schema string

const (
	connections   = 16 // of a process
	maxTicket     = 1 << 20
	headerTimeout = 10 * time.Second
	stopTimeout   = 5 * time.Second
)

// Ticket is one as clients send it, to these designs as to ticket-api.
type Ticket struct {
	ExternalID string `json:"externalId"`
	Subject    string `json:"subject"`
	Message    string `json:"message"`
}

// serve serves until ctx ends: POST /v1/tickets by create, and GET /readyz.
func serve(ctx context.Context, address string, create func(context.Context, Ticket) error) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", func(http.ResponseWriter, *http.Request) {})
	if create != nil {
		mux.HandleFunc("POST /v1/tickets", func(w http.ResponseWriter, r *http.Request) {
			var t Ticket
			if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxTicket)).Decode(&t); err != nil || t.ExternalID == "" {
				http.Error(w, "this is no ticket", http.StatusBadRequest)
				return
			}
			if err := create(r.Context(), t); err != nil {
				http.Error(w, "try again later", http.StatusBadGateway)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusCreated)
			_ = json.NewEncoder(w).Encode(map[string]string{"externalId": t.ExternalID}) // or the client has left
		})
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	err = server.Shutdown(stopping)
	if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}
