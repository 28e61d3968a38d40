package inference

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/net/http2"

	"github.com/evalonce/evalonce/pkg/failure"

	"github.com/evalonce/evalonce/services/evaluator-worker/internal/prompt"
)

// listener hands every connection to handle and counts the requests that were read whole, by their call's id.
type listener struct {
	url   string
	mu    sync.Mutex
	calls map[string]int
}

func listen(t testing.TB, handle func(l *listener, conn net.Conn)) *listener {
	t.Helper()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{url: "http://" + tcp.Addr().String(), calls: map[string]int{}}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := tcp.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				handle(l, conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = tcp.Close()
		running.Wait()
	})
	return l
}

// read reads one whole request, and reports false when there is none.
func (l *listener) read(r *bufio.Reader) bool {
	req, err := http.ReadRequest(r)
	if err != nil {
		return false
	}
	if _, err := io.Copy(io.Discard, req.Body); err != nil {
		return false
	}
	l.count(req.Header.Get(callIDHeader))
	return true
}

func (l *listener) count(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls[id]++
}

func (l *listener) received(id string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls[id]
}

func whole(body string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// afterRequest reads one request of a connection, writes the reply and ends the connection, by a reset if asked to.
func afterRequest(reply string, reset bool) func(*listener, net.Conn) {
	return func(l *listener, conn net.Conn) {
		if !l.read(bufio.NewReader(conn)) {
			return
		}
		_, _ = io.WriteString(conn, reply)
		if reset {
			_ = conn.(*net.TCPConn).SetLinger(0)
		}
	}
}

func TestWhatBecameOfTheRequest(t *testing.T) { eachDialect(t, whatBecameOfTheRequest) }

func whatBecameOfTheRequest(t *testing.T, d dialect) {
	half := d.answered[:len(d.answered)/2]
	for name, tt := range map[string]struct {
		handle func(*listener, net.Conn)
		reason failure.Reason
		raw    string
	}{
		"closed without a response": {afterRequest("", false), failure.ConnectionLost, ""},
		"reset without a response":  {afterRequest("", true), failure.ConnectionLost, ""},
		"cut in the header":         {afterRequest("HTTP/1.1 200 OK\r\nContent-", false), failure.ConnectionLost, ""},
		"not HTTP":                  {afterRequest("SSH-2.0-OpenSSH_9.2\r\n", false), failure.ConnectionLost, ""},
		"cut before its length": {
			afterRequest("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n"+half, false),
			failure.ConnectionLost, half,
		},
		"cut between chunks": {
			afterRequest(fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(half), half), false),
			failure.ConnectionLost, half,
		},
		"cut without a framing": {
			afterRequest("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"+half, false), failure.ConnectionLost, half,
		},
		"an error is known before its body": {
			afterRequest("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 9999\r\n\r\n{", false), failure.Overloaded, "{",
		},
		"an answer without a framing": {
			afterRequest("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"+d.answered, false), "", d.answered,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := listen(t, tt.handle)
			q := d.question(t)
			got, err := d.client(t, Config{BaseURL: l.url}).Call(within(t), q)
			expect(t, err, tt.reason)
			if string(got.Raw) != tt.raw {
				t.Errorf("raw body is %q, want %q", got.Raw, tt.raw)
			}
			if n := l.received(q.CallID.String()); n != 1 {
				t.Errorf("%d requests, want 1", n)
			}
		})
	}
}

func TestWhatNeverLeft(t *testing.T) { eachDialect(t, whatNeverLeft) }

func whatNeverLeft(t *testing.T, d dialect) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	plain := serve(t, reply(200, d.answered))
	secure := httptest.NewUnstartedServer(reply(200, d.answered))
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // the handshakes fail on purpose
	secure.StartTLS()
	t.Cleanup(secure.Close)
	done, cancel := context.WithCancel(context.Background())
	cancel()
	otherHost := x509.NewCertPool()
	otherHost.AddCert(secure.Certificate())

	for name, tt := range map[string]struct {
		ctx    context.Context
		config Config
		reason failure.Reason
		detail string
	}{
		"refused":           {nil, Config{BaseURL: "http://" + closed.Addr().String()}, failure.ConnectFailed, "dial tcp: connection refused"},
		"no TLS":            {nil, Config{BaseURL: "https" + plain.URL[4:]}, failure.ConnectFailed, "server gave HTTP response to HTTPS client"},
		"unknown authority": {nil, Config{BaseURL: secure.URL}, failure.ConnectFailed, "certificate refused: unknown authority"},
		"another's certificate": {
			nil,
			Config{BaseURL: "https://localhost" + secure.URL[strings.LastIndex(secure.URL, ":"):], RootCAs: otherHost},
			failure.ConnectFailed, "certificate refused: it is for another host",
		},
		"proxy refused": {
			nil, Config{BaseURL: secure.URL, ProxyURL: "http://" + closed.Addr().String()}, failure.ConnectFailed, "connection refused",
		},
		"given up before": {done, Config{BaseURL: plain.URL}, failure.NotSent, "context canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := tt.ctx
			if ctx == nil {
				ctx = within(t)
			}
			got, err := d.client(t, tt.config).Call(ctx, d.question(t))
			expect(t, err, tt.reason)
			var f *failure.Failure
			if errors.As(err, &f) && !strings.Contains(f.Detail, tt.detail) {
				t.Errorf("detail is %q, want %q in it", f.Detail, tt.detail)
			}
			if got.HTTPStatus != 0 || got.Raw != nil {
				t.Errorf("response is %+v, want none", got)
			}
		})
	}
	t.Cleanup(func() {
		if n := len(plain.received()); n != 0 {
			t.Errorf("%d requests arrived", n)
		}
	})
}

