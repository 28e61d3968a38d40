package main

import (
	"context"

	"go.opentelemetry.io/otel"

	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/webhook"
	"github.com/evalonce/evalonce/services/evaluator-worker/internal/deliver"
)

// webhookConns are few: a claim, a settlement, a heartbeat, and a look around.
const webhookConns = 4

// openWebhooks makes the pool of webhooks, with connections of its own.
func (c *Config) openWebhooks(ctx context.Context, name string, database postgres.Config) (*deliver.Pool, func(), error) {
	database.MaxConns, database.AppName = webhookConns, database.AppName+" webhooks"
	db, err := postgres.Open(ctx, database)
	if err != nil {
		return nil, nil, err
	}
	measured, err := measureWebhooks(db)
	if err != nil {
		db.Close()
		return nil, nil, err
	}
	client := webhook.NewClient(webhook.ClientOptions{AllowHTTP: c.WebhookAllowHTTP, Allow: c.WebhookAllowNetworks, Timeout: webhook.Timeout})
	pool := deliver.New(deliver.Options{
		DB: db, Sender: client, Keys: &c.WebhookKeys, Name: name, Concurrency: c.WebhookConcurrency, PerEndpoint: c.WebhookEndpointConcurrency,
		PollInterval: c.PollInterval, Lease: c.Lease, Grace: webhook.Timeout, Metrics: measured, Tracer: otel.Tracer(serviceName),
	})
	return pool, func() { client.Close(); db.Close() }, nil
}
