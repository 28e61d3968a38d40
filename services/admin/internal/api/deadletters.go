package api

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/rpc"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

const (
	// maxKeys is how many dead letters a request may name.
	maxKeys = 1000
	// maxOwner and maxNote are in characters.
	maxOwner = 100
	maxNote  = 2000
	// What is shown of a dead letter.
	shownCalls         = 100
	shownTickets       = 100
	shownResponseBytes = 16 << 10
	// otherReason stands for a word that is on no list of this service: it is of a newer worker, or of nobody.
	otherReason = "other"
)

// DeadLetters is the DeadLetterService.
type DeadLetters struct {
	adminv1.UnimplementedDeadLetterServiceServer
	db   *pgxpool.Pool
	jobs Waker
}

// NewDeadLetters makes the service.
func NewDeadLetters(db *pgxpool.Pool, jobs Waker) *DeadLetters {
	return &DeadLetters{db: db, jobs: jobs}
}

// GroupDeadLetters counts dead letters that are alike.
func (s *DeadLetters) GroupDeadLetters(ctx context.Context, r *adminv1.GroupDeadLettersRequest) (*adminv1.GroupDeadLettersResponse, error) {
	filter, violations := deadFilterFrom("filter", r.GetFilter())
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	groups, err := outbox.GroupDead(ctx, s.db, filter)
	if err != nil {
		return nil, err
	}
	response := &adminv1.GroupDeadLettersResponse{}
	for _, g := range groups {
		response.Groups = append(response.Groups, &adminv1.DeadLetterGroup{
			Class: string(g.Class), Reason: listedReason(g.Reason), Version: g.VersionID, Count: g.Count,
			FirstDeadTime: timestamppb.New(g.FirstDeadAt), LastDeadTime: timestamppb.New(g.LastDeadAt),
		})
	}
	return response, nil
}

// ListDeadLetters returns a page of dead letters.
func (s *DeadLetters) ListDeadLetters(ctx context.Context, r *adminv1.ListDeadLettersRequest) (*adminv1.ListDeadLettersResponse, error) {
	filter, violations := deadFilterFrom("filter", r.GetFilter())
	parts := filterParts(filter)
	position, most, wrong := pageOf(r, parts...)
	violations = append(violations, wrong...)
	var after outbox.DeadPosition
	if position != "" {
		var ok bool
		if after, ok = deadPositionFrom(position); !ok {
			violations = append(violations, foreignToken())
		}
	}
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	letters, err := outbox.ListDead(ctx, s.db, filter, after, most+1)
	if err != nil {
		return nil, err
	}
	response := &adminv1.ListDeadLettersResponse{}
	if len(letters) > most {
		letters = letters[:most]
		last := letters[most-1]
		response.NextPageToken = nextPage(r, strconv.FormatInt(last.DeadAt.UnixMicro(), 10)+" "+string(last.Key), parts...)
	}
	for _, d := range letters {
		response.DeadLetters = append(response.DeadLetters, deadLetterOf(d))
	}
	return response, nil
}

func deadPositionFrom(position string) (outbox.DeadPosition, bool) {
	at, key, ok := strings.Cut(position, " ")
	micros, err := strconv.ParseInt(at, 10, 64)
	return outbox.DeadPosition{DeadAt: time.UnixMicro(micros).UTC(), Key: content.Key(key)}, ok && err == nil && evaluationKey.MatchString(key)
}

// GetDeadLetter returns a dead letter with its history.
func (s *DeadLetters) GetDeadLetter(ctx context.Context, r *adminv1.GetDeadLetterRequest) (*adminv1.DeadLetter, error) {
	if violations := checkDeadID(r.GetId()); len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	var shown *adminv1.DeadLetter
	err := postgres.InTx(ctx, s.db, func(ctx context.Context, tx pgx.Tx) error {
		key, err := deadKey(ctx, tx, r.GetId())
		if err != nil {
			return err
		}
		shown, err = history(ctx, tx, key)
		return err
	})
	return shown, err
}

