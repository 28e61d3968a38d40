package providersim

import (
	"cmp"
	"encoding/json"
	"net/http"
)

// openAIResponses speaks the protocol of OpenAI's responses, with structured output, without streaming and without a
// memory: nothing is stored, and no earlier response can be continued. Its errors are those of openAI.
type openAIResponses struct{ openAI }

func (openAIResponses) name() string { return "openai_responses" }

// openAIResponsesRequest holds every parameter of the API; those that do not matter here are only named, because an
// unknown one is refused.
type openAIResponsesRequest struct {
	Model           string              `json:"model"`
	Instructions    string              `json:"instructions"`
	Input           openAIResponseInput `json:"input"`
	MaxOutputTokens int64               `json:"max_output_tokens"`
	Stream          bool                `json:"stream"`
	Store           *bool               `json:"store"`
	Background      bool                `json:"background"`
	Reasoning       struct {
		Effort *string `json:"effort"`

		Context         json.RawMessage `json:"context"`
		GenerateSummary json.RawMessage `json:"generate_summary"`
		Summary         json.RawMessage `json:"summary"`
	} `json:"reasoning"`
	Text struct {
		Format *openAITextFormat `json:"format"`

		Verbosity json.RawMessage `json:"verbosity"`
	} `json:"text"`

	ContextManagement    json.RawMessage `json:"context_management"`
	Conversation         json.RawMessage `json:"conversation"`
	Include              json.RawMessage `json:"include"`
	MaxToolCalls         json.RawMessage `json:"max_tool_calls"`
	Metadata             json.RawMessage `json:"metadata"`
	Moderation           json.RawMessage `json:"moderation"`
	ParallelToolCalls    json.RawMessage `json:"parallel_tool_calls"`
	PreviousResponseID   json.RawMessage `json:"previous_response_id"`
	Prompt               json.RawMessage `json:"prompt"`
	PromptCacheKey       json.RawMessage `json:"prompt_cache_key"`
	PromptCacheOptions   json.RawMessage `json:"prompt_cache_options"`
	PromptCacheRetention json.RawMessage `json:"prompt_cache_retention"`
	SafetyIdentifier     json.RawMessage `json:"safety_identifier"`
	ServiceTier          json.RawMessage `json:"service_tier"`
	StreamOptions        json.RawMessage `json:"stream_options"`
	Temperature          json.RawMessage `json:"temperature"`
	ToolChoice           json.RawMessage `json:"tool_choice"`
	Tools                json.RawMessage `json:"tools"`
	TopLogprobs          json.RawMessage `json:"top_logprobs"`
	TopP                 json.RawMessage `json:"top_p"`
	Truncation           json.RawMessage `json:"truncation"`
	User                 json.RawMessage `json:"user"`
}

type openAITextFormat struct {
	Type string `json:"type"`
	openAIJSONSchema
}

type openAIInputItem struct {
	Type string `json:"type"`
	openAIMessage
}

// openAIResponseInput is a user's text, or a list of messages.
type openAIResponseInput []openAIInputItem

func (i *openAIResponseInput) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '[' {
		return json.Unmarshal(data, (*[]openAIInputItem)(i))
	}
	message := openAIInputItem{openAIMessage: openAIMessage{Role: "user"}}
	if err := json.Unmarshal(data, &message.Content); err != nil {
		return err
	}
	if message.Content != "" {
		*i = openAIResponseInput{message}
	}
	return nil
}

func (d openAIResponses) parse(_ http.Header, body []byte) (completion, *response) {
	var r openAIResponsesRequest
	if refusal := decodeOpenAI(body, &r); refusal != nil {
		return completion{}, refusal
	}
	refuse := refuseOpenAI
	switch {
	case r.Model == "":
		return refuse("model", "missing_required_parameter", "Missing required parameter: 'model'.")
	case len(r.Input) == 0:
		return refuse("input", "missing_required_parameter", "Missing required parameter: 'input'.")
	case r.Stream || r.Background:
		return refuse("stream", "unsupported_value", "This simulator answers at once and in one piece.")
	case r.Store == nil || *r.Store:
		return refuse("store", "unsupported_value", "This simulator stores nothing: 'store' must be false.")
	case r.MaxOutputTokens < 0:
		return refuse("max_output_tokens", "integer_below_min_value", "Invalid 'max_output_tokens': integer below minimum value.")
	case r.Reasoning.Effort != nil && !isOpenAIEffort(*r.Reasoning.Effort):
		return refuse("reasoning.effort", "invalid_value", "Invalid value: '%s'.", *r.Reasoning.Effort)
	}
	c := completion{model: r.Model, outputLimit: r.MaxOutputTokens, system: r.Instructions}
	user, found := "", false
	for _, m := range r.Input {
		switch m.Role {
		case "system", "developer":
			c.system += string(m.Content)
		case "user":
			user, found = string(m.Content), true
		case "assistant":
		default:
			return refuse("input", "invalid_value", "Invalid value: '%s'.", m.Role)
		}
		c.inputTokens += tokens(len(m.Content))
	}
	if !found {
		return refuse("input", "invalid_value", "Invalid 'input': there is no user message.")
	}
	c.inputTokens += tokens(len(r.Instructions))
	c.ticket = extractTicket(user)
	c.cacheable = cacheable(c.system)
	f := r.Text.Format
	if f == nil || f.Type != "json_schema" {
		return refuse("text.format", "invalid_value", "This simulator answers structured output only: 'text.format' must be of type 'json_schema'.")
	}
	return c.answeringIn("text.format", f.openAIJSONSchema)
}

