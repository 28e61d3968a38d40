package systemtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/evalonce/evalonce/deploy/local/stack"
	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/providersim"
	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/ticketfile"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

// recording is a ticket with the department that a person chose, and what two models answered, as it was recorded.
type recording struct {
	id, subject, message string
	truth                string
	answers              [2]evaluation.Answer
}

const (
	firstModel  = "gpt-4o"
	secondModel = "claude-3-7"
)

// publicRecordings are complaints that two public models were asked about. The file lies beside the checkout, or nowhere.
func publicRecordings(t *testing.T) []recording {
	t.Helper()
	root, err := stack.Root()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, "..", "shared", "data", "tickets", "cfpb-600.jsonl")
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("there are no recorded answers beside the checkout; the test with tickets of our own is the same")
	}
	if err != nil {
		t.Fatal(err)
	}
	var recordings []recording
	for line := range bytes.Lines(data) {
		var row struct {
			Subject, Message, Department, Ref string
			First                             string `json:"gpt_4o"`
			Second                            string `json:"claude_3_7"`
		}
		if err := json.Unmarshal(line, &row); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		recordings = append(recordings, recording{
			id: row.Ref, subject: row.Subject, message: row.Message, truth: row.Department,
			answers: answers(canonical(t, row.Subject, row.Message), row.First, row.Second),
		})
	}
	return recordings
}

// ownRecordings are tickets of the demo, with answers that are made up: one model is wrong here, the other there, and each
// knows a department that the other does not.
func ownRecordings(t *testing.T) []recording {
	t.Helper()
	root, err := stack.Root()
	if err != nil {
		t.Fatal(err)
	}
	file, err := ticketfile.Open(filepath.Join(root, "deploy", "local", "tickets", "demo.jsonl"), ticketfile.TruthColumn)
	if err != nil {
		t.Fatal(err)
	}
	const most = 150
	var recordings []recording
	for _, ticket := range file.Tickets[:most] {
		first, second := ticket.Truth, ticket.Truth
		// Tickets of one content have one answer, so it must follow from the content.
		text := canonical(t, ticket.Subject, ticket.Message)
		switch fingerprint(text)[0] % 8 {
		case 0, 1:
			first = "billing"
		case 2, 3, 4:
			second = "sales"
		case 5:
			first = "fraud"
		case 6:
			second = "repairs"
		}
		recordings = append(recordings, recording{
			id: ticket.ExternalID, subject: ticket.Subject, message: ticket.Message, truth: ticket.Truth,
			answers: answers(text, first, second),
		})
	}
	return recordings
}

