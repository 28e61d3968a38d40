package api

import (
	"encoding/base64"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/ticketdb"
)

func narrowFilter() ticketdb.ListFilter {
	urgency := 0.5
	return ticketdb.ListFilter{
		State: outbox.Succeeded, Department: "billing", MinUrgency: &urgency,
		From: time.UnixMicro(1600000000000000), To: time.UnixMicro(1800000000000000),
	}
}

func position() ticketdb.Position {
	return ticketdb.Position{
		CreatedAt: time.UnixMicro(1700000000123456).UTC(), ID: uuid.MustParse("018bcfe5-687b-7000-8000-000000000001"),
	}
}

// Clients keep tokens across releases: these, computed by another implementation (Python's), stay what they are.
func TestGoldenPageTokens(t *testing.T) {
	t.Parallel()
	for want, f := range map[string]ticketdb.ListFilter{
		"AQ45O09leB03AAYKJBggIkABi8_laHtwAIAAAAAAAAAB": {},
		"Adm2vsRAtgZiAAYKJBggIkABi8_laHtwAIAAAAAAAAAB": narrowFilter(),
	} {
		if got := encodePageToken(position(), "acme", f); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if p, ok := decodePageToken(want, "acme", f); !ok || p != position() {
			t.Errorf("%s decodes to %v, %v", want, p, ok)
		}
	}
}

func TestAPageTokenIsBoundToItsList(t *testing.T) {
	t.Parallel()
	token := encodePageToken(position(), "acme", narrowFilter())
	if _, ok := decodePageToken(token, "other", narrowFilter()); ok {
		t.Error("another client's token is accepted")
	}
	zero := 0.0
	for name, change := range map[string]func(*ticketdb.ListFilter){
		"state":               func(f *ticketdb.ListFilter) { f.State = outbox.Dead },
		"no state":            func(f *ticketdb.ListFilter) { f.State = outbox.Absent },
		"department":          func(f *ticketdb.ListFilter) { f.Department = "billin" },
		"text moves":          func(f *ticketdb.ListFilter) { f.State, f.Department = outbox.Succeeded+"b", "illing" },
		"urgency":             func(f *ticketdb.ListFilter) { f.MinUrgency = &zero },
		"no urgency":          func(f *ticketdb.ListFilter) { f.MinUrgency = nil },
		"created from":        func(f *ticketdb.ListFilter) { f.From = f.From.Add(time.Microsecond) },
		"created to":          func(f *ticketdb.ListFilter) { f.To = time.Time{} },
		"from and to changed": func(f *ticketdb.ListFilter) { f.From, f.To = f.To, f.From },
	} {
		f := narrowFilter()
		change(&f)
		if _, ok := decodePageToken(token, "acme", f); ok {
			t.Errorf("%s: the token of another filter is accepted", name)
		}
	}
}

func FuzzPageToken(f *testing.F) {
	good := encodePageToken(position(), "acme", ticketdb.ListFilter{})
	f.Add(good)
	f.Add(good + "\n")
	f.Add(good + "=")
	f.Add(good[:len(good)-1])
	f.Add("")
	raw, _ := base64.RawURLEncoding.DecodeString(good)
	raw[1+bindingLength] ^= 0x80 // a time before the year 1
	f.Add(base64.RawURLEncoding.EncodeToString(raw))
	f.Fuzz(func(t *testing.T, token string) {
		p, ok := decodePageToken(token, "acme", ticketdb.ListFilter{})
		if !ok {
			return
		}
		if again := encodePageToken(p, "acme", ticketdb.ListFilter{}); again != token {
			t.Errorf("%q and %q are one position", token, again)
		}
		if year := p.CreatedAt.Year(); year < 1 || year > 9999 {
			t.Errorf("%q is of the year %d, which is no timestamp", token, year)
		}
	})
}

func FuzzPageTokenRoundTrip(f *testing.F) {
	f.Add(int64(1700000000123456), []byte("0123456789abcdef"))
	f.Add(int64(-62135596800000000), make([]byte, 16))
	f.Fuzz(func(t *testing.T, micros int64, id []byte) {
		at := time.UnixMicro(micros).UTC()
		if len(id) != 16 || at.Year() < 1 || at.Year() > 9999 {
			t.Skip()
		}
		want := ticketdb.Position{CreatedAt: at, ID: uuid.UUID(id)}
		got, ok := decodePageToken(encodePageToken(want, "acme", narrowFilter()), "acme", narrowFilter())
		if !ok || got != want {
			t.Errorf("%v became %v, %v", want, got, ok)
		}
	})
}
