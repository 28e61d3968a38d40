package failure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"regexp"
	"time"
)

// Exchange is what became of one HTTP request to a provider.
type Exchange struct {
	Err    error       // why there is no response, or only a part of one
	Sent   bool        // the whole request was written, or may have been
	Status int         // 0 when no response came
	Header http.Header // may be nil
	Body   []byte      // as much as was read
	Now    time.Time   // when the response came, for a Retry-After that is a date; zero ignores such dates
}

// Classify says what went wrong, or returns nil when a response of status 2xx came whole and reports no error. It
// understands the error bodies of OpenAI and of what speaks its protocol, and is not thrown by any others.
func Classify(x Exchange) *Failure {
	var reason Reason
	var detail string
	switch {
	case x.Err != nil && x.Status < 400: // a status of 4xx or 5xx says enough without the rest of its body
		reason, detail = broken(x), x.Err.Error()
	case x.Status >= 200 && x.Status < 300:
		reason, detail = accepted(x.Body)
	default:
		w, _ := parseBody(x.Body)
		reason, detail = byStatus(x.Status, w), w.text
	}
	if reason == "" {
		return nil
	}
	f := New(reason, detail, x.Err)
	f.HTTPStatus = x.Status
	f.RetryAfter = retryAfter(x.Header, x.Now)
	return f
}

// broken is the reason of an exchange that has no whole response. Once the request may have left, it may have been
// served and billed; a response that has begun proves that it left.
func broken(x Exchange) Reason {
	sent := x.Sent || x.Status != 0
	canceled := errors.Is(x.Err, context.Canceled)
	switch {
	case !sent && canceled:
		return NotSent
	case !sent:
		return ConnectFailed
	case timedOut(x.Err):
		return Timeout
	case canceled:
		return Canceled
	}
	return ConnectionLost
}

// timedOut asks for the sentinels too: the first error of the chain that has a Timeout method may answer for itself
// alone.
func timedOut(err error) bool {
	var netErr net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.As(err, &netErr) && netErr.Timeout()
}

// accepted is the reason why a response of status 2xx is no usable one; empty when it is.
func accepted(body []byte) (reason Reason, detail string) {
	w, ok := parseBody(body)
	switch trimmed := bytes.TrimSpace(body); {
	case ok && !w.isError:
		return "", ""
	case ok:
		// The error came after the status line was sent; its own code is the status it would have had.
		status := w.status
		if status == 0 {
			status = http.StatusInternalServerError
		}
		return byStatus(status, w), w.text
	case len(trimmed) == 0 || trimmed[0] == '{':
		// Without a length in the header, a body that was cut ends like any other.
		return ConnectionLost, fmt.Sprintf("the response ends after %d bytes", len(body))
	}
	return MalformedResponse, w.text
}

// byStatus is the reason of an error response. The provider's machine words come before the status, which gateways
// choose freely, but not before one that leaves open what became of the request.
func byStatus(status int, w wireError) Reason {
	switch status {
	case http.StatusRequestTimeout, http.StatusGatewayTimeout, statusClientClosed, statusOriginTimeout:
		return Timeout
	case http.StatusConflict:
		return Conflict
	case http.StatusTooManyRequests:
		// One request above the limit of a whole minute: it would be throttled for ever, and its route with it.
		if overRateLimit.MatchString(w.text) {
			return ContextTooLong
		}
	}
	if reason := byWord(w.words); reason != "" {
		return reason
	}
	if reason := byProse(status, w.text); reason != "" {
		return reason
	}
	switch status {
	case http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusNotAcceptable,
		http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return BadRequest
	case http.StatusUnauthorized, http.StatusProxyAuthRequired:
		return Unauthorized
	case http.StatusPaymentRequired:
		return QuotaExhausted
	case http.StatusForbidden, http.StatusUnavailableForLegalReasons:
		return Forbidden
	case http.StatusNotFound, http.StatusGone:
		return NotFound
	case http.StatusRequestEntityTooLarge:
		return ContextTooLong
	case http.StatusTooManyRequests:
		return RateLimited
	case http.StatusServiceUnavailable, statusOverloaded:
		return Overloaded
	}
	if status >= 500 {
		return ServerError
	}
	return MalformedResponse
}

// Statuses of providers and gateways that net/http has no names for.
const (
	statusClientClosed  = 499 // nginx: the client went away while the request was served
	statusOriginTimeout = 524 // Cloudflare: connected, but no response in time
	statusOverloaded    = 529 // Anthropic
)

// prose are the texts that tell apart what one status stands for, where providers send no word or one of many. They
// are believed only with the statuses that are sent for such causes, so that an error that quotes the ticket cannot
// be read as another.
var prose = []struct {
	reason   Reason
	statuses []int
	pattern  *regexp.Regexp
}{
	{ContextTooLong, []int{400, 422, 500}, regexp.MustCompile(`(?i)maximum context length|maximum model length` +
		`|(exceed|larger than|longer than|fit)[^.]{0,60}context (length|window|size)` +
		`|context (length|window|size)[^.]{0,40}exceed` +
		`|(prompt|input)\b[^.]{0,60} too (long|large)` +
		`|exceeds the maximum number of tokens`)},
	{ContentFilter, []int{400, 403, 422}, regexp.MustCompile(`(?i)(input|prompt|request|message|content)\b[^.]{0,20} flagged` +
		`|content[ -]filter|content (management )?policy|safety (system|policy|filter)`)},
	{QuotaExhausted, []int{400, 403, 429}, regexp.MustCompile(`(?i)exceeded your current quota|credit balance is too low` +
		`|insufficient (credit|balance|funds|quota)|(billing|spend|spending) (hard )?limit`)},
	{ModelNotFound, []int{400, 404, 410}, regexp.MustCompile(`(?i)\bmodel\b.*(not found|not exist|deprecated)`)},
}

var overRateLimit = regexp.MustCompile(`(?is)request too large.*reduced? `)

func byProse(status int, text string) Reason {
	for _, p := range prose {
		for _, s := range p.statuses {
			if s == status && p.pattern.MatchString(text) {
				return p.reason
			}
		}
	}
	return ""
}
