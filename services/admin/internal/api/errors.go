package api

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"

	"github.com/evalonce/evalonce/pkg/auditdb"
	"github.com/evalonce/evalonce/pkg/comparison"
	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/versiondb"
)

const (
	reasonVersionNotFound      = "VERSION_NOT_FOUND"
	reasonVersionExists        = "VERSION_EXISTS"
	reasonActiveVersionChanged = "ACTIVE_VERSION_CHANGED"
	reasonSampleNotFound       = "SAMPLE_NOT_FOUND"
	reasonSampleExists         = "SAMPLE_EXISTS"
)

// Errors is what callers are told of the services' domain errors; nil for any other.
func Errors(err error) *rpc.Error {
	var conflict *versiondb.ConflictError
	var changed *versiondb.ActiveChangedError
	var sampleExists *comparison.SampleExistsError
	switch {
	case errors.Is(err, versiondb.ErrNotFound):
		return &rpc.Error{Code: codes.NotFound, Reason: reasonVersionNotFound, Message: "there is no such version", Cause: err}
	case errors.As(err, &conflict):
		return &rpc.Error{
			Code: codes.AlreadyExists, Reason: reasonVersionExists, Message: conflict.Error(), Cause: err,
			Metadata: map[string]string{"existingId": conflict.Existing},
		}
	case errors.As(err, &changed):
		return activeChanged(changed)
	case errors.Is(err, comparison.ErrSampleNotFound):
		return &rpc.Error{Code: codes.NotFound, Reason: reasonSampleNotFound, Message: "there is no such sample", Cause: err}
	case errors.As(err, &sampleExists):
		return &rpc.Error{Code: codes.AlreadyExists, Reason: reasonSampleExists, Message: sampleExists.Error(), Cause: err}
	case errors.Is(err, auditdb.ErrKeyReused):
		return &rpc.Error{
			Code: codes.FailedPrecondition, Reason: rpc.ReasonKeyReused, Cause: err, Metadata: map[string]string{"field": "request_id"},
			Message: "request_id: this idempotency key was used with another request; nothing is changed",
		}
	default:
		return nil
	}
}

func activeChanged(changed *versiondb.ActiveChangedError) *rpc.Error {
	message := fmt.Sprintf("the active version is %s, not %s", changed.Active, changed.Expected)
	if changed.Active == "" {
		message = fmt.Sprintf("no version is active yet, so %s is not", changed.Expected)
	}
	return &rpc.Error{
		Code: codes.FailedPrecondition, Reason: reasonActiveVersionChanged, Message: message, Cause: changed,
		Metadata: map[string]string{"expectedActiveId": changed.Expected, "activeId": changed.Active},
	}
}
