package validate_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	v1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// commands are the binaries that images are made of, by the images' names. Their --help is what they can be told.
var commands = map[string]string{
	"ticket-api": "./services/ticket-api", "evaluator-worker": "./services/evaluator-worker", "admin": "./services/admin",
	"sweeper": "./services/sweeper", "migrate": "./migrations/cmd/migrate", "providersim": "./deploy/local/cmd/providersim",
}

// secretKeys are the secrets that somebody has to make, with the keys that they may have; as deploy/OPERATIONS.md says.
var secretKeys = map[string][]string{
	"evalonce-migrate":          {"database-url"},
	"evalonce-ticket-api":       {"database-url", "tokens"},
	"evalonce-evaluator-worker": {"database-url", "direct-database-url"},
	"evalonce-admin":            {"database-url", "tokens"},
	"evalonce-sweeper":          {"database-url"},
	"evalonce-provider":         {"openai-api-key", "anthropic-api-key"},
	"evalonce-webhooks":         {"keys"},
	"evalonce-ticket-api-tls":   {"tls.crt", "tls.key"},
	"evalonce-admin-tls":        {"tls.crt", "tls.key"},
}

func root() string { return filepath.Join("..", "..", "..") }

// helps are what the binaries say under --help, built once.
var helps = sync.OnceValues(func() (_ map[string]string, err error) {
	bin, err := os.MkdirTemp("", "evalonce-validate-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(bin)) }()
	args := []string{"build", "-o", bin + string(filepath.Separator)}
	for _, dir := range commands {
		args = append(args, dir)
	}
	build := exec.Command("go", args...)
	build.Dir = root()
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the binaries: %w\n%s", err, out)
	}
	texts := map[string]string{}
	for name := range commands {
		help, err := exec.Command(filepath.Join(bin, name), "--help").Output()
		if err != nil {
			return nil, fmt.Errorf("%s --help: %w", name, err)
		}
		texts[name] = string(help)
	}
	return texts, nil
})

var (
	variable = regexp.MustCompile(`\bEVALONCE_[A-Z0-9_]+`)
	flagName = regexp.MustCompile(`^--([a-z-]+)`)
)

// everybodys are read by the libraries that all services share, and by Go.
var everybodys = regexp.MustCompile(`^(EVALONCE_LOG_LEVEL|OTEL_[A-Z_]+|GOMEMLIMIT)$`)

func imageName(image string) string {
	name := image[strings.LastIndex(image, "/")+1:]
	name, _, _ = strings.Cut(name, "@")
	name, _, _ = strings.Cut(name, ":")
	return name
}

func configMaps(objects []object) map[string]map[string]string {
	maps := map[string]map[string]string{}
	for _, o := range objects {
		if m, ok := o.typed.(*corev1.ConfigMap); ok {
			maps[m.Name] = m.Data
		}
	}
	return maps
}

// environment is what a container gets, with the defaults of its --help for the rest; secrets by their reference alone.
func environment(c corev1.Container, maps map[string]map[string]string) map[string]string {
	env := map[string]string{}
	for _, from := range c.EnvFrom {
		for name, value := range maps[from.ConfigMapRef.Name] {
			env[name] = value
		}
	}
	for _, e := range c.Env {
		env[e.Name] = e.Value
	}
	return env
}

func TestEveryNameInAContainerIsThere(t *testing.T) {
	t.Parallel()
	help, err := helps()
	if err != nil {
		t.Fatal(err)
	}
	for variantName, dir := range variants(t) {
		t.Run(variantName, func(t *testing.T) {
			t.Parallel()
			objects := render(t, dir)
			maps := configMaps(objects)
			for _, w := range workloads(objects) {
				for _, c := range containers(w.pod) {
					text, ok := help[imageName(c.Image)]
					if !ok {
						t.Errorf("%s: image %s has no binary", w.id, c.Image)
						continue
					}
					known := variable.FindAllString(text, -1)
					for _, from := range c.EnvFrom {
						if _, ok := maps[from.ConfigMapRef.Name]; !ok {
							t.Errorf("%s: there is no ConfigMap %s", w.id, from.ConfigMapRef.Name)
						}
					}
					for name := range environment(c, maps) {
						if !slices.Contains(known, name) && !everybodys.MatchString(name) {
							t.Errorf("%s: %s does not know %s", w.id, c.Name, name)
						}
					}
					for _, arg := range c.Args {
						if m := flagName.FindStringSubmatch(arg); m != nil && !strings.Contains(text, "--"+m[1]) {
							t.Errorf("%s: %s does not know %s", w.id, c.Name, arg)
						}
					}
				}
			}
		})
	}
}

