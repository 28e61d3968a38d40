package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/evalonce/evalonce/pkg/rpc"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

func TestUsageErrors(t *testing.T) {
	t.Parallel()
	token, elsewhere := "EVALONCE_ADMIN_TOKEN=t", "EVALONCE_ADMIN_ADDRESS=127.0.0.1:1"
	for name, c := range map[string]struct {
		args    string
		environ []string
		part    string
	}{
		"an unknown noun":          {"versions list", nil, `unknown command "versions" for "evalctl"`},
		"an unknown verb":          {"version drop v1", nil, "unknown command \"drop\"\nevalctl version --help explains it"},
		"an unknown flag":          {"version list --all", nil, "unknown flag: --all\nevalctl version list --help explains it"},
		"no id":                    {"version get", nil, "accepts 1 arg(s), received 0"},
		"two ids":                  {"version promote a b --yes", nil, "accepts 1 arg(s), received 2"},
		"no file":                  {"version register", nil, `required flag(s) "file" not set`},
		"a form of output":         {"version list -o xml", nil, "must be table, json"},
		"no token":                 {"version list", []string{elsewhere}, "no token: set EVALONCE_ADMIN_TOKEN"},
		"an empty token":           {"version list", []string{"EVALONCE_ADMIN_TOKEN="}, "no token"},
		"a token file that is not": {"version list --token-file /nowhere/token", nil, "/nowhere/token: no such file"},
		"a mounted token, absent":  {"version list", []string{"EVALONCE_ADMIN_TOKEN_FILE=/nowhere/token"}, "EVALONCE_ADMIN_TOKEN_FILE: open /nowhere/token"},
		"a token of two lines":     {"version list", []string{"EVALONCE_ADMIN_TOKEN=secret\nsecret"}, "the token holds characters"},
		"an address without port":  {"version list --address admin", []string{token}, `the address "admin" is not of the form host:port`},
		"an address without host":  {"version list --address :8084", []string{token}, "is not of the form host:port"},
		"an address of a socket":   {"version list --address unix:/run/admin", []string{token}, "does not end with a port"},
		"a URL":                    {"version list --address https://admin:8084", []string{token}, "is not of the form host:port"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := execute(t, c.environ, nil, strings.Fields(c.args)...)
			got.want(t, exitUsage, c.part)
			if strings.Contains(got.err, "secret") {
				t.Errorf("the token is shown: %s", got.err)
			}
		})
	}
}

func TestHelpNeedsNoSettings(t *testing.T) {
	t.Parallel()
	for args, part := range map[string]string{
		"":                          "Exit codes:",
		"--help":                    "EVALONCE_ADMIN_TOKEN_FILE",
		"version":                   "promote",
		"version promote --help":    "Scripts give --yes",
		"version register --help":   "input_usd_per_mtok",
		"help version get":          "Show a version",
		"--version":                 " dev (commit ",
		"completion bash --help":    "completion",
		"version list --help -h":    "newest first",
		"version register -h --yes": "FILE",
	} {
		if got := execute(t, nil, nil, strings.Fields(args)...); got.code != 0 || !strings.Contains(got.out, part) || got.err != "" {
			t.Errorf("%q: %+v", args, got)
		}
	}
}

func TestTheTokenMayBeInAFile(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	path := file(t, "token", o.token+"\n")
	wrong := "EVALONCE_ADMIN_TOKEN=evalonce_wrong"
	address := "EVALONCE_ADMIN_ADDRESS=" + o.address
	for name, got := range map[string]outcome{
		"by flag":         execute(t, []string{address, wrong}, nil, "version", "list", "--token-file", path),
		"by variable":     execute(t, []string{address, "EVALONCE_ADMIN_TOKEN_FILE=" + path}, nil, "version", "list"),
		"address by flag": execute(t, []string{"EVALONCE_ADMIN_ADDRESS=192.0.2.1:1", "EVALONCE_ADMIN_TOKEN=" + o.token}, nil, "version", "list", "--address", o.address),
	} {
		if got.code != 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	execute(t, []string{address, wrong}, nil, "version", "list").want(t, exitDenied, "list versions: the API token is not valid")
	execute(t, []string{address, wrong}, nil, "version", "promote", "v1", "--yes").want(t, exitDenied, "the API token is not valid")
}

// A service elsewhere is spoken to under TLS, and hears no token before.
func TestNothingIsSentInTheClearByDefault(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{
		"localhost": true, "LOCALHOST": true, "127.0.0.1": true, "127.9.9.9": true, "::1": true, "::ffff:127.0.0.1": true,
		"localhost.example.com": false, "127.0.0.1.example.com": false, "10.0.0.1": false, "0.0.0.0": false, "::": false, "admin": false,
	} {
		if loopback(host) != want {
			t.Errorf("loopback(%q) is %t", host, !want)
		}
	}
	heard := make(chan []byte, 8)
	var lc net.ListenConfig
	listener, err := lc.Listen(t.Context(), "tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			first := make([]byte, 4096)
			_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
			n, _ := conn.Read(first)
			heard <- first[:n]
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = listener.Close(); <-accepted })
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	// An address of this machine that is not known to be one.
	address := net.JoinHostPort("0.0.0.0", port)
	environ := []string{"EVALONCE_ADMIN_TOKEN=evalonce_secret", "EVALONCE_ADMIN_ADDRESS=" + address}
	execute(t, environ, nil, "version", "list").want(t, exitNoAnswer, "list versions: "+address+" cannot be reached: ")
	const handshake = 22
	if first := <-heard; len(first) < 3 || first[0] != handshake || first[1] != tls.VersionTLS12>>8 || bytes.Contains(first, []byte("secret")) {
		t.Errorf("the first bytes are %q", first)
	}
	execute(t, environ, nil, "version", "list", "--insecure").want(t, exitNoAnswer)
	for first := range heard {
		if bytes.HasPrefix(first, []byte("PRI * HTTP/2.0")) {
			break
		}
	}
}

