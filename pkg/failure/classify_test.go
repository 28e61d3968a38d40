package failure_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/evalonce/evalonce/pkg/failure"
)

// golden is one file of testdata/responses: what is expected, as a header, then the response as it came over the
// wire. want is "class reason", or "none" for a usable response; now is when the response came.
type golden struct {
	name     string
	want     textproto.MIMEHeader
	exchange failure.Exchange
}

func goldens(t testing.TB) []golden {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("testdata", "responses", "*.txt"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no golden responses: %v", err)
	}
	gs := make([]golden, len(paths))
	for i, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(bytes.NewReader(b))
		want, err := textproto.NewReader(r).ReadMIMEHeader()
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		res.Body.Close()
		gs[i] = golden{
			name:     strings.TrimSuffix(filepath.Base(path), ".txt"),
			want:     want,
			exchange: failure.Exchange{Sent: true, Status: res.StatusCode, Header: res.Header, Body: body},
		}
		if now := want.Get("now"); now != "" {
			if gs[i].exchange.Now, err = http.ParseTime(now); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
		}
	}
	return gs
}

func TestGoldenResponses(t *testing.T) {
	t.Parallel()
	for _, g := range goldens(t) {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			f := failure.Classify(g.exchange)
			if f == nil {
				if want := g.want.Get("want"); want != "none" {
					t.Fatalf("usable, want %s", want)
				}
				return
			}
			if got, want := string(f.Class)+" "+string(f.Reason), g.want.Get("want"); got != want {
				t.Errorf("%s, want %s", got, want)
			}
			if f.HTTPStatus != g.exchange.Status {
				t.Errorf("status %d", f.HTTPStatus)
			}
			wantRetry := time.Duration(0)
			if s := g.want.Get("retry-after"); s != "" {
				var err error
				if wantRetry, err = time.ParseDuration(s); err != nil {
					t.Fatal(err)
				}
			}
			if f.RetryAfter != wantRetry {
				t.Errorf("Retry-After of %v, want %v", f.RetryAfter, wantRetry)
			}
			if want, ok := g.want["Detail"]; ok && f.Detail != want[0] {
				t.Errorf("detail %q, want %q", f.Detail, want[0])
			}
		})
	}
}

// timeoutError is a net.Error as the standard library has several, none of them exported.
type timeoutError struct{}

func (timeoutError) Error() string   { return "i/o timeout" }
func (timeoutError) Timeout() bool   { return true }
func (timeoutError) Temporary() bool { return true }

func post(err error) error {
	return &url.Error{Op: "Post", URL: "https://api.example/v1/chat/completions", Err: err}
}

