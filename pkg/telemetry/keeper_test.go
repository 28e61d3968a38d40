package telemetry

import (
	"context"
	"errors"
	"slices"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/evalonce/evalonce/pkg/process"
)

const (
	sampledCaller   = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	unsampledCaller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
)

type bench struct {
	trace.Tracer
	t        *testing.T
	keeper   *keeper
	exporter *tracetest.InMemoryExporter
}

func newBench(t *testing.T, environ ...string) bench {
	t.Helper()
	sampler, err := newSampler(environ)
	if err != nil {
		t.Fatal(err)
	}
	exporter := tracetest.NewInMemoryExporter()
	k := newKeeper(sdktrace.NewBatchSpanProcessor(exporter))
	provider := sdktrace.NewTracerProvider(sdktrace.WithSampler(sampler), sdktrace.WithSpanProcessor(k))
	t.Cleanup(func() { _ = provider.Shutdown(context.WithoutCancel(t.Context())) })
	return bench{provider.Tracer("test"), t, k, exporter}
}

// exported are the names of what was exported until now.
func (b bench) exported() []string {
	b.t.Helper()
	if err := b.keeper.ForceFlush(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
	var names []string
	for _, s := range b.exporter.GetSpans() {
		if !s.SpanContext.IsSampled() {
			b.t.Errorf("%s is exported as unsampled", s.Name)
		}
		names = append(names, s.Name)
	}
	slices.Sort(names)
	return names
}

// evaluate makes an evaluation's spans, as the worker does.
func (b bench) evaluate(create string, failed bool, late ...string) {
	ctx, root := b.Start(b.t.Context(), "process", trace.WithNewRoot(), trace.WithLinks(trace.Link{SpanContext: Extract(create)}))
	call, chat := b.Start(ctx, "chat")
	_, query := b.Start(call, "query")
	query.End()
	chat.End()
	for _, l := range late {
		root.AddLink(trace.Link{SpanContext: Extract(l)})
	}
	if failed {
		root.SetStatus(codes.Error, "permanent")
	}
	root.End()
	_, after := b.Start(ctx, "after")
	after.End()
}

func TestWhatIsExported(t *testing.T) {
	t.Parallel()
	all, none := []string{"after", "chat", "process", "query"}, []string(nil)
	kept := []string{"chat", "process", "query"} // what begins when its root has ended comes too late
	const off, never, tenth = "OTEL_TRACES_SAMPLER=always_off", "OTEL_TRACES_SAMPLER=parentbased_always_off", "OTEL_TRACES_SAMPLER_ARG=0"
	const ratio = "OTEL_TRACES_SAMPLER=parentbased_traceidratio"
	for name, test := range map[string]struct {
		environ []string
		create  string
		failed  bool
		late    []string
		want    []string
	}{
		"by default":                         {nil, unsampledCaller, false, nil, all},
		"always":                             {[]string{"OTEL_TRACES_SAMPLER=always_on"}, unsampledCaller, false, nil, all},
		"left out":                           {[]string{never}, unsampledCaller, false, nil, none},
		"left out by ratio":                  {[]string{ratio, tenth}, unsampledCaller, false, nil, none},
		"left out by ratio alone":            {[]string{"OTEL_TRACES_SAMPLER=traceidratio", tenth}, unsampledCaller, false, nil, none},
		"no create":                          {[]string{never}, "", false, nil, none},
		"of a sampled create":                {[]string{never}, sampledCaller, false, nil, all},
		"of a sampled create, failed":        {[]string{never}, sampledCaller, true, nil, all},
		"failed":                             {[]string{never}, unsampledCaller, true, nil, kept},
		"failed, by ratio":                   {[]string{ratio, tenth}, unsampledCaller, true, nil, kept},
		"failed without a create":            {[]string{never}, "", true, nil, kept},
		"a sampled follower":                 {[]string{never}, unsampledCaller, false, []string{unsampledCaller, sampledCaller}, kept},
		"an unsampled follower":              {[]string{never}, unsampledCaller, false, []string{unsampledCaller}, none},
		"off":                                {[]string{off}, sampledCaller, true, nil, none},
		"names are read whatever their case": {[]string{"OTEL_TRACES_SAMPLER= Always_Off "}, sampledCaller, true, nil, none},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, test.environ...)
			b.evaluate(test.create, test.failed, test.late...)
			if got := b.exported(); !slices.Equal(got, test.want) {
				t.Errorf("exported are %q, want %q", got, test.want)
			}
			if n := len(b.keeper.held); n != 0 {
				t.Errorf("%d spans are still held back", n)
			}
		})
	}
}

