package api

import (
	"testing"

	"github.com/google/uuid"

	"github.com/evalonce/evalonce/pkg/webhook"
)

// A token that is accepted is one that was given for this endpoint and filter.
func FuzzDeliveryToken(f *testing.F) {
	endpoint, last := uuid.MustParse("018bcfe5-687b-7000-8000-000000000001"), uuid.MustParse("018bcfe5-687b-7000-8000-000000000002")
	failed := webhook.DeliveryFilter{State: webhook.Failed}
	for _, s := range []string{"", "AAAA", encodeDeliveryToken(last, endpoint, failed), encodeDeliveryToken(last, last, failed), encodeDeliveryToken(last, endpoint, webhook.DeliveryFilter{})} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, token string) {
		id, ok := decodeDeliveryToken(token, endpoint, failed)
		if ok && token != "" && encodeDeliveryToken(id, endpoint, failed) != token {
			t.Errorf("%q is accepted as %s", token, id)
		}
	})
}
