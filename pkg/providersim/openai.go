package providersim

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// openAI speaks the protocol of OpenAI's chat completions, with structured output and without streaming.
type openAI struct{}

const chatCompletionsPath = "/v1/chat/completions"

func (s *Server) routeOpenAI(mux *http.ServeMux) {
	d := openAI{}
	for path, d := range map[string]dialect{chatCompletionsPath: d, "/v1/responses": openAIResponses{}} {
		complete := s.complete(d)
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Openai-Version", "2020-10-01")
			if r.Method == http.MethodGet && path == chatCompletionsPath {
				s.probe(d, s.archive.list)(w, r)
				return
			}
			if r.Method != http.MethodPost {
				send(w, openAIError(http.StatusMethodNotAllowed, openAIProblem{
					Message: fmt.Sprintf("Not allowed to %s on %s.", r.Method, path), Type: "invalid_request_error", Code: "method_not_supported",
				}))
				return
			}
			complete(w, r)
		})
	}
	mux.HandleFunc("GET /v1/models", s.probe(d, func(*http.Request) response {
		list := openAIModelList{Object: "list", Data: []openAIModel{}}
		for _, id := range s.options.Models {
			list.Data = append(list.Data, s.openAIModel(id))
		}
		return jsonResponse(http.StatusOK, list)
	}))
	mux.HandleFunc("GET /v1/models/{model}", s.probe(d, func(r *http.Request) response {
		id := r.PathValue("model")
		if len(s.options.Models) > 0 && !slices.Contains(s.options.Models, id) {
			return d.failure(ModelNotFound, completion{model: id})
		}
		return jsonResponse(http.StatusOK, s.openAIModel(id))
	}))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		send(w, openAIError(http.StatusNotFound, openAIProblem{
			Message: fmt.Sprintf("Invalid URL (%s %s)", r.Method, r.URL.Path), Type: "invalid_request_error",
		}))
	})
}

type openAIModelList struct {
	Object string        `json:"object"`
	Data   []openAIModel `json:"data"`
}

type openAIModel struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

func (s *Server) openAIModel(id string) openAIModel {
	return openAIModel{ID: id, Object: "model", Created: s.made.Unix(), OwnedBy: "system"}
}

func (openAI) name() string { return "openai" }

func (openAI) requestIDHeader() string { return "X-Request-Id" }

func (openAI) key(h http.Header) string { return bearer(h) }

func bearer(h http.Header) string {
	key, _ := strings.CutPrefix(h.Get("Authorization"), "Bearer ")
	return key
}

func (openAI) allowances(h http.Header, left []allowance, _ time.Time) {
	for _, a := range left {
		h.Set("x-ratelimit-limit-"+a.of, strconv.Itoa(a.limit))
		h.Set("x-ratelimit-remaining-"+a.of, strconv.Itoa(a.left))
		h.Set("x-ratelimit-reset-"+a.of, a.reset.Round(time.Millisecond).String())
	}
}

// openAIRequest holds every parameter of the API; those that do not matter here are only named, because an
// unknown one is refused.
type openAIRequest struct {
	Model               string                `json:"model"`
	Messages            []openAIMessage       `json:"messages"`
	ResponseFormat      *openAIResponseFormat `json:"response_format"`
	MaxCompletionTokens int64                 `json:"max_completion_tokens"`
	MaxTokens           int64                 `json:"max_tokens"`
	N                   *int                  `json:"n"`
	Stream              bool                  `json:"stream"`
	ReasoningEffort     *string               `json:"reasoning_effort"`

	Audio                json.RawMessage   `json:"audio"`
	FrequencyPenalty     json.RawMessage   `json:"frequency_penalty"`
	FunctionCall         json.RawMessage   `json:"function_call"`
	Functions            json.RawMessage   `json:"functions"`
	LogitBias            json.RawMessage   `json:"logit_bias"`
	Logprobs             json.RawMessage   `json:"logprobs"`
	Metadata             map[string]string `json:"metadata"`
	Modalities           json.RawMessage   `json:"modalities"`
	ParallelToolCalls    json.RawMessage   `json:"parallel_tool_calls"`
	Prediction           json.RawMessage   `json:"prediction"`
	PresencePenalty      json.RawMessage   `json:"presence_penalty"`
	PromptCacheKey       json.RawMessage   `json:"prompt_cache_key"`
	PromptCacheRetention json.RawMessage   `json:"prompt_cache_retention"`
	SafetyIdentifier     json.RawMessage   `json:"safety_identifier"`
	Seed                 json.RawMessage   `json:"seed"`
	ServiceTier          json.RawMessage   `json:"service_tier"`
	Stop                 json.RawMessage   `json:"stop"`
	Store                bool              `json:"store"`
	StreamOptions        json.RawMessage   `json:"stream_options"`
	Temperature          json.RawMessage   `json:"temperature"`
	ToolChoice           json.RawMessage   `json:"tool_choice"`
	Tools                json.RawMessage   `json:"tools"`
	TopLogprobs          json.RawMessage   `json:"top_logprobs"`
	TopP                 json.RawMessage   `json:"top_p"`
	User                 json.RawMessage   `json:"user"`
	Verbosity            json.RawMessage   `json:"verbosity"`
	WebSearchOptions     json.RawMessage   `json:"web_search_options"`
}

