package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
)

// rest is what stands in front of the gateway: everything that must be known before JSON is decoded.
type rest struct {
	gatekeeper
	gateway  *gateway
	next     http.Handler
	maxBytes int64
	// writeTimeout is how long an answer may take from the request on, or each message of a stream.
	writeTimeout time.Duration
}

func (h *rest) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	defer func() {
		switch v := recover(); v {
		case nil:
		case http.ErrAbortHandler:
			panic(v)
		default:
			h.gateway.refuse(ctx, w, r, internal(panicked(v)), 0)
		}
	}()
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff") // an answer holds what a customer wrote
	if _, err := h.authenticate(ctx, r.Header.Values("Authorization"), verified(r.TLS)); err != nil {
		h.refuse(w, r, err)
		return
	}
	query, err := readable(r)
	if err != nil {
		h.refuse(w, r, err)
		return
	}
	if err := h.bufferBody(w, r); err != nil {
		h.refuse(w, r, err)
		return
	}
	out := &patientWriter{ResponseWriter: w, conn: http.NewResponseController(w), timeout: h.writeTimeout}
	call := &restCall{query: query, out: out}
	h.next.ServeHTTP(out, r.WithContext(context.WithValue(ctx, restCallKey{}, call)))
	out.end()
}

func (h *rest) refuse(w http.ResponseWriter, r *http.Request, err error) {
	var e *Error
	if !errors.As(err, &e) {
		e = internal(err)
	}
	h.gateway.refuse(r.Context(), w, r, e, 0)
}

// readable refuses a path or query that is not UTF-8: the gateway would fail to send it on, as an internal error.
func readable(r *http.Request) (url.Values, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, &Error{Code: codes.InvalidArgument, Reason: ReasonMalformedRequest, Message: "the query is malformed"}
	}
	valid := utf8.ValidString(r.URL.Path)
	for key, values := range query {
		valid = valid && utf8.ValidString(key)
		for _, v := range values {
			valid = valid && utf8.ValidString(v)
		}
	}
	if !valid {
		return nil, &Error{
			Code: codes.InvalidArgument, Reason: ReasonMalformedRequest, Message: "the path and the query must be UTF-8",
		}
	}
	return query, nil
}

// drainFactor times the limit is read of a body that is too large, to be able to say so.
const drainFactor = 8

// bufferBody reads the body before anything is decoded, so that its size is known, and leaves it readable again.
func (h *rest) bufferBody(w http.ResponseWriter, r *http.Request) error {
	tooLarge := &Error{
		Code: codes.InvalidArgument, Reason: ReasonRequestTooLarge,
		Message: fmt.Sprintf("the body is larger than %d bytes", h.maxBytes),
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, h.maxBytes+1))
	switch {
	case err != nil:
		return &Error{
			Code: codes.InvalidArgument, Reason: ReasonMalformedRequest, Message: "the body ends too early", Cause: err,
		}
	case int64(len(body)) > h.maxBytes:
		// A client that is still sending when its connection is closed may never see why. So what is a few times too
		// large is read to its end; who sends more, or never ends, is cut off.
		if _, err := io.CopyN(io.Discard, r.Body, drainFactor*h.maxBytes); !errors.Is(err, io.EOF) {
			w.Header().Set("Connection", "close")
		}
		return tooLarge
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if len(body) == 0 && r.Method != http.MethodPost && r.Method != http.MethodPut && r.Method != http.MethodPatch {
		return nil
	}
	return jsonOnly(r.Header)
}

// jsonOnly refuses other media types instead of guessing. It also keeps away a browser's form, which can be sent
// across sites without asking.
func jsonOnly(header http.Header) error {
	refusal := &Error{
		Code: codes.InvalidArgument, Reason: ReasonUnsupportedMediaType,
		Message: "the body must be JSON: send it with Content-Type: application/json",
	}
	if encoding := header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		refusal.Message = "the body must not be compressed"
		return refusal
	}
	types := header.Values("Content-Type")
	if len(types) != 1 {
		return refusal
	}
	mediaType, parameters, err := mime.ParseMediaType(types[0])
	if err != nil || mediaType != "application/json" {
		return refusal
	}
	if charset, ok := parameters["charset"]; ok && !strings.EqualFold(charset, "utf-8") {
		refusal.Message = "the body must be UTF-8"
		return refusal
	}
	return nil
}
