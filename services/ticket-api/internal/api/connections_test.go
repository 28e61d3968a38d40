package api_test

import (
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

// What a thousand clients hold is given back when they have gone. Not parallel: the goroutines and the heap are the
// process's, and no other test may use them meanwhile.
func TestAThousandConnectionsLeaveNothing(t *testing.T) {
	a := start(t)
	const connections = 1000
	call := func(conn *grpc.ClientConn, n int) error {
		_, err := ticketv1.NewTicketServiceClient(conn).CreateTicket(a.as(a.acme), item("ticket "+strconv.Itoa(n), ""))
		return err
	}
	if err := call(a.conn, 0); err != nil {
		t.Fatal(err)
	}
	before := measure()
	conns := make([]*grpc.ClientConn, connections)
	var calls errgroup.Group
	calls.SetLimit(64)
	for i := range conns {
		conn, err := grpc.NewClient(a.conn.Target(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		conns[i] = conn
		calls.Go(func() error { return call(conn, i+1) })
	}
	if err := calls.Wait(); err != nil {
		t.Fatal(err)
	}
	open := measure()
	if open.goroutines < before.goroutines+connections {
		t.Errorf("%d goroutines with %d connections, %d without", open.goroutines, connections, before.goroutines)
	}
	t.Logf("a connection, both ends of it, holds %d bytes of heap, %d of stacks and %d goroutines", (open.heap-before.heap)/connections,
		(open.stacks-before.stacks)/connections, (open.goroutines-before.goroutines)/connections)
	for _, conn := range conns {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	clear(conns)
	// The server notices in its own time. The runtime keeps what it knows goroutines by, about a tenth of the heap.
	deadline := time.Now().Add(time.Minute)
	for {
		after := measure()
		if after.goroutines <= before.goroutines+connections/10 && after.heap <= before.heap+(open.heap-before.heap)/4 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v after the connections, %+v before, %+v with them", after, before, open)
		}
	}
}

type held struct {
	goroutines   int
	heap, stacks int64
}

// measure forgets the spans, which the tests keep and the service would not, and collects garbage twice: what finalizers
// and pools give back goes with the second.
func measure() held {
	spans.Reset()
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return held{goroutines: runtime.NumGoroutine(), heap: int64(m.HeapAlloc), stacks: int64(m.StackInuse)}
}
