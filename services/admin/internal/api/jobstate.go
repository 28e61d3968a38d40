package api

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/protobuf/proto"

	"github.com/evalonce/evalonce/pkg/jobdb"
	"github.com/evalonce/evalonce/pkg/rpc"
)

// changingJob is a changing request about one job.
type changingJob interface {
	changing
	GetId() string
}

// jobState is a change of the state of jobs of one kind.
type jobState[R proto.Message] struct {
	method     string // as for change
	kind       jobdb.Kind
	collection string // the targets' in the record, such as replays
	to         func(ctx context.Context, tx pgx.Tx, id uuid.UUID) (j jobdb.Job, changed bool, err error)
	show       func(ctx context.Context, tx pgx.Tx, j jobdb.Job) (R, error)
}

// changeState changes the state of a job as an operator asks for, and wakes who works on jobs.
func changeState[R proto.Message](ctx context.Context, db *pgxpool.Pool, jobs Waker, r changingJob, s jobState[R]) (R, error) {
	var none R
	id, violations := jobIDFrom(r.GetId())
	if len(violations) > 0 {
		return none, rpc.InvalidFields(append(violations, checkChange(ctx, r)...)...)
	}
	shown, err := change(ctx, db, s.method, r, func(ctx context.Context, tx pgx.Tx) (R, effect, error) {
		// It is locked before it is read, and so is as it was until this transaction.
		before, err := jobdb.Lock(ctx, tx, s.kind, id)
		if err != nil {
			return none, effect{}, err
		}
		j, changed, err := s.to(ctx, tx, id)
		if err != nil {
			return none, effect{}, err
		}
		did := effect{target: s.collection + "/" + id.String()}
		if changed {
			did.before, did.after = stateOf(before), stateOf(j)
		}
		shown, err := s.show(ctx, tx, j)
		return shown, did, err
	})
	if err != nil {
		return none, err
	}
	jobs.Wake()
	return shown, nil
}

func stateOf(j jobdb.Job) map[string]string { return map[string]string{"state": string(j.State)} }
