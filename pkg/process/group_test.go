package process_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evalonce/evalonce/pkg/process"
)

var errShutdown = errors.New("shutting down")

// journal records what happened in order.
type journal struct {
	mu     sync.Mutex
	events []string
}

func (j *journal) add(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = append(j.events, fmt.Sprintf(format, args...))
}

// component runs until its context ends, and takes a while to stop.
func (j *journal) component(name string, while time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		<-ctx.Done()
		j.add("%s told: %v", name, context.Cause(ctx))
		<-time.After(while)
		j.add("%s stopped", name)
		return ctx.Err()
	}
}

func TestGroupStopsInReverseOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		group := process.NewGroup(ctx)
		var j journal
		group.OnStop("pool", func(ctx context.Context) error {
			if _, bounded := ctx.Deadline(); ctx.Err() != nil || !bounded {
				t.Error("the context of a stop has ended, or never will")
			}
			j.add("pool closed")
			return nil
		})
		group.Go("worker", j.component("worker", 10*time.Second))
		group.Go("server", j.component("server", time.Second))
		cancel(errShutdown)
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
		want := []string{
			"server told: shutting down", "server stopped",
			"worker told: shutting down", "worker stopped",
			"pool closed",
		}
		if !slices.Equal(j.events, want) {
			t.Errorf("events %q, want %q", j.events, want)
		}
	})
}

func TestGroupStopsWhenAComponentEnds(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		run     func(context.Context) error
		cause   string
		message []string // parts of Wait's error; none for nil
	}{
		"with an error": {func(context.Context) error { return broken }, "job: broken", []string{"job: broken"}},
		"with nil":      {func(context.Context) error { return nil }, "job has ended", nil},
		"with a panic":  {func(context.Context) error { panic("bug") }, "job: panic: bug", []string{"job: panic: bug", "group_test.go"}},
		"with somebody else's cancellation": {
			func(context.Context) error { return context.Canceled }, "job: context canceled", []string{"job: context canceled"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			group := process.NewGroup(t.Context())
			var j journal
			group.Go("server", j.component("server", 0))
			group.Go("job", test.run)
			group.Go("late", j.component("late", 0))
			err := group.Wait()
			if (err == nil) != (test.message == nil) {
				t.Errorf("Wait: %v", err)
			}
			for _, part := range test.message {
				if err != nil && !strings.Contains(err.Error(), part) {
					t.Errorf("Wait: %v; want %q in it", err, part)
				}
			}
			if len(j.events) != 4 || !strings.HasPrefix(j.events[0], "late told: "+test.cause) ||
				!strings.HasPrefix(j.events[2], "server told: "+test.cause) {
				t.Errorf("events %q, want late and server told of %q in this order", j.events, test.cause)
			}
		})
	}
}

func TestGroupBoundsEveryStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		group := process.NewGroup(ctx)
		var j journal
		release := make(chan struct{})
		group.Go("first", j.component("first", 0))
		group.GoWithin(3*time.Second, "stuck", func(context.Context) error {
			<-release
			return nil
		})
		cancel(errShutdown)
		start := time.Now()
		err := group.Wait()
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("Wait took %v, want the grace of the stuck component", took)
		}
		if err == nil || err.Error() != "stuck: did not stop within 3s" {
			t.Errorf("Wait: %v", err)
		}
		if len(j.events) != 2 {
			t.Errorf("events %q: the component below the stuck one was not stopped", j.events)
		}
		close(release)
	})
}

func TestGroupJoinsErrorsFirstOneFirst(t *testing.T) {
	t.Parallel()
	first, second := errors.New("first"), errors.New("second")
	group := process.NewGroup(t.Context())
	group.Go("below", func(ctx context.Context) error {
		<-ctx.Done()
		// A failure beside the cancellation is a failure.
		return errors.Join(ctx.Err(), second)
	})
	group.Go("above", func(ctx context.Context) error {
		<-ctx.Done()
		return fmt.Errorf("serve: %w: %w", ctx.Err(), context.Cause(ctx))
	})
	group.Go("job", func(context.Context) error { return first })
	err := group.Wait()
	if !errors.Is(err, first) || !errors.Is(err, second) {
		t.Errorf("Wait: %v, want both errors", err)
	}
	if err == nil || !strings.HasPrefix(err.Error(), "job: first\nbelow: ") || strings.Contains(err.Error(), "above") {
		t.Errorf("Wait: %v", err)
	}
}

type uncomparable struct{ parts []string }

func (u uncomparable) Error() string { return strings.Join(u.parts, " ") }

func TestGroupTakesErrorsThatCannotBeCompared(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	group := process.NewGroup(ctx)
	group.Go("job", func(ctx context.Context) error {
		<-ctx.Done()
		return uncomparable{[]string{"not", "comparable"}}
	})
	cancel(uncomparable{[]string{"not", "either"}})
	if err := group.Wait(); err == nil || err.Error() != "job: not comparable" {
		t.Errorf("Wait: %v", err)
	}
}

func TestGroupPassesValuesOn(t *testing.T) {
	t.Parallel()
	type key struct{}
	ctx := context.WithValue(t.Context(), key{}, "value")
	group := process.NewGroup(ctx)
	group.Go("job", func(ctx context.Context) error {
		if ctx.Value(key{}) != "value" {
			t.Error("the component does not see the values of the group's context")
		}
		return nil
	})
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}
