package main

import (
	"github.com/spf13/cobra"

	"github.com/pposiraegi/ppodoctor/diagnose"
)

func newScan() *cobra.Command {
	in, out := &input{}, &output{}
	cmd := &cobra.Command{
		Use:   "scan",
		Short: "Diagnose everything that is wrong",
		Example: `  ppodoctor scan
  ppodoctor scan --context prod -n kafka
  ppodoctor scan --demo
  ppodoctor scan --snapshot ./incident
  ppodoctor scan --snapshot incident.tar.gz -o json`,
		Long: `Diagnose everything that is wrong in a cluster: the one that kubectl would
talk to (its flags and its kubeconfig are understood), or a capture of one.

Exit codes, the same in every format:
  0  nothing wrong, and all that was asked could be seen
  1  something is wrong
  2  could not run
  3  nothing found wrong, but not all could be seen`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.validate(); err != nil {
				return err
			}
			facts, k, err := in.open(cmd)
			if err != nil {
				return err
			}
			opts, err := in.options()
			if err != nil {
				return err
			}
			opts.Verbose = out.verbose
			d := diagnose.Walk(cmd.Context(), facts, k, opts)
			return out.write(cmd, d, diagnose.ExercisedIn(cmd.Context(), facts))
		},
	}
	in.flags(cmd)
	out.flags(cmd)
	return cmd
}
