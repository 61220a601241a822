// Command ppodoctor walks from a symptom in a Kubernetes cluster to its root
// cause, and proves the way.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	if os.Getenv("GOGC") == "" {
		keepHeadroom()
	}
	os.Exit(run())
}

// exitError ends the program with a code of its own. Nothing more is printed.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// couldNotRun is the exit code where there is no diagnosis at all.
const couldNotRun = 2

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second interrupt ends at once, without a report
	err := newRoot().ExecuteContext(ctx)
	var exit exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return int(exit)
	case errors.Is(err, syscall.EPIPE):
		return couldNotRun // whoever read our output has left; nobody is there to be told
	}
	fmt.Fprintln(os.Stderr, "ppodoctor: "+err.Error())
	return couldNotRun
}
