package scenario

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/deploy/local/internal/report"
	"github.com/evalonce/evalonce/deploy/local/internal/scenario/schedule"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/providersim"
)

// Result is what a design made of the month. The fields and their names are a contract.
type Result struct {
	Design string `json:"design"` // in_request, queue or evalonce
	Title  string `json:"-"`

	Seed     uint64  `json:"seed"`
	Tickets  int     `json:"tickets"`
	Distinct int     `json:"distinct_contents"`
	Days     float64 `json:"days"` // virtual
	// Factor is virtual seconds in a real one around outages; QuietFactor is the mean elsewhere.
	Factor      float64 `json:"factor"`
	QuietFactor float64 `json:"quiet_factor"`
	Rate        float64 `json:"quiet_tickets_per_s"`
	// Availability is the provider's; AvailabilityButLong leaves the long outage out.
	Availability        float64 `json:"availability"`
	AvailabilityButLong float64 `json:"availability_without_long_outage"`

	// In real milliseconds; see the package's documentation for what is scaled in them. Of an ordinary time, of the long
	// outage, and of the quiet time, in which the machine does what it can.
	CreateP50Ms       float64 `json:"create_p50_ms"`
	CreateP95Ms       float64 `json:"create_p95_ms"`
	CreateP99Ms       float64 `json:"create_p99_ms"`
	OutageCreateP50Ms float64 `json:"create_in_outage_p50_ms"`
	OutageCreateP95Ms float64 `json:"create_in_outage_p95_ms"`
	OutageCreateP99Ms float64 `json:"create_in_outage_p99_ms"`
	BusyCreateP50Ms   float64 `json:"create_at_full_rate_p50_ms"`
	BusyCreateP95Ms   float64 `json:"create_at_full_rate_p95_ms"`
	BusyCreateP99Ms   float64 `json:"create_at_full_rate_p99_ms"`

	Unevaluated     int             `json:"tickets_without_evaluation"`
	ClientsGaveUp   int             `json:"clients_gave_up"`
	Calls           int             `json:"calls"` // that the provider received
	Billed          int             `json:"calls_billed"`
	BilledAgain     int             `json:"calls_billed_again"` // beyond one for each content
	CallsPerContent float64         `json:"calls_per_content"`  // billed
	CostUSD         decimal.Decimal `json:"cost_usd"`

	// From the end of the long outage until no ticket from before waits; none where tickets cannot wait.
	DrainSeconds        *float64 `json:"drain_s"`
	DrainVirtualMinutes *float64 `json:"drain_virtual_minutes"`

	Kills           int     `json:"kills"`
	InFlightAtKills int     `json:"calls_in_flight_at_kills"`
	PlayedSeconds   float64 `json:"played_s"`
	// BehindSeconds is the most by which the player was late around an outage: a machine that is too slow shows here.
	BehindSeconds float64 `json:"behind_s"`

	Broken []string `json:"broken_promises,omitempty"` // EvalOnce's
}

func (r *rig) result(c contender, p *player, stats providersim.Stats, a account) Result {
	const ratio, seconds = 6, 2 // decimals
	s := r.schedule
	result := Result{
		Design: c.name, Title: c.title,
		Seed: s.Seed, Tickets: len(s.Tickets), Distinct: s.Distinct, Days: report.Round(s.Period.Hours()/24, seconds),
		Factor: s.Pace, QuietFactor: report.Round(s.QuietPace(), 0), Rate: s.Rate,
		Availability: report.Round(s.Availability(true), ratio), AvailabilityButLong: report.Round(s.Availability(false), ratio),
		Unevaluated: len(s.Tickets) - a.evaluated, ClientsGaveUp: int(p.gaveUp.Load()),
		Calls: stats.Requests, Billed: stats.Billed, BilledAgain: stats.Billed - stats.BilledContents,
		CallsPerContent: report.Round(float64(stats.Billed)/float64(s.Distinct), ratio),
		CostUSD:         stats.CostUSD.Round(seconds), Kills: p.kills, InFlightAtKills: a.cut,
		PlayedSeconds: report.Round(p.took.Seconds(), seconds), BehindSeconds: report.Round(p.behind.Seconds(), seconds), Broken: a.broken,
	}
	result.CreateP50Ms, result.CreateP95Ms, result.CreateP99Ms = percentiles(p.latenciesIn(schedule.Ordinary))
	result.OutageCreateP50Ms, result.OutageCreateP95Ms, result.OutageCreateP99Ms = percentiles(p.latenciesIn(schedule.InLongOutage))
	result.BusyCreateP50Ms, result.BusyCreateP95Ms, result.BusyCreateP99Ms = percentiles(p.latenciesIn(schedule.Quiet))
	if c.waits {
		drained := report.Round(p.drained.Seconds(), seconds)
		virtual := report.Round(p.drained.Minutes()*s.Pace, seconds)
		result.DrainSeconds, result.DrainVirtualMinutes = &drained, &virtual
	}
	return result
}

