package main

import (
	"github.com/spf13/cobra"

	"github.com/pposiraegi/ppodoctor/diagnose/lint"
	"github.com/pposiraegi/ppodoctor/probes"
)

func newLint() *cobra.Command {
	in, out := &input{}, &output{}
	var live bool
	cmd := &cobra.Command{
		Use:   "lint FILE|DIR|- …",
		Short: "Say what a cluster would refuse or drop of manifests and Helm values",
		Example: `  ppodoctor lint manifests/
  ppodoctor lint nodepool.yaml istiod-values.yaml
  helm template loki grafana/loki -f values.yaml | ppodoctor lint -
  ppodoctor lint --live manifests/`,
		Long: `Look at files before they are applied: manifests, rendered charts, Helm values,
and values inside Argo CD Applications and Flux HelmReleases. It says which
object the API server would refuse, which fields it would drop without a word,
which namespace is missing or comes too late, and which values are known to
break a chart; each with file and line, and what to do.

Custom kinds are held against the CustomResourceDefinitions of a capture
(--snapshot) or of the running cluster (--live, --context), else against those
of Karpenter and the Gateway API that come with the program. Kinds of
Kubernetes itself are held against its types. A schema's rules in CEL are run;
webhooks and admission policies are not asked.

Exit codes, the same in every format:
  0  nothing wrong, and all could be judged
  1  something is wrong
  2  could not run
  3  nothing found wrong, but not all could be judged`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.validate(); err != nil {
				return err
			}
			k, err := in.know()
			if err != nil {
				return err
			}
			var src probes.Source
			if live || in.demo || in.snapshot != "" || cmd.Flags().Changed("context") || cmd.Flags().Changed("kubeconfig") {
				if src, err = in.source(cmd); err != nil {
					return err
				}
			}
			d, err := lint.Files(cmd.Context(), args, cmd.InOrStdin(), src, k)
			if err != nil {
				return err
			}
			return out.write(cmd, d, nil)
		},
	}
	in.flags(cmd)
	out.flags(cmd)
	cmd.Flags().BoolVar(&live, "live", false, "hold the files against the cluster that kubectl would talk to")
	cmd.MarkFlagsMutuallyExclusive("snapshot", "demo", "live")
	return cmd
}
