package providersim

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// Fingerprint is the SHA-256 of a ticket's text: what the ledger knows of it.
type Fingerprint [sha256.Size]byte

// FingerprintOf returns the fingerprint under which the ledger counts a ticket with this subject and message.
func FingerprintOf(subject, message string) Fingerprint {
	return sha256.Sum256([]byte("Subject: " + subject + "\n\nMessage:\n" + message))
}

func (f Fingerprint) String() string { return hex.EncodeToString(f[:]) }

// MarshalText writes 64 lower-case hex digits.
func (f Fingerprint) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (f *Fingerprint) UnmarshalText(text []byte) error {
	if n, err := hex.Decode(f[:], text[:min(len(text), hex.EncodedLen(len(f)))]); err != nil || n != len(f) || len(text) != hex.EncodedLen(n) {
		return fmt.Errorf("fingerprint of %d bytes is not 64 hex digits", len(text))
	}
	return nil
}

// ticket is what the simulator found to classify.
type ticket struct {
	text             string // as fingerprinted
	subject, message string
}

func (t ticket) fingerprint() Fingerprint { return sha256.Sum256([]byte(t.text)) }

const (
	beginMark  = "-----BEGIN TICKET "
	endMark    = "-----END TICKET "
	markEnd    = "-----"
	nonceLen   = 32
	subjectTag = "Subject: "
	messageTag = "\n\nMessage:\n"
)

// extractTicket takes the ticket from between its two marks. The nonce of the opening mark decides which
// closing mark counts, so a ticket that quotes such marks cannot cut itself short. Without marks the whole
// text is the ticket.
func extractTicket(text string) ticket {
	inner := text
	if body, ok := between(text); ok {
		inner = body
	}
	t := ticket{text: inner, message: inner}
	if rest, ok := strings.CutPrefix(inner, subjectTag); ok {
		if subject, message, ok := strings.Cut(rest, messageTag); ok {
			t.subject, t.message = subject, message
		}
	}
	return t
}

func between(text string) (string, bool) {
	for offset := 0; ; {
		i := strings.Index(text[offset:], beginMark)
		if i < 0 {
			return "", false
		}
		start := offset + i
		offset = start + len(beginMark)
		if start > 0 && text[start-1] != '\n' {
			continue
		}
		rest := text[offset:]
		if len(rest) < nonceLen || !isHex(rest[:nonceLen]) {
			continue
		}
		nonce := rest[:nonceLen]
		body, ok := strings.CutPrefix(rest[nonceLen:], markEnd+"\n")
		if !ok {
			continue
		}
		end := strings.LastIndex(body, "\n"+endMark+nonce+markEnd)
		if end < 0 {
			continue
		}
		return body[:end], true
	}
}

func isHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
