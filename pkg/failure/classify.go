package failure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
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
// understands the error bodies of OpenAI, of Anthropic and of those who speak their protocols, and is not thrown by
// any others.
func Classify(x Exchange) *Failure {
	wait := RetryAfter(x.Header, x.Now)
	var reason Reason
	var detail string
	switch {
	case x.Err != nil && x.Status < 400: // a status of 4xx or 5xx says enough without the rest of its body
		reason, detail = broken(x), x.Err.Error()
	case x.Status >= 200 && x.Status < 300:
		reason, detail = accepted(x.Body, wait > 0)
	default:
		w, _ := parseBody(x.Body)
		reason, detail = byStatus(x.Status, w, wait > 0), w.text
	}
	if reason == "" {
		return nil
	}
	f := New(reason, detail, x.Err)
	f.HTTPStatus = x.Status
	f.RetryAfter = wait
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
func accepted(body []byte, waits bool) (reason Reason, detail string) {
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
		return byStatus(status, w, waits), w.text
	case len(trimmed) == 0 || trimmed[0] == '{':
		// Without a length in the header, a body that was cut ends like any other.
		return ConnectionLost, fmt.Sprintf("the response ends after %d bytes", len(body))
	}
	return MalformedResponse, w.text
}

// byStatus is the reason of an error response: that of the first rule that applies.
func byStatus(status int, w wireError, waits bool) Reason {
	for _, r := range rules {
		if r.applies(status, w, waits) {
			return r.reason
		}
	}
	if status >= 500 {
		return ServerError
	}
	return MalformedResponse
}
