package failure

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// rule names the reason of the error responses to which all of its conditions apply. One that is left out applies to
// every response.
type rule struct {
	reason   Reason
	statuses []int          // one of them
	words    []string       // a part of a machine word
	text     *regexp.Regexp // of the prose
	waits    bool           // the provider says when to come back
}

func (r rule) applies(status int, w wireError, waits bool) bool {
	return (r.statuses == nil || slices.Contains(r.statuses, status)) &&
		(r.words == nil || w.hasPart(r.words)) &&
		(r.text == nil || r.text.MatchString(w.text)) &&
		(!r.waits || waits)
}

func (w wireError) hasPart(parts []string) bool {
	return slices.ContainsFunc(parts, func(part string) bool {
		return slices.ContainsFunc(w.words, func(word string) bool { return strings.Contains(word, part) })
	})
}

// Statuses of providers and gateways that net/http has no names for.
const (
	statusClientClosed  = 499 // nginx: the client went away while the request was served
	statusOriginTimeout = 524 // Cloudflare: connected, but no response in time
	statusOverloaded    = 529 // Anthropic
)

// rules are tried in order. The provider's machine words come before the status, which gateways choose freely; a word
// is known by a part of it, since the words for a spent account are many and new ones come. Prose is believed only with
// the statuses that are sent for such causes, so that an error that quotes the ticket cannot be read as another.
var rules = []rule{
	// What leaves open whether the request was served comes before any word.
	{reason: Timeout, statuses: []int{http.StatusRequestTimeout, http.StatusGatewayTimeout, statusClientClosed, statusOriginTimeout}},
	{reason: Timeout, words: []string{"timeout_error"}},
	{reason: Conflict, statuses: []int{http.StatusConflict}},

	// Texts that say more than the words beside them. One request above the limit of a whole minute would be throttled
	// for ever, and its route with it; a month's limit would be probed as if it were a minute's.
	{reason: ContextTooLong, statuses: []int{429}, text: regexp.MustCompile(`(?is)request too large.*reduced? `)},
	{reason: QuotaExhausted, statuses: []int{400, 403, 429}, text: regexp.MustCompile(`(?i)reached your[^.:]{0,40} usage limit`)},

	// OpenRouter: the calls under way use up the budget, and the first that ends makes room.
	{reason: RateLimited, statuses: []int{http.StatusPaymentRequired}, waits: true},
	{reason: RateLimited, statuses: []int{http.StatusPaymentRequired}, words: []string{"in_flight_budget"}},

	{reason: QuotaExhausted, words: []string{
		"quota", "billing", "spend_limit", "usage_limit", "hard_limit", "credit",
		"insufficient_balance", "budget_exceeded", "payment_required",
	}},
	{reason: ContextTooLong, words: []string{
		"context_length", "context_window", "context_size", "string_above_max_length", "request_too_large",
	}},
	{reason: ContentFilter, words: []string{"content_filter", "content_policy", "responsibleaipolicyviolation"}},
	{reason: ModelNotFound, words: []string{"model_not_found", "deploymentnotfound"}},
	{reason: Unauthorized, words: []string{"invalid_api_key", "authentication_error", "unauthenticated"}},
	{reason: RateLimited, words: []string{"rate_limit", "slow_down", "resource_exhausted"}},

	{reason: ContextTooLong, statuses: []int{400, 422, 500}, text: regexp.MustCompile(`(?i)maximum context length|maximum model length` +
		`|(exceed|larger than|longer than|fit)[^.]{0,60}context (length|window|size|limit)` +
		`|context (length|window|size)[^.]{0,40}exceed` +
		`|(prompt|input)\b[^.]{0,60} too (long|large)` +
		`|exceeds the maximum number of tokens`)},
	{reason: ContentFilter, statuses: []int{400, 403, 422}, text: regexp.MustCompile(
		`(?i)(input|prompt|request|message|content)\b[^.]{0,20} flagged` +
			`|content[ -]filter|content (management )?policy|safety (system|policy|filter)`)},
	{reason: QuotaExhausted, statuses: []int{400, 403, 429}, text: regexp.MustCompile(
		`(?i)exceeded your current quota|credit balance is too low` +
			`|insufficient (credit|balance|funds|quota)|(billing|spend|spending) (hard )?limit`)},
	{reason: ModelNotFound, statuses: []int{400, 404, 410}, text: regexp.MustCompile(
		`(?i)\bmodel\b.*(not found|not exist|deprecated)|^model: `)},

	{reason: BadRequest, statuses: []int{
		http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusNotAcceptable,
		http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity,
	}},
	{reason: Unauthorized, statuses: []int{http.StatusUnauthorized, http.StatusProxyAuthRequired}},
	{reason: QuotaExhausted, statuses: []int{http.StatusPaymentRequired}},
	{reason: Forbidden, statuses: []int{http.StatusForbidden, http.StatusUnavailableForLegalReasons}},
	{reason: NotFound, statuses: []int{http.StatusNotFound, http.StatusGone}},
	{reason: ContextTooLong, statuses: []int{http.StatusRequestEntityTooLarge}},
	{reason: RateLimited, statuses: []int{http.StatusTooManyRequests}},
	{reason: Overloaded, statuses: []int{http.StatusServiceUnavailable, statusOverloaded}},
	{reason: Overloaded, words: []string{"overloaded"}},
}
