package webhook

import (
	"errors"
	"net/netip"
	"testing"

	"code.dny.dev/ssrf"
)

func TestOnlyPublicAddressesAreDialed(t *testing.T) {
	t.Parallel()
	guard := newGuard([]netip.Prefix{netip.MustParsePrefix("10.20.0.0/16"), netip.MustParsePrefix("fd00:1::/32")})
	for address, open := range map[string]bool{
		"8.8.8.8:443": true, "1.1.1.1:8443": true, "[2606:4700:4700::1111]:443": true,
		"10.20.3.4:443": true, "[fd00:1::5]:443": true, // allowed
		"10.21.0.1:443": false, "[fd00:2::5]:443": false,
		"0.0.0.0:443": false, "127.0.0.1:443": false, "127.9.9.9:443": false, "172.16.0.1:443": false, "172.31.255.255:443": false,
		"192.168.1.1:443": false, "100.64.0.1:443": false, "169.254.169.254:80": false, "192.0.0.192:443": false, "198.18.0.1:443": false,
		"192.0.2.1:443": false, "224.0.0.1:443": false, "239.255.255.255:443": false, "255.255.255.255:443": false, "240.0.0.1:443": false,
		"[::]:443": false, "[::1]:443": false, "[fe80::1]:443": false, "[fc00::1]:443": false, "[fd00:ec2::254]:80": false, "[ff02::1]:443": false,
		"[::ffff:127.0.0.1]:443": false, "[::ffff:8.8.8.8]:443": false, "[::ffff:169.254.169.254]:80": false, "[::127.0.0.1]:443": false,
		"[64:ff9b::7f00:1]:443": false, "[64:ff9b::a9fe:a9fe]:80": false, "[64:ff9b:1::1]:443": false, // NAT64
		"[2002:7f00:1::]:443":   false,                         // 6to4
		"[2001:0:7f00:1::]:443": false,                         // Teredo
		"[2001:db8::1]:443":     false, "[3fff::1]:443": false, // documentation
		"[fec0::1]:443": false, "[100::1]:443": false,
	} {
		network := "tcp4"
		if address[0] == '[' {
			network = "tcp6"
		}
		if err := guard.Safe(network, address, nil); (err == nil) != open {
			t.Errorf("%s: %v, want open %t", address, err, open)
		}
	}
	if err := guard.Safe("udp4", "8.8.8.8:53", nil); !errors.Is(err, ssrf.ErrProhibitedNetwork) {
		t.Errorf("udp: %v", err)
	}
}

func TestJitterIsOnlyAddedAndBounded(t *testing.T) {
	t.Parallel()
	c := Claimed{Event: Succeeded}
	steps := schedule()
	spread := map[int64]bool{}
	for n := range 1000 {
		c.ID[15], c.ID[14], c.ID[9] = byte(n), byte(n>>8), byte(n)
		for attempt := 1; attempt < len(steps); attempt++ {
			c.Attempts = attempt
			o := judge(c, Attempt{Status: 500, Reason: BadStatus})
			if o.state != "pending" || o.delay < steps[attempt] || o.delay > steps[attempt]*6/5 {
				t.Fatalf("attempt %d: %+v", attempt, o)
			}
			spread[int64(o.delay)] = true
		}
	}
	if len(spread) < 5000 {
		t.Errorf("9000 delays have %d values", len(spread))
	}
}
