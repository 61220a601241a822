package diagnose

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	ec2 "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/network"
)

// from are the places on the network that newcomers start from: their
// instances, or what the class would attach.
func (n *newcomer) from(facts *probes.Facts) []network.Endpoint {
	var list []network.Endpoint
	if instances, err := knownInstances.Of(facts); err == nil && instances != nil {
		for _, id := range n.ids {
			i := instances.Get(id)
			if i == nil || len(list) == maxExamples {
				continue
			}
			for _, eni := range i.NetworkInterfaces {
				if eni.Attachment == nil || eni.Attachment.DeviceIndex == nil || *eni.Attachment.DeviceIndex == 0 {
					list = append(list, network.NetworkInterface(str(eni.NetworkInterfaceId)))
				}
			}
		}
	}
	if len(list) == 0 && n.class != nil && len(n.class.Status.SecurityGroups) > 0 {
		list = append(list, network.Attached("the next node of EC2NodeClass/"+n.class.Name, classGroups(n.class)...))
	}
	return list
}

// groupsOf are the security groups that newcomers carry.
func (n *newcomer) groupsOf(facts *probes.Facts) []string {
	if instances, err := knownInstances.Of(facts); err == nil && instances != nil {
		for _, id := range n.ids {
			if i := instances.Get(id); i != nil {
				var ids []string
				for _, g := range i.SecurityGroups {
					ids = appendNew(ids, str(g.GroupId))
				}
				return ids
			}
		}
	}
	if n.class != nil {
		return classGroups(n.class)
	}
	return nil
}

var pathNeeds = []probes.Any{probes.Network, probes.Instances, probes.EKSCluster}

// apiServerClosed: what nodes need first, the API server on port 443, does not
// let them in. Source: incident join-cluster-sg-443.
var apiServerClosed = joinRule("node-cannot-reach-api-server", "can the instances of {made} not reach the API server on TCP 443?", pathNeeds,
	func(n *newcomer) bool { return true },
	func(facts *probes.Facts, n *newcomer) []Ref {
		world, err := probes.Network.Of(facts)
		if err != nil {
			return []Ref{n.made()}
		}
		for _, a := range n.toAPI(facts, world) {
			if a.Truth == network.No && !a.Partly {
				return closedSubjects(facts, world, n, a)
			}
		}
		return []Ref{n.made()}
	},
	func(facts *probes.Facts, n *newcomer) Answer {
		world, err := probes.Network.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		var open []Evidence
		var lacking []error
		for _, a := range n.toAPI(facts, world) {
			switch {
			case a.Truth == network.No && !a.Partly:
				evidence := fromHops(a.Decisive(), 3)
				if _, err := n.differs(facts, world); err != nil && n.class != nil && len(n.nodes) == 0 {
					// It is closed; whose fault that is only a comparison tells.
					return CantTell(err, evidence...).With("says", hopWords(a.Decisive())).With("groups", groupNames(world, n.groupsOf(facts)))
				}
				if mine := n.groupsOf(facts); len(mine) > 0 {
					evidence = append(evidence, Evidence{Says: fmt.Sprintf("the instances of %s carry %s", short(n.made()), groupNames(world, mine))})
				}
				return Answered(true, evidence...).With("says", hopWords(a.Decisive())).With("groups", groupNames(world, n.groupsOf(facts)))
			case a.Truth == network.Yes:
				open = append(open, fromHops(a.Decisive(), 1)...)
			default:
				for _, h := range a.Decisive() {
					lacking = append(lacking, h.Err)
				}
			}
		}
		if len(open) > 0 || len(lacking) == 0 && len(n.from(facts)) > 0 {
			return Answered(false, open...)
		}
		if peer := n.readyPeer(facts); peer != nil {
			return Answered(false, SawObject("nodes", "", peer.Name, "node %s, made in the same way, is ready", peer.Name))
		}
		unknown := CantTell(errors.Join(append(lacking, facts.Err(probes.Instances))...))
		return unknown.With("says", "whether it is open could not be read").With("groups", "the nodes' groups")
	})

// readyPeer is a node made in the same way as nodes that have fallen silent,
// and ready; nil for those that never joined.
func (n *newcomer) readyPeer(facts *probes.Facts) *corev1.Node {
	nodes, err := probes.Nodes.Of(facts)
	if err != nil || len(n.nodes) == 0 || len(n.claims) > 0 {
		return nil
	}
	for _, peer := range nodes.All() {
		class, group := peer.Labels["karpenter.k8s.aws/ec2nodeclass"], peer.Labels["eks.amazonaws.com/nodegroup"]
		c := nodeCondition(peer, corev1.NodeReady)
		if c == nil || c.Status != corev1.ConditionTrue {
			continue
		}
		if n.class != nil && class == n.class.Name || n.group != nil && group == n.group.Name {
			return peer
		}
	}
	return nil
}

func groupNames(world *network.World, ids []string) string {
	var names []string
	for _, id := range ids {
		if name := world.GroupName(id); name != "" {
			names = append(names, id+" ("+name+")")
		} else {
			names = append(names, id)
		}
	}
	return orDefault(strings.Join(names, ", "), "no group that is known")
}

