package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"code.dny.dev/ssrf"
	"github.com/google/uuid"

	"github.com/evalonce/evalonce/pkg/failure"
)

// Reason is what an attempt failed for. It is all that is kept of it beside the status: texts of errors have URLs in
// them, and those of responses are the receiver's.
type Reason string

// The reasons.
const (
	BadStatus     Reason = "status"   // neither 2xx nor one of the next two
	Redirected    Reason = "redirect" // 3xx, which is not followed
	Gone          Reason = "gone"     // 410
	TimedOut      Reason = "timeout"
	NoName        Reason = "dns"
	AddressDenied Reason = "address_denied" // what the name stands for now is no address of the public Internet
	SchemeDenied  Reason = "scheme_denied"
	NotConnected  Reason = "connect"
	BadTLS        Reason = "tls"
	Broken        Reason = "connection_lost"
	NoSecret      Reason = "secret_unreadable" // the operator's to mend
	Stopped       Reason = "stopped"           // by this process
)

// Attempt is what became of one request.
type Attempt struct {
	Status     int // 0 where there was no response
	Reason     Reason
	RetryAfter time.Duration // that the response asked for
}

// Delivered reports whether the receiver has accepted the delivery.
func (a Attempt) Delivered() bool { return a.Reason == "" }

// ClientOptions set up a client.
type ClientOptions struct {
	AllowHTTP bool           // without TLS
	Allow     []netip.Prefix // networks that are open although they are no public ones
	Timeout   time.Duration  // of an attempt, from the name's resolution to the end of the response
	Resolver  *net.Resolver  // the system's when nil
	RootCAs   *x509.CertPool // the system's when nil
}

// Timeout of an attempt.
const Timeout = 15 * time.Second

const (
	dialTimeout = 5 * time.Second
	// responseMost is what is read of a response, so that its connection can be used again.
	responseMost = 4 << 10
	headerMost   = 16 << 10
	idleTimeout  = 30 * time.Second
	idlePerHost  = 4
	userAgent    = "EvalOnce-Webhooks/1"
)

// Client sends deliveries to where clients want them, and nowhere else: addresses are judged when they are dialed, after
// the name was resolved, and only those of the public Internet, or of networks that the operator names, are connected to.
// It follows no redirect, and takes no proxy from the environment.
type Client struct {
	http      *http.Client
	allowHTTP bool
	timeout   time.Duration
	now       func() time.Time
}

// NewClient makes a client.
func NewClient(o ClientOptions) *Client {
	guard := newGuard(o.Allow)
	dialer := &net.Dialer{Timeout: dialTimeout, Control: guard.Safe, Resolver: o.Resolver}
	return &Client{
		allowHTTP: o.AllowHTTP, timeout: o.Timeout, now: time.Now,
		http: &http.Client{
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport: &http.Transport{
				Proxy: nil, DialContext: dialer.DialContext, TLSHandshakeTimeout: dialTimeout, ForceAttemptHTTP2: true,
				TLSClientConfig:    &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: o.RootCAs},
				DisableCompression: true, MaxResponseHeaderBytes: headerMost,
				MaxIdleConnsPerHost: idlePerHost, IdleConnTimeout: idleTimeout,
			},
		},
	}
}

// newGuard judges addresses: it denies all that is special or not global, and opens what is allowed in particular.
func newGuard(allow []netip.Prefix) *ssrf.Guardian {
	var v4, v6 []netip.Prefix
	for _, p := range allow {
		if p.Addr().Is4() {
			v4 = append(v4, p)
		} else {
			v6 = append(v6, p)
		}
	}
	return ssrf.New(ssrf.WithAnyPort(), ssrf.WithAllowedV4Prefixes(v4...), ssrf.WithAllowedV6Prefixes(v6...))
}

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Message is a delivery as it is sent.
type Message struct {
	ID      uuid.UUID
	URL     string
	Body    []byte
	Secrets [][]byte // that sign it
}

// Send makes one attempt.
func (c *Client) Send(ctx context.Context, m Message) Attempt {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, m.URL, bytes.NewReader(m.Body))
	if err != nil || r.URL.User != nil || r.URL.Scheme != "https" && (r.URL.Scheme != "http" || !c.allowHTTP) {
		return Attempt{Reason: SchemeDenied}
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", userAgent)
	sign(r.Header, m.ID, c.now(), m.Body, m.Secrets)
	resp, err := c.http.Do(r)
	if err != nil {
		return Attempt{Reason: reasonOf(ctx, err)}
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.CopyN(io.Discard, resp.Body, responseMost) // the status has said it all
	a := Attempt{Status: resp.StatusCode}
	switch {
	case resp.StatusCode/100 == 2:
		return a
	case resp.StatusCode/100 == 3:
		a.Reason = Redirected
	case resp.StatusCode == http.StatusGone:
		a.Reason = Gone
	default:
		a.Reason = BadStatus
	}
	a.RetryAfter = failure.RetryAfter(resp.Header, c.now())
	return a
}

func reasonOf(ctx context.Context, err error) Reason {
	var dns *net.DNSError
	var unknownCA x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var verify *tls.CertificateVerificationError
	var alert tls.AlertError
	var record tls.RecordHeaderError
	var op *net.OpError
	var timeout net.Error
	switch {
	case errors.Is(err, ssrf.ErrProhibitedIP), errors.Is(err, ssrf.ErrProhibitedNetwork), errors.Is(err, ssrf.ErrInvalidHostPort):
		return AddressDenied
	case errors.Is(ctx.Err(), context.Canceled):
		return Stopped
	case errors.As(err, &dns):
		return NoName
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return TimedOut
	case errors.As(err, &unknownCA), errors.As(err, &host), errors.As(err, &invalid), errors.As(err, &verify), errors.As(err, &alert), errors.As(err, &record):
		return BadTLS
	case errors.As(err, &op) && op.Op == "dial":
		return NotConnected
	}
	return Broken
}

// CheckURL returns what is wrong with an endpoint's URL, for its client; empty when nothing is. Where it leads is judged
// when it is dialed.
func CheckURL(raw string, allowHTTP bool) string {
	u, err := url.Parse(raw)
	switch {
	case len(raw) > urlMost:
		return "must have at most 2048 bytes"
	case err != nil || u.Opaque != "" || u.Hostname() == "":
		return "must be an absolute URL"
	case !strings.HasPrefix(raw, "https://") && (!strings.HasPrefix(raw, "http://") || !allowHTTP):
		return "must begin with https://"
	case !validPort(u.Port()):
		return "must have a port from 1 to 65535, or none"
	case u.User != nil:
		return "must have no user and no password"
	case u.Fragment != "":
		return "must have no fragment"
	}
	return ""
}

const urlMost = 2048

func validPort(port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return port == "" || err == nil && n > 0
}
