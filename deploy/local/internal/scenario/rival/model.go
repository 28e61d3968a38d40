package rival

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/evalonce/evalonce/deploy/local/internal/scenario/triage"
	"github.com/evalonce/evalonce/pkg/evaluation"
)

// What SDKs of model providers do by themselves, unless they are told otherwise.
const (
	retries       = 2
	firstPause    = 500 * time.Millisecond
	longestPause  = 8 * time.Second
	maxAnswer     = 1 << 20
	idlePerHost   = 256
	idleTime      = time.Minute
	jitterOfPause = 0.25 // taken off, at most
)

// Model asks the model as an SDK does that nobody has configured.
type Model struct {
	client   *http.Client
	url, key string
	version  evaluation.Version
	pace     float64
	deadline time.Duration // of a try
}

// NewModel returns a client of a provider that speaks OpenAI's chat completions. Its pauses are divided by the pace; the
// deadline is that of each try.
func NewModel(baseURL, key string, pace float64, deadline time.Duration) *Model {
	return &Model{
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: idlePerHost, IdleConnTimeout: idleTime}},
		url:    baseURL + "/chat/completions", key: key, version: triage.Version(evaluation.Prices{}), pace: pace, deadline: deadline,
	}
}

// Close ends the idle connections.
func (m *Model) Close() { m.client.CloseIdleConnections() }

// Ask asks up to three times, until there is a valid answer.
func (m *Model) Ask(ctx context.Context, subject, message string) (evaluation.Answer, error) {
	body, err := json.Marshal(map[string]any{
		"model": m.version.Model,
		"messages": []map[string]string{
			{"role": "system", "content": triage.System(m.version)},
			{"role": "user", "content": triage.User(subject, message)},
		},
		"max_completion_tokens": m.version.MaxOutputTokens,
		"response_format": map[string]any{"type": "json_schema", "json_schema": map[string]any{
			"name": "evaluation", "strict": true, "schema": evaluation.AnswerJSONSchema(m.version.Departments),
		}},
	})
	if err != nil {
		return evaluation.Answer{}, fmt.Errorf("ask the model: %w", err)
	}
	for try := 0; ; try++ {
		answer, again, err := m.try(ctx, body)
		if err == nil || !again || try == retries {
			return answer, err
		}
		pause := min(firstPause<<try, longestPause)
		pause -= time.Duration(rand.Float64() * jitterOfPause * float64(pause)) //nolint:gosec // jitter
		if err := sleep(ctx, time.Duration(float64(pause)/m.pace)); err != nil {
			return evaluation.Answer{}, fmt.Errorf("ask the model again: %w", err)
		}
	}
}

// try asks once; again says whether another try makes sense.
func (m *Model) try(ctx context.Context, body []byte) (answer evaluation.Answer, again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, m.deadline)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.url, bytes.NewReader(body))
	if err != nil {
		return answer, false, fmt.Errorf("ask the model: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+m.key)
	resp, err := m.client.Do(req)
	if err != nil {
		return answer, true, fmt.Errorf("ask the model: %w", err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return answer, true, fmt.Errorf("read the model's answer: %w", err)
	}
	switch s := resp.StatusCode; {
	case s == http.StatusRequestTimeout, s == http.StatusConflict, s == http.StatusTooManyRequests, s >= http.StatusInternalServerError:
		return answer, true, fmt.Errorf("ask the model: status %d", s)
	case s != http.StatusOK:
		return answer, false, fmt.Errorf("ask the model: status %d", s)
	}
	var completion struct {
		Choices []struct {
			Message struct {
				Content string `json:"content"`
			} `json:"message"`
		} `json:"choices"`
	}
	if err := json.Unmarshal(data, &completion); err != nil {
		return answer, false, fmt.Errorf("read the model's answer: %w", err)
	}
	if len(completion.Choices) == 0 {
		return answer, false, errors.New("read the model's answer: there is none")
	}
	answer, err = evaluation.ParseAnswer(completion.Choices[0].Message.Content, m.version.Departments)
	return answer, false, err
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
