package rpc

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// registrar registers services with the guard around their methods. It rewrites the descriptors instead of installing
// interceptors, and a unary method's into that of a stream with one message each way, which is the same on the wire: grpc
// has received and decoded a unary call's message before anything of ours runs. That is too late to ask who the caller is,
// who could have us hold as many large messages as it opens streams; too late to end the wait for a message that never
// comes; and too late to name what could not be decoded the caller's error.
type registrar struct {
	*grpc.Server
	guard  *guard
	policy Policy
	// stopping is closed to end the streams that would outlast a graceful stop.
	stopping <-chan struct{}
}

func (r registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	guarded := *desc
	guarded.Methods = nil
	guarded.Streams = make([]grpc.StreamDesc, 0, len(desc.Methods)+len(desc.Streams))
	for _, m := range desc.Methods {
		guarded.Streams = append(guarded.Streams, grpc.StreamDesc{
			StreamName: m.MethodName, Handler: r.unary(r.method(desc.ServiceName, m.MethodName), m.Handler),
		})
	}
	for _, s := range desc.Streams {
		s.Handler = r.stream(r.method(desc.ServiceName, s.StreamName), s.Handler)
		guarded.Streams = append(guarded.Streams, s)
	}
	r.Server.RegisterService(&guarded, impl)
}

func (r registrar) method(service, name string) method {
	full := "/" + service + "/" + name
	return method{name: full, access: r.policy.access(full)}
}

func (r registrar) unary(m method, handle grpc.MethodHandler) grpc.StreamHandler {
	m.bounded = true
	return func(srv any, stream grpc.ServerStream) error {
		return r.guard.call(stream.Context(), m, func(ctx context.Context) error {
			response, err := handle(srv, ctx, func(message any) error { return receiveWithin(ctx, stream, message) }, nil)
			if err != nil {
				return err
			}
			return stream.SendMsg(response)
		})
	}
}

// receiveWithin receives a message unless ctx ends first. What is received then is nobody's, and the receiving ends with
// the call.
func receiveWithin(ctx context.Context, stream grpc.ServerStream, message any) error {
	received := make(chan error, 1)
	go func() { received <- receive(stream.RecvMsg, message) }()
	select {
	case err := <-received:
		return err
	case <-ctx.Done():
		return fmt.Errorf("wait for the request: %w", context.Cause(ctx))
	}
}

func (r registrar) stream(m method, handle grpc.StreamHandler) grpc.StreamHandler {
	return func(srv any, stream grpc.ServerStream) error {
		return r.guard.call(stream.Context(), m, func(ctx context.Context) error {
			ctx, cancel := context.WithCancelCause(ctx)
			defer cancel(nil)
			go func() {
				select {
				case <-r.stopping:
					cancel(errStopping)
				case <-ctx.Done():
				}
			}()
			return handle(srv, &guardedStream{ServerStream: stream, ctx: ctx})
		})
	}
}

// unknownMethod stands for whatever name a caller has made up: logs and traces hold no names but ours.
const unknownMethod = "unknown"

// unknown answers calls of methods that do not exist: as with all others, to authenticated callers only.
func (g *guard) unknown(_ any, stream grpc.ServerStream) error {
	return g.call(stream.Context(), method{name: unknownMethod, access: Authenticated}, func(context.Context) error {
		return &Error{Code: codes.Unimplemented, Reason: ReasonNoSuchMethod, Message: "there is no such method"}
	})
}

type guardedStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *guardedStream) Context() context.Context { return s.ctx }

func (s *guardedStream) RecvMsg(message any) error {
	return receive(s.ServerStream.RecvMsg, message)
}
