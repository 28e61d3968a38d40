package main

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/evalonce/evalonce/pkg/access"
	"github.com/evalonce/evalonce/pkg/pace"
	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/webhook"
	"github.com/evalonce/evalonce/services/ticket-api/internal/api"
)

// Config is everything that can be set.
type Config struct {
	DatabaseURL            string `env:"EVALONCE_DATABASE_URL,required" secret:"true" help:"Postgres, as a URL or as keyword=value pairs"`
	ReadDatabaseURL        string `env:"EVALONCE_READ_DATABASE_URL" secret:"true" help:"a streaming replica that ListTickets reads from, and so shows what the replica knows by then; empty reads it from the database itself"`
	DatabaseMaxConnections int32  `env:"EVALONCE_DATABASE_MAX_CONNECTIONS" envDefault:"16" help:"connections of this process at most, and as many to the replica"`
	GRPCAddress            string `env:"EVALONCE_GRPC_ADDRESS" envDefault:":8081" help:"where gRPC is served; port 0 takes a free one"`
	HTTPAddress            string `env:"EVALONCE_HTTP_ADDRESS" envDefault:":8080" help:"where REST is served; port 0 takes a free one"`
	HealthAddress          string `env:"EVALONCE_HEALTH_ADDRESS" envDefault:":8085" help:"serves /healthz, /readyz and /metrics, without credentials; empty serves none of them"`
	Access                 access.Config
	APITokens              rpc.Tokens      `env:"EVALONCE_API_TOKENS" secret:"true" help:"client=hash[,client=hash...], where hash is the SHA-256 of an API token in hex"`
	MaxSubjectCharacters   int             `env:"EVALONCE_MAX_SUBJECT_CHARACTERS" envDefault:"1000" help:"longest subject of a ticket, in characters"`
	MaxMessageBytes        int             `env:"EVALONCE_MAX_MESSAGE_BYTES" envDefault:"65536" help:"longest message of a ticket, in bytes of UTF-8"`
	MaxRequestBytes        int             `env:"EVALONCE_MAX_REQUEST_BYTES" envDefault:"3145728" help:"largest request, in bytes as sent; a batch's answer is larger, and clients take 4 MiB by default"`
	ClientTicketsPerSecond float64         `env:"EVALONCE_CLIENT_TICKETS_PER_SECOND" envDefault:"0" help:"tickets that one client may create in a second, on this replica; replays count; 0 is no limit"`
	ClientTicketsBurst     int             `env:"EVALONCE_CLIENT_TICKETS_BURST" envDefault:"1000" help:"tickets that it may create at once after a pause"`
	RequestRetention       time.Duration   `env:"EVALONCE_REQUEST_RETENTION" envDefault:"168h" help:"how long an idempotency key is known"`
	WebhookKeys            webhook.Keyring `env:"EVALONCE_WEBHOOK_KEYS" secret:"true" help:"name=key[,name=key...], the keys of webhook secrets: 32 bytes in base64; the first seals, all open; the same as the workers'. Without any, no webhooks can be registered"`
	WebhookAllowHTTP       bool            `env:"EVALONCE_WEBHOOK_ALLOW_HTTP" envDefault:"false" help:"let webhook endpoints have no TLS"`
	CallTimeout            time.Duration   `env:"EVALONCE_CALL_TIMEOUT" envDefault:"30s" help:"longest time of one call, whatever its deadline"`
	ShutdownGrace          time.Duration   `env:"EVALONCE_SHUTDOWN_GRACE" envDefault:"25s" help:"time that running calls get when the service stops"`
}

// Validate finds the values that would refuse every request or accept what cannot be stored.
func (c Config) Validate() error {
	var problems []error
	refuse := func(name, format string, args ...any) {
		problems = append(problems, fmt.Errorf("%s %s", name, fmt.Sprintf(format, args...)))
	}
	if c.DatabaseMaxConnections < 1 {
		refuse("EVALONCE_DATABASE_MAX_CONNECTIONS", "must be at least 1")
	}
	if c.MaxSubjectCharacters < 1 {
		refuse("EVALONCE_MAX_SUBJECT_CHARACTERS", "must be at least 1")
	}
	if c.MaxMessageBytes < 1 {
		refuse("EVALONCE_MAX_MESSAGE_BYTES", "must be at least 1")
	}
	// A character takes 4 bytes at most; the rest is for the other fields.
	if least := 4*c.MaxSubjectCharacters + c.MaxMessageBytes + 4096; c.MaxRequestBytes < least {
		refuse("EVALONCE_MAX_REQUEST_BYTES", "must be at least %d, for the largest ticket", least)
	}
	if !(c.ClientTicketsPerSecond >= 0) || c.ClientTicketsPerSecond > math.MaxInt32 {
		refuse("EVALONCE_CLIENT_TICKETS_PER_SECOND", "must be at least 0")
	}
	if c.ClientTicketsBurst < api.MaxBatch {
		refuse("EVALONCE_CLIENT_TICKETS_BURST", "must be at least %d, for the largest batch", api.MaxBatch)
	}
	if c.RequestRetention < time.Minute {
		refuse("EVALONCE_REQUEST_RETENTION", "must be at least 1m: a key must outlive the retries of its request")
	}
	if c.CallTimeout <= 0 {
		refuse("EVALONCE_CALL_TIMEOUT", "must be positive")
	}
	if c.ShutdownGrace <= 0 {
		refuse("EVALONCE_SHUTDOWN_GRACE", "must be positive")
	}
	return errors.Join(append(problems, c.Access.Validate())...)
}

func (c Config) limits() api.Limits {
	return api.Limits{
		SubjectCharacters: c.MaxSubjectCharacters, MessageBytes: c.MaxMessageBytes, Pace: pace.New(c.ClientTicketsPerSecond, c.ClientTicketsBurst),
	}
}
