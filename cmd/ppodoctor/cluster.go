package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/live"
)

// cluster is how a running cluster is reached: kubectl's own flags, so that
// the program works as a kubectl plug-in, and what may be read of it.
type cluster struct {
	kube     *genericclioptions.ConfigFlags
	all      bool
	selector string
	timeout  time.Duration
	noAWS    bool
	profile  string
	region   string
	noHelm   bool
}

// shown are the flags of kubectl that the help shows; the others work too.
var shown = []string{"context", "kubeconfig", "namespace", "as"}

func (c *cluster) flags(cmd *cobra.Command) {
	c.kube = genericclioptions.NewConfigFlags(true)
	c.kube.Timeout = nil // ours is for the whole run
	kube := pflag.NewFlagSet("kubectl", pflag.ContinueOnError)
	c.kube.AddFlags(kube)
	kube.VisitAll(func(f *pflag.Flag) { f.Hidden = !slices.Contains(shown, f.Name) })
	cmd.Flags().AddFlagSet(kube)
	cmd.Flags().Lookup("namespace").Usage = "only what is wrong in this namespace; what causes it is looked for everywhere"
	cmd.Flags().BoolVarP(&c.all, "all-namespaces", "A", false, "all namespaces (the default)")
	cmd.Flags().StringVarP(&c.selector, "selector", "l", "", "only what is wrong with the pods that have these labels")
	cmd.Flags().DurationVar(&c.timeout, "timeout", time.Minute, "after this, report with what was read by then; 0 waits for all")
	cmd.Flags().BoolVar(&c.noAWS, "no-aws", false, "don't read from AWS")
	cmd.Flags().StringVar(&c.profile, "profile", "", "the AWS profile to read with (default: the kubeconfig's, else the AWS CLI's)")
	cmd.Flags().StringVar(&c.region, "region", "", "the AWS region of the cluster (default: what kubeconfig and nodes tell, else the AWS CLI's)")
	cmd.Flags().BoolVar(&c.noHelm, "no-helm", false, "don't read the Secrets in which Helm keeps its releases")
	cmd.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
}

// namespace is the one that was asked about, or empty.
func (c *cluster) namespace() string { return *c.kube.Namespace }

// labels selects the pods that were asked about, or is nil.
func (c *cluster) labels() (labels.Selector, error) {
	if c.selector == "" {
		return nil, nil
	}
	selector, err := labels.Parse(c.selector)
	if err != nil {
		return nil, fmt.Errorf("--selector: %w", err)
	}
	return selector, nil
}

// connect reaches the cluster, so that what is wrong with the connection is
// said in one line and not as a gap for each document.
func (c *cluster) connect(ctx context.Context) (*live.Cluster, error) {
	loader := c.kube.ToRawKubeConfigLoader()
	raw, err := loader.RawConfig()
	if err != nil {
		return nil, live.ExplainConfig(err)
	}
	if len(raw.Clusters) == 0 && *c.kube.APIServer == "" && os.Getenv("KUBERNETES_SERVICE_HOST") == "" {
		return nil, live.ExplainConfig(errors.New("no configuration has been provided"))
	}
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, live.ExplainConfig(err)
	}
	options := live.Options{NoHelm: c.noHelm, Namespace: c.namespace(), NoAWS: "--no-aws: AWS was not read"}
	if stderr := os.Stderr; isTerminal(stderr) {
		options.Progress = newProgress(stderr).tell
	}
	options.Name = *c.kube.ClusterName
	contextName := raw.CurrentContext
	if *c.kube.Context != "" {
		contextName = *c.kube.Context
	}
	if at := raw.Contexts[contextName]; at != nil && options.Name == "" {
		options.Name = at.Cluster
	}
	cluster, err := live.NewCluster(config, options)
	if err != nil {
		return nil, err
	}
	if !c.noAWS {
		where := live.AWSOptions{Profile: c.profile, Region: c.region, Nodes: cluster}
		cluster.AWS = live.NewAWS(where.Or(live.Hints(options.Name, config.Host, config.ExecProvider)))
	}
	if err := cluster.Contact(ctx); err != nil {
		return nil, err
	}
	if ns := c.namespace(); ns != "" {
		return cluster, namespaceExists(ctx, cluster, ns)
	}
	return cluster, nil
}

// namespaceExists fails if the cluster is known not to have the namespace.
func namespaceExists(ctx context.Context, src probes.Source, name string) error {
	var gap *probes.Gap
	for ns, err := range probes.Items[struct {
		Metadata struct{ Name string }
	}](ctx, src, probes.Document{Path: "namespaces", Only: []string{name}}) {
		if errors.As(err, &gap) {
			return nil // it can't be told
		}
		if err != nil {
			return err
		}
		if ns.Metadata.Name == name {
			return nil
		}
	}
	return fmt.Errorf("there is no namespace %q; `kubectl get namespaces` lists those that exist", name)
}
