package telemetry_test

import (
	"context"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/trace"

	"github.com/evalonce/evalonce/pkg/telemetry"
)

func TestInjectAndExtract(t *testing.T) {
	t.Parallel()
	span := telemetry.Extract(caller)
	if !span.IsValid() || !span.IsRemote() || !span.IsSampled() || span.TraceID().String() != "0af7651916cd43dd8448eb211c80319c" ||
		span.SpanID().String() != "b7ad6b7169203331" {
		t.Errorf("Extract(%q) = %+v", caller, span)
	}
	if got := telemetry.Inject(trace.ContextWithSpanContext(context.Background(), span)); got != caller {
		t.Errorf("Inject = %q, want %q", got, caller)
	}
	if got := telemetry.Inject(context.Background()); got != "" {
		t.Errorf("without a span Inject = %q", got)
	}
}

func TestExtractTakesGarbage(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"", "-", "00", "garbage", "00-0-0-0", "\x00\xff", strings.Repeat("0", 1<<20), strings.Repeat("-", 1<<16),
		strings.ToUpper(caller), caller + " ", caller + "-extra", caller[:len(caller)-1],
		"00-00000000000000000000000000000000-b7ad6b7169203331-01",
		"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
		"ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		"'; DROP TABLE ticket; --",
	} {
		if span := telemetry.Extract(s); span.IsValid() {
			t.Errorf("Extract(%.60q) = %v, want an invalid one", s, span)
		}
	}
}

// What is valid is kept by a row and back, and what is not is no span.
func FuzzExtract(f *testing.F) {
	for _, s := range []string{caller, "", "00-0-0-0", "cc" + caller[2:] + "-later-version"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		span := telemetry.Extract(s)
		stored := telemetry.Inject(trace.ContextWithSpanContext(context.Background(), span))
		if !span.IsValid() {
			if stored != "" {
				t.Errorf("%q: an invalid span is stored as %q", s, stored)
			}
			return
		}
		if again := telemetry.Extract(stored); !again.Equal(span) {
			t.Errorf("%q: read again as %v, was %v", s, again, span)
		}
	})
}
