package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/pposiraegi/ppodoctor/diagnose"
	"github.com/pposiraegi/ppodoctor/knowledge"
	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/testdata"
)

// input is where a walk's facts and knowledge come from: a running cluster,
// unless a capture is named.
type input struct {
	cluster
	snapshot  string
	demo      bool
	knowledge string
	recording bool // another source is put around this one, so nothing is read beforehand
}

func (in *input) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&in.snapshot, "snapshot", "", "read a cluster captured in files: a folder, .tar.gz, .tgz, .tar or .zip")
	cmd.Flags().BoolVar(&in.demo, "demo", false, "read the incident that comes with the program")
	cmd.Flags().StringVar(&in.knowledge, "knowledge", "", "a folder that overlays the built-in knowledge (rules/*.yaml …)")
	in.cluster.flags(cmd)
	cmd.MarkFlagsMutuallyExclusive("snapshot", "demo", "context")
	cmd.MarkFlagsMutuallyExclusive("snapshot", "demo", "kubeconfig")
}

// know is the knowledge that comes with the program, with the overlay.
func (in *input) know() (*knowledge.Knowledge, error) {
	if in.knowledge == "" {
		return knowledge.Embedded()
	}
	if _, err := os.Stat(in.knowledge); err != nil {
		return nil, fmt.Errorf("reading knowledge: %w", err)
	}
	return knowledge.Load(os.DirFS(in.knowledge))
}

func (in *input) open(cmd *cobra.Command) (*probes.Facts, *knowledge.Knowledge, error) {
	if in.timeout > 0 {
		ctx, cancel := context.WithTimeout(cmd.Context(), in.timeout)
		cobra.OnFinalize(cancel)
		cmd.SetContext(ctx)
	}
	src, err := in.source(cmd)
	if err != nil {
		return nil, nil, err
	}
	facts := probes.NewFacts(src)
	if !in.recording {
		// Every walk reads these; the server may answer while the knowledge loads.
		go facts.Gather(cmd.Context(), probes.Pods, probes.Nodes, probes.ReplicaSets, probes.Deployments)
	}
	k, err := in.know()
	if err != nil {
		return nil, nil, err
	}
	return facts.Knowing(k), k, nil
}

func (in *input) source(cmd *cobra.Command) (probes.Source, error) {
	switch {
	case in.demo:
		return probes.NewSnapshot(testdata.Demo())
	case in.snapshot != "":
		return probes.OpenSnapshot(in.snapshot)
	}
	return in.connect(cmd.Context())
}

// options narrow a walk to what was asked about.
func (in *input) options() (diagnose.Options, error) {
	selector, err := in.labels()
	return diagnose.Options{Namespace: in.namespace(), Selector: selector}, err
}
