package validate_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the rules of the Prometheus operator from those of Prometheus")

// foreignSchemas are those of the kinds that are not Kubernetes' own, by API version and kind, from the definitions in
// testdata/crds: KEDA 2.21.0's and the Prometheus operator's 0.85.0.
func foreignSchemas(t *testing.T) map[string]*jsonschema.Schema {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "crds", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("definitions %v (%v)", files, err)
	}
	schemas := map[string]*jsonschema.Schema{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var definition struct {
			Spec struct {
				Group    string
				Names    struct{ Kind string }
				Versions []struct {
					Name   string
					Schema struct {
						OpenAPIV3Schema map[string]any `json:"openAPIV3Schema"`
					}
				}
			}
		}
		if err := yaml.Unmarshal(text, &definition); err != nil {
			t.Fatal(err)
		}
		for _, version := range definition.Spec.Versions {
			schema := version.Schema.OpenAPIV3Schema
			closeObjects(schema)
			// Kubernetes' own, and therefore not in the definition.
			schema["properties"].(map[string]any)["metadata"] = map[string]any{"type": "object"}
			compiler := jsonschema.NewCompiler()
			if err := compiler.AddResource(file, schema); err != nil {
				t.Fatal(err)
			}
			compiled, err := compiler.Compile(file)
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			schemas[fmt.Sprintf("%s/%s %s", definition.Spec.Group, version.Name, definition.Spec.Names.Kind)] = compiled
		}
	}
	return schemas
}

// closeObjects makes what a definition does not name an error. An API server drops it in silence, unless it is strict.
func closeObjects(node any) {
	switch node := node.(type) {
	case map[string]any:
		_, named := node["properties"].(map[string]any)
		_, open := node["additionalProperties"]
		kept, _ := node["x-kubernetes-preserve-unknown-fields"].(bool)
		if named && !open && !kept && node["type"] == "object" {
			node["additionalProperties"] = false
		}
		if either, _ := node["x-kubernetes-int-or-string"].(bool); either {
			node["type"] = []any{"integer", "string"}
			delete(node, "anyOf")
		}
		for _, child := range node {
			closeObjects(child)
		}
	case []any:
		for _, child := range node {
			closeObjects(child)
		}
	}
}
