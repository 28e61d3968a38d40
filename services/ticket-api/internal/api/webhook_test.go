package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/webhook"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
	"github.com/evalonce/evalonce/services/ticket-api/internal/api"
)

func (a *ticketAPI) webhooks() ticketv1.WebhookServiceClient {
	return ticketv1.NewWebhookServiceClient(a.conn)
}

func (a *ticketAPI) endpoint(events ...string) *ticketv1.CreateWebhookEndpointResponse {
	a.t.Helper()
	created, err := a.webhooks().CreateWebhookEndpoint(a.as(a.acme), &ticketv1.CreateWebhookEndpointRequest{Url: "https://acme.example/hook?token=x", Events: events})
	if err != nil {
		a.t.Fatal(err)
	}
	return created
}

func TestWebhookEndpointsLiveAndDie(t *testing.T) {
	t.Parallel()
	a := start(t)
	var created ticketv1.CreateWebhookEndpointResponse
	r := a.rest(http.MethodPost, "/v1/webhookEndpoints", `{"url": "https://acme.example/hook", "description": "ours"}`, "Idempotency-Key: one")
	r.decode(t, &created)
	if r.status != http.StatusCreated || !strings.HasPrefix(created.GetSecret(), "whsec_") || len(created.GetEndpoint().GetEvents()) != 3 ||
		created.GetEndpoint().GetState() != ticketv1.WebhookEndpoint_ENABLED {
		t.Fatalf("created %d %s", r.status, r.body)
	}
	id := created.GetEndpoint().GetId()
	// The same request again is the same endpoint, whose secret is not shown twice; another request under its key is none.
	again := a.rest(http.MethodPost, "/v1/webhookEndpoints", `{"url": "https://acme.example/hook", "description": "ours"}`, "Idempotency-Key: one")
	var replay ticketv1.CreateWebhookEndpointResponse
	again.decode(t, &replay)
	if again.header.Get("Idempotent-Replayed") != "true" || !proto.Equal(created.GetEndpoint(), replay.GetEndpoint()) || strings.Contains(again.body, "whsec_") {
		t.Errorf("replayed %s", again.body)
	}
	wantREST(t, a.rest(http.MethodPost, "/v1/webhookEndpoints", `{"url": "https://acme.example/other"}`, "Idempotency-Key: one"), 422, "IDEMPOTENCY_KEY_REUSED")

	shown := a.rest(http.MethodGet, "/v1/webhookEndpoints/"+id, "")
	if shown.status != http.StatusOK || strings.Contains(shown.body, "whsec_") {
		t.Errorf("got %d %s", shown.status, shown.body)
	}
	updated := &ticketv1.WebhookEndpoint{}
	a.rest(http.MethodPatch, "/v1/webhookEndpoints/"+id, `{"events": ["evaluation.superseded"], "enabled": false}`).decode(t, updated)
	if updated.GetState() != ticketv1.WebhookEndpoint_DISABLED || updated.GetDisabledReason() != ticketv1.WebhookEndpoint_CLIENT ||
		len(updated.GetEvents()) != 1 || updated.GetDescription() != "ours" || updated.GetUrl() != "https://acme.example/hook" {
		t.Errorf("updated to %v", updated)
	}
	wantREST(t, a.rest(http.MethodPost, "/v1/webhookEndpoints/"+id+":sendTestEvent", `{}`), 400, "WEBHOOK_ENDPOINT_DISABLED")
	if r := a.rest(http.MethodDelete, "/v1/webhookEndpoints/"+id, ""); r.status != http.StatusOK {
		t.Errorf("deleted: %d %s", r.status, r.body)
	}
	wantREST(t, a.rest(http.MethodGet, "/v1/webhookEndpoints/"+id, ""), 404, "WEBHOOK_ENDPOINT_NOT_FOUND")
	wantREST(t, a.rest(http.MethodDelete, "/v1/webhookEndpoints/"+id, ""), 404, "WEBHOOK_ENDPOINT_NOT_FOUND")
	if left := a.count(`SELECT count(*) FROM webhook_secret`); left != 0 {
		t.Errorf("%d secrets of a deleted endpoint", left)
	}
}

