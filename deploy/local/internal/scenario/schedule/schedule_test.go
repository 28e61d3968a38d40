package schedule_test

import (
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/evalonce/evalonce/deploy/local/internal/scenario/schedule"
	"github.com/evalonce/evalonce/pkg/content"
)

func options(seed uint64, count int) schedule.Options {
	return schedule.Options{Seed: seed, Count: count, Pace: 300, Rate: 1000}
}

func draw(t *testing.T, o schedule.Options) schedule.Schedule {
	t.Helper()
	s, err := schedule.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSeedDecidesEverything(t *testing.T) {
	t.Parallel()
	a, b := draw(t, options(7, 5000)), draw(t, options(7, 5000))
	if !reflect.DeepEqual(a, b) {
		t.Error("two schedules of one seed differ")
	}
	c := draw(t, options(8, 5000))
	if reflect.DeepEqual(a.Outages, c.Outages) || reflect.DeepEqual(a.Kills, c.Kills) || reflect.DeepEqual(a.Tickets, c.Tickets) {
		t.Error("another seed has the same outages, kills or tickets")
	}
	// Machines differ in speed; the month that they play does not.
	slow := options(7, 5000)
	slow.Pace, slow.Rate = 60, 50
	d := draw(t, slow)
	for i := range a.Tickets {
		if a.Tickets[i].Arrives != d.Tickets[i].Arrives || a.Tickets[i].Content != d.Tickets[i].Content {
			t.Fatalf("ticket %d depends on how fast the month is played", i)
		}
	}
}

func TestDuplicates(t *testing.T) {
	t.Parallel()
	for _, count := range []int{1, 2, 200, 5000, schedule.TicketsOfAMonth} {
		s := draw(t, options(3, count))
		want := int(math.Round(schedule.DuplicateShare * float64(count)))
		if count == 1 {
			want = 0
		}
		if len(s.Tickets) != count || s.Distinct != count-want {
			t.Errorf("%d tickets with %d texts, want %d with %d", len(s.Tickets), s.Distinct, count, count-want)
		}
		next := 0
		for i, ticket := range s.Tickets {
			switch {
			case ticket.Content == next:
				next++
			case ticket.Content > next:
				t.Fatalf("ticket %d repeats text %d, which nobody had before", i, ticket.Content)
			}
			if i > 0 && ticket.Arrives < s.Tickets[i-1].Arrives {
				t.Fatalf("ticket %d arrives before the one before it", i)
			}
			if ticket.Arrives < 0 || ticket.Arrives >= s.Period {
				t.Fatalf("ticket %d arrives at %s of %s", i, ticket.Arrives, s.Period)
			}
		}
		if next != s.Distinct {
			t.Errorf("%d texts in use, want %d", next, s.Distinct)
		}
	}
}

func TestTextsAreEqualWhenTheirContentsAre(t *testing.T) {
	t.Parallel()
	a, b := draw(t, options(5, 10)), draw(t, options(5, 20_000))
	seen := map[content.Hash]int{}
	for i := range b.Distinct {
		text, err := content.Canonical(b.Text(i))
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[text.Hash()]; ok {
			t.Fatalf("contents %d and %d have one text", other, i)
		}
		seen[text.Hash()] = i
	}
	subject, message := b.Text(4)
	if s, m := a.Text(4); s != subject || m != message {
		t.Errorf("content 4 reads %q, %q and %q, %q", s, m, subject, message)
	}
}

func TestAvailability(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		counts := []int{200, 5000, 20_000}
		if seed == 1 {
			counts = append(counts, schedule.TicketsOfAMonth)
		}
		for _, count := range counts {
			s := draw(t, options(seed, count))
			if got := s.Availability(false); math.Abs(got-0.995) > 1e-9 {
				t.Errorf("seed %d, %d tickets: available %.5f of the time", seed, count, got)
			}
			long := 0
			for i, o := range s.Outages {
				if o.Long {
					long++
					if o.To-o.From != 40*time.Minute {
						t.Errorf("seed %d: the long outage lasts %s", seed, o.To-o.From)
					}
				}
				if o.From < 0 || o.To > s.Period || o.To <= o.From || (i > 0 && o.From <= s.Outages[i-1].To) {
					t.Errorf("seed %d: outage from %s to %s, after %+v", seed, o.From, o.To, s.Outages[max(0, i-1)])
				}
			}
			if long != 1 {
				t.Errorf("seed %d: %d long outages", seed, long)
			}
		}
	}
	if s := draw(t, options(1, schedule.TicketsOfAMonth)); s.Period != 30*24*time.Hour || len(s.Outages) < 10 {
		t.Errorf("a month of %s with %d outages", s.Period, len(s.Outages))
	}
}

