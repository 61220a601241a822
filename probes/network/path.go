package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Path says whether from can reach to at a port, and get the reply. The port is
// the one the source dials: a Service's own port, not that of the pod behind.
// Beyond the VPC it says only whether the packet gets out.
func (w *World) Path(from, to Endpoint, proto Protocol, port int) Answer {
	a := Answer{From: from, To: to, Protocol: proto, Port: port}
	sources, before := w.resolve(from, proto, port, nil)
	a.Hops = before
	for i := range sources {
		targets, hops := w.resolve(to, proto, port, &sources[i])
		part := Answer{From: sources[i].is, To: to, Protocol: proto, Port: port, Hops: hops}
		for j := range targets {
			at := port
			if targets[j].port != 0 {
				at = targets[j].port
			}
			leg := Answer{From: sources[i].is, To: targets[j].is, Protocol: proto, Port: at, Hops: w.hops(&sources[i], &targets[j], proto, at)}
			leg.conclude()
			part.Parts = append(part.Parts, leg)
		}
		if len(part.Parts) == 1 {
			part.Hops = append(part.Hops, part.Parts[0].Hops...)
			part.Parts = nil
		}
		part.conclude()
		if len(sources) == 1 {
			a.Hops, a.Parts = append(a.Hops, part.Hops...), part.Parts
		} else {
			a.Parts = append(a.Parts, part)
		}
	}
	a.conclude()
	return a
}

// hops are the filters between two ends.
func (w *World) hops(from, to *end, proto Protocol, port int) []Hop {
	f, t := *from, *to
	f.peer.Within, t.peer.Within = sameFamily(f.peer.Within, t.peer.Within)
	from, to = &f, &t
	var hops []Hop
	if h, ok := w.policyHop(Egress, from, to, proto, port); ok {
		hops = append(hops, h)
	}
	if h, ok := w.policyHop(Ingress, to, from, proto, port); ok {
		hops = append(hops, h)
	}
	if from.bare || to.bare {
		return append(hops, Hop{
			Layer: SecurityGroups, Code: NotFiltered, Truth: Yes,
			Says: "link-local services and the VPC's resolver are not filtered by security groups and network ACLs",
		})
	}
	if !w.onAWS() {
		return append(hops, Hop{
			Layer: SecurityGroups, Code: NotFiltered, Truth: Yes, Documents: []Document{w.Nodes.doc()},
			Says: "the nodes are no EC2 instances, so that no VPC filters",
		})
	}
	switch w.sameHost(from, to) {
	case Yes:
		h := Hop{Layer: SecurityGroups, Code: SameHost, Truth: Yes, Documents: append(slices.Clone(from.docs), to.docs...)}
		h.Says = "both ends are on one instance, where security groups and network ACLs do not filter"
		return append(hops, h)
	case No:
		return append(hops, w.filters(from, to, proto, port)...)
	}
	// Where the filters let it pass it doesn't matter whether they are asked.
	filters := w.filters(from, to, proto, port)
	for i, h := range filters {
		if h.Truth == No {
			filters[i].Truth, filters[i].Code, filters[i].Err = Unknown, NotKnown, unplaced(from, to)
			filters[i].Says += "; but it isn't known whether the two ends share an instance, inside which nothing is filtered"
		}
	}
	return append(hops, filters...)
}

// unplaced is why it isn't known whether two ends share an instance.
func unplaced(from, to *end) error {
	for _, e := range []*end{from, to} {
		if e.err != nil {
			return e.err
		}
	}
	if len(from.subnets) != 1 || len(to.subnets) != 1 {
		return errSomeAddresses
	}
	return fmt.Errorf("the enforcing mode of Security Groups for Pods (POD_SECURITY_GROUP_ENFORCING_MODE on aws-node) isn't known")
}

// onAWS says whether the nodes are EC2 instances, as far as is known.
func (w *World) onAWS() bool {
	return w.Nodes.Err != nil || len(w.Nodes.All) == 0 || len(w.Cluster.All)+len(w.Instances.All)+len(w.Interfaces.All) > 0 ||
		slices.ContainsFunc(w.Nodes.All, func(n *corev1.Node) bool {
			return strings.HasPrefix(n.Spec.ProviderID, "aws://") || strings.HasPrefix(n.Spec.ProviderID, "eks-hybrid://")
		})
}

