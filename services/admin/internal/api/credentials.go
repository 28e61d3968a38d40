package api

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/evalonce/evalonce/pkg/credentialdb"
	"github.com/evalonce/evalonce/pkg/rpc"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

// Credentials is the CredentialService.
type Credentials struct {
	adminv1.UnimplementedCredentialServiceServer
	db *pgxpool.Pool
}

// NewCredentials makes the service.
func NewCredentials(db *pgxpool.Pool) *Credentials { return &Credentials{db: db} }

// CreateToken makes an API token, which is in the response and in no other place.
func (s *Credentials) CreateToken(ctx context.Context, r *adminv1.CreateTokenRequest) (*adminv1.CreateTokenResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	spec, violations := credentialFrom(r)
	if violations = append(violations, checkChange(ctx, r)...); len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	var secret string
	response, err := change(ctx, s.db, "CredentialService.CreateToken", r, func(ctx context.Context, tx pgx.Tx) (*adminv1.CreateTokenResponse, effect, error) {
		var c credentialdb.Credential
		if secret, c, err = credentialdb.CreateToken(ctx, tx, spec, by); err != nil {
			return nil, effect{}, err
		}
		return &adminv1.CreateTokenResponse{Credential: credentialOf(c)}, created(c), nil
	})
	if err != nil {
		return nil, err
	}
	if !r.GetDryRun() {
		response.Token = secret // not in what is kept for a repeated request
	}
	return response, nil
}

// AdmitCertificate lets callers in who have a certificate of a name.
func (s *Credentials) AdmitCertificate(ctx context.Context, r *adminv1.AdmitCertificateRequest) (*adminv1.Credential, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	spec, violations := credentialFrom(r)
	violations = append(violations, checkText("subject_alternative_name", r.GetSubjectAlternativeName())...)
	if !sans.MatchString(r.GetSubjectAlternativeName()) {
		violations = append(violations, rpc.Violation{
			Field: "subject_alternative_name", Reason: "MALFORMED", Description: "must be URI:, DNS: or email: and a name without white space",
		})
	}
	if violations = append(violations, checkChange(ctx, r)...); len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	return change(ctx, s.db, "CredentialService.AdmitCertificate", r, func(ctx context.Context, tx pgx.Tx) (*adminv1.Credential, effect, error) {
		c, err := credentialdb.AdmitCertificate(ctx, tx, spec, r.GetSubjectAlternativeName(), by)
		if err != nil {
			return nil, effect{}, err
		}
		return credentialOf(c), created(c), nil
	})
}

// GetCredential returns one credential.
func (s *Credentials) GetCredential(ctx context.Context, r *adminv1.GetCredentialRequest) (*adminv1.Credential, error) {
	id, violations := identifierFrom("credential", r.GetId())
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	c, err := credentialdb.Get(ctx, s.db, id)
	if err != nil {
		return nil, err
	}
	return credentialOf(c), nil
}

// ListCredentials returns credentials, the newest first.
func (s *Credentials) ListCredentials(ctx context.Context, r *adminv1.ListCredentialsRequest) (*adminv1.ListCredentialsResponse, error) {
	parts := []string{r.GetClientId(), strconv.FormatBool(r.GetShowEnded())}
	violations := checkText("client_id", r.GetClientId())
	before, most, wrong := identifiedPageOf(r, parts...)
	if violations = append(violations, wrong...); len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	list, err := credentialdb.List(ctx, s.db, credentialdb.Filter{ClientID: r.GetClientId(), Ended: r.GetShowEnded(), Before: before, Most: most + 1})
	if err != nil {
		return nil, err
	}
	response := &adminv1.ListCredentialsResponse{}
	if len(list) > most {
		list = list[:most]
		response.NextPageToken = nextPage(r, list[most-1].ID.String(), parts...)
	}
	for _, c := range list {
		response.Credentials = append(response.Credentials, credentialOf(c))
	}
	return response, nil
}

// RevokeCredential ends a credential.
func (s *Credentials) RevokeCredential(ctx context.Context, r *adminv1.RevokeCredentialRequest) (*adminv1.Credential, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	id, violations := identifierFrom("credential", r.GetId())
	if violations = append(violations, checkChange(ctx, r)...); len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	return change(ctx, s.db, "CredentialService.RevokeCredential", r, func(ctx context.Context, tx pgx.Tx) (*adminv1.Credential, effect, error) {
		before, err := credentialdb.Get(ctx, tx, id)
		if err != nil {
			return nil, effect{}, err
		}
		if _, err := credentialdb.Revoke(ctx, tx, id, by); err != nil {
			return nil, effect{}, err
		}
		after, err := credentialdb.Get(ctx, tx, id)
		if err != nil {
			return nil, effect{}, err
		}
		return credentialOf(after), effect{target: "credentials/" + id.String(), before: credentialRecordOf(before), after: credentialRecordOf(after)}, nil
	})
}

