package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc/filters"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/test/bufconn"
)

var errStopping = errors.New("the server is stopping")

// Options of a server. All fields are needed but those that say otherwise.
type Options struct {
	GRPCAddress string
	HTTPAddress string
	// Register puts the services into the gRPC server, and Gateways their REST forms into the gateway.
	Register func(grpc.ServiceRegistrar)
	Gateways []func(context.Context, *runtime.ServeMux, *grpc.ClientConn) error

	// Transport is TLS unless it says otherwise.
	Transport Transport

	Authenticator Authenticator
	// Certificates knows callers by their client certificates; nobody is known by one when nil.
	Certificates CertificateAuthenticator
	// Everybody is whom every caller counts as, without being asked for credentials. Then both addresses have to be of
	// loopback. Nil asks.
	Everybody *Principal
	// Policy names the methods that may be called. Health (open) and reflection (authenticated) are added.
	Policy Policy
	// Created are the full names of the methods whose REST answer is 201; none when nil.
	Created []string
	// Errors is the service's table of domain errors, nil for an error that it does not know; none when nil.
	Errors func(error) *Error
	// Ready says whether the dependencies answer; always when nil.
	Ready func(context.Context) error
	// Public is served over HTTP to everybody, by pattern of net/http; only /healthz and /readyz when nil.
	Public map[string]http.Handler

	// MaxRequestBytes bounds one request as it is sent: a gRPC message or a JSON body.
	MaxRequestBytes int
	// CallTimeout bounds the time of a unary call, whatever deadline the caller sets.
	CallTimeout time.Duration
	// Grace bounds the time that running calls get when the server stops.
	Grace time.Duration
	// Logger is slog's default when nil.
	Logger *slog.Logger

	patience patience // the usual when zero
}

// patience is how long a caller may take over what it sends.
type patience struct {
	header  time.Duration // of HTTP, or the handshakes of gRPC
	request time.Duration // an HTTP request, its body included
}

// Server is a gRPC server and its REST form, bound to their ports.
type Server struct {
	grpc      *grpc.Server
	http      *http.Server
	health    *health.Server
	ready     *readiness
	conn      *grpc.ClientConn
	endTLS    func()
	methods   map[string]bool // by full name; complete before the first call
	stopping  chan struct{}
	grace     time.Duration
	log       *slog.Logger
	listeners struct{ grpc, http, memory net.Listener }
}

// The limits of what a caller may hold open without sending anything.
const (
	maxHeaderBytes    = 32 << 10
	readHeaderTimeout = 10 * time.Second
	readTimeout       = 60 * time.Second
	idleTimeout       = 2 * time.Minute
	maxStreams        = 1000
	// A connection ends now and then, so that callers find replicas that came later.
	maxConnectionAge = 30 * time.Minute
	maxIdle          = 15 * time.Minute
	// One whose other end is gone without a word is noticed within both of these.
	pingInterval = 2 * time.Minute
	pingTimeout  = 20 * time.Second
)

// Listen binds both ports. The server answers nobody until Run.
func Listen(ctx context.Context, o Options) (_ *Server, err error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.patience == (patience{}) {
		o.patience = patience{header: readHeaderTimeout, request: readTimeout}
	}
	if o.Ready == nil {
		o.Ready = func(context.Context) error { return nil }
	}
	s := &Server{
		health: health.NewServer(), methods: map[string]bool{}, stopping: make(chan struct{}), grace: o.Grace, log: o.Logger,
		ready: &readiness{check: o.Ready, log: o.Logger},
	}
	protection, endTLS, err := o.Transport.config(reloadInterval)
	if err != nil {
		return nil, err
	}
	s.endTLS = endTLS
	defer func() {
		if err != nil {
			endTLS()
		}
	}()
	if err := s.buildGRPC(o, protection); err != nil {
		return nil, err
	}
	if err := s.buildREST(ctx, o, protection); err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	if s.listeners.grpc, err = lc.Listen(ctx, "tcp", o.GRPCAddress); err != nil {
		return nil, errors.Join(fmt.Errorf("listen for gRPC: %w", err), s.conn.Close())
	}
	if s.listeners.http, err = lc.Listen(ctx, "tcp", o.HTTPAddress); err != nil {
		return nil, errors.Join(fmt.Errorf("listen for HTTP: %w", err), s.listeners.grpc.Close(), s.conn.Close())
	}
	if o.Everybody != nil && !(onLoopback(s.listeners.grpc) && onLoopback(s.listeners.http)) {
		return nil, errors.Join(
			fmt.Errorf("callers who are not asked for credentials may come from this machine alone, and not to %s and %s: serve on 127.0.0.1", s.GRPCAddress(), s.HTTPAddress()),
			s.listeners.grpc.Close(), s.listeners.http.Close(), s.conn.Close())
	}
	return s, nil
}

