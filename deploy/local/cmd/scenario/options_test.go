package main

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/evalonce/evalonce/pkg/process"
)

func TestParse(t *testing.T) {
	t.Parallel()
	opts, err := parse(nil, []string{"EVALONCE_DATABASE_URL=postgres://somewhere", "HOME=/"}, "/checkout", io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if opts.Count != 200_000 || opts.Seed != 1 || opts.Server != "postgres://somewhere" || opts.Bin != "/checkout/.build/bin" || !filepath.IsAbs(opts.Self) {
		t.Errorf("got %+v", opts)
	}
	opts, err = parse([]string{"--seed=7", "--tickets=5000", "--pace=60", "--rate=100"}, nil, "/checkout", io.Discard)
	if err != nil || opts.Seed != 7 || opts.Count != 5000 || opts.Pace != 60 || opts.Rate != 100 {
		t.Errorf("got %+v, %v", opts, err)
	}
	for _, args := range [][]string{{"--tickets=0"}, {"--tickets=many"}, {"--pace=0"}, {"--rate=-1"}, {"--fast"}, {"5000"}} {
		if _, err := parse(args, nil, "/checkout", io.Discard); !errors.Is(err, process.ErrUsage) {
			t.Errorf("%q: %v", args, err)
		}
	}
	var help bytes.Buffer
	if _, err := parse([]string{"--help"}, nil, "/checkout", &help); !errors.Is(err, flag.ErrHelp) || !strings.Contains(help.String(), "--tickets") {
		t.Errorf("got %v and %s", err, &help)
	}
}