// history is a dead letter with all that is known of it.
func history(ctx context.Context, tx pgx.Tx, key content.Key) (*adminv1.DeadLetter, error) {
	d, err := outbox.GetDead(ctx, tx, key)
	if err != nil {
		return nil, err
	}
	shown := deadLetterOf(d)
	shown.Detail = d.Detail
	calls, err := ledger.History(ctx, tx, key, shownCalls, shownResponseBytes)
	if err != nil {
		return nil, err
	}
	for _, c := range calls {
		shown.Calls = append(shown.Calls, callOf(c))
	}
	tickets, all, err := outbox.ServedTickets(ctx, tx, key, shownTickets)
	if err != nil {
		return nil, err
	}
	for _, id := range tickets {
		shown.TicketIds = append(shown.TicketIds, id.String())
	}
	shown.TicketCount = all
	return shown, nil
}

// AssignDeadLetter says who looks after a dead letter.
func (s *DeadLetters) AssignDeadLetter(ctx context.Context, r *adminv1.AssignDeadLetterRequest) (*adminv1.DeadLetter, error) {
	violations := checkDeadID(r.GetId())
	for _, text := range []struct {
		field, value string
		most         int
	}{{"owner", r.GetOwner(), maxOwner}, {"note", r.GetNote(), maxNote}} {
		violations = append(violations, checkShort(text.field, text.value, text.most)...)
	}
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(append(violations, checkChange(ctx, r)...)...)
	}
	type assignment struct {
		Owner string `json:"owner"`
		Note  string `json:"note"`
	}
	return change(ctx, s.db, "DeadLetterService.AssignDeadLetter", r, func(ctx context.Context, tx pgx.Tx) (*adminv1.DeadLetter, effect, error) {
		key, err := deadKey(ctx, tx, r.GetId())
		if err != nil {
			return nil, effect{}, err
		}
		owner, note, err := outbox.AssignDead(ctx, tx, key, r.GetOwner(), r.GetNote())
		if err != nil {
			return nil, effect{}, err
		}
		d, err := outbox.GetDead(ctx, tx, key)
		return deadLetterOf(d), effect{
			target: "deadLetters/" + string(key), before: assignment{owner, note}, after: assignment{r.GetOwner(), r.GetNote()},
		}, err
	})
}

// DiscardDeadLetters marks dead letters as wanted by nobody.
func (s *DeadLetters) DiscardDeadLetters(ctx context.Context, r *adminv1.DiscardDeadLettersRequest) (*adminv1.DiscardDeadLettersResponse, error) {
	keys, filter, violations := selectionFrom(r.GetKeys(), r.GetFilter())
	if strings.TrimSpace(r.GetReason()) == "" {
		violations = append(violations, rpc.Violation{Field: "reason", Reason: "REQUIRED", Description: "must say why nobody wants them"})
	}
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(append(violations, checkChange(ctx, r)...)...)
	}
	return change(ctx, s.db, "DeadLetterService.DiscardDeadLetters", r,
		func(ctx context.Context, tx pgx.Tx) (*adminv1.DiscardDeadLettersResponse, effect, error) {
			response, did := &adminv1.DiscardDeadLettersResponse{}, effect{target: "deadLetters"}
			var err error
			if keys == nil {
				response.Discarded, err = outbox.DiscardFiltered(ctx, tx, filter)
			} else {
				response.Discarded, err = outbox.DiscardDead(ctx, tx, keys)
				response.Skipped = int64(len(keys)) - response.Discarded
			}
			if response.Discarded > 0 {
				did.after = map[string]any{"discarded": response.GetDiscarded(), "selection": selectionRecord(keys, r.GetFilter())}
			}
			return response, did, err
		})
}

// evaluationKey is the form of a key.
var evaluationKey = regexp.MustCompile(`^[0-9a-f]{32}$`)

