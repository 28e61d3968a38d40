package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestAuditList(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	for i := range 3 {
		id := fmt.Sprintf("v%d", i)
		o.must("version", "register", "-f", file(t, id+".yaml", yamlVersion(id, "Sort "+id)))
	}
	o.must("version", "promote", "v1", "--yes")
	lines := strings.Split(strings.TrimSpace(o.must("audit", "list").out), "\n")
	if len(lines) != 5 || !strings.Contains(lines[1], `ana  VersionService.PromoteVersion   activeVersion          {"version_id":"v1"}`) {
		t.Errorf("listed\n%s", strings.Join(lines, "\n"))
	}
	for args, want := range map[string]int{
		"--target versions/": 3, "--target versions/v2": 1, "--principal bob": 0, "--method VersionService.RegisterVersion": 3, "--limit 2": 2,
		"--limit 0": 4, "--since 1d": 4, "--until 1d": 0, "--since 2100-01-01T00:00:00Z": 0,
	} {
		var list struct {
			Entries []struct{ Target string }
			Next    string `json:"next_page_token"`
		}
		got := o.must(append([]string{"audit", "list", "-o", "json"}, strings.Fields(args)...)...)
		if err := json.Unmarshal([]byte(got.out), &list); err != nil || len(list.Entries) != want || (list.Next != "") != (args == "--limit 2") {
			t.Errorf("%s: %d entries, next %q, %v; want %d", args, len(list.Entries), list.Next, err, want)
		}
	}
	o.runs("audit", "list", "--since", "yesterday").want(t, exitUsage, "must be a time in RFC 3339")
}

func TestSpans(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"30d": 720 * time.Hour, "36h": 36 * time.Hour, "1h30m": 90 * time.Minute} {
		var s span
		if err := s.Set(text); err != nil || time.Duration(s) != want {
			t.Errorf("%s is %s, %v", text, time.Duration(s), err)
		}
		var again span
		if err := again.Set(s.String()); err != nil || again != s {
			t.Errorf("%s is shown as %s", text, &s)
		}
	}
	for _, text := range []string{"", "d", "0d", "-1d", "1.5d", "36501d", "-1h", "0s", "1", "1w", "1d2h"} {
		var s span
		if err := s.Set(text); err == nil {
			t.Errorf("%q is %s", text, time.Duration(s))
		}
	}
	for _, text := range []string{"2026-11-30", "2026-11-30T15:00:00", "soon", ""} {
		var m moment
		if err := m.Set(text); err == nil {
			t.Errorf("%q is %s", text, m.Time)
		}
	}
}