func TestOthersEndpointsDoNotExist(t *testing.T) {
	t.Parallel()
	a := start(t)
	id := a.endpoint().GetEndpoint().GetId()
	delivery, err := a.webhooks().SendTestEvent(a.as(a.acme), &ticketv1.SendTestEventRequest{EndpointId: id})
	if err != nil {
		t.Fatal(err)
	}
	ctx, c := a.as(a.other), a.webhooks()
	for name, call := range map[string]func() error{
		"get": func() error {
			_, err := c.GetWebhookEndpoint(ctx, &ticketv1.GetWebhookEndpointRequest{Id: id})
			return err
		},
		"update": func() error {
			_, err := c.UpdateWebhookEndpoint(ctx, &ticketv1.UpdateWebhookEndpointRequest{Id: id, Enabled: proto.Bool(false)})
			return err
		},
		"delete": func() error {
			_, err := c.DeleteWebhookEndpoint(ctx, &ticketv1.DeleteWebhookEndpointRequest{Id: id})
			return err
		},
		"rotate": func() error {
			_, err := c.RotateWebhookSecret(ctx, &ticketv1.RotateWebhookSecretRequest{Id: id})
			return err
		},
		"test": func() error {
			_, err := c.SendTestEvent(ctx, &ticketv1.SendTestEventRequest{EndpointId: id})
			return err
		},
		"list": func() error {
			_, err := c.ListWebhookDeliveries(ctx, &ticketv1.ListWebhookDeliveriesRequest{EndpointId: id})
			return err
		},
		"redeliver": func() error {
			_, err := c.RedeliverWebhooks(ctx, &ticketv1.RedeliverWebhooksRequest{EndpointId: id, DeliveryId: delivery.GetId()})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) { wantProblem(t, call(), codes.NotFound, "WEBHOOK_ENDPOINT_NOT_FOUND") })
	}
	list, err := c.ListWebhookEndpoints(ctx, &ticketv1.ListWebhookEndpointsRequest{})
	if err != nil || len(list.GetEndpoints()) != 0 {
		t.Errorf("listed %v, %v", list, err)
	}
	theirs, err := c.CreateWebhookEndpoint(ctx, &ticketv1.CreateWebhookEndpointRequest{Url: "https://other.example"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.RedeliverWebhooks(ctx, &ticketv1.RedeliverWebhooksRequest{EndpointId: theirs.GetEndpoint().GetId(), DeliveryId: delivery.GetId()})
	wantProblem(t, err, codes.NotFound, "WEBHOOK_DELIVERY_NOT_FOUND")
}

func TestEndpointsAreRefusedForAllThatIsWrong(t *testing.T) {
	t.Parallel()
	a := start(t)
	for url, field := range map[string]string{
		"": "url", "http://acme.example": "url", "https://user:pass@acme.example": "url", "https://": "url", "ftp://acme.example": "url",
		"https:acme.example": "url", "HTTPS://acme.example": "url", "https://acme.example:0/": "url", "https://acme.example:65536/": "url",
		"https://acme.example/#part": "url", "https://acme.example/" + strings.Repeat("x", 2048): "url", "%": "url",
	} {
		_, err := a.webhooks().CreateWebhookEndpoint(a.as(a.acme), &ticketv1.CreateWebhookEndpointRequest{Url: url})
		wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", field)
	}
	_, err := a.webhooks().CreateWebhookEndpoint(a.as(a.acme), &ticketv1.CreateWebhookEndpointRequest{
		Url: "x", Events: []string{"evaluation.succeeded", "endpoint.test"}, Description: "a\x00b", RequestId: "a b",
	})
	wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "url", "events[1]", "description", "request_id")
	id := a.endpoint().GetEndpoint().GetId()
	_, err = a.webhooks().RotateWebhookSecret(a.as(a.acme), &ticketv1.RotateWebhookSecretRequest{Id: id, Grace: durationpb.New(8 * 24 * time.Hour)})
	wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "grace")
	_, err = a.webhooks().RedeliverWebhooks(a.as(a.acme), &ticketv1.RedeliverWebhooksRequest{EndpointId: id})
	wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "delivery_id")
	for range 19 {
		a.endpoint()
	}
	_, err = a.webhooks().CreateWebhookEndpoint(a.as(a.acme), &ticketv1.CreateWebhookEndpointRequest{Url: "https://acme.example"})
	wantProblem(t, err, codes.FailedPrecondition, "TOO_MANY_WEBHOOK_ENDPOINTS")
}

