package main

import (
	"slices"
	"testing"
	"time"

	"github.com/evalonce/evalonce/pkg/metrics"
	"github.com/evalonce/evalonce/pkg/observedb"
)

// A sweep leaves behind how it went, by names that are shown; one that fails does not count as one that went well.
func TestASweepIsRecorded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.promote("v1")
	w.lose("lost", "v1", 3)
	w.exec("UPDATE sweep_run SET well_at = now() - interval '1 hour'")
	w.sweep()
	last, err := observedb.LastSweep(t.Context(), w.db)
	if err != nil || !last.OK || last.Age >= time.Hour || last.Counts["reclaimed_pending"] != 3 {
		t.Errorf("recorded %+v, %v", last, err)
	}
	for name := range last.Counts {
		if !slices.Contains(metrics.SweepCounts(), name) {
			t.Errorf("%s is counted, and not in the catalogue", name)
		}
	}
	w.exec("UPDATE sweep_run SET well_at = now() - interval '1 hour'")
	w.exec("ALTER TABLE client_request RENAME TO gone")
	if s := w.sweep(); len(s.Failed) == 0 {
		t.Fatal("the sweep has not failed")
	}
	if last, err = observedb.LastSweep(t.Context(), w.db); err != nil || last.OK || last.Age < time.Hour {
		t.Errorf("recorded %+v, %v", last, err)
	}
}
