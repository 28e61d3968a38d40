package rival

import (
	"context"
	"fmt"
	"time"

	"github.com/evalonce/evalonce/pkg/postgres"
)

// requestDeadline bounds a request, the model's part included.
const requestDeadline = 10 * time.Second

func serveInRequest(ctx context.Context, cfg Config) error {
	db, err := postgres.Open(ctx, postgres.Config{URL: cfg.DatabaseURL, MaxConns: connections, AppName: InRequest})
	if err != nil {
		return err
	}
	defer db.Close()
	model := NewModel(cfg.ProviderURL, cfg.ProviderKey, cfg.Pace, cfg.tryDeadline())
	defer model.Close()
	return serve(ctx, cfg.Address, func(ctx context.Context, t Ticket) error {
		ctx, cancel := context.WithTimeout(ctx, requestDeadline)
		defer cancel()
		answer, err := model.Ask(ctx, t.Subject, t.Message)
		if err != nil {
			return err
		}
		_, err = db.Exec(ctx, `
			WITH t AS (
			  INSERT INTO ticket (external_id, subject, message) VALUES ($1, $2, $3) ON CONFLICT (external_id) DO NOTHING RETURNING id
			)
			INSERT INTO evaluation (ticket_id, is_urgent, urgency_score, department) SELECT id, $4, $5, $6 FROM t`,
			t.ExternalID, t.Subject, t.Message, answer.IsUrgent, answer.UrgencyScore, answer.Department)
		if err != nil {
			return fmt.Errorf("store a ticket: %w", err)
		}
		return nil
	})
}