// Secrets are named, never shown; a file that a variable names is mounted.
func TestSecretsAreThoseThatTheGuideSaysToMake(t *testing.T) {
	t.Parallel()
	hashed := regexp.MustCompile(`-[a-z0-9]{10}$`)
	for name, dir := range variants(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			objects := render(t, dir)
			check := func(id, secret string, keys ...string) {
				have, ok := secretKeys[secret]
				if !ok {
					have, ok = secretKeys[hashed.ReplaceAllString(secret, "")]
				}
				if !ok {
					t.Errorf("%s: nobody is told to make the secret %s", id, secret)
				}
				for _, key := range keys {
					if !slices.Contains(have, key) {
						t.Errorf("%s: the secret %s has no key %s", id, secret, key)
					}
				}
			}
			for _, w := range workloads(objects) {
				mounts := map[string]string{}
				for _, v := range w.pod.Volumes {
					if v.Secret != nil {
						check(w.id, v.Secret.SecretName)
						mounts[v.Name] = v.Secret.SecretName
					}
				}
				for _, c := range containers(w.pod) {
					files := map[string]bool{}
					for _, m := range c.VolumeMounts {
						if mounts[m.Name] == "" {
							t.Errorf("%s: there is no volume %s", w.id, m.Name)
						}
						secret := mounts[m.Name]
						keys, ok := secretKeys[secret]
						if !ok {
							keys = secretKeys[hashed.ReplaceAllString(secret, "")]
						}
						for _, key := range keys {
							files[m.MountPath+"/"+key] = true
						}
					}
					for _, e := range c.Env {
						if strings.HasSuffix(e.Name, "_FILE") && !files[e.Value] {
							t.Errorf("%s: %s=%s is mounted from no secret", w.id, e.Name, e.Value)
						}
						if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
							check(w.id, e.ValueFrom.SecretKeyRef.Name, e.ValueFrom.SecretKeyRef.Key)
						}
					}
				}
			}
			for _, o := range objects {
				if _, secret := o.typed.(*corev1.Secret); secret && name != "dev" {
					t.Errorf("%s is in the manifests", o.id)
				}
			}
		})
	}
}

// The addresses that the services serve by default are the ports of their containers, and what is sent to a Service, or let
// in, finds one of them.
func TestPortsAreServed(t *testing.T) {
	t.Parallel()
	help, err := helps()
	if err != nil {
		t.Fatal(err)
	}
	variables := map[string]string{"http": "EVALONCE_HTTP_ADDRESS", "grpc": "EVALONCE_GRPC_ADDRESS", "health": "EVALONCE_HEALTH_ADDRESS"}
	for name, dir := range variants(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			objects := render(t, dir)
			for _, w := range workloads(objects) {
				for _, c := range w.pod.Containers {
					named := map[string]bool{}
					for _, p := range c.Ports {
						named[p.Name] = true
						if v, ok := variables[p.Name]; ok && imageName(c.Image) != "providersim" {
							if address := defaultOf(t, help[imageName(c.Image)], v); address != ":"+strconv.Itoa(int(p.ContainerPort)) {
								t.Errorf("%s: %s serves %s at %s, and not at %d", w.id, c.Name, p.Name, address, p.ContainerPort)
							}
						}
					}
					for _, probe := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
						if probe != nil && !named[probe.HTTPGet.Port.StrVal] {
							t.Errorf("%s: a probe asks port %v", w.id, probe.HTTPGet.Port)
						}
					}
				}
			}
			for _, o := range objects {
				switch o := o.typed.(type) {
				case *corev1.Service:
					for _, p := range o.Spec.Ports {
						if !servedBy(objects, labels.SelectorFromSet(o.Spec.Selector), p.TargetPort) {
							t.Errorf("service %s: no pod serves %v", o.Name, p.TargetPort)
						}
					}
				case *networkingv1.NetworkPolicy:
					selector, err := v1.LabelSelectorAsSelector(&o.Spec.PodSelector)
					if err != nil {
						t.Fatal(err)
					}
					for _, rule := range o.Spec.Ingress {
						for _, p := range rule.Ports {
							if !servedBy(objects, selector, *p.Port) {
								t.Errorf("policy %s: no pod serves %v", o.Name, p.Port)
							}
						}
					}
				case *policyv1.PodDisruptionBudget:
					selector, err := v1.LabelSelectorAsSelector(o.Spec.Selector)
					if err != nil || !servedBy(objects, selector, intstr.FromString("health")) {
						t.Errorf("budget %s: no pod is meant (%v)", o.Name, err)
					}
				}
			}
		})
	}
}

