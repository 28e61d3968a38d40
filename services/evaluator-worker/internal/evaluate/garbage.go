package evaluate

import (
	"runtime/debug"
	"slices"
	"strings"
)

// gcPercent of what is alive may be garbage before it is collected. A call leaves much of it and little that lives: at
// Go's default a third of the worker's time went into collections of a heap of a few megabytes.
const gcPercent = 400

// CollectLess sets the collector of this process up for a worker, unless GOGC does.
func CollectLess(environ []string) {
	if !slices.ContainsFunc(environ, func(e string) bool { return strings.HasPrefix(e, "GOGC=") }) {
		debug.SetGCPercent(gcPercent)
	}
}