// filters are the decisions of what the VPC filters by.
func (w *World) filters(from, to *end, proto Protocol, port int) []Hop {
	var hops []Hop
	if !from.outside {
		hops = append(hops, w.groupHop(Egress, from, to, proto, port))
		if to.outside && (from.snat != nil || from.snatErr != nil) {
			hops[0] = w.snatHop(hops[0], from, to, proto, port)
		}
	}
	if !to.outside {
		hops = append(hops, w.groupHop(Ingress, to, from, proto, port))
	}
	hops = append(hops, w.aclHops(from, to, proto, port)...)
	if to.outside && !from.outside {
		subnet, vpc, err := "", from.vpc, from.snatErr
		if len(from.subnets) == 1 {
			subnet = from.subnets[0]
		}
		if from.snat != nil {
			subnet, vpc = from.snat.Subnet, from.snat.VPC
		}
		hops = append(hops, w.routeHop(subnet, vpc, err, to))
	}
	return hops
}

// sameFamily keeps the addresses of the one family that both ends have.
func sameFamily(a, b []netip.Prefix) (x, y []netip.Prefix) {
	is := func(six bool) func(netip.Prefix) bool {
		return func(p netip.Prefix) bool { return p.Addr().Is6() == six }
	}
	if len(a) == 0 || len(b) == 0 {
		return a, b
	}
	six := b[0].Addr().Is6()
	if !slices.ContainsFunc(a, is(six)) {
		six = !six
	}
	if !slices.ContainsFunc(a, is(six)) || !slices.ContainsFunc(b, is(six)) {
		return a, b
	}
	other := is(!six)
	return slices.DeleteFunc(slices.Clone(a), other), slices.DeleteFunc(slices.Clone(b), other)
}

// sameHost says whether traffic stays on an instance, where no group and no ACL
// filters it. A branch interface is the exception: in strict mode its traffic
// goes through the VPC even to its own node.
func (w *World) sameHost(from, to *end) Truth {
	if from.pod != nil && from.pod == to.pod {
		return Yes
	}
	same := shared(from, to)
	if same == No || !branched(from) && !branched(to) {
		return same
	}
	switch w.PodENIStandard {
	case Yes:
		return same
	case No:
		if same == Yes || from.iface != nil && to.iface != nil && from.iface.ID != to.iface.ID {
			return No
		} // else it may be one pod that talks to itself
	}
	return Unknown
}

func shared(from, to *end) Truth {
	switch {
	case from.node != "" && to.node != "":
		return truthOf(from.node == to.node)
	case elsewhere(from) || elsewhere(to):
		return No
	case from.iface != nil && to.iface != nil && !from.iface.Branch && !to.iface.Branch:
		return truthOf(from.iface.Instance == to.iface.Instance)
	}
	return Unknown
}

// elsewhere says whether an end is known not to be on one of the instances.
func elsewhere(e *end) bool {
	return e.outside || e.node == "" && e.iface != nil && e.iface.Instance == "" && !e.iface.Branch
}

func truthOf(b bool) Truth {
	if b {
		return Yes
	}
	return No
}

func branched(e *end) bool {
	return e.pod != nil && branchInterface(e.pod) != "" || e.iface != nil && e.iface.Branch
}

// groupHop says whether the groups of an end let the traffic pass.
func (w *World) groupHop(d Direction, of, peer *end, proto Protocol, port int) Hop {
	if of.iface == nil {
		err := of.err
		if err == nil {
			err = errNothingKnown
		}
		return Hop{
			Layer: SecurityGroups, Code: NotKnown, Truth: Unknown, Kind: "SecurityGroup", Err: err,
			Says: fmt.Sprintf("the security groups of %s aren't known", of.is),
		}
	}
	h := w.Admits(d, of.iface.Groups, peer.peer, proto, port)
	h.Says = of.is.String() + " → " + h.Says
	if d == Ingress {
		h.Says = peer.is.String() + " → " + of.is.String() + ": " + strings.TrimPrefix(h.Says, of.is.String()+" → ")
	} else {
		h.Says = of.is.String() + " → " + peer.is.String() + ": " + strings.TrimPrefix(h.Says, of.is.String()+" → ")
	}
	h.Documents = slices.Concat(of.docs, peer.docs, h.Documents)
	return h
}

