package inference

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/evalonce/evalonce/services/evaluator-worker/internal/prompt"
)

const (
	callIDHeader = "X-Client-Request-Id"
	userAgent    = "EvalOnce"
	tracerName   = "github.com/evalonce/evalonce/services/evaluator-worker/internal/inference"
)

// Config says whom to ask. What is not given here is not taken from the environment either, be it a key, an
// organisation, a header or a proxy.
type Config struct {
	BaseURL  string         // "" is the provider's public API; its query, if any, is sent with every request
	APIKey   string         // "" sends none
	ProxyURL string         // "" is a direct connection
	RootCAs  *x509.CertPool // nil is the system's

	TracerProvider trace.TracerProvider // nil is the process's
}

// Client asks one provider in one protocol. It is safe for concurrent use.
type Client struct {
	protocol  protocol
	send      func(context.Context, Request, prompt.Prompt, *exchange) error // by the SDK, whose innermost step is the exchange's
	stored    func(context.Context, uuid.UUID) (*http.Request, error)        // asks for a call's stored response; nil where none is kept
	transport *http.Transport
	server    *url.URL
	secrets   []string
	tracer    trace.Tracer
}

// newClient checks the configuration; it makes no connection. Its errors do not repeat the values.
func newClient(p protocol, publicAPI string, c Config) (*Client, error) {
	refuse := func(setting, problem string) (*Client, error) {
		return nil, fmt.Errorf("%s %s: %s", p.company, setting, problem)
	}
	if c.BaseURL == "" {
		c.BaseURL = publicAPI
	}
	base, err := endpoint(c.BaseURL)
	if err != nil {
		return refuse("base URL", err.Error())
	}
	var proxy *url.URL
	if c.ProxyURL != "" {
		if proxy, err = url.Parse(c.ProxyURL); err != nil || proxy.Host == "" {
			return refuse("proxy URL", "not a URL")
		}
	}
	if strings.ContainsFunc(c.APIKey, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return refuse("API key", "contains white space or characters that no key has")
	}
	if c.TracerProvider == nil {
		c.TracerProvider = otel.GetTracerProvider()
	}
	secrets := []string{c.APIKey}
	for _, values := range base.Query() {
		secrets = append(secrets, values...)
	}
	return &Client{
		protocol: p, transport: newTransport(proxy, c.RootCAs), server: base, secrets: secrets,
		tracer: c.TracerProvider.Tracer(tracerName),
	}, nil
}

func endpoint(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return nil, errors.New("not a URL")
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return nil, errors.New("needs http:// or https:// and a host")
	case u.User != nil, u.Fragment != "":
		return nil, errors.New("must not have user information or a fragment")
	}
	return u, nil
}

// base is the server's URL without its query, which SDKs would drop.
func (c *Client) base() string {
	return (&url.URL{Scheme: c.server.Scheme, Host: c.server.Host, Path: c.server.Path, RawPath: c.server.RawPath}).String()
}

// http follows no redirect: it would be another request.
func (c *Client) http() *http.Client {
	return &http.Client{
		Transport:     c.transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Call makes one request, ended at the latest by ctx. The error is nil when there is an answer to validate, else
// a *failure.Failure; the response carries what arrived in either case.
func (c *Client) Call(ctx context.Context, r Request) (Response, error) {
	ctx, span := c.startSpan(ctx, r.Version)
	defer span.End()

	var x exchange
	err := c.send(ctx, r, prompt.Build(r.Version, r.Text, rand.Reader), &x)
	if !x.attempted {
		x.err = scrub(ctx, err)
	}
	response, read, f := x.interpret(c.protocol)
	if f != nil {
		f.Detail = withhold(f.Detail, slices.Concat(c.secrets, []string{r.Text.Subject, r.Text.Message, r.Version.Prompt})...)
	}
	describe(span, r.Version, response, read, f)
	if f != nil {
		return response, f
	}
	return response, nil
}

// Close ends the idle connections. Calls that run are not disturbed.
func (c *Client) Close() { c.transport.CloseIdleConnections() }
