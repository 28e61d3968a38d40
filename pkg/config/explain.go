package config

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/caarlos0/env/v11"

	"github.com/evalonce/evalonce/pkg/process"
)

// invalid is everything that is wrong with a configuration, a line each.
type invalid struct{ problems error }

func (i invalid) Error() string {
	return "configuration (--help explains it):\n  " + strings.ReplaceAll(i.problems.Error(), "\n", "\n  ")
}

func (i invalid) Unwrap() []error { return []error{process.ErrUsage, i.problems} }

// explain turns an error of the library into one about the variable, and into nil when no value would have helped.
func (s setting) explain(value string, err error) error {
	var parse env.ParseError
	switch {
	case errors.As(err, &env.VarIsNotSetError{}), errors.As(err, &env.EmptyVarError{}):
		return fmt.Errorf("%s is not set: %s", s.name, s.help)
	case !errors.As(err, &parse):
		return nil
	case s.secret:
		// What a parser says may repeat what it was given.
		return fmt.Errorf("%s: its value, which is secret, is no %v", s.name, s.field.Type)
	default:
		return fmt.Errorf("%s=%.100q: %w", s.name, value, reason(parse.Err))
	}
}

// reason leaves out what the parsers of the standard library repeat.
func reason(err error) error {
	var number *strconv.NumError
	if errors.As(err, &number) {
		return number.Err
	}
	var parse env.ParseValueError
	if errors.As(err, &parse) {
		return parse.Err
	}
	return err
}

func printHelp(w io.Writer, settings []setting) error {
	fmt.Fprintln(w, "Settings are variables of the environment; --version tells the release.")
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tDEFAULT\tMEANING")
	for _, s := range settings {
		fallback, help := s.fallback, s.help
		if s.required {
			fallback = "(required)"
		}
		if s.secret {
			if s.fallback != "" {
				fallback = "(secret)"
			}
			help += "; or its file as " + s.name + fileSuffix
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", s.name, fallback, help)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print help: %w", err)
	}
	return ErrHelp
}
