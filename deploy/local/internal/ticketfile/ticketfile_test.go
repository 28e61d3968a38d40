package ticketfile_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/evalonce/evalonce/deploy/local/internal/ticketfile"
	"github.com/evalonce/evalonce/pkg/content"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestOpen(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, file, text, truth string
		want                    []ticketfile.Ticket
		ignored                 []string
	}{
		{
			name: "all columns, others ignored", file: "a.jsonl",
			text: `{"subject": "s", "message": "m\r\n", "external_id": "7", "department": " x ", "ref": 1, "tags": ["a"]}` + "\n",
			want: []ticketfile.Ticket{{Line: 1, ExternalID: "7", Subject: "s", Message: "m\r\n", Truth: "x"}}, ignored: []string{"ref", "tags"},
		},
		{
			name: "byte order mark, CRLF, blank lines, no last line end", file: "a.JSONL",
			text: "\uFEFF{\"message\":\"one\"}\r\n\r\n \n{\"message\":\"two\"}",
			want: []ticketfile.Ticket{{Line: 1, Message: "one"}, {Line: 4, Message: "two"}},
		},
		{
			name: "numbers and null", file: "a.jsonl",
			text: `{"message": "m", "external_id": 9007199254740993, "subject": null, "department": 3}`,
			want: []ticketfile.Ticket{{Line: 1, ExternalID: "9007199254740993", Message: "m", Truth: "3"}},
		},
		{
			name: "another truth column", file: "a.jsonl", truth: "intent",
			text: `{"message": "m", "intent": "card_arrival", "department": "cards"}`,
			want: []ticketfile.Ticket{{Line: 1, Message: "m", Truth: "card_arrival"}}, ignored: []string{"department"},
		},
		{
			name: "names are exact", file: "a.jsonl",
			text: `{"message": "m", "Message": "other", "SUBJECT": "other"}`,
			want: []ticketfile.Ticket{{Line: 1, Message: "m"}}, ignored: []string{"Message", "SUBJECT"},
		},
		{
			name: "CSV with quotes, line ends within fields, byte order mark", file: "a.csv",
			text: "\uFEFFexternal_id,subject, message ,note,department\r\n" +
				"1,\"Hello, \"\"you\"\"\",\"first\nsecond\",x,billing\r\n" +
				"2,,third,,\r\n",
			want: []ticketfile.Ticket{
				{Line: 2, ExternalID: "1", Subject: `Hello, "you"`, Message: "first\nsecond", Truth: "billing"},
				{Line: 4, ExternalID: "2", Message: "third"},
			}, ignored: []string{"note"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if test.truth == "" {
				test.truth = ticketfile.TruthColumn
			}
			got, err := ticketfile.Open(write(t, test.file, test.text), test.truth)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got.Tickets, test.want) {
				t.Errorf("got  %#v\nwant %#v", got.Tickets, test.want)
			}
			if !reflect.DeepEqual(got.Ignored, test.ignored) {
				t.Errorf("ignored %q, want %q", got.Ignored, test.ignored)
			}
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	many := strings.Repeat(`{"message":"m"}`+"\n", ticketfile.MaxTickets+1)
	for _, test := range []struct {
		name, file, text string
		line             int // 0: the error names no line
		want             string
	}{
		{name: "unknown format", file: "a.xlsx", text: "x", want: ".jsonl or .csv"},
		{name: "nothing in it", file: "a.jsonl", text: "\n \n", want: "no tickets"},
		{name: "an array", file: "a.jsonl", text: "[1]", line: 1, want: "not a JSON object"},
		{name: "broken JSON", file: "a.jsonl", text: "{\"message\":\"m\"}\n{\"message\":\"m\"", line: 2, want: "not valid JSON"},
		{name: "two objects", file: "a.jsonl", text: `{"message":"m"} {"message":"m"}`, line: 1, want: "something follows"},
		{name: "a bracket too many", file: "a.jsonl", text: `{"message":"m"}]`, line: 1, want: "something follows"},
		{name: "no message", file: "a.jsonl", text: "{\"message\":\"m\"}\n\n{\"subject\":\"s\"}", line: 3, want: `no "message"`},
		{name: "empty message", file: "a.jsonl", text: `{"message":" \n "}`, line: 1, want: "the message is empty"},
		{name: "message of another type", file: "a.jsonl", text: `{"message":["m"]}`, line: 1, want: `"message" is neither`},
		{name: "message twice", file: "a.jsonl", text: `{"message":"m","message":"n"}`, line: 1, want: "twice"},
		{name: "not UTF-8", file: "a.jsonl", text: "{\"message\":\"m\"}\n{\"message\":\"\xff\"}", line: 2, want: "UTF-8"},
		{name: "too many", file: "a.jsonl", text: many, line: ticketfile.MaxTickets + 1, want: "more than"},
		{name: "CSV without a line", file: "a.csv", text: "", want: "no header"},
		{name: "CSV without rows", file: "a.csv", text: "subject,message\n", want: "no tickets"},
		{name: "CSV without message", file: "a.csv", text: "subject;message\n1;2\n", line: 1, want: `no column "message" in the header: subject;message`},
		{name: "CSV column twice", file: "a.csv", text: "message,message\n1,2\n", line: 1, want: "two columns"},
		{name: "CSV field missing", file: "a.csv", text: "subject,message\n\"a\nb\",c\nd\n", line: 4, want: "wrong number of fields"},
		{name: "CSV quote open", file: "a.csv", text: "message\nok\n\"m\n", line: 3, want: "\""},
		{name: "CSV empty message", file: "a.csv", text: "message,subject\na,b\n,c\n", line: 3, want: "the message is empty"},
		{name: "CSV not UTF-8", file: "a.csv", text: "message\nok\n\xe7\n", line: 3, want: "UTF-8"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			path := write(t, test.file, test.text)
			_, err := ticketfile.Open(path, ticketfile.TruthColumn)
			if err == nil {
				t.Fatal("no error")
			}
			at, hasLine := errors.AsType[*ticketfile.LineError](err)
			if hasLine != (test.line != 0) || (hasLine && at.Line != test.line) {
				t.Errorf("%v: want line %d", err, test.line)
			}
			if !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("%q does not say %q of %s", err, test.want, path)
			}
		})
	}
}

