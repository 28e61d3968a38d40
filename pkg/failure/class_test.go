package failure_test

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/evalonce/evalonce/pkg/failure"
)

// The table of the package comment.
func TestClasses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		class                       failure.Class
		rearmable, refunds, breaker bool
	}{
		{failure.Transient, true, false, true},
		{failure.Throttled, false, true, false},
		{failure.Unknown, false, false, true},
		{failure.Operator, false, true, false},
		{failure.Permanent, false, false, false},
	} {
		if c.class.Rearmable() != c.rearmable || c.class.RefundsAttempt() != c.refunds || c.class.CountsTowardsBreaker() != c.breaker {
			t.Errorf("%s: rearmable %t, refunds %t, breaker %t", c.class,
				c.class.Rearmable(), c.class.RefundsAttempt(), c.class.CountsTowardsBreaker())
		}
	}
}

// Every constant of type Reason in the source has its class, and no two are the same word. That nothing else comes
// out of Classify is for TestGoldenResponses and FuzzClassify to find.
func TestReasonsAreClosed(t *testing.T) {
	t.Parallel()
	words := map[failure.Reason]string{}
	for _, file := range sources(t) {
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			if id, ok := spec.Type.(*ast.Ident); ok && id.Name == "Reason" && len(spec.Values) == 1 {
				word, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				if other, ok := words[failure.Reason(word)]; ok {
					t.Errorf("%s and %s are one word", other, spec.Names[0].Name)
				}
				words[failure.Reason(word)] = spec.Names[0].Name
			}
			return false
		})
	}
	if len(words) < 20 {
		t.Fatalf("only %d reasons found", len(words))
	}
	for word, name := range words {
		if word.Class() == "" {
			t.Errorf("%s has no class", name)
		}
	}
	if class := failure.Reason("sunspots").Class(); class != "" {
		t.Errorf("an unknown word is of class %q", class)
	}
}

func sources(t *testing.T) []*ast.File {
	t.Helper()
	names, err := fs.Glob(os.DirFS("."), "*.go")
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	return files
}

func TestNew(t *testing.T) {
	t.Parallel()
	cause := errors.New("quoted ticket")
	f := failure.New(failure.ContractViolation, "department\n", cause)
	if f.Class != failure.Permanent || f.Detail != "department" || !errors.Is(f, cause) {
		t.Errorf("%+v", f)
	}
	if got, want := f.Error(), "permanent failure: contract_violation"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	f = failure.Classify(failure.Exchange{Status: 500, Body: []byte(`{"error":"quoted ticket"}`)})
	if got, want := f.Error(), "transient failure: server_error (HTTP 500)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
