// Package validate holds the tests of the Kubernetes manifests and of compose.yaml: everything they say is known to what
// reads it, and everything they name is there.
package validate
