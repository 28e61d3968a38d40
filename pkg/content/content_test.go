package content_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
	"pgregory.net/rapid"

	"github.com/evalonce/evalonce/pkg/content"
)

// vector is a row of testdata/keys.json, which was computed by another implementation (Python's hashlib and
// unicodedata).
type vector struct {
	Name          string `json:"name"`
	Subject       string `json:"subject"`
	Message       string `json:"message"`
	MessageRepeat int    `json:"message_repeat"`
	ContentHash   string `json:"content_hash"`
	VersionDigest string `json:"version_digest"`
	Key           string `json:"key"`
}

func vectors(t *testing.T) []vector {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "keys.json"))
	if err != nil {
		t.Fatal(err)
	}
	var vs []vector
	if err := json.Unmarshal(b, &vs); err != nil {
		t.Fatal(err)
	}
	if len(vs) < 12 {
		t.Fatalf("%d vectors, want at least 12", len(vs))
	}
	for i := range vs {
		vs[i].Message = strings.Repeat(vs[i].Message, max(vs[i].MessageRepeat, 1))
	}
	return vs
}

func bytes32(t *testing.T, s string) [32]byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != 32 {
		t.Fatalf("%q is not 32 bytes in hex", s)
	}
	return [32]byte(b)
}

func TestGoldenKeys(t *testing.T) {
	t.Parallel()
	for _, v := range vectors(t) {
		t.Run(v.Name, func(t *testing.T) {
			t.Parallel()
			text, err := content.Canonical(v.Subject, v.Message)
			if err != nil {
				t.Fatal(err)
			}
			hash := text.Hash()
			if got := hex.EncodeToString(hash[:]); got != v.ContentHash {
				t.Errorf("content hash %s, want %s", got, v.ContentHash)
			}
			if got := content.KeyOf(hash, bytes32(t, v.VersionDigest)); string(got) != v.Key {
				t.Errorf("key %s, want %s", got, v.Key)
			}
		})
	}
}

// ticketCase is a row of testdata/cases.jsonl. Rows of one group have one key, rows of different groups have
// different ones; a refused row has no canonical form, and of a hidden row nothing can be seen.
type ticketCase struct {
	ID         string  `json:"id"`
	Group      string  `json:"group"`
	Refused    string  `json:"refused"`
	Hidden     bool    `json:"hidden"`
	Subject    string  `json:"subject"`
	Message    string  `json:"message"`
	SubjectB64 *[]byte `json:"subject_b64"`
	MessageB64 *[]byte `json:"message_b64"`

	// Of the data beside the repository only.
	Expect   string `json:"expect"`
	KeyGroup string `json:"key_group"`
}

func readCases(path string) ([]ticketCase, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var cases []ticketCase
	for line := range bytes.Lines(b) {
		var c ticketCase
		if err := json.Unmarshal(line, &c); err != nil {
			return nil, err
		}
		if c.SubjectB64 != nil {
			c.Subject = string(*c.SubjectB64)
		}
		if c.MessageB64 != nil {
			c.Message = string(*c.MessageB64)
		}
		cases = append(cases, c)
	}
	return cases, nil
}

// groups notices when one group has two keys, or one key two groups.
type groups struct {
	keys   map[string]content.Key
	owners map[content.Key]string
}

func newGroups() groups {
	return groups{keys: map[string]content.Key{}, owners: map[content.Key]string{}}
}

func (g groups) add(t *testing.T, id, group string, text content.Text) {
	t.Helper()
	key := content.KeyOf(text.Hash(), [32]byte{})
	if other, ok := g.keys[group]; ok && other != key {
		t.Errorf("%s: another key than the rest of its group %s", id, group)
	}
	if other, ok := g.owners[key]; ok && other != group {
		t.Errorf("%s: the key of group %s in group %s", id, other, group)
	}
	g.keys[group], g.owners[key] = key, group
}

