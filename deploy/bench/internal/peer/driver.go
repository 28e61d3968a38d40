package peer

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/google/uuid"

	"github.com/evalonce/evalonce/deploy/bench/internal/bed"
	"github.com/evalonce/evalonce/pkg/content"
)

//go:embed create.sql
var createStatement string

// CreateByDriver writes the rows of one ticket with the driver alone: one statement, which is one transaction and one
// round trip, prepared once on each connection. The response that is stored is shorter than the product's.
func CreateByDriver(ctx context.Context, db *bed.Database, subject, message, key string) error {
	text, err := content.Canonical(subject, message)
	if err != nil {
		return fmt.Errorf("create by the driver: %w", err)
	}
	hash := text.Hash()
	if _, err := db.Pool.Exec(ctx, createStatement,
		"bench create", key, hash[:], []byte(`{"state":"pending"}`), uuid.Must(uuid.NewV7()), subject, message); err != nil {
		return fmt.Errorf("create by the driver: %w", err)
	}
	return nil
}
