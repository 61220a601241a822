package main

import (
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pposiraegi/ppodoctor/cmd/ppodoctor/report"
	"github.com/pposiraegi/ppodoctor/diagnose"
	"github.com/pposiraegi/ppodoctor/knowledge"
	"github.com/pposiraegi/ppodoctor/probes"
)

func newRules() *cobra.Command {
	var tree bool
	var on string
	cmd := &cobra.Command{
		Use:   "rules [ID]",
		Short: "Show what can be found, and how",
		Long: `Show the rules: the states that are symptoms, and the faults that can cause
them. With an ID: what the rule says, asks, needs and advises. With --on: how
each question answers in a snapshot.`,
		Example: `  ppodoctor rules --tree
  ppodoctor rules dns-cut-off-by-security-groups
  ppodoctor rules dns-cut-off-by-security-groups --on ./incident`,
		Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			var ids []cobra.Completion
			for _, r := range diagnose.Rules() {
				ids = append(ids, r.ID)
			}
			return ids, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := knowledge.Embedded()
			if err != nil {
				return err
			}
			id := ""
			if len(args) > 0 {
				id = args[0]
				if !slices.ContainsFunc(diagnose.Rules(), func(r *diagnose.Rule) bool { return r.ID == id }) {
					return fmt.Errorf("no rule has the ID %q; `ppodoctor rules` lists them", id)
				}
			}
			opts := report.Terminal(os.Stdout, os.Getenv)
			if on == "" {
				return report.WriteRules(cmd.OutOrStdout(), diagnose.Rules(), k, id, tree, opts)
			}
			src, err := probes.OpenSnapshot(on)
			if err != nil {
				return fmt.Errorf("--on: %w", err)
			}
			d := diagnose.Walk(cmd.Context(), probes.NewFacts(src), k, diagnose.Options{Verbose: true})
			return report.WriteConsidered(cmd.OutOrStdout(), d, id, opts)
		},
	}
	cmd.Flags().BoolVar(&tree, "tree", false, "as a tree, from the symptoms down to what can cause them")
	cmd.Flags().StringVar(&on, "on", "", "a snapshot: how each question answers there")
	cmd.MarkFlagsMutuallyExclusive("tree", "on")
	return cmd
}
