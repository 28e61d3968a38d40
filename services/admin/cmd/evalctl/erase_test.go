package main

import "testing"

func TestTicketErase(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	const id = "01924f9a-3c4e-7b1d-9d0e-5a8f6f0c2b11"
	o.runs("ticket", "erase", id).want(t, exitUsage, "--yes")
	o.runs("tickets", "erase", id, "--yes", "--reason", "asked for").want(t, exitNotFound, "no such ticket")
	o.runs("ticket", "erase", "mine", "--dry-run").want(t, exitUsage, "id")
}
