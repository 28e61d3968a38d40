// Package content decides which tickets are the same text, and names their evaluations.
//
// Every text is brought to its canonical form in exactly one place, [Canonical]; it is hashed once, and what is
// hashed is what the model is sent. The key of an evaluation is derived from that hash and from the digest of the
// evaluator version, and from nothing else, so that the same text under the same version has the same key
// whoever sent it, whenever.
//
// # Canonical form
//
// The steps, in this order: refuse invalid UTF-8 and NUL; turn CRLF and lone CR into LF; normalise to NFC; trim
// Unicode white space from both ends. No step undoes an earlier one, so the form is idempotent: NFC never makes a CR,
// and trimming leaves a piece of an NFC text, which is NFC. Nor could NFC leave something new to trim: it turns white
// space into other white space alone (U+2000 into U+2002), and nothing else into it.
// NFC is here what golang.org/x/text makes of it: a run of more than thirty combining marks is parted by U+034F.
//
// Zero-width characters are not white space, and are kept: they join emoji and shape words in several scripts.
// Texts that differ by one of them are different texts, with different keys.
//
// # Formats
//
//	content hash = sha256("evalonce/content/1" ‖ len(subject) ‖ subject ‖ len(message) ‖ message)
//	key          = hex(sha256("evalonce/key/1" ‖ content hash ‖ version digest))[:32]
//
// with lengths in bytes, as 8-byte big-endian integers. Both formats are stored, so they never change under their
// names. The second has a twin in the schema, the SQL function evaluation_key; golden vectors hold the two equal.
package content

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

const (
	hashDomain = "evalonce/content/1"
	keyDomain  = "evalonce/key/1"
)

// Hash identifies a canonical text.
type Hash [sha256.Size]byte

// Key identifies one evaluation: one content under one evaluator version. It has 32 lower-case hex digits.
type Key string

// Text is the canonical form of a ticket. Only [Canonical] makes one.
type Text struct{ Subject, Message string }

// Reason is why a text has no canonical form.
type Reason string

// The reasons of [Error]; each completes a sentence that begins with the field.
const (
	InvalidUTF8 Reason = "is not valid UTF-8"
	HasNUL      Reason = "contains a NUL character"
)

// Error says which field was refused, and why. It never repeats the text.
type Error struct {
	Field  string // "subject" or "message"
	Reason Reason
}

func (e *Error) Error() string { return e.Field + " " + string(e.Reason) }

// Canonical brings a ticket to its canonical form, or returns an [*Error] for the first field that has none.
// Whether anything of the text can be seen, and how long it may be, is for the caller to judge.
func Canonical(subject, message string) (Text, error) {
	s, err := canonical("subject", subject)
	if err != nil {
		return Text{}, err
	}
	m, err := canonical("message", message)
	if err != nil {
		return Text{}, err
	}
	return Text{Subject: s, Message: m}, nil
}

func canonical(field, s string) (string, error) {
	if !utf8.ValidString(s) {
		return "", &Error{Field: field, Reason: InvalidUTF8}
	}
	if strings.IndexByte(s, 0) >= 0 {
		return "", &Error{Field: field, Reason: HasNUL}
	}
	if strings.IndexByte(s, '\r') >= 0 {
		s = strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\r", "\n")
	}
	return strings.TrimSpace(norm.NFC.String(s)), nil
}

// Hash identifies the text. The length before each part keeps ("a", "bc") apart from ("ab", "c").
func (t Text) Hash() Hash {
	b := make([]byte, 0, len(hashDomain)+16+len(t.Subject)+len(t.Message))
	b = append(b, hashDomain...)
	b = binary.BigEndian.AppendUint64(b, uint64(len(t.Subject)))
	b = append(b, t.Subject...)
	b = binary.BigEndian.AppendUint64(b, uint64(len(t.Message)))
	b = append(b, t.Message...)
	return sha256.Sum256(b)
}

// KeyOf names the evaluation of the content h under the version with this digest.
func KeyOf(h Hash, digest [32]byte) Key {
	b := make([]byte, 0, len(keyDomain)+len(h)+len(digest))
	b = append(b, keyDomain...)
	b = append(b, h[:]...)
	b = append(b, digest[:]...)
	sum := sha256.Sum256(b)
	return Key(hex.EncodeToString(sum[:16]))
}