func onLoopback(l net.Listener) bool {
	address, ok := l.Addr().(*net.TCPAddr)
	return ok && address.IP.IsLoopback()
}

func (s *Server) buildGRPC(o Options, protection *tls.Config) error {
	guard := &guard{gatekeeper: gatekeeper{o.Authenticator, o.Certificates, o.Everybody}, ownErrors: o.Errors, timeout: o.CallTimeout, log: o.Logger}
	policy := Policy{
		"/grpc.health.v1.Health/*":                    Open,
		"/grpc.reflection.v1.ServerReflection/*":      Authenticated,
		"/grpc.reflection.v1alpha.ServerReflection/*": Authenticated,
	}
	for name, access := range o.Policy {
		policy[name] = access
	}
	s.grpc = grpc.NewServer(
		grpc.Creds(serverCredentials(protection)),
		grpc.StatsHandler(otelgrpc.NewServerHandler(otelgrpc.WithFilter(filters.All(filters.Not(filters.HealthCheck()), s.serves)))),
		grpc.UnknownServiceHandler(guard.unknown),
		grpc.ForceServerCodecV2(newCodec(o.MaxRequestBytes)),
		grpc.MaxRecvMsgSize(sizeSlack*o.MaxRequestBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(o.patience.header),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: maxConnectionAge, MaxConnectionAgeGrace: o.CallTimeout, MaxConnectionIdle: maxIdle, Time: pingInterval, Timeout: pingTimeout,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	)
	r := registrar{Server: s.grpc, guard: guard, policy: policy, stopping: s.stopping}
	o.Register(r)
	for name := range s.grpc.GetServiceInfo() {
		s.health.SetServingStatus(name, grpc_health_v1.HealthCheckResponse_SERVING)
	}
	grpc_health_v1.RegisterHealthServer(r, s.health)
	reflection.Register(r)
	for service, info := range s.grpc.GetServiceInfo() {
		for _, m := range info.Methods {
			s.methods["/"+service+"/"+m.Name] = true
		}
	}
	return policy.check(s.grpc.GetServiceInfo())
}

// serves reports whether there is such a method. Calls of what a caller has made up have no spans and no metrics, which
// would have its name.
func (s *Server) serves(info *stats.RPCTagInfo) bool { return s.methods[info.FullMethodName] }

// check finds the entries that name nothing, which a renamed method would leave behind.
func (p Policy) check(services map[string]grpc.ServiceInfo) error {
	known := map[string]bool{}
	for service, info := range services {
		known["/"+service+"/*"] = true
		for _, m := range info.Methods {
			known["/"+service+"/"+m.Name] = true
		}
	}
	var problems []error
	for name := range p {
		if !known[name] {
			problems = append(problems, fmt.Errorf("the policy names %s, which does not exist", name))
		}
	}
	return errors.Join(problems...)
}

func (s *Server) buildREST(ctx context.Context, o Options, protection *tls.Config) (err error) {
	memory := bufconn.Listen(1 << 20)
	s.listeners.memory = memory
	gw := &gateway{marshaler: newMarshaler(), log: o.Logger, created: o.Created}
	s.conn, err = grpc.NewClient("passthrough:///memory",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return memory.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()), // nothing leaves the process
		grpc.WithUnaryInterceptor(gw.send),
		grpc.WithStreamInterceptor(gw.stream),
		grpc.WithDisableServiceConfig(),
		// The caller's patience decides about a response's size, not a client's default.
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)),
	)
	if err != nil {
		return fmt.Errorf("connect the gateway: %w", err)
	}
	mux := gw.mux()
	for _, register := range o.Gateways {
		if err := register(ctx, mux, s.conn); err != nil {
			return errors.Join(fmt.Errorf("register a REST service: %w", err), s.conn.Close())
		}
	}
	writeTimeout := o.patience.request + o.CallTimeout
	root := http.NewServeMux()
	root.Handle("/", &rest{
		gatekeeper: gatekeeper{o.Authenticator, o.Certificates, o.Everybody}, gateway: gw, next: mux,
		maxBytes: int64(o.MaxRequestBytes), writeTimeout: writeTimeout,
	})
	root.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("alive\n"))
	})
	root.Handle("GET /readyz", s.ready)
	for pattern, handler := range o.Public {
		root.Handle(pattern, handler)
	}
	s.http = &http.Server{
		Handler: root, ReadHeaderTimeout: o.patience.header, ReadTimeout: o.patience.request, IdleTimeout: idleTimeout,
		WriteTimeout: writeTimeout, MaxHeaderBytes: maxHeaderBytes,
		TLSConfig: protection,
		// net/http reports what clients do to their connections.
		ErrorLog: slog.NewLogLogger(o.Logger.Handler(), slog.LevelDebug),
	}
	return nil
}