type openAIMessage struct {
	Role    string        `json:"role"`
	Content openAIContent `json:"content"`
}

// openAIContent is a text, or a list of parts of which the texts are taken.
type openAIContent string

func (c *openAIContent) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '[' {
		var parts []struct {
			Text string `json:"text"`
		}
		if err := json.Unmarshal(data, &parts); err != nil {
			return err
		}
		var all strings.Builder
		for _, p := range parts {
			all.WriteString(p.Text)
		}
		*c = openAIContent(all.String())
		return nil
	}
	var text *string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	if text != nil {
		*c = openAIContent(*text)
	}
	return nil
}

type openAIResponseFormat struct {
	Type       string            `json:"type"`
	JSONSchema *openAIJSONSchema `json:"json_schema"`
}

type openAIJSONSchema struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Strict      *bool           `json:"strict"`
	Schema      json.RawMessage `json:"schema"`
}

// refuseOpenAI is what parse returns of a request that is not acceptable.
func refuseOpenAI(param, code, format string, args ...any) (completion, *response) {
	refusal := openAIError(http.StatusBadRequest, openAIProblem{
		Message: fmt.Sprintf(format, args...), Type: "invalid_request_error", Param: param, Code: code,
	})
	return completion{}, &refusal
}

// decodeOpenAI reads the body into a request that names every parameter.
func decodeOpenAI(body []byte, into any) *response {
	err := decodeStrictly(body, into)
	if err == nil {
		return nil
	}
	if name, ok := unknownField(err); ok {
		_, refusal := refuseOpenAI(name, "unknown_parameter", "Unknown parameter: '%s'.", name)
		return refusal
	}
	_, refusal := refuseOpenAI("", "", "We could not parse the JSON body of your request.")
	return refusal
}

// unknownField returns the name that decodeStrictly has refused, if it did.
func unknownField(err error) (string, bool) {
	name, ok := strings.CutPrefix(err.Error(), "json: unknown field ")
	return strings.Trim(name, `"`), ok
}

func isOpenAIEffort(effort string) bool {
	return slices.Contains([]string{"none", "minimal", "low", "medium", "high", "xhigh", "max"}, effort)
}