// An SDK that builds no request may say why in its own words.
func TestRequestThatIsNotBuilt(t *testing.T) {
	eachDialect(t, func(t *testing.T, d dialect) {
		client := d.client(t, Config{})
		client.send = func(context.Context, Request, prompt.Prompt, *exchange) error {
			return errors.New("https://sentinel.example is no good for sk-sentinel")
		}
		_, err := client.Call(within(t), d.question(t))
		expect(t, err, failure.ConnectFailed)
		var f *failure.Failure
		if errors.As(err, &f) && strings.Contains(f.Detail, "sentinel") {
			t.Errorf("detail is %q", f.Detail)
		}
	})
}

func TestNoSuchHost(t *testing.T) {
	eachDialect(t, func(t *testing.T, d dialect) {
		_, err := d.client(t, Config{BaseURL: "http://provider.invalid"}).Call(within(t), d.question(t))
		expect(t, err, failure.ConnectFailed)
	})
}

// A request that is too large for the buffers between the two ends is stuck half-way, so it cannot be paid for.
func TestHalfARequestHasNotLeft(t *testing.T) { eachDialect(t, halfARequestHasNotLeft) }

func halfARequestHasNotLeft(t *testing.T, d dialect) {
	ctx, pass := newDeadline(within(t))
	defer pass()
	l := listen(t, func(_ *listener, conn net.Conn) {
		_ = conn.(*net.TCPConn).SetReadBuffer(64 << 10)
		_, _ = io.ReadFull(conn, make([]byte, 64<<10))
		pass()
		<-ctx.Done()
	})
	q := d.question(t)
	q.Text.Message = strings.Repeat("x", 8<<20)
	_, err := d.client(t, Config{BaseURL: l.url}).Call(ctx, q)
	expect(t, err, failure.ConnectFailed)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the cause is %v", errors.Unwrap(err))
	}
}

func TestGivenUpWhileTheProviderWorks(t *testing.T) { eachDialect(t, givenUpWhileTheProviderWorks) }