func percentiles(d []time.Duration) (p50, p95, p99 float64) {
	return report.Milliseconds(report.Percentile(d, 50)), report.Milliseconds(report.Percentile(d, 95)), report.Milliseconds(report.Percentile(d, 99))
}

// WriteJSON writes the results to a file, whole or not at all.
func WriteJSON(path string, results []Result) error {
	data, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the results: %w", err)
	}
	unfinished := path + ".unfinished"
	if err := os.WriteFile(unfinished, append(data, '\n'), 0o644); err != nil { //nolint:gosec // for everybody to read
		return fmt.Errorf("write the results: %w", err)
	}
	if err := os.Rename(unfinished, path); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return nil
}

// announce says what is going to be played.
func announce(out io.Writer, s schedule.Schedule, prices evaluation.Prices) {
	const percent = 100
	fmt.Fprintf(out, `%d tickets in %.1f days, %d of them with the text of another; seed %d
provider: available %.2f %% of the time, in %d outages, and one of %s; US$ %s for an evaluation in the mean,
          at US$ %s / %s / %s for a million tokens: input / cached input / output
clock:    around outages %.0f times as fast; elsewhere up to %.0f tickets a second, %.0f times as fast in the mean
three designs, one after another, %s each at least; %d kills for each

`,
		len(s.Tickets), s.Period.Hours()/24, len(s.Tickets)-s.Distinct, s.Seed,
		percent*s.Availability(false), len(s.Outages)-1, schedule.LongOutage, usdPerEvaluation,
		prices.InputUSDPerMTok, prices.CachedInputUSDPerMTok, prices.OutputUSDPerMTok,
		s.Pace, s.Rate, s.QuietPace(), s.Length.Round(time.Second), len(s.Kills))
}

// WriteTable shows the results side by side.
func WriteTable(out io.Writer, results []Result) {
	t := table.NewWriter()
	style := table.StyleLight
	style.Format.Header = text.FormatDefault
	t.SetStyle(style)
	header := table.Row{""}
	columns := []table.ColumnConfig{}
	for i, r := range results {
		header = append(header, r.Title)
		columns = append(columns, table.ColumnConfig{Number: i + 2, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.AppendHeader(header)
	t.SetColumnConfigs(columns)
	row := func(name string, cell func(Result) string) {
		cells := table.Row{name}
		for _, r := range results {
			cells = append(cells, cell(r))
		}
		t.AppendRow(cells)
	}
	row("create p50 / p95 / p99, ms", func(r Result) string {
		return fmt.Sprintf("%.1f / %.1f / %.1f", r.CreateP50Ms, r.CreateP95Ms, r.CreateP99Ms)
	})
	row("in the long outage", func(r Result) string {
		return fmt.Sprintf("%.1f / %.1f / %.1f", r.OutageCreateP50Ms, r.OutageCreateP95Ms, r.OutageCreateP99Ms)
	})
	row("tickets without evaluation", func(r Result) string { return fmt.Sprint(r.Unevaluated) })
	row("calls, failed ones too", func(r Result) string { return fmt.Sprint(r.Calls) })
	row("calls billed", func(r Result) string { return fmt.Sprint(r.Billed) })
	row("per distinct content", func(r Result) string { return fmt.Sprintf("%.3f", r.CallsPerContent) })
	row("beyond one for each", func(r Result) string { return fmt.Sprint(r.BilledAgain) })
	row("cost, US$", func(r Result) string { return r.CostUSD.StringFixed(2) })
	row("drain after the long outage", func(r Result) string {
		if r.DrainSeconds == nil {
			return "nothing waits"
		}
		return fmt.Sprintf("%.1f s = %.0f virtual min", *r.DrainSeconds, *r.DrainVirtualMinutes)
	})
	row("kills (calls in flight at them)", func(r Result) string { return fmt.Sprintf("%d (%d)", r.Kills, r.InFlightAtKills) })
	fmt.Fprintln(out, t.Render())
	if len(results) == 0 {
		return
	}
	s := schedule.Options{Pace: results[0].Factor}
	fmt.Fprintf(out, `Times are real ones. Within a request, the model's %s to %s are %.1f to %.1f ms here, as all virtual time around
outages is %.0f times as fast. Deadlines, leases and EvalOnce's own pauses are not: its drain would take the same seconds, or
what is left of a pause of a minute at most, after a real outage.
`,
		modelLeast, modelMost, report.Milliseconds(s.Scaled(modelLeast)), report.Milliseconds(s.Scaled(modelMost)), s.Pace)
	for _, r := range results {
		if r.BehindSeconds > mostBehind.Seconds() {
			fmt.Fprintf(out, "%s: this machine was too slow, by up to %.1f s: it had something else to do, or needs a lower --pace.\n", r.Title, r.BehindSeconds)
		}
	}
}

// mostBehind is how late the player may be before its figures are in doubt.
const mostBehind = 300 * time.Millisecond
