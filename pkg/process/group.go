package process

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"
)

// DefaultGrace is the time a component gets to stop.
const DefaultGrace = 20 * time.Second

// Group holds the components of a service. They are started in the order of the calls of Go, and stopped in the
// reverse: a component's context ends only when those started after it have ended, or have used up their time.
type Group struct {
	parent     context.Context // of all components; it would be an argument of Go, were it not the same each time
	components []*component
	ended      chan error // why the first component to end did so

	mu   sync.Mutex
	errs []error // in the order in which they occurred
}

type component struct {
	name  string
	grace time.Duration
	stop  context.CancelCauseFunc
	done  chan struct{}
}

// NewGroup returns a group that stops when ctx ends. Its components see the values of ctx, but not its end.
func NewGroup(ctx context.Context) *Group {
	return &Group{parent: ctx, ended: make(chan error, 1)}
}

// Go starts a component that gets DefaultGrace to stop. See GoWithin.
func (g *Group) Go(name string, run func(ctx context.Context) error) {
	g.GoWithin(DefaultGrace, name, run)
}

// GoWithin starts a component that has to return within grace of the end of its context. One that returns earlier
// ends the group, whatever it returns: a job that has done its work, or a server that must not be missing. A panic is
// an error. Components are started by one goroutine, before it calls Wait.
func (g *Group) GoWithin(grace time.Duration, name string, run func(ctx context.Context) error) {
	ctx, stop := context.WithCancelCause(context.WithoutCancel(g.parent))
	c := &component{name: name, grace: grace, stop: stop, done: make(chan struct{})}
	g.components = append(g.components, c)
	go func() {
		defer close(c.done)
		why := fmt.Errorf("%s has ended", name)
		if err := protect(func() error { return run(ctx) }); err != nil && !onlyEndOf(ctx, err) {
			why = fmt.Errorf("%s: %w", name, err)
			g.fail(why)
		}
		select {
		case g.ended <- why:
		default: // another was first
		}
	}()
}

// Leaves a stop that was cut short by its context the time to say so.
const stopMargin = time.Second

// OnStop adds a component that does nothing but stop, with a context that ends shortly before its DefaultGrace: what
// was opened before the components that use it, and is closed after them.
func (g *Group) OnStop(name string, stop func(ctx context.Context) error) {
	g.Go(name, func(ctx context.Context) error {
		<-ctx.Done()
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), DefaultGrace-stopMargin,
			errors.New("the time to stop is over"))
		defer cancel()
		return stop(ctx)
	})
}

// Wait blocks until the group's context or a component ends, stops all components, and returns their errors joined,
// the first one first. That a component returns the end of its own context is no error. One that does not return in
// time is left behind, which is an error.
func (g *Group) Wait() error {
	var cause error
	select {
	case <-g.parent.Done():
		cause = context.Cause(g.parent)
	case cause = <-g.ended:
	}
	for _, c := range slices.Backward(g.components) {
		c.stop(cause)
		grace := time.NewTimer(c.grace)
		select {
		case <-c.done:
		case <-grace.C:
			g.fail(fmt.Errorf("%s: did not stop within %v", c.name, c.grace))
		}
		grace.Stop()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return errors.Join(g.errs...)
}

func (g *Group) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.errs = append(g.errs, err)
}

// onlyEndOf reports whether err says nothing but that ctx has ended: a failure that is joined to the cancellation
// must not pass for it.
func onlyEndOf(ctx context.Context, err error) bool {
	if ctx.Err() == nil {
		return false
	}
	if same(err, context.Canceled) || same(err, context.Cause(ctx)) {
		return true
	}
	switch wrapper := err.(type) { //nolint:errorlint // this walks the chain
	case interface{ Unwrap() error }:
		inner := wrapper.Unwrap()
		return inner != nil && onlyEndOf(ctx, inner)
	case interface{ Unwrap() []error }:
		inner := wrapper.Unwrap()
		return len(inner) > 0 && !slices.ContainsFunc(inner, func(err error) bool { return !onlyEndOf(ctx, err) })
	default:
		return false
	}
}

// same compares what == would panic on as different.
func same(a, b error) bool {
	return reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b //nolint:errorlint // not the chain
}
