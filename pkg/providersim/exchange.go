package providersim

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

// dialect is what differs between the wire protocols.
type dialect interface {
	name() string
	// requestIDHeader is the response header that carries the request's id.
	requestIDHeader() string
	// key returns the API key of a request.
	key(http.Header) string
	// parse reads a request; the error response says what a client did wrong.
	parse(h http.Header, body []byte) (completion, *response)
	// allowances tells what is left of the account's limits.
	allowances(h http.Header, left []allowance, now time.Time)
	// failure is the provider's response to a named error.
	failure(e Error, c completion) response
	// throttle is the response to a request over the account's limits.
	throttle(o overLimit, c completion) response
	// answer is the response that carries an answer.
	answer(a answer) response
}

// completion is a request for an answer, without its protocol.
type completion struct {
	model       string
	system      string
	schema      string // as sent: with system and model it identifies a prompt
	departments []string
	ticket      ticket
	inputTokens int64
	outputLimit int64             // tokens; 0: none
	cacheable   int64             // tokens of the prefix that are read from the cache once it has been seen
	stored      map[string]string // metadata under which the answer is kept; nil: it is not
	cacheWrites bool              // whoever sends a prefix first pays for writing it to the cache
}

// answer is what the simulator says, before a protocol gives it a shape.
type answer struct {
	id           string // hexadecimal
	created      time.Time
	model        string // as served
	content      string
	kind         Answer // "" for a good one
	finishReason string // overrides the one that belongs to the kind
	usage        usage
}

// exchange is one request on its way through the server.
type exchange struct {
	*Server
	dialect
	w       http.ResponseWriter
	r       *http.Request
	seq     int
	closing <-chan struct{}
	begun   int // the status that was sent; 0 before
}

// complete handles requests for an answer in a protocol.
func (s *Server) complete(d dialect) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		x := &exchange{Server: s, dialect: d, w: w, r: r, closing: s.closingNow()}
		x.seq = s.ledger.begin(d.name(), r.Header, time.Now())
		w.Header().Set(d.requestIDHeader(), requestID(s.options.Seed, x.seq))
		x.run() //nolint:contextcheck // the context is the request's, in x.r
	}
}

func (x *exchange) run() {
	f := facts{number: x.seq, age: time.Since(x.made)}
	if rule := x.firing(f, true); rule != nil {
		x.ledger.decide(x.seq, rule.Name)
		x.abort(Closed)
	}
	if !x.accepts(x.key(x.r.Header)) {
		x.respond(Rejected, x.failure(InvalidAPIKey, completion{}))
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(x.w, x.r.Body, maxRequestBytes))
	if err != nil {
		if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
			x.respond(Rejected, x.failure(RequestTooLarge413, completion{}))
			return
		}
		x.abandon()
	}
	c, refusal := x.parse(x.r.Header, body)
	if refusal != nil {
		x.respond(Rejected, *refusal)
		return
	}
	f.content, f.text, f.model = c.ticket.fingerprint(), c.ticket.text, c.model
	f.attempt = x.ledger.identify(x.seq, c.model, f.content)
	if len(x.options.Models) > 0 && !slices.Contains(x.options.Models, c.model) {
		x.respond(Rejected, x.failure(ModelNotFound, c))
		return
	}
	if over := x.limiter.admit(c.inputTokens, time.Now()); over != nil {
		refused := x.throttle(*over, c)
		refused.retryAfter = over.retryAfter
		x.respond(RateLimited, refused)
		return
	}
	defer x.limiter.done()

	var action Action
	if rule := x.firing(f, false); rule != nil {
		x.ledger.decide(x.seq, rule.Name)
		action = rule.Action
	}
	x.perform(action, c, f)
}

// perform carries out what a rule says, or gives a good answer for the zero Action.
func (x *exchange) perform(a Action, c completion, f facts) {
	latency := a.Latency + x.options.Latency.Min +
		time.Duration(draw(^x.options.Seed, f)*float64(x.options.Latency.Max-x.options.Latency.Min))

	if a.Hang == HangBeforeAnswer {
		x.hang()
	}
	switch {
	case a.Close == CloseAfterRequest:
		x.pause(latency)
		x.abort(Closed)
	case a.fails():
		x.pause(latency)
		x.respond(Failed, a.errorResponse(x.dialect, c))
		return
	}

	made := x.answerFor(a, c)
	x.ledger.bill(x.seq, made.model, made.usage)
	full := x.dialect.answer(made)
	if c.stored != nil {
		x.archive.keep(c.stored, full.body)
	}
	if a.Hang == HangAfterAnswer {
		x.hang()
	}
	x.pause(latency)
	if a.Close == CloseAfterAnswer {
		x.abort(Closed)
	}
	if a.CutAfterBytes > 0 || a.Hang == HangMidBody {
		x.respondInPart(full, a)
		return
	}
	x.respond(Answered, full)
}

