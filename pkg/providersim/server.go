package providersim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Options of a server; the zero value is a provider without faults, latency, limits, keys or prices.
type Options struct {
	Seed         uint64   // of every drawn decision and of ids
	APIKeys      []string // that are accepted; empty: any, or none
	Models       []string // that exist; empty: every model does, and the list of models is empty
	ServedSuffix string   // appended to the requested model to name the served one; "-2026-01-01" when empty
	Latency      Latency
	Limits       Limits
	Prices       Prices
	Script       []Rule
}

// Latency is drawn evenly between its ends for each request.
type Latency struct {
	Min, Max time.Duration
}

const (
	defaultServedSuffix = "-2026-01-01"
	maxRequestBytes     = 32 << 20
	maxPrompts          = 256
)

// Server is the simulated provider. It is an http.Handler, and serves by itself between Start and Close.
type Server struct {
	options Options
	made    time.Time
	ledger  *ledger
	limiter *limiter
	lexicon *lexicon
	mux     *http.ServeMux

	mu       sync.Mutex
	rules    []*armedRule // replaced, never changed, so that a request may read on without the lock
	outage   *armedRule
	nextRule uint64
	gate     *gate
	prompts  map[string]*prompt

	archive archive

	lifecycle sync.Mutex
	closed    bool
	closing   chan struct{}
	active    sync.WaitGroup // requests
	http      *http.Server
	url       string
	served    chan struct{} // closed when serving has ended
	serveErr  error
}

// gate is what the requests that hang at the same time wait for.
type gate struct {
	opened  chan struct{}
	waiting int
}

// prompt is what requests with the same instructions and choices share.
type prompt struct {
	classifier *classifier
	mu         sync.Mutex
	seen       bool // so that its tokens are cached ones from now on
}

// New returns a server under the options. It panics when the script or the range of latency is invalid: both are
// written by a programmer, or were checked where they were read.
func New(options Options) *Server {
	if options.ServedSuffix == "" {
		options.ServedSuffix = defaultServedSuffix
	}
	if options.Latency.Min < 0 || options.Latency.Max < options.Latency.Min {
		panic(fmt.Sprintf("providersim: latency from %s to %s is no range", options.Latency.Min, options.Latency.Max))
	}
	s := &Server{
		options: options,
		made:    time.Now(),
		ledger:  newLedger(options.Prices, options.Seed),
		limiter: newLimiter(options.Limits),
		lexicon: newLexicon(),
		mux:     http.NewServeMux(),
		gate:    &gate{opened: make(chan struct{})},
		prompts: map[string]*prompt{},
		closing: make(chan struct{}),
	}
	if err := s.AddRules(options.Script...); err != nil {
		panic(fmt.Sprintf("providersim: script: %v", err))
	}
	s.routeOpenAI(s.mux)
	s.routeAnthropic(s.mux)
	s.routeControl(s.mux)
	return s
}

// ServeHTTP implements http.Handler. It may end a connection by the panic that net/http documents for that.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.lifecycle.Lock()
	if s.closed {
		s.lifecycle.Unlock()
		panic(http.ErrAbortHandler)
	}
	s.active.Add(1)
	s.lifecycle.Unlock()
	defer s.active.Done()
	s.mux.ServeHTTP(w, r)
}

// Start serves on the address, 127.0.0.1 with a free port when it is empty, until Close. After Close it may be
// started again, on the same address too: rules and ledger stay.
func (s *Server) Start(address string) error {
	if address == "" {
		address = "127.0.0.1:0"
	}
	s.lifecycle.Lock()
	defer s.lifecycle.Unlock()
	if s.http != nil {
		return errors.New("start provider simulator: it is serving already")
	}
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
	if err != nil {
		return fmt.Errorf("start provider simulator: %w", err)
	}
	if s.closed {
		s.closed, s.closing = false, make(chan struct{})
	}
	const headerTimeout = 10 * time.Second
	server := &http.Server{Handler: s, ReadHeaderTimeout: headerTimeout}
	served := make(chan struct{})
	s.http, s.served, s.url = server, served, "http://"+listener.Addr().String()
	go func() {
		defer close(served)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			s.serveErr = err
		}
	}()
	return nil
}

// closingNow is the channel that is closed when the server closes next.
func (s *Server) closingNow() <-chan struct{} {
	s.lifecycle.Lock()
	defer s.lifecycle.Unlock()
	return s.closing
}

// URL is the base of the server's address since its last Start, without a trailing slash.
func (s *Server) URL() string {
	s.lifecycle.Lock()
	defer s.lifecycle.Unlock()
	return s.url
}