func TestBrokenExchanges(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		x      failure.Exchange
		class  failure.Class
		reason failure.Reason
	}{
		{
			"DNS",
			failure.Exchange{Err: post(&net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "api.example"}})},
			failure.Transient, failure.ConnectFailed,
		},
		{
			"dial refused",
			failure.Exchange{Err: post(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED})},
			failure.Transient, failure.ConnectFailed,
		},
		{"dial timeout", failure.Exchange{Err: post(timeoutError{})}, failure.Transient, failure.ConnectFailed},
		{"TLS", failure.Exchange{Err: post(x509.UnknownAuthorityError{})}, failure.Transient, failure.ConnectFailed},
		{
			"deadline before the request left",
			failure.Exchange{Err: post(context.DeadlineExceeded)},
			failure.Transient, failure.ConnectFailed,
		},
		{
			"given up before the request left",
			failure.Exchange{Err: post(context.Canceled)},
			failure.Transient, failure.NotSent,
		},

		{"timeout", failure.Exchange{Err: post(timeoutError{}), Sent: true}, failure.Unknown, failure.Timeout},
		{"deadline", failure.Exchange{Err: post(context.DeadlineExceeded), Sent: true}, failure.Unknown, failure.Timeout},
		{
			"deadline, wrapped",
			failure.Exchange{Err: post(fmt.Errorf("call: %w", context.DeadlineExceeded)), Sent: true},
			failure.Unknown, failure.Timeout,
		},
		{
			"connection's deadline, wrapped",
			failure.Exchange{Err: post(fmt.Errorf("read: %w", os.ErrDeadlineExceeded)), Sent: true},
			failure.Unknown, failure.Timeout,
		},
		{"given up", failure.Exchange{Err: post(context.Canceled), Sent: true}, failure.Unknown, failure.Canceled},
		{
			"given up for a cause",
			failure.Exchange{Err: post(errors.New("lease lost")), Sent: true},
			failure.Unknown, failure.ConnectionLost,
		},
		{
			"reset",
			failure.Exchange{Err: post(&net.OpError{Op: "read", Err: syscall.ECONNRESET}), Sent: true},
			failure.Unknown, failure.ConnectionLost,
		},
		{"EOF", failure.Exchange{Err: post(io.EOF), Sent: true}, failure.Unknown, failure.ConnectionLost},

		{
			"body cut",
			failure.Exchange{Err: io.ErrUnexpectedEOF, Sent: true, Status: 200, Body: []byte(`{"choices":[`)},
			failure.Unknown, failure.ConnectionLost,
		},
		{
			"body timeout",
			failure.Exchange{Err: context.DeadlineExceeded, Sent: true, Status: 200},
			failure.Unknown, failure.Timeout,
		},
		{
			"body cut, and nobody noted that the request left",
			failure.Exchange{Err: io.ErrUnexpectedEOF, Status: 200},
			failure.Unknown, failure.ConnectionLost,
		},
		{
			"body cut after it was whole",
			failure.Exchange{Err: io.ErrUnexpectedEOF, Sent: true, Status: 200, Body: []byte(`{"choices":[{}]}`)},
			failure.Unknown, failure.ConnectionLost,
		},
		{
			"body of an error cut",
			failure.Exchange{Err: io.ErrUnexpectedEOF, Sent: true, Status: 429},
			failure.Throttled, failure.RateLimited,
		},
		{
			"refused while the request was written",
			failure.Exchange{Err: syscall.EPIPE, Status: 413},
			failure.Permanent, failure.ContextTooLong,
		},

		{"nothing at all", failure.Exchange{}, failure.Transient, failure.MalformedResponse},
	} {
		f := failure.Classify(c.x)
		if f == nil || f.Class != c.class || f.Reason != c.reason {
			t.Errorf("%s: %v, want %s %s", c.name, f, c.class, c.reason)
			continue
		}
		if c.x.Err != nil && !errors.Is(f, c.x.Err) {
			t.Errorf("%s: does not wrap its cause", c.name)
		}
		if c.x.Err != nil && c.x.Status < 400 && f.Detail != c.x.Err.Error() {
			t.Errorf("%s: detail %q", c.name, f.Detail)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	date := func(d time.Duration) string { return now.Add(d).Format(http.TimeFormat) }
	for _, c := range []struct {
		name, seconds, millis string
		now                   time.Time
		want                  time.Duration
	}{
		{"absent", "", "", now, 0},
		{"seconds", "20", "", now, 20 * time.Second},
		{"with white space", " 20 ", "", now, 20 * time.Second},
		{"zero", "0", "", now, 0},
		{"fraction", "1.5", "", now, 1500 * time.Millisecond},
		{"negative", "-5", "", now, 0},
		{"an hour", "3600", "", now, time.Hour},
		{"a day", "86400", "", now, time.Hour},
		{"beyond a Duration", "1e300", "", now, time.Hour},
		{"beyond a float", "1e999", "", now, 0},
		{"far below zero", "-1e300", "", now, 0},
		{"NaN", "NaN", "", now, 0},
		{"Inf", "Inf", "", now, time.Hour},
		{"words", "soon", "", now, 0},
		{"unit", "20s", "", now, 0},
		{"milliseconds", "", "250", now, 250 * time.Millisecond},
		{"milliseconds are finer", "1", "250", now, 250 * time.Millisecond},
		{"milliseconds unreadable", "3", "soon", now, 3 * time.Second},
		{"milliseconds absurd", "", "1e18", now, time.Hour},
		{"date", date(90 * time.Second), "", now, 90 * time.Second},
		{"date past", date(-time.Minute), "", now, 0},
		{"date now", date(0), "", now, 0},
		{"date of next year", date(365 * 24 * time.Hour), "", now, time.Hour},
		{"date in the form of RFC 850", now.Add(time.Minute).Format("Monday, 02-Jan-06 15:04:05 GMT"), "", now, time.Minute},
		{"date in the form of asctime", now.Add(time.Minute).Format(time.ANSIC), "", now, time.Minute},
		{"date and no clock", date(90 * time.Second), "", time.Time{}, 0},
	} {
		h := http.Header{}
		if c.seconds != "" {
			h.Set("Retry-After", c.seconds)
		}
		if c.millis != "" {
			h.Set("Retry-After-Ms", c.millis)
		}
		f := failure.Classify(failure.Exchange{Status: 429, Header: h, Now: c.now})
		if f.RetryAfter != c.want {
			t.Errorf("%s: %v, want %v", c.name, f.RetryAfter, c.want)
		}
	}
}

func FuzzClassify(f *testing.F) {
	for _, g := range goldens(f) {
		f.Add(g.exchange.Status, g.exchange.Body, g.exchange.Header.Get("Retry-After"), false, true)
	}
	f.Add(0, []byte{}, "", true, false)
	f.Add(200, []byte("{"), "-1", true, true)
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, status int, body []byte, retryAfter string, broken, sent bool) {
		x := failure.Exchange{Sent: sent, Status: status, Header: http.Header{"Retry-After": {retryAfter}}, Body: body, Now: now}
		if broken {
			x.Err = io.ErrUnexpectedEOF
		}
		got := failure.Classify(x)
		accepted := status >= 200 && status < 300
		if got == nil {
			if broken || !accepted {
				t.Fatalf("status %d, broken %t, is usable", status, broken)
			}
			return
		}
		if got.Class == "" || got.Class != got.Reason.Class() {
			t.Fatalf("%q is of class %q", got.Reason, got.Class)
		}
		if got.RetryAfter < 0 || got.RetryAfter > time.Hour {
			t.Fatalf("Retry-After of %v", got.RetryAfter)
		}
		if broken && sent && accepted && got.Class != failure.Unknown {
			t.Fatalf("a call that may be paid for is %s", got.Class)
		}
		if status == http.StatusGatewayTimeout && got.Class != failure.Unknown {
			t.Fatalf("status 504 is %s", got.Class)
		}
		if len(got.Detail) > failure.MaxExcerptBytes || !utf8.ValidString(got.Detail) {
			t.Fatalf("detail %q", got.Detail)
		}
	})
}
