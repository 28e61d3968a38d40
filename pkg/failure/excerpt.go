package failure

import (
	"bytes"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxExcerptBytes bounds what [Excerpt] returns.
const MaxExcerptBytes = 500

// excerptInput bounds the text that is looked at: a page of megabytes has nothing to say beyond it.
const excerptInput = 16 << 10

// Excerpt makes text from outside fit to be stored and shown: valid UTF-8 of one line, without control, invisible
// and direction-changing characters, with what looks like a credential removed, and at most [MaxExcerptBytes] long.
//
// Credentials are looked for after invisible characters are gone, which could hide one, and before the text is cut,
// which could leave a part of one that no pattern knows.
func Excerpt(b []byte) string {
	if len(b) > excerptInput {
		b = b[:excerptInput]
		// The last word may be the beginning of a credential that no pattern knows.
		if end := bytes.LastIndexFunc(b, unicode.IsSpace); end >= 0 {
			b = b[:end]
		}
	}
	s := strings.Map(plain, strings.ToValidUTF8(string(b), string(utf8.RuneError)))
	s = strings.Join(strings.Fields(s), " ")
	for _, secret := range secrets {
		s = secret.pattern.ReplaceAllString(s, secret.replacement)
	}
	return truncate(s)
}

// plain drops what cannot be seen and turns what separates into a space. Line and paragraph separators are white
// space, and so are the controls among the ASCII ones.
func plain(r rune) rune {
	switch {
	case unicode.IsSpace(r):
		return ' '
	case unicode.In(r, unicode.Cc, unicode.Cf, unicode.Noncharacter_Code_Point,
		unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector):
		return -1
	}
	return r
}

const redacted = "[redacted]"

// secrets are tried in order.
var secrets = []struct {
	pattern     *regexp.Regexp
	replacement string
}{
	// https://user:password@host
	{regexp.MustCompile(`://[^/\s"'<>]*@`), "://" + redacted + "@"},
	// https://host/path?key=secret: the whole query, since any parameter may be the secret one
	{regexp.MustCompile(`(://[^\s?"'<>]*)\?[^\s"'<>]*`), "${1}?" + redacted},
	{regexp.MustCompile(`(?i)(bearer)[\s:]+[A-Za-z0-9._~+/=*-]+`), "${1} " + redacted},
	// Keys by the prefixes of their issuers, and JSON web tokens
	{regexp.MustCompile(`(?i)\b(?:sk|rk|pk|gsk|xai|hf)[-_][A-Za-z0-9_*-]{3,}|sk-[A-Za-z0-9_*-]{16,}`), redacted},
	{regexp.MustCompile(`\bAIza[A-Za-z0-9_-]{8,}`), redacted},
	{regexp.MustCompile(`\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_.-]+`), redacted},
	// Named secrets: api_key=…, "x-api-key": "…", API key provided: …, Authorization: Basic …
	{regexp.MustCompile(`(?i)(api[-_ ]?key|authorization|access[-_]?token|client[-_]?secret|password)` +
		`((?:["']|\s+provided)?\s*[:=]\s*["']?)(?:basic\s+)?[^\s"',;&}]+`), "${1}${2}" + redacted},
}

func truncate(s string) string {
	if len(s) <= MaxExcerptBytes {
		return s
	}
	const ellipsis = "…"
	end := MaxExcerptBytes - len(ellipsis)
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + ellipsis
}
