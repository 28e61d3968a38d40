package main

import (
	"path/filepath"
	"testing"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/ticketfile"
)

// The demo shows what deduplication saves, and that the variants of one text that people really send are one text.
func TestDemoTickets(t *testing.T) {
	t.Parallel()
	f, err := ticketfile.Open(filepath.Join("..", "..", "tickets", "demo.jsonl"), ticketfile.TruthColumn)
	if err != nil {
		t.Fatal(err)
	}
	asSent, distinct, ids := map[[2]string]bool{}, map[content.Hash]string{}, map[string]bool{}
	for _, ticket := range f.Tickets {
		text, err := content.Canonical(ticket.Subject, ticket.Message)
		if err != nil {
			t.Fatalf("line %d: %v", ticket.Line, err)
		}
		if truth, known := distinct[text.Hash()]; known && truth != ticket.Truth {
			t.Errorf("line %d: %s, and %s for the same content", ticket.Line, ticket.Truth, truth)
		}
		distinct[text.Hash()] = ticket.Truth
		asSent[[2]string{ticket.Subject, ticket.Message}] = true
		if ids[ticket.ExternalID] {
			t.Errorf("line %d: external id %s stands there twice", ticket.Line, ticket.ExternalID)
		}
		ids[ticket.ExternalID] = true
		if ticket.Truth == "" {
			t.Errorf("line %d: no department", ticket.Line)
		}
	}
	share := 1 - float64(len(distinct))/float64(len(f.Tickets))
	if len(f.Tickets) < 400 || share < 0.1 || share > 0.15 {
		t.Errorf("%d tickets, %.1f %% of them duplicates", len(f.Tickets), 100*share)
	}
	if len(asSent) < len(distinct)+30 {
		t.Errorf("%d texts as sent for %d contents: too few variants", len(asSent), len(distinct))
	}
	if got := len(f.Truths()); got != 6 {
		t.Errorf("%d departments", got)
	}
}
