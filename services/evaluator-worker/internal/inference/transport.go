package inference

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"
)

const (
	dialTimeout = 10 * time.Second
	// idlePerHost keeps the connections of a full worker open between two waves of calls to its one host.
	idlePerHost = 1024
)

// newTransport is for many concurrent calls to one host. The deadline of a call is its context's; only the steps
// before the request is written have limits of their own, so that they fail as what they are. The proxy is
// the one given, or none: the process's environment decides nothing here.
func newTransport(proxy *url.URL, roots *x509.CertPool) *http.Transport {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}
	t := &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &countedConn{Conn: conn}, nil
		},
		TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    dialTimeout,
		ForceAttemptHTTP2:      true,
		MaxIdleConnsPerHost:    idlePerHost,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: 256 << 10,
		// A dead HTTP/2 connection takes every call on it along; pings find it long before the calls' deadlines do.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second},
	}
	if proxy != nil {
		t.Proxy = http.ProxyURL(proxy)
	}
	return t
}

// countedConn counts what the kernel has taken for sending.
type countedConn struct {
	net.Conn
	written atomic.Int64
}

func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.written.Add(int64(n))
	return n, err
}
