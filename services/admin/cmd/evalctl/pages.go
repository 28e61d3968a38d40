package main

import "github.com/spf13/cobra"

const (
	defaultLimit = 100
	largestPage  = 1000 // of the service
)

func limitFlag(cmd *cobra.Command, limit *int) {
	cmd.Flags().IntVar(limit, "limit", defaultLimit, "list at most so many; 0 lists all")
	must(cmd.RegisterFlagCompletionFunc("limit", cobra.NoFileCompletions))
}

// pages fetches a list page by page, up to a limit unless that is 0. more is the token of the page that would follow, ""
// at the end of the list.
func pages[T any](limit int, fetch func(size int32, token string) (rows []T, next string, err error)) (all []T, more string, err error) {
	for {
		size := largestPage
		if limit > 0 {
			size = min(size, limit-len(all))
		}
		rows, next, err := fetch(int32(size), more)
		if err != nil {
			return nil, "", err
		}
		all, more = append(all, rows...), next
		if more == "" || limit > 0 && len(all) >= limit {
			return all, more, nil
		}
	}
}
