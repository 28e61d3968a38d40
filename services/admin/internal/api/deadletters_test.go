package api_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/evalonce/evalonce/pkg/fsck/fscktest"
	"github.com/evalonce/evalonce/pkg/jobdb"
	"github.com/evalonce/evalonce/pkg/pgtest"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
	"github.com/evalonce/evalonce/services/admin/internal/job"
	"github.com/evalonce/evalonce/services/admin/internal/replay"
)

// patience is how long a test waits for what takes no time.
const patience = 10 * time.Minute

func (a *adminAPI) dead() adminv1.DeadLetterServiceClient {
	return adminv1.NewDeadLetterServiceClient(a.conn)
}

// bury makes dead letters from and to, exclusive, under a registered version: those with an even number were refused and
// have a response that cost a tenth of a cent, the others have had no answer in all their attempts. They died a millisecond
// after each other.
func (a *adminAPI) bury(version string, from, to int) {
	a.t.Helper()
	a.exec(`WITH n AS (SELECT n, sha256(convert_to('dead ' || n, 'UTF8')) AS hash, uuid_v7() AS ticket, uuid_v7(now() - interval '1 day') AS call,
	                          now() - interval '12 hours' + n * interval '1 millisecond' AS dead_at FROM generate_series($2::int, $3::int - 1) n),
	ticket AS (INSERT INTO ticket (id, client_id, subject, message, content_hash)
	           SELECT ticket, 'client-' || n % 10, 's', 'dead ' || n, hash FROM n),
	call AS (INSERT INTO model_call (id, idempotency_key, version_id, lease_id, attempt, started_at, finished_at, outcome, class, reason, http_status, response, cost_usd)
	         SELECT call, evaluation_key(hash, v.digest), v.id, gen_random_uuid(), 1, now() - interval '1 day', dead_at,
	                CASE n % 2 WHEN 0 THEN 'rejected' ELSE 'failed' END, CASE n % 2 WHEN 0 THEN 'permanent' ELSE 'transient' END,
	                CASE n % 2 WHEN 0 THEN 'contract_violation' ELSE 'server_error' END, CASE n % 2 WHEN 0 THEN 200 ELSE 500 END,
	                CASE n % 2 WHEN 0 THEN convert_to(E'{"n": ' || n || E', "odd": "\u202e\u0007"}', 'UTF8') END, CASE n % 2 WHEN 0 THEN 0.001 END
	         FROM n, evaluator_version v WHERE v.id = $1)
	INSERT INTO evaluation_outbox (idempotency_key, content_hash, ticket_id, version_id, route, lane, status, attempts, dead_at, last_class, last_reason, last_error, created_at)
	SELECT evaluation_key(hash, v.digest), hash, ticket, v.id, v.route, 'live', 'dead', 5, dead_at,
	       CASE n % 2 WHEN 0 THEN 'permanent' ELSE 'transient' END, CASE n % 2 WHEN 0 THEN 'contract_violation' ELSE 'attempts_spent' END,
	       'in the words of the provider', now() - interval '1 day'
	FROM n, evaluator_version v WHERE v.id = $1`, version, from, to)
}

// replicas runs so many replicas of what works on replays, until the test ends.
func (a *adminAPI) replicas(n int) {
	a.t.Helper()
	a.replicasThat(n, replay.Step)
}

// replicasThat is replicas with another step.
func (a *adminAPI) replicasThat(n int, step job.Step) {
	a.t.Helper()
	for i := range n {
		r := job.New(job.Options{
			DB: pgtest.PoolAs(a.t, a.db, pgtest.Admin), Steps: map[jobdb.Kind]job.Step{jobdb.Replay: step}, Worker: fmt.Sprint("replica ", i),
			Poll: 5 * time.Millisecond, Lease: time.Minute, Retry: time.Millisecond, Logger: slog.New(slog.DiscardHandler),
		})
		ctx, stop := context.WithCancel(context.WithoutCancel(a.t.Context()))
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		a.t.Cleanup(func() {
			stop()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				a.t.Errorf("a replica ended with %v", err)
			}
		})
	}
}

