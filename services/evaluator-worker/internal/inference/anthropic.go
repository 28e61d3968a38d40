package inference

import (
	"context"
	"errors"
	"math"
	"strings"

	"github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/option"

	"github.com/evalonce/evalonce/pkg/evaluation"

	"github.com/evalonce/evalonce/services/evaluator-worker/internal/prompt"
)

const anthropicAPI = "https://api.anthropic.com"

// NewAnthropic asks by messages: Anthropic, or anyone else who speaks its protocol. The base URL is without the /v1 that
// the protocol begins with. The configuration is checked, and no connection made; errors do not repeat its values.
func NewAnthropic(c Config) (*Client, error) {
	client, err := newClient(messages, anthropicAPI, c)
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(strings.TrimRight(client.server.Path, "/"), "/v1") {
		return nil, errors.New("anthropic base URL: must not end in /v1, which is added")
	}
	// The service by itself, and not a client of the SDK: only the client reads the environment, and files too.
	service := anthropic.NewMessageService(client.anthropicOptions(c.APIKey)...)
	client.send = func(ctx context.Context, r Request, p prompt.Prompt, x *exchange) error {
		_, err := service.New(ctx, messageParams(r.Version, p),
			option.WithMiddleware(x.do),
			option.WithHeader(callIDHeader, r.CallID.String()),
			option.WithResponseBodyInto(new([]byte)),
		)
		return err
	}
	return client, nil
}

func (c *Client) anthropicOptions(key string) []option.RequestOption {
	options := []option.RequestOption{
		option.WithBaseURL(c.base()),
		option.WithHTTPClient(c.http()),
		option.WithMaxRetries(0),
		// The SDK would make spans of its own and tell the provider of the trace.
		option.WithoutOpenTelemetry(),
		// The deadline is the caller's. Without a timeout of the caller's, the SDK sets one, and refuses large output caps.
		option.WithRequestTimeout(math.MaxInt64),
		option.WithHeader("User-Agent", userAgent),
	}
	if key != "" {
		// By the header that every version of the API and every gateway knows; the SDK's own way is a bearer token.
		options = append(options, option.WithHeader("X-Api-Key", key))
	}
	for name, values := range c.server.Query() {
		for _, value := range values {
			options = append(options, option.WithQueryAdd(name, value))
		}
	}
	return options
}

// messageParams asks for one answer in the schema. Caching has to be asked for here: the system prompt is the same for
// every ticket of the version. The way to spend less or more on thinking is the effort alone; how a model thinks is
// left to its defaults.
func messageParams(v evaluation.Version, p prompt.Prompt) anthropic.MessageNewParams {
	return anthropic.MessageNewParams{
		Model:     v.Model,
		MaxTokens: int64(v.MaxOutputTokens),
		System:    []anthropic.TextBlockParam{{Text: p.System, CacheControl: anthropic.NewCacheControlEphemeralParam()}},
		Messages:  []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(p.User))},
		OutputConfig: anthropic.OutputConfigParam{
			Effort: anthropic.OutputConfigEffort(v.Effort),
			Format: anthropic.JSONOutputFormatParam{Schema: evaluation.AnswerJSONSchema(v.Departments)},
		},
	}
}

func readMessage(body []byte) reading {
	var wire struct {
		ID      string `json:"id"`
		Type    string `json:"type"`
		Model   string `json:"model"`
		Content *[]struct {
			Type string `json:"type"`
			Text string `json:"text"`
		} `json:"content"`
		StopReason string `json:"stop_reason"`
		Usage      struct {
			InputTokens              int64 `json:"input_tokens"`
			CacheReadInputTokens     int64 `json:"cache_read_input_tokens"`
			CacheCreationInputTokens int64 `json:"cache_creation_input_tokens"`
			OutputTokens             int64 `json:"output_tokens"`
			OutputTokensDetails      struct {
				ThinkingTokens int64 `json:"thinking_tokens"`
			} `json:"output_tokens_details"`
		} `json:"usage"`
	}
	if !decode(body, &wire) {
		return reading{}
	}
	r := reading{isJSON: true, id: wire.ID, model: wire.Model}
	r.recognised = wire.Type == "message" || wire.Content != nil
	// What the cache was read for and written with is counted apart from the other input here.
	u := wire.Usage
	read, written := count(u.CacheReadInputTokens), count(u.CacheCreationInputTokens)
	r.usage = evaluation.Usage{
		InputTokens:       count(u.InputTokens) + read + written,
		CachedInputTokens: read,
		CacheWriteTokens:  written,
		OutputTokens:      u.OutputTokens,
		ReasoningTokens:   u.OutputTokensDetails.ThinkingTokens,
	}
	switch wire.StopReason {
	case "":
	case "end_turn", "stop_sequence":
		r.finish = finishStop
	case "max_tokens", "model_context_window_exceeded":
		r.finish = finishLength
	case "refusal":
		r.finish, r.refused = finishOther, true
	default:
		r.finish = finishOther
	}
	if wire.Content != nil {
		for _, block := range *wire.Content {
			if block.Type == "text" {
				r.content += block.Text
			}
		}
	}
	return r
}

// count makes a number fit to be added to others.
func count(n int64) int64 { return min(max(n, 0), math.MaxInt64/4) }
