package diagnose

import (
	"context"
	"fmt"
	"strings"

	"github.com/pposiraegi/ppodoctor/probes"
)

// verdict is the diagnosis in one sentence.
func verdict(d *Diagnosis) string {
	hurt := func(n int) string {
		if n == 1 {
			return "1 symptom"
		}
		return fmt.Sprintf("%d symptoms", n)
	}
	switch {
	case len(d.Causes) == 1 && len(d.Unexplained) == 0:
		return fmt.Sprintf("%s: %s (explains %s).", d.Causes[0].Subject, d.Causes[0].Title, hurt(len(d.Causes[0].Effects)))
	case len(d.Causes) > 0:
		s := fmt.Sprintf("%d causes; first %s: %s (explains %s)", len(d.Causes), d.Causes[0].Subject, d.Causes[0].Title, hurt(len(d.Causes[0].Effects)))
		if len(d.Causes) == 1 {
			s = strings.TrimPrefix(s, "1 causes; first ")
		}
		if n := len(d.Unexplained); n > 0 {
			s += fmt.Sprintf("; %s without a proven cause", hurt(n))
		}
		return s + "."
	case len(d.Suspected) > 0:
		return fmt.Sprintf("No proven cause for %s; suspected: %s: %s.", hurt(len(d.Symptoms)), d.Suspected[0].Subject, d.Suspected[0].Title)
	case len(d.Symptoms) > 0:
		return fmt.Sprintf("%s, and no known cause fits: %s.", capital(hurt(len(d.Symptoms))), d.Symptoms[0].Title)
	case len(d.Risks) > 0:
		return fmt.Sprintf("Nothing is failing, but %s: %s.", d.Risks[0].Subject, d.Risks[0].Title)
	case len(d.Gaps) > 0:
		return fmt.Sprintf("Nothing wrong was seen, but %d %s could not be read.", len(d.Gaps), plural(len(d.Gaps), "document", "documents"))
	}
	return "Nothing wrong was found."
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// ExitCode is what the program ends with, the same in every format: 0 nothing
// wrong and all that was asked could be seen, 1 something is wrong, 3 nothing
// found wrong, but not all could be seen.
func (d *Diagnosis) ExitCode() int {
	switch {
	case len(d.Causes) > 0, len(d.Suspected) > 0, len(d.Symptoms) > 0:
		return 1
	case len(d.Gaps) > 0:
		return 3
	}
	return 0
}

const notAWS = "not AWS"

// clusterOf gathers what names the cluster; what can't be had stays empty.
func clusterOf(ctx context.Context, facts *probes.Facts) Cluster {
	facts.Gather(ctx, probes.Nodes, probes.Pods)
	c := Cluster{}
	if m, ok := facts.Source().(interface{ ClusterMeta() probes.SnapshotMeta }); ok {
		meta := m.ClusterMeta()
		c.Name, c.Region, c.Account, c.Version, c.Identity = meta.Cluster, meta.Region, meta.Account, meta.KubernetesVersion, meta.Identity
	}
	if pods, err := probes.Pods.Of(facts); err == nil {
		c.Pods = pods.Len()
	}
	nodes, err := probes.Nodes.Of(facts)
	if err != nil || nodes.Len() == 0 {
		return c
	}
	c.Nodes = nodes.Len()
	c.Platform = notAWS
	for _, n := range nodes.All() {
		if strings.HasPrefix(n.Spec.ProviderID, "aws://") || n.Labels["eks.amazonaws.com/nodegroup"] != "" || strings.HasSuffix(n.Name, ".compute.internal") || strings.Contains(n.Status.NodeInfo.KubeletVersion, "-eks-") {
			c.Platform = "EKS"
		}
		if c.Region == "" {
			c.Region = n.Labels["topology.kubernetes.io/region"]
		}
	}
	return c
}
