package openapi_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
	_ "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
	"github.com/evalonce/evalonce/proto/openapi"
)

// Each document is merged from several files by name of package: none of its own methods may get lost, and none
// of the other API's may slip in.
func TestDocumentsDescribeExactlyTheirPackage(t *testing.T) {
	t.Parallel()
	for pkg, document := range map[protoreflect.FullName]string{
		"evalonce.ticket.v1": openapi.Ticket(),
		"evalonce.admin.v1":  openapi.Admin(),
	} {
		t.Run(string(pkg), func(t *testing.T) {
			t.Parallel()
			var doc struct {
				Paths map[string]map[string]struct {
					OperationID string `json:"operationId"`
				} `json:"paths"`
			}
			if err := json.Unmarshal([]byte(document), &doc); err != nil {
				t.Fatalf("the document is no JSON: %v", err)
			}
			described := map[string]bool{}
			for _, operations := range doc.Paths {
				for _, operation := range operations {
					described[operation.OperationID] = true
				}
			}
			if want, got := restMethods(pkg), slices.Sorted(maps.Keys(described)); !slices.Equal(want, got) {
				t.Errorf("the document describes %v, the package has %v", got, want)
			}
		})
	}
}

func restMethods(pkg protoreflect.FullName) []string {
	var ids []string
	protoregistry.GlobalFiles.RangeFilesByPackage(pkg, func(fd protoreflect.FileDescriptor) bool {
		for i := range fd.Services().Len() {
			service := fd.Services().Get(i)
			for j := range service.Methods().Len() {
				method := service.Methods().Get(j)
				if proto.HasExtension(method.Options(), annotations.E_Http) {
					ids = append(ids, fmt.Sprintf("%s_%s", service.Name(), method.Name()))
				}
			}
		}
		return true
	})
	slices.Sort(ids)
	return ids
}