var sans = regexp.MustCompile(`^(DNS|URI|email):\S+$`)

// maxName is in characters.
const maxName = 128

// credentialFrom is what a credential is to be, or all that is wrong with it.
func credentialFrom(r interface {
	GetClientId() string
	GetName() string
	GetRoles() []string
	GetLife() *durationpb.Duration
},
) (credentialdb.Spec, []rpc.Violation) {
	var violations []rpc.Violation
	if !rpc.GivenClients.MatchString(r.GetClientId()) {
		violations = append(violations, rpc.Violation{Field: "client_id", Reason: "MALFORMED", Description: "must match " + rpc.GivenClients.String()})
	}
	violations = append(violations, checkText("name", r.GetName())...)
	if n := utf8.RuneCountInString(r.GetName()); n == 0 || n > maxName {
		violations = append(violations, rpc.Violation{
			Field: "name", Reason: "OUT_OF_RANGE", Description: fmt.Sprintf("must be 1 to %d characters that say what it is for", maxName),
		})
	}
	roles, err := rpc.ParseRoles(r.GetRoles())
	switch {
	case err != nil:
		violations = append(violations, rpc.Violation{Field: "roles", Reason: "UNKNOWN", Description: err.Error()})
	case len(roles) == 0:
		violations = append(violations, rpc.Violation{Field: "roles", Reason: "REQUIRED", Description: "must name at least one role"})
	}
	spec := credentialdb.Spec{ClientID: r.GetClientId(), Name: r.GetName(), Roles: roles}
	if life := r.GetLife(); life != nil {
		if spec.Life = life.AsDuration(); !life.IsValid() || spec.Life < time.Second || spec.Life > maxAge || life.GetNanos() != 0 {
			violations = append(violations, rpc.Violation{Field: "life", Reason: "OUT_OF_RANGE", Description: "must be whole seconds, from 1 second to 100 years"})
		}
	}
	return spec, violations
}

// identifierFrom reads the id of what is called what.
func identifierFrom(what, text string) (uuid.UUID, []rpc.Violation) {
	id, err := uuid.Parse(text)
	if err != nil || len(text) != len(uuid.Nil.String()) {
		return uuid.Nil, []rpc.Violation{{Field: "id", Reason: "MALFORMED", Description: "must be the id of a " + what + ", a UUID"}}
	}
	return id, nil
}

func credentialOf(c credentialdb.Credential) *adminv1.Credential {
	shown := &adminv1.Credential{
		Id: c.ID.String(), ClientId: c.ClientID, Name: c.Name, SubjectAlternativeName: c.SAN,
		CreatedBy: c.CreatedBy, CreateTime: timestamppb.New(c.CreatedAt), RevokedBy: c.RevokedBy,
	}
	for _, role := range c.Roles {
		shown.Roles = append(shown.Roles, string(role))
	}
	if !c.ExpiresAt.IsZero() {
		shown.ExpireTime = timestamppb.New(c.ExpiresAt)
	}
	if !c.RevokedAt.IsZero() {
		shown.RevokeTime = timestamppb.New(c.RevokedAt)
	}
	return shown
}

// credentialRecord is a credential as the record of changes has it.
type credentialRecord struct {
	ClientID  string     `json:"client_id"`
	Name      string     `json:"name"`
	Roles     []rpc.Role `json:"roles"`
	SAN       string     `json:"subject_alternative_name,omitempty"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	Revoked   bool       `json:"revoked,omitempty"`
}

func credentialRecordOf(c credentialdb.Credential) credentialRecord {
	r := credentialRecord{ClientID: c.ClientID, Name: c.Name, Roles: slices.Clone(c.Roles), SAN: c.SAN, Revoked: !c.RevokedAt.IsZero()}
	if !c.ExpiresAt.IsZero() {
		r.ExpiresAt = &c.ExpiresAt
	}
	return r
}

func created(c credentialdb.Credential) effect {
	return effect{target: "credentials/" + c.ID.String(), after: credentialRecordOf(c)}
}
