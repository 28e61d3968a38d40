package telemetry_test

import (
	"testing"

	"go.opentelemetry.io/otel/attribute"

	"github.com/evalonce/evalonce/pkg/telemetry"
)

// Dashboards and alerts are written against these names: a change of the conventions' version must not pass unseen.
func TestNamesArePinned(t *testing.T) {
	t.Parallel()
	for key, want := range map[attribute.Key]string{
		telemetry.Provider:           "gen_ai.provider.name",
		telemetry.RequestModel:       "gen_ai.request.model",
		telemetry.RequestMaxTokens:   "gen_ai.request.max_tokens",
		telemetry.RequestEffort:      "gen_ai.request.reasoning.level",
		telemetry.PromptVersion:      "gen_ai.prompt.version",
		telemetry.ResponseID:         "gen_ai.response.id",
		telemetry.ResponseModel:      "gen_ai.response.model",
		telemetry.FinishReasons:      "gen_ai.response.finish_reasons",
		telemetry.InputTokens:        "gen_ai.usage.input_tokens",
		telemetry.CachedInputTokens:  "gen_ai.usage.cache_read.input_tokens",
		telemetry.OutputTokens:       "gen_ai.usage.output_tokens",
		telemetry.ReasoningTokens:    "gen_ai.usage.reasoning.output_tokens",
		telemetry.ServerAddress:      "server.address",
		telemetry.ServerPort:         "server.port",
		telemetry.HTTPResponseStatus: "http.response.status_code",
		telemetry.ErrorType:          "error.type",
	} {
		if string(key) != want {
			t.Errorf("%s, want %s", key, want)
		}
	}
	if got := telemetry.ChatSpan("gpt-5-mini"); got != "chat gpt-5-mini" {
		t.Errorf("ChatSpan = %q", got)
	}
	wantAttributes(t, telemetry.SendAttributes(1), map[string]string{
		"messaging.system": "evalonce", "messaging.destination.name": "evaluation",
		"messaging.operation.name": "send", "messaging.operation.type": "send",
	})
	wantAttributes(t, telemetry.SendAttributes(3)[4:], map[string]string{"messaging.batch.message_count": "3"})
	wantAttributes(t, telemetry.ProcessAttributes("k1"), map[string]string{
		"messaging.system": "evalonce", "messaging.destination.name": "evaluation",
		"messaging.operation.name": "process", "messaging.operation.type": "process",
		"messaging.message.id": "k1", "evalonce.evaluation.key": "k1",
	})
	wantAttributes(t, telemetry.ChatAttributes("openai", "gpt-5-mini"), map[string]string{
		"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai",
		"gen_ai.request.model": "gpt-5-mini", "gen_ai.output.type": "json",
	})
}

func wantAttributes(t *testing.T, got []attribute.KeyValue, want map[string]string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%v, want %v", got, want)
	}
	for _, a := range got {
		if value, ok := want[string(a.Key)]; !ok || a.Value.String() != value {
			t.Errorf("%s = %s, want %q", a.Key, a.Value.String(), value)
		}
	}
}
