package providersim

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// archive keeps the answers whose requests asked for it, whether or not their clients got them, until the server ends.
type archive struct {
	mu   sync.Mutex
	kept []kept // in the order they were made
}

type kept struct {
	metadata map[string]string
	body     []byte
}

func (a *archive) keep(metadata map[string]string, body []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.kept = append(a.kept, kept{metadata: metadata, body: body})
}

// list answers a request for stored answers, those whose metadata is as the query says: metadata[key]=value.
func (a *archive) list(r *http.Request) response {
	list := struct {
		Object  string            `json:"object"`
		Data    []json.RawMessage `json:"data"`
		HasMore bool              `json:"has_more"`
	}{Object: "list", Data: []json.RawMessage{}}
	limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
	if err != nil || limit < 1 {
		limit = 20
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range a.kept {
		if !k.matches(r) {
			continue
		}
		if len(list.Data) == limit {
			list.HasMore = true
			break
		}
		list.Data = append(list.Data, k.body)
	}
	return jsonResponse(http.StatusOK, list)
}

func (k kept) matches(r *http.Request) bool {
	for name, values := range r.URL.Query() {
		key, ok := strings.CutPrefix(name, "metadata[")
		if !ok {
			continue
		}
		if value, have := k.metadata[strings.TrimSuffix(key, "]")]; !have || value != values[0] {
			return false
		}
	}
	return true
}
