// Package reprocess evaluates stored tickets under another version.
//
// A job walks over a range of creation times in chunks, in the order of creation, and gives each content work on the bulk
// lane that has neither work nor an answer under the version. The key of the work is unique, so that nothing is evaluated
// twice by however many jobs, beside however many creations. Chunks and what they come to are one transaction each.
//
// No ticket is missed whose transaction commits late: a horizon divides the tickets for ever into those whose writers
// were over when the job began, which are walked over at once, and the others, which are walked over when nobody can add
// to them any more.
package reprocess

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/pkg/jobdb"
	"github.com/evalonce/evalonce/pkg/ticketdb"
)

// Spec is what was asked for. It is stored: fields may be added, and none may change its meaning.
type Spec struct {
	From          time.Time        `json:"created_from"`
	To            time.Time        `json:"created_to"`
	Version       string           `json:"version"`
	ClientID      string           `json:"client_id,omitempty"`
	Department    string           `json:"department,omitempty"`
	States        []string         `json:"states,omitempty"`
	OnlyMissing   bool             `json:"only_missing,omitempty"`
	Limit         int64            `json:"limit,omitempty"`
	SpreadSeconds float64          `json:"spread_seconds"`
	MaxCostUSD    *decimal.Decimal `json:"max_cost_usd,omitempty"`
	// FilterVersion is the version that was active when the job was made, which States and Department are about.
	FilterVersion string `json:"filter_version,omitempty"`
	// Within becomes From, by the database's clock.
	Within time.Duration `json:"-"`
}

// SpecOf is what a job was asked for.
func SpecOf(j jobdb.Job) (Spec, error) {
	var s Spec
	if err := json.Unmarshal(j.Spec, &s); err != nil {
		return Spec{}, fmt.Errorf("decode the spec of job %s: %w", j.ID, err)
	}
	return s, nil
}

// Spread is the time over which the evaluations become due.
func (s Spec) Spread() time.Duration { return time.Duration(s.SpreadSeconds * float64(time.Second)) }

func (s Spec) tickets(filterDigest []byte) ticketdb.Range {
	return ticketdb.Range{
		From: s.From, To: s.To, ClientID: s.ClientID, Department: s.Department, States: s.States, OnlyMissing: s.OnlyMissing, Digest: filterDigest,
	}
}
