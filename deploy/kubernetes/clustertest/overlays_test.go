package clustertest_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Everything that can be applied: without a warning, twice without a change, and the controllers make of it what it declares.
func TestOverlays(t *testing.T) {
	t.Parallel()
	t.Run("dev", func(t *testing.T) {
		t.Parallel()
		i := overlay(t, dev)
		i.how = []string{"--server-side"}
		i.prepare(nil)
		i.apply()
		i.stands(map[string]int32{"ticket-api": 1, "evaluator-worker": 1, "admin": 1, "providersim": 1})
	})
	t.Run("production", func(t *testing.T) {
		t.Parallel()
		i := overlay(t, production)
		i.prepare(logins{"ticket-api": "ticket_api_1", "evaluator-worker": "worker_1", "admin": "admin_1", "sweeper": "sweeper_1"})
		i.apply()
		i.migrated()
		// Their logins are made when the migration has made their roles. Until then they wait as for the schema.
		i.execute(guide(t, "## Install", "sql"))
		// KEDA's operator, which is not here, is who raises the workers to its minimum.
		i.stands(map[string]int32{"ticket-api": 3, "evaluator-worker": 1, "admin": 2})
		i.isMonitored()
	})
	t.Run("production with hpa", func(t *testing.T) {
		t.Parallel()
		i := copyOf(t, productionHPA, "evalonce-hpa", "")
		i.how = []string{"--server-side"}
		i.prepare(nil)
		cluster.metrics.say(i.namespace, 0)
		i.apply()
		i.stands(map[string]int32{"ticket-api": 2, "evaluator-worker": 2, "admin": 1})
		i.isMonitored()
	})
}

// guide is a block of code from a section of deploy/OPERATIONS.md, dedented.
func guide(t *testing.T, section, language string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(cluster.root, "deploy", "OPERATIONS.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n"+section+"\n")
	rest, _, _ = strings.Cut(rest, "\n## ")
	block := regexp.MustCompile("(?s)\n *```" + language + "\n(.*?)\n *```").FindStringSubmatch(rest)
	if block == nil {
		t.Fatalf("%s of the guide has no block of %s", section, language)
	}
	return block[1]
}

func (i *installation) execute(statements string) {
	i.t.Helper()
	conn, err := pgx.Connect(i.t.Context(), i.database)
	if err != nil {
		i.t.Fatal(err)
	}
	defer func() { _ = conn.Close(i.t.Context()) }()
	if _, err := conn.Exec(i.t.Context(), statements); err != nil {
		i.t.Fatal(err)
	}
}

// stands checks everything that holds for each overlay.
func (i *installation) stands(want map[string]int32) {
	t := i.t
	t.Helper()
	i.migrated()
	var names []string
	for _, d := range i.deployments() {
		names = append(names, d.Name)
	}
	if wanted := slices.Sorted(maps.Keys(want)); !slices.Equal(slices.Sorted(slices.Values(names)), wanted) {
		t.Errorf("deployments %v, not %v", names, wanted)
	}
	for name, replicas := range want {
		i.available(name, replicas)
		i.isSpread(name)
		i.isServed(name, replicas)
	}
	before := i.generations()
	i.apply()
	if after := i.generations(); after != before {
		t.Errorf("applied once more, it is another one:\n%s\nwas\n%s", after, before)
	}
	i.mayBeDisrupted(want)
	i.hasNoTokens()
	i.isRestricted()
	events, err := cluster.client.CoreV1().Events(i.namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=FailedCreate"})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events.Items {
		t.Errorf("%s %s: %s", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Message)
	}
}

// generations changes when anything is changed that somebody declares.
func (i *installation) generations() string {
	i.t.Helper()
	return i.kubectl("get", "-k", i.dir, "-o", `jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.uid} {.metadata.generation}{"\n"}{end}`)
}

// isSpread: no zone, and no node, has more than one pod more than another.
func (i *installation) isSpread(app string) {
	i.t.Helper()
	zone := map[string]int{}
	node := map[string]int{}
	for _, z := range zones {
		zone[z] = 0
	}
	for _, p := range i.pods(app) {
		zone[p.Spec.NodeName[:len(zones[0])]]++
		node[p.Spec.NodeName]++
	}
	counts := slices.Collect(maps.Values(zone))
	if slices.Max(counts)-slices.Min(counts) > 1 {
		i.t.Errorf("%s: zones have %v", app, zone)
	}
	if most := slices.Max(slices.Collect(maps.Values(node))); most > (len(i.pods(app))+5)/6 {
		i.t.Errorf("%s: nodes have %v", app, node)
	}
}

