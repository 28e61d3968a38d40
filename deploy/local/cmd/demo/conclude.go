package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/deploy/local/internal/report"
	"github.com/evalonce/evalonce/pkg/fsck"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

// outcome is what the public API has told.
type outcome struct {
	created creation
	tickets []*ticketv1.Ticket // in the order of the file
	took    time.Duration
}

// sums are the tickets of an outcome, counted.
type sums struct {
	keys, answered  map[string]bool // evaluation keys; those with an answer
	succeeded, dead int
	saved           int            // tickets answered by another's call
	reasons         map[string]int // of dead letters
	window          time.Duration  // from the first ticket to the last answer, by the database's clock
}

func count(tickets []*ticketv1.Ticket) sums {
	s := sums{keys: map[string]bool{}, answered: map[string]bool{}, reasons: map[string]int{}}
	var first, last time.Time
	for _, t := range tickets {
		e := t.GetEvaluation()
		s.keys[e.GetEvaluationKey()] = true
		if at := t.GetCreateTime().AsTime(); first.IsZero() || at.Before(first) {
			first = at
		}
		if e.GetState() != ticketv1.Evaluation_SUCCEEDED {
			s.dead++
			s.reasons[e.GetDeadLetter().GetReason()]++
			continue
		}
		s.succeeded++
		s.answered[e.GetEvaluationKey()] = true
		if e.GetAnsweredWithoutCall() {
			s.saved++
		}
		if at := e.GetAnswer().GetComputeTime().AsTime(); at.After(last) {
			last = at
		}
	}
	if last.After(first) {
		s.window = last.Sub(first)
	}
	return s
}

// rate is evaluations a second: each key that has an answer is one.
func (s sums) rate() float64 {
	if s.window <= 0 {
		return 0
	}
	return float64(len(s.answered)) / s.window.Seconds()
}

// conclude prints and writes what came of the run. It fails when the accounts do not agree, or a promise is broken;
// even then all is printed first.
func (d *demo) conclude(ctx context.Context, o outcome) error {
	s := count(o.tickets)
	account, err := d.account(ctx)
	if err != nil {
		return err
	}
	verdict, err := fsck.Run(ctx, d.db, fsck.Options{})
	if err != nil {
		return err
	}
	p50, p99 := report.Percentile(o.created.latencies, 50), report.Percentile(o.created.latencies, 99)
	figures := report.Figures{
		Tickets: len(o.tickets), DistinctContents: len(s.keys), PaidCalls: account.paid, SavedCalls: s.saved,
		Succeeded: s.succeeded, Dead: s.dead, EvaluationsPerSecond: report.Round(s.rate(), 1),
		CreateP50Ms: report.Milliseconds(p50), CreateP99Ms: report.Milliseconds(p99),
	}
	d.say("")
	report.WriteSamples(d.out, d.samples(o.tickets))
	confusion, err := d.compare(o.tickets)
	if err != nil {
		return err
	}
	if confusion != nil {
		accuracy := report.Round(confusion.Accuracy(), 4)
		figures.Accuracy = &accuracy
		if err := d.writeConfusion(confusion); err != nil {
			return err
		}
	}
	d.say("")
	report.WriteLines(d.out, d.lines(o, s, account, figures, verdict))
	if d.simulator != nil {
		d.say("The answers come from an offline lexical classifier, not a language model: they say what the system does, and\nnothing of what a model would answer.")
	}
	if err := figures.Write(d.figures); err != nil {
		return err
	}
	d.say("The same figures for machines: %s", d.short(d.figures))
	return errors.Join(account.disagreement, broken(verdict))
}

func (d *demo) lines(o outcome, s sums, a account, f report.Figures, verdict fsck.Report) []report.Line {
	lines := []report.Line{
		{Name: "tickets", Value: strconv.Itoa(f.Tickets), Remark: fmt.Sprintf("each in a call of its own, %d at a time, with its own request_id", concurrency)},
		{Name: "distinct contents", Value: strconv.Itoa(f.DistinctContents)},
		{Name: "paid calls", Value: strconv.Itoa(f.PaidCalls), Remark: a.remark()},
		{
			Name: "calls saved", Value: strconv.Itoa(f.SavedCalls),
			Remark: fmt.Sprintf("%.1f %% of the tickets were answered by the call of a twin", 100*float64(f.SavedCalls)/float64(max(f.Tickets, 1))),
		},
	}
	lines = append(lines, d.worth(a, f)...)
	lines = append(lines,
		report.Line{Name: "succeeded", Value: strconv.Itoa(f.Succeeded)},
		report.Line{Name: "dead", Value: strconv.Itoa(f.Dead), Remark: reasons(s.reasons)},
		report.Line{
			Name: "evaluations", Value: fmt.Sprintf("%.1f/s", f.EvaluationsPerSecond),
			Remark: fmt.Sprintf("%d of them within %s of the first ticket", len(s.answered), s.window.Round(time.Millisecond)),
		},
		report.Line{
			Name: "create p50", Value: fmt.Sprintf("%.1f ms", f.CreateP50Ms),
			Remark: fmt.Sprintf("%.0f tickets/s over gRPC, durable when answered, while the worker works", float64(f.Tickets)/o.created.took.Seconds()),
		},
		report.Line{Name: "create p99", Value: fmt.Sprintf("%.1f ms", f.CreateP99Ms)},
	)
	if f.Accuracy != nil {
		lines = append(lines, report.Line{
			Name: "accuracy", Value: fmt.Sprintf("%.1f %%", 100**f.Accuracy),
			Remark: fmt.Sprintf("of %d tickets got the department that a person chose", d.judged),
		})
	}
	return append(lines, report.Line{Name: "fsck", Value: health(verdict), Remark: fmt.Sprintf("%d promises, checked in SQL over the tables", promises())})
}

