package systemtest

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/rpc"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

// A streaming replica serves lists and fsck, as far as it has come. A client sees what it has written at once, and nothing
// but lists fails when the replica is gone.
func TestListsAreReadFromTheReplica(t *testing.T) {
	t.Parallel()
	place := newServers(t)
	primary, database := place.primary("primary", nil)
	place.backUp(pgtest.Pool(t, primary.URL()), "primary", "replica")
	place.put("replica", "standby.signal", "")
	standby, replica := place.start("replica", following(t, database), database)
	s := startSystem(t, options{database: database, api: []string{"EVALONCE_READ_DATABASE_URL=" + pgtest.As(replica, pgtest.TicketAPI)}})
	token, hash := rpc.MintToken()
	var err error
	if s.admin, err = s.stack.StartAdmin(t.Context(), "ops="+hash, "EVALONCE_READ_DATABASE_URL="+pgtest.As(replica, pgtest.Admin)); err != nil {
		t.Fatal(err)
	}
	s.adminToken = token
	followed := *s
	followed.db = pgtest.Pool(t, replica)
	listed := func() (ids []string, err error) {
		list, err := s.api.ListTickets(s.ctx, &ticketv1.ListTicketsRequest{})
		for _, ticket := range list.GetTickets() {
			ids = append(ids, ticket.GetId())
		}
		return ids, err
	}

	first := s.create("first").GetId()
	followed.until(1, "ticket")
	if ids, err := listed(); err != nil || !slices.Equal(ids, []string{first}) {
		t.Errorf("the list has %v (%v), want %s", ids, err, first)
	}
	followed.exec("SELECT pg_wal_replay_pause()")
	followed.until(1, "pg_get_wal_replay_pause_state() AS state WHERE state = 'paused'")
	second := s.create("second").GetId()
	if got := s.get(second).GetId(); got != second {
		t.Errorf("the ticket that was just created is %q", got)
	}
	if ids, err := listed(); err != nil || !slices.Equal(ids, []string{first}) {
		t.Errorf("the list has %v (%v), want %s alone: it is not the replica's", ids, err, first)
	}
	s.evalctlPrints("fsck")
	followed.exec("SELECT pg_wal_replay_resume()")
	followed.until(2, "ticket")
	if ids, err := listed(); err != nil || !slices.Equal(ids, []string{second, first}) {
		t.Errorf("the list has %v (%v), want both", ids, err)
	}
	s.worker()
	s.until(2, "evaluation_result")

	followed.db.Close()
	if err := standby.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := listed(); status.Code(err) != codes.Unavailable {
		t.Errorf("without the replica the list gives %v", err)
	}
	s.get(s.create("third").GetId())
	if out, err := s.stack.Run(t.Context(), s.evalctlSpec("fsck")); err == nil {
		t.Errorf("without the replica fsck says %s", out)
	}
	s.until(3, "evaluation_result")
	s.check()
}
