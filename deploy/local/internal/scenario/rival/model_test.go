package rival_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/evalonce/evalonce/deploy/local/internal/scenario/rival"
	"github.com/evalonce/evalonce/pkg/providersim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The client of the rivals is neither worse nor better than SDKs are.
func TestAskTriesAsSDKsDo(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name             string
		rule             providersim.Rule
		answered         bool
		requests, billed int
	}{
		{name: "well", rule: providersim.Rule{Match: providersim.Match{Nth: 9}}, answered: true, requests: 1, billed: 1},
		{name: "unavailable", rule: providersim.Rule{Action: providersim.Action{Error: providersim.Overloaded503}}, requests: 3},
		{name: "unavailable once", rule: providersim.Rule{Action: providersim.Action{Error: providersim.Overloaded503}, Times: 1}, answered: true, requests: 2, billed: 1},
		{name: "cut", rule: providersim.Rule{Action: providersim.Action{Close: providersim.CloseAfterAnswer}, Times: 1}, answered: true, requests: 2, billed: 2},
		{name: "refused", rule: providersim.Rule{Action: providersim.Action{Error: providersim.ContextLength}}, requests: 1},
		{name: "no answer", rule: providersim.Rule{Action: providersim.Action{Answer: providersim.AnswerBadJSON}}, requests: 1, billed: 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			sim := providersim.New(providersim.Options{Script: []providersim.Rule{test.rule}})
			if err := sim.Start(""); err != nil {
				t.Fatal(err)
			}
			const pace = 1000
			m := rival.NewModel(sim.URL()+"/v1", "", pace, time.Minute)
			_, err := m.Ask(t.Context(), "Help", "It does not work.")
			m.Close()
			stats := sim.Stats()
			if err := sim.Close(); err != nil {
				t.Fatal(err)
			}
			if (err == nil) != test.answered || stats.Requests != test.requests || stats.Billed != test.billed {
				t.Errorf("%d requests, %d billed: %v", stats.Requests, stats.Billed, err)
			}
		})
	}
}