// A request whose caller has left it out is kept when it fails, in its caller's trace; one that the caller samples is
// exported as it goes, and its evaluations do not decide for it.
func TestRequestsOfOthers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		caller string
		failed bool
		want   []string
	}{
		"sampled":          {sampledCaller, false, []string{"query", "request"}},
		"unsampled":        {unsampledCaller, false, nil},
		"unsampled, fails": {unsampledCaller, true, []string{"query", "request"}},
	} {
		b := newBench(t)
		ctx, request := b.Start(trace.ContextWithSpanContext(t.Context(), Extract(test.caller)), "request")
		_, other := b.Start(trace.ContextWithSpanContext(t.Context(), Extract(test.caller)), "another of its requests")
		_, query := b.Start(ctx, "query")
		query.End()
		if test.failed {
			request.SetStatus(codes.Error, "")
		}
		request.End()
		if got := b.exported(); !slices.Equal(got, test.want) {
			t.Errorf("%s: exported are %q, want %q", name, got, test.want)
		}
		other.End()
	}
}

func TestWhatFindsNothingIsNotExported(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		found, failed bool
		want          []string
	}{
		"nothing": {false, false, nil}, "something": {true, false, []string{"claim", "query"}}, "failed": {false, true, []string{"claim", "query"}},
	} {
		b := newBench(t)
		ctx, claim := b.Start(t.Context(), "claim", trace.WithAttributes(ClaimAttributes("main")...))
		_, query := b.Start(ctx, "query")
		query.End()
		if test.found {
			claim.SetAttributes(Claimed(3)...)
		}
		if test.failed {
			claim.SetStatus(codes.Error, "")
		}
		claim.End()
		if got := b.exported(); !slices.Equal(got, test.want) {
			t.Errorf("%s: exported are %q, want %q", name, got, test.want)
		}
	}
}

func TestWhatIsHeldBackIsBounded(t *testing.T) {
	t.Parallel()
	b := newBench(t, "OTEL_TRACES_SAMPLER=parentbased_always_off")
	ctx, root := b.Start(t.Context(), "root")
	for range 10 * heldMostOfRoot {
		_, child := b.Start(ctx, "child")
		child.End()
	}
	roots := make([]trace.Span, 2*heldMost)
	for i := range roots {
		_, roots[i] = b.Start(t.Context(), "another root")
	}
	if n := len(b.keeper.held); n != heldMost {
		t.Errorf("%d spans are held back, want %d", n, heldMost)
	}
	for _, r := range roots {
		r.End()
	}
	root.SetStatus(codes.Error, "")
	root.End()
	if n := len(b.exported()); n != heldMostOfRoot {
		t.Errorf("%d spans are exported, want %d", n, heldMostOfRoot)
	}
	if n := len(b.keeper.held); n != 0 {
		t.Errorf("%d spans are still held back", n)
	}
}

func TestUnknownSamplersAreErrorsOfUsage(t *testing.T) {
	t.Parallel()
	for _, environ := range [][]string{
		{"OTEL_TRACES_SAMPLER=some"},
		{"OTEL_TRACES_SAMPLER=traceidratio", "OTEL_TRACES_SAMPLER_ARG=2"},
		{"OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG=NaN"},
	} {
		if _, err := newSampler(environ); !errors.Is(err, process.ErrUsage) {
			t.Errorf("%q: %v", environ, err)
		}
	}
}
