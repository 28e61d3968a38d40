package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// guard stands around every call of the gRPC server, from before its message is decoded until its error is mapped.
type guard struct {
	gatekeeper
	ownErrors func(error) *Error
	timeout   time.Duration
	log       *slog.Logger
}

// method is what the guard knows of a method before it is called.
type method struct {
	name   string
	access Access
	// bounded calls, the unary ones, end by the guard's deadline at the latest.
	bounded bool
}

// call runs one RPC.
func (g *guard) call(ctx context.Context, m method, handle func(context.Context) error) (err error) {
	begin := time.Now()
	var principal Principal
	defer func() {
		if v := recover(); v != nil {
			err = internal(panicked(v))
		}
		g.record(ctx, m.name, principal, time.Since(begin), err)
	}()
	if m.access.kind != open {
		if principal, err = g.authenticate(ctx, authorizationOf(ctx), certificateOf(ctx)); err != nil {
			return err
		}
		ctx = WithPrincipal(ctx, principal)
	}
	if !m.access.admits(principal) {
		return &Error{
			Code: codes.PermissionDenied, Reason: ReasonAccessDenied, Message: "the method is not open to this caller",
		}
	}
	if m.bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, g.timeout, fmt.Errorf("the server's limit of %s", g.timeout))
		defer cancel()
	}
	if err = handle(ctx); err != nil {
		return explain(ctx, err, g.ownErrors)
	}
	return nil
}

// record writes the call's one line. A call that went well is a detail; one that the server is to blame for is
// an error, and has its cause with it.
func (g *guard) record(ctx context.Context, method string, p Principal, took time.Duration, err error) {
	level := levelOf(err)
	if !g.log.Enabled(ctx, level) {
		return
	}
	code := status.Code(err)
	attrs := []slog.Attr{
		slog.String("method", method), slog.String("code", code.String()), slog.Duration("took", took),
		slog.String("client", p.ClientID), slog.Bool("rest", viaGateway(ctx)),
	}
	var e *Error
	if errors.As(err, &e) {
		attrs = append(attrs, slog.String("reason", e.Reason))
		if e.Cause != nil {
			attrs = append(attrs, slog.String("cause", e.Cause.Error()))
		}
	}
	g.log.LogAttrs(ctx, level, "call", attrs...)
}

func levelOf(err error) slog.Level {
	switch status.Code(err) {
	case codes.OK:
		return slog.LevelDebug
	case codes.Internal, codes.Unknown, codes.DataLoss, codes.Unavailable, codes.DeadlineExceeded:
		return slog.LevelError
	default:
		return slog.LevelInfo
	}
}

// memoryNetwork is what bufconn calls its network: that of the gateway's connection, which nobody else can have.
const memoryNetwork = "bufconn"

func viaGateway(ctx context.Context) bool {
	p, ok := peer.FromContext(ctx)
	return ok && p.Addr != nil && p.Addr.Network() == memoryNetwork
}

// panicked describes a panic without its value, which may hold a payload, unless the value is the runtime's own.
func panicked(v any) error {
	var fault runtime.Error
	if err, ok := v.(error); ok && errors.As(err, &fault) {
		return fmt.Errorf("panic: %w\n%s", fault, debug.Stack())
	}
	return fmt.Errorf("panic: a %T\n%s", v, debug.Stack())
}