func checkDeadID(id string) []rpc.Violation {
	if evaluationKey.MatchString(id) {
		return nil
	}
	if _, violations := jobIDFrom(id); violations == nil {
		return nil
	}
	return []rpc.Violation{{Field: "id", Reason: "MALFORMED", Description: "must be an evaluation key, 32 hexadecimal digits, or the id of a ticket"}}
}

// deadKey is the key that an id stands for.
func deadKey(ctx context.Context, tx pgx.Tx, id string) (content.Key, error) {
	if evaluationKey.MatchString(id) {
		return content.Key(id), nil
	}
	ticket, err := uuid.Parse(id)
	if err != nil {
		return "", fmt.Errorf("read the id of a ticket: %w", err)
	}
	return outbox.DeadKeyOf(ctx, tx, ticket)
}

// checkShort finds what is wrong with a text that people write, in characters.
func checkShort(field, value string, most int) []rpc.Violation {
	switch n := utf8.RuneCountInString(value); {
	case !utf8.ValidString(value), strings.ContainsRune(value, 0):
		return []rpc.Violation{{Field: field, Reason: "MALFORMED", Description: "must be UTF-8 without NUL"}}
	case n > most:
		return []rpc.Violation{{Field: field, Reason: rpc.ReasonFieldTooLarge, Description: fmt.Sprintf("must be at most %d characters, not %d", most, n)}}
	}
	return nil
}

