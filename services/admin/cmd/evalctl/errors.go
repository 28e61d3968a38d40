package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The exit codes; the command's documentation says what they mean.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitConflict    = 4
	exitDenied      = 5
	exitNoAnswer    = 6
	exitUnsound     = 7
	exitInterrupted = 130
)

// usageError is the caller's to mend, and was found before anything was sent.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func exitCode(ctx context.Context, err error) int {
	var usage usageError
	var call *callError
	var unsound unsoundError
	switch {
	case errors.As(err, &usage):
		return exitUsage
	case ctx.Err() != nil:
		return exitInterrupted
	case errors.As(err, &call):
		return call.exitCode()
	case errors.As(err, &unsound):
		return exitUnsound
	default:
		return exitFailed
	}
}

// callError is what became of a call, in words for people.
type callError struct {
	status  *status.Status
	address string
	timeout time.Duration
}

func (e *callError) exitCode() int {
	switch e.status.Code() {
	case codes.InvalidArgument:
		return exitUsage
	case codes.NotFound:
		return exitNotFound
	case codes.AlreadyExists, codes.FailedPrecondition, codes.Aborted:
		return exitConflict
	case codes.Unauthenticated, codes.PermissionDenied:
		return exitDenied
	case codes.Unavailable, codes.DeadlineExceeded:
		return exitNoAnswer
	default:
		return exitFailed
	}
}

// domain marks the errors that the product's own services have worded.
const domain = "evalonce"

func (e *callError) Error() string {
	text, worded := e.status.Message(), false
	var violations []*errdetails.BadRequest_FieldViolation
	var retry time.Duration
	for _, detail := range e.status.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			worded = worded || d.GetDomain() == domain
		case *errdetails.BadRequest:
			violations = append(violations, d.GetFieldViolations()...)
		case *errdetails.RetryInfo:
			retry = d.GetRetryDelay().AsDuration()
		}
	}
	if !worded {
		text = e.unworded()
	}
	for _, v := range violations {
		// A single one is the message already.
		if line := v.GetField() + ": " + v.GetDescription(); line != text {
			text += "\n  " + line
		}
	}
	if retry > 0 {
		text += fmt.Sprintf("; try again in %s", retry)
	}
	return text
}

// unworded describes an error of the connection, or of something on the way that is no service of ours.
func (e *callError) unworded() string {
	switch e.status.Code() {
	case codes.Unavailable:
		return fmt.Sprintf("%s cannot be reached: %s", e.address, transportReason(e.status.Message()))
	case codes.DeadlineExceeded:
		return fmt.Sprintf("%s has not answered within %s; the call may have taken effect", e.address, e.timeout)
	case codes.Canceled:
		return "interrupted; the call may have taken effect"
	default:
		return fmt.Sprintf("%s has answered: %s", e.address, e.status.Message())
	}
}

// transportReason unpacks what gRPC wraps around the error of a connection.
func transportReason(message string) string {
	const mark = `desc = `
	if i := strings.LastIndex(message, mark); i >= 0 {
		if inner, err := strconv.Unquote(message[i+len(mark):]); err == nil {
			message = inner
		}
	}
	message = strings.TrimPrefix(message, "transport: ")
	return strings.TrimPrefix(message, "Error while dialing: ")
}
