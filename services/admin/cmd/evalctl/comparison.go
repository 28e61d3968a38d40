package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

// describeComparison shows a comparison to people.
func describeComparison(w io.Writer, s *adminv1.Comparison, worst []*adminv1.Disagreement) {
	other := s.GetOtherVersionId()
	judged := s.GetTruth() != nil
	if judged {
		other = "TRUTH"
	}
	rows := [][]string{{"", s.GetVersionId()}}
	add := func(name, value, otherValue string) {
		row := []string{name, value}
		if !judged {
			row = append(row, otherValue)
		}
		rows = append(rows, row)
	}
	if !judged {
		rows[0] = append(rows[0], other)
	}
	for _, one := range []struct {
		name string
		of   func(*adminv1.Coverage) int64
	}{
		{"answered", (*adminv1.Coverage).GetAnswered},
		{"waiting", (*adminv1.Coverage).GetWaiting},
		{"dead", (*adminv1.Coverage).GetDead},
		{"unasked", (*adminv1.Coverage).GetUnasked},
	} {
		add(one.name, ofWhole(one.of(s.GetCoverage()), s.GetTickets()), ofWhole(one.of(s.GetOtherCoverage()), s.GetTickets()))
	}
	a, b := s.GetExpense(), s.GetOtherExpense()
	add("distinct answers", count(a.GetAnswers()), count(b.GetAnswers()))
	add("cost per answer, US$", a.GetCostPerAnswerUsd(), b.GetCostPerAnswerUsd())
	add("cost in all, US$", a.GetCostUsd(), b.GetCostUsd())
	add("latency p50 / p95, s", latencies(a), latencies(b))
	if s.GetCompared() > 0 {
		add("urgency score, mean", rounded(s.GetScores().GetMean()), fmt.Sprintf("%s (%+.3f)", rounded(s.GetOtherScores().GetMean()), s.GetScoreShift()))
		add("  deciles", deciles(s.GetScores()), deciles(s.GetOtherScores()))
	}
	fmt.Fprintf(w, "%d tickets", s.GetTickets())
	if missing := s.GetMissingTickets(); missing > 0 {
		fmt.Fprintf(w, ", and %d of the sample that are not stored any more", missing)
	}
	fmt.Fprint(w, "\n\n")
	table(w, rows...)
	if t := s.GetTruth(); t != nil {
		fmt.Fprintln(w)
		describeTruth(w, t)
	}
	fmt.Fprintln(w)
	describeAgreement(w, s, judged)
	fmt.Fprintln(w)
	table(w, departmentRows(s)...)
	if len(s.GetConfusion()) > 0 {
		fmt.Fprintf(w, "\n%s down, %s across\n", other, s.GetVersionId())
		table(w, matrixRows(s)...)
	}
	if len(s.GetDecisionChanges()) > 0 {
		fmt.Fprintf(w, "\nDecisions of policy %s\n", s.GetPolicyId())
		changes := [][]string{{s.GetVersionId(), other, "TICKETS"}}
		const most = 12 // they are as many as the square of what a policy can decide
		for i, c := range s.GetDecisionChanges() {
			if i == most {
				changes = append(changes, []string{"…", fmt.Sprintf("and %d other changes", len(s.GetDecisionChanges())-most)})
				break
			}
			changes = append(changes, []string{
				c.GetPriority() + " " + c.GetQueue(), c.GetOtherPriority() + " " + c.GetOtherQueue(), count(c.GetTickets()),
			})
		}
		table(w, changes...)
	}
	if len(worst) > 0 {
		fmt.Fprintln(w, "\nThe tickets that disagree most")
		table(w, disagreementRows(s, worst, false)...)
	}
}

func describeTruth(w io.Writer, t *adminv1.TruthAccount) {
	rows := [][]string{{"ROWS OF THE TRUTH", count(t.GetRows())}, {"used", count(t.GetUsed())}}
	for _, left := range []struct {
		why      string
		n        int64
		examples []string
	}{
		{"repeated", t.GetDuplicates(), nil},
		{"contradicting each other", t.GetContradictions(), t.GetContradictionExamples()},
		{"of no such ticket", t.GetUnknown(), t.GetUnknownExamples()},
		{"of several tickets", t.GetAmbiguous(), t.GetAmbiguousExamples()},
		{"of a ticket without an answer", t.GetUnanswered(), nil},
	} {
		if left.n == 0 {
			continue
		}
		const shown = 3
		value := count(left.n)
		if len(left.examples) > 0 {
			value += ", such as " + strings.Join(left.examples[:min(shown, len(left.examples))], ", ")
		}
		rows = append(rows, []string{left.why, value})
	}
	table(w, rows...)
}

