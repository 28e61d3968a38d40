package api

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"math"
	"time"

	"github.com/google/uuid"

	"github.com/evalonce/evalonce/pkg/ticketdb"
)

// A page token is, in URL-safe base64 without padding:
//
//	version (1 byte) ‖ binding (8) ‖ time of creation in microseconds since 1970 (8) ‖ ticket id (16)
//
// Integers are big-endian. The binding is the beginning of a hash of the client and the filter, so that a token
// is of use only where it came from: with another filter it would silently skip tickets. It protects no secret:
// a forged token reaches the caller's own tickets and no others.
const (
	pageTokenVersion = 1
	bindingLength    = 8
	pageTokenLength  = 1 + bindingLength + 8 + 16
)

func encodePageToken(p ticketdb.Position, client string, f ticketdb.ListFilter) string {
	b := make([]byte, 0, pageTokenLength)
	b = append(b, pageTokenVersion)
	b = append(b, binding(client, f)...)
	b = binary.BigEndian.AppendUint64(b, uint64(p.CreatedAt.UnixMicro()))
	b = append(b, p.ID[:]...)
	return base64.RawURLEncoding.EncodeToString(b)
}

// decodePageToken accepts exactly what encodePageToken makes for this client and this filter.
func decodePageToken(token, client string, f ticketdb.ListFilter) (ticketdb.Position, bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(b) != pageTokenLength || b[0] != pageTokenVersion {
		return ticketdb.Position{}, false
	}
	p := ticketdb.Position{
		CreatedAt: time.UnixMicro(int64(binary.BigEndian.Uint64(b[1+bindingLength:]))).UTC(),
		ID:        uuid.UUID(b[pageTokenLength-16:]),
	}
	// Other years are no timestamps of Postgres.
	if year := p.CreatedAt.Year(); year < 1 || year > 9999 {
		return ticketdb.Position{}, false
	}
	// The decoder tolerates line breaks within.
	return p, encodePageToken(p, client, f) == token
}

func binding(client string, f ticketdb.ListFilter) []byte {
	b := []byte("evalonce/list-tickets/1")
	for _, part := range []string{client, string(f.State), f.Department} {
		b = binary.BigEndian.AppendUint64(b, uint64(len(part)))
		b = append(b, part...)
	}
	urgency := math.NaN() // no filter: a value that no filter has
	if f.MinUrgency != nil {
		urgency = *f.MinUrgency
	}
	b = binary.BigEndian.AppendUint64(b, math.Float64bits(urgency))
	for _, t := range []time.Time{f.From, f.To} {
		b = binary.BigEndian.AppendUint64(b, uint64(t.UnixMicro()))
	}
	sum := sha256.Sum256(b)
	return sum[:bindingLength]
}
