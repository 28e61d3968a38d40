package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var quotedWords = regexp.MustCompile(`"[^"]*"|\S+`)

// The lines of the runbook are to be pasted: each is a command that there is, with flags that it has and as many arguments
// as it takes.
func TestRunbookLinesAreCommands(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "deploy", "RUNBOOK.md"))
	if err != nil {
		t.Fatal(err)
	}
	tested := 0
	for line := range strings.Lines(string(text)) {
		rest, ok := strings.CutPrefix(line, "evalctl ")
		if !ok {
			continue
		}
		tested++
		command, _, _ := strings.Cut(rest, " #")
		args := quotedWords.FindAllString(command, -1)
		for i := range args {
			args[i] = strings.Trim(args[i], `"`)
		}
		root := (&cli{streams: streams{in: strings.NewReader(""), out: io.Discard, err: io.Discard}}).root()
		cmd, left, err := root.Find(args)
		if err != nil || !cmd.Runnable() {
			t.Errorf("%s: there is no such command: %v", strings.TrimSpace(line), err)
			continue
		}
		if err := cmd.ParseFlags(left); err != nil {
			t.Errorf("%s: %v", strings.TrimSpace(line), err)
			continue
		}
		if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
			t.Errorf("%s: %v", strings.TrimSpace(line), err)
		}
	}
	if tested < 20 {
		t.Errorf("only %d lines are tested", tested)
	}
}