func describeAgreement(w io.Writer, s *adminv1.Comparison, judged bool) {
	agreement, urgency := "the same department", "the same urgency"
	if judged {
		agreement, urgency = "right department", "right urgency"
	}
	rows := [][]string{{agreement, ofWhole(s.GetAgreed(), s.GetCompared())}}
	u := s.GetUrgency()
	same := u.GetBothUrgent() + u.GetNeitherUrgent()
	told := same + u.GetOnlyUrgent() + u.GetOnlyOtherUrgent()
	if told > 0 {
		only := "urgent for " + s.GetOtherVersionId() + " only"
		if judged {
			only = "urgent, and not found to be"
		}
		rows = append(rows,
			[]string{urgency + " at " + rounded(s.GetUrgentThreshold()), ofWhole(same, told)},
			[]string{"urgent for " + s.GetVersionId() + " only", count(u.GetOnlyUrgent())},
			[]string{only, count(u.GetOnlyOtherUrgent())})
	}
	if s.ChangedDecisions != nil {
		rows = append(rows, []string{"other decision by " + s.GetPolicyId(), ofWhole(s.GetChangedDecisions(), s.GetCompared())})
	}
	table(w, rows...)
}

// comparisonRows is one table of a comparison, with its header.
func comparisonRows(s *adminv1.Comparison, worst []*adminv1.Disagreement, table part) [][]string {
	switch table {
	case partConfusion:
		rows := [][]string{{"department", "other_department", "tickets"}}
		for _, cell := range s.GetConfusion() {
			rows = append(rows, []string{cell.GetDepartment(), cell.GetOtherDepartment(), count(cell.GetTickets())})
		}
		return rows
	case partDepartments:
		rows := [][]string{{"department", "known", "other_known", "tickets", "other_tickets", "agreed", "precision", "recall", "f1"}}
		for _, d := range s.GetDepartments() {
			rows = append(rows, []string{
				d.GetName(), strconv.FormatBool(d.GetKnown()), strconv.FormatBool(d.GetOtherKnown()), count(d.GetTickets()), count(d.GetOtherTickets()),
				count(d.GetAgreed()), exact(d.Precision), exact(d.Recall), exact(d.F1),
			})
		}
		return rows
	default:
		return disagreementRows(s, worst, true)
	}
}

func departmentRows(s *adminv1.Comparison) [][]string {
	judged := s.GetTruth() != nil
	header := []string{"DEPARTMENT", s.GetVersionId(), s.GetOtherVersionId(), "BOTH"}
	if judged {
		header = []string{"DEPARTMENT", s.GetVersionId(), "TRUTH", "RIGHT", "PRECISION", "RECALL", "F1"}
	}
	rows := [][]string{header}
	for _, d := range s.GetDepartments() {
		row := []string{d.GetName(), knownCount(d.GetKnown(), d.GetTickets()), knownCount(d.GetOtherKnown(), d.GetOtherTickets()), count(d.GetAgreed())}
		if judged {
			row = append(row, maybe(d.Precision), maybe(d.Recall), maybe(d.F1))
		}
		rows = append(rows, row)
	}
	return rows
}

// matrixRows is the confusion matrix: a row for each department of the other, a column for each of the version's.
func matrixRows(s *adminv1.Comparison) [][]string {
	var names []string
	header := []string{""}
	for _, d := range s.GetDepartments() {
		names = append(names, d.GetName())
		header = append(header, d.GetName())
	}
	rows := [][]string{header}
	for _, name := range names {
		row := []string{name}
		for range names {
			row = append(row, "·")
		}
		rows = append(rows, row)
	}
	for _, cell := range s.GetConfusion() {
		across, down := slices.Index(names, cell.GetDepartment()), slices.Index(names, cell.GetOtherDepartment())
		if across >= 0 && down >= 0 {
			rows[down+1][across+1] = count(cell.GetTickets())
		}
	}
	return rows
}

