// Package providersim is a model provider as a real HTTP server: it speaks the wire protocols of OpenAI's chat
// completions and responses and of Anthropic's messages, fails as a script or a seed says, and keeps a ledger of every
// request it received and billed.
//
// The ledger is the truth about paying twice. A request is billed when the simulator has computed an answer for
// it, whether or not the client ever got it: a client that leaves while it waits, a connection closed after the
// answer, and a response cut in its body are all paid for. An error, a refusal of a bad request and a refusal for
// a limit are not. A request is in the ledger from the moment its headers have arrived, and its end is written
// before the last byte of the response is sent, so whoever holds a response finds it in the ledger.
//
// Answers come from an offline lexical classifier, not a language model: a count of words, in English,
// Portuguese, Spanish, Catalan, German and French. Same ticket, same departments, same answer. They stand in
// for a model where none may be called; they say nothing about how well one would do.
//
// # The wire
//
// POST /v1/chat/completions, /v1/responses and /v1/messages want structured output: a JSON schema, strict where there is
// a word for it, that has properties.department.enum, in response_format, text.format or output_config.format. Lines
// "- <name>: <description>" in the system message describe the departments. The responses want store to be false.
// The ticket stands in the last user message, between marks that share a nonce of 32 hexadecimal digits:
//
//	-----BEGIN TICKET 0123456789abcdef0123456789abcdef-----
//	Subject: ...
//
//	Message:
//	...
//	-----END TICKET 0123456789abcdef0123456789abcdef-----
//
// Without marks, the whole message is the ticket. GET /v1/models and GET /v1/models/{model} list the models.
// GET /v1/chat/completions?metadata[key]=value lists the answers whose requests said store: true.
// Token counts are a quarter of the bytes; a system message that was seen before counts as cached, in steps of
// 128 tokens; reasoning tokens are none. Messages are cached only where cache_control asks for it, and writing to the
// cache is charged there. Headers x-ratelimit-* or anthropic-ratelimit-* are sent for limits that are set.
//
// # Faults
//
// Faults are the same in all protocols; each gives them its own looks. The first rule that matches a request decides
// it. Rules see the requests that passed authentication, validation and limits; only close on_accept comes before all
// that. A probability is drawn from the seed, the rule, the content and the number of the request for that content, so
// the same work meets the same faults in whatever order it arrives. Tests wait for requests that hang and release
// them; nothing needs to sleep:
//
//	sim := providersim.New(providersim.Options{Script: []providersim.Rule{
//		{Match: providersim.Match{Attempt: 1}, Action: providersim.Action{Hang: providersim.HangAfterAnswer}},
//	}})
//	err := sim.Start("")
//	// ... begin a call ...
//	err = sim.WaitHanging(ctx, 1)
//	// ... crash the caller ...
//	sim.Release()
//
// # Control over HTTP
//
//	POST   /_sim/rules     adds a rule or a list of rules
//	GET    /_sim/rules     rules in force, each with the number of requests it took
//	DELETE /_sim/rules     removes all rules
//	PUT    /_sim/outage    begins an outage: an action for every request, before all rules
//	DELETE /_sim/outage    ends it
//	POST   /_sim/release   lets hanging requests go on: {"released":3}
//	GET    /_sim/ledger    a list of [Entry]; ?since=N gives those after number N
//	GET    /_sim/stats     [Stats]
//	GET    /_sim/healthz   {"status":"ok"}
//
// Rules and actions in JSON have the fields of [Rule], [Match] and [Action] in snake_case; durations are strings.
// An unknown field is refused. Examples:
//
//	{"name": "storm", "match": {"from": 10, "to": 60}, "action": {"error": "rate_limit", "retry_after": "2s"}}
//	{"match": {"attempt": 1, "probability": 0.05}, "action": {"hang": "after_answer"}}
//	{"match": {"text": "printer"}, "action": {"content": "{\"is_urgent\": true}"}, "times": 1}
//	{"match": {"after": "30s", "before": "90s"}, "action": {"close": "after_answer"}}
//	{"action": {"status": 200, "body": "<html>login</html>", "headers": {"Content-Type": "text/html"}}}
//	{"action": {"cut_after_bytes": 40, "latency": "250ms"}}
//
// and an outage:
//
//	{"error": "overloaded_503"}
//
// One entry of the ledger:
//
//	{"seq": 1, "request_id": "req_5e9c...", "protocol": "openai", "received_at": "2026-01-01T00:00:00.1Z",
//	 "ended_at": "2026-01-01T00:00:00.2Z", "content": "c0ffee...", "attempt": 1, "model": "gpt-5-mini",
//	 "served_model": "gpt-5-mini-2026-01-01", "status": 200, "outcome": "answered", "billed": true,
//	 "input_tokens": 412, "cached_input_tokens": 256, "cache_write_tokens": 0, "output_tokens": 19,
//	 "reasoning_tokens": 0, "cost_usd": "0.0001", "user_agent": "evaluator-worker", "headers": {"idempotency-key": "..."}}
//
// # What the ledger keeps
//
// Of a ticket, its fingerprint: the SHA-256 of the text between the marks. Of headers, User-Agent and those that
// identify a request: x-evalonce-*, idempotency-key, x-idempotency-key, x-client-request-id and
// x-stainless-retry-count. Never a key, never text. Entries are kept as long as the server lives; an entry takes
// 64 bytes and its identifying headers, and each distinct content about 130 bytes more.
package providersim
