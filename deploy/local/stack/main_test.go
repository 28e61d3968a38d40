package stack_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(ownerDir) != "" {
		own()
		return
	}
	goleak.VerifyTestMain(m)
}
