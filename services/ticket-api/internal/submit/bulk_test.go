package submit_test

import "testing"

// A ticket whose content waits for a job's turn is somebody's who waits; the same request again is nobody's.
func TestANewTicketTakesBulkWorkOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	submit := func(key string) {
		t.Helper()
		if _, err := w.submit.Submit(t.Context(), request(key, "hello")); err != nil {
			t.Fatal(err)
		}
	}
	giveToJob := func() {
		t.Helper()
		if _, err := w.db.Exec(t.Context(), `UPDATE evaluation_outbox SET lane = 'bulk', job_id = uuid_v7(), available_at = now() + interval '1 hour'`); err != nil {
			t.Fatal(err)
		}
	}
	const live = "evaluation_outbox WHERE lane = 'live' AND job_id IS NULL AND available_at <= now()"
	submit("first")
	giveToJob()
	submit("second")
	if w.count(live) != 1 || w.count("evaluation_outbox") != 1 {
		t.Error("the job's work was not taken over")
	}
	giveToJob()
	submit("second")
	if w.count(live) != 0 {
		t.Error("a request that was answered before has taken work over")
	}
}