// toAPI are the paths to the API server as the groups and ACLs decide them.
func (n *newcomer) toAPI(facts *probes.Facts, world *network.World) []network.Answer {
	var list []network.Answer
	for _, from := range n.from(facts) {
		list = append(list, world.Path(from, network.APIServer(), network.TCP, 443).On(network.SecurityGroups, network.NetworkACLs, network.Services))
	}
	return list
}

// closedSubjects is what a person would change: the class where it selects
// other groups than nodes that have joined carry, else what stops the packet.
func closedSubjects(facts *probes.Facts, world *network.World, n *newcomer, a network.Answer) []Ref {
	subjects := []Ref{n.made()}
	hops := a.Decisive()
	if len(hops) == 0 || len(hops[0].Names) == 0 {
		return subjects
	}
	stops := Ref{Kind: hops[0].Kind, Name: hops[0].Names[0]}
	if hops[0].Kind != "SecurityGroup" || n.class == nil || len(n.nodes) > 0 {
		// Nodes that have joined carried the right groups: a rule was taken away.
		return append([]Ref{stops}, subjects...)
	}
	if differ, _ := n.differs(facts, world); differ {
		return append(subjects, stops)
	}
	return append([]Ref{stops}, subjects...)
}

// differs is whether newcomers of a class carry none of the groups that other
// nodes, which did join, carry; the error says that this can't be told.
func (n *newcomer) differs(facts *probes.Facts, world *network.World) (bool, error) {
	nodes, err := probes.Nodes.Of(facts)
	if err != nil || n.class == nil {
		return false, err
	}
	mine := n.groupsOf(facts)
	var lacking error
	for _, other := range nodes.All() {
		if slices.Contains(n.nodes, other.Name) || other.Labels["karpenter.k8s.aws/ec2nodeclass"] == n.class.Name || other.Labels["eks.amazonaws.com/compute-type"] == "fargate" {
			continue
		}
		i, err := world.NodeInterface(other.Name)
		if err != nil || i == nil {
			lacking = errors.Join(err, facts.Err(probes.Instances))
			continue
		}
		if !slices.ContainsFunc(i.Groups, func(g string) bool { return slices.Contains(mine, g) }) {
			return true, nil
		}
		return false, nil
	}
	return false, lacking
}

// joinServices are what a node asks before it can be one.
var joinServices = []string{".ec2", ".ecr.api", ".ecr.dkr", ".sts", ".eks", ".eks-auth"}

// vpcEndpointClosed: the interface endpoint of a service that nodes need does
// not let them in: names resolve to it, and nothing comes back.
var vpcEndpointClosed = joinRule("vpc-endpoint-refuses-nodes", "does a VPC endpoint that nodes need refuse the instances of {made}?", append([]probes.Any{probes.VPCEndpoints}, pathNeeds...),
	newcomersOnly,
	func(facts *probes.Facts, n *newcomer) []Ref {
		_, _, hops, id := n.closedEndpoint(facts)
		subjects := []Ref{n.made()}
		if id != "" {
			subjects = append([]Ref{{Kind: "VPCEndpoint", Name: id}}, subjects...)
		}
		if len(hops) > 0 && len(hops[0].Names) > 0 {
			subjects = append([]Ref{{Kind: hops[0].Kind, Name: hops[0].Names[0]}}, subjects...)
		}
		return subjects
	},
	func(facts *probes.Facts, n *newcomer) Answer {
		a, name, hops, id := n.closedEndpoint(facts)
		if id == "" {
			return a
		}
		evidence := append(fromHops(hops, 2), Saw("aws/ec2/describe-vpc-endpoints", []string{id}, "%s is the endpoint of %s", id, name))
		return Answered(true, evidence...).With("service", name).With("endpoint", id).With("says", hopWords(hops))
	})

func (n *newcomer) closedEndpoint(facts *probes.Facts) (none Answer, service string, hops []network.Hop, id string) {
	endpoints, err := probes.VPCEndpoints.Of(facts)
	world, worldErr := probes.Network.Of(facts)
	if err != nil || worldErr != nil {
		// Most VPCs have none; that they were not captured makes no suspect.
		return Answered(false, Evidence{Says: "no VPC endpoints were captured"}), "", nil, ""
	}
	for _, v := range endpoints.All() {
		name := str(v.ServiceName)
		if v.VpcEndpointType != ec2.VpcEndpointTypeInterface || v.PrivateDnsEnabled == nil || !*v.PrivateDnsEnabled || !slices.ContainsFunc(joinServices, func(s string) bool { return strings.HasSuffix(name, s) }) {
			continue
		}
		for _, from := range n.from(facts) {
			a := world.Path(from, network.VPCEndpoint(str(v.VpcEndpointId)), network.TCP, 443).On(network.SecurityGroups, network.NetworkACLs)
			if a.Truth == network.No && !a.Partly {
				return Answer{}, name, a.Decisive(), str(v.VpcEndpointId)
			}
		}
	}
	return Answered(false, Saw("aws/ec2/describe-vpc-endpoints", nil, "none of the %d VPC endpoints refuses them", endpoints.Len())), "", nil, ""
}