func TestCases(t *testing.T) {
	t.Parallel()
	cases, err := readCases(filepath.Join("testdata", "cases.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	g := newGroups()
	for _, c := range cases {
		text, err := content.Canonical(c.Subject, c.Message)
		if c.Refused != "" {
			if err == nil || err.Error() != c.Refused {
				t.Errorf("%s: got error %v, want %q", c.ID, err, c.Refused)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.ID, err)
			continue
		}
		if visible := content.Visible(text.Subject) || content.Visible(text.Message); visible == c.Hidden {
			t.Errorf("%s: visible is %t", c.ID, visible)
		}
		if !c.Hidden {
			g.add(t, c.ID, c.Group, text)
		}
	}
	if len(g.keys) < 20 {
		t.Errorf("only %d groups of keys were seen", len(g.keys))
	}
}

// The rules decide the groups that the data leaves open: zero-width characters are kept, so that their ticket has a
// key of its own, while line ends and normal forms are folded.
func TestSharedCases(t *testing.T) {
	t.Parallel()
	cases, err := readCases(filepath.Join("..", "..", "..", "shared", "data", "nasty_cases.jsonl"))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("no shared data beside the repository; TestCases has the same kinds of cases")
	}
	if err != nil {
		t.Fatal(err)
	}
	decided := map[string]string{"zwsp": "zwsp", "crlf": "g1", "nfd": "g1"}
	g := newGroups()
	for _, c := range cases {
		text, err := content.Canonical(c.Subject, c.Message)
		refused := err != nil || !content.Visible(text.Message)
		if want := c.Expect == "InvalidArgument"; refused != want {
			t.Errorf("%s: refused is %t (%v), want %t", c.ID, refused, err, want)
		}
		group, undecided := strings.CutSuffix(c.KeyGroup, "?")
		if undecided {
			group = decided[c.ID]
			if group == "" {
				t.Errorf("%s: its group is not decided", c.ID)
			}
		}
		if refused {
			continue
		}
		if group == "" {
			group = c.ID
		}
		g.add(t, c.ID, group, text)
	}
}

func TestError(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		subject, message string
		want             content.Error
	}{
		{"\xff", "ok", content.Error{Field: "subject", Reason: content.InvalidUTF8}},
		{"ok", "\xff", content.Error{Field: "message", Reason: content.InvalidUTF8}},
		{"\x00", "\xff", content.Error{Field: "subject", Reason: content.HasNUL}},
		{"ok", "a\x00", content.Error{Field: "message", Reason: content.HasNUL}},
	} {
		text, err := content.Canonical(c.subject, c.message)
		var got *content.Error
		if !errors.As(err, &got) || *got != c.want {
			t.Errorf("%q, %q: %v, want %v", c.subject, c.message, err, &c.want)
		}
		if text != (content.Text{}) {
			t.Errorf("%q, %q: a refused text still gave %q", c.subject, c.message, text)
		}
	}
}

func TestVisible(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]bool{
		"":                       false,
		" \t\r\n\v\f":            false,
		"\u00a0\u3000\u2028":     false,
		"\u200b\u200c\u200d":     false,
		"\ufeff\u2060\u00ad":     false,
		"\x00\x07\x7f\u0085":     false,
		"\u202a\u202e\u2067":     false,
		"\u3164\u115f\uffa0":     false, // fillers, letters by category
		"\u2800":                 false, // blank Braille, a symbol by category
		"\ufe0f\U000e0100":       false,
		"\ufffe\U0010ffff":       false,
		"\ufff9\ufffb":           false,
		"a":                      true,
		"\u200b.\u200b":          true,
		"\u0301":                 true, // drawn on a dotted circle
		"\u0600\u06dd":           true, // format characters that are drawn
		"🔥":                      true,
		"\u2801":                 true,
		"\U000323b0":             true, // not assigned, perhaps yet
		strings.Repeat(" ", 9e4): false,
	} {
		if got := content.Visible(s); got != want {
			t.Errorf("Visible(%+q) is %t", s, got)
		}
	}
}

// texts draws from what makes canonical forms hard: line ends, every kind of white space, marks in long runs and in
// any order, characters that decompose into several, and everything else.
func texts() *rapid.Generator[string] {
	spaces := rapid.SampledFrom([]rune(" \t\n\r\v\f\u0085\u00a0\u1680\u2000\u2001\u2028\u2029\u202f\u205f\u3000"))
	marks := rapid.SampledFrom([]rune("\u0300\u0301\u0315\u0323\u0327\u0338\u0340\u0344\u034f\u0f71\u0f73\u3099\U0001d165"))
	letters := rapid.SampledFrom([]rune("aéṩÅ\u212b가\u1100\u1161\u11a8\ufb1d\u09dc\u1fee|\u200b\u200d\ufeff"))
	piece := rapid.OneOf(
		rapid.StringOfN(spaces, 1, 3, -1),
		rapid.StringOfN(marks, 1, 70, -1),
		rapid.StringOfN(letters, 1, 4, -1),
		rapid.Just("\r\n"), rapid.Just("\n\r"), rapid.Just("\r\r\n"),
		rapid.StringOfN(rapid.Rune().Filter(func(r rune) bool { return r != 0 }), 0, 6, -1),
	)
	return rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(piece, 0, 6).Draw(t, "pieces"), "")
	})
}

func mustCanonical(t *rapid.T, subject, message string) content.Text {
	text, err := content.Canonical(subject, message)
	if err != nil {
		t.Fatalf("%q, %q: %v", subject, message, err)
	}
	return text
}

func TestCanonicalIsIdempotent(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		once := mustCanonical(t, texts().Draw(t, "subject"), texts().Draw(t, "message"))
		if twice := mustCanonical(t, once.Subject, once.Message); twice != once {
			t.Fatalf("%+q became %+q", once, twice)
		}
	})
}

