package submit

import (
	"testing"
	"time"
)

// flushing is a queue whose flushes say what they flush and then wait to be let go.
type flushing struct {
	queue
	t      *testing.T
	begun  chan []*pending
	let    chan struct{}
	leaves []func()
}

func newFlushing(t *testing.T) *flushing {
	return &flushing{queue: queue{empty: make(chan struct{})}, t: t, begun: make(chan []*pending), let: make(chan struct{})}
}

func (f *flushing) begin() {
	f.open(func(group []*pending) {
		f.begun <- group
		<-f.let
	})
}

func (f *flushing) add(n int) {
	f.t.Helper()
	for range n {
		leave, taken := f.put(&pending{})
		if !taken {
			f.t.Fatal("not taken")
		}
		f.leaves = append(f.leaves, leave)
	}
}

func (f *flushing) wantFlush(n int) {
	f.t.Helper()
	select {
	case group := <-f.begun:
		if len(group) != n {
			f.t.Fatalf("a group of %d, want %d", len(group), n)
		}
	case <-time.After(time.Minute):
		f.t.Fatalf("no flush of %d", n)
	}
}

func (f *flushing) wantRunning(n int) {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running != n {
		f.t.Fatalf("%d flushers, want %d", f.running, n)
	}
}

// Nobody waits while flushers are free; what comes while they are busy becomes a group; a crowd gets more of them.
func TestGroupsGrowUnderLoad(t *testing.T) {
	t.Parallel()
	f := newFlushing(t)
	f.begin()
	for range flushers {
		f.add(1)
		f.wantFlush(1)
	}
	f.add(crowd - 1)
	f.wantRunning(flushers)
	f.add(1)
	f.wantFlush(crowd)
	f.add(crowd)
	f.wantFlush(crowd)
	f.wantRunning(flushersOfCrowd)
	f.add(groupMost + 1)
	f.wantRunning(flushersOfCrowd)
	f.let <- struct{}{}
	f.wantFlush(groupMost)
	f.let <- struct{}{}
	f.wantFlush(1)
	close(f.let)
	f.stop()
	f.wantRunning(0)
}

// The second group is as large as the first, or large enough.
func TestASecondGroupIsWorthItsCommit(t *testing.T) {
	t.Parallel()
	for first, second := range map[int]int{1: 1, 10: 10, worthwhile: worthwhile, 200: worthwhile} {
		f := newFlushing(t)
		f.add(first)
		f.begin()
		f.wantFlush(first)
		f.add(second - 1)
		f.wantRunning(1)
		f.add(1)
		f.wantFlush(second)
		f.wantRunning(2)
		close(f.let)
		f.stop()
	}
}

// What was taken is flushed before a stop returns, and nothing is taken after.
func TestStopFlushesWhatWaits(t *testing.T) {
	t.Parallel()
	f := newFlushing(t)
	f.add(3)
	f.wantRunning(0)
	f.begin()
	f.wantFlush(3)
	f.add(2)
	stopped := make(chan struct{})
	go func() {
		f.stop()
		close(stopped)
	}()
	f.let <- struct{}{}
	f.wantFlush(2)
	select {
	case <-stopped:
		t.Error("stopped with flushes under way")
	default:
	}
	close(f.let)
	<-stopped
	if _, taken := f.put(&pending{}); taken {
		t.Error("taken after the stop")
	}
}

// A request whose caller has gone takes no room in a queue that does not move.
func TestLeaving(t *testing.T) {
	t.Parallel()
	f := newFlushing(t)
	f.add(3)
	f.leaves[1]()
	f.leaves[1]()
	if n := f.waiting.Len(); n != 2 {
		t.Errorf("%d wait, want 2", n)
	}
	f.begin()
	f.wantFlush(2)
	f.leaves[0]() // on its way: nothing to leave
	close(f.let)
	f.stop()
}
