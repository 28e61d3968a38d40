package api

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"github.com/evalonce/evalonce/pkg/rpc"
)

const (
	defaultPage = 50
	maxPage     = 1000
)

// paged is a request for a page of a list.
type paged interface {
	proto.Message
	GetPageSize() int32
	GetPageToken() string
}

// A page token is, in URL-safe base64 without padding: a version (1 byte) ‖ a binding (8) ‖ the position after which the
// page begins. The binding is the beginning of a hash of the list's name and filter, so that a token is of use only where
// it came from: elsewhere it would silently skip rows. It protects no secret.
const (
	pageTokenVersion = 1
	bindingLength    = 8
)

// pageOf is what a request asks for: the position that nextPage was given, "" for the first page, and the number of rows.
// filter are the fields that select rows.
func pageOf(r paged, filter ...string) (after string, most int, violations []rpc.Violation) {
	most = defaultPage
	switch size := r.GetPageSize(); {
	case size < 0:
		violations = append(violations, rpc.Violation{Field: "page_size", Reason: "OUT_OF_RANGE", Description: "must not be negative"})
	case size > 0:
		most = min(int(size), maxPage)
	}
	if r.GetPageToken() == "" {
		return "", most, violations
	}
	token, err := base64.RawURLEncoding.Strict().DecodeString(r.GetPageToken())
	head := pageHead(r, filter)
	// The decoder tolerates line breaks within.
	if err != nil || len(token) <= len(head) || !bytes.HasPrefix(token, head) || base64.RawURLEncoding.EncodeToString(token) != r.GetPageToken() {
		return "", most, append(violations, foreignToken())
	}
	return string(token[len(head):]), most, violations
}

func foreignToken() rpc.Violation {
	return rpc.Violation{Field: "page_token", Reason: "MALFORMED", Description: "must be the next_page_token of a page with the same filter"}
}

// numberedPageOf is pageOf for lists whose positions are numbers; 0 stands for the first page.
func numberedPageOf(r paged, filter ...string) (after int64, most int, violations []rpc.Violation) {
	position, most, violations := pageOf(r, filter...)
	if position == "" {
		return 0, most, violations
	}
	after, err := strconv.ParseInt(position, 10, 64)
	if err != nil {
		violations = append(violations, foreignToken())
	}
	return after, most, violations
}

// identifiedPageOf is pageOf for lists whose positions are identifiers, from the highest down; uuid.Max stands for the first
// page.
func identifiedPageOf(r paged, filter ...string) (before uuid.UUID, most int, violations []rpc.Violation) {
	position, most, violations := pageOf(r, filter...)
	if position == "" {
		return uuid.Max, most, violations
	}
	before, err := uuid.Parse(position)
	if err != nil {
		violations = append(violations, foreignToken())
	}
	return before, most, violations
}

// nextPage is the token of the page that begins after a position.
func nextPage(r paged, position string, filter ...string) string {
	return base64.RawURLEncoding.EncodeToString(append(pageHead(r, filter), position...))
}

func pageHead(r paged, filter []string) []byte {
	b := appendText(nil, fmt.Sprintf("evalonce/page/%s", r.ProtoReflect().Descriptor().FullName()))
	for _, part := range filter {
		b = appendText(b, part)
	}
	sum := sha256.Sum256(b)
	return append([]byte{pageTokenVersion}, sum[:bindingLength]...)
}
