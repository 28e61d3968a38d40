package telemetry

import (
	"fmt"
	"strconv"
	"strings"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/evalonce/evalonce/pkg/process"
)

const (
	samplerVariable         = "OTEL_TRACES_SAMPLER"
	samplerArgumentVariable = "OTEL_TRACES_SAMPLER_ARG"
)

// newSampler is what OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG ask for, by default all that no caller has left out.
// Spans that it leaves out are recorded nevertheless, for [keeper] to decide about, unless all are off.
func newSampler(environ []string) (s sdktrace.Sampler, err error) {
	name := strings.ToLower(strings.TrimSpace(lookup(environ, samplerVariable)))
	ratio := 1.0
	if argument := strings.TrimSpace(lookup(environ, samplerArgumentVariable)); argument != "" && strings.HasSuffix(name, "traceidratio") {
		if ratio, err = strconv.ParseFloat(argument, 64); err != nil || !(ratio >= 0 && ratio <= 1) {
			return nil, fmt.Errorf("%w: %s=%.20q is no number from 0 to 1", process.ErrUsage, samplerArgumentVariable, argument)
		}
	}
	switch name {
	case "always_off":
		return sdktrace.NeverSample(), nil
	case "always_on":
		return sdktrace.AlwaysSample(), nil
	case "traceidratio":
		return linking{sdktrace.TraceIDRatioBased(ratio)}, nil
	case "", "parentbased_always_on":
		return linking{sdktrace.ParentBased(sdktrace.AlwaysSample())}, nil
	case "parentbased_always_off":
		return linking{sdktrace.ParentBased(sdktrace.NeverSample())}, nil
	case "parentbased_traceidratio":
		return linking{sdktrace.ParentBased(sdktrace.TraceIDRatioBased(ratio))}, nil
	}
	return nil, fmt.Errorf("%w: %s=%.30q is none of always_on, always_off, traceidratio, parentbased_always_on, parentbased_always_off, "+
		"parentbased_traceidratio", process.ErrUsage, samplerVariable, name)
}

// linking samples, beside what another sampler does, the traces that begin for the sake of a sampled one: what works on a
// ticket is to be seen where its creation is. All else is recorded and not sampled.
type linking struct{ of sdktrace.Sampler }

func (l linking) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	result := l.of.ShouldSample(p)
	if result.Decision != sdktrace.Drop {
		return result
	}
	parent := trace.SpanFromContext(p.ParentContext)
	switch sc := parent.SpanContext(); {
	case sc.IsValid() && !sc.IsRemote() && !parent.IsRecording(): // nobody keeps its root
	case !sc.IsValid() && anySampled(p.Links):
		result.Decision = sdktrace.RecordAndSample
	default:
		result.Decision = sdktrace.RecordOnly
	}
	return result
}

func (l linking) Description() string { return "Linking{" + l.of.Description() + "}" }

func anySampled(links []trace.Link) bool {
	for _, l := range links {
		if l.SpanContext.IsSampled() {
			return true
		}
	}
	return false
}
