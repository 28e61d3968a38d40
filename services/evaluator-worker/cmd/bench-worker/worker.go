package main

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/metrics"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/services/evaluator-worker/internal/evaluate"
	"github.com/evalonce/evalonce/services/evaluator-worker/internal/inference"
)

// provider answers at once, or after its latency.
type provider struct {
	latency time.Duration
	called  func(nth int64, r inference.Request) // unless nil
	calls   atomic.Int64
}

func (p *provider) Call(ctx context.Context, r inference.Request) (inference.Response, error) {
	nth := p.calls.Add(1)
	if p.called != nil {
		p.called(nth, r)
	}
	if p.latency > 0 {
		timer := time.NewTimer(p.latency)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	content := contentHead + r.Version.Departments[0].Name + contentTail
	return inference.Response{
		Raw: []byte(responseHead + r.Version.Departments[0].Name + responseTail), Content: content,
		ServedModel: "gpt-5-mini-2025-08-07", ProviderRequestID: "req_5f3c8a3b0f2e4d8c9a7b", HTTPStatus: http.StatusOK,
		Usage: evaluation.Usage{InputTokens: 280, OutputTokens: 20},
	}, nil
}

const (
	contentHead  = `{"is_urgent":0.82,"urgency_score":0.71,"department":"`
	contentTail  = `"}`
	responseHead = `{"id":"chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT","object":"chat.completion","created":1741569952,"model":"gpt-5-mini-2025-08-07",` +
		`"choices":[{"index":0,"message":{"role":"assistant","content":"{\"is_urgent\":0.82,\"urgency_score\":0.71,\"department\":\"`
	responseTail = `\"}"},"finish_reason":"stop"}],"usage":{"prompt_tokens":280,"completion_tokens":20,"total_tokens":300}}`
)

// worker is a running worker, and what is seen of it.
type worker struct {
	*watch
	claims, settles *pgxpool.Pool
	began           time.Time

	stop context.CancelFunc
	done chan error
	end  func() error // stops the worker, and returns once all that it has evaluated is saved
}

func start(ctx context.Context, o options, p *provider) (*worker, error) {
	w := &worker{watch: newWatch(), done: make(chan error, 1)}
	var err error
	w.claims, w.settles, err = evaluate.OpenPools(ctx, postgres.Config{URL: o.url, AppName: "bench-worker", Tracer: w.watch})
	if err != nil {
		return nil, err
	}
	measured, err := metrics.NewWorker(sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())).Meter("bench"))
	if err != nil {
		return nil, err
	}
	engine := evaluate.New(evaluate.Options{
		Claims: w.claims, Settles: w.settles, Listen: o.url,
		Providers: map[string]evaluate.Provider{"openai": p, "openai_responses": p, "anthropic": p},
		Name:      "bench/" + uuid.NewString(), Concurrency: o.concurrency,
		Lease: evaluate.DefaultLease, PollInterval: evaluate.DefaultPollInterval, Grace: o.timeout,
		Tracer: noop.NewTracerProvider().Tracer(""), Metrics: measured,
	})
	ctx, w.stop = context.WithCancel(context.WithoutCancel(ctx))
	w.end = sync.OnceValue(func() error {
		w.stop()
		err := <-w.done
		w.claims.Close()
		w.settles.Close()
		return err
	})
	w.began = time.Now()
	go func() { w.done <- engine.Run(ctx) }()
	return w, nil
}

// wait waits for what a measurement needs to happen.
func wait(ctx context.Context, o options, happened <-chan struct{}) error {
	timer := time.NewTimer(o.timeout)
	defer timer.Stop()
	select {
	case <-happened:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return fmt.Errorf("not within %v; is there work for an active version?", o.timeout)
	}
}

func reportOf(mode string, n int, took time.Duration) report {
	return report{Mode: mode, Evaluations: n, Seconds: took.Seconds(), PerSecond: float64(n) / took.Seconds()}
}
