package rpc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/evalonce/evalonce/pkg/postgres"
)

// Domain is the ErrorInfo domain of every error of the product.
const Domain = "evalonce"

// Reasons of ErrorInfo that this package gives, or gives an HTTP status of their own.
const (
	ReasonInvalidField         = "INVALID_FIELD"
	ReasonFieldTooLarge        = "FIELD_TOO_LARGE"
	ReasonRequestTooLarge      = "REQUEST_TOO_LARGE"
	ReasonMalformedRequest     = "MALFORMED_REQUEST"
	ReasonUnsupportedMediaType = "UNSUPPORTED_MEDIA_TYPE"
	ReasonKeyReused            = "IDEMPOTENCY_KEY_REUSED"
	ReasonCredentialsMissing   = "CREDENTIALS_MISSING"
	ReasonCredentialsInvalid   = "CREDENTIALS_INVALID"
	ReasonAccessDenied         = "ACCESS_DENIED"
	ReasonNoSuchMethod         = "NO_SUCH_METHOD"
	ReasonCanceled             = "CANCELED"
	ReasonDeadlineExceeded     = "DEADLINE_EXCEEDED"
	ReasonDatabaseUnavailable  = "DATABASE_UNAVAILABLE"
	ReasonOutcomeUnknown       = "OUTCOME_UNKNOWN"
	ReasonStopping             = "STOPPING"
	ReasonInternal             = "INTERNAL"
)

// databaseRetry is what a caller is told to wait when the database does not answer: about a failover's time.
const databaseRetry = 2 * time.Second

// maxViolations bounds the details of one error: they travel as a header, and clients in other languages than
// Go take no more than 8 KiB of those.
const maxViolations = 20

// Error is an error whose text is meant for the caller. It must hold no ticket text and no secret.
type Error struct {
	Code    codes.Code
	Reason  string // in UPPER_SNAKE_CASE, of a closed list
	Message string
	// Metadata is for machines; its keys are in lowerCamelCase.
	Metadata   map[string]string
	Violations []Violation
	// RetryAfter asks the caller to repeat the call after so long; 0 asks for nothing.
	RetryAfter time.Duration
	// Cause is logged and never sent.
	Cause error
}

// Violation says what is wrong with one field, by its path in the request, such as requests[3].message.
type Violation struct {
	Field       string
	Reason      string // in UPPER_SNAKE_CASE, of a closed list
	Description string
}

// InvalidFields is the INVALID_ARGUMENT of one or more violations. Its reason is FIELD_TOO_LARGE when that is
// what is wrong with any of them.
func InvalidFields(violations ...Violation) *Error {
	e := &Error{Code: codes.InvalidArgument, Reason: ReasonInvalidField, Violations: violations}
	for _, v := range violations {
		if v.Reason == ReasonFieldTooLarge {
			e.Reason = ReasonFieldTooLarge
		}
	}
	switch n := len(violations); {
	case n == 1:
		e.Message = fmt.Sprintf("%s: %s", violations[0].Field, violations[0].Description)
	case n > maxViolations:
		e.Message = fmt.Sprintf("%d fields are invalid; the first %d are listed", n, maxViolations)
	default:
		e.Message = fmt.Sprintf("%d fields are invalid", n)
	}
	return e
}

func (e *Error) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("%s: %s: %v", e.Reason, e.Message, e.Cause)
	}
	return fmt.Sprintf("%s: %s", e.Reason, e.Message)
}

func (e *Error) Unwrap() error { return e.Cause }

// GRPCStatus is what travels to the caller: everything but the cause.
func (e *Error) GRPCStatus() *status.Status {
	st := status.New(e.Code, e.Message)
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: e.Reason, Domain: Domain, Metadata: e.Metadata}}
	if len(e.Violations) > 0 {
		bad := &errdetails.BadRequest{}
		for _, v := range e.Violations[:min(len(e.Violations), maxViolations)] {
			bad.FieldViolations = append(bad.FieldViolations, &errdetails.BadRequest_FieldViolation{
				Field: v.Field, Reason: v.Reason, Description: v.Description,
			})
		}
		details = append(details, bad)
	}
	if e.RetryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(e.RetryAfter)})
	}
	detailed, err := st.WithDetails(details...)
	if err != nil { // only for the code OK
		return status.New(codes.Internal, "internal error")
	}
	return detailed
}

// httpStatus is the HTTP status of an answer: the reason's, where it has one of its own, else the gateway's
// default for the code.
func httpStatus(reason string) (int, bool) {
	switch reason {
	case ReasonKeyReused:
		return http.StatusUnprocessableEntity, true
	case ReasonFieldTooLarge, ReasonRequestTooLarge:
		return http.StatusRequestEntityTooLarge, true
	case ReasonUnsupportedMediaType:
		return http.StatusUnsupportedMediaType, true
	default:
		return 0, false
	}
}

// explain turns what a handler returned into what the caller is told. own is the service's table of its domain
// errors; it returns nil for an error that it does not know.
func explain(ctx context.Context, err error, own func(error) *Error) error {
	var known *Error
	if errors.As(err, &known) {
		return known
	}
	if own != nil {
		if known = own(err); known != nil {
			return known
		}
	}
	// A status is passed on when it is the error itself. One that is wrapped is some other call's, and its text
	// was not written for our caller.
	if st, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		if c := st.GRPCStatus().Code(); c != codes.Unknown && c != codes.Internal {
			return err
		}
	}
	switch ended := ctx.Err(); {
	case errors.Is(ended, context.DeadlineExceeded):
		return &Error{
			Code: codes.DeadlineExceeded, Reason: ReasonDeadlineExceeded, Cause: err,
			Message: "the deadline has passed; the call may have taken effect",
		}
	case ended != nil:
		return &Error{
			Code: codes.Canceled, Reason: ReasonCanceled, Cause: err,
			Message: "the call was canceled; it may have taken effect",
		}
	case errors.Is(err, postgres.ErrCommitUnknown):
		return &Error{
			Code: codes.Unavailable, Reason: ReasonOutcomeUnknown, RetryAfter: databaseRetry, Cause: err,
			Message: "the database was lost during the commit; the call may have taken effect",
		}
	case databaseUnavailable(err):
		return &Error{
			Code: codes.Unavailable, Reason: ReasonDatabaseUnavailable, RetryAfter: databaseRetry, Cause: err,
			Message: "the database does not answer; the call may be repeated",
		}
	default:
		return internal(err)
	}
}

func internal(cause error) *Error {
	return &Error{Code: codes.Internal, Reason: ReasonInternal, Message: "internal error", Cause: cause}
}

// databaseUnavailable is asked only while the caller still waits: a context that has ended then is one of ours,
// which gave up on the database.
func databaseUnavailable(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return true
	}
	return postgres.ConnectionLost(err) || postgres.Retryable(err) || overloaded(err)
}

// overloaded reports whether the database refused for the moment: it has no room, ran into one of its timeouts,
// is going down or coming up, or is a standby after a failover.
func overloaded(err error) bool {
	var refused *pgconn.PgError
	if !errors.As(err, &refused) {
		return false
	}
	const readOnlyTransaction = "25006"
	const insufficientResources, operatorIntervention = "53", "57"
	return postgres.LockNotAvailable(err) || refused.Code == readOnlyTransaction ||
		strings.HasPrefix(refused.Code, insufficientResources) || strings.HasPrefix(refused.Code, operatorIntervention)
}
