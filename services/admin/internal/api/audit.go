package api

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/evalonce/evalonce/pkg/auditdb"
	"github.com/evalonce/evalonce/pkg/rpc"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

// Audit is the AuditService.
type Audit struct {
	adminv1.UnimplementedAuditServiceServer
	db *pgxpool.Pool
}

// NewAudit makes the service.
func NewAudit(db *pgxpool.Pool) *Audit { return &Audit{db: db} }

// ListAuditEntries returns entries, the newest first.
func (s *Audit) ListAuditEntries(ctx context.Context, r *adminv1.ListAuditEntriesRequest) (*adminv1.ListAuditEntriesResponse, error) {
	var violations []rpc.Violation
	for _, f := range []struct{ name, value string }{
		{"target_prefix", r.GetTargetPrefix()}, {"principal", r.GetPrincipal()}, {"method", r.GetMethod()},
	} {
		violations = append(violations, checkText(f.name, f.value)...)
	}
	from, wrong := timeFrom("start_time", r.GetStartTime())
	violations = append(violations, wrong...)
	to, wrong := timeFrom("end_time", r.GetEndTime())
	violations = append(violations, wrong...)
	parts := []string{r.GetTargetPrefix(), r.GetPrincipal(), r.GetMethod(), from.String(), to.String()}
	below, most, wrong := numberedPageOf(r, parts...)
	violations = append(violations, wrong...)
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	entries, err := auditdb.List(ctx, s.db, auditdb.Filter{
		TargetPrefix: r.GetTargetPrefix(), Principal: r.GetPrincipal(), Method: r.GetMethod(), From: from, To: to,
	}, below, most+1)
	if err != nil {
		return nil, err
	}
	response := &adminv1.ListAuditEntriesResponse{}
	if len(entries) > most {
		entries = entries[:most]
		response.NextPageToken = nextPage(r, strconv.FormatInt(entries[most-1].ID, 10), parts...)
	}
	for _, e := range entries {
		entry, err := entryOf(e)
		if err != nil {
			return nil, err
		}
		response.Entries = append(response.Entries, entry)
	}
	return response, nil
}

func entryOf(e auditdb.Entry) (*adminv1.AuditEntry, error) {
	entry := &adminv1.AuditEntry{
		Id: e.ID, Time: timestamppb.New(e.At), Principal: e.Principal, Method: e.Method, Target: e.Target,
		Reason: e.Reason, RequestId: e.RequestID, TraceId: e.TraceID,
	}
	for _, state := range []struct {
		stored json.RawMessage
		shown  **structpb.Value
	}{{e.Before, &entry.Before}, {e.After, &entry.After}} {
		if state.stored == nil {
			continue
		}
		value := &structpb.Value{}
		if err := protojson.Unmarshal(state.stored, value); err != nil {
			return nil, fmt.Errorf("decode entry %d: %w", e.ID, err)
		}
		*state.shown = value
	}
	return entry, nil
}

// maxText is in bytes, of a text that selects something.
const maxText = 1000

// checkText finds what the database would refuse in a text that selects something.
func checkText(field, value string) []rpc.Violation {
	for i := range len(value) {
		if value[i] == 0 {
			return []rpc.Violation{{Field: field, Reason: "MALFORMED", Description: "must not contain NUL"}}
		}
	}
	switch {
	case len(value) > maxText:
		return []rpc.Violation{{Field: field, Reason: rpc.ReasonFieldTooLarge, Description: fmt.Sprintf("must be at most %d bytes, not %d", maxText, len(value))}}
	case !utf8.ValidString(value):
		return []rpc.Violation{{Field: field, Reason: "MALFORMED", Description: "must be UTF-8"}}
	default:
		return nil
	}
}

// timeFrom reads a bound of a range of time; none is the zero time.
func timeFrom(field string, t *timestamppb.Timestamp) (time.Time, []rpc.Violation) {
	switch {
	case t == nil:
		return time.Time{}, nil
	case t.CheckValid() != nil:
		return time.Time{}, []rpc.Violation{{Field: field, Reason: "MALFORMED", Description: "must be a time of the years 1 to 9999"}}
	default:
		return t.AsTime(), nil
	}
}
