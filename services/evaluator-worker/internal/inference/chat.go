package inference

import (
	"github.com/google/uuid"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/shared"

	"github.com/evalonce/evalonce/pkg/evaluation"

	"github.com/evalonce/evalonce/services/evaluator-worker/internal/prompt"
)

// chatParams asks for one answer in the strict schema. Sampling parameters are left to the model's defaults:
// reasoning models refuse them. The provider is asked to store the conversation, under the name of its call, only for
// a version that wants lost responses recovered.
func chatParams(v evaluation.Version, call uuid.UUID, p prompt.Prompt) openai.ChatCompletionNewParams {
	params := openai.ChatCompletionNewParams{
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
	if v.UnknownPolicy == evaluation.Recover {
		params.Store = openai.Bool(true)
		params.Metadata = shared.Metadata{callIDMetadata: call.String()}
	}
	return params
}

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
				CachedTokens     int64 `json:"cached_tokens"`
				CacheWriteTokens int64 `json:"cache_write_tokens"`
			} `json:"prompt_tokens_details"`
			CompletionTokensDetails struct {
				ReasoningTokens int64 `json:"reasoning_tokens"`
			} `json:"completion_tokens_details"`
		} `json:"usage"`
	}
	if !decode(body, &wire) {
		return reading{}
	}
	r := reading{isJSON: true, id: wire.ID, model: wire.Model}
	r.recognised = wire.Choices != nil || wire.Usage != nil
	if u := wire.Usage; u != nil {
		r.usage = evaluation.Usage{
			InputTokens:       u.PromptTokens,
			CachedInputTokens: u.PromptTokensDetails.CachedTokens,
			CacheWriteTokens:  u.PromptTokensDetails.CacheWriteTokens,
			OutputTokens:      u.CompletionTokens,
			ReasoningTokens:   u.CompletionTokensDetails.ReasoningTokens,
		}
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
