package providersim

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// response is a whole HTTP response.
type response struct {
	status      int
	contentType string
	retryAfter  time.Duration
	header      map[string]string // the last word on headers; an empty value removes one
	body        []byte
}

func jsonResponse(status int, v any) response {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err) // only structs of strings, numbers and lists of them come here
	}
	return response{status: status, contentType: "application/json", body: append(body, '\n')}
}

// errorResponse is the response of an action that fails.
func (a Action) errorResponse(d dialect, c completion) response {
	out := response{status: a.Status}
	if a.Error != "" {
		out = d.failure(a.Error, c)
	}
	if a.Body != "" {
		out.body = []byte(a.Body)
		out.contentType = http.DetectContentType(out.body)
		if json.Valid(out.body) {
			out.contentType = "application/json"
		}
	}
	out.retryAfter = a.RetryAfter
	out.header = a.Headers
	return out
}

func (out response) writeHeaders(h http.Header) {
	if out.contentType != "" {
		h.Set("Content-Type", out.contentType)
	}
	// Always announced, so that a cut body cannot pass for a whole one.
	h.Set("Content-Length", strconv.Itoa(len(out.body)))
	if out.retryAfter > 0 {
		setRetryAfter(h, out.retryAfter)
	}
	for name, value := range out.header {
		if value == "" {
			h.Del(name)
		} else {
			h.Set(name, value)
		}
	}
}

// send ignores a failure to write: it means that the client left.
func send(w http.ResponseWriter, out response) {
	out.writeHeaders(w.Header())
	w.WriteHeader(out.status)
	_, _ = w.Write(out.body)
}

// probe handles a request that is not for an answer: it is authorised, and an outage happens to it too.
func (s *Server) probe(d dialect, answer func(*http.Request) response) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.ledger.addProbe()
		a := s.outageAction()
		if a.Hang != "" && !s.waitAtGate(r.Context(), s.closingNow()) {
			panic(http.ErrAbortHandler)
		}
		switch {
		case a.fails():
			send(w, a.errorResponse(d, completion{model: r.PathValue("model")}))
		case a.Close != "" || a.CutAfterBytes > 0:
			panic(http.ErrAbortHandler)
		case !s.accepts(d.key(r.Header)):
			send(w, d.failure(InvalidAPIKey, completion{}))
		default:
			send(w, answer(r))
		}
	}
}
