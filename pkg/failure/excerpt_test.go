package failure_test

import (
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/evalonce/evalonce/pkg/failure"
)

func TestExcerpt(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                                   "",
		"plain":                              "plain",
		" a\r\n\tb\u2028c\u0085d ":           "a b c d",
		"a\x00b\x1b[31mc\x7f":                "ab[31mc",
		"abc\u202edef\u2066\u200f\u061c":     "abcdef",
		"\ufeffze\u200bro\u2060\u00ad":       "zero",
		"a\u3164b\ufe0f\U000e0041\uffff":     "ab",
		"ol\xe9":                             "ol\ufffd",
		"cut \xf0\x9f\x94":                   "cut \ufffd",
		"日本 🔥 مرحبا":                         "日本 🔥 مرحبا",
		strings.Repeat("x", 500):             strings.Repeat("x", 500),
		strings.Repeat("x", 501):             strings.Repeat("x", 497) + "…",
		"ab" + strings.Repeat("🔥", 200):      "ab" + strings.Repeat("🔥", 123) + "…",
		strings.Repeat(" \u200b\n", 9) + ".": ".",
	} {
		if got := failure.Excerpt([]byte(in)); got != want {
			t.Errorf("%q became\n%q, want\n%q", in, got, want)
		}
	}
}

func TestExcerptRedacts(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`Post "https://user:hunter2@proxy.example/v1": EOF`:            `Post "https://[redacted]@proxy.example/v1": EOF`,
		`https://user:p@ss@proxy.example/`:                             `https://[redacted]@proxy.example/`,
		`postgres://u:secret@db/x`:                                     `postgres://[redacted]@db/x`,
		`Get "https://g.example/v1?key=abc&alt=json": EOF`:             `Get "https://g.example/v1?[redacted]": EOF`,
		`Authorization: Bearer abc.def-ghi`:                            `Authorization: [redacted] [redacted]`,
		`AUTH_Bearer abc123`:                                           `AUTH_Bearer [redacted]`,
		`bearer abc123 was refused`:                                    `bearer [redacted] was refused`,
		`authorization=Basic dXNlcjpwYXNz`:                             `authorization=[redacted]`,
		`key sk-abc123 is wrong`:                                       `key [redacted] is wrong`,
		`sk-proj-Ab_9-xyz, sk-ant-api03-q`:                             `[redacted], [redacted]`,
		`OPENAI_KEYsk-abcdefghijklmnopqrst`:                            `OPENAI_KEY[redacted]`,
		"s\u200bk-abc\x00123":                                          `[redacted]`,
		`gsk_abcdef xai-abcdef hf_abcdef`:                              `[redacted] [redacted] [redacted]`,
		`AIzaSyA-1234567890`:                                           `[redacted]`,
		`eyJhbGciOi.eyJzdWIi.c2ln`:                                     `[redacted]`,
		`{"api_key": "abc", "n": 1}`:                                   `{"api_key": "[redacted]", "n": 1}`,
		`x-api-key: abc`:                                               `x-api-key: [redacted]`,
		`Incorrect API key provided: abc***xyz`:                        `Incorrect API key provided: [redacted]`,
		`client_secret=abc&x=1`:                                        `client_secret=[redacted]&x=1`,
		`password: hunter2`:                                            `password: [redacted]`,
		`access-token = abc`:                                           `access-token = [redacted]`,
		`the task-force met about disk-full on risk-1`:                 `the task-force met about disk-full on risk-1`,
		`see https://platform.openai.com/account/api-keys for details`: `see https://platform.openai.com/account/api-keys for details`,
		`4097 tokens, at most 4096; write to help@provider.example`:    `4097 tokens, at most 4096; write to help@provider.example`,
	} {
		if got := failure.Excerpt([]byte(in)); got != want {
			t.Errorf("%q became\n%q, want\n%q", in, got, want)
		}
	}
}

// A key that the cut goes through is removed, not shortened.
func TestExcerptRedactsBeforeItCuts(t *testing.T) {
	t.Parallel()
	for n := 470; n <= 500; n++ {
		in := strings.Repeat("x", n) + " sk-abcdefghijklmnopqrstuvwxyz0123456789"
		if got := failure.Excerpt([]byte(in)); strings.Contains(got, "sk-") {
			t.Fatalf("%q", got)
		}
	}
}

func FuzzExcerpt(f *testing.F) {
	for _, s := range []string{
		"", "a\nb", "\xff\x00\u202e", "Bearer abc", "https://u:p@h/?q", "sk-abcdefghijklmnop", strings.Repeat("🔥", 200),
		"api_key: sk-abcdefghijklmnopqrs", "s\u200bk-abcdefghijklmnopqrst",
	} {
		f.Add([]byte(s))
	}
	leaks := regexp.MustCompile(`sk-[A-Za-z0-9_-]{16,}|(?i:bearer) [A-Za-z0-9]|://[^/\s"'<>\[]+@`)
	f.Fuzz(func(t *testing.T, b []byte) {
		got := failure.Excerpt(b)
		if len(got) > failure.MaxExcerptBytes || !utf8.ValidString(got) {
			t.Fatalf("%d bytes: %q", len(got), got)
		}
		for _, r := range got {
			if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || unicode.IsSpace(r) && r != ' ' {
				t.Fatalf("%U in %q", r, got)
			}
		}
		if leaks.MatchString(got) {
			t.Fatalf("%q", got)
		}
	})
}
