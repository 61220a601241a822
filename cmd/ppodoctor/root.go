package main

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set when a release is built; else the module's version is shown.
var version = ""

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "ppodoctor",
		Short: "Find the root cause of trouble in a Kubernetes cluster, with proof",
		Long: `ppodoctor walks from a symptom (a pod that crashes, a pod that stays Pending)
to its root cause, in Kubernetes and in AWS, and proves the way: what it saw,
what it ruled out, and what it could not see. It reads; it never changes.`,
		Example: `  ppodoctor scan --demo                       an incident that comes with the program
  ppodoctor scan --snapshot incident.tar.gz   a cluster captured in files
  ppodoctor explain pod/kafka-0 -n kafka --snapshot incident.tar.gz`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newScan(), newExplain(), newSnapshot(), newPath(), newCan(), newPermissions(), newDiff(), newRules(), newSchema(), newMan(), newVersion())
	root.AddCommand(newLint(), newPreflight())
	return root
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := version
			if info, ok := debug.ReadBuildInfo(); ok && v == "" {
				v = info.Main.Version
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "ppodoctor "+v)
			return err
		},
	}
}
