package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/evalonce/evalonce/migrations/release"
)

func TestWrongUsageIsToldFromFailure(t *testing.T) {
	t.Parallel()
	const unreachable = "postgres://someone:s3cret@127.0.0.1:1/none"
	for _, tt := range []struct {
		name  string
		args  []string
		env   string
		usage bool
		text  string
	}{
		{"no command", nil, unreachable, true, "no command"},
		{"unknown command", []string{"down"}, unreachable, true, `"down"`},
		{"two commands", []string{"up", "status"}, unreachable, true, `"up status"`},
		{"unknown flag", []string{"up", "--force"}, unreachable, true, "-force"},
		{"no database", []string{"up"}, "", true, "EVALONCE_DATABASE_URL"},
		{"unreachable database", []string{"up"}, unreachable, false, "127.0.0.1:1"},
		{"the flag before the environment", []string{"status", "--database-url", unreachable}, "postgres://other:1/", false, "127.0.0.1:1"},
		{"no URL", []string{"up"}, "postgres://someone:s3cret@[", false, "database URL"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var stdout strings.Builder
			err := run(t.Context(), tt.args, func(string) string { return tt.env }, &stdout)
			if err == nil || errors.Is(err, errUsage) != tt.usage {
				t.Fatalf("error %v; want one, and wrong usage: %v", err, tt.usage)
			}
			if !strings.Contains(err.Error(), tt.text) {
				t.Errorf("error %q does not name %q", err, tt.text)
			}
			if strings.Contains(err.Error(), "s3cret") {
				t.Errorf("error %q shows the password", err)
			}
		})
	}
}

func TestVersionNeedsNoDatabase(t *testing.T) {
	t.Parallel()
	var stdout strings.Builder
	err := run(t.Context(), []string{"--version"}, func(string) string { return "" }, &stdout)
	if want := release.Current().String() + "\n"; err != nil || stdout.String() != want {
		t.Errorf("%q (%v), want %q", stdout.String(), err, want)
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	var stdout strings.Builder
	if err := run(t.Context(), []string{"--help"}, func(string) string { return "" }, &stdout); err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"up", "status", "--database-url", "EVALONCE_DATABASE_URL", "Exit code"} {
		if !strings.Contains(stdout.String(), word) {
			t.Errorf("the help does not mention %s", word)
		}
	}
}
