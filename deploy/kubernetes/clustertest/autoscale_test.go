package clustertest_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const worker = "evaluator-worker"

// The workers become more while the queue is old, by no more than twice a minute and never beyond the bound; they become
// fewer one by one, slowly, when it is not; and applying again undoes nothing of it.
func TestTheAutoscalerFollowsTheAgeOfTheQueue(t *testing.T) {
	t.Parallel()
	i := copyOf(t, productionHPA, "evalonce-autoscale", "")
	i.prepare(nil)
	cluster.metrics.say(i.namespace, 0)
	i.apply()
	i.migrated()
	i.available(worker, 2) // no fewer, though nothing waits

	scaler := i.scaler()
	declared := scaler.Spec.Behavior
	if up := declared.ScaleUp; *up.StabilizationWindowSeconds != 0 || !reflect.DeepEqual(up.Policies, []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 60}}) {
		t.Errorf("upwards %+v", up)
	}
	if down := declared.ScaleDown; *down.StabilizationWindowSeconds != 600 || !reflect.DeepEqual(down.Policies, []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PodsScalingPolicy, Value: 1, PeriodSeconds: 120}}) {
		t.Errorf("downwards %+v", down)
	}

	// At the target nothing changes.
	cluster.metrics.say(i.namespace, 30)
	eventually(t, "the autoscaler has seen 30 s", func() (bool, string) {
		s := i.scaler().Status
		return len(s.CurrentMetrics) == 1 && s.CurrentMetrics[0].External != nil && s.CurrentMetrics[0].External.Current.Value.Value() == 30, fmt.Sprintf("%+v", s)
	})
	i.available(worker, 2)

	// As declared: twice as many at once, and again twice as many a minute later.
	cluster.metrics.say(i.namespace, 900)
	i.available(worker, 4)
	i.apply()
	if n := *i.deployment(worker).Spec.Replicas; n < 4 {
		t.Errorf("applied once more, there are %d workers", n)
	}
	i.available(worker, 8)
	scaled := i.events("SuccessfulRescale")
	if len(scaled) < 2 || scaled[1].Sub(scaled[0]) < 55*time.Second {
		t.Errorf("scaled up at %v", scaled)
	}
	i.isSpread(worker)
	eventually(t, "the autoscaler is at its bound", func() (bool, string) {
		for _, c := range i.scaler().Status.Conditions {
			if c.Type == autoscalingv2.ScalingLimited && c.Status == "True" && c.Reason == "TooManyReplicas" {
				return true, ""
			}
		}
		return false, fmt.Sprintf("%+v", i.scaler().Status.Conditions)
	})

	// Downwards the declared window is ten minutes: so nobody goes now, and with a shorter one they go one by one.
	cluster.metrics.say(i.namespace, 0)
	eventually(t, "the autoscaler holds on", func() (bool, string) {
		s := i.scaler().Status
		for _, c := range s.Conditions {
			if c.Type == autoscalingv2.AbleToScale && c.Reason == "ScaleDownStabilized" {
				return s.DesiredReplicas == 8, fmt.Sprintf("%+v", s)
			}
		}
		return false, fmt.Sprintf("%+v", s.Conditions)
	})
	patch := []byte(`{"spec":{"behavior":{"scaleDown":{"stabilizationWindowSeconds":0,"policies":[{"type":"Pods","value":1,"periodSeconds":1}]}}}}`)
	if _, err := cluster.client.AutoscalingV2().HorizontalPodAutoscalers(i.namespace).Patch(t.Context(), worker, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	last := int32(8)
	eventually(t, "two workers are left", func() (bool, string) {
		n := *i.deployment(worker).Spec.Replicas
		if n > last {
			t.Errorf("%d workers after %d, and nothing waits", n, last)
		}
		last = n
		return n == 2, fmt.Sprintf("%d workers", n)
	})
	i.available(worker, 2)
	if n := len(i.events("SuccessfulRescale")) - len(scaled); n != 6 {
		t.Errorf("from 8 workers to 2 in %d steps", n)
	}
}

func (i *installation) scaler() *autoscalingv2.HorizontalPodAutoscaler {
	i.t.Helper()
	s, err := cluster.client.AutoscalingV2().HorizontalPodAutoscalers(i.namespace).Get(i.t.Context(), worker, metav1.GetOptions{})
	if err != nil {
		i.t.Fatal(err)
	}
	return s
}

// events are the times of what was reported for a reason, in order.
func (i *installation) events(reason string) []time.Time {
	i.t.Helper()
	list, err := cluster.client.CoreV1().Events(i.namespace).List(i.t.Context(), metav1.ListOptions{FieldSelector: "reason=" + reason})
	if err != nil {
		i.t.Fatal(err)
	}
	var times []time.Time
	for _, e := range list.Items {
		times = append(times, e.FirstTimestamp.Time)
	}
	slices.SortFunc(times, time.Time.Compare)
	return times
}

// The operator of KEDA is not run here: what it would make of the ScaledObject is compared with the autoscaler that is.
func TestBothAutoscalersDeclareTheSame(t *testing.T) {
	t.Parallel()
	hpa := decoded[autoscalingv2.HorizontalPodAutoscaler](t, overlay(t, productionHPA).of("HorizontalPodAutoscaler")[0]).Spec
	keda := decoded[struct {
		Spec struct {
			ScaleTargetRef                   struct{ Name string }
			MinReplicaCount, MaxReplicaCount int32
			Advanced                         struct {
				HorizontalPodAutoscalerConfig struct {
					Behavior *autoscalingv2.HorizontalPodAutoscalerBehavior
				}
			}
			Triggers []struct {
				MetricType autoscalingv2.MetricTargetType
				Metadata   map[string]string
			}
		}
	}](t, overlay(t, production).of("ScaledObject")[0]).Spec
	if keda.ScaleTargetRef.Name != hpa.ScaleTargetRef.Name || keda.MinReplicaCount != *hpa.MinReplicas || keda.MaxReplicaCount != hpa.MaxReplicas {
		t.Errorf("KEDA %+v, HPA %+v", keda, hpa)
	}
	if !reflect.DeepEqual(keda.Advanced.HorizontalPodAutoscalerConfig.Behavior, hpa.Behavior) {
		t.Errorf("KEDA %+v, HPA %+v", keda.Advanced.HorizontalPodAutoscalerConfig.Behavior, hpa.Behavior)
	}
	if len(keda.Triggers) != 1 || len(hpa.Metrics) != 1 {
		t.Fatalf("KEDA %+v, HPA %+v", keda.Triggers, hpa.Metrics)
	}
	trigger, target := keda.Triggers[0], hpa.Metrics[0].External.Target
	if trigger.MetricType != target.Type || trigger.Metadata["threshold"] != target.Value.String() {
		t.Errorf("KEDA %+v, HPA %+v", trigger, target)
	}
}
