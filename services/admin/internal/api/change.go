package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	"github.com/evalonce/evalonce/pkg/auditdb"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/rpc"
)

// requestRetention is how long an idempotency key is known.
const requestRetention = 7 * 24 * time.Hour

// maxReason is in bytes.
const maxReason = 2000

// changing is a request that changes something.
type changing interface {
	proto.Message
	GetDryRun() bool
	GetRequestId() string
	GetReason() string
}

// effect is what a change did to one thing, for the record: nothing, where before and after have the same JSON. It never
// holds a ticket's text or a secret.
type effect struct {
	target        string // such as versions/triage-2
	before, after any    // nil where there was nothing, or is nothing any more
}

// errRollBack undoes a dry run.
var errRollBack = errors.New("a dry run leaves nothing behind")

// checkChange finds what is wrong with the fields that all changing requests share. A method adds it to what is wrong with
// its own.
func checkChange(ctx context.Context, r changing) []rpc.Violation {
	var violations []rpc.Violation
	if _, malformed := rpc.IdempotencyKey(ctx, "request_id", r.GetRequestId()); malformed != nil {
		violations = append(violations, *malformed)
	}
	switch reason := r.GetReason(); {
	case len(reason) > maxReason:
		violations = append(violations, rpc.Violation{
			Field: "reason", Reason: rpc.ReasonFieldTooLarge, Description: fmt.Sprintf("must be at most %d bytes, not %d", maxReason, len(reason)),
		})
	case !utf8.ValidString(reason), bytes.ContainsRune([]byte(reason), 0):
		violations = append(violations, rpc.Violation{Field: "reason", Reason: "MALFORMED", Description: "must be UTF-8 without NUL"})
	}
	return violations
}

// change makes an operator's change in one transaction, with its record and with the response to its idempotency key. A
// request whose key is known is answered as it was the first time, and has no effect. A dry run takes every step and is
// rolled back: its response is what it would have been, and it leaves the key free.
//
// method is such as RouteService.PauseRoute. do may run more than once, and leaves nothing behind but in the transaction.
func change[R proto.Message](
	ctx context.Context, db *pgxpool.Pool, method string, r changing, do func(ctx context.Context, tx pgx.Tx) (R, effect, error),
) (R, error) {
	var none R
	by, err := callerOf(ctx)
	if err != nil {
		return none, err
	}
	if violations := checkChange(ctx, r); len(violations) > 0 {
		return none, rpc.InvalidFields(violations...)
	}
	key, _ := rpc.IdempotencyKey(ctx, "request_id", r.GetRequestId())
	request := auditdb.Request{Scope: by + " " + method, Key: key, Fingerprint: fingerprint(r)}
	var response R
	var replayed bool
	err = postgres.InTx(ctx, db, func(ctx context.Context, tx pgx.Tx) (err error) {
		if key != "" {
			var stored []byte
			if stored, replayed, err = auditdb.Reserve(ctx, tx, request, requestRetention); err != nil {
				return err
			}
			if replayed {
				response, err = decoded[R](stored)
				return err
			}
		}
		var did effect
		if response, did, err = do(ctx, tx); err != nil {
			return err
		}
		if err := record(ctx, tx, auditdb.Change{
			Principal: by, Method: method, Target: did.target, Reason: r.GetReason(), RequestID: key, TraceID: traceOf(ctx),
		}, did); err != nil {
			return err
		}
		if r.GetDryRun() {
			return errRollBack
		}
		if key == "" {
			return nil
		}
		encoded, err := proto.Marshal(response)
		if err != nil {
			return fmt.Errorf("encode the response of %s: %w", method, err)
		}
		return auditdb.Respond(ctx, tx, request, encoded)
	})
	if err != nil && !errors.Is(err, errRollBack) {
		return none, err
	}
	if replayed {
		if err := rpc.MarkReplayed(ctx); err != nil {
			return none, fmt.Errorf("mark the response of %s as replayed: %w", method, err)
		}
	}
	return response, nil
}

// decoded decodes a response that was stored.
func decoded[R proto.Message](encoded []byte) (R, error) {
	var none R
	response, ok := none.ProtoReflect().New().Interface().(R)
	if !ok {
		return none, fmt.Errorf("a new %T is none", none)
	}
	if err := proto.Unmarshal(encoded, response); err != nil {
		return none, fmt.Errorf("decode a stored %T: %w", none, err)
	}
	return response, nil
}

// record writes an effect down, unless it is none.
func record(ctx context.Context, tx pgx.Tx, c auditdb.Change, did effect) (err error) {
	if c.Before, err = described(did.before); err != nil {
		return fmt.Errorf("describe %s before %s: %w", did.target, c.Method, err)
	}
	if c.After, err = described(did.after); err != nil {
		return fmt.Errorf("describe %s after %s: %w", did.target, c.Method, err)
	}
	if bytes.Equal(c.Before, c.After) {
		return nil
	}
	return auditdb.Record(ctx, tx, c)
}

func described(thing any) (json.RawMessage, error) {
	if thing == nil {
		return nil, nil
	}
	return json.Marshal(thing)
}

func traceOf(ctx context.Context) string {
	if span := trace.SpanContextFromContext(ctx); span.HasTraceID() {
		return span.TraceID().String()
	}
	return ""
}
