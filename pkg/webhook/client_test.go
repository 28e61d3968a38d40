package webhook_test

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/evalonce/evalonce/pkg/webhook"
)

func local() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")} }

func receiver(t *testing.T, handle http.HandlerFunc) (*httptest.Server, webhook.ClientOptions) {
	t.Helper()
	server := httptest.NewTLSServer(handle)
	t.Cleanup(server.Close)
	pool := x509.NewCertPool()
	pool.AddCert(server.Certificate())
	return server, webhook.ClientOptions{Allow: local(), RootCAs: pool, Timeout: time.Minute}
}

func send(t *testing.T, o webhook.ClientOptions, url string) webhook.Attempt {
	t.Helper()
	client := webhook.NewClient(o)
	defer client.Close()
	return client.Send(t.Context(), webhook.Message{ID: uuid.New(), URL: url, Body: []byte("{}"), Secrets: [][]byte{make([]byte, 32)}})
}

func TestWhatAnAttemptComesTo(t *testing.T) {
	t.Parallel()
	var visits atomic.Int32
	server, o := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/redirect":
			http.Redirect(w, r, "/target", http.StatusTemporaryRedirect)
		case "/target":
			visits.Add(1)
		case "/gone":
			w.WriteHeader(http.StatusGone)
		case "/busy":
			w.Header().Set("Retry-After", "120")
			w.WriteHeader(http.StatusTooManyRequests)
		case "/endless":
			for {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		case "/hangs":
			_, _ = io.Copy(io.Discard, r.Body) // only then does the server see the client go
			<-r.Context().Done()
		case "/cut":
			panic(http.ErrAbortHandler)
		}
	})
	quick := o
	quick.Timeout = 100 * time.Millisecond
	plain := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(plain.Close)
	withHTTP := o
	withHTTP.AllowHTTP = true
	distrustful := o
	distrustful.RootCAs = x509.NewCertPool()
	guarded := o
	guarded.Allow = nil
	closed := httptest.NewServer(nil)
	closed.Close()
	for _, c := range []struct {
		name, url string
		options   webhook.ClientOptions
		want      webhook.Attempt
	}{
		{"success", server.URL + "/", o, webhook.Attempt{Status: 200}},
		{"a redirect is not followed", server.URL + "/redirect", o, webhook.Attempt{Status: 307, Reason: webhook.Redirected}},
		{"gone", server.URL + "/gone", o, webhook.Attempt{Status: 410, Reason: webhook.Gone}},
		{"busy", server.URL + "/busy", o, webhook.Attempt{Status: 429, Reason: webhook.BadStatus, RetryAfter: 2 * time.Minute}},
		{"a response without end", server.URL + "/endless", o, webhook.Attempt{Status: 200}},
		{"timeout", server.URL + "/hangs", quick, webhook.Attempt{Reason: webhook.TimedOut}},
		{"cut off", server.URL + "/cut", o, webhook.Attempt{Reason: webhook.Broken}},
		{"no TLS", plain.URL, o, webhook.Attempt{Reason: webhook.SchemeDenied}},
		{"no TLS, but allowed", plain.URL, withHTTP, webhook.Attempt{Status: 200}},
		{"credentials", strings.Replace(server.URL, "//", "//user:password@", 1), o, webhook.Attempt{Reason: webhook.SchemeDenied}},
		{"a certificate of nobody's", server.URL, distrustful, webhook.Attempt{Reason: webhook.BadTLS}},
		{"nobody there", strings.Replace(closed.URL, "http:", "https:", 1), o, webhook.Attempt{Reason: webhook.NotConnected}},
		{"a denied address", server.URL + "/target", guarded, webhook.Attempt{Reason: webhook.AddressDenied}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := send(t, c.options, c.url); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
	if n := visits.Load(); n != 0 {
		t.Errorf("%d requests where none may go", n)
	}
}

// names is a name server that tells another address each time.
func names(t *testing.T, addresses ...string) *net.Resolver {
	t.Helper()
	var lc net.ListenConfig
	server, err := lc.ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = server.Close(); <-done })
	go func() {
		defer close(done)
		buffer := make([]byte, 1500)
		for {
			n, from, err := server.ReadFrom(buffer)
			if err != nil {
				return
			}
			var query dnsmessage.Message
			if err := query.Unpack(buffer[:n]); err != nil {
				continue
			}
			reply := dnsmessage.Message{Header: dnsmessage.Header{ID: query.ID, Response: true, RecursionAvailable: true}, Questions: query.Questions}
			switch {
			case len(addresses) == 0:
				reply.RCode = dnsmessage.RCodeNameError
			case query.Questions[0].Type == dnsmessage.TypeA:
				reply.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: query.Questions[0].Name, Class: dnsmessage.ClassINET},
					Body:   &dnsmessage.AResource{A: netip.MustParseAddr(addresses[0]).As4()},
				}}
				if len(addresses) > 1 {
					addresses = addresses[1:]
				}
			}
			if raw, err := reply.Pack(); err == nil {
				_, _ = server.WriteTo(raw, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", server.LocalAddr().String())
	}}
}

// A name that stood for an open address when it was looked at, and stands for another now, is judged anew.
func TestANameIsJudgedByWhatItStandsForNow(t *testing.T) {
	t.Parallel()
	visits := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { visits <- r.Host }))
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	o := webhook.ClientOptions{AllowHTTP: true, Allow: local(), Timeout: time.Minute, Resolver: names(t, "127.0.0.1", "127.0.0.2")}
	client := webhook.NewClient(o)
	defer client.Close()
	message := webhook.Message{ID: uuid.New(), URL: "http://hooks.example.com:" + port, Body: []byte("{}"), Secrets: [][]byte{make([]byte, 32)}}
	if got := client.Send(t.Context(), message); got.Status != 200 {
		t.Fatalf("the first attempt came to %+v", got)
	}
	client.Close() // what is connected was judged when it was
	if got := client.Send(t.Context(), message); got.Reason != webhook.AddressDenied {
		t.Errorf("the second attempt came to %+v, want a denied address", got)
	}
	if len(visits) != 1 {
		t.Errorf("%d requests arrived, want 1", len(visits))
	}
	o.Resolver = names(t)
	if got := send(t, o, "http://hooks.example.com:"+port); got.Reason != webhook.NoName {
		t.Errorf("a name that does not exist came to %+v", got)
	}
}

func TestAStoppingWorkerBlamesNobody(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	server, o := receiver(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(arrived)
		<-r.Context().Done()
	})
	client := webhook.NewClient(o)
	defer client.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { <-arrived; cancel(errors.New("stopping")) }()
	got := client.Send(ctx, webhook.Message{ID: uuid.New(), URL: server.URL, Body: []byte("{}"), Secrets: [][]byte{make([]byte, 32)}})
	if got.Reason != webhook.Stopped {
		t.Errorf("came to %+v", got)
	}
}
