package rpc

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

// What is read is what is written again, and an error quotes nothing.
func FuzzJSON(f *testing.F) {
	for _, s := range []string{
		`{"message":"x"}`, `{"requests":[{"message":"a","requestId":"k"}]}`, `{"requests":[{"message":"😀"}]} x`, `{"a":1}`, `null`, `[]`, ``, "\xff", `{"requests":[`,
		`{"requests":[{"message":12}]}`, `{"requests":null}`, `{"requests":[{"message":"\ud800"}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		m := newMarshaler()
		var read ticketv1.BatchCreateTicketsRequest
		if err := m.Unmarshal(body, &read); err != nil {
			if quoted := err.Error(); len(quoted) > 300 || strings.Contains(quoted, "\n") {
				t.Errorf("the error is %q", quoted)
			}
			return
		}
		written, err := m.Marshal(&read)
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		var again ticketv1.BatchCreateTicketsRequest
		if err := m.Unmarshal(written, &again); err != nil || !proto.Equal(&read, &again) {
			t.Errorf("%s is read again as %v, %v", written, &again, err)
		}
	})
}