// until waits for a replay to be in a state, and holds it to its sum all the time.
func (a *adminAPI) until(id, state string) *adminv1.Replay {
	a.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		r, err := a.dead().GetReplay(a.as(a.bob), &adminv1.GetReplayRequest{Id: id})
		if err != nil {
			a.t.Fatal(err)
		}
		a.wantSum(r)
		if r.GetState() == state {
			return r
		}
		if time.Now().After(deadline) {
			a.t.Fatalf("the replay is %s, want it %s: %v", r.GetState(), state, r)
		}
	}
}

func (a *adminAPI) wantSum(r *adminv1.Replay) {
	a.t.Helper()
	var skipped int64
	for _, n := range r.GetSkippedFor() {
		skipped += n
	}
	if r.GetReplayed()+r.GetSkipped()+r.GetFailed()+r.GetRemaining() != r.GetSelected() || skipped != r.GetSkipped() {
		a.t.Fatalf("the counts do not add up: %v", r)
	}
	if ended := r.GetFinishTime() != nil; ended && r.GetRemaining() != 0 {
		a.t.Fatalf("ended with something remaining: %v", r)
	}
}

func (a *adminAPI) replay(r *adminv1.ReplayDeadLettersRequest) *adminv1.Replay {
	a.t.Helper()
	made, err := a.dead().ReplayDeadLetters(a.as(a.ana), r)
	if err != nil {
		a.t.Fatal(err)
	}
	a.wantSum(made)
	return made
}

func TestDeadLettersAreGroupedAndListed(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.mustRegister("v1")
	a.bury("v1", 0, 25)
	a.exec("UPDATE evaluation_outbox SET last_reason = 'word of a newer worker' WHERE idempotency_key = (SELECT idempotency_key FROM evaluation_outbox ORDER BY dead_at LIMIT 1)")
	groups, err := a.dead().GroupDeadLetters(a.as(a.bob), &adminv1.GroupDeadLettersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, g := range groups.GetGroups() {
		told = append(told, fmt.Sprintf("%s %s %s %d", g.GetClass(), g.GetReason(), g.GetVersion(), g.GetCount()))
		if g.GetFirstDeadTime().AsTime().After(g.GetLastDeadTime().AsTime()) {
			t.Errorf("the times of %v are turned round", g)
		}
	}
	if got, want := strings.Join(told, ", "), "permanent contract_violation v1 12, transient attempts_spent v1 12, permanent other v1 1"; got != want {
		t.Errorf("groups are %s, want %s", got, want)
	}

	for name, c := range map[string]struct {
		filter *adminv1.DeadLetterFilter
		want   int
	}{
		"all":       {nil, 25},
		"class":     {&adminv1.DeadLetterFilter{Class: "permanent"}, 13},
		"reason":    {&adminv1.DeadLetterFilter{Reason: "contract_violation"}, 12},
		"version":   {&adminv1.DeadLetterFilter{Version: "v2"}, 0},
		"route":     {&adminv1.DeadLetterFilter{Route: "main", Class: "transient"}, 12},
		"client":    {&adminv1.DeadLetterFilter{Client: "client-3"}, 3},
		"nobody's":  {&adminv1.DeadLetterFilter{Owner: "eve"}, 0},
		"from when": {&adminv1.DeadLetterFilter{DeadFrom: timestamppb.Now()}, 0},
		"to when":   {&adminv1.DeadLetterFilter{DeadTo: timestamppb.Now()}, 25},
	} {
		r := &adminv1.ListDeadLettersRequest{Filter: c.filter, PageSize: 7}
		seen := map[string]bool{}
		var last time.Time
		for {
			page, err := a.dead().ListDeadLetters(a.as(a.bob), r)
			if err != nil {
				t.Fatal(name, err)
			}
			for _, d := range page.GetDeadLetters() {
				at := d.GetDeadTime().AsTime()
				if seen[d.GetKey()] || !last.IsZero() && at.After(last) || d.GetDetail() != "" {
					t.Errorf("%s: %v is there twice, out of order, or tells too much", name, d)
				}
				seen[d.GetKey()], last = true, at
			}
			if r.PageToken = page.GetNextPageToken(); r.GetPageToken() == "" {
				break
			}
		}
		if len(seen) != c.want {
			t.Errorf("%s: %d listed, want %d", name, len(seen), c.want)
		}
	}

	_, err = a.dead().ListDeadLetters(a.as(a.bob), &adminv1.ListDeadLettersRequest{
		Filter: &adminv1.DeadLetterFilter{Class: "fatal", Reason: "whatever", Client: "a\x00"}, PageSize: -1, PageToken: "x",
	})
	wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "filter.class", "filter.reason", "filter.client", "page_size", "page_token")
	wantREST(t, a.rest("GET", "/v1/deadLetters:group?filter.class=permanent", ""), 200, "contract_violation")
	wantREST(t, a.rest("GET", "/v1/deadLetters?filter.reason=attempts_spent&page_size=1", ""), 200, "attempts_spent")
}

