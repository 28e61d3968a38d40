// Package schedule draws a month at a support desk from a seed: when each ticket arrives, which tickets repeat the text
// of another, when the model's provider is out, and when a process is killed. The same options give the same month.
//
// # Two clocks
//
// The month has a virtual clock, and is played on a real one that is faster. Around every outage the two go at a fixed
// ratio, [Options.Pace]: there it matters how long an outage is against a retry. Elsewhere nothing of one ticket depends on
// how long it is until the next, and the pauses are shortened further: tickets follow one another at an even rate,
// [Options.Rate], whatever the virtual clock has between them. That part is called quiet, though it is the busy one.
package schedule

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// What a month is.
const (
	Month           = 30 * 24 * time.Hour
	TicketsOfAMonth = 200_000
	DuplicateShare  = 0.12  // tickets whose text another one had before
	UnavailableTime = 0.005 // part of the time that short outages take; the long one comes on top
	LongOutage      = 40 * time.Minute
	KillsOfAMonth   = 12
)

const (
	week       = 7 * 24 * time.Hour
	shortest   = 6 * time.Hour // a period has room for a long outage, and time besides
	fewestKill = 3

	shortOutageLeast = 2 * time.Minute
	shortOutageMost  = 16 * time.Minute
	// Time at the pace of an outage, after its end.
	shortCalm = 2 * time.Minute
	longCalm  = 30 * time.Minute
	// The same before the long one, for what the quiet time has left behind, and then to see an ordinary time.
	settling      = 5 * time.Minute
	ordinary      = 20 * time.Minute
	ordinaryWeeks = 50 * time.Minute // in a period of a week and more
	apart         = time.Minute      // between two such times, at least
	placings      = 10_000           // tries to find a free time

	soon = 20 // tickets; half of the duplicates come within so many of the one they repeat
)

// Options of a month.
type Options struct {
	Seed  uint64
	Count int     // of tickets; fewer than a month's make a shorter period, at the same number an hour
	Pace  float64 // virtual seconds in a real one, around outages
	Rate  float64 // tickets in a real second, elsewhere
}

// Span is the kind of time that a ticket arrives in.
type Span int

// The kinds. All but Quiet are played at the pace.
const (
	Quiet Span = iota
	Settling
	Ordinary // nothing happens
	InShortOutage
	InLongOutage
	Calm // after an outage
)

// Ticket is one that arrives.
type Ticket struct {
	Arrives time.Duration // virtual, since the beginning
	Sent    time.Duration // real, since the beginning
	Content int           // number of its text, from 0; a duplicate has the number of another
	Span    Span
}

// Outage is a time in which the provider answers nothing.
type Outage struct {
	From, To   time.Duration // virtual
	Begin, End time.Duration // real
	Long       bool          // the one long outage
}

// Schedule is a month, or a part of one.
type Schedule struct {
	Options
	Period   time.Duration   // virtual
	Length   time.Duration   // real
	ordinary time.Duration   // virtual, before the long outage
	Tickets  []Ticket        // in order of arrival
	Distinct int             // texts
	Outages  []Outage        // in order
	Kills    []time.Duration // real, in order; all in quiet time
}

// New draws a schedule.
func New(o Options) (Schedule, error) {
	switch {
	case o.Count < 1:
		return Schedule{}, errors.New("draw a schedule: there must be a ticket at least")
	case !(o.Pace >= 1) || math.IsInf(o.Pace, 0):
		return Schedule{}, errors.New("draw a schedule: the pace must be 1 at least")
	case !(o.Rate > 0) || math.IsInf(o.Rate, 0):
		return Schedule{}, errors.New("draw a schedule: the rate must be positive")
	}
	share := float64(o.Count) / TicketsOfAMonth
	s := Schedule{Options: o, Period: max(time.Duration(share*float64(Month)), shortest), ordinary: ordinary}
	if s.Period >= week {
		s.ordinary = ordinaryWeeks
	}
	// Each part has a stream of its own, so that a change to one leaves the others as they were.
	if err := s.drawOutages(stream(o.Seed, "outages")); err != nil {
		return Schedule{}, err
	}
	s.drawArrivals(stream(o.Seed, "arrivals"))
	s.drawContents(stream(o.Seed, "contents"))
	quiet := s.play()
	s.drawKills(stream(o.Seed, "kills"), quiet, max(fewestKill, int(math.Round(share*KillsOfAMonth))))
	return s, nil
}

func stream(seed uint64, name string) *rand.Rand {
	var n uint64
	for _, b := range []byte(name) {
		n = n*131 + uint64(b)
	}
	return rand.New(rand.NewPCG(seed, n)) //nolint:gosec // it has to be repeatable
}

// Scaled is how long a virtual duration takes around an outage.
func (o Options) Scaled(d time.Duration) time.Duration { return time.Duration(float64(d) / o.Pace) }

// Availability is the part of the time in which the provider answers; long says whether the long outage counts.
func (s Schedule) Availability(long bool) float64 {
	var out time.Duration
	for _, o := range s.Outages {
		if long || !o.Long {
			out += o.To - o.From
		}
	}
	return 1 - float64(out)/float64(s.Period)
}

// QuietPace is the mean of virtual seconds in a real one in quiet time.
func (s Schedule) QuietPace() float64 {
	virtual, played := s.Period, s.Length
	for _, o := range s.Outages {
		from, to := s.paced(o)
		paced := to - from
		virtual -= paced
		played -= s.Scaled(paced)
	}
	return float64(virtual) / float64(max(played, 1))
}

