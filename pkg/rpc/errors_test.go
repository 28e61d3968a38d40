package rpc_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/rpc"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

var errGone = errors.New("gone")

func TestErrors(t *testing.T) {
	t.Parallel()
	var failure error
	e := start(t, handlers{create: func(context.Context, *ticketv1.CreateTicketRequest) (*ticketv1.Ticket, error) {
		if failure == nil {
			panic("inner text")
		}
		return nil, failure
	}}, func(o *rpc.Options) {
		o.Errors = func(err error) *rpc.Error {
			if errors.Is(err, errGone) {
				return &rpc.Error{Code: codes.NotFound, Reason: "GONE", Message: "gone", Cause: err}
			}
			return nil
		}
	})
	for name, c := range map[string]struct {
		err    error
		code   codes.Code
		reason string
		status int
	}{
		"one of the service's":   {fmt.Errorf("inner text: %w", errGone), codes.NotFound, "GONE", 404},
		"reused key":             {&rpc.Error{Code: codes.FailedPrecondition, Reason: rpc.ReasonKeyReused}, codes.FailedPrecondition, rpc.ReasonKeyReused, 422},
		"other precondition":     {&rpc.Error{Code: codes.FailedPrecondition, Reason: "OTHER"}, codes.FailedPrecondition, "OTHER", 400},
		"too large a field":      {rpc.InvalidFields(rpc.Violation{Field: "a"}, rpc.Violation{Field: "b", Reason: rpc.ReasonFieldTooLarge}), codes.InvalidArgument, rpc.ReasonFieldTooLarge, 413},
		"invalid field":          {rpc.InvalidFields(rpc.Violation{Field: "a"}), codes.InvalidArgument, rpc.ReasonInvalidField, 400},
		"unknown":                {errors.New("inner text"), codes.Internal, rpc.ReasonInternal, 500},
		"panic":                  {nil, codes.Internal, rpc.ReasonInternal, 500},
		"internal status":        {status.Error(codes.Internal, "inner text"), codes.Internal, rpc.ReasonInternal, 500},
		"somebody else's status": {fmt.Errorf("export: %w", status.Error(codes.NotFound, "inner text")), codes.Internal, rpc.ReasonInternal, 500},
		"commit unknown":         {fmt.Errorf("inner text: %w", postgres.ErrCommitUnknown), codes.Unavailable, rpc.ReasonOutcomeUnknown, 503},
		"our own timeout":        {fmt.Errorf("inner text: %w", context.DeadlineExceeded), codes.Unavailable, rpc.ReasonDatabaseUnavailable, 503},
		"our own cancellation":   {fmt.Errorf("inner text: %w", context.Canceled), codes.Unavailable, rpc.ReasonDatabaseUnavailable, 503},
		"database shuts down":    {fmt.Errorf("inner text: %w", &pgconn.PgError{Code: "57P01"}), codes.Unavailable, rpc.ReasonDatabaseUnavailable, 503},
		"database starts up":     {fmt.Errorf("inner text: %w", &pgconn.PgError{Code: "57P03"}), codes.Unavailable, rpc.ReasonDatabaseUnavailable, 503},
		"too many connections":   {fmt.Errorf("inner text: %w", &pgconn.PgError{Code: "53300"}), codes.Unavailable, rpc.ReasonDatabaseUnavailable, 503},
		"still deadlocked":       {fmt.Errorf("inner text: %w", &pgconn.PgError{Code: "40P01"}), codes.Unavailable, rpc.ReasonDatabaseUnavailable, 503},
		"statement timeout":      {fmt.Errorf("inner text: %w", &pgconn.PgError{Code: "57014"}), codes.Unavailable, rpc.ReasonDatabaseUnavailable, 503},
		"lock timeout":           {fmt.Errorf("inner text: %w", &pgconn.PgError{Code: "55P03"}), codes.Unavailable, rpc.ReasonDatabaseUnavailable, 503},
		"broken constraint":      {fmt.Errorf("inner text: %w", &pgconn.PgError{Code: "23514"}), codes.Internal, rpc.ReasonInternal, 500},
	} {
		t.Run(name, func(t *testing.T) {
			failure = c.err
			logged := len(e.logs.String())
			_, err := e.client().CreateTicket(e.authorized(), &ticketv1.CreateTicketRequest{Message: "x"})
			wantStatus(t, err, c.code, c.reason)
			line := e.logs.String()[logged:]
			a := e.rest("POST", "/v1/tickets", `{"message":"x"}`)
			wantREST(t, a, c.status, c.reason)
			for _, told := range []string{err.Error(), fmt.Sprint(status.Convert(err).Details()), a.body} {
				if strings.Contains(told, "inner text") {
					t.Errorf("the caller is told %s", told)
				}
			}
			if strings.Count(line, `"msg":"call"`) != 1 {
				t.Errorf("the call is not logged once: %s", line)
			}
			if c.err != nil && strings.Contains(c.err.Error(), "inner text") && !strings.Contains(line, "inner text") {
				t.Errorf("the cause is not logged: %s", line)
			}
			retry := a.header.Get("Retry-After")
			if (retry != "") != (c.status == http.StatusServiceUnavailable) {
				t.Errorf("Retry-After %q with %d", retry, c.status)
			}
		})
	}
}

