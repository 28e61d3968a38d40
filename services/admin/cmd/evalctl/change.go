package main

import (
	"github.com/spf13/cobra"
	"google.golang.org/grpc/metadata"
)

// changeFlags are those of every command that changes something.
type changeFlags struct {
	dryRun            bool
	requestID, reason string
}

func (f *changeFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "tell what would be done, and do nothing")
	cmd.Flags().StringVar(&f.reason, "reason", "", "why, for the record")
	cmd.Flags().StringVar(&f.requestID, "request-id", "", "idempotency key: repeated with it, the command has its effect once")
	must(cmd.RegisterFlagCompletionFunc("reason", cobra.NoFileCompletions))
	must(cmd.RegisterFlagCompletionFunc("request-id", cobra.NoFileCompletions))
}

// would makes a sentence of what was done one of what would be.
func (f *changeFlags) would(done string) string {
	if f.dryRun {
		return "dry run: " + done
	}
	return done
}

// replayed reports whether an answer's header says that the request had its effect before.
func replayed(header metadata.MD) bool { return len(header.Get("idempotent-replayed")) > 0 }
