//go:build crashpoints

package crashpoint

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// Variable is the environment variable that says where to die.
const Variable = "EVALONCE_CRASH_AT"

type death struct {
	point Point
	left  atomic.Int64 // passings until then, that one included
}

// appointed is a variable of the package, and reads the environment, because points lie where no configuration
// reaches: this is a build for tests.
var appointed = sync.OnceValue(func() *death {
	value := os.Getenv(Variable)
	if value == "" {
		return nil
	}
	d, err := parse(value)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	return d
})

func parse(value string) (*death, error) {
	name, count, counted := strings.Cut(value, ":")
	n := 1
	if counted {
		var err error
		if n, err = strconv.Atoi(count); err != nil || n < 1 {
			return nil, fmt.Errorf("%s: %q is not the number of a passing", Variable, count)
		}
	}
	d := &death{point: Point(name)}
	if !slices.Contains(All(), d.point) {
		return nil, fmt.Errorf("%s: there is no crash point %q", Variable, name)
	}
	d.left.Store(int64(n))
	return d, nil
}

// Pass kills this process, if this is the passing that it was told to die at.
func Pass(p Point) {
	d := appointed()
	if d == nil || d.point != p || d.left.Add(-1) != 0 {
		return
	}
	// One write, which is in the file when it returns: it says that the death was this one.
	fmt.Fprintf(os.Stderr, "killed at %s\n", p)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the other threads of the process die as soon as this one
}

// PassIf passes the point if it is really there: if there was something to do.
func PassIf(really bool, p Point) {
	if really {
		Pass(p)
	}
}
