package providersim

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// fold makes words of any script comparable: compatibility forms composed apart, marks dropped, case folded,
// so that "Não", "NÃO" and "nao" are one word, and "Straße" is "strasse".
func fold(s string) string {
	if isASCII(s) {
		return strings.ToLower(s)
	}
	decomposed := norm.NFKD.String(cases.Fold().String(s))
	return strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Mn, r) || unicode.Is(unicode.Cf, r) {
			return -1
		}
		return r
	}, decomposed)
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// words splits folded text into words. An apostrophe joins ("doesn't" is "doesnt"), an underscore parts
// (names of departments are snake_case), and a script written without spaces yields pairs of characters.
func words(folded string) []string {
	out := make([]string, 0, len(folded)/6+1)
	var word strings.Builder
	flush := func() {
		if word.Len() > 0 {
			out = append(out, word.String())
			word.Reset()
		}
	}
	var previous rune
	for _, r := range folded {
		switch {
		case unspaced(r):
			flush()
			if unspaced(previous) {
				out = append(out, string([]rune{previous, r}))
			}
		case 'a' <= r && r <= 'z', unicode.IsLetter(r), unicode.IsDigit(r):
			word.WriteRune(r)
		case r == '\'' || r == '’':
		default:
			flush()
		}
		previous = r
	}
	flush()
	return out
}

func unspaced(r rune) bool {
	const firstThai = 0x0E00
	return r >= firstThai && unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai)
}

// stem cuts the endings that plural, gender and tense leave in the languages of the lexicon. It is crude on
// purpose: both sides of every comparison pass through it, so it only has to be consistent.
func stem(word string) string {
	for _, plural := range [...]string{"coes", "ciones", "cions"} {
		if base, ok := strings.CutSuffix(word, plural); ok && len(base) >= 3 {
			return base + "ci"
		}
	}
	for _, singular := range [...]string{"cao", "cion", "cio"} {
		if base, ok := strings.CutSuffix(word, singular); ok && len(base) >= 3 {
			return base + "ci"
		}
	}
	if len(word) >= 4 && strings.HasSuffix(word, "s") && !strings.HasSuffix(word, "ss") && !strings.HasSuffix(word, "us") {
		word = word[:len(word)-1]
	}
	for _, ending := range [...]string{"ing", "ed", "en"} {
		if base, ok := strings.CutSuffix(word, ending); ok && len(base) >= 4 {
			word = base
			if n := len(word); word[n-1] == word[n-2] && !strings.ContainsRune("lsz", rune(word[n-1])) {
				word = word[:n-1]
			}
			break
		}
	}
	if n := len(word); n >= 5 {
		switch word[n-1] {
		case 'a', 'e', 'i', 'o':
			return word[:n-1]
		case 'y':
			return word[:n-1]
		}
	}
	return word
}

const prefixRunes = 6

// prefix is the weaker form of a stem under which longer relatives meet ("technician", "technical"); empty
// for a word too short to have one.
func prefix(stemmed string) string {
	runes := 0
	for i := range stemmed {
		if runes == prefixRunes {
			return stemmed[:i]
		}
		runes++
	}
	if runes == prefixRunes {
		return stemmed
	}
	return ""
}
