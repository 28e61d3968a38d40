package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// span is a length of time as a flag: a number of days, such as 30d, or what Go writes, such as 36h or 90m.
type span time.Duration

func (s *span) Type() string { return "duration" }

func (s *span) String() string {
	const day = 24 * time.Hour
	if *s == 0 {
		return ""
	}
	if d := time.Duration(*s); d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	return time.Duration(*s).String()
}

func (s *span) Set(text string) error {
	const most = 100 * 365 // days
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n > 0 && n <= most {
			*s = span(time.Duration(n) * 24 * time.Hour)
			return nil
		}
	} else if d, err := time.ParseDuration(text); err == nil && d > 0 {
		*s = span(d)
		return nil
	}
	return fmt.Errorf("must be a length of time such as 30d, 36h or 90m, and not %q", text)
}

// moment is a point in time as a flag: in RFC 3339, with its offset, or so long ago, such as 30d.
type moment struct {
	time.Time
	ago time.Duration // 0 when it was given as a time
}

func (m *moment) Type() string { return "time" }

func (m *moment) String() string {
	if m.IsZero() {
		return ""
	}
	return m.Format(time.RFC3339)
}

func (m *moment) Set(text string) error {
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		*m = moment{Time: at}
		return nil
	}
	var ago span
	if err := ago.Set(text); err != nil {
		return fmt.Errorf("must be a time in RFC 3339 with its offset, such as 2026-11-30T15:00:00Z, or so long ago, such as 30d or 36h, and not %q", text)
	}
	*m = moment{Time: time.Now().Add(-time.Duration(ago)), ago: time.Duration(ago)}
	return nil
}

// share is a part of a whole as a flag, from 0 to 1; nil when it is not given.
type share struct{ value *float64 }

func (s *share) Type() string { return "share" }

func (s *share) String() string {
	if s.value == nil {
		return ""
	}
	return strconv.FormatFloat(*s.value, 'g', -1, 64)
}

func (s *share) Set(text string) error {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v >= 0 && v <= 1) { // so that NaN is none
		return fmt.Errorf("must be a number from 0 to 1, and not %q", text)
	}
	s.value = &v
	return nil
}
