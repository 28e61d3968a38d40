package clustertest_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/evalonce/evalonce/deploy/local/stack"
)

// What kwok is to make of a pod, by this annotation (testdata/stages.yaml).
const (
	playedAnnotation = "evalonce.io/played"
	playRunning      = "running"
	playSucceeded    = "succeeded"
	playFailed       = "failed"
)

const appLabel = "app.kubernetes.io/name"

// The release after this one: the tag of its images, and the migration that it adds.
const (
	nextTag       = "next"
	nextMigration = "90001_next_release.sql"
)

// agent does what matters here of a kubelet's work. It starts no pod before every Secret and ConfigMap that the pod needs is
// there; it runs the containers whose image is migrate as processes, with their arguments and the environment that they are
// given; a pod is ready when its init containers have ended well, and a migration's pod ends as its process does. Other
// containers do nothing: a Job's ends well at once.
type agent struct {
	plane *plane
	end   context.CancelFunc
	wg    sync.WaitGroup

	mu        sync.Mutex
	pods      map[types.UID]context.CancelFunc
	gates     map[string]*gate // by namespace and app
	databases map[string]string
	processes map[string]*stack.Process // by namespace and pod
}

// gate keeps the pods of an app where they are: those of a Deployment before they are ready, those of a Job before they do
// their work.
type gate struct {
	agent   *agent
	app     string
	opened  chan struct{}
	outcome string
}

func startAgent(p *plane) *agent {
	ctx, end := context.WithCancel(context.Background())
	a := &agent{
		plane: p, end: end,
		pods: map[types.UID]context.CancelFunc{}, gates: map[string]*gate{}, databases: map[string]string{}, processes: map[string]*stack.Process{},
	}
	a.wg.Go(func() { a.watch(ctx) })
	return a
}

func (a *agent) stop() {
	a.end()
	a.wg.Wait()
}

func (a *agent) hold(namespace, app string) *gate {
	a.mu.Lock()
	defer a.mu.Unlock()
	g := &gate{agent: a, app: namespace + "/" + app, opened: make(chan struct{})}
	a.gates[g.app] = g
	return g
}

// open lets pass who waits, and who comes.
func (g *gate) open() { g.let(playSucceeded) }

// fail lets the Jobs' pods that wait fail; who comes passes.
func (g *gate) fail() { g.let(playFailed) }

func (g *gate) let(outcome string) {
	g.agent.mu.Lock()
	defer g.agent.mu.Unlock()
	g.outcome = outcome
	close(g.opened)
	delete(g.agent.gates, g.app)
}

// pass waits until nobody holds the pod, and returns what a Job's pod then becomes.
func (a *agent) pass(ctx context.Context, pod *corev1.Pod) (outcome string) {
	a.mu.Lock()
	g := a.gates[pod.Namespace+"/"+pod.Labels[appLabel]]
	a.mu.Unlock()
	if g == nil {
		return playSucceeded
	}
	select {
	case <-g.opened:
		return g.outcome
	case <-ctx.Done():
		return ""
	}
}

// resolve says what a namespace's DNS would make of postgres:5432, and its database postgres.
func (a *agent) resolve(namespace, database string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.databases[namespace] = strings.TrimPrefix(database[:strings.Index(database, "?")], "postgres://postgres")
}

// said is what the migration of a pod, or its wait for one, has printed so far.
func (a *agent) said(pod *corev1.Pod) string {
	a.mu.Lock()
	p := a.processes[pod.Namespace+"/"+pod.Name]
	a.mu.Unlock()
	if p == nil {
		return ""
	}
	log, err := p.Log()
	if err != nil {
		return err.Error()
	}
	return log
}

// watch starts what the scheduler has given a node, and ends what is deleted.
func (a *agent) watch(ctx context.Context) {
	for tick := time.NewTicker(pollInterval); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
		list, err := a.plane.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			continue // the next time
		}
		a.mu.Lock()
		there := map[types.UID]bool{}
		for _, pod := range list.Items {
			if pod.DeletionTimestamp != nil || pod.Spec.NodeName == "" {
				continue
			}
			there[pod.UID] = true
			if a.pods[pod.UID] == nil {
				podCtx, cancel := context.WithCancel(ctx)
				a.pods[pod.UID] = cancel
				a.wg.Go(func() { a.live(podCtx, &pod) })
			}
		}
		for uid, cancel := range a.pods {
			if !there[uid] {
				cancel()
				delete(a.pods, uid)
			}
		}
		a.mu.Unlock()
	}
}

