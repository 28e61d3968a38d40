package providersim

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// anthropic speaks the protocol of Anthropic's messages, with structured output and without streaming, tools or
// beta features.
type anthropic struct{}

func (s *Server) routeAnthropic(mux *http.ServeMux) {
	complete := s.complete(anthropic{})
	mux.HandleFunc("/v1/messages", func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			send(w, anthropicError(http.StatusMethodNotAllowed, anthropicProblem{Type: "invalid_request_error", Message: "Method Not Allowed"}))
			return
		}
		complete(w, r)
	})
}

func (anthropic) name() string { return "anthropic" }

func (anthropic) requestIDHeader() string { return "Request-Id" }

func (anthropic) key(h http.Header) string { return cmp.Or(h.Get("X-Api-Key"), bearer(h)) }

func (anthropic) allowances(h http.Header, left []allowance, now time.Time) {
	for _, a := range left {
		of := a.of
		if of == overTokens {
			of = "input-tokens"
		}
		h.Set("anthropic-ratelimit-"+of+"-limit", strconv.Itoa(a.limit))
		h.Set("anthropic-ratelimit-"+of+"-remaining", strconv.Itoa(a.left))
		h.Set("anthropic-ratelimit-"+of+"-reset", now.Add(a.reset).UTC().Format(time.RFC3339))
	}
}

// anthropicRequest holds every parameter of the API's version 2026-10-21; those that do not matter here are only
// named, because an unknown one is refused, and so are those that this version has dropped.
type anthropicRequest struct {
	Model        string             `json:"model"`
	MaxTokens    *int64             `json:"max_tokens"`
	System       anthropicText      `json:"system"`
	Messages     []anthropicMessage `json:"messages"`
	Stream       bool               `json:"stream"`
	OutputConfig struct {
		Effort *string          `json:"effort"`
		Format *anthropicFormat `json:"format"`
	} `json:"output_config"`

	CacheControl  json.RawMessage `json:"cache_control"`
	Container     json.RawMessage `json:"container"`
	Diagnostics   json.RawMessage `json:"diagnostics"`
	InferenceGeo  json.RawMessage `json:"inference_geo"`
	Metadata      json.RawMessage `json:"metadata"`
	ServiceTier   json.RawMessage `json:"service_tier"`
	Speed         json.RawMessage `json:"speed"`
	StopSequences json.RawMessage `json:"stop_sequences"`
	Thinking      json.RawMessage `json:"thinking"`
	ToolChoice    json.RawMessage `json:"tool_choice"`
	Tools         json.RawMessage `json:"tools"`
}

type anthropicMessage struct {
	Role    string        `json:"role"`
	Content anthropicText `json:"content"`
}

type anthropicFormat struct {
	Type   string          `json:"type"`
	Schema json.RawMessage `json:"schema"`
}

// anthropicText is a text, or a list of blocks of text.
type anthropicText struct {
	text   string
	cached string // the text up to the last block that asks for caching, that one included
}

func (t *anthropicText) UnmarshalJSON(data []byte) error {
	if len(data) == 0 || data[0] != '[' {
		return json.Unmarshal(data, &t.text)
	}
	var blocks []struct {
		Type         string           `json:"type"`
		Text         string           `json:"text"`
		CacheControl *json.RawMessage `json:"cache_control"`
	}
	if err := decodeStrictly(data, &blocks); err != nil {
		return err
	}
	for _, b := range blocks {
		if b.Type != "text" {
			return fmt.Errorf("a block of type %q", b.Type)
		}
		t.text += b.Text
		if b.CacheControl != nil {
			t.cached = t.text
		}
	}
	return nil
}

