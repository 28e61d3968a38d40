// Package crashpoint names the steps in the life of an evaluation between which a process may die, and kills it
// there when a test asks for it.
//
// A binary that is built with the tag crashpoints, and started with EVALONCE_CRASH_AT=NAME or NAME:N, ends itself by
// SIGKILL when it passes that point for the first or for the N-th time. Nothing is flushed, rolled back or released:
// what the database and the provider know by then is all that is left. A name that is not on the list ends the
// process too, so that no test waits for a death that cannot come.
//
// A binary that is built without the tag contains none of this: [Pass] is empty there, and reads no environment.
package crashpoint
