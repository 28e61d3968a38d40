package clustertest_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// What can be applied, seen from deploy/kubernetes.
const (
	dev           = "overlays/dev"
	production    = "overlays/production"
	productionHPA = "validate/testdata/production-hpa"
)

// installation is an overlay in its namespace.
type installation struct {
	t         *testing.T
	dir       string   // of its kustomization
	how       []string // to apply it
	namespace string
	database  string
	objects   []object
}

type object struct {
	kind, name string
	text       string
}

// decoded is an object of the kind that T is.
func decoded[T any](t *testing.T, o object) T {
	t.Helper()
	var typed T
	if err := yaml.Unmarshal([]byte(o.text), &typed); err != nil {
		t.Fatalf("%s %s: %v", o.kind, o.name, err)
	}
	return typed
}

// overlay is a kustomization of this repository's, as it is.
func overlay(t *testing.T, dir string) *installation {
	t.Helper()
	return rendered(t, filepath.Join(cluster.root, "deploy", "kubernetes", filepath.FromSlash(dir)))
}

// copyOf is one in another namespace, so that tests do not meet, and with more of a kustomization after that.
func copyOf(t *testing.T, dir, namespace, more string) *installation {
	t.Helper()
	to, err := os.MkdirTemp(cluster.dir, namespace+"-")
	if err != nil {
		t.Fatal(err)
	}
	base, err := filepath.Rel(to, filepath.Join(cluster.root, "deploy", "kubernetes", filepath.FromSlash(dir)))
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: %s\nresources: [%s]\n%s", namespace, base, more)
	if err := os.WriteFile(filepath.Join(to, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return rendered(t, to)
}

// nextRelease gives the images the tag of the release that has one more migration.
func nextRelease() string {
	var images strings.Builder
	images.WriteString("images:\n")
	for _, name := range []string{"ticket-api", "evaluator-worker", "admin", "sweeper", "migrate"} {
		fmt.Fprintf(&images, "  - {name: registry.example.com/evalonce/%s, newTag: %s}\n", name, nextTag)
	}
	return images.String()
}

func rendered(t *testing.T, dir string) *installation {
	t.Helper()
	text, err := cluster.kubectl(t.Context(), "kustomize", dir)
	if err != nil {
		t.Fatal(err)
	}
	i := &installation{t: t, dir: dir}
	for _, text := range strings.Split(text, "\n---\n") {
		var head struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
		}
		if err := yaml.Unmarshal([]byte(text), &head); err != nil {
			t.Fatal(err)
		}
		i.objects = append(i.objects, object{head.Kind, head.Metadata.Name, text})
		if head.Kind != "Namespace" {
			i.namespace = head.Metadata.Namespace
		}
	}
	return i
}

func (i *installation) of(kind string) []object {
	return slices.DeleteFunc(slices.Clone(i.objects), func(o object) bool { return o.kind != kind })
}

func (i *installation) deployments() []*appsv1.Deployment {
	var all []*appsv1.Deployment
	for _, o := range i.of("Deployment") {
		d := decoded[appsv1.Deployment](i.t, o)
		all = append(all, &d)
	}
	return all
}

// logins say whom each service is to Postgres. The owner may be everybody.
type logins map[string]string

func (l logins) of(service string) string {
	if login, ok := l[service]; ok {
		return login
	}
	return "postgres"
}

// prepare does what deploy/OPERATIONS.md has an operator do before the first apply: the namespace, the secrets, a database.
// All of it ends with the test.
func (i *installation) prepare(who logins) {
	i.t.Helper()
	ctx := i.t.Context()
	var err error
	if i.database, err = cluster.database(ctx, i.namespace); err != nil {
		i.t.Fatal(err)
	}
	cluster.agent.resolve(i.namespace, i.database)
	i.t.Cleanup(func() {
		if !i.t.Failed() { // what has failed is looked at in the logs of who still works on it
			_ = cluster.client.CoreV1().Namespaces().Delete(context.WithoutCancel(ctx), i.namespace, metav1.DeleteOptions{})
		}
	})
	i.makeNamespace()
	if len(i.of("Secret")) > 0 {
		return // dev brings its own
	}
	url := func(service string) string {
		return strings.Replace(i.database, "postgres://postgres@", "postgres://"+who.of(service)+"@", 1)
	}
	pair := map[string]string{"tls.crt": "certificate", "tls.key": "key"}
	for name, content := range map[string]map[string]string{
		"evalonce-migrate":          {"database-url": url("migrate")},
		"evalonce-ticket-api":       {"database-url": url("ticket-api")},
		"evalonce-evaluator-worker": {"database-url": url("evaluator-worker")},
		"evalonce-admin":            {"database-url": url("admin"), "tokens": "operator=hash"},
		"evalonce-sweeper":          {"database-url": url("sweeper")},
		"evalonce-provider":         {"openai-api-key": "key"},
		"evalonce-ticket-api-tls":   pair,
		"evalonce-admin-tls":        pair,
	} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: content}
		if _, err := cluster.client.CoreV1().Secrets(i.namespace).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
			i.t.Fatal(err)
		}
	}
}

