package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/evalonce/evalonce/deploy/local/internal/report"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

// activate makes a version the one that tickets are evaluated under.
func activate(ctx context.Context, address, token string, v *adminv1.Version) error {
	conn, err := dial(address, token)
	if err != nil {
		return fmt.Errorf("connect to admin: %w", err)
	}
	defer conn.Close()
	versions := adminv1.NewVersionServiceClient(conn)
	if _, err := versions.RegisterVersion(ctx, &adminv1.RegisterVersionRequest{Version: v}); err != nil {
		return fmt.Errorf("register version %s: %w", v.GetId(), inDetail(err))
	}
	if _, err := versions.PromoteVersion(ctx, &adminv1.PromoteVersionRequest{Id: v.GetId()}); err != nil {
		return fmt.Errorf("promote version %s: %w", v.GetId(), inDetail(err))
	}
	return nil
}

// readVersion reads a version as VersionService takes it.
func readVersion(path string) (*adminv1.Version, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read a version: %w", err)
	}
	var v adminv1.Version
	if err := protojson.Unmarshal(data, &v); err != nil {
		return nil, fmt.Errorf("read version %s: %w", path, err)
	}
	return &v, nil
}

// useDepartmentsOf makes the version one for tickets whose departments people have named. Where those are the
// version's own, it knows more of them than their names.
func useDepartmentsOf(v *adminv1.Version, truths []string) {
	unknown := func(truth string) bool {
		return !slices.ContainsFunc(v.GetDepartments(), func(d *adminv1.Department) bool { return report.SameDepartment(d.GetName(), truth) })
	}
	if !slices.ContainsFunc(truths, unknown) {
		return
	}
	v.Id = "demo-of-file-1"
	v.Departments = nil
	for _, truth := range slices.Sorted(slices.Values(truths)) {
		v.Departments = append(v.Departments, &adminv1.Department{Name: truth, Description: humanise(truth)})
	}
}

// humanise makes words of an identifier: "debt_collection" is "debt collection".
func humanise(name string) string {
	words := strings.FieldsFunc(name, func(r rune) bool { return r == '_' || r == '-' || r == ' ' })
	return strings.Join(words, " ")
}

func departmentNames(v *adminv1.Version) []string {
	names := make([]string, len(v.GetDepartments()))
	for i, d := range v.GetDepartments() {
		names[i] = d.GetName()
	}
	return names
}
