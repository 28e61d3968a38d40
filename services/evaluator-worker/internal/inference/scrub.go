package inference

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"unicode/utf8"
)

// scrub rebuilds an error of the HTTP client from what is known to be harmless. The original names the URL, the
// addresses of both ends, certificates, and parts of what a server sent. A call that was given up fails with its
// context's error and cause, whatever the client made of it.
func scrub(ctx context.Context, err error) error {
	if ctxErr := ctx.Err(); ctxErr != nil {
		if cause := context.Cause(ctx); !errors.Is(cause, ctxErr) {
			return fmt.Errorf("%w: %w", ctxErr, cause)
		}
		return ctxErr
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return &net.DNSError{Err: plainDNS(dns), IsTimeout: dns.IsTimeout, IsTemporary: dns.IsTemporary, IsNotFound: dns.IsNotFound}
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return &net.OpError{Op: op.Op, Net: op.Net, Err: scrubCause(op.Err)}
	}
	return scrubCause(err)
}

func plainDNS(err *net.DNSError) string {
	switch {
	case err.IsNotFound:
		return "no such host"
	case err.IsTimeout:
		return "timeout"
	default:
		return "lookup failed"
	}
}

func scrubCause(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	var alert tls.AlertError
	if errors.As(err, &alert) {
		return alert
	}
	for _, known := range []error{io.ErrUnexpectedEOF, io.EOF, os.ErrDeadlineExceeded, net.ErrClosed, http.ErrSchemeMismatch} {
		if errors.Is(err, known) {
			return known
		}
	}
	if reason, ok := certificateProblem(err); ok {
		return errors.New("certificate refused: " + reason)
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return os.ErrDeadlineExceeded
	}
	// The type of the innermost error is as much as can be told of an unknown one.
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return fmt.Errorf("transport failed (%T)", err)
		}
		err = inner
	}
}

func certificateProblem(err error) (string, bool) {
	var (
		verification *tls.CertificateVerificationError
		host         x509.HostnameError
		authority    x509.UnknownAuthorityError
		invalid      x509.CertificateInvalidError
	)
	switch {
	case errors.As(err, &host):
		return "it is for another host", true
	case errors.As(err, &authority):
		return "unknown authority", true
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "expired or not yet valid", true
	case errors.As(err, &invalid), errors.As(err, &verification):
		return "invalid", true
	default:
		return "", false
	}
}

// refusedUnseen reports that an HTTP/2 server turned the request away before any processing, which REFUSED_STREAM
// and a GOAWAY below the stream's number guarantee (RFC 9113, section 8.7). The transport would repeat such a
// request; as it cannot, it says so, in words alone. If the words change, the outcome counts as unknown.
func refusedUnseen(err error) bool {
	text := err.Error()
	return strings.Contains(text, "http2: Transport: cannot retry err [") &&
		(strings.Contains(text, "; REFUSED_STREAM") || strings.Contains(text, "graceful shutdown GOAWAY"))
}

const (
	withheldWindow = 16 // a shorter match is chance
	withheldLeast  = 6  // a shorter secret would blot out ordinary words
)

// withhold blots out of s what it repeats of the secrets: of each, any stretch of withheldWindow bytes, or all
// of a shorter one. Providers quote requests in their error messages. s is valid
// UTF-8, and the result is never longer.
func withhold(s string, secrets ...string) string {
	hidden := make([]bool, len(s))
	found := false
	for _, secret := range secrets {
		n := min(len(secret), withheldWindow)
		if n < withheldLeast {
			continue
		}
		for i := 0; i+n <= len(s); i++ {
			if strings.Contains(secret, s[i:i+n]) {
				found = true
				for j := i; j < i+n; j++ {
					hidden[j] = true
				}
			}
		}
	}
	if !found {
		return s
	}
	var b strings.Builder
	blotted := false
	for i, r := range s {
		hide := false
		for j := i; j < i+utf8.RuneLen(r) && j < len(s); j++ {
			hide = hide || hidden[j]
		}
		if !hide {
			b.WriteRune(r)
		} else if !blotted {
			b.WriteString("[…]")
		}
		blotted = hide
	}
	return b.String()
}
