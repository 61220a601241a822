package diagnose

import (
	"fmt"
	"regexp"
	"slices"

	ec2 "github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/pposiraegi/ppodoctor/probes"
)

// ofInstance finds the instance in the description that the VPC CNI gives the
// interfaces that it makes. Source: amazon-vpc-cni-k8s pkg/awsutils
// (eniDescriptionPrefix "aws-K8S-").
var ofInstance = regexp.MustCompile(`^aws-K8S-(i-[0-9a-f]+)$`)

// interfacesLeft: the cluster is being deleted, and interfaces that the VPC
// CNI made for its nodes are attached to nothing: they keep their security
// groups and subnets from being deleted.
var interfacesLeft = &Rule{
	ID: "interfaces-left-behind", Latent: true, Needs: []probes.Any{probes.EKSCluster},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		c, err := probes.EKSCluster.Of(facts)
		if err != nil || string(c.Status) != "DELETING" && string(c.Status) != "FAILED" {
			return nil
		}
		return []Suspect{{
			Subjects: []Ref{{Kind: "EKSCluster", Name: c.Name}}, Vars: map[string]string{"interfaces": "", "groups": "its security groups", "count": "", "one": "ENI"},
			Found: []Evidence{Saw("aws/eks/describe-cluster", nil, "cluster %s is %s", c.Name, c.Status)},
		}}
	},
	Tests: []Test{{
		Asks: "Are interfaces that the VPC CNI made attached to nothing?", Needs: []probes.Any{probes.NetworkInterfaces},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			list, err := probes.NetworkInterfaces.Of(facts)
			if err != nil {
				return CantTell(err)
			}
			var ids, groups []string
			var saw []Evidence
			for _, i := range list.All() {
				m := ofInstance.FindStringSubmatch(str(i.Description))
				if m == nil || i.Status != ec2.NetworkInterfaceStatusAvailable {
					continue
				}
				ids = append(ids, str(i.NetworkInterfaceId))
				for _, g := range i.Groups {
					groups = appendNew(groups, str(g.GroupId))
				}
				saw = append(saw, Saw("aws/ec2/describe-network-interfaces", []string{str(i.NetworkInterfaceId)}, "interface %s, made for instance %s, is available: attached to nothing", str(i.NetworkInterfaceId), m[1]))
			}
			if len(ids) == 0 {
				return Answered(false, Saw("aws/ec2/describe-network-interfaces", nil, "no interface of the VPC CNI is without an instance"))
			}
			slices.Sort(groups)
			return Answered(true, append(slices.Clone(s.Found), saw[:min(len(saw), maxExamples)]...)...).
				With("interfaces", listed(ids)).With("groups", listed(groups)).With("count", fmt.Sprint(len(ids))).With("one", ids[0])
		},
	}},
}

// budgetNotComputed: a budget does not protect the pods that it selects, for
// how many there should be can't be computed.
// Source: kubernetes pkg/controller/disruption/disruption.go.
var budgetNotComputed = &Rule{
	ID: "disruption-budget-not-computed", Latent: true, Needs: []probes.Any{probes.DisruptionBudgets, probes.Pods},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		budgets, err := probes.DisruptionBudgets.Of(facts)
		if err != nil {
			return nil
		}
		var list []Suspect
		for _, b := range budgets.All() {
			for _, c := range b.Status.Conditions {
				if c.Type == "DisruptionAllowed" && c.Reason == "SyncFailed" {
					list = append(list, Suspect{
						Subjects: []Ref{{Kind: "PodDisruptionBudget", Namespace: b.Namespace, Name: b.Name}}, Vars: map[string]string{"says": clip(c.Message, 420)},
						Found: []Evidence{SawObject("poddisruptionbudgets.policy", b.Namespace, b.Name, "PodDisruptionBudget %s: SyncFailed: %s", b.Name, clip(c.Message, 420))},
					})
				}
			}
		}
		return list
	},
	Tests: []Test{{Asks: "Can the number of pods that {subject} is to keep not be computed?", Run: func(_ *probes.Facts, s Suspect) Answer { return Answered(true, s.Found...) }}},
}