// In and after an outage the real clock goes at the pace, elsewhere by tickets; it never goes back.
func TestClocks(t *testing.T) {
	t.Parallel()
	s := draw(t, options(11, 20_000))
	out := func(at time.Duration) (schedule.Outage, bool) {
		for _, o := range s.Outages {
			if at >= o.From && at < o.To {
				return o, true
			}
		}
		return schedule.Outage{}, false
	}
	const rounding = time.Microsecond
	met := 0
	spans := map[schedule.Span]int{}
	for i, ticket := range s.Tickets {
		if i > 0 && ticket.Sent < s.Tickets[i-1].Sent {
			t.Fatalf("ticket %d is sent before the one before it", i)
		}
		o, ok := out(ticket.Arrives)
		if in := ticket.Span == schedule.InShortOutage || ticket.Span == schedule.InLongOutage; in != ok || (ok && o.Long != (ticket.Span == schedule.InLongOutage)) {
			t.Fatalf("ticket %d arrives in an outage: %t; its span is %d", i, ok, ticket.Span)
		}
		spans[ticket.Span]++
		if inside := ticket.Sent >= o.Begin && ticket.Sent < o.End; ok != inside {
			t.Fatalf("ticket %d arrives in an outage: %t; it is sent in one: %t", i, ok, inside)
		}
		if !ok {
			continue
		}
		met++
		if got, want := ticket.Sent-o.Begin, (ticket.Arrives-o.From)/300; (got - want).Abs() > rounding {
			t.Fatalf("ticket %d is sent %s into its outage, want %s", i, got, want)
		}
	}
	if met < 100 || spans[schedule.Ordinary] < 100 || len(spans) != 6 {
		t.Errorf("%d tickets meet an outage, %v arrive in each span: the test shows nothing", met, spans)
	}
	for _, o := range s.Outages {
		if got, want := o.End-o.Begin, (o.To-o.From)/300; (got - want).Abs() > rounding {
			t.Errorf("an outage of %s takes %s, want %s", o.To-o.From, got, want)
		}
		for _, at := range s.Kills {
			if at >= o.Begin && at <= o.End {
				t.Errorf("a kill at %s falls into the outage from %s to %s", at, o.Begin, o.End)
			}
		}
	}
	if last := s.Tickets[len(s.Tickets)-1].Sent; last > s.Length || len(s.Kills) < 3 || s.Kills[len(s.Kills)-1] > s.Length {
		t.Errorf("a length of %s, the last ticket at %s, kills at %s", s.Length, last, s.Kills)
	}
	// 20,000 tickets at 1,000 a second, less those around outages, which take their time.
	if s.Length < 15*time.Second || s.Length > 60*time.Second || s.QuietPace() < 300 {
		t.Errorf("takes %s, at a quiet pace of %.0f", s.Length, s.QuietPace())
	}
}

func TestRefusesWhatCannotBePlayed(t *testing.T) {
	t.Parallel()
	for _, o := range []schedule.Options{
		{Count: 0, Pace: 300, Rate: 1000},
		{Count: 10, Pace: 0.5, Rate: 1000},
		{Count: 10, Pace: math.NaN(), Rate: 1000},
		{Count: 10, Pace: 300, Rate: 0},
		{Count: 10, Pace: 300, Rate: math.Inf(1)},
	} {
		if s, err := schedule.New(o); err == nil {
			t.Errorf("%+v makes a schedule of %s", o, s.Length)
		}
	}
}
