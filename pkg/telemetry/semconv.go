package telemetry

import (
	"go.opentelemetry.io/otel/attribute"
	genai "go.opentelemetry.io/otel/semconv/v1.41.0"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
)

// The names of OpenTelemetry's conventions for messaging (1.43) and generative AI, which are not stable yet. They are
// written here and nowhere else, so that a new version of the conventions is one change. The generative AI ones have
// moved to a repository of their own (open-telemetry/semantic-conventions-genai) and out of the Go module; 1.41 is its
// last version that has them, and what is newer than that is spelt out.

// Names of spans, none with more values than there are models.
const (
	SpanSendEvaluation    = "send evaluation"    // PRODUCER, in the trace of the request
	SpanProcessEvaluation = "process evaluation" // CONSUMER, a trace of its own, linked to those of the tickets it serves
	SpanClaimEvaluation   = "claim evaluation"   // CLIENT, a trace of its own for a batch
	SpanSettleEvaluation  = "settle evaluation"  // CLIENT, a trace of its own for a batch, linked to its evaluations
	SpanDeliverWebhook    = "deliver webhook"    // PRODUCER, a trace of its own for each attempt, linked to the ticket's creation
	SpanStoreTickets      = "store tickets"      // CLIENT, a trace of its own for a transaction, linked to the requests that share it
	SpanSweep             = "sweep"              // a trace of its own, with a span for each step
	SpanJobChunk          = "reprocess chunk"    // a trace of its own, linked to the request that has started the job
)

// LinksMost bounds the links of one span, as OpenTelemetry does; beyond it they are counted.
const LinksMost = 128

// SweepStepSpan is the name of a step of a sweep.
func SweepStepSpan(step string) string { return SpanSweep + " " + step }

// ChatSpan is the name of a call to a model, a CLIENT span.
func ChatSpan(model string) string { return "chat " + model }

const (
	messagingSystem      = "evalonce"
	messagingDestination = "evaluation"
)

// Attributes of a call to a model.
const (
	Provider           = genai.GenAIProviderNameKey
	RequestModel       = genai.GenAIRequestModelKey
	RequestMaxTokens   = genai.GenAIRequestMaxTokensKey
	RequestEffort      = attribute.Key("gen_ai.request.reasoning.level")
	PromptVersion      = attribute.Key("gen_ai.prompt.version")
	ResponseID         = genai.GenAIResponseIDKey
	ResponseModel      = genai.GenAIResponseModelKey
	FinishReasons      = genai.GenAIResponseFinishReasonsKey
	InputTokens        = genai.GenAIUsageInputTokensKey
	CachedInputTokens  = genai.GenAIUsageCacheReadInputTokensKey
	OutputTokens       = genai.GenAIUsageOutputTokensKey
	ReasoningTokens    = genai.GenAIUsageReasoningOutputTokensKey
	ServerAddress      = semconv.ServerAddressKey
	ServerPort         = semconv.ServerPortKey
	HTTPResponseStatus = semconv.HTTPResponseStatusCodeKey
	ErrorType          = semconv.ErrorTypeKey // a failure.Reason: a closed set
)

// Attributes of our own.
const (
	EvaluationKey    = attribute.Key("evalonce.evaluation.key")
	VersionID        = attribute.Key("evalonce.version.id")
	Route            = attribute.Key("evalonce.route")
	Lane             = attribute.Key("evalonce.lane")
	Attempt          = attribute.Key("evalonce.attempt")
	FailureClass     = attribute.Key("evalonce.failure.class")
	DedupHit         = attribute.Key("evalonce.dedup_hit")         // a result was there already, and no call was made
	TicketsServed    = attribute.Key("evalonce.tickets.served")    // by this one evaluation
	ModelSubstituted = attribute.Key("evalonce.model.substituted") // another model answered than the one that was asked
	CostUSD          = attribute.Key("evalonce.cost_usd")
	LinksLeftOut     = attribute.Key("evalonce.links.left_out") // how many links there would be more
	Idle             = attribute.Key("evalonce.idle")           // nothing was found to do: such spans are not exported
	EventID          = attribute.Key("evalonce.webhook.event_id")
	EndpointID       = attribute.Key("evalonce.webhook.endpoint_id")
	JobID            = attribute.Key("evalonce.job.id")
	JobKind          = attribute.Key("evalonce.job.kind")
)

// SendAttributes are those of a span that stores work for so many tickets.
func SendAttributes(tickets int) []attribute.KeyValue {
	attributes := []attribute.KeyValue{
		semconv.MessagingSystemKey.String(messagingSystem),
		semconv.MessagingDestinationName(messagingDestination),
		semconv.MessagingOperationName("send"),
		semconv.MessagingOperationTypeSend,
	}
	if tickets > 1 {
		// The conventions leave it out where there is a single message.
		attributes = append(attributes, semconv.MessagingBatchMessageCount(tickets))
	}
	return attributes
}

// StoreAttributes are those of a span that stores so many tickets in one transaction.
func StoreAttributes(tickets int) []attribute.KeyValue {
	return []attribute.KeyValue{semconv.MessagingBatchMessageCount(tickets)}
}

// ClaimAttributes are those of a span that looks for work.
func ClaimAttributes(route string) []attribute.KeyValue {
	return []attribute.KeyValue{
		semconv.MessagingSystemKey.String(messagingSystem),
		semconv.MessagingDestinationName(messagingDestination),
		semconv.MessagingOperationName("claim"),
		semconv.MessagingOperationTypeReceive,
		Route.String(route),
		Idle.Bool(true),
	}
}

// Claimed are those of one that has found some.
func Claimed(evaluations int) []attribute.KeyValue {
	return []attribute.KeyValue{semconv.MessagingBatchMessageCount(evaluations), Idle.Bool(false)}
}

// SettleAttributes are those of a span that writes what has become of so many evaluations.
func SettleAttributes(evaluations int) []attribute.KeyValue {
	return []attribute.KeyValue{
		semconv.MessagingSystemKey.String(messagingSystem),
		semconv.MessagingDestinationName(messagingDestination),
		semconv.MessagingOperationName("settle"),
		semconv.MessagingOperationTypeSettle,
		semconv.MessagingBatchMessageCount(evaluations),
	}
}

// ProcessAttributes are those of a span that works on one evaluation.
func ProcessAttributes(evaluationKey string) []attribute.KeyValue {
	return []attribute.KeyValue{
		semconv.MessagingSystemKey.String(messagingSystem),
		semconv.MessagingDestinationName(messagingDestination),
		semconv.MessagingOperationName("process"),
		semconv.MessagingOperationTypeProcess,
		semconv.MessagingMessageID(evaluationKey),
		EvaluationKey.String(evaluationKey),
	}
}

// ChatAttributes are those of a call that asks a provider's model for a JSON object.
func ChatAttributes(provider, model string) []attribute.KeyValue {
	return []attribute.KeyValue{
		genai.GenAIOperationNameChat,
		Provider.String(provider),
		RequestModel.String(model),
		genai.GenAIOutputTypeJSON,
	}
}
