package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// gateway turns REST calls into calls of the gRPC server.
type gateway struct {
	marshaler *marshaler
	log       *slog.Logger
	// created are the full names of the methods whose success is 201.
	created []string
}

func (g *gateway) mux() *runtime.ServeMux {
	return runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, g.marshaler),
		runtime.WithDisableHTTPMethodOverride(),
		runtime.WithDisablePathLengthFallback(),
		runtime.WithWriteContentLength(),
		runtime.WithIncomingHeaderMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithMetadata(forwarded),
		runtime.WithOutgoingHeaderMatcher(func(key string) (string, bool) {
			return "Idempotent-Replayed", key == idempotentReplayedHeader
		}),
		runtime.WithOutgoingTrailerMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithForwardResponseOption(g.status),
		runtime.WithErrorHandler(g.failed),
		runtime.WithRoutingErrorHandler(g.unroutable),
	)
}

// forwarded are the headers that mean something behind the gateway, beside authorization, which it forwards by
// itself: the idempotency key and the caller's trace; and the certificate that the caller has shown. A key that gRPC cannot carry is forwarded as the empty
// key, which is refused: leaving it out would make the call one without a key.
func forwarded(_ context.Context, r *http.Request) metadata.MD {
	md := metadata.MD{}
	if certificate := verified(r.TLS); certificate != nil {
		md.Set(certificateKey, string(certificate.Raw))
	}
	for _, key := range r.Header.Values(idempotencyKeyHeader) {
		if strings.ContainsFunc(key, func(c rune) bool { return c < 0x20 || c > 0x7e }) {
			key = ""
		}
		md.Append(idempotencyKeyHeader, key)
	}
	for _, name := range []string{"traceparent", "tracestate"} {
		if values := r.Header.Values(name); len(values) == 1 && !strings.ContainsFunc(values[0], func(c rune) bool { return c < 0x20 || c > 0x7e }) {
			md.Set(name, values[0])
		}
	}
	return md
}

func (g *gateway) status(ctx context.Context, w http.ResponseWriter, _ proto.Message) error {
	if name, ok := runtime.RPCMethod(ctx); ok && slices.Contains(g.created, name) {
		w.WriteHeader(http.StatusCreated)
	}
	return nil
}

type restCallKey struct{}

// restCall is what the REST handler and the gateway's connection tell each other about one request.
type restCall struct {
	query url.Values
	out   *patientWriter
	// reached says that the gRPC server has the call, and with it the log line.
	reached bool
}

// send is the last step before the gRPC server. The generated code ignores parameters that it cannot place; here
// the request's type is known and they are refused.
func (g *gateway) send(ctx context.Context, name string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if call, ok := ctx.Value(restCallKey{}).(*restCall); ok {
		if v := strayParameters(name, req, call.query); len(v) > 0 {
			return InvalidFields(v...)
		}
		call.reached = true
	}
	return invoke(ctx, name, req, reply, cc, opts...)
}

// stream is send for the methods that answer with a stream.
func (g *gateway) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, name string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	call, ok := ctx.Value(restCallKey{}).(*restCall)
	if !ok {
		return open(ctx, desc, cc, name, opts...)
	}
	if err := call.out.stream(); err != nil {
		return nil, fmt.Errorf("answer with a stream: %w", err)
	}
	s, err := open(ctx, desc, cc, name, opts...)
	if err != nil {
		return nil, err
	}
	return &checkedStream{ClientStream: s, name: name, call: call}, nil
}

// checkedStream checks the request, as send does, before the server has it.
type checkedStream struct {
	grpc.ClientStream
	name string
	call *restCall
}

func (s *checkedStream) SendMsg(req any) error {
	if v := strayParameters(s.name, req, s.call.query); len(v) > 0 {
		return InvalidFields(v...)
	}
	s.call.reached = true
	return s.ClientStream.SendMsg(req)
}

func strayParameters(name string, req any, query url.Values) []Violation {
	message, ok := req.(proto.Message)
	if !ok || len(query) == 0 {
		return nil
	}
	var violations []Violation
	inBody := wholeBody(name)
	for _, key := range slices.Sorted(maps.Keys(query)) {
		switch {
		case !names(message.ProtoReflect().Descriptor(), key):
			violations = append(violations, Violation{Field: key, Reason: "UNKNOWN", Description: "no such parameter"})
		case inBody:
			violations = append(violations, Violation{Field: key, Reason: "MISPLACED", Description: "belongs into the body"})
		}
	}
	return violations
}

// names reports whether key is the path of a field of the message.
func names(message protoreflect.MessageDescriptor, key string) bool {
	for part := range strings.SplitSeq(key, ".") {
		if message == nil {
			return false
		}
		field := message.Fields().ByTextName(part)
		if field == nil {
			field = message.Fields().ByJSONName(part)
		}
		if field == nil {
			return false
		}
		message = field.Message()
	}
	return true
}