func (d openAI) parse(_ http.Header, body []byte) (completion, *response) {
	refuse := refuseOpenAI
	var r openAIRequest
	if refusal := decodeOpenAI(body, &r); refusal != nil {
		return completion{}, refusal
	}
	switch {
	case r.Model == "":
		return refuse("", "", "you must provide a model parameter")
	case len(r.Messages) == 0:
		return refuse("messages", "missing_required_parameter", "Missing required parameter: 'messages'.")
	case r.Stream:
		return refuse("stream", "unsupported_value", "Unsupported value: 'stream' does not support true with this model.")
	case r.N != nil && *r.N != 1:
		return refuse("n", "unsupported_value", "Unsupported value: 'n' does not support %d with this model.", *r.N)
	case r.MaxTokens < 0 || r.MaxCompletionTokens < 0:
		return refuse("max_completion_tokens", "integer_below_min_value", "Invalid 'max_completion_tokens': integer below minimum value.")
	case r.ReasoningEffort != nil && !isOpenAIEffort(*r.ReasoningEffort):
		return refuse("reasoning_effort", "invalid_value", "Invalid value: '%s'.", *r.ReasoningEffort)
	}
	c := completion{model: r.Model, outputLimit: cmp.Or(r.MaxCompletionTokens, r.MaxTokens)}
	user, found := "", false
	const overheadTokens = 4 // of a message
	for i, m := range r.Messages {
		c.inputTokens += tokens(len(m.Content)) + overheadTokens
		switch m.Role {
		case "system", "developer":
			c.system += string(m.Content) + "\n"
		case "user":
			user, found = string(m.Content), true
		case "assistant", "tool", "function":
		default:
			param := fmt.Sprintf("messages[%d].role", i)
			return refuse(param, "invalid_value", "Invalid value: '%s'.", m.Role)
		}
	}
	if !found {
		return refuse("messages", "invalid_value", "Invalid 'messages': there is no user message.")
	}
	c.ticket = extractTicket(user)
	c.cacheable = cacheable(c.system)
	if r.Store {
		c.stored = r.Metadata
		if c.stored == nil {
			c.stored = map[string]string{}
		}
	}

	f := r.ResponseFormat
	switch {
	case f == nil || f.Type != "json_schema":
		return refuse("response_format", "invalid_value", "This simulator answers structured output only: 'response_format' must be of type 'json_schema'.")
	case f.JSONSchema == nil:
		return refuse("response_format.json_schema", "missing_required_parameter", "Missing required parameter: 'response_format.json_schema'.")
	}
	return c.answeringIn("response_format.json_schema", *f.JSONSchema)
}

// answeringIn is the request with the format that its answer must have.
func (c completion) answeringIn(param string, f openAIJSONSchema) (completion, *response) {
	switch {
	case !isSchemaName(f.Name):
		return refuseOpenAI(param+".name", "invalid_value",
			"Invalid '%s.name': expected a string that matches the pattern '^[a-zA-Z0-9_-]+$' of at most 64 characters.", param)
	case f.Strict == nil || !*f.Strict:
		return refuseOpenAI(param+".strict", "invalid_value", "This simulator answers strict schemas only.")
	}
	departments, problem := strictDepartments(f.Schema)
	if problem != "" {
		top, _, _ := strings.Cut(param, ".")
		return refuseOpenAI(param, "", "Invalid schema for %s '%s': %s", top, f.Name, problem)
	}
	c.departments = departments
	c.schema = string(f.Schema)
	c.inputTokens += tokens(len(c.schema))
	return c, nil
}

func isSchemaName(name string) bool {
	const longest = 64
	if name == "" || len(name) > longest {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-'
	})
}

// strictDepartments checks what strict mode demands of the outermost object and reads the departments' names.
func strictDepartments(schema json.RawMessage) (names []string, problem string) {
	var s struct {
		Type                 string                     `json:"type"`
		Properties           map[string]json.RawMessage `json:"properties"`
		Required             []string                   `json:"required"`
		AdditionalProperties *bool                      `json:"additionalProperties"`
	}
	if err := json.Unmarshal(schema, &s); err != nil || s.Type != "object" {
		return nil, "schema must be a JSON Schema of 'type: \"object\"'."
	}
	if s.AdditionalProperties == nil || *s.AdditionalProperties {
		return nil, "In context=(), 'additionalProperties' is required to be supplied and to be false."
	}
	for name := range s.Properties {
		if !slices.Contains(s.Required, name) {
			return nil, fmt.Sprintf("In context=(), 'required' is required to be supplied and to be an array including every key in properties. Missing '%s'.", name)
		}
	}
	var department struct {
		Enum []string `json:"enum"`
	}
	if err := json.Unmarshal(s.Properties["department"], &department); err != nil || len(department.Enum) == 0 {
		return nil, "In context=('properties', 'department'), this simulator needs an enum of strings."
	}
	return department.Enum, ""
}

type openAIProblem struct {
	Message string
	Type    string
	Param   string
	Code    string
}

