package diagnose

import (
	"slices"
	"strings"

	"github.com/pposiraegi/ppodoctor/probes"
)

// awsAuth is the ConfigMap that maps roles into the cluster.
var awsAuth = Ref{Kind: "ConfigMap", Namespace: "kube-system", Name: "aws-auth"}

var accessNeeds = []probes.Any{probes.AccessEntries, probes.EKSCluster, probes.ConfigMaps, probes.Roles, probes.Nodes}

// accessRule is a rule for node roles that the cluster doesn't let in.
func accessRule(id, asks string, at probes.StepName) *Rule {
	r := joinRule(id, asks, accessNeeds, func(n *newcomer) bool { return n.role != "" },
		func(facts *probes.Facts, n *newcomer) []Ref {
			subjects := []Ref{{Kind: "IAMRole", Name: n.role}, n.made()}
			if byConfigMap(facts, n.role, at) {
				subjects = append([]Ref{awsAuth}, subjects...)
			}
			return subjects
		},
		func(facts *probes.Facts, n *newcomer) Answer {
			a := answerOf(mapping(facts, n.role), at)
			if a.Truth == No {
				return a
			}
			cluster := orDefault(clusterName(facts), "CLUSTER")
			if configs, err := probes.ConfigMaps.Of(facts); err == nil && a.Truth == Yes {
				if m := configs.Get("kube-system", "aws-auth"); m != nil {
					if w := lastWriter(m); w != "" {
						a.Evidence = append(a.Evidence, SawObject("configmaps", "kube-system", "aws-auth", "ConfigMap aws-auth was last written %s", w))
					}
				}
			}
			if a.Truth == Unknown {
				a = a.With("says", "what lets it in could not be read")
			}
			return a.With("cluster", cluster).With("roleARN", arnOf(facts, n.role))
		})
	return r
}

// byConfigMap reports whether aws-auth, and not an access entry, is where a
// node's role is to be let in: the broken step is in it, or the cluster's
// nodes come in by it.
func byConfigMap(facts *probes.Facts, role string, at probes.StepName) bool {
	if c, err := probes.EKSCluster.Of(facts); err == nil {
		switch c.Access.AuthenticationMode {
		case "API":
			return false
		case "CONFIG_MAP":
			return true
		}
	}
	if link := probes.Link(mapping(facts, role), at); link != nil && !link.Holds && link.Document.Path == "configmaps" {
		return true
	}
	if entries, err := probes.AccessEntries.Of(facts); err == nil && slices.ContainsFunc(entries.All(), func(e probes.AccessEntry) bool { return strings.HasPrefix(e.Type, "EC2") }) {
		return false
	}
	mapped, err := probes.MappedRoles(facts)
	return err == nil && slices.ContainsFunc(mapped, func(m probes.MappedRole) bool { ok, _ := m.ForNodes(); return ok })
}

// arnOf is the ARN of a node's role, from whichever document names it.
func arnOf(facts *probes.Facts, name string) string {
	if roles, err := probes.Roles.Of(facts); err == nil {
		if r := roles.Named(name); r != nil && r.ARN != "" {
			return r.ARN
		}
	}
	if entries, err := probes.AccessEntries.Of(facts); err == nil {
		for _, e := range entries.All() {
			if probes.RoleName(e.PrincipalARN) == name {
				return e.PrincipalARN
			}
		}
	}
	if c, err := probes.EKSCluster.Of(facts); err == nil {
		if parts := strings.SplitN(c.ARN, ":", 6); len(parts) == 6 {
			return "arn:" + parts[1] + ":iam::" + parts[4] + ":role/" + name
		}
	}
	return name
}

// mapping is the chain from a node's role into the cluster. Of access entries
// that were captured one by one, those are taken for all if there is one for
// the role of every node that did join: whoever captured them, captured nodes'.
func mapping(facts *probes.Facts, role string) []probes.Step {
	cluster, _ := probes.EKSCluster.Of(facts)
	entries, entriesErr := probes.AccessEntries.Of(facts)
	mapped, mappedErr := probes.MappedRoles(facts)
	if entriesErr == nil && !entries.Listed {
		nodeEntries := slices.ContainsFunc(entries.All(), func(e probes.AccessEntry) bool { return strings.HasPrefix(e.Type, "EC2") })
		nodes, err := probes.Nodes.Of(facts)
		if err == nil && nodes.Len() > 0 && nodeEntries {
			entries = &probes.AccessList{AWSList: entries.AWSList, Listed: true}
		}
	}
	return probes.NodeMapping(cluster, entries, entriesErr, mapped, mappedErr, arnOf(facts, role))
}

// nodeRoleNotMapped: the cluster lets nobody in with the node's role.
var nodeRoleNotMapped = accessRule("node-role-not-mapped",
	"does neither an access entry nor aws-auth let role {role} into the cluster?", probes.StepMapped)

// accessEntryWrongType: the cluster lets the role in, but not as a node.
var accessEntryWrongType = accessRule("access-entry-wrong-type",
	"is role {role} let into the cluster, but not as a node?", probes.StepMappedAsNode)

// awsAuthUnreadable: mapRoles of aws-auth is no list of roles, so that the
// authenticator takes nobody by it.
var awsAuthUnreadable = joinRule("aws-auth-unreadable", "can mapRoles of aws-auth not be read?", accessNeeds, nil,
	func(_ *probes.Facts, n *newcomer) []Ref { return []Ref{awsAuth, n.made()} },
	func(facts *probes.Facts, n *newcomer) Answer {
		if c, err := probes.EKSCluster.Of(facts); err == nil && c.Access.AuthenticationMode == "API" {
			return Answered(false, Saw("aws/eks/describe-cluster", nil, "the cluster's authentication mode is API: aws-auth is not looked at"))
		}
		configs, err := probes.ConfigMaps.Of(facts)
		if err != nil {
			return CantTell(err).With("says", "whether it can be read is not known")
		}
		m := configs.Get("kube-system", "aws-auth")
		if m == nil {
			return Answered(false, Saw("configmaps", nil, "there is no ConfigMap kube-system/aws-auth"))
		}
		if _, err := probes.MappedRoles(facts); err == nil {
			return Answered(false, SawObject("configmaps", "kube-system", "aws-auth", "mapRoles of aws-auth is a list of roles"))
		} else {
			evidence := []Evidence{SawObject("configmaps", "kube-system", "aws-auth", "%v", err)}
			if w := lastWriter(m); w != "" {
				evidence = append(evidence, SawObject("configmaps", "kube-system", "aws-auth", "ConfigMap aws-auth was last written %s", w))
			}
			return Answered(true, evidence...).With("says", err.Error())
		}
	})