func TestADeadLetterTellsItsHistory(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.mustRegister("v1")
	a.bury("v1", 0, 1)
	key, ticket := a.text("SELECT idempotency_key FROM evaluation_outbox"), a.text("SELECT ticket_id::text FROM evaluation_outbox")
	a.exec("INSERT INTO ticket (id, client_id, subject, message, content_hash) SELECT uuid_v7(), 'another', 's', 'dead 0', content_hash FROM ticket")
	for _, id := range []string{key, ticket} {
		d, err := a.dead().GetDeadLetter(a.as(a.bob), &adminv1.GetDeadLetterRequest{Id: id})
		if err != nil {
			t.Fatal(err)
		}
		if d.GetKey() != key || d.GetTicketCount() != 2 || len(d.GetTicketIds()) != 2 || d.GetDetail() != "in the words of the provider" || !d.GetHasResponse() {
			t.Errorf("the dead letter is %v", d)
		}
		if len(d.GetCalls()) != 1 {
			t.Fatalf("%d calls, want 1", len(d.GetCalls()))
		}
		c := d.GetCalls()[0]
		// What steers a terminal or a reader's eye is gone.
		if c.GetOutcome() != "rejected" || c.GetCostUsd() != "0.001" || c.GetResponse() != `{"n": 0, "odd": ""}` || c.GetResponseBytes() != 23 || c.GetHttpStatus() != 200 {
			t.Errorf("the call is %v", c)
		}
	}
	a.exec("UPDATE model_call SET response = convert_to(repeat('x', 100000), 'UTF8')")
	d, err := a.dead().GetDeadLetter(a.as(a.bob), &adminv1.GetDeadLetterRequest{Id: key})
	if err != nil || len(d.GetCalls()[0].GetResponse()) != 16<<10 || d.GetCalls()[0].GetResponseBytes() != 100_000 {
		t.Errorf("a long response comes back as %d bytes, %v", len(d.GetCalls()[0].GetResponse()), err)
	}
	_, err = a.dead().GetDeadLetter(a.as(a.bob), &adminv1.GetDeadLetterRequest{Id: strings.Repeat("0", 32)})
	wantProblem(t, err, codes.NotFound, "DEAD_LETTER_NOT_FOUND")
	_, err = a.dead().GetDeadLetter(a.as(a.bob), &adminv1.GetDeadLetterRequest{Id: "x"})
	wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "id")
	wantREST(t, a.rest("GET", "/v1/deadLetters/"+ticket, ""), 200, key)
}

