package stack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// Lock keeps two runs of what, which both work in dir, from emptying each other's directory. The directory itself need
// not be there. A run that ends by whatever means leaves no lock behind.
func Lock(dir, what string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil { //nolint:gosec // Postgres's user passes through
		return nil, fmt.Errorf("prepare the %s: %w", what, err)
	}
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("prepare the %s: %w", what, err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another %s is running from this checkout: stop it first", what), lock.Close())
	}
	return func() { _ = lock.Close() }, nil
}
