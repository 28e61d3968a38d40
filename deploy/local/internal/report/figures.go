package report

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"time"
)

// Figures are a run in numbers, as machines read them. The fields and their names are a contract.
type Figures struct {
	Tickets          int `json:"tickets"`
	DistinctContents int `json:"distinct_contents"`
	// PaidCalls are the calls that a response arrived for.
	PaidCalls int `json:"paid_calls"`
	// SavedCalls are the tickets answered by the call of another ticket of equal content.
	SavedCalls int `json:"saved_calls"`
	Succeeded  int `json:"succeeded"` // tickets
	Dead       int `json:"dead"`      // tickets
	// EvaluationsPerSecond is distinct contents answered, over the time from the first ticket to the last answer.
	EvaluationsPerSecond float64  `json:"evaluations_per_s"`
	CreateP50Ms          float64  `json:"create_p50_ms"`
	CreateP99Ms          float64  `json:"create_p99_ms"`
	Accuracy             *float64 `json:"accuracy,omitempty"` // only where people had decided
}

// Milliseconds is a duration to the microsecond.
func Milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Round keeps so many decimals: what follows is noise.
func Round(x float64, decimals int) float64 {
	shift := math.Pow10(decimals)
	return math.Round(x*shift) / shift
}

// Write writes the figures to a file, whole or not at all.
func (f Figures) Write(path string) error {
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the figures: %w", err)
	}
	unfinished := path + ".unfinished"
	if err := os.WriteFile(unfinished, append(data, '\n'), 0o644); err != nil { //nolint:gosec // for everybody to read
		return fmt.Errorf("write the figures: %w", err)
	}
	if err := os.Rename(unfinished, path); err != nil {
		return fmt.Errorf("write the figures: %w", err)
	}
	return nil
}
