package inference

import (
	"encoding/json"
	"errors"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/shared"

	"github.com/evalonce/evalonce/pkg/evaluation"

	"github.com/evalonce/evalonce/services/evaluator-worker/internal/prompt"
)

// chatParams asks for one answer in the strict schema. Sampling parameters are left to the model's defaults:
// reasoning models refuse them. Nothing asks the provider to store the conversation.
func chatParams(v evaluation.Version, p prompt.Prompt) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model: v.Model,
		Messages: []openai.ChatCompletionMessageParamUnion{
			openai.SystemMessage(p.System),
			openai.UserMessage(p.User),
		},
		MaxCompletionTokens: openai.Int(int64(v.MaxOutputTokens)),
		ReasoningEffort:     shared.ReasoningEffort(v.Effort),
		ResponseFormat: openai.ChatCompletionNewParamsResponseFormatUnion{
			OfJSONSchema: &shared.ResponseFormatJSONSchemaParam{
				JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{
					Name:   "evaluation",
					Strict: openai.Bool(true),
					Schema: evaluation.AnswerJSONSchema(v.Departments),
				},
			},
		},
	}
}

// readChatCompletion reads a chat completion, and takes a member of an unexpected type for absent. The SDK's own
// type is not used: it coerces what does not fit by rules that may change, and a stored body must read the same
// after an update as it did when it arrived.
func readChatCompletion(body []byte) reading {
	var wire struct {
		ID      string `json:"id"`
		Model   string `json:"model"`
		Choices *[]struct {
			FinishReason string `json:"finish_reason"`
			Message      struct {
				Content string `json:"content"`
				Refusal string `json:"refusal"`
			} `json:"message"`
		} `json:"choices"`
		Usage *struct {
			PromptTokens        int64 `json:"prompt_tokens"`
			CompletionTokens    int64 `json:"completion_tokens"`
			PromptTokensDetails struct {
				CachedTokens int64 `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
			CompletionTokensDetails struct {
				ReasoningTokens int64 `json:"reasoning_tokens"`
			} `json:"completion_tokens_details"`
		} `json:"usage"`
	}
	// The standard library goes on after a member of the wrong type, and reports it at the end.
	var wrongType *json.UnmarshalTypeError
	if err := json.Unmarshal(body, &wire); err != nil && !errors.As(err, &wrongType) {
		return reading{}
	}
	r := reading{isJSON: true, id: wire.ID, model: wire.Model}
	r.recognised = wire.Choices != nil || wire.Usage != nil
	if u := wire.Usage; u != nil {
		// Out of range is out of the question: the ledger refuses negative counts, and prices rely on the subsets.
		r.usage.InputTokens = max(u.PromptTokens, 0)
		r.usage.CachedInputTokens = min(max(u.PromptTokensDetails.CachedTokens, 0), r.usage.InputTokens)
		r.usage.OutputTokens = max(u.CompletionTokens, 0)
		r.usage.ReasoningTokens = min(max(u.CompletionTokensDetails.ReasoningTokens, 0), r.usage.OutputTokens)
	}
	if wire.Choices != nil && len(*wire.Choices) > 0 {
		choice := (*wire.Choices)[0]
		r.content = choice.Message.Content
		r.refused = choice.Message.Refusal != ""
		switch choice.FinishReason {
		case "":
		case finishStop, finishLength, finishContentFilter:
			r.finish = choice.FinishReason
		default:
			r.finish = finishOther
		}
	}
	return r
}
