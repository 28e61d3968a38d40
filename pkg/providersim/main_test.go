package providersim

import (
	"testing"

	"go.uber.org/goleak"
)

// net/http waits half a second before it closes the connection of a request that was too large, and that may be the
// last thing that happens here.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}
