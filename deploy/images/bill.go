package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/CycloneDX/cyclonedx-go"
)

// writeBill writes which modules the binary is made of, as it tells itself.
func (b Builder) writeBill(image Image, platform string, binary []byte, dir string) error {
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return fmt.Errorf("read the modules of the binary: %w", err)
	}
	components := []cyclonedx.Component{{
		Type: cyclonedx.ComponentTypeLibrary, Name: "std", Version: strings.TrimPrefix(info.GoVersion, "go"),
		PackageURL: "pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go"),
	}}
	for _, module := range info.Deps {
		used := module
		if module.Replace != nil && module.Replace.Version != "" {
			used = module.Replace
		}
		component := cyclonedx.Component{Type: cyclonedx.ComponentTypeLibrary, Name: used.Path, Version: used.Version}
		if strings.HasPrefix(used.Path, "github.com/evalonce/evalonce/") {
			component.Version = b.Release.Version
		}
		component.PackageURL = "pkg:golang/" + component.Name + "@" + component.Version
		components = append(components, component)
	}
	hash := sha256.Sum256(binary)
	bill := cyclonedx.NewBOM()
	bill.Metadata = &cyclonedx.Metadata{Component: &cyclonedx.Component{
		Type: cyclonedx.ComponentTypeApplication, Name: "evalonce/" + image.Name, Version: b.Release.Version,
		Hashes: &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(hash[:])}},
	}}
	bill.Components = &components
	var out bytes.Buffer
	if err := cyclonedx.NewBOMEncoder(&out, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bill); err != nil {
		return fmt.Errorf("write the list of modules: %w", err)
	}
	name := image.Name + "-" + strings.ReplaceAll(platform, "/", "-") + ".cdx.json"
	return os.WriteFile(filepath.Join(dir, name), out.Bytes(), 0o644) //nolint:gosec // everybody may read it
}