func canonical(t *testing.T, subject, message string) content.Text {
	t.Helper()
	text, err := content.Canonical(subject, message)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// fingerprint is that of the text as the provider gets it.
func fingerprint(text content.Text) providersim.Fingerprint {
	return providersim.FingerprintOf(text.Subject, text.Message)
}

// answers gives two departments urgencies that follow from the text, and that binary fractions have exactly.
func answers(text content.Text, first, second string) [2]evaluation.Answer {
	length := len(text.Subject) + len(text.Message)
	return [2]evaluation.Answer{
		{Department: first, IsUrgent: float64(length%8) / 8, UrgencyScore: float64(length%16) / 16},
		{Department: second, IsUrgent: float64(length%5) / 4, UrgencyScore: float64(length%4) / 4},
	}
}

// TestComparisonAsRecorded has recorded answers played through the whole product, and holds what it says of them against
// what follows from the recording alone.
func TestComparisonAsRecorded(t *testing.T) {
	t.Parallel()
	t.Run("public", func(t *testing.T) {
		t.Parallel()
		playRecordings(t, publicRecordings(t))
	})
	t.Run("own", func(t *testing.T) {
		t.Parallel()
		playRecordings(t, ownRecordings(t))
	})
}

func playRecordings(t *testing.T, recordings []recording) {
	t.Helper()
	models := [2]string{firstModel, secondModel}
	var rules []providersim.Rule
	var departments [2][]evaluation.Department
	distinct := map[providersim.Fingerprint]bool{}
	for _, r := range recordings {
		mark := fingerprint(canonical(t, r.subject, r.message))
		for m, answer := range r.answers {
			if !slices.ContainsFunc(departments[m], func(d evaluation.Department) bool { return d.Name == answer.Department }) {
				departments[m] = append(departments[m], evaluation.Department{Name: answer.Department, Description: "d"})
			}
			if !distinct[mark] {
				rules = append(rules, providersim.Rule{
					Match: providersim.Match{Content: mark.String(), Model: models[m]},
					Action: providersim.Action{Content: fmt.Sprintf(`{"is_urgent":%v,"urgency_score":%v,"department":%q}`,
						answer.IsUrgent, answer.UrgencyScore, answer.Department)},
				})
			}
		}
		distinct[mark] = true
	}
	s := startSystem(t, options{rules: rules, version: func(v *evaluation.Version) {
		v.ID, v.Model, v.Departments = "first", firstModel, departments[0]
	}})
	second := s.version
	second.ID, second.Model, second.Departments = "second", secondModel, departments[1]
	s.register(second)
	s.worker()

	tickets, truth := written(t, recordings)
	var done struct {
		Created      int
		AlreadyThere int `json:"already_there"`
	}
	s.evalctl(&done, "tickets", "import", tickets, "-o", "json")
	if done.Created != len(recordings) {
		t.Errorf("imported %+v of %d", done, len(recordings))
	}
	s.until(len(distinct), "evaluation_result WHERE version_id = 'first'")
	s.reprocessUnder("second")
	s.until(len(distinct), "evaluation_result WHERE version_id = 'second'")

	for m, version := range []string{"first", "second"} {
		got := s.comparison(version, "--truth", truth)
		want := newFigures()
		for _, r := range recordings {
			want.add(r.answers[m], evaluation.Answer{Department: r.truth})
		}
		want.check(t, version+" and the truth", got)
		if got.GetTruth().GetUsed() != int64(len(recordings)) {
			t.Errorf("of the truth: %v", got.GetTruth())
		}
		want.checkJudged(t, version, got)
	}
	got := s.comparison("first", "second", "--since", "1d")
	want := newFigures()
	for _, r := range recordings {
		want.add(r.answers[0], r.answers[1])
	}
	want.check(t, "first and second", got)
	want.checkUrgency(t, got)
	if a, b := got.GetExpense(), got.GetOtherExpense(); a.GetAnswers() != int64(len(distinct)) || b.GetCalls() != int64(len(distinct)) {
		t.Errorf("expense %v and %v", a, b)
	}
	s.everythingIsMeasured()
	s.check()
}

// written writes the tickets and the truth into files.
func written(t *testing.T, recordings []recording) (tickets, truth string) {
	t.Helper()
	dir := t.TempDir()
	var rows [2]bytes.Buffer
	for _, r := range recordings {
		for i, row := range []map[string]string{
			{"external_id": r.id, "subject": r.subject, "message": r.message}, {"external_id": r.id, "department": r.truth},
		} {
			data, err := json.Marshal(row)
			if err != nil {
				t.Fatal(err)
			}
			rows[i].Write(append(data, '\n'))
		}
	}
	tickets, truth = filepath.Join(dir, "tickets.jsonl"), filepath.Join(dir, "truth.jsonl")
	for i, path := range []string{tickets, truth} {
		if err := os.WriteFile(path, rows[i].Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return tickets, truth
}

// evalctl runs a command line against the system's services, and decodes what it prints.
func (s *system) evalctl(into any, args ...string) {
	s.t.Helper()
	out := s.evalctlPrints(args...)
	if err := json.Unmarshal(out, into); err != nil {
		s.t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
}

func (s *system) evalctlPrints(args ...string) []byte {
	s.t.Helper()
	out, err := s.stack.Run(s.t.Context(), s.evalctlSpec(args...))
	if err != nil {
		s.t.Fatalf("evalctl %s: %v", strings.Join(args, " "), err)
	}
	return out
}

func (s *system) evalctlSpec(args ...string) stack.Spec {
	s.t.Helper()
	admin, token := s.operator()
	return stack.Spec{Name: "evalctl", Binary: "evalctl", Args: args, Env: []string{
		"EVALONCE_ADMIN_ADDRESS=" + admin, "EVALONCE_ADMIN_TOKEN=" + token,
		"EVALONCE_API_ADDRESS=" + s.server.GRPC, "EVALONCE_API_TOKEN=" + s.token,
	}}
}

// operator starts an admin at the first call, and returns its address and an operator's token.
func (s *system) operator() (address, token string) {
	s.t.Helper()
	if s.admin == nil {
		token, hash := rpc.MintToken()
		admin, err := s.stack.StartAdmin(s.t.Context(), "ops="+hash)
		if err != nil {
			s.t.Fatal(err)
		}
		s.admin, s.adminToken = admin, token
	}
	return s.admin.GRPC, s.adminToken
}

// reprocessUnder asks admin to evaluate all tickets under another version, now.
func (s *system) reprocessUnder(version string) {
	s.t.Helper()
	address, token := s.operator()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(s.t.Context(), "authorization", "Bearer "+token), patience)
	defer cancel()
	_, err = adminv1.NewReprocessServiceClient(conn).StartReprocess(ctx, &adminv1.StartReprocessRequest{
		Selection: &adminv1.ReprocessSelection{CreatedFrom: timestamppb.New(time.Now().Add(-24 * time.Hour)), Version: version},
		Spread:    durationpb.New(0),
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// comparison is the summary that evalctl prints.
func (s *system) comparison(args ...string) *adminv1.Comparison {
	s.t.Helper()
	out := s.evalctlPrints(append([]string{"compare", "-o", "json"}, args...)...)
	line, err := bufio.NewReader(bytes.NewReader(out)).ReadBytes('\n')
	if err != nil {
		s.t.Fatal(err)
	}
	var m adminv1.CompareResponse
	if err := protojson.Unmarshal(line, &m); err != nil {
		s.t.Fatal(err)
	}
	return m.GetSummary()
}

// figures are counted from a recording, with nothing of the product's.
type figures struct {
	n, agreed      int64
	cells          map[string]int64
	sent, belong   map[string]int64
	right          map[string]int64
	onlyA, onlyB   int64
	scoreA, scoreB float64
	departments    map[string]bool
}

func newFigures() *figures {
	return &figures{
		cells: map[string]int64{}, sent: map[string]int64{}, belong: map[string]int64{}, right: map[string]int64{}, departments: map[string]bool{},
	}
}

func (f *figures) add(a, b evaluation.Answer) {
	f.n++
	f.cells[a.Department+" "+b.Department]++
	f.sent[a.Department]++
	f.belong[b.Department]++
	f.departments[a.Department], f.departments[b.Department] = true, true
	if a.Department == b.Department {
		f.agreed++
		f.right[a.Department]++
	}
	switch {
	case a.IsUrgent >= 0.5 && b.IsUrgent < 0.5:
		f.onlyA++
	case a.IsUrgent < 0.5 && b.IsUrgent >= 0.5:
		f.onlyB++
	}
	f.scoreA += a.UrgencyScore
	f.scoreB += b.UrgencyScore
}

func (f *figures) check(t *testing.T, what string, got *adminv1.Comparison) {
	t.Helper()
	cells := map[string]int64{}
	for _, c := range got.GetConfusion() {
		cells[c.GetDepartment()+" "+c.GetOtherDepartment()] = c.GetTickets()
	}
	if !maps.Equal(cells, f.cells) {
		t.Errorf("%s: the confusion matrix is %v, want %v", what, cells, f.cells)
	}
	if got.GetCompared() != f.n || got.GetAgreed() != f.agreed || got.GetAgreement() != float64(f.agreed)/float64(f.n) {
		t.Errorf("%s: %d of %d agree, %v, want %d of %d", what, got.GetAgreed(), got.GetCompared(), got.GetAgreement(), f.agreed, f.n)
	}
	told := map[string]bool{}
	for _, d := range got.GetDepartments() {
		told[d.GetName()] = true
		if name := d.GetName(); d.GetTickets() != f.sent[name] || d.GetOtherTickets() != f.belong[name] || d.GetAgreed() != f.right[name] {
			t.Errorf("%s: %v, want %d, %d, %d", what, d, f.sent[name], f.belong[name], f.right[name])
		}
	}
	if !maps.Equal(told, f.departments) {
		t.Errorf("%s: departments %v, want %v", what, told, f.departments)
	}
}

// checkJudged checks what only a truth can tell.
func (f *figures) checkJudged(t *testing.T, what string, got *adminv1.Comparison) {
	t.Helper()
	for _, d := range got.GetDepartments() {
		name := d.GetName()
		precision, recall := float64(f.right[name])/float64(f.sent[name]), float64(f.right[name])/float64(f.belong[name])
		for _, one := range []struct {
			name string
			got  *float64
			want float64
		}{{"precision", d.Precision, precision}, {"recall", d.Recall, recall}} {
			if (one.got == nil) != math.IsNaN(one.want) || one.got != nil && *one.got != one.want {
				t.Errorf("%s: %s of %s is %v, want %v", what, one.name, name, d, one.want)
			}
		}
		if precision+recall > 0 && math.Abs(d.GetF1()-2*precision*recall/(precision+recall)) > 1e-12 {
			t.Errorf("%s: F1 of %s is %v, of %v and %v", what, name, d.GetF1(), precision, recall)
		}
	}
}

func (f *figures) checkUrgency(t *testing.T, got *adminv1.Comparison) {
	t.Helper()
	if u := got.GetUrgency(); u.GetOnlyUrgent() != f.onlyA || u.GetOnlyOtherUrgent() != f.onlyB {
		t.Errorf("urgency %v, want flips of %d and %d", u, f.onlyA, f.onlyB)
	}
	shift := f.scoreB/float64(f.n) - f.scoreA/float64(f.n)
	if got.GetScoreShift() != shift { // sums of sixteenths are exact
		t.Errorf("the scores shift by %v, want %v", got.GetScoreShift(), shift)
	}
}

// TestImportGoesOn kills an import and repeats it: every row has its ticket, once.
func TestImportGoesOn(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	const rows = 3000
	var file bytes.Buffer
	for i := range rows {
		fmt.Fprintf(&file, "{\"message\":\"ticket %d\",\"external_id\":\"%d\"}\n", i, i)
	}
	path := filepath.Join(t.TempDir(), "tickets.jsonl")
	if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	// One row at a time, so that it cannot be through before it is killed.
	p := s.launch(s.evalctlSpec("tickets", "import", path, "--batch", "1", "--concurrency", "1"))
	s.untilAtLeast(20, "ticket")
	s.kill(p)
	there := s.count("ticket")
	if there >= rows {
		t.Fatalf("the import was through before it was killed: %d rows", there)
	}
	var done struct {
		Rows, Created int
		AlreadyThere  int `json:"already_there"`
		Complete      bool
	}
	s.evalctl(&done, "tickets", "import", path, "-o", "json")
	if done.Rows != rows || done.Created+done.AlreadyThere != rows || done.AlreadyThere < there || !done.Complete {
		t.Errorf("%+v, with %d tickets there before", done, there)
	}
	if n := s.count("ticket"); n != rows {
		t.Errorf("%d tickets of %d rows", n, rows)
	}
	if n := s.count("(SELECT DISTINCT external_id FROM ticket) t"); n != rows {
		t.Errorf("%d distinct tickets", n)
	}
	s.evalctl(&done, "tickets", "import", path, "-o", "json", "--batch", strconv.Itoa(7))
	if done.Created != 0 || done.AlreadyThere != rows {
		t.Errorf("a third time: %+v", done)
	}
}

// untilAtLeast waits for a query that counts to count n or more.
func (s *system) untilAtLeast(n int, what string) {
	s.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for s.count(what) < n {
		select {
		case <-deadline:
			s.t.Fatalf("%s: %d after %s, want %d", what, s.count(what), patience, n)
		case <-tick.C:
		}
	}
}
