package stack

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/providersim"
)

// API is a running service with an interface for clients.
type API struct {
	*Process
	GRPC string // address
	HTTP string // base URL

	Health string // base URL of its health and metrics
}

// StartTicketAPI starts a ticket-api that knows the tokens, in the form of EVALONCE_API_TOKENS. More of the
// environment may be given, here and below; the last of two values counts.
func (s *Stack) StartTicketAPI(ctx context.Context, tokens string, env ...string) (*API, error) {
	return s.startAPI(ctx, "ticket-api", pgtest.TicketAPI, append([]string{"EVALONCE_API_TOKENS=" + tokens}, env...))
}

// StartAdmin starts an admin that knows the tokens, in the form of EVALONCE_ADMIN_TOKENS.
func (s *Stack) StartAdmin(ctx context.Context, tokens string, env ...string) (*API, error) {
	return s.startAPI(ctx, "admin", pgtest.Admin, append([]string{"EVALONCE_ADMIN_TOKENS=" + tokens}, env...))
}

func (s *Stack) startAPI(ctx context.Context, binary string, role pgtest.Role, env []string) (*API, error) {
	grpc, err := s.FreeAddress(ctx)
	if err != nil {
		return nil, err
	}
	http, err := s.FreeAddress(ctx)
	if err != nil {
		return nil, err
	}
	health, err := s.FreeAddress(ctx)
	if err != nil {
		return nil, err
	}
	p, err := s.Start(ctx, Spec{
		Name: s.name(binary), Binary: binary, Ready: "http://" + http + "/readyz",
		Env: append([]string{
			s.databaseAs(ctx, role), "EVALONCE_GRPC_ADDRESS=" + grpc, "EVALONCE_HTTP_ADDRESS=" + http, "EVALONCE_HEALTH_ADDRESS=" + health, "EVALONCE_PLAINTEXT=true",
		}, env...),
	})
	if err != nil {
		return nil, err
	}
	return &API{Process: p, GRPC: grpc, HTTP: "http://" + http, Health: "http://" + health}, nil
}

// Endpoint is a model provider, or what stands in for one.
type Endpoint struct {
	BaseURL string
	APIKey  string
}

// StartWorker starts an evaluator-worker that calls the endpoint. Any number may run.
func (s *Stack) StartWorker(ctx context.Context, endpoint Endpoint, env ...string) (*Process, error) {
	health, err := s.FreeAddress(ctx)
	if err != nil {
		return nil, err
	}
	// The worker gets its own grace from the environment; this bounds how long it may take beyond.
	const grace = 30 * time.Second
	return s.Start(ctx, Spec{
		Name: s.name("evaluator-worker"), Binary: "evaluator-worker", Ready: "http://" + health + "/readyz", Grace: grace,
		Env: append([]string{
			s.databaseAs(ctx, pgtest.EvaluatorWorker), "EVALONCE_HEALTH_ADDRESS=" + health,
			"EVALONCE_OPENAI_BASE_URL=" + endpoint.BaseURL, "EVALONCE_OPENAI_API_KEY=" + endpoint.APIKey,
			"EVALONCE_SHUTDOWN_GRACE=5s",
		}, env...),
	})
}

// StartSweeper starts a sweeper that goes round at the interval.
func (s *Stack) StartSweeper(ctx context.Context, interval time.Duration, env ...string) (*Process, error) {
	return s.Start(ctx, Spec{
		Name: s.name("sweeper"), Binary: "sweeper", Args: []string{"--interval", interval.String()},
		Env: append([]string{s.databaseAs(ctx, pgtest.Sweeper)}, env...),
	})
}

// Sweep runs a sweeper once and returns what it printed.
func (s *Stack) Sweep(ctx context.Context, env ...string) ([]byte, error) {
	return s.Run(ctx, Spec{Name: s.name("sweep"), Binary: "sweeper", Env: append([]string{s.databaseAs(ctx, pgtest.Sweeper)}, env...)})
}

// Simulator is a running provider simulator.
type Simulator struct {
	*Process
	control string
	// Endpoint is where it answers as a provider would.
	Endpoint Endpoint
}

// StartSimulator starts a provider simulator.
func (s *Stack) StartSimulator(ctx context.Context, env ...string) (*Simulator, error) {
	const key = "simulated"
	address, err := s.FreeAddress(ctx)
	if err != nil {
		return nil, err
	}
	base := "http://" + address
	p, err := s.Start(ctx, Spec{
		Name: s.name("providersim"), Binary: "providersim", Ready: base + "/_sim/healthz",
		Env: append([]string{"EVALONCE_PROVIDERSIM_ADDRESS=" + address, "EVALONCE_PROVIDERSIM_API_KEYS=" + key}, env...),
	})
	if err != nil {
		return nil, err
	}
	return &Simulator{Process: p, control: base, Endpoint: Endpoint{BaseURL: base + "/v1", APIKey: key}}, nil
}

// ControlURL is the base of its own interface, for its ledger and its faults.
func (s *Simulator) ControlURL() string { return s.control + "/_sim" }

// Stats are the sums of the simulator's ledger: what it received and billed.
func (s *Simulator) Stats(ctx context.Context) (providersim.Stats, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.ControlURL()+"/stats", http.NoBody)
	if err != nil {
		return providersim.Stats{}, fmt.Errorf("ask the simulator for its ledger: %w", err)
	}
	resp, err := newClient().Do(req)
	if err != nil {
		return providersim.Stats{}, fmt.Errorf("ask the simulator for its ledger: %w", err)
	}
	defer resp.Body.Close()
	var stats providersim.Stats
	if err := json.NewDecoder(resp.Body).Decode(&stats); err != nil || resp.StatusCode != http.StatusOK {
		return providersim.Stats{}, fmt.Errorf("ask the simulator for its ledger: status %d: %w", resp.StatusCode, err)
	}
	return stats, nil
}

// name numbers the second and further processes of one kind.
func (s *Stack) name(kind string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 1
	for _, p := range s.processes {
		if p.Name == kind || strings.HasPrefix(p.Name, kind+"-") {
			n++
		}
	}
	if n == 1 {
		return kind
	}
	return fmt.Sprintf("%s-%d", kind, n)
}
