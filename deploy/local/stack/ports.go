package stack

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// Ports are drawn from below the ranges that operating systems give to outgoing connections: one of those could take
// a port between its choice and the bind of the service it was chosen for.
const (
	firstPort = 20_000
	lastPort  = 32_000
	portTries = 100
)

// FreeAddress is an address of the loopback interface that nobody listens at, and that no stack has given out that still
// runs, be it of another process: each port has a file, which is locked until the stack stops.
func (s *Stack) FreeAddress(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var last error
	for range portTries {
		port := firstPort + rand.IntN(lastPort-firstPort) //nolint:gosec // any port will do
		taken, err := takePort(port)
		if err != nil {
			last = err
			continue
		}
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		if err := nobodyListens(ctx, address); err != nil {
			last = errors.Join(err, taken.Close())
			continue
		}
		s.ports = append(s.ports, taken)
		return address, nil
	}
	return "", fmt.Errorf("find a free port: %w", errors.Join(errors.New("too many tries"), last))
}

// nobodyListens asks by connecting. Listening for a moment would ask too much: a process that is forked in that moment
// has the socket, too, and keeps the port from its next owner until it has become what it is forked for.
func nobodyListens(ctx context.Context, address string) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("ask who listens at %s: %w", address, err)
	}
	return errors.Join(fmt.Errorf("somebody listens at %s", address), conn.Close())
}

// takePort locks a port against all who take theirs in this way; closing the file gives it back, and so does the end of
// the process.
func takePort(port int) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(os.TempDir(), fmt.Sprintf("evalonce-port-%d.lock", port)), os.O_CREATE|os.O_RDONLY, 0o666) //nolint:gosec // others' processes take ports, too
	if err != nil {
		return nil, fmt.Errorf("take port %d: %w", port, err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("take port %d: %w", port, err), file.Close())
	}
	return file, nil
}

// givePortsBack ends what FreeAddress has begun.
func (s *Stack) givePortsBack() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, taken := range s.ports {
		errs = append(errs, taken.Close())
	}
	s.ports = nil
	return errors.Join(errs...)
}
