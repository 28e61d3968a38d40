package clustertest_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/evalonce/evalonce/deploy/local/stack"
)

// The binaries under test; make test-kubernetes builds them.
const (
	controlPlaneVariable = "EVALONCE_TEST_CONTROLPLANE"
	kwokVariable         = "EVALONCE_TEST_KWOK"
)

// patience bounds every wait. It is spent only by what fails.
const patience = 5 * time.Minute

const pollInterval = 100 * time.Millisecond

var zones = []string{"zone-a", "zone-b", "zone-c"}

// plane is a control plane with nodes, a Postgres, and the agent that plays the nodes' part.
type plane struct {
	root, dir  string
	unlock     func()
	stack      *stack.Stack
	kubeconfig string
	kubectlBin string
	client     *kubernetes.Clientset
	postgres   string // address of its maintenance database
	metrics    *externalMetrics
	agent      *agent
}

// start returns when every part is ready. What it has started ends with the process, however that one ends.
func start(ctx context.Context) (_ *plane, err error) {
	controlPlane, kwok := os.Getenv(controlPlaneVariable), os.Getenv(kwokVariable)
	if controlPlane == "" || kwok == "" {
		return nil, fmt.Errorf("%s and %s name no binaries: run make test-kubernetes", controlPlaneVariable, kwokVariable)
	}
	root, err := stack.Root()
	if err != nil {
		return nil, err
	}
	p := &plane{root: root, dir: filepath.Join(root, ".build", "kubernetes")}
	if p.unlock, err = stack.Lock(p.dir, "test of the Kubernetes manifests"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.stop())
		}
	}()
	if err := os.RemoveAll(p.dir); err != nil {
		return nil, err
	}
	bin, err := p.binaries(ctx, controlPlane, kwok)
	if err != nil {
		return nil, err
	}
	p.kubectlBin = filepath.Join(bin, "kubectl")
	if p.stack, err = stack.New(ctx, stack.Options{Bin: bin, Dir: p.dir}); err != nil {
		return nil, err
	}
	server, _, err := p.stack.StartServer(ctx, "postgres", map[string]string{"fsync": "off"})
	if err != nil {
		return nil, err
	}
	p.postgres = server.URL()
	if err := p.startControlPlane(ctx); err != nil {
		return nil, err
	}
	if err := p.startNodes(ctx); err != nil {
		return nil, err
	}
	if err := p.defineForeignKinds(ctx); err != nil {
		return nil, err
	}
	if p.metrics, err = serveExternalMetrics(ctx, p); err != nil {
		return nil, err
	}
	p.agent = startAgent(p)
	return p, nil
}

func (p *plane) stop() error {
	var errs []error
	if p.agent != nil {
		p.agent.stop()
	}
	if p.metrics != nil {
		p.metrics.server.Close()
	}
	if p.stack != nil {
		errs = append(errs, p.stack.Stop())
	}
	p.unlock()
	return errors.Join(errs...)
}

// binaries are the parts of the control plane by their names, migrate of this release, and migrate-next of a release that has
// one more migration.
func (p *plane) binaries(ctx context.Context, controlPlane, kwok string) (string, error) {
	const migrate = "./migrations/cmd/migrate"
	bin, err := stack.BuildInto(ctx, "kubernetes-bin", nil, migrate)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return "", err
	}
	migration, overlay := filepath.Join(p.dir, "next.sql"), filepath.Join(p.dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(p.root, "migrations", nextMigration): migration}})
	if err != nil {
		return "", err
	}
	err = errors.Join(
		os.WriteFile(migration, []byte("-- +goose Up\nCREATE TABLE next_release (id bigint PRIMARY KEY);\n"), 0o600),
		os.WriteFile(overlay, replace, 0o600))
	if err != nil {
		return "", err
	}
	next, err := stack.BuildInto(ctx, "kubernetes-bin-next", []string{"-overlay=" + overlay}, migrate)
	if err != nil {
		return "", err
	}
	links := map[string]string{"kwok": kwok, "migrate-" + nextTag: filepath.Join(next, "migrate")}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"} {
		links[name] = controlPlane
	}
	for name, target := range links {
		link := filepath.Join(bin, name)
		if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
		if err := os.Symlink(target, link); err != nil {
			return "", err
		}
	}
	return bin, nil
}

