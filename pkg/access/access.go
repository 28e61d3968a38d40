// Package access is what the APIs have in common about who may call them: which credentials count, and how connections
// are protected.
//
// A caller is known by an API token of the configuration, by an API token or a client certificate of the database, or by
// a JSON Web Token. Whichever it is, the client is the same, and so is what it owns.
package access

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/pkg/credentialdb"
	"github.com/evalonce/evalonce/pkg/jwtauth"
	"github.com/evalonce/evalonce/pkg/rpc"
)

// Config is part of the configuration of every API.
type Config struct {
	Transport             rpc.Transport
	JWT                   jwtauth.Config
	UnauthenticatedClient string `env:"EVALONCE_UNAUTHENTICATED_CLIENT" help:"let everybody in, as this client and with every role, without credentials; on loopback addresses only"`
}

// Validate reports all that is wrong at once.
func (c Config) Validate() error {
	problems := []error{c.Transport.Validate(), c.JWT.Validate()}
	if c.UnauthenticatedClient != "" && !rpc.ValidClient(c.UnauthenticatedClient) {
		problems = append(problems, errors.New("EVALONCE_UNAUTHENTICATED_CLIENT must be 1 to 128 visible ASCII characters"))
	}
	return errors.Join(problems...)
}

// Apply completes the options of a server. The tokens of the configuration have the roles; all other credentials say
// what theirs are. What it starts ends with ctx.
func (c Config) Apply(ctx context.Context, o *rpc.Options, db *pgxpool.Pool, tokens *rpc.Tokens, roles ...rpc.Role) error {
	o.Transport = c.Transport
	if c.UnauthenticatedClient != "" {
		o.Everybody = &rpc.Principal{ClientID: c.UnauthenticatedClient, Roles: rpc.AllRoles()}
	}
	credentials := credentialdb.NewAuthenticator(db)
	o.Certificates = credentials
	known := []rpc.Authenticator{rpc.Grant(tokens, roles...), credentials}
	if c.JWT.Enabled() {
		tokens, err := jwtauth.New(ctx, c.JWT)
		if err != nil {
			return fmt.Errorf("accept JSON Web Tokens: %w", err)
		}
		known = append(known, tokens)
	}
	o.Authenticator = rpc.FirstOf(known...)
	return nil
}