func servedBy(objects []object, selector labels.Selector, port intstr.IntOrString) bool {
	for _, w := range workloads(objects) {
		if !selector.Matches(labels.Set(w.tpl.Labels)) {
			continue
		}
		for _, c := range w.pod.Containers {
			for _, p := range c.Ports {
				if p.Name == port.StrVal || p.ContainerPort == port.IntVal {
					return true
				}
			}
		}
	}
	return false
}

// defaultOf reads the default of a variable from --help.
func defaultOf(t *testing.T, help, name string) string {
	t.Helper()
	for line := range strings.Lines(help) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == name {
			return strings.Trim(fields[1], `"`)
		}
	}
	t.Errorf("--help has no %s", name)
	return ""
}

// Kubernetes must not kill a pod that still saves what was paid for, or answers: the pause before the signal, the grace, and
// what a service takes at most beyond it (services/evaluator-worker: 10 s to save and 20 s to end; the others: 1 s and 20 s).
func TestPodsMayFinish(t *testing.T) {
	t.Parallel()
	help, err := helps()
	if err != nil {
		t.Fatal(err)
	}
	beyond := map[string]time.Duration{"evaluator-worker": 30 * time.Second, "ticket-api": time.Second, "admin": time.Second}
	for name, dir := range variants(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			objects, checked := render(t, dir), 0
			maps := configMaps(objects)
			for _, w := range workloads(objects) {
				c := w.pod.Containers[0]
				extra, ok := beyond[imageName(c.Image)]
				if !ok {
					continue
				}
				grace := environment(c, maps)["EVALONCE_SHUTDOWN_GRACE"]
				if grace == "" {
					grace = defaultOf(t, help[imageName(c.Image)], "EVALONCE_SHUTDOWN_GRACE")
				}
				need, err := time.ParseDuration(grace)
				if err != nil {
					t.Fatal(err)
				}
				need += extra
				if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
					need += time.Duration(c.Lifecycle.PreStop.Sleep.Seconds) * time.Second
				}
				if got := time.Duration(*w.pod.TerminationGracePeriodSeconds) * time.Second; got <= need {
					t.Errorf("%s: killed after %v, and may take %v", w.id, got, need)
				}
				checked++
			}
			if checked != 3 {
				t.Errorf("checked %d services", checked)
			}
		})
	}
}

// What the restricted profile of Pod Security wants, and somewhat more.
func TestPodsAreRestricted(t *testing.T) {
	t.Parallel()
	for name, dir := range variants(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, w := range workloads(render(t, dir)) {
				s := w.pod.SecurityContext
				if s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || *s.RunAsUser != 65532 || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
					t.Errorf("%s: pod %+v", w.id, s)
				}
				if w.pod.AutomountServiceAccountToken == nil || *w.pod.AutomountServiceAccountToken || w.pod.EnableServiceLinks == nil || *w.pod.EnableServiceLinks {
					t.Errorf("%s: has a token, or the links of services", w.id)
				}
				for _, c := range containers(w.pod) {
					s := c.SecurityContext
					if s == nil || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
						t.Errorf("%s: container %s %+v", w.id, c.Name, s)
					}
					if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().IsZero() {
						t.Errorf("%s: container %s has no requests, or no limit of memory", w.id, c.Name)
					}
				}
			}
		})
	}
}

// A pod that does not wait for the schema would be rolled out before it.
func TestServicesWaitForTheSchema(t *testing.T) {
	t.Parallel()
	for name, dir := range variants(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, o := range render(t, dir) {
				d, ok := o.typed.(*appsv1.Deployment)
				if !ok || d.Name == "providersim" {
					continue
				}
				init := d.Spec.Template.Spec.InitContainers
				if len(init) != 1 || imageName(init[0].Image) != "migrate" || !slices.Contains(init[0].Args, "wait") {
					t.Errorf("%s: init containers %+v", o.id, init)
				}
			}
		})
	}
}

// An autoscaler owns the number of replicas: applying again must not set it.
func TestAutoscalersOwnTheReplicas(t *testing.T) {
	t.Parallel()
	for name, dir := range variants(t) {
		if name == "dev" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scalers := 0
			for _, o := range render(t, dir) {
				switch typed := o.typed.(type) {
				case *appsv1.Deployment:
					if typed.Name == "evaluator-worker" && typed.Spec.Replicas != nil {
						t.Errorf("the workers have %d replicas", *typed.Spec.Replicas)
					}
				case *autoscalingv2.HorizontalPodAutoscaler:
					scalers++
				case *batchv1.CronJob:
					if typed.Spec.ConcurrencyPolicy != batchv1.ForbidConcurrent {
						t.Errorf("%s may run twice at once", o.id)
					}
				}
				if o.content["kind"] == "ScaledObject" {
					scalers++
				}
			}
			if scalers != 1 {
				t.Errorf("%d autoscalers", scalers)
			}
		})
	}
}
