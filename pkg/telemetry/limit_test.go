package telemetry

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// line is a line of the log, as far as these tests read it.
type line struct {
	Level, Msg, Message, Service, Key string
	Lines                             int
}

func linesOf(t *testing.T, out string) []line {
	t.Helper()
	var all []line
	for text := range strings.SplitSeq(strings.TrimSpace(out), "\n") {
		if text == "" {
			continue
		}
		var l line
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		all = append(all, l)
	}
	return all
}

func TestAStormIsCutShortAndCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		logger, flush := newLogger(&out, slog.LevelInfo, "s", "v")
		derived := logger.With(slog.String("key", "k")) // the storm is one, whatever a logger adds
		for range limitMost {
			logger.Warn("a route is shut")
			derived.Warn("a route is shut")
		}
		logger.Error("a route is shut") // of another level
		logger.Warn("another problem")
		for range 2 * limitMost {
			logger.Info("serving")
		}
		got := linesOf(t, out.String())
		if want := limitMost + 1 + 1 + 2*limitMost; len(got) != want {
			t.Fatalf("%d lines, want %d", len(got), want)
		}
		out.Reset()

		time.Sleep(limitInterval) //nolint:forbidigo // the bubble's clock
		derived.Info("serving")
		got = linesOf(t, out.String())
		if len(got) != 2 || got[0].Msg != leftOut || got[0].Message != "a route is shut" || got[0].Lines != limitMost || got[0].Level != "WARN" ||
			got[0].Service != "s" || got[0].Key != "" || got[1].Msg != "serving" || got[1].Key != "k" {
			t.Errorf("after the interval: %+v", got)
		}
		out.Reset()

		logger.Warn("a route is shut")
		if got := linesOf(t, out.String()); len(got) != 1 || got[0].Msg != "a route is shut" {
			t.Errorf("in the next interval: %+v", got)
		}
		out.Reset()
		for range limitMost + 4 {
			logger.Warn("a route is shut")
		}
		out.Reset()
		if err := flush(context.Background()); err != nil {
			t.Fatal(err)
		}
		if got := linesOf(t, out.String()); len(got) != 1 || got[0].Lines != 5 {
			t.Errorf("at the end: %+v", got)
		}
		out.Reset()
		if err := flush(context.Background()); err != nil || out.Len() > 0 {
			t.Errorf("at the end again: %v, %s", err, out.String())
		}
	})
}

// Whatever comes, from however many: what passed and what was left out are all that there was, and kinds are not kept.
func TestNoLineIsLostUncounted(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var out strings.Builder
	logger, flush := newLogger(writer(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return out.Write(p)
	}), slog.LevelInfo, "s", "v")
	const at, each = 8, 500
	var wg sync.WaitGroup
	for range at {
		wg.Go(func() {
			for range each {
				logger.Warn("m")
			}
		})
	}
	wg.Wait()
	if err := flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, l := range linesOf(t, out.String()) {
		if l.Msg == leftOut {
			total += l.Lines
		} else {
			total++
		}
	}
	if total != at*each {
		t.Errorf("%d lines are told of, want %d", total, at*each)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
