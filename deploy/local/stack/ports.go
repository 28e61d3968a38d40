package stack

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports are drawn from below the ranges that operating systems give to outgoing connections: one of those could take
// a port between its choice and the bind of the service it was chosen for.
const (
	firstPort = 20_000
	lastPort  = 32_000
	portTries = 100
)

// FreeAddress is an address of the loopback interface that nobody listens at, and that this stack has not given out.
func (s *Stack) FreeAddress(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var last error
	for range portTries {
		port := firstPort + rand.IntN(lastPort-firstPort) //nolint:gosec // any port will do
		if s.ports[port] {
			continue
		}
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		var lc net.ListenConfig
		l, err := lc.Listen(ctx, "tcp", address)
		if err != nil {
			last = err
			continue
		}
		if err := l.Close(); err != nil {
			return "", fmt.Errorf("find a free port: %w", err)
		}
		s.ports[port] = true
		return address, nil
	}
	return "", fmt.Errorf("find a free port: %w", errors.Join(errors.New("too many tries"), last))
}
