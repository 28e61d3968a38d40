package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// Problems of one kind are logged so often in an interval; of the others it is said how many there were. A storm of them
// says no more than its first hundred lines, and a hundred thousand would cost what the work needs.
const (
	limitInterval = 10 * time.Second
	limitMost     = 100
	// limitKinds bounds the kinds that are told apart. Messages are constant, so there are fewer.
	limitKinds = 1000
)

// limited passes on warnings and errors, up to a number of those with the same message in an interval. What it left out it
// tells with the first line that comes after the interval, whichever that is, or when it is flushed. Lower levels pass:
// who asks for them wants all of them.
type limited struct {
	slog.Handler
	storm *storm
}

// storm is what all handlers derived from one share.
type storm struct {
	root slog.Handler // without a logger's attributes

	mu    sync.Mutex
	kinds map[kind]*window
	next  time.Time // when the first window ends that may have left something out
}

type kind struct {
	level   slog.Level
	message string
}

type window struct {
	ends         time.Time
	passed, left int
}

const leftOut = "lines were left out of the log"

func limit(h slog.Handler) limited {
	return limited{Handler: h, storm: &storm{root: h, kinds: map[kind]*window{}}}
}

func (l limited) Handle(ctx context.Context, r slog.Record) error {
	pass, told := l.storm.admit(r)
	var problems []error
	for _, t := range told {
		problems = append(problems, l.storm.root.Handle(context.Background(), t)) // it is not of this line's trace
	}
	if pass {
		problems = append(problems, l.Handler.Handle(ctx, r))
	}
	return errors.Join(problems...)
}

func (l limited) WithAttrs(attrs []slog.Attr) slog.Handler {
	return limited{Handler: l.Handler.WithAttrs(attrs), storm: l.storm}
}

func (l limited) WithGroup(name string) slog.Handler {
	return limited{Handler: l.Handler.WithGroup(name), storm: l.storm}
}

// admit reports whether a line passes, and what is to be told before it.
func (s *storm) admit(r slog.Record) (pass bool, told []slog.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	told = s.end(r.Time)
	if r.Level < slog.LevelWarn {
		return true, told
	}
	k := kind{r.Level, r.Message}
	w := s.kinds[k]
	if w == nil {
		if len(s.kinds) >= limitKinds {
			return true, told
		}
		w = &window{}
		s.kinds[k] = w
	}
	if !r.Time.Before(w.ends) {
		*w = window{ends: r.Time.Add(limitInterval)}
	}
	if w.passed < limitMost {
		w.passed++
		return true, told
	}
	w.left++
	if s.next.IsZero() || w.ends.Before(s.next) {
		s.next = w.ends
	}
	return false, told
}

// end returns what windows that have ended by now have left out.
func (s *storm) end(now time.Time) []slog.Record {
	if s.next.IsZero() || now.Before(s.next) {
		return nil
	}
	s.next = time.Time{}
	var told []slog.Record
	for k, w := range s.kinds {
		switch {
		case w.left == 0:
			if !now.Before(w.ends) {
				delete(s.kinds, k)
			}
		case !now.Before(w.ends):
			r := slog.NewRecord(now, k.level, leftOut, 0)
			r.AddAttrs(slog.String("message", k.message), slog.Int("lines", w.left), slog.Duration("within", limitInterval))
			told = append(told, r)
			delete(s.kinds, k)
		case s.next.IsZero() || w.ends.Before(s.next):
			s.next = w.ends
		}
	}
	return told
}

// flush tells of all that was left out.
func (l limited) flush(ctx context.Context) error {
	l.storm.mu.Lock()
	told := l.storm.end(time.Now().Add(limitInterval)) // by then each window has ended
	l.storm.mu.Unlock()
	var problems []error
	for _, r := range told {
		problems = append(problems, l.storm.root.Handle(ctx, r))
	}
	return errors.Join(problems...)
}