// isServed: each Service finds all pods of its app, at every port that it names.
func (i *installation) isServed(app string, replicas int32) {
	i.t.Helper()
	service, err := cluster.client.CoreV1().Services(i.namespace).Get(i.t.Context(), app, metav1.GetOptions{})
	if err != nil {
		i.t.Fatal(err)
	}
	eventually(i.t, "service "+app+" has endpoints", func() (bool, string) {
		slices, err := cluster.client.DiscoveryV1().EndpointSlices(i.namespace).List(i.t.Context(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + app})
		if err != nil {
			return false, err.Error()
		}
		ready, ports := 0, 0
		for _, s := range slices.Items {
			ports = max(ports, len(s.Ports))
			for _, e := range s.Endpoints {
				if e.Conditions.Ready != nil && *e.Conditions.Ready {
					ready++
				}
			}
		}
		return ready == int(replicas) && ports == len(service.Spec.Ports), fmt.Sprintf("%d ready, %d ports", ready, ports)
	})
}

// mayBeDisrupted: one pod of each may be taken away.
func (i *installation) mayBeDisrupted(want map[string]int32) {
	i.t.Helper()
	for _, o := range i.of("PodDisruptionBudget") {
		eventually(i.t, "the disruption budget of "+o.name, func() (bool, string) {
			budget, err := cluster.client.PolicyV1().PodDisruptionBudgets(i.namespace).Get(i.t.Context(), o.name, metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			s := budget.Status
			return s.DisruptionsAllowed == 1 && s.ExpectedPods == want[o.name] && s.CurrentHealthy == want[o.name], fmt.Sprintf("%+v", s)
		})
	}
}

// hasNoTokens: no pod is given one, and with one it could do nothing.
func (i *installation) hasNoTokens() {
	i.t.Helper()
	accounts := map[string]bool{}
	for _, p := range i.pods("") {
		accounts[p.Spec.ServiceAccountName] = true
		for _, v := range p.Spec.Volumes {
			if v.Projected != nil || v.Secret == nil {
				i.t.Errorf("pod %s has the volume %s", p.Name, v.Name)
			}
		}
	}
	for account := range accounts {
		for _, resource := range []string{"secrets", "pods", "configmaps"} {
			review, err := cluster.client.AuthorizationV1().SubjectAccessReviews().Create(i.t.Context(), &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User:               "system:serviceaccount:" + i.namespace + ":" + account,
				Groups:             []string{"system:serviceaccounts", "system:serviceaccounts:" + i.namespace, "system:authenticated"},
				ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: i.namespace, Verb: "get", Resource: resource},
			}}, metav1.CreateOptions{})
			if err != nil {
				i.t.Fatal(err)
			}
			if review.Status.Allowed {
				i.t.Errorf("%s may get %s", account, resource)
			}
		}
	}
}

// isRestricted: the namespace takes the pods above, and not any other.
func (i *installation) isRestricted() {
	i.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "root-"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "root", Image: "root"}}}}
	if _, err := cluster.client.CoreV1().Pods(i.namespace).Create(i.t.Context(), pod, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), `violates PodSecurity "restricted`) {
		i.t.Errorf("a pod that is not restricted: %v", err)
	}
}

// isMonitored: each ServiceMonitor finds a Service, by its labels, that has the port it asks.
func (i *installation) isMonitored() {
	i.t.Helper()
	services, err := cluster.client.CoreV1().Services(i.namespace).List(i.t.Context(), metav1.ListOptions{})
	if err != nil {
		i.t.Fatal(err)
	}
	monitors := i.of("ServiceMonitor")
	if len(monitors) != 3 || len(i.of("PrometheusRule")) != 1 {
		i.t.Errorf("%d monitors", len(monitors))
	}
	for _, o := range monitors {
		monitor := decoded[struct {
			Spec struct {
				Selector  metav1.LabelSelector
				Endpoints []struct{ Port string }
			}
		}](i.t, o)
		selector, err := metav1.LabelSelectorAsSelector(&monitor.Spec.Selector)
		if err != nil {
			i.t.Fatal(err)
		}
		found := 0
		for _, s := range services.Items {
			if !selector.Matches(labels.Set(s.Labels)) {
				continue
			}
			for _, p := range s.Spec.Ports {
				if p.Name == monitor.Spec.Endpoints[0].Port {
					found++
				}
			}
		}
		if found != 1 {
			i.t.Errorf("%s finds %d Services", o.name, found)
		}
	}
}
