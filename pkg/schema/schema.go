// Package schema says whether a database has what this build of a service needs.
package schema

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/migrations"
)

// Ready returns a check of a database: that it answers, and that it has taken every migration of this build. A schema
// does not go back, so once it is complete it is not asked for again.
func Ready(db *pgxpool.Pool) func(context.Context) error {
	var complete atomic.Bool
	return func(ctx context.Context) error {
		if complete.Load() {
			return db.Ping(ctx)
		}
		missing, err := migrations.Missing(ctx, db)
		if err != nil {
			return err
		}
		if len(missing) > 0 {
			return fmt.Errorf("the schema is older than this service: run migrate up; it lacks %s", strings.Join(missing, ", "))
		}
		complete.Store(true)
		return nil
	}
}