// live is a pod's life. Whatever goes wrong is tried again until the pod is deleted, as a kubelet does.
func (a *agent) live(ctx context.Context, pod *corev1.Pod) {
	const again = time.Second
	for ctx.Err() == nil {
		err := a.try(ctx, pod)
		if err == nil {
			return
		}
		fmt.Fprintf(os.Stderr, "pod %s/%s: %v\n", pod.Namespace, pod.Name, err)
		select {
		case <-ctx.Done():
		case <-time.After(again):
		}
	}
}

func (a *agent) try(ctx context.Context, pod *corev1.Pod) error {
	environments, err := a.environments(ctx, pod)
	if err != nil {
		return err
	}
	for _, c := range pod.Spec.InitContainers {
		ok, err := a.run(ctx, pod, &c, environments[c.Name])
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("init container %s has failed: %s", c.Name, a.said(pod))
		}
	}
	if !ofJob(pod) {
		if a.pass(ctx, pod) == "" {
			return nil // deleted
		}
		return a.play(ctx, pod, playRunning)
	}
	if err := a.play(ctx, pod, playRunning); err != nil {
		return err
	}
	outcome := a.pass(ctx, pod)
	if outcome == "" {
		return nil
	}
	if c := &pod.Spec.Containers[0]; imageName(c.Image) == "migrate" {
		ok, err := a.run(ctx, pod, c, environments[c.Name])
		if err != nil {
			return err
		}
		if !ok {
			outcome = playFailed
		}
	}
	return a.play(ctx, pod, outcome)
}

func ofJob(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind == "Job"
}

func (a *agent) play(ctx context.Context, pod *corev1.Pod, outcome string) error {
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, playedAnnotation, outcome)
	_, err := a.plane.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// run runs a container of the image migrate to its end.
func (a *agent) run(ctx context.Context, pod *corev1.Pod, c *corev1.Container, env map[string]string) (ok bool, err error) {
	if imageName(c.Image) != "migrate" || len(c.Command) != 0 {
		return false, fmt.Errorf("nobody knows how to run %s", c.Image)
	}
	spec := stack.Spec{Name: pod.Namespace + "." + pod.Name, Binary: "migrate", Args: c.Args}
	if strings.HasSuffix(c.Image, ":"+nextTag) {
		spec.Binary += "-" + nextTag
	}
	a.mu.Lock()
	here := a.databases[pod.Namespace]
	a.mu.Unlock()
	for name, value := range env {
		spec.Env = append(spec.Env, name+"="+strings.ReplaceAll(value, ":dev@postgres:5432/postgres", here))
	}
	p, err := a.plane.stack.Start(ctx, spec)
	if err != nil {
		return false, err
	}
	a.mu.Lock()
	a.processes[pod.Namespace+"/"+pod.Name] = p
	a.mu.Unlock()
	state, err := p.Wait(ctx)
	if err != nil {
		return false, p.Stop()
	}
	return state.Success(), nil
}

// environments are those of the containers, by their names. Everything they and the volumes refer to has to be there.
func (a *agent) environments(ctx context.Context, pod *corev1.Pod) (map[string]map[string]string, error) {
	all := map[string]map[string]string{}
	for _, v := range pod.Spec.Volumes {
		if v.Secret == nil {
			return nil, fmt.Errorf("volume %s is of no Secret", v.Name)
		}
		if _, err := a.secret(ctx, pod.Namespace, v.Secret.SecretName); err != nil {
			return nil, err
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		env := map[string]string{}
		for _, from := range c.EnvFrom {
			config, err := a.plane.client.CoreV1().ConfigMaps(pod.Namespace).Get(ctx, from.ConfigMapRef.Name, metav1.GetOptions{})
			if err != nil {
				return nil, err
			}
			maps.Copy(env, config.Data)
		}
		for _, e := range c.Env {
			env[e.Name] = e.Value
			if e.ValueFrom == nil {
				continue
			}
			ref := e.ValueFrom.SecretKeyRef
			optional := ref.Optional != nil && *ref.Optional
			secret, err := a.secret(ctx, pod.Namespace, ref.Name)
			if err != nil && !(optional && apierrors.IsNotFound(err)) {
				return nil, err
			}
			value, ok := secret[ref.Key]
			if !ok && !optional {
				return nil, fmt.Errorf("secret %s has no %s", ref.Name, ref.Key)
			}
			if ok {
				env[e.Name] = string(value)
			} else {
				delete(env, e.Name)
			}
		}
		all[c.Name] = env
	}
	return all, nil
}

func (a *agent) secret(ctx context.Context, namespace, name string) (map[string][]byte, error) {
	secret, err := a.plane.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return secret.Data, nil
}

func imageName(image string) string {
	name := image[strings.LastIndex(image, "/")+1:]
	name, _, _ = strings.Cut(name, "@")
	name, _, _ = strings.Cut(name, ":")
	return name
}