// snatHop decides for a pod whose traffic out of the VPC may be rewritten to
// the node's primary interface, which carries other groups than the pod's.
func (w *World) snatHop(own Hop, from, to *end, proto Protocol, port int) Hop {
	if own.Truth == Unknown || from.iface == nil || from.snat != nil && slices.Equal(from.snat.Groups, from.iface.Groups) {
		return own
	}
	if from.snat == nil {
		own.Truth, own.Code, own.Err = Unknown, NotKnown, from.snatErr
		own.Says += "; but the node's primary interface, by which traffic leaves the VPC, isn't known"
		return own
	}
	node := w.Admits(Egress, from.snat.Groups, to.peer, proto, port)
	if node.Truth == own.Truth {
		return own
	}
	own.Truth, own.Code = Unknown, NotKnown
	own.Says += "; but traffic out of the VPC leaves by the node's primary interface unless AWS_VPC_K8S_CNI_EXTERNALSNAT is set: " + node.Says
	own.Err = fmt.Errorf("whether the VPC CNI translates the pod's address isn't known")
	return own
}

// aclHops are the decisions of the network ACLs of both subnets on the packet
// and on its reply.
func (w *World) aclHops(from, to *end, proto Protocol, port int) []Hop {
	if !from.outside && !to.outside && len(from.subnets) == 1 && slices.Equal(from.subnets, to.subnets) && from.subnets[0] != "" {
		return []Hop{{Layer: NetworkACLs, Code: SameSubnet, Truth: Yes, Says: "both ends are in " + from.subnets[0] + ", inside which network ACLs do not filter"}}
	}
	if w.ACLs.Err != nil {
		return []Hop{{
			Layer: NetworkACLs, Code: NotKnown, Truth: Unknown, Kind: "NetworkAcl", Says: "the network ACLs of the subnets aren't known",
			Err: fmt.Errorf("network ACLs: %w", w.ACLs.Err),
		}}
	}
	there := [2]int{port, port}
	asked, reply := fmt.Sprintf("%s %d", proto, port), fmt.Sprintf("replies (%s %s)", proto, portRange(ephemeral[0], ephemeral[1]))
	// The subnets of both ends may be the same one, for what is known.
	maybeSame := !from.outside && !to.outside && (len(from.subnets) == 0 || len(to.subnets) == 0 ||
		slices.ContainsFunc(from.subnets, func(s string) bool { return slices.Contains(to.subnets, s) }))
	var hops []Hop
	add := func(of *end, d Direction, peer *end, ports [2]int, what string) {
		if of.outside {
			return
		}
		h := w.aclOf(of, d, peer.peer.Within, proto, ports, what)
		if h.Truth == No && maybeSame {
			h.Truth, h.Code, h.Err = Unknown, NotKnown, unplaced(from, to)
			h.Says += "; but it isn't known whether the two ends share a subnet, inside which ACLs do not filter"
		}
		hops = append(hops, h)
	}
	add(from, Egress, to, there, asked)
	add(to, Ingress, from, there, asked)
	add(to, Egress, from, ephemeral, reply)
	add(from, Ingress, to, ephemeral, reply)
	return hops
}

// aclOf asks the ACL of each subnet that the end may be in.
func (w *World) aclOf(of *end, d Direction, peer []netip.Prefix, proto Protocol, ports [2]int, what string) Hop {
	err := of.err
	if len(of.subnets) == 0 {
		if err == nil {
			err = fmt.Errorf("the subnet of %s isn't known", of.is)
		}
		return w.aclHop("", err, d, peer, proto, ports, what)
	}
	hop := w.aclHop(of.subnets[0], nil, d, peer, proto, ports, what)
	for _, s := range of.subnets[1:] {
		next := w.aclHop(s, nil, d, peer, proto, ports, what)
		if next.Truth != hop.Truth {
			hop.Truth, hop.Code, hop.Err = Unknown, NotKnown, errSomeAddresses
			if next.Err != nil {
				hop.Err = next.Err
			}
			hop.Says = fmt.Sprintf("the network ACLs of the subnets that %s may be in differ", of.is)
			break
		}
	}
	return hop
}

// GroupsOfPod is the set of security groups that filters a pod's traffic, and
// the interface that carries it.
func (w *World) GroupsOfPod(p *corev1.Pod) ([]string, *Interface, error) {
	i, err := w.podInterface(p)
	if err != nil {
		return nil, nil, err
	}
	return i.Groups, i, nil
}

// GroupsOfNode is the set of security groups of a node's primary interface.
func (w *World) GroupsOfNode(name string) ([]string, *Interface, error) {
	i, err := w.NodeInterface(name)
	if err != nil {
		return nil, nil, err
	}
	return i.Groups, i, nil
}