// paced is the time around an outage, in virtual time.
func (s Schedule) paced(o Outage) (from, to time.Duration) {
	if o.Long {
		return o.From - s.ordinary - settling, o.To + longCalm
	}
	return o.From, o.To + shortCalm
}

func (s Schedule) spanOf(o Outage, at time.Duration) Span {
	switch {
	case at < o.From-s.ordinary:
		return Settling
	case at < o.From:
		return Ordinary
	case at >= o.To:
		return Calm
	case o.Long:
		return InLongOutage
	}
	return InShortOutage
}

func (s *Schedule) drawOutages(r *rand.Rand) error {
	place := func(length time.Duration, long bool) error {
		o := Outage{Long: long}
		for range placings {
			o.From = time.Duration(r.Float64() * float64(s.Period)).Truncate(time.Second)
			o.To = o.From + length
			from, to := s.paced(o)
			// A long outage that nobody is awake for would show little.
			asleep := long && (weight(o.From) < busy || weight(o.To) < busy)
			taken := slices.ContainsFunc(s.Outages, func(other Outage) bool {
				otherFrom, otherTo := s.paced(other)
				return from < otherTo+apart && otherFrom < to+apart
			})
			if from < apart || to > s.Period || asleep || taken {
				continue
			}
			s.Outages = append(s.Outages, o)
			return nil
		}
		return fmt.Errorf("draw a schedule: no room for an outage of %s in %s", length, s.Period)
	}
	if err := place(LongOutage, true); err != nil {
		return err
	}
	for left := time.Duration(UnavailableTime * float64(s.Period)); left > 0; {
		length := min(shortOutageLeast+rand64(r, shortOutageMost-shortOutageLeast), left)
		if left-length < shortOutageLeast {
			length = left
		}
		if err := place(length, false); err != nil {
			return err
		}
		left -= length
	}
	slices.SortFunc(s.Outages, func(a, b Outage) int { return int(a.From - b.From) })
	return nil
}

func rand64(r *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(r.Int64N(int64(most)))
}

// Tickets in an hour, against each other.
const (
	busy    = 3.0 // working hours
	fringe  = 1.2
	night   = 0.25
	weekend = 0.35 // of a weekday
)

// weight is how many tickets come at a time. A period begins on a Monday at eight.
func weight(at time.Duration) float64 {
	const begins, hours, saturday, days = 8, 24, 5, 7
	hour := int(at/time.Hour) + begins
	w := night
	switch h := hour % hours; {
	case h >= 9 && h < 18:
		w = busy
	case h >= 7 && h < 22:
		w = fringe
	}
	if hour/hours%days >= saturday {
		w *= weekend
	}
	return w
}

func (s *Schedule) drawArrivals(r *rand.Rand) {
	// Tickets come to hours by their weight, and evenly within one.
	var sums []float64
	total := 0.0
	for at := time.Duration(0); at < s.Period; at += time.Hour {
		total += weight(at) * min(1, (s.Period-at).Hours())
		sums = append(sums, total)
	}
	s.Tickets = make([]Ticket, s.Count)
	for i := range s.Tickets {
		hour, _ := slices.BinarySearch(sums, r.Float64()*total)
		from := time.Duration(hour) * time.Hour
		s.Tickets[i].Arrives = from + rand64(r, min(time.Hour, s.Period-from))
	}
	slices.SortFunc(s.Tickets, func(a, b Ticket) int { return int(a.Arrives - b.Arrives) })
}

func (s *Schedule) drawContents(r *rand.Rand) {
	n := len(s.Tickets)
	duplicates := int(math.Round(DuplicateShare * float64(n)))
	repeats := make([]bool, n)
	for _, i := range r.Perm(n - 1)[:min(duplicates, n-1)] {
		repeats[i+1] = true // the first has nothing to repeat
	}
	for i := range s.Tickets {
		if !repeats[i] {
			s.Tickets[i].Content = s.Distinct
			s.Distinct++
			continue
		}
		// One sent twice within a short time, or one that many send over and over.
		back := i
		if r.IntN(2) == 0 {
			back = min(i, soon)
		}
		s.Tickets[i].Content = s.Tickets[i-1-r.IntN(back)].Content
	}
}

// play gives everything its real time, and returns the real times of the tickets in quiet time.
func (s *Schedule) play() (quiet []time.Duration) {
	step := time.Duration(float64(time.Second) / s.Rate)
	next := 0
	follow := func(until time.Duration) {
		for ; next < len(s.Tickets) && s.Tickets[next].Arrives < until; next++ {
			s.Tickets[next].Sent = s.Length
			quiet = append(quiet, s.Length)
			s.Length += step
		}
	}
	for i := range s.Outages {
		o := &s.Outages[i]
		from, to := s.paced(*o)
		follow(from)
		begun := s.Length
		played := func(at time.Duration) time.Duration { return begun + s.Scaled(at-from) }
		o.Begin, o.End = played(o.From), played(o.To)
		for ; next < len(s.Tickets) && s.Tickets[next].Arrives < to; next++ {
			t := &s.Tickets[next]
			t.Sent, t.Span = played(t.Arrives), s.spanOf(*o, t.Arrives)
		}
		s.Length = played(to)
	}
	follow(math.MaxInt64)
	return quiet
}

// drawKills kills with a ticket that arrives, so that it hits where there is work.
func (s *Schedule) drawKills(r *rand.Rand, quiet []time.Duration, n int) {
	for _, i := range r.Perm(len(quiet))[:min(n, len(quiet))] {
		s.Kills = append(s.Kills, quiet[i])
	}
	slices.Sort(s.Kills)
}
