// Package process runs a service's main function and its components.
package process

import (
	"context"
	"errors"
	"io"
	"time"
)

// ErrUsage matches errors in the arguments or the environment: exit code 2.
var ErrUsage = errors.New("usage")

// DefaultGrace is the time a component gets to stop.
const DefaultGrace = 20 * time.Second

// Main runs run and exits.
func Main(run func(ctx context.Context, args []string, environ []string, stdout, stderr io.Writer) error) {
	panic(errors.ErrUnsupported)
}

// Group starts components in order and stops them in reverse order.
type Group struct{}

// NewGroup returns a group that stops when ctx ends.
func NewGroup(ctx context.Context) *Group { return &Group{} }

// Go starts a component that gets DefaultGrace to stop.
func (g *Group) Go(name string, run func(ctx context.Context) error) {}

// GoWithin starts a component that gets grace to stop.
func (g *Group) GoWithin(grace time.Duration, name string, run func(ctx context.Context) error) {}

// Wait blocks until the context ends or a component does, stops all in reverse order and returns their errors.
func (g *Group) Wait() error { return errors.ErrUnsupported }
