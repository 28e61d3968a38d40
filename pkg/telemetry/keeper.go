package telemetry

import (
	"context"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// What is held back is bounded: a span has about a kilobyte. What comes beyond it goes as its sampler has said.
const (
	heldMost       = 16384 // spans
	heldMostOfRoot = 128   // of them, below one root
)

// keeper decides when it is known how things went. It holds back what this process does in one go, a root and the spans
// below it, when the sampler has left it out: it is exported, as if it were sampled, when its root ends in an error, or has
// come to be linked to a sampled trace. The other way round, what began as [Idle] and ends so is not exported: polls that
// find nothing.
type keeper struct {
	next sdktrace.SpanProcessor

	mu   sync.Mutex
	held map[spanKey]*family // by each of its spans
}

type spanKey struct {
	trace trace.TraceID
	span  trace.SpanID
}

func keyOf(sc trace.SpanContext) spanKey { return spanKey{sc.TraceID(), sc.SpanID()} }

// family is a root of this process with all that is below it, also while a span of it has yet to end.
type family struct {
	root    spanKey
	members []spanKey
	ended   []sdktrace.ReadOnlySpan
}

func newKeeper(next sdktrace.SpanProcessor) *keeper {
	return &keeper{next: next, held: map[spanKey]*family{}}
}

func (k *keeper) OnStart(ctx context.Context, s sdktrace.ReadWriteSpan) {
	k.join(s)
	k.next.OnStart(ctx, s)
}

func (k *keeper) join(s sdktrace.ReadWriteSpan) {
	key, parent := keyOf(s.SpanContext()), s.Parent()
	local := parent.IsValid() && !parent.IsRemote()
	if !local && s.SpanContext().IsSampled() && !idle(s.Attributes()) {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.held) >= heldMost {
		return
	}
	f := &family{root: key}
	if local {
		if f = k.held[keyOf(parent)]; f == nil || len(f.members) >= heldMostOfRoot {
			return
		}
	}
	f.members = append(f.members, key)
	k.held[key] = f
}

func (k *keeper) OnEnd(s sdktrace.ReadOnlySpan) {
	held, ended := k.leave(s)
	if !held {
		k.next.OnEnd(s) // which exports what is sampled
		return
	}
	for _, e := range ended {
		k.next.OnEnd(kept{e})
	}
}

// leave takes note of a span's end. It returns what is to be exported of a family whose root it was.
func (k *keeper) leave(s sdktrace.ReadOnlySpan) (held bool, export []sdktrace.ReadOnlySpan) {
	key := keyOf(s.SpanContext())
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.held[key]
	if f == nil {
		return false, nil
	}
	f.ended = append(f.ended, s)
	if f.root != key {
		return true, nil
	}
	for _, m := range f.members {
		delete(k.held, m)
	}
	if worth(s) {
		return true, f.ended
	}
	return true, nil
}

// worth reports whether a root that was held back is to be exported.
func worth(root sdktrace.ReadOnlySpan) bool {
	if root.Status().Code == codes.Error {
		return true
	}
	if idle(root.Attributes()) {
		return false
	}
	if root.SpanContext().IsSampled() {
		return true
	}
	for _, l := range root.Links() {
		if l.SpanContext.IsSampled() {
			return true
		}
	}
	return false
}

func idle(attributes []attribute.KeyValue) bool {
	for _, a := range attributes {
		if a.Key == Idle {
			return a.Value.AsBool()
		}
	}
	return false
}

func (k *keeper) Shutdown(ctx context.Context) error   { return k.next.Shutdown(ctx) }
func (k *keeper) ForceFlush(ctx context.Context) error { return k.next.ForceFlush(ctx) }

// kept is a span that is exported whatever its sampler said.
type kept struct{ sdktrace.ReadOnlySpan }

func (k kept) SpanContext() trace.SpanContext {
	sc := k.ReadOnlySpan.SpanContext()
	return sc.WithTraceFlags(sc.TraceFlags() | trace.FlagsSampled)
}