// makeNamespace makes what the overlay says, or, when it leaves that to others, one that is as strict.
func (i *installation) makeNamespace() {
	i.t.Helper()
	namespace := corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{
		"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted",
	}}}
	namespace.APIVersion, namespace.Kind = "v1", "Namespace"
	if made := i.of("Namespace"); len(made) == 1 {
		namespace = decoded[corev1.Namespace](i.t, made[0])
	}
	namespace.Name = i.namespace
	text, err := yaml.Marshal(namespace)
	if err != nil {
		i.t.Fatal(err)
	}
	path := filepath.Join(cluster.dir, i.namespace+"-namespace.yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		i.t.Fatal(err)
	}
	i.kubectl(append([]string{"apply", "-f", path}, i.how...)...)
}

// apply fails for a warning, and for a field that the server does not know.
func (i *installation) apply() string {
	i.t.Helper()
	return i.kubectl(append([]string{"apply", "--validate=strict", "-k", i.dir}, i.how...)...)
}

func (i *installation) kubectl(args ...string) string {
	i.t.Helper()
	out, err := cluster.kubectl(i.t.Context(), append([]string{"--namespace=" + i.namespace}, args...)...)
	if err != nil {
		i.t.Fatal(err)
	}
	return out
}

func (i *installation) deployment(name string) *appsv1.Deployment {
	i.t.Helper()
	d, err := cluster.client.AppsV1().Deployments(i.namespace).Get(i.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		i.t.Fatal(err)
	}
	return d
}

// pods are those of an app that are not deleted; of all, for "".
func (i *installation) pods(app string) []corev1.Pod {
	i.t.Helper()
	options := metav1.ListOptions{}
	if app != "" {
		options.LabelSelector = appLabel + "=" + app
	}
	list, err := cluster.client.CoreV1().Pods(i.namespace).List(i.t.Context(), options)
	if err != nil {
		i.t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

// eventually waits until it is so.
func eventually(t *testing.T, what string, ask func() (done bool, state string)) {
	t.Helper()
	if err := await(t.Context(), func(context.Context) (bool, string, error) {
		done, state := ask()
		return done, state, nil
	}); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// migrated waits until the migration has been done by its Job.
func (i *installation) migrated() {
	i.t.Helper()
	eventually(i.t, "the migration is complete", func() (bool, string) {
		job, err := cluster.client.BatchV1().Jobs(i.namespace).Get(i.t.Context(), "migrate", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return job.Status.Succeeded == 1 && job.Status.CompletionTime != nil, fmt.Sprintf("%+v", job.Status)
	})
}

// available waits until a Deployment has the number of pods that it shall have, all of its newest template, and no others.
func (i *installation) available(name string, replicas int32) {
	i.t.Helper()
	eventually(i.t, name+" is available", func() (bool, string) {
		d := i.deployment(name)
		s := d.Status
		done := s.ObservedGeneration == d.Generation && s.Replicas == replicas && s.UpdatedReplicas == replicas && s.AvailableReplicas == replicas &&
			len(i.pods(name)) == int(replicas)
		return done, fmt.Sprintf("%d wanted, %+v", replicas, s)
	})
}

// replicas are what an overlay declares, or 1 where it leaves it to an autoscaler, as the server then does.
func replicas(d *appsv1.Deployment) int32 {
	if d.Spec.Replicas == nil {
		return 1
	}
	return *d.Spec.Replicas
}

// install brings up the whole of it.
func (i *installation) install() {
	i.t.Helper()
	i.prepare(nil)
	i.apply()
	i.migrated()
	for _, d := range i.deployments() {
		i.available(d.Name, replicas(d))
	}
}
