package compare

import (
	"strings"

	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

// departments are numbered in the order in which they become known. Letter case does not tell two apart, as with the
// names in a version; each is shown as it was first spelt.
type departments struct {
	list   []*adminv1.DepartmentAgreement
	number map[string]int
}

func newDepartments() *departments { return &departments{number: map[string]int{}} }

// know takes a department that the version has, or that the other has.
func (d *departments) know(name string, other bool) int {
	folded := fold(name)
	i, ok := d.number[folded]
	if !ok {
		i = len(d.list)
		d.number[folded] = i
		d.list = append(d.list, &adminv1.DepartmentAgreement{Name: strings.TrimSpace(name)})
	}
	if other {
		d.list[i].OtherKnown = true
	} else {
		d.list[i].Known = true
	}
	return i
}

func fold(name string) string { return strings.ToLower(strings.TrimSpace(name)) }

// judge adds precision, recall and F1, with the other as the truth.
func (d *departments) judge() {
	for _, one := range d.list {
		sent, belong, right := float64(one.GetTickets()), float64(one.GetOtherTickets()), float64(one.GetAgreed())
		one.Precision, one.Recall, one.F1 = share(right, sent), share(right, belong), share(2*right, sent+belong)
	}
}

// share is nil of nothing.
func share(part, whole float64) *float64 {
	if whole == 0 {
		return nil
	}
	s := part / whole
	return &s
}
