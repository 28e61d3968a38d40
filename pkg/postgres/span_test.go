package postgres_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/evalonce/evalonce/pkg/postgres"
)

func TestStatementsAreSpansWithNamesAlone(t *testing.T) {
	t.Parallel()
	const secret = "sentinel-of-a-ticket"
	recorder := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test")
	plain := account(t)
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: plain.Config().ConnString(), Tracer: postgres.NewSpans(tracer)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	statement := func(sql string, args ...any) {
		t.Helper()
		ctx, parent := tracer.Start(t.Context(), "parent")
		defer parent.End()
		var n int
		_ = pool.QueryRow(ctx, sql, args...).Scan(&n)
	}

	var one int // with no span around them statements have none
	if err := pool.QueryRow(t.Context(), "-- name: Outside :one\nSELECT 1").Scan(&one); err != nil {
		t.Fatal(err)
	}
	if n := len(recorder.Ended()); n != 0 {
		t.Errorf("%d spans outside of any span", n)
	}

	statement("-- name: CountThings :one\n-- whatever it is for\nSELECT count(*)::int FROM account WHERE $1 <> ''", secret)
	statement("select 1 /* " + secret + " */")
	statement("/* " + secret + " */ SELECT 1")
	statement("-- name: " + secret) // no name: what sqlc writes ends with a colon
	statement("-- name: None :one\nSELECT 1 WHERE false")
	statement("-- name: Refused :one\nINSERT INTO account VALUES (1, length($1::text)) RETURNING 1", secret) // the server repeats the row
	ctx, parent := tracer.Start(t.Context(), "parent")
	batch := &pgx.Batch{}
	batch.Queue("-- name: First :exec\nSELECT $1::text", secret)
	batch.Queue("-- name: Second :exec\nSELECT 2")
	if err := pool.SendBatch(ctx, batch).Close(); err != nil {
		t.Fatal(err)
	}
	parent.End()

	var names []string
	for _, span := range recorder.Ended() {
		if span.Name() == "parent" {
			continue
		}
		names = append(names, span.Name()+" "+span.Status().Code.String())
		if all := fmt.Sprint(span.Name(), span.Attributes(), span.Events(), span.Status()); strings.Contains(all, secret) {
			t.Errorf("a span tells %s", all)
		}
		if !span.Parent().IsValid() {
			t.Errorf("%s has no parent", span.Name())
		}
		if span.Name() == "Refused" && !strings.Contains(fmt.Sprint(span.Attributes()), "23505") {
			t.Errorf("the failure is not told of: %v", span.Attributes())
		}
		if span.Name() == "batch" && (len(span.Events()) != 2 || span.Events()[0].Name != "First" || span.Events()[1].Name != "Second") {
			t.Errorf("the batch has %v", span.Events())
		}
	}
	want := []string{
		"CountThings Unset", "SELECT Unset", "statement Unset", "statement Unset", "None Unset", "Refused Error", "batch Unset",
	}
	if !slices.Equal(names, want) {
		t.Errorf("spans %q, want %q", names, want)
	}
}
