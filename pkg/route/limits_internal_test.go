package route

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Whatever is asked for and whenever, no minute sees more than the limit, not even one that is stretched by a second's
// delay on the way to the provider.
func TestBucketKeepsItsLimit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := float64(rapid.IntRange(1, 20_000).Draw(t, "limit"))
		b := bucket{limit: limit}
		type call struct {
			at    time.Duration
			calls float64
		}
		var made []call
		now := time.Duration(0)
		longest := rapid.SampledFrom([]int{200, 1_000, 5_000}).Draw(t, "longest step")
		greedy := rapid.Bool().Draw(t, "greedy")
		for _, step := range rapid.SliceOfN(rapid.IntRange(0, longest), 100, 900).Draw(t, "steps") {
			elapsed := time.Duration(step) * time.Millisecond
			now += elapsed
			b = b.refilled(elapsed)
			ask := limit
			if !greedy {
				ask = float64(rapid.IntRange(0, int(limit)).Draw(t, "ask"))
			}
			got := min(ask, float64(int(b.left())))
			b = b.take(got)
			made = append(made, call{now, got})
		}
		for i := range made {
			sum := 0.0
			for _, c := range made[i:] {
				if c.at-made[i].at > time.Minute+time.Second {
					break
				}
				sum += c.calls
			}
			if sum > limit {
				t.Fatalf("%.0f calls in a minute, the limit is %.0f", sum, limit)
			}
		}
	})
}

// Who always has work uses more than nine tenths of the limit, however seldom it looks, within the second or so that
// workers do.
func TestBucketIsUsed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := float64(rapid.IntRange(10, 20_000).Draw(t, "limit"))
		b := bucket{limit: limit}
		const minutes = 10
		used := 0.0
		late := rapid.SliceOfN(rapid.IntRange(0, 1000), 1, 50).Draw(t, "late")
		now := time.Duration(0)
		for look := 0; now < minutes*time.Minute; look++ {
			wait := max(b.until(1), 100*time.Millisecond) + time.Duration(late[look%len(late)])*time.Millisecond
			now += wait
			b = b.refilled(wait)
			got := float64(int(b.left()))
			used += got
			b = b.take(got)
		}
		if used < 0.9*limit*now.Minutes()-2 {
			t.Fatalf("used %.0f of %.0f", used, limit*minutes)
		}
	})
}

func TestBucketOfTokens(t *testing.T) {
	t.Parallel()
	b := bucket{limit: 6000} // 93 a second, 301 at the most
	b = b.refilled(time.Hour)
	if !b.full() || b.left() != 301 {
		t.Fatalf("%.0f left after an hour", b.left())
	}
	if wait := b.until(1000); wait != 0 {
		t.Errorf("a call larger than the bucket waits %s for a full one", wait)
	}
	b = b.take(1000)
	if b.left() != 0 || b.full() {
		t.Errorf("%.0f left, full %t, after a call larger than the bucket", b.left(), b.full())
	}
	if wait := b.until(1000); wait < 10*time.Second || wait > 11*time.Second {
		t.Errorf("the next one waits %s, want the time to pay 699 and gain 301", wait)
	}
	b = b.take(1e12) // as a provider reported it
	if b = b.refilled(0); b.credit != -6000 {
		t.Errorf("a debt of %.0f, want a minute's at the most", -b.credit)
	}
	none := bucket{}
	if none = none.take(1e12).refilled(0); !none.full() || none.left() < 1e12 || none.until(1) != 0 {
		t.Error("no limit is a limit")
	}
}
