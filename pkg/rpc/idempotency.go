package rpc

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

const (
	idempotencyKeyHeader     = "idempotency-key"
	idempotentReplayedHeader = "idempotent-replayed"
)

// IdempotencyKey is the key of a call that creates something: the request's own field, or the Idempotency-Key
// header where that is empty; "" when the caller gives none. A header may be a structured-field string or the
// bare key: "k" and k are one key. Two headers, or a header that differs from the field, name two intents in
// one call and are refused, and so is a key that is not 1 to 255 visible ASCII characters. field is the name of
// the request's field.
func IdempotencyKey(ctx context.Context, field, value string) (string, *Violation) {
	if value != "" && !ValidKey(value) {
		return "", &Violation{Field: field, Reason: "MALFORMED", Description: keyForm}
	}
	headers := metadata.ValueFromIncomingContext(ctx, idempotencyKeyHeader)
	if len(headers) == 0 {
		return value, nil
	}
	if len(headers) > 1 {
		return "", &Violation{Field: idempotencyKeyHeader, Reason: "REPEATED", Description: "given more than once"}
	}
	key, ok := parseKeyHeader(headers[0])
	switch {
	case !ok:
		return "", &Violation{Field: idempotencyKeyHeader, Reason: "MALFORMED", Description: keyForm}
	case value != "" && value != key:
		return "", &Violation{
			Field: idempotencyKeyHeader, Reason: "CONFLICT", Description: "differs from " + field + ": one call has one key",
		}
	}
	return key, nil
}

// HasIdempotencyKeyHeader reports whether the call carries the header, whatever its value.
func HasIdempotencyKeyHeader(ctx context.Context) bool {
	return len(metadata.ValueFromIncomingContext(ctx, idempotencyKeyHeader)) > 0
}

const keyForm = "must be 1 to 255 visible ASCII characters"

// ValidKey reports whether key is 1 to 255 visible ASCII characters.
func ValidKey(key string) bool {
	if key == "" || len(key) > 255 {
		return false
	}
	for i := range len(key) {
		if key[i] < 0x21 || key[i] > 0x7e {
			return false
		}
	}
	return true
}

// parseKeyHeader reads a structured-field string (RFC 8941, section 3.3.3) or a bare key.
func parseKeyHeader(header string) (string, bool) {
	header = strings.Trim(header, " \t")
	if !strings.HasPrefix(header, `"`) {
		return header, ValidKey(header)
	}
	var key strings.Builder
	for i := 1; i < len(header); i++ {
		switch c := header[i]; {
		case c == '"':
			return key.String(), i == len(header)-1 && ValidKey(key.String())
		case c != '\\':
			key.WriteByte(c)
		case i+1 < len(header) && (header[i+1] == '"' || header[i+1] == '\\'):
			i++
			key.WriteByte(header[i])
		default:
			return "", false
		}
	}
	return "", false
}

// MarkReplayed tells the caller that the response is the first one again: Idempotent-Replayed: true, as gRPC
// header metadata and as an HTTP header.
func MarkReplayed(ctx context.Context) error {
	return grpc.SetHeader(ctx, metadata.Pairs(idempotentReplayedHeader, "true"))
}
