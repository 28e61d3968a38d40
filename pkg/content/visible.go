package content

import "unicode"

// Visible reports whether anything of s can be seen. White space, controls, zero-width and other invisible
// format characters, fillers, variation selectors and the blank Braille pattern cannot.
//
// The list is of what is known to be invisible, not of what is known to be visible: a character that is newer
// than the Unicode tables here counts as visible, since to refuse a ticket is worse than to evaluate a blank one.
func Visible(s string) bool {
	for _, r := range s {
		if !invisible(r) {
			return true
		}
	}
	return false
}

func invisible(r rune) bool {
	const brailleBlank = '\u2800'
	switch {
	case r == brailleBlank, unicode.IsSpace(r), unicode.IsControl(r):
		return true
	case unicode.Is(unicode.Prepended_Concatenation_Mark, r):
		// Format characters by category, yet drawn: the Arabic number signs and their like.
		return false
	}
	return unicode.In(r, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector,
		unicode.Noncharacter_Code_Point)
}
