package providersim

import (
	"testing"
	"time"
)

func TestMatchesInItsTime(t *testing.T) {
	t.Parallel()
	rule := arm(Rule{Match: Match{After: 30 * time.Second, Before: time.Minute}}, 1)
	for age, want := range map[time.Duration]bool{
		0: false, 30*time.Second - 1: false, 30 * time.Second: true, time.Minute - 1: true, time.Minute: false,
	} {
		if got := rule.fire(1, facts{number: 1, age: age}); got != want {
			t.Errorf("at %s: %t", age, got)
		}
	}
}

func TestProbabilityIsAShare(t *testing.T) {
	t.Parallel()
	const draws, share = 20_000, 0.25
	rule, other := arm(Rule{Match: Match{Probability: share}}, 1), arm(Rule{Match: Match{Probability: share}}, 2)
	hits, both := 0, 0
	for n := range draws {
		f := facts{number: n, content: FingerprintOf("s", time.Duration(n).String()), attempt: 1}
		if rule.fire(9, f) {
			hits++
			if other.fire(9, f) {
				both++
			}
		}
	}
	if got := float64(hits) / draws; got < share-0.02 || got > share+0.02 {
		t.Errorf("share %.3f of %.2f", got, share)
	}
	if got := float64(both) / float64(hits); got < share-0.04 || got > share+0.04 {
		t.Errorf("a second rule hit %.3f of what the first did: they are not independent", got)
	}
}

func TestEveryErrorHasItsResponse(t *testing.T) {
	t.Parallel()
	for _, e := range allErrors() {
		if r := (openAI{}).failure(e, completion{model: "m"}); r.status < 400 || len(r.body) == 0 || r.contentType == "" {
			t.Errorf("%s: %+v", e, r)
		}
	}
}