// disagreementRows are for people, or, in full, for programs.
func disagreementRows(s *adminv1.Comparison, worst []*adminv1.Disagreement, full bool) [][]string {
	judged := s.GetTruth() != nil
	var header []string
	switch {
	case full:
		header = []string{"ticket_id", "external_id", "client_id", "create_time", "distance"}
		sides := []string{""}
		if judged {
			header = append(header, "true_department", "true_urgent")
		} else {
			sides = append(sides, "other_")
		}
		for _, side := range sides {
			for _, column := range []string{"department", "is_urgent", "urgency_score", "priority", "queue", "model_version", "model_call_id", "raw_response"} {
				header = append(header, side+column)
			}
		}
	case judged:
		header = []string{"TICKET", "EXTERNAL ID", s.GetVersionId(), "URGENT", "TRUTH", "URGENT"}
	default:
		header = []string{"TICKET", "EXTERNAL ID", s.GetVersionId(), "URGENT", "SCORE", s.GetOtherVersionId(), "URGENT", "SCORE"}
	}
	rows := [][]string{header}
	for _, d := range worst {
		a, b := d.GetAnswer(), d.GetOtherAnswer()
		urgent := ""
		if d.TrueUrgent != nil {
			urgent = strconv.FormatBool(d.GetTrueUrgent())
		}
		var row []string
		switch {
		case full:
			row = []string{d.GetTicketId(), d.GetExternalId(), d.GetClientId(), instant(d.GetCreateTime().AsTime()), exact(&d.Distance)}
			if judged {
				row = append(append(row, d.GetTrueDepartment(), urgent), answerCells(a)...)
			} else {
				row = append(append(row, answerCells(a)...), answerCells(b)...)
			}
		case judged:
			row = []string{d.GetTicketId(), d.GetExternalId(), a.GetDepartment(), rounded(a.GetIsUrgent()), d.GetTrueDepartment(), urgent}
		default:
			row = []string{
				d.GetTicketId(), d.GetExternalId(), a.GetDepartment(), rounded(a.GetIsUrgent()), rounded(a.GetUrgencyScore()),
				b.GetDepartment(), rounded(b.GetIsUrgent()), rounded(b.GetUrgencyScore()),
			}
		}
		rows = append(rows, row)
	}
	return rows
}

func answerCells(a *adminv1.ComparedAnswer) []string {
	return []string{
		a.GetDepartment(), exact(&a.IsUrgent), exact(&a.UrgencyScore), a.GetPriority(), a.GetQueue(), a.GetModelVersion(), a.GetModelCallId(), a.GetRawResponse(),
	}
}

func count(n int64) string { return strconv.FormatInt(n, 10) }

// ofWhole is a count with its share of a whole.
func ofWhole(n, whole int64) string {
	if whole == 0 {
		return count(n)
	}
	return fmt.Sprintf("%d  %.1f %%", n, 100*float64(n)/float64(whole))
}

// knownCount tells a department where nothing is from one that is not known.
func knownCount(known bool, n int64) string {
	if !known && n == 0 {
		return "unknown"
	}
	return count(n)
}

func rounded(f float64) string { return strconv.FormatFloat(f, 'f', 3, 64) }

func maybe(f *float64) string {
	if f == nil {
		return "–"
	}
	return rounded(*f)
}

// exact is a number for programs; nothing for none.
func exact(f *float64) string {
	if f == nil {
		return ""
	}
	return strconv.FormatFloat(*f, 'g', -1, 64)
}

func deciles(s *adminv1.ScoreDistribution) string {
	shown := make([]string, len(s.GetDeciles()))
	for i, d := range s.GetDeciles() {
		shown[i] = strconv.FormatFloat(d, 'f', 2, 64)
	}
	return strings.Join(shown, " ")
}

func latencies(e *adminv1.Expense) string {
	return fmt.Sprintf("%.2f / %.2f", e.GetP50LatencySeconds(), e.GetP95LatencySeconds())
}
