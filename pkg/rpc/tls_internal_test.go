package rpc

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// writeCertificate replaces the files as a renewal does.
func writeCertificate(t *testing.T, transport Transport, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), DNSNames: []string{"localhost"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{
		transport.CertFile: {Type: "CERTIFICATE", Bytes: certificate}, transport.KeyFile: {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(path+".new", pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
}

func TestANewCertificateNeedsNoRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	transport := Transport{CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key")}
	writeCertificate(t, transport, 1)
	const every = 20 * time.Millisecond
	config, stop, err := transport.config(every)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	// served is the serial number of the certificate that a client sees.
	served := func() int64 {
		here, there := net.Pipe()
		defer here.Close()
		defer there.Close()
		go func() { _ = tls.Server(there, config).HandshakeContext(t.Context()) }()
		client := tls.Client(here, &tls.Config{InsecureSkipVerify: true})
		if err := client.HandshakeContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		return client.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	if n := served(); n != 1 {
		t.Fatalf("certificate %d is served", n)
	}
	writeCertificate(t, transport, 2)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for served() != 2 {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatal("the new certificate is never served")
		}
	}
	// What cannot be read leaves what was read in force.
	if err := os.WriteFile(transport.KeyFile, []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		<-tick.C
		if n := served(); n != 2 {
			t.Fatalf("certificate %d is served", n)
		}
	}
}
