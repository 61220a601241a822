package main

import (
	"github.com/spf13/cobra"

	"github.com/pposiraegi/ppodoctor/cmd/ppodoctor/report"
)

func newSchema() *cobra.Command {
	return &cobra.Command{
		Use:     "schema",
		Short:   "Print the JSON Schema of -o json",
		Example: `  ppodoctor schema > ppodoctor.schema.json`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(report.Schema)
			return err
		},
	}
}
