package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pposiraegi/ppodoctor/probes"
)

// severalTaggedGroups: an interface of a node carries more than one security
// group that is tagged for the cluster; the AWS Load Balancer Controller
// refuses to choose.
// Source: kubernetes-sigs/aws-load-balancer-controller
// pkg/networking/networking_manager.go (resolveEndpointSGForENI).
var severalTaggedGroups = &Rule{
	ID:     "several-cluster-tagged-groups",
	Latent: true,
	Needs:  []probes.Any{probes.EC2NodeClasses, probes.SecurityGroups, probes.EKSCluster, probes.Deployments},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		classes, err := probes.EC2NodeClasses.Of(facts)
		groups, err2 := probes.SecurityGroups.Of(facts)
		if err != nil || err2 != nil || !hasLoadBalancerController(facts) {
			return nil
		}
		name := clusterName(facts)
		if name == "" {
			return nil
		}
		var found []Suspect
		for _, c := range classes.All() {
			var tagged []string
			for _, g := range groups.All() {
				if slices.Contains(classGroups(c), *g.GroupId) && hasTag(g.Tags, "kubernetes.io/cluster/"+name, "*") {
					tagged = append(tagged, fmt.Sprintf("%s (%s)", *g.GroupId, *g.GroupName))
				}
			}
			found = append(found, Suspect{
				Subjects: []Ref{{Kind: "EC2NodeClass", Name: c.Name}}, Data: tagged,
				Vars: map[string]string{"tag": "kubernetes.io/cluster/" + name, "groups": strings.Join(tagged, ", "), "selector": selectorWords(c)},
			})
		}
		return found
	},
	Tests: []Test{{
		Asks: "Do its nodes get more than one group tagged {tag}?",
		Run: func(_ *probes.Facts, s Suspect) Answer {
			tagged := s.Data.([]string)
			return Answered(len(tagged) > 1, Saw("aws/ec2/describe-security-groups", nil, "of the groups that %s selects, %d carry the tag %s: %s", s.Subjects[0], len(tagged), s.Vars["tag"], strings.Join(tagged, ", ")))
		},
	}},
}

func clusterName(facts *probes.Facts) string {
	if c, err := probes.EKSCluster.Of(facts); err == nil {
		return c.Name
	}
	if m, ok := facts.Source().(interface{ ClusterMeta() probes.SnapshotMeta }); ok {
		return m.ClusterMeta().Cluster
	}
	return ""
}

// hasLoadBalancerController reports whether a Deployment runs the AWS Load
// Balancer Controller, by its label or image.
func hasLoadBalancerController(facts *probes.Facts) bool {
	deployments, err := probes.Deployments.Of(facts)
	if err != nil {
		return false
	}
	for _, d := range deployments.All() {
		if d.Labels["app.kubernetes.io/name"] == "aws-load-balancer-controller" {
			return true
		}
		for _, c := range d.Spec.Template.Spec.Containers {
			if strings.Contains(c.Image, "aws-load-balancer-controller") {
				return true
			}
		}
	}
	return false
}
