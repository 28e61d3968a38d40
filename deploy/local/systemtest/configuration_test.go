package systemtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/evalonce/evalonce/deploy/local/stack"
)

// updateDocuments has the documents written that are made from what the binaries say of themselves.
const updateDocuments = "EVALONCE_UPDATE_DOCUMENTS"

const configurationHead = `# Configuration

Each service is configured by its environment. This page is what their ` + "`--help`" + ` says. A secret may be a file: ` + "`NAME_FILE`" + ` holds
its path. What is wrong with the settings is told at start, all of it at once, and the exit code is 2. ` + "`--version`" + ` tells the release and
the commit.
`

const configurationTail = `
All services log JSON to standard error (` + "`EVALONCE_LOG_LEVEL`" + `: debug, info, warn, error), and export traces and metrics by OTLP when
the standard ` + "`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_TRACES_EXPORTER` or `OTEL_METRICS_EXPORTER`" + ` is set. What ` + "`sslmode`" + ` and the other
parameters of a database URL mean is said in the documentation of Postgres' libpq.
`

func TestTheConfigurationIsDocumented(t *testing.T) {
	t.Parallel()
	root, err := stack.Root()
	if err != nil {
		t.Fatal(err)
	}
	var doc strings.Builder
	doc.WriteString(configurationHead)
	for _, service := range []string{"ticket-api", "evaluator-worker", "sweeper", "admin"} {
		help, err := exec.CommandContext(t.Context(), filepath.Join(binaries, service), "--help").Output()
		if err != nil {
			t.Fatalf("%s --help: %v", service, err)
		}
		fmt.Fprintf(&doc, "\n## %s\n\n%s", service, tableOf(t, string(help)))
	}
	doc.WriteString(configurationTail)
	path := filepath.Join(root, "deploy", "CONFIGURATION.md")
	if os.Getenv(updateDocuments) != "" {
		if err := os.WriteFile(path, []byte(doc.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	written, err := os.ReadFile(path)
	if err != nil || string(written) != doc.String() {
		t.Errorf("deploy/CONFIGURATION.md is not what the services say (%v): write it anew with make documents", err)
	}
}

// tableOf makes a table of a help's, whose columns begin where their titles do.
func tableOf(t *testing.T, help string) string {
	t.Helper()
	_, rows, found := strings.Cut(help, "\nNAME ")
	if !found {
		t.Fatalf("there is no table in\n%s", help)
	}
	lines := strings.Split(strings.TrimRight("NAME "+rows, "\n"), "\n")
	second, third := strings.Index(lines[0], "DEFAULT"), strings.Index(lines[0], "MEANING")
	var table strings.Builder
	table.WriteString("| variable | default | meaning |\n|---|---|---|\n")
	for _, line := range lines[1:] {
		// What does not fit its column has moved the next one.
		name, rest, _ := strings.Cut(line, " ")
		value := strings.TrimSpace(rest)
		fallback := ""
		if len(line) > third && strings.TrimSpace(line[second:third]) != "" {
			fallback, value = strings.TrimSpace(line[second:third]), strings.TrimSpace(line[third:])
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s |\n", name, fallback, strings.ReplaceAll(value, "|", `\|`))
	}
	return table.String()
}