func openAIError(status int, p openAIProblem) response {
	orNull := func(s string) *string {
		if s == "" {
			return nil
		}
		return &s
	}
	type body struct {
		Message string  `json:"message"`
		Type    *string `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	}
	return jsonResponse(status, map[string]body{
		"error": {Message: p.Message, Type: orNull(p.Type), Param: orNull(p.Param), Code: orNull(p.Code)},
	})
}

func (d openAI) throttle(o overLimit, c completion) response {
	message := fmt.Sprintf("Rate limit reached for %s on %s per min: Limit %d, Requested %d.", c.model, o.of, o.limit, o.requested)
	if o.of == overConcurrency {
		message = fmt.Sprintf("Rate limit reached for %s on %s: Limit %d.", c.model, o.of, o.limit)
	}
	if o.retryAfter > 0 {
		message += fmt.Sprintf(" Please try again in %s.", o.retryAfter.Round(time.Millisecond))
	}
	kind := "requests"
	if o.of == overTokens {
		kind = "tokens"
	}
	return openAIError(http.StatusTooManyRequests, openAIProblem{Message: message, Type: kind, Code: "rate_limit_exceeded"})
}

func (d openAI) failure(e Error, c completion) response {
	switch e {
	case RateLimit:
		return openAIError(http.StatusTooManyRequests, openAIProblem{
			Message: fmt.Sprintf("Rate limit reached for %s on requests per min (RPM): Limit 500, Used 500, Requested 1.", c.model),
			Type:    "requests", Code: "rate_limit_exceeded",
		})
	case SlowDown:
		return openAIError(http.StatusServiceUnavailable, openAIProblem{
			Message: "A sudden increase in your request rate is impacting service reliability. Please reduce your request rate to its original level.",
			Type:    "server_error", Code: "slow_down",
		})
	case InsufficientQuota:
		return openAIError(http.StatusTooManyRequests, openAIProblem{
			Message: "You exceeded your current quota, please check your plan and billing details.",
			Type:    "insufficient_quota", Code: "insufficient_quota",
		})
	case SpendLimit:
		return openAIError(http.StatusBadRequest, openAIProblem{
			Message: "Billing hard limit has been reached", Type: "invalid_request_error", Code: "billing_hard_limit_reached",
		})
	case InvalidAPIKey:
		return openAIError(http.StatusUnauthorized, openAIProblem{
			Message: "Incorrect API key provided: ****. You can find your API key in the settings of your account.",
			Type:    "invalid_request_error", Code: "invalid_api_key",
		})
	case Forbidden:
		return openAIError(http.StatusForbidden, openAIProblem{
			Message: "Country, region, or territory not supported", Type: "request_forbidden", Code: "unsupported_country_region_territory",
		})
	case ModelNotFound:
		return openAIError(http.StatusNotFound, openAIProblem{
			Message: fmt.Sprintf("The model `%s` does not exist or you do not have access to it.", c.model),
			Type:    "invalid_request_error", Code: "model_not_found",
		})
	case Overloaded503:
		return openAIError(http.StatusServiceUnavailable, openAIProblem{
			Message: "The engine is currently overloaded, please try again later", Type: "server_error",
		})
	case ServerError500:
		return openAIError(http.StatusInternalServerError, openAIProblem{
			Message: "The server had an error while processing your request. Sorry about that!", Type: "server_error",
		})
	case BadGateway502:
		return gatewayPage(http.StatusBadGateway)
	case GatewayTimeout504:
		return gatewayPage(http.StatusGatewayTimeout)
	case Overloaded529:
		const statusOverloaded = 529
		return openAIError(statusOverloaded, openAIProblem{Message: "Overloaded", Type: "overloaded_error"})
	case ContextLength:
		return openAIError(http.StatusBadRequest, openAIProblem{
			Message: fmt.Sprintf("This model's maximum context length is 128000 tokens. However, your messages resulted in %d tokens. Please reduce the length of the messages.", 128000+c.inputTokens),
			Type:    "invalid_request_error", Param: "messages", Code: "context_length_exceeded",
		})
	case ContentFilter400:
		return openAIError(http.StatusBadRequest, openAIProblem{
			Message: "The response was filtered due to the prompt triggering the content management policy. Please modify your prompt and retry.",
			Param:   "prompt", Code: "content_filter",
		})
	case BadSchema400:
		return openAIError(http.StatusBadRequest, openAIProblem{
			Message: "Invalid schema for response_format 'evaluation': In context=(), 'additionalProperties' is required to be supplied and to be false.",
			Type:    "invalid_request_error", Param: "response_format",
		})
	case Conflict409:
		return openAIError(http.StatusConflict, openAIProblem{
			Message: "The resource was updated by another process. Please try your request again.", Type: "conflict_error",
		})
	case RequestTimeout408:
		return openAIError(http.StatusRequestTimeout, openAIProblem{Message: "Request timed out.", Type: "timeout"})
	case RequestTooLarge413:
		return openAIError(http.StatusRequestEntityTooLarge, openAIProblem{Message: "Request body too large.", Type: "invalid_request_error"})
	}
	panic(fmt.Sprintf("error %q passed validation without a response", e))
}

// gatewayPage is what stands before the API answers when the API does not: a page, no JSON.
func gatewayPage(status int) response {
	title := fmt.Sprintf("%d %s", status, http.StatusText(status))
	return response{
		status: status, contentType: "text/html",
		body: []byte("<html>\r\n<head><title>" + title + "</title></head>\r\n<body>\r\n<center><h1>" + title + "</h1></center>\r\n<hr><center>cloudflare</center>\r\n</body>\r\n</html>\r\n"),
	}
}

type openAICompletion struct {
	ID                string         `json:"id"`
	Object            string         `json:"object"`
	Created           int64          `json:"created"`
	Model             string         `json:"model"`
	Choices           []openAIChoice `json:"choices"`
	Usage             *openAIUsage   `json:"usage"`
	ServiceTier       string         `json:"service_tier"`
	SystemFingerprint string         `json:"system_fingerprint"`
}

type openAIChoice struct {
	Index        int                 `json:"index"`
	Message      openAIAnswerMessage `json:"message"`
	Logprobs     *struct{}           `json:"logprobs"`
	FinishReason string              `json:"finish_reason"`
}

type openAIAnswerMessage struct {
	Role        string     `json:"role"`
	Content     *string    `json:"content"`
	Refusal     *string    `json:"refusal"`
	Annotations []struct{} `json:"annotations"`
}

type openAIUsage struct {
	PromptTokens            int64                   `json:"prompt_tokens"`
	CompletionTokens        int64                   `json:"completion_tokens"`
	TotalTokens             int64                   `json:"total_tokens"`
	PromptTokensDetails     openAIPromptDetails     `json:"prompt_tokens_details"`
	CompletionTokensDetails openAICompletionDetails `json:"completion_tokens_details"`
}

type openAIPromptDetails struct {
	CachedTokens int64 `json:"cached_tokens"`
	AudioTokens  int64 `json:"audio_tokens"`
}

type openAICompletionDetails struct {
	ReasoningTokens          int64 `json:"reasoning_tokens"`
	AudioTokens              int64 `json:"audio_tokens"`
	AcceptedPredictionTokens int64 `json:"accepted_prediction_tokens"`
	RejectedPredictionTokens int64 `json:"rejected_prediction_tokens"`
}

func (d openAI) answer(a answer) response {
	message := openAIAnswerMessage{Role: "assistant", Content: &a.content, Annotations: []struct{}{}}
	finish := "stop"
	switch a.kind {
	case AnswerEmptyBody:
		return response{status: http.StatusOK, contentType: "application/json"}
	case AnswerErrorBody:
		out := d.failure(ServerError500, completion{})
		out.status = http.StatusOK
		return out
	case AnswerNullContent:
		message.Content = nil
	case AnswerEmptyContent:
		message.Content = new(string)
	case AnswerRefusal:
		refusal := "I'm sorry, I can't assist with that request."
		message.Content, message.Refusal = nil, &refusal
	case AnswerTruncated, AnswerLength:
		finish = "length"
	case AnswerContentFilter:
		message.Content = new(string)
		finish = "content_filter"
	}
	u := a.usage
	out := openAICompletion{
		ID: "chatcmpl-" + a.id, Object: "chat.completion", Created: a.created.Unix(), Model: a.model,
		Choices: []openAIChoice{{Message: message, FinishReason: cmp.Or(a.finishReason, finish)}},
		Usage: &openAIUsage{
			PromptTokens: u.input, CompletionTokens: u.output, TotalTokens: u.input + u.output,
			PromptTokensDetails: openAIPromptDetails{CachedTokens: u.cachedInput},
		},
		ServiceTier: "default", SystemFingerprint: "fp_offline_lexical_classifier",
	}
	switch a.kind {
	case AnswerEmptyChoices:
		out.Choices = []openAIChoice{}
	case AnswerNoUsage:
		out.Usage = nil
	}
	full := jsonResponse(http.StatusOK, out)
	if a.kind == AnswerBadJSON {
		full.body = full.body[:len(full.body)/2]
	}
	return full
}
