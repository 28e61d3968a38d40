package clustertest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Nodes are emptied one after the other, and of no service is more than one pod away at any time. It is not parallel, since
// other tests' pods are on the same nodes.
func TestNodesAreDrained(t *testing.T) {
	i := copyOf(t, production, "evalonce-drain", "")
	i.install()

	// While one is away a second one is refused.
	const app = "ticket-api"
	pods, gate := i.pods(app), cluster.agent.hold(i.namespace, app)
	if err := i.evict(pods[0].Name); err != nil {
		t.Fatal(err)
	}
	eventually(t, "one of them is away", func() (bool, string) {
		s := i.deployment(app).Status
		return s.AvailableReplicas == 2 && s.Replicas == 3, fmt.Sprintf("%+v", s)
	})
	if err := i.evict(pods[1].Name); !apierrors.IsTooManyRequests(err) {
		t.Errorf("the second eviction: %v", err)
	}
	gate.open()
	i.available(app, 3)

	ctx, done := context.WithCancel(t.Context())
	fewest := make(chan int, 1)
	go func() { fewest <- i.fewest(ctx, app) }()
	for _, zone := range zones {
		for n := range 2 {
			node := fmt.Sprintf("%s-%d", zone, n+1)
			i.kubectl("drain", node, "--pod-selector=app.kubernetes.io/part-of=evalonce", "--delete-emptydir-data", "--timeout="+patience.String())
			for _, p := range i.pods("") {
				if p.Spec.NodeName == node && !ofJob(&p) {
					t.Errorf("%s is on %s still", p.Name, node)
				}
			}
			i.kubectl("uncordon", node)
		}
	}
	for _, d := range i.deployments() {
		i.available(d.Name, replicas(d))
	}
	done()
	if n := <-fewest; n < 2 {
		t.Errorf("at one time there were %d of 3 pods", n)
	}
}

func (i *installation) evict(pod string) error {
	return cluster.client.PolicyV1().Evictions(i.namespace).Evict(i.t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: i.namespace}})
}

// fewest is the least number of available pods that is seen until the context ends, or less when nothing is seen.
func (i *installation) fewest(ctx context.Context, app string) int {
	least := int32(-1)
	for tick := time.NewTicker(pollInterval / 5); ; {
		d, err := cluster.client.AppsV1().Deployments(i.namespace).Get(ctx, app, metav1.GetOptions{})
		if err == nil && (least < 0 || d.Status.AvailableReplicas < least) {
			least = d.Status.AvailableReplicas
		}
		select {
		case <-ctx.Done():
			tick.Stop()
			if errors.Is(err, context.Canceled) || err == nil {
				return int(least)
			}
			return -1
		case <-tick.C:
		}
	}
}