func TestDeadLettersAreAssignedAndDiscarded(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.mustRegister("v1")
	a.bury("v1", 0, 4)
	key := a.text("SELECT idempotency_key FROM evaluation_outbox WHERE last_class = 'permanent' LIMIT 1")
	assign := &adminv1.AssignDeadLetterRequest{Id: key, Owner: "bob", Note: "asks the vendor", Reason: "on duty"}
	if r := a.rest("POST", "/v1/deadLetters/"+key+":assign", `{"owner": "bob", "note": "asks the vendor", "dry_run": true}`); r.status != 200 || !strings.Contains(r.body, "asks the vendor") {
		t.Errorf("a dry run: %+v", r)
	}
	if got := a.text("SELECT owner FROM evaluation_outbox WHERE idempotency_key = $1", key); got != "" {
		t.Errorf("a dry run has assigned it to %s", got)
	}
	for range 2 {
		if d, err := a.dead().AssignDeadLetter(a.as(a.ana), assign); err != nil || d.GetOwner() != "bob" || d.GetNote() != "asks the vendor" {
			t.Fatal(d, err)
		}
	}
	if got, want := a.text("SELECT string_agg(principal || ' ' || method || ' ' || target || ' ' || (after ->> 'owner') || ' ' || reason, ', ') FROM admin_audit WHERE method LIKE 'Dead%'"),
		"ana DeadLetterService.AssignDeadLetter deadLetters/"+key+" bob on duty"; got != want {
		t.Errorf("the audit has %q, want %q", got, want)
	}
	_, err := a.dead().AssignDeadLetter(a.as(a.ana), &adminv1.AssignDeadLetterRequest{Id: key, Owner: strings.Repeat("ß", 101), Note: strings.Repeat("n", 2001)})
	wantProblem(t, err, codes.InvalidArgument, "FIELD_TOO_LARGE", "owner", "note")

	_, err = a.dead().DiscardDeadLetters(a.as(a.ana), &adminv1.DiscardDeadLettersRequest{})
	wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "filter", "reason")
	_, err = a.dead().DiscardDeadLetters(a.as(a.ana), &adminv1.DiscardDeadLettersRequest{Keys: []string{key, "x"}, Filter: &adminv1.DeadLetterFilter{}, Reason: "r"})
	wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "filter")
	for _, c := range []struct {
		r                  *adminv1.DiscardDeadLettersRequest
		discarded, skipped int64
		left               string
	}{
		{&adminv1.DiscardDeadLettersRequest{Keys: []string{key}, Reason: "spam", DryRun: true}, 1, 0, "4"},
		{&adminv1.DiscardDeadLettersRequest{Keys: []string{key, key, strings.Repeat("0", 32)}, Reason: "spam"}, 1, 1, "3"},
		{&adminv1.DiscardDeadLettersRequest{Keys: []string{key}, Reason: "spam"}, 0, 1, "3"},
		{&adminv1.DiscardDeadLettersRequest{Filter: &adminv1.DeadLetterFilter{Class: "transient"}, Reason: "over"}, 2, 0, "1"},
	} {
		got, err := a.dead().DiscardDeadLetters(a.as(a.ana), c.r)
		if err != nil || got.GetDiscarded() != c.discarded || got.GetSkipped() != c.skipped {
			t.Errorf("%v: %v, %v", c.r, got, err)
		}
		if left := a.text("SELECT count(*)::text FROM evaluation_outbox WHERE discarded_at IS NULL"); left != c.left {
			t.Errorf("%v: %s are left, want %s", c.r, left, c.left)
		}
	}
	list, err := a.dead().ListDeadLetters(a.as(a.bob), &adminv1.ListDeadLettersRequest{})
	if err != nil || len(list.GetDeadLetters()) != 1 {
		t.Errorf("listed %v, %v; want what is not discarded", list, err)
	}
	list, err = a.dead().ListDeadLetters(a.as(a.bob), &adminv1.ListDeadLettersRequest{Filter: &adminv1.DeadLetterFilter{IncludeDiscarded: true}})
	if err != nil || len(list.GetDeadLetters()) != 4 {
		t.Errorf("listed %v, %v; want all", list, err)
	}
	if got := a.text("SELECT count(*)::text FROM admin_audit WHERE method = 'DeadLetterService.DiscardDeadLetters'"); got != "2" {
		t.Errorf("%s records of discarding, want one for each that had an effect", got)
	}
	fscktest.Require(t, a.db)
}

