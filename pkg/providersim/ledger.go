package providersim

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shopspring/decimal"
)

// Outcome says how a request ended.
type Outcome string

// All outcomes.
const (
	InFlight    Outcome = "in_flight"    // not ended yet
	Answered    Outcome = "answered"     // a whole response with an answer was handed to the connection
	Failed      Outcome = "failed"       // a rule or an outage answered with an error
	Rejected    Outcome = "rejected"     // the request was not acceptable
	RateLimited Outcome = "rate_limited" // over the server's limits
	Closed      Outcome = "closed"       // a rule closed the connection without a response
	Cut         Outcome = "cut"          // a rule cut the response in its body
	ClientGone  Outcome = "client_gone"  // the client left before the response
	Shutdown    Outcome = "shutdown"     // the server closed before the response
)

func outcomes() []Outcome {
	return []Outcome{InFlight, Answered, Failed, Rejected, RateLimited, Closed, Cut, ClientGone, Shutdown}
}

// Entry is one request as the ledger tells it.
type Entry struct {
	Seq               int               `json:"seq"` // from 1, in order of arrival
	RequestID         string            `json:"request_id"`
	Protocol          string            `json:"protocol"`
	ReceivedAt        time.Time         `json:"received_at"`
	EndedAt           time.Time         `json:"ended_at,omitzero"`
	Content           Fingerprint       `json:"content"` // all zero when the request was refused unread
	Attempt           int               `json:"attempt"` // among the requests for this content, from 1; 0 when unread
	Model             string            `json:"model"`
	ServedModel       string            `json:"served_model"`
	Status            int               `json:"status"` // 0: no response was begun
	Outcome           Outcome           `json:"outcome"`
	Rule              string            `json:"rule,omitempty"` // that decided it
	Billed            bool              `json:"billed"`
	InputTokens       int64             `json:"input_tokens"`
	CachedInputTokens int64             `json:"cached_input_tokens"` // of the input tokens
	CacheWriteTokens  int64             `json:"cache_write_tokens"`  // of the input tokens
	OutputTokens      int64             `json:"output_tokens"`
	ReasoningTokens   int64             `json:"reasoning_tokens"` // of the output tokens
	CostUSD           decimal.Decimal   `json:"cost_usd"`
	UserAgent         string            `json:"user_agent"`
	Headers           map[string]string `json:"headers,omitempty"` // identifying ones only, names in lower case
}

// Stats sums the ledger up.
type Stats struct {
	Requests            int             `json:"requests"`
	Billed              int             `json:"billed"`
	InFlight            int             `json:"in_flight"`
	Hanging             int             `json:"hanging"`
	Probes              int             `json:"probes"` // requests to the list of models; not in the ledger
	ByOutcome           map[Outcome]int `json:"by_outcome"`
	ByRule              map[string]int  `json:"by_rule"`
	DistinctContents    int             `json:"distinct_contents"`
	BilledContents      int             `json:"billed_contents"`       // contents billed at least once
	BilledAgainContents int             `json:"billed_again_contents"` // contents billed more than once
	MaxBilledPerContent int             `json:"max_billed_per_content"`
	InputTokens         int64           `json:"input_tokens"` // billed ones, as those below
	CachedInputTokens   int64           `json:"cached_input_tokens"`
	CacheWriteTokens    int64           `json:"cache_write_tokens"`
	OutputTokens        int64           `json:"output_tokens"`
	CostUSD             decimal.Decimal `json:"cost_usd"`
}

// usage is what a billed answer consumed.
type usage struct {
	input                   int64 // all of it
	cachedInput, cacheWrite int64 // of it, apart from each other
	output                  int64
}

// Prices are US dollars for a million tokens. What is written to the cache costs a quarter more than other input.
type Prices struct {
	InputUSDPerMTok, CachedInputUSDPerMTok, OutputUSDPerMTok decimal.Decimal
}

func (p Prices) cost(u usage) decimal.Decimal {
	const exponentOfMillion = -6
	return p.InputUSDPerMTok.Mul(decimal.NewFromInt(u.input - u.cachedInput)).
		Add(p.InputUSDPerMTok.Mul(decimal.NewFromInt(u.cacheWrite)).Mul(decimal.New(25, -2))).
		Add(p.CachedInputUSDPerMTok.Mul(decimal.NewFromInt(u.cachedInput))).
		Add(p.OutputUSDPerMTok.Mul(decimal.NewFromInt(u.output))).
		Shift(exponentOfMillion)
}

// record is an Entry packed for millions: strings that repeat are numbered, identifying headers lie in shared
// blocks, and ids and costs are computed when asked for.
type record struct {
	received, ended    int64 // Unix nanoseconds
	headerBlock        uint32
	headerStart        uint32
	content            uint32 // 0: none
	attempt            uint32
	input, cached, out uint32
	written            uint32
	headerLength       uint16
	status             uint16
	protocol, model    uint16
	served, agent      uint16
	rule               uint16
	outcome            uint8
	billed             bool
}

type contentCount struct {
	fingerprint      Fingerprint
	requests, billed uint32
}

