// Command steps passes two points, one of them three times, and says after each that it is still there.
package main

import (
	"os"

	"github.com/evalonce/evalonce/pkg/crashpoint"
)

func main() {
	for range 3 {
		crashpoint.Pass(crashpoint.CallSending)
		crashpoint.PassIf(false, crashpoint.SettleBegun)
		_, _ = os.Stdout.WriteString("alive\n")
	}
	crashpoint.PassIf(true, crashpoint.SettleBegun)
	_, _ = os.Stdout.WriteString("alive\n")
}