func TestCanonicalIgnoresNormalFormAndLineEnds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := texts().Draw(t, "s")
		want := mustCanonical(t, s, "")
		if got := mustCanonical(t, norm.NFD.String(s), ""); got != want {
			t.Fatalf("NFD gives %+q, not %+q", got, want)
		}
		lf := strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\r", "\n")
		for _, end := range []string{"\r\n", "\r"} {
			if got := mustCanonical(t, strings.ReplaceAll(lf, "\n", end), ""); got != want {
				t.Fatalf("line ends %q give %+q, not %+q", end, got, want)
			}
		}
		if got := mustCanonical(t, "\u3000"+s+"\r\n\u0085", ""); got != want {
			t.Fatalf("outer white space gives %+q, not %+q", got, want)
		}
	})
}

func TestZeroWidthIsKept(t *testing.T) {
	t.Parallel()
	zeroWidth := rapid.SampledFrom([]string{"\u200b", "\u200c", "\u200d", "\u2060", "\ufeff"})
	rapid.Check(t, func(t *rapid.T) {
		zw := zeroWidth.Draw(t, "zw")
		s := rapid.StringMatching(`[a-z]{0,4}`).Draw(t, "s")
		at := rapid.IntRange(0, len(s)).Draw(t, "at")
		with := s[:at] + zw + s[at:]
		if got := mustCanonical(t, with, "").Subject; got != with {
			t.Fatalf("%+q became %+q", with, got)
		}
	})
}

// Moving the boundary between subject and message, or anything else that makes another pair, makes another hash.
func TestHashTellsPairsApart(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		whole := rapid.StringOfN(rapid.SampledFrom([]rune("ab|\n\x01\u00e9")), 0, 12, -1).Draw(t, "whole")
		bounds := rapid.IntRange(0, len(whole))
		i, j := bounds.Draw(t, "i"), bounds.Draw(t, "j")
		one := content.Text{Subject: whole[:i], Message: whole[i:]}
		two := content.Text{Subject: whole[:j], Message: whole[j:]}
		if (one.Hash() == two.Hash()) != (one == two) {
			t.Fatalf("%q and %q", one, two)
		}
	})
}

func TestKeyDependsOnBothParts(t *testing.T) {
	t.Parallel()
	array := rapid.Custom(func(t *rapid.T) [32]byte {
		return [32]byte(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "bytes"))
	})
	rapid.Check(t, func(t *rapid.T) {
		hash, digest := content.Hash(array.Draw(t, "hash")), array.Draw(t, "digest")
		key := content.KeyOf(hash, digest)
		if b, err := hex.DecodeString(string(key)); err != nil || len(b) != 16 || strings.ToLower(string(key)) != string(key) {
			t.Fatalf("%q is not 32 lower-case hex digits", key)
		}
		bit := rapid.IntRange(0, 255).Draw(t, "bit")
		otherHash, otherDigest := hash, digest
		otherHash[bit/8] ^= 1 << (bit % 8)
		otherDigest[bit/8] ^= 1 << (bit % 8)
		if content.KeyOf(otherHash, digest) == key || content.KeyOf(hash, otherDigest) == key {
			t.Fatalf("bit %d does not count", bit)
		}
	})
}

func FuzzCanonical(f *testing.F) {
	for _, s := range []string{"", "a", " \r\n", "e\u0301", "\u2000", "\ufeff\u200b", "\x00", "\xff", "\r\r\n", strings.Repeat("\u0301", 64)} {
		f.Add(s, "message")
		f.Add("subject", s)
	}
	f.Fuzz(func(t *testing.T, subject, message string) {
		text, err := content.Canonical(subject, message)
		usable := func(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }
		if wantErr := !usable(subject) || !usable(message); (err != nil) != wantErr {
			t.Fatalf("error is %v", err)
		}
		if err != nil {
			return
		}
		for _, s := range []string{text.Subject, text.Message} {
			if !usable(s) || strings.Contains(s, "\r") || !norm.NFC.IsNormalString(s) || strings.TrimSpace(s) != s {
				t.Fatalf("%+q is not canonical", s)
			}
		}
		again, err := content.Canonical(text.Subject, text.Message)
		if err != nil || again != text {
			t.Fatalf("%+q became %+q, %v", text, again, err)
		}
	})
}

func FuzzVisible(f *testing.F) {
	for _, s := range []string{"", " ", "a", "\u200b", "\u3164", "\xff", "\u0600"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		if !utf8.ValidString(a) || !utf8.ValidString(b) {
			return // broken bytes can join into a character
		}
		if content.Visible(a+b) != (content.Visible(a) || content.Visible(b)) {
			t.Fatalf("%+q and %+q", a, b)
		}
		if text, err := content.Canonical(a, ""); err == nil && content.Visible(text.Subject) != content.Visible(a) {
			t.Fatalf("canonical form of %+q is seen otherwise", a)
		}
	})
}
