package ticketdb

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/evalonce/evalonce/pkg/outbox"
)

// What was stored by any release is decoded by every later one. A form that is here never leaves; a new one gets
// the next number.
func TestStoredResponses(t *testing.T) {
	t.Parallel()
	id := uuid.MustParse("01900000-0000-7000-8000-000000000001")
	for _, c := range []struct {
		schema int32
		raw    string
		want   Response
	}{
		{
			1, `{"version_id":"v1","key":"0123456789abcdef0123456789abcdef","state":"pending"}`,
			Response{TicketID: id, VersionID: "v1", Key: "0123456789abcdef0123456789abcdef", State: outbox.Pending},
		},
		{
			1, `{"version_id":"v1","key":"0123456789abcdef0123456789abcdef","state":"succeeded"}`,
			Response{TicketID: id, VersionID: "v1", Key: "0123456789abcdef0123456789abcdef", State: outbox.Succeeded},
		},
		{
			1, `{"version_id":"v1","key":"0123456789abcdef0123456789abcdef","state":"dead","dead":{"class":"permanent","reason":"refusal","at":"2026-01-02T03:04:05.000006Z"}}`,
			Response{
				TicketID: id, VersionID: "v1", Key: "0123456789abcdef0123456789abcdef", State: outbox.Dead,
				Dead: &Dead{Class: "permanent", Reason: "refusal", At: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)},
			},
		},
	} {
		got, err := responseOf(c.schema, id, []byte(c.raw))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("schema %d: %s", c.schema, diff)
		}
		if c.schema != responseSchema {
			continue
		}
		raw, err := c.want.encode()
		if err != nil {
			t.Fatal(err)
		}
		if string(raw) != c.raw {
			t.Errorf("encoded as %s, want %s: another form needs another number", raw, c.raw)
		}
	}
	if _, err := responseOf(responseSchema+1, id, []byte(`{}`)); err == nil || !strings.Contains(err.Error(), "newer release") {
		t.Errorf("a response of a newer release: %v", err)
	}
}
