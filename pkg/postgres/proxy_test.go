package postgres_test

import (
	"net"
	"net/url"
	"sync"
	"testing"
)

// proxied returns the address of a proxy to a server. Each of its connections is served by a function, and closed when that
// returns; what it has running is waited for at the end of the test.
func proxied(t *testing.T, address string, serve func(client, server net.Conn, running *sync.WaitGroup)) string {
	t.Helper()
	target, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	upstream := target.Host
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		running.Wait()
	})
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer client.Close()
				server, err := net.Dial("tcp", upstream)
				if err != nil {
					t.Error(err)
					return
				}
				defer server.Close()
				serve(client, server, &running)
			})
		}
	})
	target.Host = listener.Addr().String()
	return target.String()
}
