package inference

import (
	"bytes"
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync"
	"time"
)

// What is read of a response, at most: an answer has some hundred bytes, and so has an error that says something.
// A 2xx body that reaches its bound is not whole.
const (
	maxBody      = 4 << 20
	maxErrorBody = 64 << 10
)

// sentHeaders are all that leave. SDKs add more: what machine this is, how often they tried, what trace the call is in.
var sentHeaders = []string{
	"Accept", "Content-Type", "User-Agent", callIDHeader,
	"Authorization", "X-Api-Key", "Anthropic-Version",
}

// exchange carries one request to the wire and keeps what came of it.
type exchange struct {
	attempted bool // the request reached do: it was built
	size      int64
	status    int
	header    http.Header
	body      []byte
	whole     bool  // the framing proves that the body was not cut
	err       error // without addresses or foreign text; see scrub
	refused   bool  // by the protocol's own guarantee, the server has not looked at the request
	ended     time.Time

	mu      sync.Mutex // the trace's hooks run on the transport's goroutines
	gotConn bool
	conn    *countedConn // nil when requests of others are written to the connection too
	before  int64        // what had been written to conn when the request got it
}

// do is the innermost step of every SDK. It reads the whole response itself, so that nothing is lost to the SDK's
// handling of errors, and hands a copy on.
func (x *exchange) do(req *http.Request, next func(*http.Request) (*http.Response, error)) (*http.Response, error) {
	x.attempted = true
	x.size = req.ContentLength
	for name := range req.Header {
		if !slices.Contains(sentHeaders, name) {
			req.Header.Del(name)
		}
	}
	// Without GetBody there is no second copy of the body, and the transport can repeat nothing that it began to
	// write. With it, HTTP/2 would repeat even a request that the server may have processed.
	req.GetBody = nil
	ctx := req.Context()
	req = req.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: x.onGetConn,
		GotConn: x.onGotConn,
	}))

	resp, err := next(req)
	x.ended = time.Now()
	if err != nil {
		x.refused = refusedUnseen(err)
		x.err = scrub(ctx, err)
		return nil, x.err
	}
	x.status, x.header = resp.StatusCode, resp.Header
	bound := int64(maxBody)
	if !x.succeeded() {
		bound = maxErrorBody
	}
	x.body, err = io.ReadAll(io.LimitReader(resp.Body, bound))
	_ = resp.Body.Close()
	x.ended = time.Now()
	if err != nil {
		x.err = scrub(ctx, err)
		return nil, x.err
	}
	x.whole = resp.ContentLength >= 0 || resp.Uncompressed || resp.ProtoMajor > 1 || slices.Contains(resp.TransferEncoding, "chunked")
	resp.Body = io.NopCloser(bytes.NewReader(x.body))
	return resp, nil
}

// succeeded reports whether the status promises an answer.
func (x *exchange) succeeded() bool { return x.status >= 200 && x.status <= 299 }

// onGetConn begins again: the transport looks for another connection only while nothing has been written.
func (x *exchange) onGetConn(string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.gotConn, x.conn = false, nil
}

func (x *exchange) onGotConn(info httptrace.GotConnInfo) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.gotConn = true
	conn := info.Conn
	for {
		c, ok := conn.(*tls.Conn)
		if !ok {
			break
		}
		if c.ConnectionState().NegotiatedProtocol == "h2" {
			return
		}
		conn = c.NetConn()
	}
	if counted, ok := conn.(*countedConn); ok {
		x.conn, x.before = counted, counted.written.Load()
	}
}

// sent reports whether the whole request was written, or may have been. HTTP/1 gives a connection to one request
// at a time and waits for its writer before it reports an error, so what was written since is known; fewer
// bytes than the body has are no request, and an alert of a closing TLS connection is far from that many. On
// HTTP/2, a request that got a connection may have left.
func (x *exchange) sent() bool {
	if x.status != 0 {
		return true
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case !x.gotConn, x.refused:
		return false
	case x.conn == nil:
		return true
	default:
		return x.conn.written.Load()-x.before >= x.size
	}
}
