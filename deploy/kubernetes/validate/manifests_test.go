package validate_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// variants are all that can be applied: the overlays, and production with the other autoscaler.
func variants(t *testing.T) map[string]string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join("..", "overlays", "*"))
	if err != nil || len(dirs) < 2 {
		t.Fatalf("overlays %v (%v)", dirs, err)
	}
	all := map[string]string{}
	for _, dir := range dirs {
		all[filepath.Base(dir)] = dir
	}
	all["production with hpa"] = filepath.Join("testdata", "production-hpa")
	return all
}

// object is what is rendered, and what is known of its kind; nil for a kind of somebody else's.
type object struct {
	id      string
	content map[string]any
	typed   runtime.Object
}

// Rendering and decoding fail for a field that there is not.
func render(t *testing.T, dir string) []object {
	t.Helper()
	resources, err := kustomize(dir)
	if err != nil {
		t.Fatal(err)
	}
	decoder := strictDecoder(t)
	var objects []object
	for _, text := range resources {
		var o object
		if err := yaml.UnmarshalStrict(text, &o.content); err != nil {
			t.Fatal(err)
		}
		group, _ := o.content["apiVersion"].(string)
		o.id = fmt.Sprintf("%v %v", o.content["kind"], o.content["metadata"].(map[string]any)["name"])
		if schema, foreign := foreignSchemas(t)[fmt.Sprintf("%s %v", group, o.content["kind"])]; foreign {
			if err := schema.Validate(o.content); err != nil {
				t.Errorf("%s: %v", o.id, err)
			}
		} else if o.typed, _, err = decoder.Decode(text, nil, nil); err != nil {
			t.Errorf("%s: %v", o.id, err)
			continue
		}
		objects = append(objects, o)
	}
	return objects
}

// It keeps what it has parsed in places that several at once must not use.
var oneKustomization sync.Mutex

func kustomize(dir string) ([][]byte, error) {
	oneKustomization.Lock()
	defer oneKustomization.Unlock()
	rendered, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, fmt.Errorf("kustomize %s: %w", dir, err)
	}
	var all [][]byte
	for _, resource := range rendered.Resources() {
		text, err := resource.AsYAML()
		if err != nil {
			return nil, err
		}
		all = append(all, text)
	}
	return all, nil
}

func strictDecoder(t *testing.T) runtime.Decoder {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme, networkingv1.AddToScheme, policyv1.AddToScheme, autoscalingv2.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}

// workload is what starts pods.
type workload struct {
	id  string
	pod corev1.PodSpec
	tpl corev1.PodTemplateSpec
}

func workloads(objects []object) []workload {
	var all []workload
	add := func(id string, tpl corev1.PodTemplateSpec) { all = append(all, workload{id, tpl.Spec, tpl}) }
	for _, o := range objects {
		switch w := o.typed.(type) {
		case *appsv1.Deployment:
			add(o.id, w.Spec.Template)
		case *batchv1.Job:
			add(o.id, w.Spec.Template)
		case *batchv1.CronJob:
			add(o.id, w.Spec.JobTemplate.Spec.Template)
		}
	}
	return all
}

func containers(pod corev1.PodSpec) []corev1.Container {
	return slices.Concat(pod.InitContainers, pod.Containers)
}

func TestEverythingRendersAndIsKnown(t *testing.T) {
	t.Parallel()
	for name, dir := range variants(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kinds := map[string]int{}
			for _, o := range render(t, dir) {
				kinds[fmt.Sprint(o.content["kind"])]++
			}
			if kinds["Deployment"] < 3 || kinds["CronJob"] != 2 || kinds["Job"] != 1 || kinds["NetworkPolicy"] < 5 {
				t.Errorf("rendered %v", kinds)
			}
		})
	}
}

// A decoder that lets everything pass would prove nothing.
func TestUnknownFieldsFail(t *testing.T) {
	t.Parallel()
	const deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\nspec: {replica: 1}\n"
	if _, _, err := strictDecoder(t).Decode([]byte(deployment), nil, nil); err == nil || !strings.Contains(err.Error(), "replica") {
		t.Errorf("a Deployment with an unknown field: %v", err)
	}
	scaled := map[string]any{
		"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": map[string]any{"name": "x"},
		"spec": map[string]any{
			"scaleTargetRef": map[string]any{"name": "x"}, "maxReplicas": 3,
			"triggers": []any{map[string]any{"type": "prometheus", "metadata": map[string]any{"query": "1"}}},
		},
	}
	err := foreignSchemas(t)["keda.sh/v1alpha1 ScaledObject"].Validate(scaled)
	if err == nil || !strings.Contains(err.Error(), "maxReplicas") {
		t.Errorf("a ScaledObject with an unknown field: %v", err)
	}
	delete(scaled["spec"].(map[string]any), "maxReplicas")
	if err := foreignSchemas(t)["keda.sh/v1alpha1 ScaledObject"].Validate(scaled); err != nil {
		t.Errorf("a valid ScaledObject: %v", err)
	}
}

// What the Prometheus operator loads is what is tested as deploy/prometheus/rules.yaml.
func TestRulesAreThoseOfPrometheus(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile(filepath.Join("..", "..", "prometheus", "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, groups, ok := strings.Cut(string(source), "\ngroups:\n")
	if !ok {
		t.Fatal("rules.yaml has no groups")
	}
	var want strings.Builder
	want.WriteString("# Made from deploy/prometheus/rules.yaml.\napiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: evalonce\nspec:\n  groups:\n")
	for line := range strings.Lines(groups) {
		if strings.TrimSpace(line) != "" {
			want.WriteString("  ")
		}
		want.WriteString(line)
	}
	path := filepath.Join("..", "components", "monitoring", "rules.yaml")
	if *update {
		if err := os.WriteFile(path, []byte(want.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want.String() {
		t.Error("components/monitoring/rules.yaml is not what deploy/prometheus/rules.yaml says: go test . -update")
	}
}