func TestRotationsAreReplayedAndBounded(t *testing.T) {
	t.Parallel()
	a := start(t)
	created := a.endpoint()
	id := created.GetEndpoint().GetId()
	rotate := func(request string, grace time.Duration) (*ticketv1.RotateWebhookSecretResponse, error) {
		return a.webhooks().RotateWebhookSecret(a.as(a.acme), &ticketv1.RotateWebhookSecretRequest{Id: id, RequestId: request, Grace: durationpb.New(grace)})
	}
	first, err := rotate("r", time.Hour)
	if err != nil || first.GetSecret() == created.GetSecret() {
		t.Fatalf("rotated to %v, %v", first, err)
	}
	again, err := rotate("r", time.Hour)
	if err != nil || again.GetSecret() != "" || !proto.Equal(first.GetOldSecretsExpireTime(), again.GetOldSecretsExpireTime()) {
		t.Errorf("replayed %v, %v, want %v without the secret", again, err, first)
	}
	_, err = rotate("r", 2*time.Hour)
	wantProblem(t, err, codes.FailedPrecondition, "IDEMPOTENCY_KEY_REUSED")
	for n := range 3 {
		if _, err := rotate(fmt.Sprint(n), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	_, err = rotate("one-too-many", time.Hour)
	wantProblem(t, err, codes.FailedPrecondition, "TOO_MANY_WEBHOOK_SECRETS")
	if _, err := rotate("at-once", 0); err != nil {
		t.Fatal(err)
	}
	if n := a.count(`SELECT count(*) FROM webhook_secret WHERE expires_at IS NULL OR expires_at > now()`); n != 1 {
		t.Errorf("%d secrets sign after a rotation without grace, want 1", n)
	}
}

func TestDeliveriesAreListedFilteredAndSentAgain(t *testing.T) {
	t.Parallel()
	a := start(t)
	id := a.endpoint().GetEndpoint().GetId()
	for n := range 5 {
		d, err := a.webhooks().SendTestEvent(a.as(a.acme), &ticketv1.SendTestEventRequest{EndpointId: id})
		if err != nil || d.GetState() != ticketv1.WebhookDelivery_PENDING || d.GetEvent() != "endpoint.test" {
			t.Fatalf("sent %v, %v", d, err)
		}
		if n < 3 {
			a.exec(`UPDATE webhook_delivery SET state = 'failed', finished_at = now(), attempts = 1, last_status = 500, last_reason = 'status' WHERE id = $1`, d.GetId())
		}
	}
	list := func(r *ticketv1.ListWebhookDeliveriesRequest) (all []*ticketv1.WebhookDelivery) {
		t.Helper()
		r.EndpointId = id
		for {
			page, err := a.webhooks().ListWebhookDeliveries(a.as(a.acme), r)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, page.GetDeliveries()...)
			if r.PageToken = page.GetNextPageToken(); r.PageToken == "" {
				return all
			}
		}
	}
	if all := list(&ticketv1.ListWebhookDeliveriesRequest{PageSize: 2}); len(all) != 5 || all[0].GetId() <= all[4].GetId() {
		t.Errorf("listed %v", all)
	}
	failed := list(&ticketv1.ListWebhookDeliveriesRequest{State: ticketv1.WebhookDelivery_FAILED, PageSize: 1})
	if len(failed) != 3 || failed[0].GetLastStatus() != 500 || failed[0].GetLastReason() != "status" || failed[0].GetFinishTime() == nil {
		t.Errorf("listed as failed %v", failed)
	}
	if got := list(&ticketv1.ListWebhookDeliveriesRequest{TicketId: id}); len(got) != 0 {
		t.Errorf("listed %v of a ticket that has none", got)
	}
	redeliver := func(r *ticketv1.RedeliverWebhooksRequest) *ticketv1.RedeliverWebhooksResponse {
		t.Helper()
		r.EndpointId = id
		done, err := a.webhooks().RedeliverWebhooks(a.as(a.acme), r)
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	if done := redeliver(&ticketv1.RedeliverWebhooksRequest{DeliveryId: failed[0].GetId()}); done.GetCount() != 1 {
		t.Errorf("redelivered %v", done)
	}
	if done := redeliver(&ticketv1.RedeliverWebhooksRequest{FailedSince: timestamppb.New(time.Now().Add(-time.Hour))}); done.GetCount() != 2 || done.GetMore() {
		t.Errorf("redelivered %v", done)
	}
	pending := list(&ticketv1.ListWebhookDeliveriesRequest{State: ticketv1.WebhookDelivery_PENDING, Event: "endpoint.test"})
	if len(pending) != 5 {
		t.Errorf("%d are pending, want 5", len(pending))
	}
	page, err := a.webhooks().ListWebhookDeliveries(a.as(a.acme), &ticketv1.ListWebhookDeliveriesRequest{EndpointId: id, PageSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	_, err = a.webhooks().ListWebhookDeliveries(a.as(a.acme), &ticketv1.ListWebhookDeliveriesRequest{
		EndpointId: id, PageToken: page.GetNextPageToken(), State: ticketv1.WebhookDelivery_FAILED,
	})
	wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "page_token")
}

// Without keys nothing can be sealed: callers are told what to set.
func TestWithoutKeysThereAreNoWebhooks(t *testing.T) {
	t.Parallel()
	service := api.NewWebhooks(webhook.NewEndpoints(pgtest.New(t), &webhook.Keyring{}), false)
	_, err := service.ListWebhookEndpoints(t.Context(), &ticketv1.ListWebhookEndpointsRequest{})
	told := api.Errors(err)
	if told == nil || told.Code != codes.FailedPrecondition || told.Reason != "WEBHOOKS_NOT_CONFIGURED" || !strings.Contains(told.Message, "EVALONCE_WEBHOOK_KEYS") {
		t.Errorf("told %+v", told)
	}
}
