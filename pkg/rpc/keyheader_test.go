package rpc

import (
	"strings"
	"testing"
)

func FuzzKeyHeader(f *testing.F) {
	for _, s := range []string{`abc`, `"abc"`, `"a\"b\\c"`, `"`, `""`, `"a`, `a"b`, `"a" ; x`, `\`, "k\x00", "ключ"} {
		f.Add(s)
	}
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	f.Fuzz(func(t *testing.T, s string) {
		if key, ok := parseKeyHeader(s); ok && !ValidKey(key) {
			t.Errorf("%q gives the key %q", s, key)
		}
		// Every key can be said in a header, in both forms unless it begins with a quote.
		if !ValidKey(s) {
			return
		}
		if key, ok := parseKeyHeader(`"` + quote.Replace(s) + `"`); !ok || key != s {
			t.Errorf("%q, quoted, gives %q, %v", s, key, ok)
		}
		if key, ok := parseKeyHeader(s); s[0] != '"' && (!ok || key != s) {
			t.Errorf("%q, bare, gives %q, %v", s, key, ok)
		}
	})
}
