package api

import (
	"encoding/hex"
	"testing"
)

// The form is stored: these values, computed by another implementation (Python's hashlib), never change.
func TestGoldenFingerprints(t *testing.T) {
	t.Parallel()
	for _, v := range []struct{ externalID, subject, message, want string }{
		{"", "", "", "6c1ac0fc3c6880c0a68b2316a1f33b26d3db56dabaddcc3b027dc68dce169bc3"},
		{"ext-1", "Não consigo aceder", "Olá,\r\nnão funciona.\n", "1be6d987ae62754bbbf9750a4d9d6e2a9df441a1b40591e13323c1fbc2180854"},
		{"a", "bc", "d", "157186bcc80780a69988a4227b745c00fecb08510ddddfe912ab7b4b75539eb8"},
		{"ab", "c", "d", "3e4e1858984e5d4c020c17090ec59dba2b65455b6143a758ae6bc02bb8da4e47"},
		{"", "abc", "d", "3ab9bf42b0eedc52a22a10467296472c97d043f503a5eb731fe5b5df9f99be4d"},
	} {
		got := fingerprint(v.externalID, v.subject, v.message)
		if hex.EncodeToString(got[:]) != v.want {
			t.Errorf("%q %q %q: got %x, want %s", v.externalID, v.subject, v.message, got, v.want)
		}
	}
}
