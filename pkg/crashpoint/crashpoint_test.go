package crashpoint_test

import (
	"bytes"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/evalonce/evalonce/pkg/crashpoint"
)

const variable = "EVALONCE_CRASH_AT"

// The list has every point that is declared, and no two of one name.
func TestAll(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "points.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var declared []crashpoint.Point
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		name, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		if spec.Doc == nil {
			t.Errorf("%s does not say where it is", name)
		}
		declared = append(declared, crashpoint.Point(name))
		return true
	})
	listed := crashpoint.All()
	slices.Sort(declared)
	slices.Sort(listed)
	if len(listed) == 0 || !slices.Equal(declared, listed) {
		t.Errorf("listed are %v, declared %v", listed, declared)
	}
	if distinct := slices.Compact(slices.Clone(listed)); len(distinct) != len(listed) {
		t.Errorf("two points share a name: %v", listed)
	}
}

func TestDeath(t *testing.T) {
	t.Parallel()
	program := build(t, "-tags=crashpoints")
	for crashAt, want := range map[string]struct {
		alive  int
		killed bool
		exit   int
		stderr string
	}{
		"":                {alive: 4},
		"call.sending":    {alive: 0, killed: true, stderr: "killed at call.sending\n"},
		"call.sending:3":  {alive: 2, killed: true, stderr: "killed at call.sending\n"},
		"call.sending:4":  {alive: 4},
		"settle.begun:1":  {alive: 3, killed: true, stderr: "killed at settle.begun\n"},
		"claim.begun":     {alive: 4},
		"call.sendin":     {exit: 2, stderr: variable + ": there is no crash point \"call.sendin\"\n"},
		"call.sending:0":  {exit: 2, stderr: variable + ": \"0\" is not the number of a passing\n"},
		"call.sending:":   {exit: 2, stderr: variable + ": \"\" is not the number of a passing\n"},
		"call.sending:1x": {exit: 2, stderr: variable + ": \"1x\" is not the number of a passing\n"},
	} {
		t.Run(crashAt, func(t *testing.T) {
			t.Parallel()
			alive, state, stderr := run(t, program, crashAt)
			status := state.Sys().(syscall.WaitStatus)
			if killed := status.Signaled() && status.Signal() == syscall.SIGKILL; killed != want.killed {
				t.Errorf("ended with %s, want killed %t", state, want.killed)
			}
			if !want.killed && state.ExitCode() != want.exit {
				t.Errorf("ended with %s, want %d", state, want.exit)
			}
			if alive != want.alive {
				t.Errorf("lived through %d points, want %d", alive, want.alive)
			}
			if stderr != want.stderr {
				t.Errorf("said %q, want %q", stderr, want.stderr)
			}
		})
	}
}

// Without the tag there is nothing: not the variable, and not the names.
func TestOtherBuildsHaveNone(t *testing.T) {
	t.Parallel()
	program := build(t)
	if alive, state, stderr := run(t, program, "call.sending"); alive != 4 || !state.Success() || stderr != "" {
		t.Errorf("lived through %d points, want 4; ended with %s, said %q", alive, state, stderr)
	}
	for _, text := range []string{variable, string(crashpoint.CallSending)} {
		if contains(t, program, text) {
			t.Errorf("a build without the tag contains %q", text)
		}
		if !contains(t, build(t, "-tags=crashpoints"), text) {
			t.Errorf("the other does not contain %q: this test finds nothing", text)
		}
	}
}

func build(t *testing.T, flags ...string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "steps")
	cmd := exec.CommandContext(t.Context(), "go", slices.Concat([]string{"build"}, flags, []string{"-o", program, "./testdata/steps"})...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

func run(t *testing.T, program, crashAt string) (alive int, state *os.ProcessState, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = []string{variable + "=" + crashAt}
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return strings.Count(out.String(), "alive\n"), cmd.ProcessState, errs.String()
}

func contains(t *testing.T, program, text string) bool {
	t.Helper()
	data, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Contains(data, []byte(text))
}
