// Package tlstest issues certificates for tests.
package tlstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority issues certificates, and fails its test where it cannot.
type Authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

// NewAuthority makes one that nobody else trusts.
func NewAuthority(t *testing.T) *Authority {
	t.Helper()
	a := &Authority{t: t, key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: rand.Text()}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Pool trusts the authority.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// Issue makes a certificate for loopback that serves both sides, and has a URI as a name of its own.
func (a *Authority) Issue(name string) tls.Certificate {
	a.t.Helper()
	key := newKey(a.t)
	uri, err := url.Parse(name)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "x"},
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, URIs: []*url.URL{uri},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// Client is a client's configuration that trusts the authority, and shows a certificate where one is given.
func (a *Authority) Client(certificates ...tls.Certificate) *tls.Config {
	return &tls.Config{RootCAs: a.Pool(), ServerName: "localhost", Certificates: certificates, MinVersion: tls.VersionTLS12}
}

// Files are a certificate, its key, and the authority's certificate, as PEM.
type Files struct{ Cert, Key, CA string }

// Write writes a certificate of the authority's to files that last as long as the test.
func (a *Authority) Write(certificate tls.Certificate) Files {
	a.t.Helper()
	dir := a.t.TempDir()
	key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	if err != nil {
		a.t.Fatal(err)
	}
	return Files{
		Cert: a.write(filepath.Join(dir, "tls.crt"), "CERTIFICATE", certificate.Certificate[0]),
		Key:  a.write(filepath.Join(dir, "tls.key"), "PRIVATE KEY", key),
		CA:   a.write(filepath.Join(dir, "ca.crt"), "CERTIFICATE", a.cert.Raw),
	}
}

func (a *Authority) write(path, kind string, der []byte) string {
	a.t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}
