// Command protodeps writes the .proto files that the contract imports from elsewhere (google/api, google/rpc,
// protoc-gen-openapiv2/options) into a directory.
//
// They are printed from the descriptors that the Go packages of the same name carry, so that they always match
// the version in go.mod, nothing is vendored, and no schema registry is asked. The files of google/protobuf are
// left out: every compiler brings its own.
package main

import (
	"fmt"
	"os"
	"strings"

	_ "github.com/grpc-ecosystem/grpc-gateway/v2/protoc-gen-openapiv2/options"
	"github.com/jhump/protoreflect/v2/protoprint"
	_ "google.golang.org/genproto/googleapis/api/annotations"
	_ "google.golang.org/genproto/googleapis/rpc/errdetails"
	_ "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

func main() {
	if len(os.Args) != 2 || strings.HasPrefix(os.Args[1], "-") {
		fmt.Fprintln(os.Stderr, "usage: protodeps DIRECTORY")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintf(os.Stderr, "protodeps: %v\n", err)
		os.Exit(1)
	}
}

func write(dir string) error {
	var files []protoreflect.FileDescriptor
	protoregistry.GlobalFiles.RangeFiles(func(fd protoreflect.FileDescriptor) bool {
		if !strings.HasPrefix(fd.Path(), "google/protobuf/") {
			files = append(files, fd)
		}
		return true
	})
	printer := protoprint.Printer{SortElements: true}
	if err := printer.PrintProtosToFileSystem(files, dir); err != nil {
		return fmt.Errorf("write dependency protos to %s: %w", dir, err)
	}
	return nil
}
