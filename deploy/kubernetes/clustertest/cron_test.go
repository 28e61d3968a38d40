package clustertest_test

import (
	"fmt"
	"slices"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The sweeper is started by the clock, as it is declared but for the minute: never twice at once, to its deadline, and two of
// its Jobs are kept. fsck, of which the next night is too far away, is started by hand.
func TestCronJobs(t *testing.T) {
	t.Parallel()
	// Not before the test looks.
	i := copyOf(t, dev, "evalonce-cron", "patches:\n  - target: {kind: CronJob, name: sweeper}\n    patch: |\n      - {op: add, path: /spec/suspend, value: true}\n")
	i.prepare(nil)
	i.apply()
	i.migrated()
	for name, want := range map[string]batchv1.CronJobSpec{
		"sweeper": {Schedule: "*/2 * * * *", StartingDeadlineSeconds: new(int64(60)), FailedJobsHistoryLimit: new(int32(3)), SuccessfulJobsHistoryLimit: new(int32(2))},
		"fsck":    {Schedule: "17 3 * * *", StartingDeadlineSeconds: new(int64(3600)), FailedJobsHistoryLimit: new(int32(3)), SuccessfulJobsHistoryLimit: new(int32(2))},
	} {
		got := i.cronJob(name).Spec
		if got.Schedule != want.Schedule || *got.StartingDeadlineSeconds != *want.StartingDeadlineSeconds || *got.TimeZone != "Etc/UTC" ||
			got.ConcurrencyPolicy != batchv1.ForbidConcurrent ||
			*got.FailedJobsHistoryLimit != *want.FailedJobsHistoryLimit || *got.SuccessfulJobsHistoryLimit != *want.SuccessfulJobsHistoryLimit {
			t.Errorf("%s: %+v", name, got)
		}
	}
	t.Run("fsck", func(t *testing.T) {
		i := *i
		i.t = t
		gate := cluster.agent.hold(i.namespace, "sweeper")
		i.kubectl("create", "job", "--from=cronjob/fsck", "broken")
		i.hasPod("broken")
		gate.fail()
		i.failed("broken", batchv1.JobReasonBackoffLimitExceeded) // what is broken stays so
		if job := i.job("broken"); job.Status.Failed != 1 {
			t.Errorf("it was tried %d times", job.Status.Failed)
		}

		gate = cluster.agent.hold(i.namespace, "sweeper")
		i.kubectl("create", "job", "--from=cronjob/fsck", "endless")
		i.hasPod("endless")
		if got := *i.job("endless").Spec.ActiveDeadlineSeconds; got != 3600 {
			t.Errorf("it may run for %d s", got)
		}
		i.kubectl("patch", "job", "endless", "--patch", `{"spec":{"activeDeadlineSeconds":1}}`)
		i.failed("endless", batchv1.JobReasonDeadlineExceeded)
		gate.open()

		for n := range 4 {
			name := fmt.Sprintf("whole-%d", n)
			i.kubectl("create", "job", "--from=cronjob/fsck", name)
		}
		eventually(t, "two of four Jobs are kept", func() (bool, string) {
			jobs := slices.DeleteFunc(i.jobs("fsck"), func(j batchv1.Job) bool { return j.Status.Succeeded == 0 })
			all := i.jobs("fsck")
			return len(jobs) == 2 && len(all) == 4, fmt.Sprintf("%d, of them %d complete", len(all), len(jobs))
		})
	})
	t.Run("sweeper", func(t *testing.T) {
		i := *i
		i.t = t
		gate := cluster.agent.hold(i.namespace, "sweeper")
		patch := []byte(`{"spec":{"schedule":"* * * * *","suspend":false}}`)
		if _, err := cluster.client.BatchV1().CronJobs(i.namespace).Patch(t.Context(), "sweeper", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the clock has started a Job", func() (bool, string) {
			return len(i.jobs("sweeper")) == 1, fmt.Sprintf("%+v", i.cronJob("sweeper").Status)
		})
		first := i.jobs("sweeper")[0].Name
		i.hasPod(first)
		eventually(t, "the next minute starts no other", func() (bool, string) {
			if jobs := i.jobs("sweeper"); len(jobs) != 1 {
				t.Fatalf("%d Jobs at once", len(jobs))
			}
			return len(i.events("JobAlreadyActive")) > 0, fmt.Sprintf("%+v", i.cronJob("sweeper").Status)
		})
		gate.open()
		eventually(t, "it has succeeded", func() (bool, string) {
			status := i.cronJob("sweeper").Status
			return status.LastSuccessfulTime != nil, fmt.Sprintf("%+v", status)
		})
		eventually(t, "another follows", func() (bool, string) {
			jobs := i.jobs("sweeper")
			return slices.ContainsFunc(jobs, func(j batchv1.Job) bool { return j.Name != first && j.Status.Succeeded == 1 }), fmt.Sprintf("%d jobs", len(jobs))
		})
	})
}

func (i *installation) cronJob(name string) *batchv1.CronJob {
	i.t.Helper()
	c, err := cluster.client.BatchV1().CronJobs(i.namespace).Get(i.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		i.t.Fatal(err)
	}
	return c
}

func (i *installation) job(name string) *batchv1.Job {
	i.t.Helper()
	j, err := cluster.client.BatchV1().Jobs(i.namespace).Get(i.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		i.t.Fatal(err)
	}
	return j
}

// jobs are those of a CronJob.
func (i *installation) jobs(cron string) []batchv1.Job {
	i.t.Helper()
	list, err := cluster.client.BatchV1().Jobs(i.namespace).List(i.t.Context(), metav1.ListOptions{})
	if err != nil {
		i.t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(j batchv1.Job) bool {
		owner := metav1.GetControllerOf(&j)
		return owner == nil || owner.Name != cron
	})
}

func (i *installation) hasPod(job string) {
	i.t.Helper()
	eventually(i.t, "job "+job+" has a pod that runs", func() (bool, string) {
		list, err := cluster.client.CoreV1().Pods(i.namespace).List(i.t.Context(), metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + job})
		if err != nil {
			return false, err.Error()
		}
		return len(list.Items) == 1 && list.Items[0].Status.Phase == corev1.PodRunning, fmt.Sprintf("%d pods", len(list.Items))
	})
}

func (i *installation) failed(job, reason string) {
	i.t.Helper()
	eventually(i.t, "job "+job+" fails", func() (bool, string) {
		conditions := i.job(job).Status.Conditions
		return slices.ContainsFunc(conditions, func(c batchv1.JobCondition) bool {
			return c.Type == batchv1.JobFailed && c.Status == corev1.ConditionTrue && c.Reason == reason
		}), fmt.Sprintf("%+v", conditions)
	})
}