const (
	recordsPerBlock  = 4096
	headerBlockBytes = 1 << 20
	maxHeaderValue   = 255
	maxHeaderBytes   = 2048 // of one request
	maxNames         = 1 << 12
)

// ledger holds every request, in order of arrival, for as long as the server lives. Its lock is held for a few
// assignments only; records lie in blocks that never move, so a growing ledger does not copy them.
type ledger struct {
	prices Prices
	seed   uint64

	mu       sync.Mutex
	blocks   [][]record
	count    int
	headers  [][]byte
	names    []string // by number; 0 is ""
	numbers  map[string]uint16
	contents []contentCount // by number; 0 is none
	byPrint  map[Fingerprint]uint32

	billed, hanging, probes     int
	billedContents, billedAgain int
	maxBilled                   uint32
	totals                      usage
	outcomes                    []Outcome // in the order of their numbers
	byOutcome                   []int
	byRule                      map[string]int
	changed                     chan struct{} // closed at the next change; nil while nobody waits
}

func newLedger(prices Prices, seed uint64) *ledger {
	l := &ledger{
		prices: prices, seed: seed,
		names: []string{""}, numbers: map[string]uint16{"": 0},
		contents: make([]contentCount, 1), byPrint: map[Fingerprint]uint32{},
		byRule: map[string]int{}, outcomes: outcomes(),
	}
	l.byOutcome = make([]int, len(l.outcomes))
	return l
}

// begin opens the entry of a request that has just arrived and returns its number, from 1.
func (l *ledger) begin(protocol string, h http.Header, now time.Time) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count%recordsPerBlock == 0 {
		l.blocks = append(l.blocks, make([]record, recordsPerBlock))
	}
	l.count++
	r := l.at(l.count)
	r.received = now.UnixNano()
	r.protocol = l.number(protocol)
	r.agent = l.number(h.Get("User-Agent"))
	l.keepHeaders(r, h)
	l.byOutcome[r.outcome]++
	l.notify()
	return l.count
}

// identify notes what the request asks for, and returns its number among the requests for this content.
func (l *ledger) identify(seq int, model string, content Fingerprint) (attempt int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.at(seq)
	r.model = l.number(model)
	n, ok := l.byPrint[content]
	if !ok {
		n = uint32(len(l.contents))
		l.contents = append(l.contents, contentCount{fingerprint: content})
		l.byPrint[content] = n
	}
	l.contents[n].requests++
	r.content, r.attempt = n, l.contents[n].requests
	return int(r.attempt)
}

// bill notes that an answer was computed.
func (l *ledger) bill(seq int, served string, u usage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.at(seq)
	r.billed, r.served = true, l.number(served)
	r.input, r.cached, r.written, r.out = uint32(u.input), uint32(u.cachedInput), uint32(u.cacheWrite), uint32(u.output)
	l.billed++
	l.totals.input += u.input
	l.totals.cachedInput += u.cachedInput
	l.totals.cacheWrite += u.cacheWrite
	l.totals.output += u.output
	c := &l.contents[r.content]
	c.billed++
	switch c.billed {
	case 1:
		l.billedContents++
	case 2:
		l.billedAgain++
	}
	l.maxBilled = max(l.maxBilled, c.billed)
	l.notify()
}

// decide notes the rule that took the request.
func (l *ledger) decide(seq int, rule string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at(seq).rule = l.number(rule)
	l.byRule[rule]++
}

// end closes the entry. It comes before the last byte of a response is sent, so that a client that has its
// answer finds it in the ledger.
func (l *ledger) end(seq int, outcome Outcome, status int, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.at(seq)
	l.byOutcome[r.outcome]--
	r.outcome = uint8(slices.Index(l.outcomes, outcome))
	l.byOutcome[r.outcome]++
	r.status = uint16(status)
	r.ended = now.UnixNano()
	l.notify()
}

func (l *ledger) addHanging(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hanging += n
	l.notify()
}

func (l *ledger) addProbe() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.probes++
	l.notify()
}

func (l *ledger) at(seq int) *record {
	return &l.blocks[(seq-1)/recordsPerBlock][(seq-1)%recordsPerBlock]
}

// number numbers a string that is expected to repeat. Clients decide these strings, so both their length and
// their number are bounded; what exceeds shares one name.
func (l *ledger) number(name string) uint16 {
	if len(name) > maxHeaderValue {
		name = name[:maxHeaderValue]
	}
	if n, ok := l.numbers[name]; ok {
		return n
	}
	if len(l.names) >= maxNames {
		name = "(other)"
		if n, ok := l.numbers[name]; ok {
			return n
		}
	}
	n := uint16(len(l.names))
	name = strings.Clone(name)
	l.names = append(l.names, name)
	l.numbers[name] = n
	return n
}

// identifying reports whether a header, in canonical form, names the request, the work or the try.
func identifying(name string) bool {
	switch name {
	case "Idempotency-Key", "X-Idempotency-Key", "X-Client-Request-Id", "X-Stainless-Retry-Count":
		return true
	}
	return strings.HasPrefix(name, "X-Evalonce-")
}