func givenUpWhileTheProviderWorks(t *testing.T, d dialect) {
	leaseLost := errors.New("lease lost")
	for name, tt := range map[string]struct {
		sends  string // before the call is given up
		end    func(ctx context.Context) (context.Context, context.CancelFunc)
		reason failure.Reason
		cause  error
		raw    string
	}{
		"canceled": {
			"", context.WithCancel, failure.Canceled, context.Canceled, "",
		},
		"canceled for a cause": {
			"", func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancelCause(ctx)
				return ctx, func() { cancel(leaseLost) }
			}, failure.Canceled, leaseLost, "",
		},
		"deadline": {
			"", newDeadline, failure.Timeout, context.DeadlineExceeded, "",
		},
		"deadline in the body": {
			"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n{\"id\"", newDeadline, failure.Timeout, context.DeadlineExceeded, `{"id"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, end := tt.end(within(t))
			t.Cleanup(end)
			l := listen(t, func(l *listener, conn net.Conn) {
				r := bufio.NewReader(conn)
				if !l.read(r) {
					return
				}
				_, _ = io.WriteString(conn, tt.sends)
				end()
				_, _ = r.ReadByte() // until the client hangs up
			})
			q := d.question(t)
			got, err := d.client(t, Config{BaseURL: l.url}).Call(ctx, q)
			expect(t, err, tt.reason)
			if !errors.Is(err, tt.cause) {
				t.Errorf("the cause is %v, want %v", errors.Unwrap(err), tt.cause)
			}
			if !strings.HasPrefix(tt.raw, string(got.Raw)) {
				t.Errorf("raw body is %q, want as much as arrived of %q", got.Raw, tt.raw)
			}
			if n := l.received(q.CallID.String()); n != 1 {
				t.Errorf("%d requests, want 1", n)
			}
		})
	}
}

// newDeadline is a context whose deadline passes when it is told to.
func newDeadline(parent context.Context) (context.Context, context.CancelFunc) {
	c := &deadline{Context: parent, passed: make(chan struct{})}
	return c, sync.OnceFunc(func() { close(c.passed) })
}

type deadline struct {
	context.Context
	passed chan struct{}
}

func (d *deadline) Done() <-chan struct{} { return d.passed }

func (d *deadline) Err() error {
	select {
	case <-d.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// A connection that dies under a request is the case in which HTTP clients repeat requests by themselves.
func TestDyingConnectionsRepeatNothing(t *testing.T) { eachDialect(t, dyingConnectionsRepeatNothing) }

func dyingConnectionsRepeatNothing(t *testing.T, d dialect) {
	for name, handle := range map[string]func(*listener, net.Conn){
		"closed after each response": func(l *listener, conn net.Conn) {
			if l.read(bufio.NewReader(conn)) {
				_, _ = io.WriteString(conn, whole(d.answered))
			}
		},
		"reset after each response": func(l *listener, conn net.Conn) {
			if l.read(bufio.NewReader(conn)) {
				_, _ = io.WriteString(conn, whole(d.answered))
				_ = conn.(*net.TCPConn).SetLinger(0)
			}
		},
		"closed after each second request": func(l *listener, conn net.Conn) {
			r := bufio.NewReader(conn)
			if l.read(r) {
				_, _ = io.WriteString(conn, whole(d.answered))
				l.read(r)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := listen(t, handle)
			o := d.client(t, Config{BaseURL: l.url})
			for range 100 {
				q := d.question(t)
				q.CallID = uuid.New()
				_, err := o.Call(within(t), q)
				received := l.received(q.CallID.String())
				var f *failure.Failure
				switch {
				case received > 1:
					t.Fatalf("%d requests of one call", received)
				case err == nil && received != 1:
					t.Fatal("an answer without a request")
				case errors.As(err, &f) && f.Class == failure.Transient && received != 0:
					t.Fatalf("%s, but the request was received", f.Detail)
				case errors.As(err, &f) && f.Class != failure.Transient && f.Class != failure.Unknown:
					t.Fatalf("failure is %v", f)
				}
			}
		})
	}
}

func TestHTTP2(t *testing.T) { eachDialect(t, overHTTP2) }

func overHTTP2(t *testing.T, d dialect) {
	s := &server{}
	s.Server = httptest.NewUnstartedServer(s.recording(reply(200, d.answered)))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	got, err := d.client(t, Config{BaseURL: s.URL, RootCAs: roots}).Call(within(t), d.question(t))
	if err != nil || got.Content != answer {
		t.Fatalf("response is %+v, %v", got, err)
	}
	if r := s.received(); len(r) != 1 || r[0].proto != "HTTP/2.0" {
		t.Errorf("received %+v", r)
	}
}

// HTTP/2 tells which requests were not looked at, and the transport would repeat those by itself, and also some
// that may have been served. One stream for each call is all that may open.
func TestHTTP2EndsOfStreams(t *testing.T) { eachDialect(t, endsOfStreams) }

func endsOfStreams(t *testing.T, d dialect) {
	for name, tt := range map[string]struct {
		end    func(f *http2.Framer, stream uint32) error
		reason failure.Reason
	}{
		"refused": {
			func(f *http2.Framer, id uint32) error { return f.WriteRSTStream(id, http2.ErrCodeRefusedStream) }, failure.ConnectFailed,
		},
		"going away before it": {
			func(f *http2.Framer, _ uint32) error { return f.WriteGoAway(0, http2.ErrCodeNo, nil) }, failure.ConnectFailed,
		},
		"protocol error": {
			func(f *http2.Framer, id uint32) error { return f.WriteRSTStream(id, http2.ErrCodeProtocol) }, failure.ConnectionLost,
		},
		"internal error": {
			func(f *http2.Framer, id uint32) error { return f.WriteRSTStream(id, http2.ErrCodeInternal) }, failure.ConnectionLost,
		},
		"canceled by the server": {
			func(f *http2.Framer, id uint32) error { return f.WriteRSTStream(id, http2.ErrCodeCancel) }, failure.ConnectionLost,
		},
		"connection closed": {
			func(*http2.Framer, uint32) error { return io.EOF }, failure.ConnectionLost,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			certificate := httptest.NewUnstartedServer(nil)
			certificate.StartTLS()
			certificate.Close()
			config := certificate.TLS.Clone()
			config.NextProtos = []string{"h2"}
			roots := x509.NewCertPool()
			roots.AddCert(certificate.Certificate())

			l := listen(t, func(l *listener, conn net.Conn) {
				secure := tls.Server(conn, config)
				if _, err := io.ReadFull(secure, make([]byte, len(http2.ClientPreface))); err != nil {
					return
				}
				framer := http2.NewFramer(secure, secure)
				if framer.WriteSettings() != nil {
					return
				}
				for {
					frame, err := framer.ReadFrame()
					if err != nil {
						return
					}
					switch frame := frame.(type) {
					case *http2.SettingsFrame:
						if !frame.IsAck() && framer.WriteSettingsAck() != nil {
							return
						}
					case *http2.HeadersFrame:
						l.count("streams")
					case *http2.DataFrame:
						if frame.StreamEnded() && tt.end(framer, frame.StreamID) != nil {
							return
						}
					}
				}
			})
			o := d.client(t, Config{BaseURL: "https" + l.url[4:], RootCAs: roots})
			_, err := o.Call(within(t), d.question(t))
			expect(t, err, tt.reason)
			o.Close()
			if n := l.received("streams"); n != 1 {
				t.Errorf("%d streams, want 1", n)
			}
		})
	}
}
