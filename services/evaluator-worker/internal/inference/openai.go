package inference

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/evalonce/evalonce/services/evaluator-worker/internal/prompt"
)

const (
	defaultBaseURL = "https://api.openai.com/v1"
	callIDHeader   = "X-Client-Request-Id"
	userAgent      = "EvalOnce"
	openaiProvider = "openai"
	tracerName     = "github.com/evalonce/evalonce/services/evaluator-worker/internal/inference"
)

// OpenAIConfig says whom to ask. What is not given here is not taken from the environment either, be it a key,
// an organisation, a header or a proxy.
type OpenAIConfig struct {
	BaseURL  string         // "" is the public API; its query, if any, is sent with every request
	APIKey   string         // "" sends no Authorization
	ProxyURL string         // "" is a direct connection
	RootCAs  *x509.CertPool // nil is the system's

	TracerProvider trace.TracerProvider // nil is the process's
}

// OpenAI speaks the chat completions protocol, with OpenAI or with anyone else who does.
// It is safe for concurrent use.
type OpenAI struct {
	completions openai.ChatCompletionService
	transport   *http.Transport
	server      *url.URL
	secrets     []string
	tracer      trace.Tracer
}

// NewOpenAI checks the configuration; it makes no connection. Its errors do not repeat the values.
func NewOpenAI(c OpenAIConfig) (*OpenAI, error) {
	if c.BaseURL == "" {
		c.BaseURL = defaultBaseURL
	}
	base, err := endpoint(c.BaseURL)
	if err != nil {
		return nil, errors.New("openai base URL: " + err.Error())
	}
	var proxy *url.URL
	if c.ProxyURL != "" {
		if proxy, err = url.Parse(c.ProxyURL); err != nil || proxy.Host == "" {
			return nil, errors.New("openai proxy URL: not a URL")
		}
	}
	if strings.ContainsFunc(c.APIKey, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return nil, errors.New("openai API key: contains white space or characters that no key has")
	}
	if c.TracerProvider == nil {
		c.TracerProvider = otel.GetTracerProvider()
	}

	o := &OpenAI{
		transport: newTransport(proxy, c.RootCAs),
		server:    base,
		secrets:   []string{c.APIKey},
		tracer:    c.TracerProvider.Tracer(tracerName),
	}
	options := []option.RequestOption{
		option.WithBaseURL((&url.URL{Scheme: base.Scheme, Host: base.Host, Path: base.Path, RawPath: base.RawPath}).String()),
		option.WithHTTPClient(&http.Client{
			Transport:     o.transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}),
		option.WithMaxRetries(0),
		option.WithHeader("User-Agent", userAgent),
	}
	if c.APIKey != "" {
		options = append(options, option.WithAPIKey(c.APIKey))
	}
	for name, values := range base.Query() {
		for _, value := range values {
			options = append(options, option.WithQueryAdd(name, value))
			o.secrets = append(o.secrets, value)
		}
	}
	// The service by itself, and not a client of the SDK: only the client reads the environment.
	o.completions = openai.NewChatCompletionService(options...)
	return o, nil
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

// Call makes one request, ended at the latest by ctx. The error is nil when there is an answer to validate, else
// a *failure.Failure; the response carries what arrived in either case.
func (o *OpenAI) Call(ctx context.Context, r Request) (Response, error) {
	ctx, span := o.startSpan(ctx, r.Version)
	defer span.End()

	var x exchange
	var copied []byte
	_, err := o.completions.New(ctx, chatParams(r.Version, prompt.Build(r.Version, r.Text, rand.Reader)),
		option.WithMiddleware(x.do),
		option.WithHeader(callIDHeader, r.CallID.String()),
		option.WithResponseBodyInto(&copied),
	)
	if !x.attempted {
		x.err = scrub(ctx, err)
	}
	response, read, f := x.interpret(readChatCompletion)
	if f != nil {
		f.Detail = withhold(f.Detail, slices.Concat(o.secrets, []string{r.Text.Subject, r.Text.Message, r.Version.Prompt})...)
	}
	describe(span, response, read, f)
	if f != nil {
		return response, f
	}
	return response, nil
}

// Close ends the idle connections. Calls that run are not disturbed.
func (o *OpenAI) Close() { o.transport.CloseIdleConnections() }
