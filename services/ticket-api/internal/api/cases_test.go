package api_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

// textCase is a ticket's text and what becomes of it. Texts of one group have one evaluation key, those of
// different groups different ones; fields that end in _b64 hold bytes that need not be UTF-8.
type textCase struct {
	ID         string `json:"id"`
	Expect     string `json:"expect"`
	Group      string `json:"key_group"`
	Subject    string `json:"subject"`
	Message    string `json:"message"`
	SubjectB64 []byte `json:"subject_b64"`
	MessageB64 []byte `json:"message_b64"`
}

func (c textCase) text() (subject, message string) {
	if c.SubjectB64 != nil || c.MessageB64 != nil {
		return string(c.SubjectB64), string(c.MessageB64)
	}
	return c.Subject, c.Message
}

// accepted says what becomes of a text, where the case leaves it to the design: the empty subject is allowed, and
// messages are allowed up to the limit.
func (c textCase) accepted() bool {
	switch {
	case strings.Contains(c.Expect, "at documented limit"):
		return len(c.Message) <= 64<<10
	case c.Expect == "decide":
		return c.Subject == ""
	default:
		return strings.HasPrefix(c.Expect, "accept")
	}
}

// group is the group where the case leaves that to the design: NFC and CRLF fold into one key, zero-width
// characters do not.
func (c textCase) group() string {
	if !strings.HasSuffix(c.Group, "?") {
		return c.Group
	}
	if strings.ContainsAny(c.Subject+c.Message, "\u200b\ufeff") {
		return c.ID
	}
	return strings.TrimSuffix(c.Group, "?")
}

func textCases(t *testing.T, path string) []textCase {
	t.Helper()
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("the file is not part of this checkout")
	}
	if err != nil {
		t.Fatal(err)
	}
	var cases []textCase
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c textCase
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		cases = append(cases, c)
	}
	if lines.Err() != nil || len(cases) < 10 {
		t.Fatalf("%d cases: %v", len(cases), lines.Err())
	}
	return cases
}

func TestTexts(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{
		"own":    filepath.Join("testdata", "cases.jsonl"),
		"shared": filepath.Join("..", "..", "..", "..", "..", "shared", "data", "nasty_cases.jsonl"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := start(t)
			groups := map[string]map[string]bool{} // keys by group
			for _, c := range textCases(t, path) {
				subject, message := c.text()
				before := a.rows()
				overGRPC, err := a.sendRaw(subject, message)
				overREST := a.rest("POST", "/v1/tickets", jsonOf(t, map[string]string{"subject": subject, "message": message}))
				if !c.accepted() {
					if status.Code(err) != codes.InvalidArgument || problemOf(status.Convert(err)).reason == "" {
						t.Errorf("%s: gRPC gives %v", c.ID, err)
					}
					if overREST.status != 400 && overREST.status != 413 {
						t.Errorf("%s: REST gives %d %s", c.ID, overREST.status, overREST.body)
					}
					if after := a.rows(); after != before {
						t.Errorf("%s: refused, but stored: %v became %v", c.ID, before, after)
					}
					continue
				}
				if err != nil || overREST.status != 201 {
					t.Errorf("%s: gRPC gives %v, REST %d %s", c.ID, err, overREST.status, overREST.body)
					continue
				}
				fromREST := overREST.ticket(t)
				for transport, created := range map[string]*ticketv1.Ticket{"gRPC": overGRPC, "REST": fromREST} {
					stored := a.get(created.GetId())
					for what, shown := range map[string]*ticketv1.Ticket{"created": created, "stored": stored} {
						if shown.GetSubject() != subject || shown.GetMessage() != message {
							t.Errorf("%s: %s over %s, the text is %q %q", c.ID, what, transport, shown.GetSubject(), shown.GetMessage())
						}
					}
				}
				group := c.group()
				if group == "" {
					group = c.ID
				}
				if groups[group] == nil {
					groups[group] = map[string]bool{}
				}
				groups[group][overGRPC.GetEvaluation().GetEvaluationKey()] = true
				groups[group][fromREST.GetEvaluation().GetEvaluationKey()] = true
			}
			owner := map[string]string{}
			for group, keys := range groups {
				if len(keys) != 1 {
					t.Errorf("group %s has keys %v", group, keys)
				}
				for key := range keys {
					if other, taken := owner[key]; taken {
						t.Errorf("groups %s and %s share the key %s", group, other, key)
					}
					owner[key] = group
				}
			}
			if work := a.count(`SELECT count(*) FROM evaluation_outbox`); work != len(groups) {
				t.Errorf("%d evaluations for %d distinct texts", work, len(groups))
			}
		})
	}
}

// sendRaw creates a ticket with texts that need not be UTF-8.
func (a *ticketAPI) sendRaw(subject, message string) (*ticketv1.Ticket, error) {
	b := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), subject)
	b = protowire.AppendString(protowire.AppendTag(b, 2, protowire.BytesType), message)
	ticket := &ticketv1.Ticket{}
	err := a.conn.Invoke(a.as(a.acme), ticketv1.TicketService_CreateTicket_FullMethodName, b, ticket, grpc.ForceCodecV2(raw{}))
	return ticket, err
}

// Escapes are JSON's own way to say what cannot be said in bytes.
func TestEscapesOfJSON(t *testing.T) {
	t.Parallel()
	a := start(t)
	for _, body := range []string{
		`{"message":"lone \ud800 high"}`, `{"message":"lone \udfff low"}`, `{"message":"x","subject":"\udc00\ud800"}`,
		`{"message":"x","subject":"cut \ud83d"}`, `{"message":"x\u0000y"}`, `{"message":"x","subject":"\u0000"}`,
		`{"message":"x","external_id":"\u0000"}`, `{"message":"\u200b\ufeff\u00a0\u2060"}`, `{"message":"\u0007"}`,
	} {
		if r := a.rest("POST", "/v1/tickets", body); r.status != 400 {
			t.Errorf("%s: %d %s", body, r.status, r.body)
		}
	}
	if got := a.rows(); got != [3]int{} {
		t.Errorf("stored %v", got)
	}
	r := a.rest("POST", "/v1/tickets", `{"message":"\ud83d\udd25 \u00e9","subject":"\\u0000"}`)
	if r.status != 201 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	if stored := a.get(r.ticket(t).GetId()); stored.GetMessage() != "🔥 é" || stored.GetSubject() != `\u0000` {
		t.Errorf("stored %q %q", stored.GetSubject(), stored.GetMessage())
	}
}
