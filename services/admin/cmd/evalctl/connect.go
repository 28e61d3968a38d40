package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/evalonce/evalonce/migrations/release"
	"github.com/evalonce/evalonce/pkg/config"
)

// settings are those that do not change from one command to the next: the admin service's.
type settings struct {
	Address string `env:"EVALONCE_ADMIN_ADDRESS" envDefault:"localhost:8084" help:"host:port of the admin service's gRPC"`
	Token   string `env:"EVALONCE_ADMIN_TOKEN" secret:"true" help:"API token"`
	TLS     clientTLS
}

// apiSettings are those of ticket-api, for the commands that are a client's and not an operator's.
type apiSettings struct {
	Address string `env:"EVALONCE_API_ADDRESS" envDefault:"localhost:8081" help:"host:port of ticket-api's gRPC"`
	Token   string `env:"EVALONCE_API_TOKEN" secret:"true" help:"API token"`
	TLS     clientTLS
}

// clientTLS is what a connection is protected with, beside the system's certificates.
type clientTLS struct {
	CAFile   string `env:"EVALONCE_TLS_CA_FILE" help:"authorities that the server's certificate may be of, as PEM; empty is the system's"`
	CertFile string `env:"EVALONCE_TLS_CERT_FILE" help:"client certificate, as PEM"`
	KeyFile  string `env:"EVALONCE_TLS_KEY_FILE" help:"its private key, as PEM"`
}

func (t clientTLS) given() bool { return t != clientTLS{} }

func (t clientTLS) config() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.CAFile != "" {
		authorities, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read EVALONCE_TLS_CA_FILE: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(authorities) {
			return nil, fmt.Errorf("read EVALONCE_TLS_CA_FILE: there is no certificate in %s", t.CAFile)
		}
	}
	if t.CertFile != "" || t.KeyFile != "" {
		certificate, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read EVALONCE_TLS_CERT_FILE and EVALONCE_TLS_KEY_FILE: %w", err)
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	return config, nil
}

// maxResponse is room for a long list of long prompts.
const maxResponse = 256 << 20

const keepaliveInterval = 30 * time.Second

// connect prepares a connection to the admin service; nothing is sent before the first call.
func (c *cli) connect() (*grpc.ClientConn, error) {
	s, err := config.Load[settings](c.environ, nil, io.Discard)
	if err != nil {
		return nil, usageError{err}
	}
	return c.connectTo(s, "EVALONCE_ADMIN_TOKEN")
}

// connectAPI prepares a connection to ticket-api.
func (c *cli) connectAPI() (*grpc.ClientConn, error) {
	s, err := config.Load[apiSettings](c.environ, nil, io.Discard)
	if err != nil {
		return nil, usageError{err}
	}
	return c.connectTo(settings(s), "EVALONCE_API_TOKEN")
}

// connectTo takes the name of the setting that the token would be in.
func (c *cli) connectTo(s settings, tokenName string) (*grpc.ClientConn, error) {
	s, err := c.complete(s, tokenName)
	if err != nil {
		return nil, usageError{err}
	}
	address := s.Address
	host, err := hostOf(address)
	if err != nil {
		return nil, usageError{err}
	}
	transport := insecure.NewCredentials()
	plaintext := c.flags.insecure || loopback(host) && !s.TLS.given()
	if !plaintext {
		config, err := s.TLS.config()
		if err != nil {
			return nil, usageError{err}
		}
		transport = credentials.NewTLS(config)
	}
	conn, err := grpc.NewClient("dns:///"+address,
		grpc.WithTransportCredentials(transport),
		grpc.WithPerRPCCredentials(bearer{token: s.Token, plaintext: plaintext}),
		grpc.WithUnaryInterceptor(c.call(address)),
		grpc.WithStreamInterceptor(c.stream(address)),
		// A stream has no deadline, and must not wait for a service that is gone without a word.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveInterval, Timeout: keepaliveInterval}),
		grpc.WithDisableServiceConfig(), // a name's TXT record has no say in how calls are made
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponse)),
		grpc.WithUserAgent("evalctl/"+release.Current().Version),
	)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	return conn, nil
}

// complete adds what the command line says.
func (c *cli) complete(s settings, tokenName string) (settings, error) {
	if c.flags.address != "" {
		s.Address = c.flags.address
	}
	if c.flags.tokenFile != "" {
		b, err := os.ReadFile(c.flags.tokenFile)
		if err != nil {
			return settings{}, fmt.Errorf("read the token: %w", err)
		}
		s.Token = strings.TrimRight(string(b), "\r\n")
	}
	if s.Token == "" && s.TLS.CertFile == "" {
		return settings{}, fmt.Errorf("no token: set %s, or name a file that holds it by --token-file", tokenName)
	}
	if strings.ContainsFunc(s.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return settings{}, errors.New("the token holds characters that no token has: is it the right file?")
	}
	return s, nil
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
	if b.token == "" {
		return nil, nil // the certificate says who calls
	}
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