func TestReplayIsRefused(t *testing.T) {
	t.Parallel()
	a := start(t)
	_, err := a.dead().ReplayDeadLetters(a.as(a.ana), &adminv1.ReplayDeadLettersRequest{Limit: -1, Canary: -1, RatePerSecond: -1})
	wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "filter", "mode", "limit", "canary", "rate_per_second")
	_, err = a.dead().GetReplay(a.as(a.ana), &adminv1.GetReplayRequest{Id: "01932c07-209c-7000-8000-000000000000"})
	wantProblem(t, err, codes.NotFound, "JOB_NOT_FOUND")
	wantREST(t, a.rest("POST", "/v1/replays/x:pause", "{}"), 400, "INVALID_FIELD")
}

// A replay is estimated, begun with a canary, looked at, resumed and canceled; and its counts add up all the way.
func TestReplayWithACanary(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.mustRegister("v1")
	a.bury("v1", 0, 40)
	request := &adminv1.ReplayDeadLettersRequest{
		Filter: &adminv1.DeadLetterFilter{Class: "permanent"}, Mode: adminv1.ReplayMode_REPLAY_MODE_RECALL, Canary: 5, Limit: 15, RequestId: "r1", DryRun: true,
	}
	estimate := a.replay(request)
	if estimate.GetId() != "" || estimate.GetSelected() != 15 || estimate.GetCalls() != 15 || estimate.GetEstimatedCostUsd() != "0.015" || estimate.GetWithResponse() != 15 {
		t.Errorf("the estimate is %v", estimate)
	}
	if got := a.text("SELECT concat((SELECT count(*) FROM reprocess_job), (SELECT count(*) FROM replay_selection), (SELECT count(*) FROM admin_audit WHERE method LIKE 'Dead%'))"); got != "000" {
		t.Errorf("the dry run has left something behind: %s", got)
	}
	request.DryRun = false
	made := a.replay(request)
	if again := a.replay(request); again.GetId() != made.GetId() {
		t.Errorf("the same request has made %s and %s", made.GetId(), again.GetId())
	}
	a.replicas(2)
	r := a.until(made.GetId(), "paused")
	if r.GetStateReason() != "canary" || r.GetReplayed() != 5 || r.GetRemaining() != 10 || r.GetWaiting() != 5 {
		t.Errorf("behind the canary: %v", r)
	}
	if got := a.text("SELECT count(*)::text FROM model_call WHERE recalled_by::text = $1", made.GetId()); got != "5" {
		t.Errorf("%s calls are recalled, want 5", got)
	}
	fscktest.Require(t, a.db)
	// Its rows are not all what they were.
	a.exec(`UPDATE evaluation_outbox SET discarded_at = now() WHERE idempotency_key = (SELECT min(idempotency_key) FROM replay_selection)`)
	if _, err := a.dead().ResumeReplay(a.as(a.ana), &adminv1.ResumeReplayRequest{Id: made.GetId(), Reason: "looks fine"}); err != nil {
		t.Fatal(err)
	}
	r = a.until(made.GetId(), "done")
	if want := map[string]int64{"discarded": 1}; r.GetReplayed() != 14 || !maps.Equal(r.GetSkippedFor(), want) {
		t.Errorf("at the end: %v", r)
	}
	_, err := a.dead().CancelReplay(a.as(a.ana), &adminv1.CancelReplayRequest{Id: made.GetId()})
	wantProblem(t, err, codes.FailedPrecondition, "JOB_STATE")
	fscktest.Require(t, a.db)

	slow := a.replay(&adminv1.ReplayDeadLettersRequest{Filter: &adminv1.DeadLetterFilter{}, Mode: adminv1.ReplayMode_REPLAY_MODE_RECALL, RatePerSecond: 0.0001})
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); a.until(slow.GetId(), "running").GetReplayed() == 0; <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("nothing is replayed")
		}
	}
	if _, err := a.dead().PauseReplay(a.as(a.ana), &adminv1.PauseReplayRequest{Id: slow.GetId()}); err != nil {
		t.Fatal(err)
	}
	r = a.until(slow.GetId(), "paused")
	if r.GetReplayed() != 1 {
		t.Errorf("%d are replayed at a rate of one in 10000 seconds", r.GetReplayed())
	}
	canceled, err := a.dead().CancelReplay(a.as(a.ana), &adminv1.CancelReplayRequest{Id: slow.GetId(), Reason: "too slow"})
	if err != nil || canceled.GetSkippedFor()["canceled"] != slow.GetSelected()-1 {
		t.Errorf("canceled: %v, %v", canceled, err)
	}
	a.wantSum(canceled)
	if got := a.text("SELECT count(*)::text FROM replay_selection"); got != "0" {
		t.Errorf("%s rows are still selected", got)
	}
	list, err := a.dead().ListReplays(a.as(a.bob), &adminv1.ListReplaysRequest{PageSize: 1})
	if err != nil || len(list.GetReplays()) != 1 || list.GetReplays()[0].GetId() != slow.GetId() || list.GetNextPageToken() == "" {
		t.Errorf("the list begins with %v, %v", list, err)
	}
	list, err = a.dead().ListReplays(a.as(a.bob), &adminv1.ListReplaysRequest{PageSize: 1, PageToken: list.GetNextPageToken()})
	if err != nil || len(list.GetReplays()) != 1 || list.GetReplays()[0].GetId() != made.GetId() || list.GetNextPageToken() != "" {
		t.Errorf("the list ends with %v, %v", list, err)
	}
	fscktest.Require(t, a.db)
}

