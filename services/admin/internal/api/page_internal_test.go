package api

import (
	"testing"

	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

// A token that is accepted is one that was given for this list.
func FuzzPageToken(f *testing.F) {
	list := &adminv1.ListVersionsRequest{}
	for _, s := range []string{"", "AAAA", "A=", nextPage(list, "17", "x"), nextPage(list, "-1", "x"), nextPage(list, "17", "y"), nextPage(&adminv1.ListPromotionsRequest{}, "17", "x")} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, token string) {
		r := &adminv1.ListVersionsRequest{PageToken: token}
		after, most, violations := pageOf(r, "x")
		if most != defaultPage {
			t.Errorf("%q gives a page of %d", token, most)
		}
		if token != "" && len(violations) == 0 && nextPage(r, after, "x") != token {
			t.Errorf("%q is accepted for %q", token, after)
		}
		if n, _, wrong := numberedPageOf(r, "x"); len(wrong) > 0 && len(violations) > 0 && n != 0 {
			t.Errorf("%q is refused, and gives %d", token, n)
		}
	})
}
