// Package clustertest holds the tests of the Kubernetes manifests against a real control plane: etcd, kube-apiserver,
// kube-controller-manager, kube-scheduler and kubectl, on loopback, with the nodes that kwok plays. make test-kubernetes runs them.
//
// What is real: validation, admission (Pod Security), the controllers, the scheduler, the autoscaler, evictions, and the
// commands of the containers that migrate and that wait for migrations, which run as processes on a real Postgres, with the
// environment that their pods give them. What is not: the other containers. No image is pulled, no probe is asked, no network
// policy is enforced, and no pod takes its time to end.
package clustertest