// Done is closed when serving has ended; nil before the first Start.
func (s *Server) Done() <-chan struct{} {
	s.lifecycle.Lock()
	defer s.lifecycle.Unlock()
	return s.served
}

// Close ends all connections, those of hanging requests too, and returns when every request has left.
func (s *Server) Close() error {
	s.lifecycle.Lock()
	if !s.closed {
		s.closed = true
		close(s.closing)
	}
	server, served := s.http, s.served
	s.http = nil
	s.lifecycle.Unlock()

	var err error
	if server != nil {
		err = server.Close()
		<-served
		err = errors.Join(err, s.serveErr)
	}
	s.active.Wait()
	if err != nil {
		return fmt.Errorf("close provider simulator: %w", err)
	}
	return nil
}

// AddRules puts rules behind those in force; all of them or, when one is invalid, none.
func (s *Server) AddRules(rules ...Rule) error {
	if err := validateRules(rules); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	armed := slices.Clone(s.rules)
	for _, r := range rules {
		s.nextRule++
		armed = append(armed, arm(r, s.nextRule))
	}
	s.rules = armed
	return nil
}

func arm(r Rule, id uint64) *armedRule {
	if r.Name == "" {
		r.Name = fmt.Sprintf("%s-%d", r.Action.label(), id)
	}
	a := &armedRule{Rule: r, id: id}
	a.left.Store(int64(r.Times))
	return a
}

// ClearRules removes all rules. Requests that they hang go on hanging.
func (s *Server) ClearRules() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = nil
}

// StartOutage makes the action happen to every request, the list of models included, before all rules, until
// EndOutage. In the ledger it is the rule "outage".
func (s *Server) StartOutage(a Action) error {
	r := Rule{Name: "outage", Action: a}
	if err := validateRules([]Rule{r}); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outage = arm(r, 0)
	return nil
}

func (s *Server) outageAction() Action {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.outage == nil {
		return Action{}
	}
	return s.outage.Action
}

// EndOutage ends the outage.
func (s *Server) EndOutage() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outage = nil
}

// Release lets every request that hangs now go on, and returns how many those are.
func (s *Server) Release() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	released := s.gate
	s.gate = &gate{opened: make(chan struct{})}
	// Not left to the requests themselves: after Release, only new ones count as hanging.
	s.ledger.addHanging(-released.waiting)
	close(released.opened)
	return released.waiting
}

// WaitForRequests returns once n requests have arrived since the server was made.
func (s *Server) WaitForRequests(ctx context.Context, n int) error {
	return s.Wait(ctx, func(now Stats) bool { return now.Requests >= n })
}

// WaitHanging returns once n requests hang.
func (s *Server) WaitHanging(ctx context.Context, n int) error {
	return s.Wait(ctx, func(now Stats) bool { return now.Hanging >= n })
}

// WaitIdle returns once no request is in flight.
func (s *Server) WaitIdle(ctx context.Context) error {
	return s.Wait(ctx, func(now Stats) bool { return now.InFlight == 0 })
}

// Wait returns once the condition holds for the ledger's sums. It looks again at each change.
func (s *Server) Wait(ctx context.Context, holds func(Stats) bool) error {
	return s.ledger.wait(ctx, holds)
}

// Stats sums the ledger up.
func (s *Server) Stats() Stats { return s.ledger.stats() }

// Ledger returns the requests after number since; all of them for 0.
func (s *Server) Ledger(since int) []Entry { return slices.Collect(s.ledger.entries(since)) }

// waitAtGate waits for Release and reports whether it came before client and server went.
func (s *Server) waitAtGate(client context.Context, closing <-chan struct{}) bool {
	s.mu.Lock()
	g := s.gate
	g.waiting++
	s.ledger.addHanging(1)
	s.mu.Unlock()
	select {
	case <-g.opened:
		return true
	case <-client.Done():
	case <-closing:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gate == g {
		g.waiting--
		s.ledger.addHanging(-1)
	}
	return false
}

func (s *Server) accepts(key string) bool {
	return len(s.options.APIKeys) == 0 || slices.Contains(s.options.APIKeys, key)
}

// promptFor returns what requests of the same instructions share. A client that never repeats itself only
// empties the memory of them now and then.
func (s *Server) promptFor(c completion) *prompt {
	id := c.model + "\x00" + c.schema + "\x00" + c.system
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.prompts[id]; ok {
		return p
	}
	if len(s.prompts) >= maxPrompts {
		clear(s.prompts)
	}
	p := &prompt{classifier: newClassifier(s.lexicon, described(c.departments, c.system))}
	s.prompts[id] = p
	return p
}