// Every chunk is done once and lost, with all that it did, before it is done for good; and counts once.
func TestReplaySurvivesItsReplicas(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.mustRegister("v1")
	const all = 2500
	a.bury("v1", 0, all)
	lost := errors.New("the replica is lost")
	var mu sync.Mutex
	seen := map[string]bool{}
	a.replicasThat(3, func(ctx context.Context, tx pgx.Tx, j jobdb.Job) (jobdb.Progress, error) {
		progress, err := replay.Step(ctx, tx, j)
		mu.Lock()
		defer mu.Unlock()
		if at := string(j.Cursor); err == nil && !seen[at] {
			seen[at] = true
			return jobdb.Progress{}, lost
		}
		return progress, err
	})
	made := a.replay(&adminv1.ReplayDeadLettersRequest{Filter: &adminv1.DeadLetterFilter{}, Mode: adminv1.ReplayMode_REPLAY_MODE_RECALL})
	if r := a.until(made.GetId(), "done"); r.GetReplayed() != all || r.GetWaiting() != all {
		t.Errorf("at the end: %v", r)
	}
	if len(seen) < 3 {
		t.Errorf("%d chunks were lost, want 3 or more", len(seen))
	}
	if got := a.text("SELECT count(*)::text FROM model_call WHERE recalled_by::text = $1", made.GetId()); got != fmt.Sprint(all) {
		t.Errorf("%s calls are recalled, want %d", got, all)
	}
	fscktest.Require(t, a.db)
}

