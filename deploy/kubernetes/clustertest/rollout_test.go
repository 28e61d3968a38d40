package clustertest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	corev1 "k8s.io/api/core/v1"
)

// A release's pods wait for its migration, while those of the release before go on: at the first install, when the Job of the
// release before was forgotten, when all is done as the guide says, and on the way back.
func TestARollOutWaitsForTheMigration(t *testing.T) {
	t.Parallel()
	services := map[string]int32{"ticket-api": 3, "evaluator-worker": 1, "admin": 2}
	now := copyOf(t, production, "evalonce-rollout", "")
	now.prepare(nil)

	migration := cluster.agent.hold(now.namespace, "migrate")
	now.apply()
	for name, replicas := range services {
		now.waits(name, int(replicas), "waiting for 00001_")
		if d := now.deployment(name); d.Status.AvailableReplicas != 0 {
			t.Errorf("%s is available without a schema: %+v", name, d.Status)
		}
	}
	migration.open()
	now.migrated()
	for name, replicas := range services {
		now.available(name, replicas)
	}

	next := copyOf(t, production, now.namespace, nextRelease())
	next.database = now.database
	migration = cluster.agent.hold(next.namespace, "migrate")
	_, err := cluster.kubectl(t.Context(), "apply", "--validate=strict", "-k", next.dir)
	if err == nil || !strings.Contains(err.Error(), `The Job "migrate" is invalid`) || !strings.Contains(err.Error(), "field is immutable") {
		t.Errorf("the Job of the release before, applied with another template: %v", err)
	}
	next.waitsBeside(services)

	upgrade := guide(t, "## Upgrade", "sh")
	upgraded := make(chan error, 1)
	go func() {
		_, err := cluster.shell(t.Context(), strings.NewReplacer("OVERLAY", next.dir, "-n evalonce ", "-n "+next.namespace+" ").Replace(upgrade))
		upgraded <- err
	}()
	eventually(t, "the next release's Job has a pod", func() (bool, string) {
		pods := next.pods("migrate")
		return len(pods) == 1 && isNext(&pods[0]) && pods[0].Status.Phase == corev1.PodRunning, fmt.Sprintf("%d pods", len(pods))
	})
	next.waitsBeside(services)
	if next.has(nextMigration[:5]) {
		t.Error("the migration was applied by somebody else than its Job")
	}
	select {
	case err := <-upgraded:
		t.Fatalf("the upgrade has ended before the migration: %v", err)
	default:
	}
	migration.open()
	if err := <-upgraded; err != nil {
		t.Fatal(err)
	}
	next.migrated()
	if !next.has(nextMigration[:5]) {
		t.Error("the next release runs without its migration")
	}
	for name, replicas := range services {
		next.available(name, replicas)
		next.isSpread(name)
		for _, p := range next.pods(name) {
			if !isNext(&p) {
				t.Errorf("%s is of the release before", p.Name)
			}
		}
	}

	if _, err := cluster.shell(t.Context(), strings.NewReplacer("OVERLAY", now.dir, "-n evalonce ", "-n "+now.namespace+" ").Replace(upgrade)); err != nil {
		t.Fatalf("roll back: %v", err)
	}
	now.migrated()
	for name, replicas := range services {
		now.available(name, replicas)
		now.isSpread(name)
	}
}

func isNext(p *corev1.Pod) bool {
	return strings.HasSuffix(p.Spec.Containers[0].Image, ":"+nextTag)
}

// waits: so many pods of an app are in their init container, which has said what it waits for.
func (i *installation) waits(app string, pods int, what string) {
	i.t.Helper()
	eventually(i.t, fmt.Sprintf("%d pods of %s wait", pods, app), func() (bool, string) {
		waiting := slices.DeleteFunc(i.pods(app), func(p corev1.Pod) bool {
			init := p.Status.InitContainerStatuses
			return len(init) != 1 || init[0].State.Running == nil || !strings.Contains(cluster.agent.said(&p), what)
		})
		return len(waiting) == pods, fmt.Sprintf("%d do", len(waiting))
	})
}

// waitsBeside: one pod of each service waits for the migration of the next release, and all of the release before are there.
func (i *installation) waitsBeside(services map[string]int32) {
	i.t.Helper()
	for name, replicas := range services {
		i.waits(name, 1, "waiting for "+nextMigration)
		if d := i.deployment(name); d.Status.AvailableReplicas != replicas || d.Status.UpdatedReplicas != 1 {
			i.t.Errorf("%s: %+v", name, d.Status)
		}
		for _, p := range i.pods(name) {
			ready := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			})
			if ready == isNext(&p) {
				i.t.Errorf("%s of image %s: ready %v", p.Name, p.Spec.Containers[0].Image, ready)
			}
		}
	}
}

// has: the database has taken a migration.
func (i *installation) has(version string) bool {
	i.t.Helper()
	conn, err := pgx.Connect(i.t.Context(), i.database)
	if err != nil {
		i.t.Fatal(err)
	}
	defer func() { _ = conn.Close(i.t.Context()) }()
	var has bool
	if err := conn.QueryRow(i.t.Context(), "SELECT EXISTS (SELECT FROM goose_db_version WHERE version_id = $1::text::bigint AND is_applied)", version).Scan(&has); err != nil {
		i.t.Fatal(err)
	}
	return has
}
