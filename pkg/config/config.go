// Package config reads a service's settings from the environment.
package config

import (
	"errors"
	"io"
)

// ErrHelp says that --help was asked for and answered.
var ErrHelp = errors.New("help requested")

// Load reads T from environ.
func Load[T any](environ []string, args []string, stdout io.Writer) (T, error) {
	var t T
	return t, errors.ErrUnsupported
}
