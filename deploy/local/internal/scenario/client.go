package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/evalonce/evalonce/deploy/local/internal/scenario/rival"
	"github.com/evalonce/evalonce/deploy/local/internal/scenario/schedule"
)

// What a client does when a create fails.
const (
	tries         = 4
	firstPause    = time.Second // virtual, doubles
	clientTimeout = 15 * time.Second
	connections   = 512
	idleTime      = time.Minute
	mostOfAnswer  = 4096
)

// errGaveUp is that a client has tried often enough.
var errGaveUp = errors.New("the client gave up")

// target is where tickets are sent to.
type target struct {
	url   string
	token string // "" for none
}

// client sends tickets in the one way that every design takes them.
type client struct {
	target
	schedule.Options
	http *http.Client
}

func newClient(t target, o schedule.Options) *client {
	return &client{target: t, Options: o, http: &http.Client{
		Timeout: clientTimeout, Transport: &http.Transport{MaxIdleConnsPerHost: connections, IdleConnTimeout: idleTime},
	}}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// create creates a ticket, however often it has to try; errGaveUp when that is too often.
func (c *client) create(ctx context.Context, number int, subject, message string) error {
	id := fmt.Sprintf("S-%06d", number)
	body, err := json.Marshal(rival.Ticket{ExternalID: id, Subject: subject, Message: message})
	if err != nil {
		return fmt.Errorf("create ticket %s: %w", id, err)
	}
	for try := range tries {
		if try > 0 {
			if err := sleep(ctx, c.Scaled(firstPause<<(try-1))); err != nil {
				return err
			}
		}
		again, err := c.try(ctx, id, body)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !again:
			return fmt.Errorf("create ticket %s: %w", id, err)
		}
	}
	return errGaveUp
}

func (c *client) try(ctx context.Context, id string, body []byte) (again bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", id)
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return true, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, mostOfAnswer))
	switch s := resp.StatusCode; {
	case err != nil:
		return true, err
	case s == http.StatusOK, s == http.StatusCreated:
		return false, nil
	case s >= http.StatusInternalServerError, s == http.StatusTooManyRequests:
		return true, fmt.Errorf("status %d", s)
	default:
		return false, fmt.Errorf("status %d: %s", s, strings.TrimSpace(string(answer)))
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
