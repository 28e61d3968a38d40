package telemetry

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/trace"
)

func TestTraceIdentifiersStayOutOfGroups(t *testing.T) {
	t.Parallel()
	ctx := trace.ContextWithSpanContext(context.Background(), Extract("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
	const ids = `"trace_id":"0af7651916cd43dd8448eb211c80319c","span_id":"b7ad6b7169203331"`
	for name, test := range map[string]struct {
		log  func(*slog.Logger)
		want string
	}{
		"plain":      {func(l *slog.Logger) { l.InfoContext(ctx, "m", slog.Int("a", 1)) }, `"service":"s","version":"v","a":1,` + ids + `}`},
		"attributes": {func(l *slog.Logger) { l.With(slog.Int("b", 2)).InfoContext(ctx, "m", slog.Int("a", 1)) }, `"version":"v","b":2,"a":1,` + ids + `}`},
		"group": {
			func(l *slog.Logger) {
				l.With(slog.Int("b", 2)).WithGroup("g").With(slog.Int("c", 3)).WithGroup("h").InfoContext(ctx, "m", slog.Int("a", 1))
			},
			`"version":"v","b":2,` + ids + `,"g":{"c":3,"h":{"a":1}}}`,
		},
		"nameless group": {func(l *slog.Logger) { l.WithGroup("").InfoContext(ctx, "m", slog.Int("a", 1)) }, `"version":"v","a":1,` + ids + `}`},
		"no span":        {func(l *slog.Logger) { l.WithGroup("g").Info("m", slog.Int("a", 1)) }, `"version":"v","g":{"a":1}}`},
		"below level":    {func(l *slog.Logger) { l.WithGroup("g").DebugContext(ctx, "m") }, ``},
	} {
		var out strings.Builder
		logger, _ := newLogger(&out, slog.LevelInfo, "s", "v")
		test.log(logger)
		if got := strings.TrimSpace(out.String()); !strings.HasSuffix(got, test.want) || test.want == "" && got != "" {
			t.Errorf("%s: got %s, want it to end with %s", name, got, test.want)
		}
	}
}

// Two loggers made from one grouped logger must not write into each other's steps.
func TestLoggersDoNotShareTheirSteps(t *testing.T) {
	t.Parallel()
	ctx := trace.ContextWithSpanContext(context.Background(), Extract("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
	var out strings.Builder
	root, _ := newLogger(&out, slog.LevelInfo, "s", "v")
	parent := root.WithGroup("g").With(slog.Int("p", 0)).With(slog.Int("q", 0))
	first, second := parent.With(slog.Int("first", 1)), parent.With(slog.Int("second", 2))
	first.InfoContext(ctx, "m")
	if got := out.String(); !strings.Contains(got, `"first":1`) || strings.Contains(got, "second") {
		t.Errorf("first logs %s", got)
	}
	out.Reset()
	second.InfoContext(ctx, "m")
	if got := out.String(); !strings.Contains(got, `"second":2`) || strings.Contains(got, "first") {
		t.Errorf("second logs %s", got)
	}
}
