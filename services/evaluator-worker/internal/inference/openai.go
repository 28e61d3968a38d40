package inference

import (
	"context"
	"net/http"

	"github.com/google/uuid"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"

	"github.com/evalonce/evalonce/services/evaluator-worker/internal/prompt"
)

const openaiAPI = "https://api.openai.com/v1"

// NewOpenAI asks by chat completions: OpenAI, or anyone else who speaks its protocol. The configuration is checked, and
// no connection made; errors do not repeat its values.
func NewOpenAI(c Config) (*Client, error) {
	client, err := newClient(chatCompletions, openaiAPI, c)
	if err != nil {
		return nil, err
	}
	service := openai.NewChatCompletionService(client.openaiOptions(c.APIKey)...)
	client.send = func(ctx context.Context, r Request, p prompt.Prompt, x *exchange) error {
		_, err := service.New(ctx, chatParams(r.Version, r.CallID, p), openaiExchange(r, x)...)
		return err
	}
	client.stored = func(ctx context.Context, call uuid.UUID) (*http.Request, error) {
		return client.storedChatCompletions(ctx, c.APIKey, call)
	}
	return client, nil
}

// NewOpenAIResponses asks by OpenAI's responses, and is else like [NewOpenAI].
func NewOpenAIResponses(c Config) (*Client, error) {
	client, err := newClient(openaiResponses, openaiAPI, c)
	if err != nil {
		return nil, err
	}
	service := responses.NewResponseService(client.openaiOptions(c.APIKey)...)
	client.send = func(ctx context.Context, r Request, p prompt.Prompt, x *exchange) error {
		_, err := service.New(ctx, responseParams(r.Version, p), openaiExchange(r, x)...)
		return err
	}
	return client, nil
}

// openaiOptions are for a service by itself, and not for a client of the SDK: only the client reads the environment.
func (c *Client) openaiOptions(key string) []option.RequestOption {
	options := []option.RequestOption{
		option.WithBaseURL(c.base()),
		option.WithHTTPClient(c.http()),
		option.WithMaxRetries(0),
		option.WithHeader("User-Agent", userAgent),
	}
	if key != "" {
		options = append(options, option.WithAPIKey(key))
	}
	for name, values := range c.server.Query() {
		for _, value := range values {
			options = append(options, option.WithQueryAdd(name, value))
		}
	}
	return options
}

// openaiExchange makes x the SDK's innermost step, and leaves the SDK nothing to interpret.
func openaiExchange(r Request, x *exchange) []option.RequestOption {
	return []option.RequestOption{
		option.WithMiddleware(x.do),
		option.WithHeader(callIDHeader, r.CallID.String()),
		option.WithResponseBodyInto(new([]byte)),
	}
}