func TestOpenNamesAMissingFileOnce(t *testing.T) {
	t.Parallel()
	_, err := ticketfile.Open("no-such.jsonl", ticketfile.TruthColumn)
	if !errors.Is(err, os.ErrNotExist) || strings.Count(err.Error(), "no-such.jsonl") != 1 {
		t.Errorf("got %v", err)
	}
}

func TestTruthsFoldsLetterCase(t *testing.T) {
	t.Parallel()
	f := ticketfile.File{Tickets: []ticketfile.Ticket{{Truth: "Sales"}, {}, {Truth: "billing"}, {Truth: "SALES"}, {Truth: "billing"}}}
	if got, want := f.Truths(), []string{"Sales", "billing"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The demo shows what deduplication saves, and that the variants of one text that people really send are one text.
func TestDemoTickets(t *testing.T) {
	t.Parallel()
	f, err := ticketfile.Open(filepath.Join("..", "..", "tickets", "demo.jsonl"), ticketfile.TruthColumn)
	if err != nil {
		t.Fatal(err)
	}
	asSent, distinct, ids := map[[2]string]bool{}, map[content.Hash]string{}, map[string]bool{}
	for _, ticket := range f.Tickets {
		text, err := content.Canonical(ticket.Subject, ticket.Message)
		if err != nil {
			t.Fatalf("line %d: %v", ticket.Line, err)
		}
		if truth, known := distinct[text.Hash()]; known && truth != ticket.Truth {
			t.Errorf("line %d: %s, and %s for the same content", ticket.Line, ticket.Truth, truth)
		}
		distinct[text.Hash()] = ticket.Truth
		asSent[[2]string{ticket.Subject, ticket.Message}] = true
		if ids[ticket.ExternalID] {
			t.Errorf("line %d: external id %s stands there twice", ticket.Line, ticket.ExternalID)
		}
		ids[ticket.ExternalID] = true
		if ticket.Truth == "" {
			t.Errorf("line %d: no department", ticket.Line)
		}
	}
	share := 1 - float64(len(distinct))/float64(len(f.Tickets))
	if len(f.Tickets) < 400 || share < 0.1 || share > 0.15 {
		t.Errorf("%d tickets, %.1f %% of them duplicates", len(f.Tickets), 100*share)
	}
	if len(asSent) < len(distinct)+30 {
		t.Errorf("%d texts as sent for %d contents: too few variants", len(asSent), len(distinct))
	}
	if got := len(f.Truths()); got != 6 {
		t.Errorf("%d departments", got)
	}
}