// worth is what the saved calls would have cost, at the mean of those that were made.
func (d *demo) worth(a account, f report.Figures) []report.Line {
	p := d.prices
	if p.InputUSDPerMTok.IsZero() && p.OutputUSDPerMTok.IsZero() {
		return []report.Line{{Name: "that is worth", Value: "?", Remark: "PRICES=in,cached,out, in US$ for a million tokens, tells"}}
	}
	mean := a.cost.Div(decimal.NewFromInt(int64(max(a.paid, 1))))
	saved := mean.Mul(decimal.NewFromInt(int64(f.SavedCalls)))
	perMillion := saved.Div(decimal.NewFromInt(int64(f.Tickets))).Shift(6)
	return []report.Line{
		{
			Name: "that is worth", Value: "US$ " + saved.StringFixed(5),
			Remark: fmt.Sprintf("of US$ %s; in a million tickets like these: US$ %s", a.cost.Add(saved).StringFixed(5), perMillion.StringFixed(2)),
		},
		{
			Name:   "at prices of",
			Remark: fmt.Sprintf("US$ %s / %s / %s for a million tokens: input / cached input / output", p.InputUSDPerMTok, p.CachedInputUSDPerMTok, p.OutputUSDPerMTok),
		},
	}
}

func (d *demo) samples(tickets []*ticketv1.Ticket) []report.Sample {
	var samples []report.Sample
	for i, t := range tickets {
		e := t.GetEvaluation()
		if e.GetState() != ticketv1.Evaluation_SUCCEEDED {
			continue
		}
		a := e.GetAnswer()
		samples = append(samples, report.Sample{
			Subject: t.GetSubject(), Message: t.GetMessage(), Truth: d.tickets[i].Truth,
			Department: a.GetDepartment(), Priority: a.GetPriority(), IsUrgent: a.GetIsUrgent(), UrgencyScore: a.GetUrgencyScore(),
			OwnCall: !e.GetAnsweredWithoutCall(),
		})
	}
	return samples
}

// compare counts how the answers agree with what people have decided; nil when nobody has.
func (d *demo) compare(tickets []*ticketv1.Ticket) (*report.Confusion, error) {
	if d.judged == 0 {
		return nil, nil //nolint:nilnil // as documented
	}
	confusion := report.NewConfusion(departmentNames(d.version))
	for i, t := range tickets {
		if truth := d.tickets[i].Truth; truth != "" {
			if err := confusion.Add(truth, t.GetEvaluation().GetAnswer().GetDepartment()); err != nil {
				return nil, err
			}
		}
	}
	return confusion, nil
}

func (d *demo) writeConfusion(c *report.Confusion) error {
	d.say("")
	if whole := c.Write(d.out); whole {
		return nil
	}
	path := filepath.Join(d.dir, "confusion.csv")
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write the confusion matrix: %w", err)
	}
	if err := errors.Join(c.WriteCSV(file), file.Close()); err != nil {
		return err
	}
	d.say("the whole confusion matrix: %s", d.short(path))
	return nil
}

func reasons(counts map[string]int) string {
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s: %d", reason, counts[reason]))
	}
	return strings.Join(parts, ", ")
}

func promises() int {
	n := 0
	for _, c := range fsck.Checks() {
		if !c.Note {
			n++
		}
	}
	return n
}

func health(verdict fsck.Report) string {
	if verdict.Healthy() {
		return "all kept"
	}
	return fmt.Sprintf("%d BROKEN", len(verdict.Violations))
}

func broken(verdict fsck.Report) error {
	var errs []error
	for _, f := range verdict.Violations {
		errs = append(errs, fmt.Errorf("fsck: %s", f))
	}
	return errors.Join(errs...)
}
