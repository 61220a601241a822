package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pposiraegi/ppodoctor/cmd/ppodoctor/report"
	"github.com/pposiraegi/ppodoctor/diagnose"
	"github.com/pposiraegi/ppodoctor/knowledge"
	"github.com/pposiraegi/ppodoctor/probes"
)

func newDiff() *cobra.Command {
	var format string
	formats := []string{"text", "json", "yaml"}
	cmd := &cobra.Command{
		Use:   "diff BEFORE AFTER",
		Short: "Tell what became of each fault: fixed, still there, new, or only no longer exercised",
		Long: `Tell what became of each fault of an earlier state in a later one.

BEFORE and AFTER are snapshots, or diagnoses that -o json wrote. A fault that is
no longer seen counts as fixed only where something still runs into its
conditions and is well. Where nothing does any more (no node of that nodepool,
no pod of that workload) it is vanished: unproven, with the run that would
prove it. For that, AFTER should be a snapshot.

Exit codes: 0 all is fixed; 1 something is wrong in AFTER; 2 could not run;
3 nothing is wrong, but not all is proven.`,
		Example: `  ppodoctor diff before.tar.gz after.tar.gz
  ppodoctor diff yesterday.json today.json -o json`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := knowledge.Embedded()
			if err != nil {
				return err
			}
			before, _, err := diagnosisOf(cmd.Context(), args[0], k)
			if err != nil {
				return err
			}
			after, exercised, err := diagnosisOf(cmd.Context(), args[1], k)
			if err != nil {
				return err
			}
			d := diagnose.Compare(before, after, exercised)
			if err := report.WriteDifference(cmd.OutOrStdout(), d, format, report.Terminal(os.Stdout, os.Getenv)); err != nil {
				return err
			}
			if code := d.ExitCode(); code != 0 {
				return exitError(code)
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "text", "how to write it: "+strings.Join(formats, ", "))
	if err := cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // a flag that isn't there
	}
	return cmd
}

// diagnosisOf reads a saved diagnosis, or walks a snapshot.
func diagnosisOf(ctx context.Context, path string, k *knowledge.Knowledge) (*diagnose.Diagnosis, diagnose.Exercised, error) {
	for _, end := range []string{".json", ".yaml", ".yml"} {
		if strings.HasSuffix(path, end) {
			d, err := readDiagnosis(path)
			return d, nil, err
		}
	}
	src, err := probes.OpenSnapshot(path)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	facts := probes.NewFacts(src)
	d := diagnose.Walk(ctx, facts, k, diagnose.Options{Verbose: true})
	return d, diagnose.ExercisedIn(ctx, facts), nil
}