func (d anthropic) parse(h http.Header, body []byte) (completion, *response) {
	refuse := func(format string, args ...any) (completion, *response) {
		refusal := anthropicError(http.StatusBadRequest, anthropicProblem{Type: "invalid_request_error", Message: fmt.Sprintf(format, args...)})
		return completion{}, &refusal
	}
	switch version := h.Get("Anthropic-Version"); version {
	case "2023-06-01", "2026-10-21":
	case "":
		return refuse("anthropic-version: header is required")
	default:
		return refuse("anthropic-version: %q is not a valid version", version)
	}
	var r anthropicRequest
	if err := decodeStrictly(body, &r); err != nil {
		if name, ok := unknownField(err); ok {
			return refuse("%s: Extra inputs are not permitted", name)
		}
		return refuse("The request body is not valid JSON, or not of the right types: %s", err)
	}
	switch {
	case r.Model == "":
		return refuse("model: Field required")
	case r.MaxTokens == nil:
		return refuse("max_tokens: Field required")
	case *r.MaxTokens < 1:
		return refuse("max_tokens: Input should be greater than or equal to 1")
	case len(r.Messages) == 0:
		return refuse("messages: at least one message is required")
	case r.Stream:
		return refuse("stream: this simulator answers in one piece")
	case r.OutputConfig.Effort != nil && !slices.Contains([]string{"low", "medium", "high", "xhigh", "max"}, *r.OutputConfig.Effort):
		return refuse("output_config.effort: Input should be 'low', 'medium', 'high', 'xhigh' or 'max'")
	}
	c := completion{
		model: r.Model, outputLimit: *r.MaxTokens, system: r.System.text,
		cacheable: cacheable(r.System.cached), cacheWrites: true,
	}
	c.inputTokens = tokens(len(c.system))
	for i, m := range r.Messages {
		if m.Role != "user" && m.Role != "assistant" {
			return refuse("messages.%d.role: Input should be 'user' or 'assistant'", i)
		}
		c.inputTokens += tokens(len(m.Content.text))
	}
	last := r.Messages[len(r.Messages)-1]
	if last.Role != "user" {
		return refuse("messages: the conversation must end with a user message")
	}
	c.ticket = extractTicket(last.Content.text)

	f := r.OutputConfig.Format
	if f == nil || f.Type != "json_schema" {
		return refuse("output_config.format: this simulator answers structured output only: a format of type 'json_schema' is required")
	}
	departments, problem := strictDepartments(f.Schema)
	if problem == "" {
		problem = rangesIn(f.Schema)
	}
	if problem != "" {
		return refuse("output_config.format.schema: %s", problem)
	}
	c.departments, c.schema = departments, string(f.Schema)
	c.inputTokens += tokens(len(c.schema))
	return c, nil
}

// rangesIn finds the keywords that structured output refuses here, in the properties of the outermost object.
func rangesIn(schema json.RawMessage) (problem string) {
	var s struct {
		Properties map[string]map[string]json.RawMessage `json:"properties"`
	}
	if err := json.Unmarshal(schema, &s); err != nil {
		return "properties must be objects"
	}
	for name, property := range s.Properties {
		for _, keyword := range []string{"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength"} {
			if _, ok := property[keyword]; ok {
				return fmt.Sprintf("For %q, property %s is not supported", name, keyword)
			}
		}
	}
	return ""
}

type anthropicProblem struct {
	Type    string            `json:"type"`
	Message string            `json:"message"`
	Details *anthropicDetails `json:"details,omitempty"`
}

type anthropicDetails struct {
	ErrorCode string `json:"error_code"`
}

func anthropicError(status int, p anthropicProblem) response {
	return jsonResponse(status, struct {
		Type  string           `json:"type"`
		Error anthropicProblem `json:"error"`
	}{"error", p})
}

func (d anthropic) throttle(o overLimit, _ completion) response {
	message := fmt.Sprintf("This request would exceed your organization's rate limit of %d %s per minute.", o.limit, o.of)
	if o.of == overConcurrency {
		message = fmt.Sprintf("Number of %s has exceeded your rate limit of %d.", o.of, o.limit)
	}
	return anthropicError(http.StatusTooManyRequests, anthropicProblem{Type: "rate_limit_error", Message: message})
}

func (d anthropic) failure(e Error, c completion) response {
	problem := func(status int, kind, format string, args ...any) response {
		return anthropicError(status, anthropicProblem{Type: kind, Message: fmt.Sprintf(format, args...)})
	}
	switch e {
	case RateLimit:
		return problem(http.StatusTooManyRequests, "rate_limit_error", "This request would exceed your organization's rate limit of 50 requests per minute.")
	case SlowDown:
		return anthropicError(http.StatusTooManyRequests, anthropicProblem{
			Type: "rate_limit_error", Message: "This request would exceed how fast your usage may grow.",
			Details: &anthropicDetails{ErrorCode: "ramp_limit_exceeded"},
		})
	case InsufficientQuota:
		return anthropicError(http.StatusTooManyRequests, anthropicProblem{
			Type: "rate_limit_error",
			Message: "You have reached your API usage limits: your organization has crossed its monthly API usage threshold, " +
				"set based on your organization's API tier.",
			Details: &anthropicDetails{ErrorCode: "enforced_spend_limit_reached"},
		})
	case SpendLimit:
		return problem(http.StatusBadRequest, "invalid_request_error",
			"You have reached your specified API usage limits. You will regain access on 2027-01-01 at 00:00 UTC.")
	case InvalidAPIKey:
		return problem(http.StatusUnauthorized, "authentication_error", "invalid x-api-key")
	case Forbidden:
		return problem(http.StatusForbidden, "permission_error", "Your API key does not have permission to use the specified resource.")
	case ModelNotFound:
		return problem(http.StatusNotFound, "not_found_error", "model: %s", c.model)
	case Overloaded503:
		return problem(http.StatusServiceUnavailable, "api_error", "Service unavailable")
	case ServerError500:
		return problem(http.StatusInternalServerError, "api_error", "Internal server error")
	case BadGateway502:
		return gatewayPage(http.StatusBadGateway)
	case GatewayTimeout504:
		return problem(http.StatusGatewayTimeout, "timeout_error", "Request timed out")
	case Overloaded529:
		const statusOverloaded = 529
		return problem(statusOverloaded, "overloaded_error", "Overloaded")
	case ContextLength:
		return problem(http.StatusBadRequest, "invalid_request_error", "prompt is too long: %d tokens > 200000 maximum", 200000+c.inputTokens)
	case ContentFilter400:
		return problem(http.StatusBadRequest, "invalid_request_error", "Output blocked by content filtering policy")
	case BadSchema400:
		return problem(http.StatusBadRequest, "invalid_request_error",
			"output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly set to false")
	case Conflict409:
		return problem(http.StatusConflict, "conflict_error", "The request conflicts with the current state of a resource.")
	case RequestTimeout408:
		return problem(http.StatusRequestTimeout, "timeout_error", "Request timed out")
	case RequestTooLarge413:
		return problem(http.StatusRequestEntityTooLarge, "request_too_large", "Request exceeds the maximum size")
	}
	panic(fmt.Sprintf("error %q passed validation without a response", e))
}