// Half of a hundred thousand have a response: it is judged again for nothing; what had none is left for a recall.
func TestAHundredThousandDeadLetters(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.mustRegister("v1")
	const all = 100_000
	a.bury("v1", 0, all)
	a.exec("ANALYZE")
	timed := func(what string, do func()) {
		began := time.Now()
		do()
		t.Logf("%s: %s", what, time.Since(began).Round(time.Millisecond))
	}
	timed("group", func() {
		groups, err := a.dead().GroupDeadLetters(a.as(a.bob), &adminv1.GroupDeadLettersRequest{})
		if err != nil || len(groups.GetGroups()) != 2 || groups.GetGroups()[0].GetCount() != all/2 {
			t.Errorf("groups %v, %v", groups, err)
		}
	})
	timed("list", func() {
		page, err := a.dead().ListDeadLetters(a.as(a.bob), &adminv1.ListDeadLettersRequest{})
		if err != nil || len(page.GetDeadLetters()) != 50 {
			t.Errorf("page %v, %v", page, err)
		}
	})
	request := &adminv1.ReplayDeadLettersRequest{Filter: &adminv1.DeadLetterFilter{}, Mode: adminv1.ReplayMode_REPLAY_MODE_RECALL, DryRun: true}
	timed("estimate", func() {
		if got := a.replay(request); got.GetSelected() != all || got.GetWithResponse() != all/2 || got.GetEstimatedCostUsd() != "100" {
			t.Errorf("the estimate is %v", got)
		}
	})
	request.DryRun, request.Mode = false, adminv1.ReplayMode_REPLAY_MODE_REVALIDATE
	var made *adminv1.Replay
	timed("start", func() { made = a.replay(request) })
	a.replicas(2)
	timed("revalidate", func() {
		r := a.until(made.GetId(), "done")
		if r.GetReplayed() != all/2 || r.GetSkippedFor()["no_response"] != all/2 || r.GetCalls() != 0 || r.GetEstimatedCostUsd() != "0" || r.GetWaiting() != all/2 {
			t.Errorf("revalidated: %v", r)
		}
	})
	if got := a.text("SELECT count(*)::text FROM model_call WHERE outcome = 'saved' AND reason = 'contract_violation'"); got != fmt.Sprint(all/2) {
		t.Errorf("%s responses are to be judged again", got)
	}
	request.Mode = adminv1.ReplayMode_REPLAY_MODE_RECALL
	timed("recall", func() {
		r := a.until(a.replay(request).GetId(), "done")
		if r.GetReplayed() != all/2 || r.GetSkipped() != 0 || r.GetCalls() != all/2 {
			t.Errorf("recalled: %v", r)
		}
	})
	if got := a.text("SELECT count(*)::text FROM evaluation_outbox WHERE status = 'pending' AND lane = 'bulk' AND attempts = 0 AND job_id IS NOT NULL"); got != fmt.Sprint(all) {
		t.Errorf("%s are due", got)
	}
}

func TestFsck(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.mustRegister("v1")
	a.bury("v1", 0, 6)
	a.exec("INSERT INTO evaluation_result SELECT idempotency_key, content_hash, ticket_id, version_id, 0, 'billing', 0, 'm', 'triage-1', 'p', 'low', 'q', gen_random_uuid() FROM evaluation_outbox")
	run := func(r *adminv1.RunFsckRequest) (findings []*adminv1.FsckFinding, summary *adminv1.FsckSummary, err error) {
		stream, err := adminv1.NewFsckServiceClient(a.conn).RunFsck(a.as(a.bob), r)
		for err == nil {
			var m *adminv1.RunFsckResponse
			if m, err = stream.Recv(); err != nil {
				break
			}
			if f := m.GetFinding(); f != nil {
				findings = append(findings, f)
			}
			summary = m.GetSummary()
		}
		return findings, summary, err
	}
	findings, summary, _ := run(&adminv1.RunFsckRequest{Examples: 2})
	found := map[string]*adminv1.FsckFinding{}
	for _, f := range findings {
		found[f.GetCheck()] = f
	}
	if f := found["dead_beside_result"]; f.GetCount() != 6 || len(f.GetExamples()) != 2 || f.GetNote() || f.GetPromise() == "" {
		t.Errorf("found %v", findings)
	}
	if summary.GetHealthy() || int(summary.GetViolations()+summary.GetNotes()) != len(findings) || summary.GetChecks() == 0 {
		t.Errorf("the summary is %v", summary)
	}
	_, _, err := run(&adminv1.RunFsckRequest{Examples: -1})
	wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "examples")

	lines := strings.Split(strings.TrimSpace(a.rest("GET", "/v1/fsck?examples=1", "").body), "\n")
	if len(lines) != len(findings)+1 || !strings.Contains(lines[len(lines)-1], `"healthy":false`) {
		t.Errorf("REST streams %q", lines)
	}
	a.exec("DELETE FROM evaluation_result")
	if findings, summary, _ := run(&adminv1.RunFsckRequest{}); len(findings) != 0 || !proto.Equal(summary, &adminv1.FsckSummary{Checks: summary.GetChecks(), Healthy: true}) {
		t.Errorf("sound, and found %v, %v", findings, summary)
	}
}