// selectionFrom is what a request is about: the keys that it names, or else a filter.
func selectionFrom(named []string, m *adminv1.DeadLetterFilter) (keys []content.Key, f outbox.DeadFilter, violations []rpc.Violation) {
	refuse := func(field, reason, format string, args ...any) {
		violations = append(violations, rpc.Violation{Field: field, Reason: reason, Description: fmt.Sprintf(format, args...)})
	}
	switch {
	case len(named) > 0 && m != nil:
		refuse("filter", "CONFLICT", "cannot be given with keys")
	case len(named) == 0 && m == nil:
		refuse("filter", "REQUIRED", "must be given, or keys; an empty filter selects all")
	case len(named) > maxKeys:
		refuse("keys", "TOO_MANY", "must be at most %d, not %d: use a filter", maxKeys, len(named))
	}
	if len(violations) > 0 {
		return nil, f, violations
	}
	for i, k := range named {
		if !evaluationKey.MatchString(k) {
			refuse(fmt.Sprintf("keys[%d]", i), "MALFORMED", "must be an evaluation key, 32 hexadecimal digits")
		}
		keys = append(keys, content.Key(k))
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	f, wrong := deadFilterFrom("filter", m)
	return keys, f, append(violations, wrong...)
}

// selectionRecord is a selection for the audit.
func selectionRecord(keys []content.Key, m *adminv1.DeadLetterFilter) any {
	if keys != nil {
		return map[string]any{"keys": keys}
	}
	record := map[string]any{}
	for name, value := range map[string]string{
		"class": m.GetClass(), "reason": m.GetReason(), "version": m.GetVersion(), "route": m.GetRoute(), "owner": m.GetOwner(), "client": m.GetClient(),
	} {
		if value != "" {
			record[name] = value
		}
	}
	for name, at := range map[string]*timestamppb.Timestamp{"dead_from": m.GetDeadFrom(), "dead_to": m.GetDeadTo()} {
		if at != nil {
			record[name] = at.AsTime()
		}
	}
	if m.GetIncludeDiscarded() {
		record["include_discarded"] = true
	}
	return map[string]any{"filter": record}
}

func deadFilterFrom(path string, m *adminv1.DeadLetterFilter) (outbox.DeadFilter, []rpc.Violation) {
	var violations []rpc.Violation
	f := outbox.DeadFilter{
		Class: failure.Class(m.GetClass()), Reason: failure.Reason(m.GetReason()), VersionID: m.GetVersion(), Route: m.GetRoute(),
		Owner: m.GetOwner(), ClientID: m.GetClient(), Discarded: m.GetIncludeDiscarded(),
	}
	for _, text := range []struct{ field, value string }{
		{"class", m.GetClass()}, {"reason", m.GetReason()}, {"version", m.GetVersion()}, {"route", m.GetRoute()}, {"owner", m.GetOwner()}, {"client", m.GetClient()},
	} {
		violations = append(violations, checkText(path+"."+text.field, text.value)...)
	}
	switch f.Class {
	case "", failure.Transient, failure.Throttled, failure.Unknown, failure.Operator, failure.Permanent:
	default:
		violations = append(violations, rpc.Violation{
			Field: path + ".class", Reason: "UNKNOWN", Description: "must be transient, throttled, unknown, operator or permanent",
		})
	}
	if f.Reason != "" && f.Reason.Class() == "" {
		violations = append(violations, rpc.Violation{
			Field: path + ".reason", Reason: "UNKNOWN", Description: "is no reason that a dead letter has, such as contract_violation",
		})
	}
	for _, bound := range []struct {
		field string
		at    *timestamppb.Timestamp
		into  *time.Time
	}{{"dead_from", m.GetDeadFrom(), &f.From}, {"dead_to", m.GetDeadTo(), &f.To}} {
		at, wrong := timeFrom(path+"."+bound.field, bound.at)
		*bound.into, violations = at, append(violations, wrong...)
	}
	return f, violations
}

func filterParts(f outbox.DeadFilter) []string {
	return []string{
		string(f.Class), string(f.Reason), f.VersionID, f.Route, f.Owner, f.ClientID, f.From.String(), f.To.String(), strconv.FormatBool(f.Discarded),
	}
}

func listedReason(r failure.Reason) string {
	if r.Class() == "" {
		return otherReason
	}
	return string(r)
}

func deadLetterOf(d outbox.DeadLetter) *adminv1.DeadLetter {
	return &adminv1.DeadLetter{
		Key: string(d.Key), TicketId: d.TicketID.String(), Version: d.VersionID, Route: d.Route, Lane: string(d.Lane),
		Class: string(d.Class), Reason: listedReason(d.Reason), Attempts: int32(d.Attempts), UnknownCalls: int32(d.UnknownCalls),
		CreateTime: timestamppb.New(d.CreatedAt), DeadTime: timestamppb.New(d.DeadAt), DiscardTime: timestampOf(d.DiscardedAt),
		Owner: d.Owner, Note: d.Note, HasResponse: d.HasResponse,
	}
}

// timestampOf leaves the zero time out.
func timestampOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func callOf(c ledger.Call) *adminv1.DeadLetterCall {
	shown := &adminv1.DeadLetterCall{
		Id: c.ID.String(), Attempt: int32(c.Attempt), Outcome: string(c.Outcome), Class: string(c.Class), Detail: c.Detail,
		StartTime: timestamppb.New(c.StartedAt), FinishTime: timestampOf(c.FinishedAt), HttpStatus: int32(c.HTTPStatus),
		ProviderRequestId: c.ProviderRequestID, ServedModel: c.ServedModel, InputTokens: c.InputTokens, OutputTokens: c.OutputTokens,
		TraceId: c.TraceID, Late: c.Late, Response: readable(c.Response), ResponseBytes: c.ResponseBytes,
	}
	if c.Reason != "" {
		shown.Reason = listedReason(c.Reason)
	}
	if c.CostUSD != nil {
		shown.CostUsd = c.CostUSD.String()
	}
	if c.RecalledBy != uuid.Nil {
		shown.RecalledBy = c.RecalledBy.String()
	}
	return shown
}

// readable is what of a response can be shown: valid UTF-8, without what is invisible or steers what shows it.
func readable(b []byte) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || !unicode.In(r, unicode.Cc, unicode.Cf, unicode.Noncharacter_Code_Point) {
			return r
		}
		return -1
	}, strings.ToValidUTF8(string(b), string(utf8.RuneError)))
}