// firing returns the rule that takes the request, if one does.
func (x *exchange) firing(f facts, onAccept bool) *armedRule {
	x.mu.Lock()
	rules, outage := x.rules, x.outage
	x.mu.Unlock()
	if outage != nil {
		if (outage.Action.Close == CloseOnAccept) == onAccept {
			return outage
		}
		return nil
	}
	for _, r := range rules {
		if (r.Action.Close == CloseOnAccept) == onAccept && r.fire(x.options.Seed, f) {
			return r
		}
	}
	return nil
}

func (x *exchange) answerFor(a Action, c completion) answer {
	p := x.promptFor(c)
	made := answer{
		id:      requestHex(x.options.Seed, x.seq),
		created: time.Now(),
		model:   c.model + x.options.ServedSuffix,
		kind:    a.Answer, finishReason: a.FinishReason, content: a.Content,
	}
	if a.ServedModel != "" {
		made.model = a.ServedModel
	}
	scripted := made.content != ""
	if !scripted {
		made.content = p.classifier.classify(c.ticket).json()
	}
	limit := c.outputLimit * bytesPerToken
	switch {
	case made.kind == AnswerTruncated:
		made.content = truncate(made.content, len(made.content)/2)
	case made.kind == "" && !scripted && limit > 0 && int64(len(made.content)) > limit:
		made.kind = AnswerTruncated
		made.content = truncate(made.content, int(limit))
	}
	made.usage = usage{input: c.inputTokens, output: tokens(len(made.content))}

	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.seen:
		made.usage.cachedInput = c.cacheable
	case c.cacheWrites:
		made.usage.cacheWrite = c.cacheable
	}
	p.seen = true
	return made
}

const (
	bytesPerToken = 4
	cacheStep     = 128 // tokens; a prefix is cached in steps, as OpenAI does, but from the first step on
)

func tokens(bytes int) int64 { return int64(bytes+bytesPerToken-1) / bytesPerToken }

func cacheable(prefix string) int64 { return tokens(len(prefix)) / cacheStep * cacheStep }

// truncate cuts at the last whole character.
func truncate(s string, n int) string { return strings.ToValidUTF8(s[:n], "") }

// respond sends a whole response. The ledger comes first: see ledger.end.
func (x *exchange) respond(outcome Outcome, full response) {
	x.writeHeaders(full)
	x.ledger.end(x.seq, outcome, full.status, time.Now())
	x.w.WriteHeader(full.status)
	x.write(full.body)
}

// respondInPart announces the whole response, sends a part of it, and then cuts or hangs.
func (x *exchange) respondInPart(full response, a Action) {
	part := max(0, min(a.CutAfterBytes, len(full.body)-1))
	x.writeHeaders(full)
	x.begun = full.status
	if a.Hang != HangMidBody {
		x.ledger.end(x.seq, Cut, full.status, time.Now())
	}
	x.w.WriteHeader(full.status)
	x.write(full.body[:part])
	if err := http.NewResponseController(x.w).Flush(); err != nil || a.Hang != HangMidBody {
		panic(http.ErrAbortHandler)
	}
	x.hang()
	x.ledger.end(x.seq, Answered, full.status, time.Now())
	x.write(full.body[part:])
}

func (x *exchange) writeHeaders(full response) {
	now := time.Now()
	x.allowances(x.w.Header(), x.limiter.left(now), now)
	full.writeHeaders(x.w.Header())
}

// write ignores a failure: it means that the client left, and what it would have read is in the ledger.
func (x *exchange) write(body []byte) { _, _ = x.w.Write(body) }

// hang returns once the request is released; it does not return when client or server goes first.
func (x *exchange) hang() {
	if !x.waitAtGate(x.r.Context(), x.closing) {
		x.abandon()
	}
}

// pause returns after the time; it does not return when client or server goes first.
func (x *exchange) pause(d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-x.r.Context().Done():
		x.abandon()
	case <-x.closing:
		x.abandon()
	}
}

// abandon ends a request whose client, or whose server, is going.
func (x *exchange) abandon() {
	select {
	case <-x.closing:
		x.abort(Shutdown)
	default:
		x.abort(ClientGone)
	}
}

// abort closes the connection as it is. It does not return.
func (x *exchange) abort(outcome Outcome) {
	x.ledger.end(x.seq, outcome, x.begun, time.Now())
	panic(http.ErrAbortHandler)
}