// addresses are free ones of the loopback interface.
func (p *plane) addresses(ctx context.Context, n int) ([]string, error) {
	all := make([]string, n)
	for i := range all {
		var err error
		if all[i], err = p.stack.FreeAddress(ctx); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func port(address string) string { return address[strings.LastIndex(address, ":")+1:] }

func (p *plane) startControlPlane(ctx context.Context) error {
	at, err := p.addresses(ctx, 5)
	if err != nil {
		return err
	}
	etcd, peers, apiserver, controllers, scheduler := "http://"+at[0], "http://"+at[1], at[2], at[3], at[4]
	token := rand.Text()
	tokens, key := filepath.Join(p.dir, "tokens.csv"), filepath.Join(p.dir, "service-accounts.key")
	p.kubeconfig = filepath.Join(p.dir, "kubeconfig")
	err = errors.Join(
		os.WriteFile(tokens, []byte(token+`,admin,admin,"system:masters"`+"\n"), 0o600),
		os.WriteFile(p.kubeconfig, fmt.Appendf(nil, kubeconfig, apiserver, token), 0o600),
		writeKey(key))
	if err != nil {
		return err
	}
	certs := func(of string) string { return "--cert-dir=" + filepath.Join(p.dir, "certs", of) }

	_, err = p.stack.Start(ctx, stack.Spec{Name: "etcd", Binary: "etcd", Ready: etcd + "/health", Args: []string{
		"--data-dir=" + filepath.Join(p.dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls=" + etcd, "--advertise-client-urls=" + etcd,
		"--listen-peer-urls=" + peers, "--initial-advertise-peer-urls=" + peers, "--initial-cluster=default=" + peers,
	}})
	if err != nil {
		return err
	}
	server, err := p.stack.Start(ctx, stack.Spec{Name: "kube-apiserver", Binary: "kube-apiserver", Args: []string{
		"--etcd-servers=" + etcd, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port=" + port(apiserver), certs("apiserver"),
		"--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.0.0.0/16", "--token-auth-file=" + tokens, "--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-signing-key-file=" + key, "--service-account-key-file=" + key,
	}})
	if err != nil {
		return err
	}
	p.client, err = kubernetes.NewForConfig(&rest.Config{
		Host: "https://" + apiserver, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1,
	})
	if err != nil {
		return err
	}
	err = await(ctx, func(ctx context.Context) (bool, string, error) {
		select {
		case <-server.Ended():
			return false, "", fmt.Errorf("it has ended; its log ends with:\n%s", server.LogTail())
		default:
		}
		_, err := p.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err == nil, fmt.Sprint(err), nil
	})
	if err != nil {
		return fmt.Errorf("wait for the API server: %w", err)
	}
	as := []string{
		"--kubeconfig=" + p.kubeconfig, "--authentication-kubeconfig=" + p.kubeconfig, "--authorization-kubeconfig=" + p.kubeconfig,
		"--bind-address=127.0.0.1", "--leader-elect=false",
	}
	_, err = p.stack.Start(ctx, stack.Spec{Name: "kube-controller-manager", Binary: "kube-controller-manager", Args: append([]string{
		"--secure-port=" + port(controllers), certs("controllers"), "--service-account-private-key-file=" + key,
		"--horizontal-pod-autoscaler-sync-period=1s", // 15 s by default
	}, as...)})
	if err != nil {
		return err
	}
	_, err = p.stack.Start(ctx, stack.Spec{Name: "kube-scheduler", Binary: "kube-scheduler", Args: append([]string{
		"--secure-port=" + port(scheduler), certs("scheduler"),
	}, as...)})
	return err
}

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://%s", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: %s}}]
contexts: [{name: test, context: {cluster: test, user: admin}}]
current-context: test
`

// startNodes makes two nodes in each zone.
func (p *plane) startNodes(ctx context.Context) error {
	module, err := moduleDir(ctx, filepath.Join(p.root, "deploy", "tools", "kwok"), "sigs.k8s.io/kwok")
	if err != nil {
		return err
	}
	stages, err := filepath.Abs(filepath.Join("testdata", "stages.yaml"))
	if err != nil {
		return err
	}
	at, err := p.addresses(ctx, 1)
	if err != nil {
		return err
	}
	nodes := filepath.Join(module, "kustomize", "stage", "node")
	_, err = p.stack.Start(ctx, stack.Spec{Name: "kwok", Binary: "kwok", Ready: "http://" + at[0] + "/healthz", Args: []string{
		"--kubeconfig=" + p.kubeconfig, "--manage-all-nodes=true", "--cidr=10.64.0.0/12", "--node-ip=10.96.0.1",
		"--server-address=" + at[0], "--node-lease-duration-seconds=40",
		"--config=" + filepath.Join(nodes, "fast", "node-initialize.yaml"),
		"--config=" + filepath.Join(nodes, "heartbeat-with-lease", "node-heartbeat-with-lease.yaml"),
		"--config=" + stages,
	}})
	if err != nil {
		return err
	}
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi"), corev1.ResourcePods: resource.MustParse("250"),
	}
	for _, zone := range zones {
		for i := range 2 {
			name := fmt.Sprintf("%s-%d", zone, i+1)
			node := &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: zone}},
				Status:     corev1.NodeStatus{Capacity: capacity, Allocatable: capacity},
			}
			if _, err := p.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
				return err
			}
		}
	}
	if _, err := p.kubectl(ctx, "wait", "--for=condition=Ready", "node", "--all", "--timeout="+patience.String()); err != nil {
		return fmt.Errorf("wait for the nodes: %w", err)
	}
	return nil
}

// database makes an empty one.
func (p *plane) database(ctx context.Context, name string) (string, error) {
	conn, err := pgx.Connect(ctx, p.postgres)
	if err != nil {
		return "", err
	}
	_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()+" TEMPLATE template0")
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		return "", err
	}
	address, err := url.Parse(p.postgres)
	if err != nil {
		return "", err
	}
	address.Path = "/" + name
	return address.String(), nil
}

// await asks until it is told that it is so, or that it cannot become so. What is said last is part of the error.
func await(ctx context.Context, ask func(context.Context) (done bool, state string, err error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not so within %v", patience))
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		done, state, err := ask(ctx)
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", context.Cause(ctx), state)
		case <-tick.C:
		}
	}
}
