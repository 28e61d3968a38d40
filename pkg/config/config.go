// Package config reads a service's settings from its environment into a struct, tells everything that is wrong with
// them at once, and explains them under --help.
//
//	type Config struct {
//		DatabaseURL string        `env:"EVALONCE_DATABASE_URL,required" secret:"true" help:"Postgres to work on"`
//		Lease       time.Duration `env:"EVALONCE_LEASE" envDefault:"90s" help:"how long a claimed evaluation is a worker's own"`
//		Lanes       []string      `env:"EVALONCE_LANES" envDefault:"live,bulk" help:"what to work on, separated by commas"`
//	}
//
// Fields are of the types of the standard library that are written as text, of any type with UnmarshalText, or
// slices of such. A struct without an env tag holds further fields. A variable that is empty counts as not set.
//
// A field tagged secret is never shown, neither its value nor its default, not even in an error about it; and it can
// be given as a file, as secrets are mounted: NAME_FILE holds the path, and the file the value, without the line
// break at its end.
package config

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"

	"github.com/caarlos0/env/v11"
)

// ErrHelp says that --help was asked for and answered. It is the standard library's, so that process.Main takes it
// for a success.
var ErrHelp = flag.ErrHelp

// Load reads T, a struct, from environ, which has the form of [os.Environ]. When T, or a pointer to it, has a
// method Validate() error, that has the last word, and says all it has to say by [errors.Join].
//
// args are those of a service, which takes none but --help: that prints the variables to stdout and returns ErrHelp.
// What the caller of the process got wrong matches [process.ErrUsage].
func Load[T any](environ, args []string, stdout io.Writer) (T, error) {
	var target, none T
	settings, err := settingsOf(reflect.ValueOf(&target).Elem(), "")
	if err != nil {
		return none, fmt.Errorf("read configuration of %T: %w", none, err)
	}
	for _, arg := range args {
		if arg == "-h" || arg == "-help" || arg == "--help" {
			return none, printHelp(stdout, settings)
		}
	}
	var problems []error
	for _, arg := range args {
		// What follows the equals sign may be a secret.
		name, _, _ := strings.Cut(arg, "=")
		problems = append(problems, fmt.Errorf("unknown argument %q: settings are variables of the environment", name))
	}
	variables := toMap(environ)
	complete := true
	for _, s := range settings {
		if err := s.readFile(variables); err != nil {
			problems = append(problems, err)
			complete = complete && s.useDefault()
			continue
		}
		if err := s.parse(variables); err != nil {
			problem := s.explain(variables[s.name], err)
			if problem == nil {
				return none, fmt.Errorf("read configuration of %T: %w", none, err)
			}
			problems = append(problems, problem)
			// With the default in its place, the others can still be validated.
			complete = complete && s.useDefault()
		}
	}
	if complete {
		problems = append(problems, validate(&target))
	}
	if err := errors.Join(problems...); err != nil {
		return none, invalid{err}
	}
	return target, nil
}

func validate[T any](target *T) error {
	// The method set of a pointer includes the methods of its value.
	if v, ok := any(target).(interface{ Validate() error }); ok {
		return v.Validate()
	}
	return nil
}

// toMap lets the first of several entries win, as the operating systems do, and drops the empty ones.
func toMap(environ []string) map[string]string {
	variables := make(map[string]string, len(environ))
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if _, set := variables[name]; !set && value != "" {
			variables[name] = value
		}
	}
	return variables
}

// setting is one field of the struct.
type setting struct {
	name     string // of its variable
	fallback string
	help     string
	required bool
	secret   bool

	prefix string
	field  reflect.StructField
	value  reflect.Value
}

const fileSuffix = "_FILE"

func settingsOf(target reflect.Value, prefix string) ([]setting, error) {
	if target.Kind() != reflect.Struct {
		return nil, fmt.Errorf("it is no struct")
	}
	var settings []setting
	for i := range target.NumField() {
		field := target.Type().Field(i)
		tag, tagged := field.Tag.Lookup("env")
		switch {
		case tagged && !field.IsExported():
			return nil, fmt.Errorf("field %s is not exported", field.Name)
		case !tagged && field.Type.Kind() == reflect.Struct && field.IsExported():
			inner, err := settingsOf(target.Field(i), prefix+field.Tag.Get("envPrefix"))
			if err != nil {
				return nil, err
			}
			settings = append(settings, inner...)
		case !tagged && field.IsExported():
			return nil, fmt.Errorf("field %s has no env tag", field.Name)
		case tagged:
			name, options, _ := strings.Cut(tag, ",")
			s := setting{
				name:     prefix + name,
				fallback: field.Tag.Get("envDefault"),
				help:     field.Tag.Get("help"),
				required: options != "",
				secret:   field.Tag.Get("secret") == "true",
				prefix:   prefix, field: field, value: target.Field(i),
			}
			switch {
			case name == "" || s.help == "":
				return nil, fmt.Errorf("field %s has no name or no help", field.Name)
			}
			// The two mean the same here, where what is empty is not set.
			for option := range strings.SplitSeq(options, ",") {
				if option != "" && option != "required" && option != "notEmpty" {
					return nil, fmt.Errorf("field %s: option %q of its env tag is not supported", field.Name, option)
				}
			}
			settings = append(settings, s)
		}
	}
	return settings, nil
}

// readFile replaces NAME_FILE by what is in the file.
func (s setting) readFile(variables map[string]string) error {
	path, set := variables[s.name+fileSuffix]
	if !s.secret || !set {
		return nil
	}
	if _, both := variables[s.name]; both {
		return fmt.Errorf("%s and %s%s are both set: one of them has to go", s.name, s.name, fileSuffix)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("%s%s: %w", s.name, fileSuffix, err)
	}
	if value := strings.TrimRight(string(content), "\r\n"); value != "" {
		variables[s.name] = value
		return nil
	}
	return fmt.Errorf("%s%s: the file %s is empty", s.name, fileSuffix, path)
}

// parse reads the field through a struct of its own: the library's errors do not name the variable.
func (s setting) parse(variables map[string]string) error {
	alone := reflect.New(reflect.StructOf([]reflect.StructField{{Name: s.field.Name, Type: s.field.Type, Tag: s.field.Tag}}))
	if err := env.ParseWithOptions(alone.Interface(), env.Options{Environment: variables, Prefix: s.prefix}); err != nil {
		return err
	}
	s.value.Set(alone.Elem().Field(0))
	return nil
}

// useDefault reports whether the field has a default to be used.
func (s setting) useDefault() bool {
	return s.fallback != "" && s.parse(map[string]string{}) == nil
}
