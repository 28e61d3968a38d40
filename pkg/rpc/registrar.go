package rpc

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// registrar registers services with the guard around their methods. It rewrites the descriptors instead of
// installing interceptors, because a unary interceptor runs after its message has been decoded: too late to
// authenticate the caller first, and too late to name what could not be decoded the caller's error.
type registrar struct {
	*grpc.Server
	guard  *guard
	policy Policy
	// stopping is closed to end the streams that would outlast a graceful stop.
	stopping <-chan struct{}
}

func (r registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	guarded := *desc
	guarded.Methods = make([]grpc.MethodDesc, len(desc.Methods))
	for i, m := range desc.Methods {
		guarded.Methods[i] = grpc.MethodDesc{
			MethodName: m.MethodName,
			Handler:    r.unary(r.method(desc.ServiceName, m.MethodName), m),
		}
	}
	guarded.Streams = make([]grpc.StreamDesc, len(desc.Streams))
	for i, s := range desc.Streams {
		guarded.Streams[i] = s
		guarded.Streams[i].Handler = r.stream(r.method(desc.ServiceName, s.StreamName), s.Handler)
	}
	r.Server.RegisterService(&guarded, impl)
}

func (r registrar) method(service, name string) method {
	full := "/" + service + "/" + name
	return method{name: full, access: r.policy.access(full)}
}

func (r registrar) unary(m method, desc grpc.MethodDesc) grpc.MethodHandler {
	m.bounded = true
	return func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		var response any
		err := r.guard.call(ctx, m, func(ctx context.Context) (err error) {
			response, err = desc.Handler(srv, ctx, func(message any) error {
				return receive(decode, message)
			}, interceptor)
			return err
		})
		if err != nil {
			return nil, err
		}
		return response, nil
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

// unknown answers calls of methods that do not exist: as with all others, to authenticated callers only.
func (g *guard) unknown(_ any, stream grpc.ServerStream) error {
	name, _ := grpc.MethodFromServerStream(stream)
	return g.call(stream.Context(), method{name: name, access: Authenticated}, func(context.Context) error {
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
