package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestCredentialCommands(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	made := o.must("credential", "create-token", "--client", "shop", "--name", "checkout", "--role", "tickets:write,tickets:read", "--life", "2160h")
	token := strings.TrimSpace(made.out)
	if !strings.HasPrefix(token, "evo_") || strings.Contains(token, "\n") || strings.Contains(made.err, token) {
		t.Errorf("printed %q, said %q", made.out, made.err)
	}
	o.must("credential", "admit-certificate", "URI:spiffe://mesh/shop", "--client", "shop", "--name", "mesh", "--role", "tickets:write")
	var list struct {
		Credentials []struct {
			ID   string
			Name string
			SAN  string `json:"subject_alternative_name"`
		}
	}
	if err := json.Unmarshal([]byte(o.must("credential", "list", "--client", "shop", "-o", "json").out), &list); err != nil || len(list.Credentials) != 2 ||
		list.Credentials[0].SAN != "URI:spiffe://mesh/shop" {
		t.Fatalf("listed %+v, %v", list, err)
	}
	id := list.Credentials[1].ID
	if shown := o.must("credential", "get", id).out; !strings.Contains(shown, "checkout") || strings.Contains(shown, token) {
		t.Errorf("shown\n%s", shown)
	}
	o.runs("credential", "revoke", id).want(t, exitUsage, "--yes")
	o.must("credential", "revoke", id, "--dry-run")
	o.must("credential", "revoke", id, "--yes", "--reason", "lost")
	if left := o.must("credential", "list").out; strings.Contains(left, "checkout") || !strings.Contains(left, "mesh") {
		t.Errorf("listed\n%s", left)
	}
	if all := o.must("credential", "ls", "--ended").out; !strings.Contains(all, "by ana") {
		t.Errorf("listed\n%s", all)
	}
	o.runs("credential", "create-token", "--client", "shop", "--name", "x", "--role", "tickets:raed").want(t, exitUsage, "tickets:read-all")
}
