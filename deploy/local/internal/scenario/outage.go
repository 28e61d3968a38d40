package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/evalonce/evalonce/pkg/providersim"
)

// cutShare is the part of calls that end without a response in an outage. The others get a 503.
const cutShare = 0.4

func outageRules() []providersim.Rule {
	return []providersim.Rule{
		{Name: "cut", Match: providersim.Match{Probability: cutShare}, Action: providersim.Action{Close: providersim.CloseAfterRequest}},
		{Name: "unavailable", Action: providersim.Action{Error: providersim.Overloaded503}},
	}
}

// beginOutage and endOutage are seen by every request that arrives after they have returned.
func (r *rig) beginOutage(ctx context.Context) error {
	body, err := json.Marshal(outageRules())
	if err != nil {
		return fmt.Errorf("begin an outage: %w", err)
	}
	if err := r.control(ctx, http.MethodPost, body, http.StatusCreated); err != nil {
		return fmt.Errorf("begin an outage: %w", err)
	}
	return nil
}

func (r *rig) endOutage(ctx context.Context) error {
	if err := r.control(ctx, http.MethodDelete, nil, http.StatusNoContent); err != nil {
		return fmt.Errorf("end an outage: %w", err)
	}
	return nil
}

func (r *rig) control(ctx context.Context, method string, body []byte, want int) error {
	req, err := http.NewRequestWithContext(ctx, method, r.simulator.ControlURL()+"/rules", bytes.NewReader(body))
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != want {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, answer)
	}
	return err
}

// settled returns the simulator's sums once it has nothing more to do.
func (r *rig) settled(ctx context.Context) (providersim.Stats, error) {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		stats, err := r.simulator.Stats(ctx)
		if err != nil || stats.InFlight == 0 {
			return stats, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return stats, context.Cause(ctx)
		}
	}
}
