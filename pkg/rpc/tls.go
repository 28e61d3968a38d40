package rpc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/credentials/tls/certprovider"
	"google.golang.org/grpc/credentials/tls/certprovider/pemfile"
)

// Transport says how connections are protected.
type Transport struct {
	CertFile     string `env:"EVALONCE_TLS_CERT_FILE" help:"the server's certificate and its chain, as PEM; read again every minute"`
	KeyFile      string `env:"EVALONCE_TLS_KEY_FILE" help:"its private key, as PEM"`
	ClientCAFile string `env:"EVALONCE_TLS_CLIENT_CA_FILE" help:"authorities whose client certificates are credentials, as PEM; empty asks for no certificates"`
	Plaintext    bool   `env:"EVALONCE_PLAINTEXT" envDefault:"false" help:"serve without TLS: for loopback, or where something in front ends it"`
}

// Validate reports all that is wrong at once.
func (t Transport) Validate() error {
	switch {
	case t.Plaintext && (t.CertFile != "" || t.KeyFile != "" || t.ClientCAFile != ""):
		return errors.New("EVALONCE_PLAINTEXT must not be set beside EVALONCE_TLS_CERT_FILE, EVALONCE_TLS_KEY_FILE or EVALONCE_TLS_CLIENT_CA_FILE")
	case !t.Plaintext && (t.CertFile == "" || t.KeyFile == ""):
		return errors.New("EVALONCE_TLS_CERT_FILE and EVALONCE_TLS_KEY_FILE must be set, or EVALONCE_PLAINTEXT=true to serve without TLS")
	}
	return nil
}

// reloadInterval is how often the files are read again.
const reloadInterval = time.Minute

// config makes the server's side of TLS, which follows the files until stop is called: who replaces them needs no
// restart. Files that cannot be read, or do not belong together, leave what was read before in force. It is nil for
// plain text.
func (t Transport) config(every time.Duration) (config *tls.Config, stop func(), err error) {
	if t.Plaintext {
		return nil, func() {}, nil
	}
	// The provider would report what is wrong with the files to every connection, and to nobody before.
	if _, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile); err != nil {
		return nil, nil, fmt.Errorf("read EVALONCE_TLS_CERT_FILE and EVALONCE_TLS_KEY_FILE: %w", err)
	}
	if t.ClientCAFile != "" {
		authorities, err := os.ReadFile(t.ClientCAFile)
		if err == nil && !x509.NewCertPool().AppendCertsFromPEM(authorities) {
			err = errors.New("there is no certificate in it")
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read EVALONCE_TLS_CLIENT_CA_FILE: %w", err)
		}
	}
	provider, err := pemfile.NewProvider(pemfile.Options{
		CertFile: t.CertFile, KeyFile: t.KeyFile, RootFile: t.ClientCAFile, RefreshDuration: every,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("follow the TLS files: %w", err)
	}
	base := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	config = base.Clone() // whoever serves with it may complete it
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		return forClient(hello.Context(), base, provider, t.ClientCAFile != "")
	}
	return config, provider.Close, nil
}

func forClient(ctx context.Context, base *tls.Config, provider certprovider.Provider, certificates bool) (*tls.Config, error) {
	material, err := provider.KeyMaterial(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the TLS files: %w", err)
	}
	config := base.Clone()
	config.Certificates = material.Certs
	if certificates {
		// Whoever shows none may have a token.
		config.ClientAuth, config.ClientCAs = tls.VerifyClientCertIfGiven, material.Roots
	}
	return config, nil
}

// serverCredentials protects the connections that come over the network; the gateway's, in memory, needs nothing.
func serverCredentials(config *tls.Config) credentials.TransportCredentials {
	if config == nil {
		return insecure.NewCredentials()
	}
	return networkOnly{credentials.NewTLS(config)}
}

type networkOnly struct {
	credentials.TransportCredentials
}

func (c networkOnly) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if conn.LocalAddr().Network() == memoryNetwork {
		return insecure.NewCredentials().ServerHandshake(conn)
	}
	return c.TransportCredentials.ServerHandshake(conn)
}

func (c networkOnly) Clone() credentials.TransportCredentials {
	return networkOnly{c.TransportCredentials.Clone()}
}
