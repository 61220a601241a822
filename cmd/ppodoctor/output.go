package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/pposiraegi/ppodoctor/cmd/ppodoctor/report"
	"github.com/pposiraegi/ppodoctor/diagnose"
)

// output is how a diagnosis is written.
type output struct {
	format         string
	quiet, verbose bool
}

func (out *output) flags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&out.format, "output", "o", "text", "how to write the diagnosis")
	cmd.Flags().BoolVarP(&out.quiet, "quiet", "q", false, "verdict and causes only")
	cmd.Flags().BoolVarP(&out.verbose, "verbose", "v", false, "every question that was asked")
}

func (out *output) write(cmd *cobra.Command, d *diagnose.Diagnosis) error {
	opts := report.Terminal(os.Stdout, os.Getenv)
	opts.Quiet, opts.Verbose = out.quiet, out.verbose
	if err := report.Write(cmd.OutOrStdout(), d, out.format, opts); err != nil {
		return err
	}
	if code := d.ExitCode(); code != 0 {
		return exitError(code)
	}
	return nil
}
