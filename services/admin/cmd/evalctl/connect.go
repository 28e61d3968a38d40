package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/evalonce/evalonce/pkg/config"
)

// settings are those that do not change from one command to the next.
type settings struct {
	Address string `env:"EVALONCE_ADMIN_ADDRESS" envDefault:"localhost:8084" help:"host:port of the admin service's gRPC"`
	Token   string `env:"EVALONCE_ADMIN_TOKEN" secret:"true" help:"API token"`
}

// maxResponse is room for a long list of long prompts.
const maxResponse = 256 << 20

// connect prepares a connection; nothing is sent before the first call.
func (c *cli) connect() (*grpc.ClientConn, error) {
	address, token, err := c.settings()
	if err != nil {
		return nil, usageError{err}
	}
	host, err := hostOf(address)
	if err != nil {
		return nil, usageError{err}
	}
	transport := credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12})
	plaintext := c.flags.insecure || loopback(host)
	if plaintext {
		transport = insecure.NewCredentials()
	}
	conn, err := grpc.NewClient("dns:///"+address,
		grpc.WithTransportCredentials(transport),
		grpc.WithPerRPCCredentials(bearer{token: token, plaintext: plaintext}),
		grpc.WithUnaryInterceptor(c.call(address)),
		grpc.WithDisableServiceConfig(), // a name's TXT record has no say in how calls are made
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponse)),
		grpc.WithUserAgent("evalctl/"+version),
	)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	return conn, nil
}

func (c *cli) settings() (address, token string, err error) {
	s, err := config.Load[settings](c.environ, nil, io.Discard)
	if err != nil {
		return "", "", err
	}
	if c.flags.address != "" {
		s.Address = c.flags.address
	}
	if c.flags.tokenFile != "" {
		b, err := os.ReadFile(c.flags.tokenFile)
		if err != nil {
			return "", "", fmt.Errorf("read the token: %w", err)
		}
		s.Token = strings.TrimRight(string(b), "\r\n")
	}
	if s.Token == "" {
		return "", "", errors.New("no token: set EVALONCE_ADMIN_TOKEN, or name a file that holds it by --token-file")
	}
	if strings.ContainsFunc(s.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", "", errors.New("the token holds characters that no token has: is it the right file?")
	}
	return s.Address, s.Token, nil
}

func hostOf(address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return "", fmt.Errorf("the address %q is not of the form host:port", address)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", fmt.Errorf("the address %q does not end with a port", address)
	}
	return host, nil
}

// loopback reports whether what is sent to host stays on this machine.
func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.IsLoopback()
}

// bearer sends the token with every call, and refuses to over a connection that is not what was decided on.
type bearer struct {
	token     string
	plaintext bool
}

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.token}, nil
}

func (b bearer) RequireTransportSecurity() bool { return !b.plaintext }

// call bounds the time of each call, and makes of its error one that can be shown.
func (c *cli) call(address string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		ctx, cancel := context.WithTimeout(ctx, c.flags.timeout)
		defer cancel()
		if err := invoke(ctx, method, req, reply, cc, opts...); err != nil {
			return &callError{status: status.Convert(err), address: address, timeout: c.flags.timeout}
		}
		return nil
	}
}
