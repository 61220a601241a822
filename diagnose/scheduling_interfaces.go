package diagnose

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/scheduling"
)

// branchInterface is the resource that the webhook of Security Groups for Pods
// adds to the pods that a SecurityGroupPolicy selects. A node offers it once
// its trunk interface is attached.
// Source: docs.aws.amazon.com/eks/latest/userguide/security-groups-for-pods.html.
const branchInterface corev1.ResourceName = "vpc.amazonaws.com/pod-eni"

// wantsBranchInterface is the nodes that are all that keep the pod waiting, if
// it asks for a branch interface and none of them offers any at all.
func wantsBranchInterface(p *placement, units []unit) []unit {
	if q := scheduling.Requests(p.pod)[branchInterface]; q.IsZero() {
		return nil
	}
	var nodes []unit
	for _, u := range units {
		if u.node == nil {
			continue
		}
		if q := u.node.Status.Allocatable[branchInterface]; !q.IsZero() {
			return nil
		}
		nodes = append(nodes, u)
	}
	return nodes
}

// noBranchInterfaces: no node offers the interface that the pods' security
// groups need; whose fault that is the rules that explain it tell.
var noBranchInterfaces = placementRule("branch-interfaces-not-offered", "does pod {pod} ask for "+string(branchInterface)+", which no node offers?",
	byBranch, true, nil, func(c pendingCase) told {
		return told{[]Ref{c.workload}, map[string]string{"nodes": fmt.Sprint(len(c.units))}, nil}
	})

// trunkRule is a rule for why no node offers branch interfaces.
func trunkRule(id, asks string, needs []probes.Any, who func(*probes.Facts) []Ref, test func(*probes.Facts, Suspect) Answer) *Rule {
	return &Rule{
		ID: id, Explains: []*Rule{noBranchInterfaces}, Needs: needs,
		Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
			s := Suspect{Subjects: who(facts), Effects: effects, Data: effects[0].Data, Vars: map[string]string{"workload": short(effects[0].Subject()), "role": "(whose name isn't known)"}}
			for _, e := range effects {
				for _, r := range e.Subjects {
					s.Subjects = appendNew(s.Subjects, r)
				}
			}
			return []Suspect{s}
		},
		Tests: []Test{{Asks: asks, Needs: needs, Run: test}},
	}
}

func enablesBranchInterfaces(facts *probes.Facts) (on bool, from Evidence, err error) {
	if _, err := probes.DaemonSets.Of(facts); err != nil {
		return false, Evidence{}, err
	}
	setting := cniSetting(facts, "ENABLE_POD_ENI")
	return setting == "true", SawObject("daemonsets.apps", "kube-system", "aws-node", "aws-node has ENABLE_POD_ENI %s", orDefault(setting, "not set, which is false")), nil
}

// branchInterfacesOff: the VPC CNI doesn't attach trunk interfaces.
var branchInterfacesOff = trunkRule("pod-security-groups-not-enabled", "does the VPC CNI leave Security Groups for Pods off (ENABLE_POD_ENI)?", []probes.Any{probes.DaemonSets},
	func(*probes.Facts) []Ref { return []Ref{awsNodeRef} },
	func(facts *probes.Facts, _ Suspect) Answer {
		on, from, err := enablesBranchInterfaces(facts)
		if err != nil {
			return CantTell(err)
		}
		return Answered(!on, from)
	})

// resourceController is the managed policy by which the control plane's VPC
// resource controller attaches trunk and branch interfaces.
const resourceController = "AmazonEKSVPCResourceController"

// resourceControllerDenied: the control plane may not attach them: the cluster's
// role lacks the policy for it.
var resourceControllerDenied = trunkRule("cluster-role-may-not-attach-interfaces", "does the role of the cluster lack "+resourceController+", while the VPC CNI has Security Groups for Pods on?", []probes.Any{probes.DaemonSets, probes.EKSCluster, probes.Roles},
	func(facts *probes.Facts) []Ref {
		if cluster, err := probes.EKSCluster.Of(facts); err == nil && cluster.RoleARN != "" {
			return []Ref{{Kind: "IAMRole", Name: probes.RoleName(cluster.RoleARN)}}
		}
		return []Ref{{Kind: "IAMRole", Name: "of the cluster"}}
	},
	func(facts *probes.Facts, s Suspect) Answer {
		on, from, err := enablesBranchInterfaces(facts)
		if err != nil {
			return CantTell(err)
		}
		if !on {
			return Answered(false, from)
		}
		cluster, err := probes.EKSCluster.Of(facts)
		if err != nil {
			return CantTell(err, from)
		}
		roles, err := probes.Roles.Of(facts)
		if err != nil {
			return CantTell(err, from)
		}
		role, err := roles.Get(cluster.RoleARN)
		if err != nil {
			return CantTell(err, from)
		}
		has, err := role.Attaches(resourceController)
		if err != nil {
			return CantTell(err, from)
		}
		return Answered(!has, from, Saw("aws/iam/list-attached-role-policies", []string{role.Name}, "role %s has %s attached: %t", role.Name, resourceController, has)).With("role", role.Name)
	})

// branchInterfacesUnsupported: the rest: all is set up, and the nodes' types
// have no trunk interface.
var branchInterfacesUnsupported = &Rule{
	ID: "nodes-without-trunk-interface", Explains: []*Rule{noBranchInterfaces}, LastResort: true, Needs: []probes.Any{probes.DaemonSets, probes.Nodes},
	Suspects: func(_ *probes.Facts, effects []*Finding) []Suspect {
		var found []Suspect
		for _, e := range effects {
			found = append(found, Suspect{Subjects: e.Subjects, Effects: []*Finding{e}, Data: e.Data, Vars: map[string]string{"types": "unknown", "workload": short(e.Subject())}})
		}
		return found
	},
	Tests: []Test{{Asks: "are the nodes of types that have no trunk interface, while the VPC CNI has Security Groups for Pods on?", Needs: []probes.Any{probes.DaemonSets, probes.Nodes}, Run: func(facts *probes.Facts, _ Suspect) Answer {
		on, from, err := enablesBranchInterfaces(facts)
		if err != nil {
			return CantTell(err)
		}
		if !on {
			return Answered(false, from)
		}
		nodes, err := probes.Nodes.Of(facts)
		if err != nil {
			return CantTell(err, from)
		}
		var types []string
		for _, n := range nodes.All() {
			t := n.Labels[corev1.LabelInstanceTypeStable]
			if t == "" || n.Labels["eks.amazonaws.com/compute-type"] == "fargate" {
				continue
			}
			if t[0] != 't' { // most others have one
				return Answered(false, from, SawObject("nodes", "", n.Name, "node %s (%s) could have a trunk interface and has none", n.Name, t))
			}
			types = appendNew(types, t)
		}
		return Answered(len(types) > 0, from, Saw("nodes", nil, "the nodes are of %s: the burstable types have no trunk interface", listed(types))).With("types", listed(types))
	}}},
}
