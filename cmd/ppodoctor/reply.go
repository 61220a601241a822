package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pposiraegi/ppodoctor/cmd/ppodoctor/report"
	"github.com/pposiraegi/ppodoctor/probes"
)

// A reply is what `path` and `can` answer to a yes/no question.
type reply struct {
	Schema   string   `json:"schema"`
	Answer   string   `json:"answer"` // yes, no, unknown
	Question string   `json:"question"`
	Says     string   `json:"says"`            // what decides
	Fix      []string `json:"fix,omitempty"`   // of a no: commands, or statements of a policy
	Hops     []hop    `json:"hops,omitempty"`  // all that was looked at, in order
	Lacks    []lack   `json:"lacks,omitempty"` // of an unknown: what would settle it
	Cluster  string   `json:"cluster,omitempty"`
	Identity string   `json:"identity,omitempty"` // of AWS, that was used to read
}

// A hop is one thing that lets a call or a packet pass, or doesn't.
type hop struct {
	What     string   `json:"what"` // security-group, network-policy, trust …
	Answer   string   `json:"answer"`
	Code     string   `json:"code,omitempty"`
	Says     string   `json:"says"`
	Commands []string `json:"commands,omitempty"` // that show it
}

type lack struct {
	Document string `json:"document"`
	Reason   string `json:"reason"`
	Grant    string `json:"grant,omitempty"`
	Detail   string `json:"detail,omitempty"`
}

// replyFormats are what -o takes.
var replyFormats = []string{"text", "json"}

func replyFlags(cmd *cobra.Command, format *string, verbose *bool) {
	cmd.Flags().StringVarP(format, "output", "o", "text", "how to write the answer: "+strings.Join(replyFormats, ", "))
	cmd.Flags().BoolVarP(verbose, "verbose", "v", false, "all that was looked at, not only what decides")
	if err := cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(replyFormats, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // a flag that isn't there
	}
	for _, name := range []string{"all-namespaces", "selector", "knowledge"} {
		cmd.Flags().Lookup(name).Hidden = true
	}
}

func validReplyFormat(format string) error {
	if !slices.Contains(replyFormats, format) {
		return fmt.Errorf("--output %q: use one of %s", format, strings.Join(replyFormats, ", "))
	}
	return nil
}

// lacking makes the reply unknown for want of what an error names.
func (r *reply) lacking(err error) {
	r.Answer = "unknown"
	for _, gap := range probes.GapsIn(err) {
		r.Lacks = append(r.Lacks, lack{Document: gap.Document.Path, Reason: string(gap.Reason), Grant: gap.Grant, Detail: gap.Detail})
	}
	if r.Says == "" {
		r.Says = err.Error()
	}
}

// write prints the reply and returns the exit code as an error: 0 yes, 1 no,
// 3 unknown.
func (r *reply) write(cmd *cobra.Command, src probes.Source, format string, verbose bool) error {
	if m, ok := src.(interface{ ClusterMeta() probes.SnapshotMeta }); ok {
		r.Cluster, r.Identity = m.ClusterMeta().Cluster, m.ClusterMeta().Identity
	}
	out := cmd.OutOrStdout()
	var err error
	if format == "json" {
		data, marshalErr := report.JSON(r)
		if marshalErr != nil {
			return marshalErr
		}
		_, err = out.Write(data)
	} else {
		var b strings.Builder
		fmt.Fprintf(&b, "%s: %s: %s\n", r.Answer, r.Question, report.Line(r.Says))
		if verbose {
			for _, h := range r.Hops {
				fmt.Fprintf(&b, "  %-7s %s: %s\n", h.Answer, h.What, report.Line(h.Says))
			}
		}
		for _, l := range r.Lacks {
			fmt.Fprintf(&b, "  not known: %s (%s)", l.Document, l.Reason)
			if l.Grant != "" {
				fmt.Fprintf(&b, "; it takes %s", l.Grant)
			}
			b.WriteString("\n")
		}
		for _, fix := range r.Fix {
			fmt.Fprintf(&b, "  to allow it: %s\n", report.Line(fix))
		}
		_, err = fmt.Fprint(out, b.String())
	}
	if err != nil {
		return err
	}
	switch r.Answer {
	case "yes":
		return nil
	case "no":
		return exitError(1)
	}
	return exitError(3)
}
