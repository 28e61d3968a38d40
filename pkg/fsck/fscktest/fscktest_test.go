package fscktest_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/evalonce/evalonce/pkg/fsck/fscktest"
	"github.com/evalonce/evalonce/pkg/pgtest"
)

// observed is a test that is allowed to fail.
type observed struct {
	testing.TB
	log    strings.Builder
	errors strings.Builder
	failed bool
}

func (o *observed) Logf(format string, args ...any)   { fmt.Fprintf(&o.log, format+"\n", args...) }
func (o *observed) Errorf(format string, args ...any) { fmt.Fprintf(&o.errors, format+"\n", args...) }

func (o *observed) Fatal(args ...any) { fmt.Fprintln(&o.errors, args...); o.FailNow() }
func (o *observed) FailNow()          { o.failed = true; runtime.Goexit() }

func TestRequire(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	require := func() *observed {
		o := &observed{TB: t}
		var wg sync.WaitGroup
		wg.Go(func() { fscktest.Require(o, db) })
		wg.Wait()
		return o
	}
	if o := require(); o.failed || o.errors.Len() > 0 || o.log.Len() > 0 {
		t.Errorf("an empty database: %s%s", &o.errors, &o.log)
	}
	if _, err := db.Exec(t.Context(), `INSERT INTO ticket (id, client_id, subject, message, content_hash)
		VALUES ('01900000-0000-7000-8000-000000000000', 'c', '', 'x', sha256('x'))`); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(t.Context(), `INSERT INTO model_call (id, idempotency_key, version_id, lease_id, attempt, finished_at, outcome)
		VALUES (uuid_v7('1999-12-31'), 'k', 'v', gen_random_uuid(), 1, now(), 'saved')`); err != nil {
		t.Fatal(err)
	}
	o := require()
	for _, want := range []string{"ticket_without_work: 1 (01900000-0000-7000-8000-000000000000)", "response_lost: 1 ("} {
		if !strings.Contains(o.errors.String(), want) {
			t.Errorf("errors are %q, want %q among them", &o.errors, want)
		}
	}
	if !o.failed || !strings.Contains(o.log.String(), "note: call_in_default_partition: 1 (") {
		t.Errorf("failed %t, logged %q", o.failed, &o.log)
	}
}
