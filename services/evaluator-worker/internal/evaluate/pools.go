package evaluate

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/pkg/postgres"
)

const (
	// Claims are one transaction for each route at a time; settlements, heartbeats and reclaims have their own.
	claimConns  = 4
	settleConns = 8
)

// OpenPools opens the connections of a worker: those of its claims, and all others. The configuration says nothing of
// their number.
func OpenPools(ctx context.Context, cfg postgres.Config) (claims, settles *pgxpool.Pool, err error) {
	forClaims := cfg
	forClaims.MaxConns, forClaims.AppName = claimConns, cfg.AppName+" claims"
	if claims, err = postgres.Open(ctx, forClaims); err != nil {
		return nil, nil, err
	}
	cfg.MaxConns = settleConns
	if settles, err = postgres.Open(ctx, cfg); err != nil {
		claims.Close()
		return nil, nil, err
	}
	return claims, settles, nil
}
