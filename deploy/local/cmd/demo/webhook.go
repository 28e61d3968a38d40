package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

const (
	bodyMost        = 64 << 10
	webhookPatience = time.Minute
	headerTimeout   = 5 * time.Second
)

// webhookEnv lets webhooks go to this machine, without TLS, which the product refuses unless it is told otherwise.
func webhookEnv() ([]string, error) {
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("make a key for webhook secrets: %w", err)
	}
	return []string{
		"EVALONCE_WEBHOOK_KEYS=demo=" + base64.StdEncoding.EncodeToString(key),
		"EVALONCE_WEBHOOK_ALLOW_HTTP=true", "EVALONCE_WEBHOOK_ALLOW_NETWORKS=127.0.0.1/32",
	}, nil
}

// receiver takes webhooks as a customer would: with the reference library of Standard Webhooks.
type receiver struct {
	listener net.Listener
	server   *http.Server
	verifier *standardwebhooks.Webhook
	received chan delivery
}

type delivery struct {
	id, event string
	body      []byte
	problem   error // of its signature
}

// receive listens, and registers itself through the API.
func (d *demo) receive(ctx context.Context, c *client) (*receiver, error) {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for webhooks: %w", err)
	}
	r := &receiver{listener: listener, received: make(chan delivery)}
	created, err := ticketv1.NewWebhookServiceClient(c.conn).CreateWebhookEndpoint(ctx, &ticketv1.CreateWebhookEndpointRequest{
		Url: "http://" + listener.Addr().String() + "/webhooks", Description: "the demo's own receiver",
	})
	if err == nil {
		r.verifier, err = standardwebhooks.NewWebhook(created.GetSecret())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("register a webhook endpoint: %w", inDetail(err)), listener.Close())
	}
	r.server = &http.Server{Handler: r, ReadHeaderTimeout: headerTimeout}
	go func() { _ = r.server.Serve(listener) }() // ends with close
	return r, nil
}

func (r *receiver) close() { _ = r.server.Close() }

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(io.LimitReader(req.Body, bodyMost))
	if err != nil {
		return
	}
	got := delivery{id: req.Header.Get("webhook-id"), body: body, problem: r.verifier.Verify(body, req.Header)}
	var event struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(body, &event); err == nil {
		got.event = event.Type
	}
	if got.problem != nil {
		w.WriteHeader(http.StatusUnauthorized)
	}
	select {
	case r.received <- got:
	case <-req.Context().Done():
	}
}

// showWebhook has a ticket evaluated that nobody has asked about, and waits until its webhook has come.
func (d *demo) showWebhook(ctx context.Context, c *client, r *receiver) error {
	_, err := c.CreateTicket(ctx, &ticketv1.CreateTicketRequest{
		Subject: "Where is my refund?", Message: "You promised me a refund two weeks ago, and nothing has come. " + rand.Text(), ExternalId: "webhook-demo",
	})
	if err != nil {
		return fmt.Errorf("create a ticket to be told of: %w", inDetail(err))
	}
	select {
	case got := <-r.received:
		d.sayDelivery(got)
		return got.problem
	case <-time.After(webhookPatience):
		return fmt.Errorf("no webhook has come within %s", webhookPatience)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (d *demo) sayDelivery(got delivery) {
	verdict := "signature verified"
	if got.problem != nil {
		verdict = "REFUSED: " + got.problem.Error()
	}
	d.say("webhook          %s, id %s, %s:\n%s\n", got.event, got.id, verdict, got.body)
}

// sayDeliveries tells of what comes until ctx ends.
func (d *demo) sayDeliveries(ctx context.Context, r *receiver) {
	for {
		select {
		case got := <-r.received:
			d.sayDelivery(got)
		case <-ctx.Done():
			return
		}
	}
}