type openAIResponse struct {
	ID                string               `json:"id"`
	Object            string               `json:"object"`
	CreatedAt         int64                `json:"created_at"`
	Status            string               `json:"status"`
	Background        bool                 `json:"background"`
	Error             *openAIResponseError `json:"error"`
	IncompleteDetails *openAIIncomplete    `json:"incomplete_details"`
	Model             string               `json:"model"`
	Output            []openAIOutputItem   `json:"output"`
	ParallelToolCalls bool                 `json:"parallel_tool_calls"`
	Store             bool                 `json:"store"`
	Usage             *openAIResponseUsage `json:"usage"`
	Metadata          map[string]string    `json:"metadata"`
	Tools             []struct{}           `json:"tools"`
	ToolChoice        string               `json:"tool_choice"`
}

type openAIResponseError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

type openAIIncomplete struct {
	Reason string `json:"reason"`
}

type openAIOutputItem struct {
	Type    string             `json:"type"`
	ID      string             `json:"id"`
	Status  string             `json:"status"`
	Role    string             `json:"role"`
	Content []openAIOutputPart `json:"content"`
}

type openAIOutputPart struct {
	Type        string      `json:"type"`
	Text        *string     `json:"text,omitempty"`
	Refusal     string      `json:"refusal,omitempty"`
	Annotations *[]struct{} `json:"annotations,omitempty"`
}

type openAIResponseUsage struct {
	InputTokens         int64                  `json:"input_tokens"`
	InputTokensDetails  openAIInputDetails     `json:"input_tokens_details"`
	OutputTokens        int64                  `json:"output_tokens"`
	OutputTokensDetails openAIReasoningDetails `json:"output_tokens_details"`
	TotalTokens         int64                  `json:"total_tokens"`
}

type openAIInputDetails struct {
	CachedTokens     int64 `json:"cached_tokens"`
	CacheWriteTokens int64 `json:"cache_write_tokens"`
}

type openAIReasoningDetails struct {
	ReasoningTokens int64 `json:"reasoning_tokens"`
}

func (d openAIResponses) answer(a answer) response {
	if a.kind == AnswerEmptyBody {
		return response{status: http.StatusOK, contentType: "application/json"}
	}
	part := openAIOutputPart{Type: "output_text", Text: &a.content, Annotations: &[]struct{}{}}
	incomplete := ""
	switch a.kind {
	case AnswerEmptyContent:
		part.Text = new(string)
	case AnswerRefusal:
		part = openAIOutputPart{Type: "refusal", Refusal: "I'm sorry, I can't assist with that request."}
	case AnswerTruncated, AnswerLength:
		incomplete = "max_output_tokens"
	case AnswerContentFilter:
		part.Text = new(string)
		incomplete = "content_filter"
	}
	item := openAIOutputItem{Type: "message", ID: "msg_" + a.id, Status: "completed", Role: "assistant", Content: []openAIOutputPart{part}}
	if a.kind == AnswerNullContent {
		item.Content = []openAIOutputPart{}
	}
	u := a.usage
	out := openAIResponse{
		ID: "resp_" + a.id, Object: "response", CreatedAt: a.created.Unix(), Status: "completed", Model: a.model,
		Output: []openAIOutputItem{item}, ParallelToolCalls: true, Metadata: map[string]string{}, Tools: []struct{}{}, ToolChoice: "auto",
		Usage: &openAIResponseUsage{
			InputTokens: u.input, OutputTokens: u.output, TotalTokens: u.input + u.output,
			InputTokensDetails: openAIInputDetails{CachedTokens: u.cachedInput, CacheWriteTokens: u.cacheWrite},
		},
	}
	if reason := cmp.Or(a.finishReason, incomplete); reason != "" {
		out.Status, out.IncompleteDetails = "incomplete", &openAIIncomplete{Reason: reason}
		out.Output[0].Status = out.Status
	}
	switch a.kind {
	case AnswerErrorBody:
		out.Status, out.Output, out.Usage = "failed", []openAIOutputItem{}, nil
		out.Error = &openAIResponseError{Code: "server_error", Message: "The model failed to generate a response."}
	case AnswerEmptyChoices:
		out.Output = []openAIOutputItem{}
	case AnswerNoUsage:
		out.Usage = nil
	}
	full := jsonResponse(http.StatusOK, out)
	if a.kind == AnswerBadJSON {
		full.body = full.body[:len(full.body)/2]
	}
	return full
}