type anthropicAnswer struct {
	ID           string                `json:"id"`
	Type         string                `json:"type"`
	Role         string                `json:"role"`
	Model        string                `json:"model"`
	Content      []anthropicBlock      `json:"content"`
	StopReason   string                `json:"stop_reason"`
	StopSequence *string               `json:"stop_sequence"`
	StopDetails  *anthropicStopDetails `json:"stop_details"`
	Usage        *anthropicUsage       `json:"usage"`
}

type anthropicBlock struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

type anthropicStopDetails struct {
	Type        string  `json:"type"`
	Category    *string `json:"category"`
	Explanation *string `json:"explanation"`
}

// anthropicUsage counts the input that was read from the cache and written to it apart from the rest.
type anthropicUsage struct {
	InputTokens              int64                  `json:"input_tokens"`
	CacheCreationInputTokens int64                  `json:"cache_creation_input_tokens"`
	CacheReadInputTokens     int64                  `json:"cache_read_input_tokens"`
	CacheCreation            anthropicCacheCreation `json:"cache_creation"`
	OutputTokens             int64                  `json:"output_tokens"`
	OutputTokensDetails      anthropicOutputDetails `json:"output_tokens_details"`
	ServiceTier              string                 `json:"service_tier"`
}

type anthropicCacheCreation struct {
	Ephemeral5mInputTokens int64 `json:"ephemeral_5m_input_tokens"`
	Ephemeral1hInputTokens int64 `json:"ephemeral_1h_input_tokens"`
}

type anthropicOutputDetails struct {
	ThinkingTokens int64 `json:"thinking_tokens"`
}

func (d anthropic) answer(a answer) response {
	content := []anthropicBlock{{Type: "text", Text: a.content}}
	stop := "end_turn"
	var details *anthropicStopDetails
	switch a.kind {
	case AnswerEmptyBody:
		return response{status: http.StatusOK, contentType: "application/json"}
	case AnswerErrorBody:
		out := d.failure(ServerError500, completion{})
		out.status = http.StatusOK
		return out
	case AnswerEmptyChoices:
		content = []anthropicBlock{}
	case AnswerNullContent:
		content = nil
	case AnswerEmptyContent:
		content[0].Text = ""
	case AnswerRefusal, AnswerContentFilter:
		// What other providers call a filtered answer is a refusal here.
		content, stop, details = []anthropicBlock{}, "refusal", &anthropicStopDetails{Type: "refusal"}
	case AnswerTruncated, AnswerLength:
		stop = "max_tokens"
	}
	u := a.usage
	out := anthropicAnswer{
		ID: "msg_" + a.id, Type: "message", Role: "assistant", Model: a.model,
		Content: content, StopReason: cmp.Or(a.finishReason, stop), StopDetails: details,
		Usage: &anthropicUsage{
			InputTokens: u.input - u.cachedInput - u.cacheWrite, CacheReadInputTokens: u.cachedInput, CacheCreationInputTokens: u.cacheWrite,
			CacheCreation: anthropicCacheCreation{Ephemeral5mInputTokens: u.cacheWrite},
			OutputTokens:  u.output, ServiceTier: "standard",
		},
	}
	if a.kind == AnswerNoUsage {
		out.Usage = nil
	}
	full := jsonResponse(http.StatusOK, out)
	if a.kind == AnswerBadJSON {
		full.body = full.body[:len(full.body)/2]
	}
	return full
}
