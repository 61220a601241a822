package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pposiraegi/ppodoctor/diagnose"
	"github.com/pposiraegi/ppodoctor/knowledge"
)

func newPreflight() *cobra.Command {
	in := &input{}
	var ids []string
	var format string
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "Say whether the cluster has what components need, before they are installed",
		Example: `  ppodoctor preflight --for karpenter,istio,monitoring
  ppodoctor preflight --snapshot ./cluster -o json`,
		Long: `Ask for each component what it needs: its namespace, the kinds and versions of
others, a StorageClass and its driver, its role in AWS with the actions that it
can't work without, what it discovers by tags, access for its nodes, free
addresses, and the port that the control plane must reach. Each line is ok,
wrong (with what to do) or can't tell (with what would). Without --for it is
the components that run already.

Exit codes, the same in every format:
  0  all that is needed is there
  1  something is wrong
  2  could not run
  3  nothing found wrong, but not all could be seen`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if format != "text" && format != "json" {
				return fmt.Errorf("--output %q: use text or json", format)
			}
			facts, k, err := in.open(cmd)
			if err != nil {
				return err
			}
			known := componentIDs(k)
			for _, id := range ids {
				if !slices.Contains(known, id) {
					return fmt.Errorf("--for %q: the components are %s", id, strings.Join(known, ", "))
				}
			}
			if len(ids) == 0 {
				if ids = diagnose.Installed(cmd.Context(), facts, k); len(ids) == 0 {
					return fmt.Errorf("no component was recognised; name some with --for: %s", strings.Join(known, ", "))
				}
			}
			p := diagnose.PreflightFor(cmd.Context(), facts, k, ids)
			if err := writePreflight(cmd.OutOrStdout(), p, format); err != nil {
				return err
			}
			if code := p.ExitCode(); code != 0 {
				return exitError(code)
			}
			return nil
		},
	}
	in.flags(cmd)
	cmd.Flags().StringSliceVar(&ids, "for", nil, "components, with commas between (default: those that run)")
	cmd.Flags().StringVarP(&format, "output", "o", "text", "how to write the lines: text, json")
	return cmd
}

func componentIDs(k *knowledge.Knowledge) []string {
	var ids []string
	for _, c := range k.Installations {
		ids = append(ids, c.ID)
	}
	return ids
}

func writePreflight(w io.Writer, p *diagnose.Preflight, format string) error {
	if format == "json" {
		encoder := json.NewEncoder(w)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		return encoder.Encode(p)
	}
	mark := map[string]string{diagnose.NeedMet: "ok        ", diagnose.NeedUnmet: "wrong     ", diagnose.NeedUnknown: "can't tell"}
	var b strings.Builder
	last := ""
	for _, n := range p.Lines {
		if n.Component != last {
			if last != "" {
				b.WriteByte('\n')
			}
			fmt.Fprintln(&b, n.Component)
			last = n.Component
		}
		fmt.Fprintf(&b, "  %s  %s: %s\n", mark[n.State], n.Need, n.Says)
		if n.Remedy != "" {
			fmt.Fprintf(&b, "              do: %s\n", n.Remedy)
		}
		if n.Settles != "" {
			fmt.Fprintf(&b, "              would tell: %s\n", n.Settles)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
