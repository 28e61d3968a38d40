package api

import (
	"crypto/sha256"
	"encoding/binary"
)

// fingerprint tells whether two requests with one idempotency key ask for the same. It is over the decoded
// request, never over JSON or protobuf bytes, which say one thing in many ways; and over the text as it was sent,
// because that is what is stored. It is stored itself: another form needs another name.
func fingerprint(externalID, subject, message string) [sha256.Size]byte {
	const name = "evalonce/create-ticket/1"
	b := make([]byte, 0, len(name)+3*8+len(externalID)+len(subject)+len(message))
	b = append(b, name...)
	for _, part := range []string{externalID, subject, message} {
		b = binary.BigEndian.AppendUint64(b, uint64(len(part)))
		b = append(b, part...)
	}
	return sha256.Sum256(b)
}
