package providersim

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
)

// routeControl lets another process script the server and read its ledger.
func (s *Server) routeControl(mux *http.ServeMux) {
	mux.HandleFunc("GET /_sim/healthz", func(w http.ResponseWriter, _ *http.Request) {
		send(w, jsonResponse(http.StatusOK, map[string]string{"status": "ok"}))
	})
	mux.HandleFunc("GET /_sim/stats", func(w http.ResponseWriter, _ *http.Request) {
		send(w, jsonResponse(http.StatusOK, s.Stats()))
	})
	mux.HandleFunc("GET /_sim/ledger", s.sendLedger)
	mux.HandleFunc("GET /_sim/rules", func(w http.ResponseWriter, _ *http.Request) {
		send(w, jsonResponse(http.StatusOK, s.rulesInForce()))
	})
	mux.HandleFunc("POST /_sim/rules", func(w http.ResponseWriter, r *http.Request) {
		body, ok := readControl(w, r)
		if !ok {
			return
		}
		rules, err := ParseRules(body)
		if err == nil {
			err = s.AddRules(rules...)
		}
		if err != nil {
			refuseControl(w, err)
			return
		}
		send(w, jsonResponse(http.StatusCreated, map[string]int{"added": len(rules)}))
	})
	mux.HandleFunc("DELETE /_sim/rules", func(w http.ResponseWriter, _ *http.Request) {
		s.ClearRules()
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("PUT /_sim/outage", func(w http.ResponseWriter, r *http.Request) {
		body, ok := readControl(w, r)
		if !ok {
			return
		}
		var a Action
		err := decodeStrictly(body, &a)
		if err == nil {
			err = s.StartOutage(a)
		}
		if err != nil {
			refuseControl(w, err)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("DELETE /_sim/outage", func(w http.ResponseWriter, _ *http.Request) {
		s.EndOutage()
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("POST /_sim/release", func(w http.ResponseWriter, _ *http.Request) {
		send(w, jsonResponse(http.StatusOK, map[string]int{"released": s.Release()}))
	})
	mux.HandleFunc("/_sim/", func(w http.ResponseWriter, r *http.Request) {
		send(w, jsonResponse(http.StatusNotFound, map[string]string{"error": fmt.Sprintf("no %s %s here", r.Method, r.URL.Path)}))
	})
}

// sendLedger streams, because a ledger may hold millions of requests.
func (s *Server) sendLedger(w http.ResponseWriter, r *http.Request) {
	since := 0
	if text := r.URL.Query().Get("since"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			refuseControl(w, fmt.Errorf("since %q is no number of a request", text))
			return
		}
		since = n
	}
	w.Header().Set("Content-Type", "application/json")
	separator := "["
	for e := range s.ledger.entries(since) {
		line, err := json.Marshal(e)
		if err != nil {
			panic(err) // an Entry holds only strings, numbers and times of this era
		}
		if _, err := io.WriteString(w, separator+string(line)); err != nil {
			return
		}
		separator = ",\n"
	}
	if separator == "[" {
		_, _ = io.WriteString(w, separator)
	}
	_, _ = io.WriteString(w, "]\n")
}

// ruleInForce is a rule with what became of it.
type ruleInForce struct {
	Rule Rule `json:"rule"`
	Hits int  `json:"hits"`
}

func (s *Server) rulesInForce() []ruleInForce {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]ruleInForce, len(s.rules))
	for i, r := range s.rules {
		out[i] = ruleInForce{Rule: r.Rule, Hits: int(r.hits.Load())}
	}
	return out
}

func readControl(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	const most = 64 << 20 // a raw body of a rule may be made to overflow somebody
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	if err != nil {
		refuseControl(w, fmt.Errorf("read request: %w", err))
		return nil, false
	}
	return body, true
}

func refuseControl(w http.ResponseWriter, err error) {
	send(w, jsonResponse(http.StatusBadRequest, map[string]string{"error": err.Error()}))
}