// GRPCAddress is where gRPC is served, with the port that was bound.
func (s *Server) GRPCAddress() string { return s.listeners.grpc.Addr().String() }

// HTTPAddress is where REST is served, with the port that was bound.
func (s *Server) HTTPAddress() string { return s.listeners.http.Addr().String() }

// Run serves until ctx ends, and then stops within the grace: it is no longer ready, REST ends, which is a
// client of gRPC, then gRPC. It returns nil when every call could end.
func (s *Server) Run(ctx context.Context) error {
	ended := make(chan error, 3)
	serve := func(what string, run func() error) {
		go func() {
			if err := run(); err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, grpc.ErrServerStopped) {
				ended <- fmt.Errorf("serve %s: %w", what, err)
				return
			}
			ended <- nil
		}()
	}
	serve("gRPC", func() error { return s.grpc.Serve(s.listeners.grpc) })
	serve("gRPC to REST", func() error { return s.grpc.Serve(s.listeners.memory) })
	serve("REST", func() error {
		if s.http.TLSConfig == nil {
			return s.http.Serve(s.listeners.http)
		}
		return s.http.ServeTLS(s.listeners.http, "", "")
	})
	s.log.InfoContext(ctx, "serving", slog.String("grpc", s.GRPCAddress()), slog.String("http", s.HTTPAddress()))

	var problems []error
	running := 3
	select {
	case <-ctx.Done():
	case err := <-ended:
		problems, running = append(problems, err), 2
	}
	problems = append(problems, s.stop(ctx))
	for range running {
		problems = append(problems, <-ended)
	}
	s.endTLS()
	return errors.Join(append(problems, s.conn.Close())...)
}

// stop gives REST half of the grace to itself, in which new calls still find the gRPC server; in the other half
// both only finish what they have.
func (s *Server) stop(ctx context.Context) error {
	s.ready.stop()
	s.health.Shutdown()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.grace)
	defer cancel()
	rest := make(chan error, 1)
	go func() { rest <- s.http.Shutdown(ctx) }()
	half := time.NewTimer(s.grace / 2)
	defer half.Stop()
	var restErr error
	restEnded := false
	select {
	case restErr = <-rest:
		restEnded = true
	case <-half.C:
	}
	close(s.stopping)
	graceful := make(chan struct{})
	go func() { s.grpc.GracefulStop(); close(graceful) }()
	var cut []string
	select {
	case <-graceful:
	case <-ctx.Done():
		cut = append(cut, "gRPC")
		s.grpc.Stop()
		<-graceful
	}
	if !restEnded {
		restErr = <-rest
	}
	if restErr != nil {
		cut = append(cut, "REST")
	}
	if len(cut) == 0 {
		return nil
	}
	return errors.Join(fmt.Errorf("calls were cut after %s: %s", s.grace, strings.Join(cut, ", ")), s.http.Close())
}
