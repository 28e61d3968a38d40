package inference

import (
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"

	"github.com/evalonce/evalonce/pkg/evaluation"

	"github.com/evalonce/evalonce/services/evaluator-worker/internal/prompt"
)

// responseParams asks for what chatParams asks for. Unlike there, the text would stay with the provider if nothing
// was said.
func responseParams(v evaluation.Version, p prompt.Prompt) responses.ResponseNewParams {
	return responses.ResponseNewParams{
		Model:           v.Model,
		Instructions:    openai.String(p.System),
		Input:           responses.ResponseNewParamsInputUnion{OfString: openai.String(p.User)},
		MaxOutputTokens: openai.Int(int64(v.MaxOutputTokens)),
		Reasoning:       shared.ReasoningParam{Effort: shared.ReasoningEffort(v.Effort)},
		Store:           openai.Bool(false),
		Text: responses.ResponseTextConfigParam{Format: responses.ResponseFormatTextConfigUnionParam{
			OfJSONSchema: &responses.ResponseFormatTextJSONSchemaConfigParam{
				Name:   "evaluation",
				Strict: openai.Bool(true),
				Schema: evaluation.AnswerJSONSchema(v.Departments),
			},
		}},
	}
}

func readResponse(body []byte) reading {
	var wire struct {
		ID                string `json:"id"`
		Model             string `json:"model"`
		Status            string `json:"status"`
		IncompleteDetails struct {
			Reason string `json:"reason"`
		} `json:"incomplete_details"`
		Output *[]struct {
			Type    string `json:"type"`
			Content []struct {
				Type    string `json:"type"`
				Text    string `json:"text"`
				Refusal string `json:"refusal"`
			} `json:"content"`
		} `json:"output"`
		Usage struct {
			InputTokens        int64 `json:"input_tokens"`
			OutputTokens       int64 `json:"output_tokens"`
			InputTokensDetails struct {
				CachedTokens     int64 `json:"cached_tokens"`
				CacheWriteTokens int64 `json:"cache_write_tokens"`
			} `json:"input_tokens_details"`
			OutputTokensDetails struct {
				ReasoningTokens int64 `json:"reasoning_tokens"`
			} `json:"output_tokens_details"`
		} `json:"usage"`
	}
	if !decode(body, &wire) {
		return reading{}
	}
	u := wire.Usage
	r := reading{
		isJSON: true, recognised: wire.Output != nil, id: wire.ID, model: wire.Model,
		usage: evaluation.Usage{
			InputTokens:       u.InputTokens,
			CachedInputTokens: u.InputTokensDetails.CachedTokens,
			CacheWriteTokens:  u.InputTokensDetails.CacheWriteTokens,
			OutputTokens:      u.OutputTokens,
			ReasoningTokens:   u.OutputTokensDetails.ReasoningTokens,
		},
	}
	switch wire.Status {
	case "":
	case "completed":
		r.finish = finishStop
	case "incomplete":
		switch wire.IncompleteDetails.Reason {
		case "max_output_tokens":
			r.finish = finishLength
		case "content_filter":
			r.finish = finishContentFilter
		default:
			r.finish = finishOther
		}
	default: // failed without an error, or not begun: no response yet
		r.recognised = false
	}
	if wire.Output == nil {
		return r
	}
	for _, item := range *wire.Output {
		if item.Type != "message" {
			continue
		}
		// Of several messages, the earlier ones comment on the way to the last.
		r.content = ""
		for _, part := range item.Content {
			switch part.Type {
			case "output_text":
				r.content += part.Text
			case "refusal":
				r.refused = true
			}
		}
	}
	return r
}
