package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

// client is one of the public API, as any customer has.
type client struct {
	ticketv1.TicketServiceClient
	conn *grpc.ClientConn
}

// connect returns a client whose connection is there and whose token is good, so that neither is part of what the
// first tickets take.
func connect(ctx context.Context, address, token string) (*client, error) {
	conn, err := dial(address, token)
	if err != nil {
		return nil, fmt.Errorf("connect to ticket-api: %w", err)
	}
	c := &client{TicketServiceClient: ticketv1.NewTicketServiceClient(conn), conn: conn}
	if _, err := c.ListTickets(ctx, &ticketv1.ListTicketsRequest{PageSize: 1}); err != nil {
		return nil, errors.Join(fmt.Errorf("connect to ticket-api: %w", inDetail(err)), conn.Close())
	}
	return c, nil
}

func dial(address, token string) (*grpc.ClientConn, error) {
	return grpc.NewClient(address,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithPerRPCCredentials(bearer(token)))
}

// inDetail adds to an error which field is wrong, and how: its message leaves that to the details.
func inDetail(err error) error {
	var violations []string
	for _, detail := range status.Convert(err).Details() {
		if bad, ok := detail.(*errdetails.BadRequest); ok {
			for _, v := range bad.GetFieldViolations() {
				violations = append(violations, v.GetField()+" "+v.GetDescription())
			}
		}
	}
	if violations == nil {
		return err
	}
	return fmt.Errorf("%w: %s", err, strings.Join(violations, "; "))
}

func (c *client) close() { _ = c.conn.Close() }

// bearer sends an API token with every call. Without TLS, because it does not leave this machine.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

func (bearer) RequireTransportSecurity() bool { return false }
