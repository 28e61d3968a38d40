package ticketfile_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/evalonce/evalonce/pkg/ticketfile"
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

// What is wrong with one row says nothing of the others.
func TestReaderGoesOn(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", ticketfile.MaxRowBytes)
	for _, test := range []struct {
		name   string
		format ticketfile.Format
		text   string
		want   []string // a row as line=message, an error as line!what
	}{
		{
			"JSON Lines", ticketfile.JSONL,
			"{\"message\":\"a\"}\n{\"message\":\n[]\n{\"message\":\"" + long + "\"}\n{\"subject\":\"s\"}\n{\"message\":\"\xff\"}\n{\"message\":true}",
			[]string{"1=a", "2!not valid JSON", "3!not a JSON object", "4!longer than", `5!no "message"`, "6!UTF-8", "7=true"},
		},
		{
			"CSV", ticketfile.CSV,
			"subject,message\n1,a\n2\n3,b\"c\n4,\"d\ne\"\n5,\xff\n6,f\n",
			[]string{"2=a", "3!wrong number of fields", "4!bare", "5=d\ne", "7!UTF-8", "8=f"},
		},
		{
			"CSV without an end", ticketfile.CSV,
			"message\na\n\"" + strings.Repeat("x\n", ticketfile.MaxRowBytes),
			[]string{"2=a", "0!longer than"},
		},
		{"CSV without the column", ticketfile.CSV, "subject\na\n", []string{"1!no column"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			reader := ticketfile.NewReader(strings.NewReader(test.text), test.format, ticketfile.TicketColumns())
			for _, want := range test.want {
				row, err := reader.Next()
				line, what, wrong := strings.Cut(want, "!")
				if wrong {
					at, _ := errors.AsType[*ticketfile.LineError](err)
					if err == nil || !strings.Contains(err.Error(), what) || (line != "0" && (at == nil || fmt.Sprint(at.Line) != line)) {
						t.Fatalf("got %v, want %s", err, want)
					}
					continue
				}
				if got := fmt.Sprintf("%d=%s", row.Line, row.Values["message"]); err != nil || got != want {
					t.Fatalf("got %s, %v, want %s", got, err, want)
				}
			}
			_, err := reader.Next()
			last := test.want[len(test.want)-1]
			if final := strings.Contains(last, "longer") || strings.Contains(last, "no column"); final == errors.Is(err, io.EOF) {
				t.Errorf("the end is %v", err)
			}
			if errors.Is(err, io.EOF) && reader.Offset() != int64(len(test.text)) {
				t.Errorf("read %d bytes of %d", reader.Offset(), len(test.text))
			}
		})
	}
}