// keepHeaders appends the identifying headers as (name number, value length, value).
func (l *ledger) keepHeaders(r *record, h http.Header) {
	var packed []byte
	for name, values := range h {
		if !identifying(name) || len(values) == 0 {
			continue
		}
		value := values[0]
		if len(value) > maxHeaderValue {
			value = value[:maxHeaderValue]
		}
		if len(packed)+3+len(value) > maxHeaderBytes {
			break
		}
		packed = binary.BigEndian.AppendUint16(packed, l.number(strings.ToLower(name)))
		packed = append(packed, byte(len(value)))
		packed = append(packed, value...)
	}
	if len(packed) == 0 {
		return
	}
	last := len(l.headers) - 1
	if last < 0 || len(l.headers[last])+len(packed) > headerBlockBytes {
		l.headers = append(l.headers, make([]byte, 0, headerBlockBytes))
		last++
	}
	r.headerBlock, r.headerStart, r.headerLength = uint32(last), uint32(len(l.headers[last])), uint16(len(packed))
	l.headers[last] = append(l.headers[last], packed...)
}

func (l *ledger) entry(seq int) Entry {
	r := l.at(seq)
	u := usage{input: int64(r.input), cachedInput: int64(r.cached), cacheWrite: int64(r.written), output: int64(r.out)}
	e := Entry{
		Seq: seq, RequestID: requestID(l.seed, seq), Protocol: l.names[r.protocol],
		ReceivedAt: time.Unix(0, r.received).UTC(),
		Content:    l.contents[r.content].fingerprint, Attempt: int(r.attempt),
		Model: l.names[r.model], ServedModel: l.names[r.served],
		Status: int(r.status), Outcome: l.outcomes[r.outcome], Rule: l.names[r.rule], Billed: r.billed,
		InputTokens: u.input, CachedInputTokens: u.cachedInput, CacheWriteTokens: u.cacheWrite, OutputTokens: u.output, CostUSD: l.prices.cost(u),
		UserAgent: l.names[r.agent],
	}
	if r.ended != 0 {
		e.EndedAt = time.Unix(0, r.ended).UTC()
	}
	if r.headerLength > 0 {
		e.Headers = map[string]string{}
		packed := l.headers[r.headerBlock][r.headerStart:][:r.headerLength]
		for len(packed) > 0 {
			name, n := l.names[binary.BigEndian.Uint16(packed)], int(packed[2])
			e.Headers[name] = string(packed[3 : 3+n])
			packed = packed[3+n:]
		}
	}
	return e
}

// entries yields the requests after number since, as they are when their turn comes, and up to those that had
// arrived when it was called. The lock is taken for a batch at a time.
func (l *ledger) entries(since int) iter.Seq[Entry] {
	const batch = 256
	return func(yield func(Entry) bool) {
		l.mu.Lock()
		last := l.count
		l.mu.Unlock()
		for next := max(since, 0) + 1; next <= last; {
			l.mu.Lock()
			chunk := make([]Entry, 0, batch)
			for ; next <= last && len(chunk) < batch; next++ {
				chunk = append(chunk, l.entry(next))
			}
			l.mu.Unlock()
			for _, e := range chunk {
				if !yield(e) {
					return
				}
			}
		}
	}
}

func (l *ledger) stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Stats{
		Requests: l.count, Billed: l.billed, InFlight: l.byOutcome[0], Hanging: l.hanging, Probes: l.probes,
		ByOutcome: map[Outcome]int{}, ByRule: maps.Clone(l.byRule),
		DistinctContents: len(l.contents) - 1, BilledContents: l.billedContents, BilledAgainContents: l.billedAgain,
		MaxBilledPerContent: int(l.maxBilled),
		InputTokens:         l.totals.input, CachedInputTokens: l.totals.cachedInput, CacheWriteTokens: l.totals.cacheWrite,
		OutputTokens: l.totals.output,
		CostUSD:      l.prices.cost(l.totals),
	}
	for i, n := range l.byOutcome {
		if n > 0 {
			s.ByOutcome[l.outcomes[i]] = n
		}
	}
	return s
}

// wait returns once the condition holds.
func (l *ledger) wait(ctx context.Context, holds func(Stats) bool) error {
	for {
		l.mu.Lock()
		if l.changed == nil {
			l.changed = make(chan struct{})
		}
		changed := l.changed
		l.mu.Unlock()
		now := l.stats()
		if holds(now) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for the provider simulator (%d requests, %d in flight, %d hanging): %w",
				now.Requests, now.InFlight, now.Hanging, context.Cause(ctx))
		}
	}
}

func (l *ledger) notify() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// requestHex is the identity of a request under a seed, in 32 hexadecimal digits.
func requestHex(seed uint64, seq int) string {
	source := rand.NewPCG(seed, uint64(seq))
	var id [16]byte
	binary.BigEndian.PutUint64(id[:8], source.Uint64())
	binary.BigEndian.PutUint64(id[8:], source.Uint64())
	return hex.EncodeToString(id[:])
}

func requestID(seed uint64, seq int) string { return "req_" + requestHex(seed, seq) }