func TestNoAnswer(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	silent, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0") // it takes connections, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	closed, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	token := "EVALONCE_ADMIN_TOKEN=t"
	execute(t, []string{token}, nil, "version", "list", "--address", closed.Addr().String()).
		want(t, exitNoAnswer, "list versions: "+closed.Addr().String()+" cannot be reached: dial tcp 127.0.0.1", ": connect: connection refused\n")
	execute(t, []string{token}, nil, "version", "promote", "v1", "--yes", "--timeout", "50ms", "--address", silent.Addr().String()).
		want(t, exitNoAnswer, "promote version v1: "+silent.Addr().String()+" has not answered within 50ms; the call may have taken effect")
}

// scripted is a service that answers with one error.
type scripted struct {
	adminv1.UnimplementedVersionServiceServer
	fail func(ctx context.Context) error
}

func (s scripted) ListVersions(ctx context.Context, _ *adminv1.ListVersionsRequest) (*adminv1.ListVersionsResponse, error) {
	return nil, s.fail(ctx)
}

func failing(t *testing.T, fail func(ctx context.Context) error) *operator {
	t.Helper()
	policy := rpc.Policy{"/" + adminv1.VersionService_ServiceDesc.ServiceName + "/*": rpc.Authenticated}
	return serve(t, policy, func(r grpc.ServiceRegistrar) { adminv1.RegisterVersionServiceServer(r, scripted{fail: fail}) })
}

func TestErrorsOfTheServiceAndOfOthers(t *testing.T) {
	t.Parallel()
	with := func(code codes.Code, message, domain string) error {
		st, err := status.New(code, message).WithDetails(
			&errdetails.ErrorInfo{Domain: domain}, &errdetails.RetryInfo{RetryDelay: durationpb.New(2 * time.Second)},
			&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
				{Field: "a", Description: "must be b"}, {Field: "c", Description: "must not\x1b[2J be d"},
			}})
		if err != nil {
			t.Fatal(err)
		}
		return st.Err()
	}
	for name, c := range map[string]struct {
		err  error
		code int
		text string // after "list versions: "; %a stands for the address
	}{
		"ours":              {with(codes.Unavailable, "the database does not answer", "evalonce"), exitNoAnswer, "the database does not answer\n  a: must be b\n  c: must not\\x1b[2J be d; try again in 2s\n"},
		"a proxy's":         {status.Error(codes.Unavailable, "upstream \x1b]0;gone"), exitNoAnswer, "%a cannot be reached: upstream \\x1b]0;gone\n"},
		"denied":            {status.Error(codes.PermissionDenied, "no"), exitDenied, "%a has answered: no\n"},
		"a conflict":        {status.Error(codes.Aborted, "late"), exitConflict, "%a has answered: late\n"},
		"something unheard": {status.Error(codes.DataLoss, "oh"), exitFailed, "%a has answered: oh\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := failing(t, func(context.Context) error { return c.err })
			got := o.runs("version", "list")
			got.want(t, c.code)
			if want := "evalctl: list versions: " + strings.ReplaceAll(c.text, "%a", o.address); got.err != want {
				t.Errorf("standard error is %q, want %q", got.err, want)
			}
		})
	}
}

func TestAnInterruptedCall(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	o := failing(t, func(ctx context.Context) error {
		interrupt()
		<-ctx.Done()
		return ctx.Err()
	})
	var out, err bytes.Buffer
	code := run(ctx, []string{"version", "list"}, o.environ(), streams{in: strings.NewReader(""), out: &out, err: &err})
	outcome{code, out.String(), err.String()}.want(t, exitInterrupted, "list versions: interrupted; the call may have taken effect")
}