// wholeBody reports whether the REST form of a method takes all of its request from the body.
func wholeBody(name string) bool {
	full := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(name, "/"), "/", "."))
	desc, err := protoregistry.GlobalFiles.FindDescriptorByName(full)
	if err != nil {
		return false
	}
	rule, _ := proto.GetExtension(desc.Options(), annotations.E_Http).(*annotations.HttpRule)
	return rule.GetBody() == "*"
}

func (g *gateway) unroutable(ctx context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, httpCode int) {
	e := &Error{Code: codes.NotFound, Reason: ReasonNoSuchMethod, Message: "there is nothing at this path"}
	switch httpCode {
	case http.StatusMethodNotAllowed:
		e.Code, e.Message = codes.Unimplemented, "the path has no such method"
	case http.StatusBadRequest:
		e.Code, e.Reason, e.Message = codes.InvalidArgument, ReasonMalformedRequest, "the path is malformed"
	}
	g.refuse(ctx, w, r, e, httpCode)
}

// failed answers a call that did not succeed, in the gRPC server or on the way to it.
func (g *gateway) failed(ctx context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) {
	st := status.Convert(err)
	call, _ := ctx.Value(restCallKey{}).(*restCall)
	reason, ours := reasonOf(st)
	if ours {
		if call == nil || !call.reached {
			g.record(ctx, r, st.Code(), reason)
		}
		g.write(w, st, 0)
		return
	}
	// What follows did not come from the guard. On the way to the server it is the generated code's complaint about
	// the request, whose text is for the caller, or the connection's, whose text is not. From the server it is a
	// status that a handler has chosen.
	e := &Error{Code: st.Code(), Message: st.Message()}
	switch st.Code() {
	case codes.InvalidArgument, codes.OutOfRange:
		e.Code, e.Reason = codes.InvalidArgument, ReasonMalformedRequest
	case codes.DeadlineExceeded:
		e.Reason, e.Message = ReasonDeadlineExceeded, "the deadline has passed; the call may have taken effect"
	case codes.Canceled:
		e.Reason, e.Message = ReasonCanceled, "the call was canceled; it may have taken effect"
	case codes.Unavailable:
		e.Reason, e.Message, e.Cause = ReasonStopping, "the server is stopping", err
	case codes.Internal, codes.Unknown:
		e = internal(err)
	default:
		if call != nil && call.reached {
			g.write(w, st, 0)
			return
		}
		e = internal(err)
	}
	g.refuse(ctx, w, r, e, 0)
}

// refuse answers and logs a request that did not reach the gRPC server. An httpCode of 0 follows from the error.
func (g *gateway) refuse(ctx context.Context, w http.ResponseWriter, r *http.Request, e *Error, httpCode int) {
	cause := ""
	if e.Cause != nil {
		cause = e.Cause.Error()
	}
	g.record(ctx, r, e.Code, e.Reason, slog.String("cause", cause))
	g.write(w, e.GRPCStatus(), httpCode)
}

// record logs the HTTP method only: a path may hold whatever the caller has put there.
func (g *gateway) record(ctx context.Context, r *http.Request, code codes.Code, reason string, attrs ...slog.Attr) {
	level := slog.LevelInfo
	if code == codes.Internal {
		level = slog.LevelError
	}
	attrs = append([]slog.Attr{
		slog.String("http_method", r.Method), slog.String("code", code.String()), slog.String("reason", reason),
	}, attrs...)
	g.log.LogAttrs(ctx, level, "request refused at the gateway", attrs...)
}

func (g *gateway) write(w http.ResponseWriter, st *status.Status, httpCode int) {
	if httpCode == 0 {
		httpCode = runtime.HTTPStatusFromCode(st.Code())
		reason, _ := reasonOf(st)
		if own, ok := httpStatus(reason); ok {
			httpCode = own
		}
	}
	body, err := g.marshaler.Marshal(st.Proto())
	if err != nil {
		httpCode, body = http.StatusInternalServerError, []byte(`{"code":13,"message":"internal error","details":[]}`)
	}
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	if httpCode == http.StatusUnauthorized {
		header.Set("WWW-Authenticate", `Bearer realm="evalonce"`)
	}
	for _, d := range st.Details() {
		if retry, ok := d.(*errdetails.RetryInfo); ok {
			seconds := int(retry.GetRetryDelay().AsDuration().Seconds() + 0.999)
			header.Set("Retry-After", strconv.Itoa(seconds))
		}
	}
	w.WriteHeader(httpCode)
	_, _ = w.Write(body) // the caller has gone: nobody is left to tell
}

func reasonOf(st *status.Status) (reason string, ours bool) {
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == Domain {
			return info.GetReason(), true
		}
	}
	return "", false
}