func TestAPanicIsLoggedWithoutItsValue(t *testing.T) {
	t.Parallel()
	e := start(t, handlers{create: func(context.Context, *ticketv1.CreateTicketRequest) (*ticketv1.Ticket, error) {
		panic("the customer's words")
	}})
	_, err := e.client().CreateTicket(e.authorized(), &ticketv1.CreateTicketRequest{Message: "x"})
	wantStatus(t, err, codes.Internal, rpc.ReasonInternal)
	if log := e.logs.String(); strings.Contains(log, "customer") || !strings.Contains(log, "errors_test.go") {
		t.Errorf("want the place and not the value: %s", log)
	}
}

// An error's details are headers, of which other languages' clients take 8 KiB.
func TestManyViolationsStaySmall(t *testing.T) {
	t.Parallel()
	var violations []rpc.Violation
	for i := range 500 {
		violations = append(violations, rpc.Violation{
			Field: fmt.Sprintf("requests[%d].message", i), Reason: "MALFORMED", Description: strings.Repeat("d", 80),
		})
	}
	st := rpc.InvalidFields(violations...).GRPCStatus()
	size := 0
	for _, d := range st.Proto().GetDetails() {
		size += len(d.GetValue())
	}
	if size > 5<<10 {
		t.Errorf("%d bytes of details", size)
	}
	if !strings.Contains(st.Message(), "500") {
		t.Errorf("%q hides how many there are", st.Message())
	}
}

func TestDetails(t *testing.T) {
	t.Parallel()
	e := &rpc.Error{
		Code: codes.Unavailable, Reason: "BUSY", Message: "m", Metadata: map[string]string{"index": "3"},
		Violations: []rpc.Violation{{Field: "requests[3].message", Reason: "BLANK", Description: "d"}},
		RetryAfter: 1500 * time.Millisecond, Cause: errors.New("inner text"),
	}
	var info *errdetails.ErrorInfo
	var bad *errdetails.BadRequest
	var retry *errdetails.RetryInfo
	for _, d := range e.GRPCStatus().Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			info = d
		case *errdetails.BadRequest:
			bad = d
		case *errdetails.RetryInfo:
			retry = d
		}
	}
	if info.GetReason() != "BUSY" || info.GetDomain() != "evalonce" || info.GetMetadata()["index"] != "3" {
		t.Errorf("ErrorInfo %v", info)
	}
	if v := bad.GetFieldViolations(); len(v) != 1 || v[0].GetField() != "requests[3].message" || v[0].GetReason() != "BLANK" || v[0].GetDescription() != "d" {
		t.Errorf("BadRequest %v", bad)
	}
	if retry.GetRetryDelay().AsDuration() != 1500*time.Millisecond {
		t.Errorf("RetryInfo %v", retry)
	}
	if !errors.Is(e, e.Cause) {
		t.Error("the cause is lost")
	}
}

func TestTheLogHoldsNoPayload(t *testing.T) {
	t.Parallel()
	e := start(t, handlers{create: echo})
	if a := e.rest("POST", "/v1/tickets", `{"message":"customer","subject":"customer"}`, "Idempotency-Key: keykey"); a.status != http.StatusCreated {
		t.Fatalf("%d %s", a.status, a.body)
	}
	var line struct{ Msg, Method, Code, Client string }
	log := e.logs.String()
	last := strings.TrimSpace(log[strings.LastIndex(strings.TrimSpace(log), "\n")+1:])
	if err := json.Unmarshal([]byte(last), &line); err != nil {
		t.Fatal(err)
	}
	if line.Method != ticketv1.TicketService_CreateTicket_FullMethodName || line.Code != "OK" || line.Client != "acme" {
		t.Errorf("the line of the call is %s", last)
	}
	for _, secret := range []string{"customer", "keykey", e.token} {
		if strings.Contains(log, secret) {
			t.Errorf("%s is in the log", secret)
		}
	}
}
