package probes

import (
	"context"
	"errors"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pposiraegi/ppodoctor/probes/network"
)

// Network is all that is known of the network, put together so that paths can
// be asked for. It can always be had; what it lacks are gaps within it, which
// come out where an answer needs them.
var Network = &Probe[*network.World]{
	Name:  "network",
	About: "whether packets can pass: interfaces, security groups, ACLs, routes, network policies",
	After: []Any{
		Instances, NetworkInterfaces, SecurityGroups, SecurityGroupRules, Subnets, NetworkACLs, RouteTables, VPCEndpoints, PrefixLists, EKSCluster,
		Pods, Nodes, Namespaces, Services, EndpointSlices, NetworkPolicies, DaemonSets,
	},
	Gather: func(_ context.Context, _ Source, known *Facts) (*network.World, error) {
		w := &network.World{
			Instances:    awsKnown(Instances, "ec2/describe-instances", known),
			Interfaces:   awsKnown(NetworkInterfaces, "ec2/describe-network-interfaces", known),
			Groups:       awsKnown(SecurityGroups, "ec2/describe-security-groups", known),
			GroupRules:   awsKnown(SecurityGroupRules, "ec2/describe-security-group-rules", known),
			Subnets:      awsKnown(Subnets, "ec2/describe-subnets", known),
			ACLs:         awsKnown(NetworkACLs, "ec2/describe-network-acls", known),
			RouteTables:  awsKnown(RouteTables, "ec2/describe-route-tables", known),
			VPCEndpoints: awsKnown(VPCEndpoints, "ec2/describe-vpc-endpoints", known),
			PrefixLists:  awsKnown(PrefixLists, "ec2/describe-prefix-lists", known),
			Cluster:      clusterKnown(known),
			Pods:         podsKnown(known),
			Nodes:        listKnown(Nodes, known),
			Namespaces:   listKnown(Namespaces, known),
			Services:     listKnown(Services, known),
			Slices:       listKnown(EndpointSlices, known),
			Policies:     listKnown(NetworkPolicies, known),
			Lacks: func(m *network.Missing) error {
				return gapf(Document(m.Document), NotCaptured, "%s", m.Detail)
			},
		}
		w.Enforced, w.PodENIStandard, w.EnforcedErr = cniSettings(known)
		return w, nil
	},
}

func awsKnown[T any](p *Probe[*AWSList[T]], path string, known *Facts) network.Known[T] {
	k := network.Known[T]{Document: network.Document{Path: "aws/" + path}}
	l, err := p.Of(known)
	if err != nil {
		k.Err = err
		return k
	}
	k.All = l.All()
	return k
}

func listKnown[T any](p *Probe[*List[T]], known *Facts) network.Known[*T] {
	k := network.Known[*T]{Document: network.Document{Path: p.Name}}
	l, err := p.Of(known)
	if err != nil {
		k.Err = err
		return k
	}
	k.All = l.All()
	return k
}

func podsKnown(known *Facts) network.Known[*corev1.Pod] {
	k := network.Known[*corev1.Pod]{Document: network.Document{Path: "pods"}}
	l, err := Pods.Of(known)
	if err != nil {
		k.Err = err
		return k
	}
	k.All = l.All()
	return k
}

func clusterKnown(known *Facts) network.Known[network.Cluster] {
	k := network.Known[network.Cluster]{Document: network.Document{Path: "aws/eks/describe-cluster"}}
	c, err := EKSCluster.Of(known)
	if err != nil {
		k.Err = err
		return k
	}
	k.All = []network.Cluster{{
		Name: c.Name, VPC: c.VPC.ID, PrimaryGroup: c.VPC.ClusterSecurityGroup, AdditionalGroups: c.VPC.SecurityGroupIDs,
		Subnets: c.VPC.SubnetIDs, PublicAccess: c.VPC.PublicAccess, PrivateAccess: c.VPC.PrivateAccess,
		PublicCIDRs: c.VPC.PublicAccessCIDRs, IPv6: c.Network.IPFamily == "ipv6",
	}}
	return k
}

// enforcers are the DaemonSets of network plug-ins that enforce NetworkPolicies
// by default. Sources: docs.tigera.io (calico-node), docs.cilium.io (cilium),
// antrea.io (antrea-agent), kube-router.io, sigs.k8s.io/kube-network-policies.
var enforcers = []string{"calico-node", "canal", "cilium", "antrea-agent", "kube-router", "kube-network-policies"}

// kindnetEnforces is the day's tag from which kindnetd enforces NetworkPolicies
// (kubernetes-sigs/kind release v0.24.0).
const kindnetEnforces = "v20240813"

// cniSettings says, from the DaemonSets or else from their pods, whether
// something enforces NetworkPolicies and whether Security Groups for Pods run
// in standard mode. The VPC CNI enforces policies if its node agent runs with
// --enable-network-policy=true (github.com/aws/aws-network-policy-agent); the
// mode is an environment variable of aws-node (github.com/aws/amazon-vpc-cni-k8s,
// README, POD_SECURITY_GROUP_ENFORCING_MODE, strict by default).
func cniSettings(known *Facts) (enforced, standard network.Truth, err error) {
	agents := map[string]corev1.PodSpec{}
	sets, err := DaemonSets.Of(known)
	if err == nil {
		for _, ds := range sets.All() {
			if ds.Status.DesiredNumberScheduled > 0 || ds.Name == "aws-node" {
				agents[ds.Name] = ds.Spec.Template.Spec
			}
		}
	} else if pods, podsErr := Pods.Of(known); podsErr == nil {
		for _, p := range pods.All() {
			if owner := metav1.GetControllerOf(p); owner != nil && owner.Kind == "DaemonSet" {
				agents[owner.Name] = p.Spec
			}
		}
	}
	enforced, standard = network.Unknown, network.Unknown
	node, ok := agents["aws-node"]
	if ok {
		enforced, standard = network.No, network.No
		for _, c := range node.Containers {
			for _, e := range c.Env {
				if e.Name == "POD_SECURITY_GROUP_ENFORCING_MODE" && e.Value == "standard" {
					standard = network.Yes
				}
			}
			if slices.ContainsFunc(slices.Concat(c.Command, c.Args), func(a string) bool {
				return strings.TrimLeft(a, "-") == "enable-network-policy=true"
			}) {
				enforced = network.Yes
			}
		}
	}
	for _, name := range enforcers {
		if _, ok := agents[name]; ok {
			enforced = network.Yes
		}
	}
	for _, c := range agents["kindnet"].Containers {
		if _, tag, ok := strings.Cut(c.Image, "kindnetd:v"); ok && "v"+tag >= kindnetEnforces {
			enforced = network.Yes
		}
	}
	if enforced == network.Unknown && err == nil {
		err = errors.New("no network plug-in that is known to enforce NetworkPolicies, or known not to, is among the DaemonSets")
	}
	return enforced, standard, err
}
