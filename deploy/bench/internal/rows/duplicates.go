package rows

import "github.com/evalonce/evalonce/deploy/bench/internal/harness"

// duplicates is what a ticket costs whose text was sent before, and whose evaluation is still to be made.
func (b *Bench) duplicates() harness.Group {
	n := b.sized(100_000, 200)
	same := b.creating("identical tickets", n, identical, (*api).createGRPC)
	others := b.creating("distinct tickets", n, distinct, (*api).createGRPC)
	return harness.Group{Name: "duplicates", Rounds: b.rounds(3), Rows: []harness.Row{
		{Name: "created, identical tickets", Unit: perSec, Figure: rate, Of: same, Against: others, Must: harness.AtLeast(1)},
	}}
}
