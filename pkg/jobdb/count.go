package jobdb

import (
	"context"
	"fmt"

	"github.com/evalonce/evalonce/pkg/jobdb/internal/jobdbsql"
)

// Count is a number of jobs that are alike.
type Count struct {
	Kind  Kind
	State State
	Jobs  int64
}

// Counts counts the jobs that run or are paused, and those that have failed within a week.
func Counts(ctx context.Context, db jobdbsql.DBTX) ([]Count, error) {
	rows, err := jobdbsql.New(db).CountJobs(ctx)
	if err != nil {
		return nil, fmt.Errorf("count the jobs: %w", err)
	}
	counts := make([]Count, len(rows))
	for i, r := range rows {
		counts[i] = Count{Kind: Kind(r.Kind), State: State(r.State), Jobs: r.Count}
	}
	return counts, nil
}
