package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// An Endpoint is one end of a path, as it is asked for. Kind is Pod, Node,
// APIServer, Service, VPCEndpoint, Interface, Address, Name or Attached.
type Endpoint struct {
	Kind            string
	Namespace, Name string
	Block           netip.Prefix // of an Address
	Groups          []string     // of an Attached
}

// Pod is a pod; Node a node; Service a Service, whose port is asked for.
func Pod(namespace, name string) Endpoint {
	return Endpoint{Kind: "Pod", Namespace: namespace, Name: name}
}

// Node is a node: its kubelet, and whatever listens on the host's network.
func Node(name string) Endpoint { return Endpoint{Kind: "Node", Name: name} }

// Service is what listens behind a Service; the port asked for is the Service's.
func Service(namespace, name string) Endpoint {
	return Endpoint{Kind: "Service", Namespace: namespace, Name: name}
}

// APIServer is the cluster's control plane. As a destination from inside the
// VPC it is the private endpoint where there is one; as a source it is the
// control plane's interfaces.
func APIServer() Endpoint { return Endpoint{Kind: "APIServer", Name: "API server"} }

// VPCEndpoint is a VPC endpoint, by its id.
func VPCEndpoint(id string) Endpoint { return Endpoint{Kind: "VPCEndpoint", Name: id} }

// NetworkInterface is an interface, by its id.
func NetworkInterface(id string) Endpoint { return Endpoint{Kind: "Interface", Name: id} }

// Address is an address; what owns it is looked up.
func Address(ip netip.Addr) Endpoint {
	return Endpoint{Kind: "Address", Name: ip.String(), Block: netip.PrefixFrom(ip, ip.BitLen())}
}

// CIDR is any address of a block that lies outside the cluster.
func CIDR(block netip.Prefix) Endpoint {
	return Endpoint{Kind: "Address", Name: block.String(), Block: block.Masked()}
}

// External is a host outside the cluster of which only the name is known.
func External(host string) Endpoint { return Endpoint{Kind: "Name", Name: host} }

// Attached is something that carries security groups, such as a load balancer.
func Attached(name string, groups ...string) Endpoint {
	return Endpoint{Kind: "Attached", Name: name, Groups: groups}
}

// String is how a person would name the end.
func (e Endpoint) String() string {
	switch e.Kind {
	case "APIServer":
		return "the API server"
	case "Address", "Name", "Attached":
		return e.Name
	}
	kind := e.Kind
	if kind != "VPCEndpoint" {
		kind = strings.ToLower(kind)
	}
	if e.Namespace != "" {
		return kind + " " + e.Namespace + "/" + e.Name
	}
	return kind + " " + e.Name
}

// An end is an Endpoint resolved to what filters its traffic.
type end struct {
	is      Endpoint
	pod     *corev1.Pod // nil where it is not a pod, or a hostNetwork one
	node    string      // the name of the node it is on
	host    bool        // it is the node's own network
	iface   *Interface
	err     error // why iface isn't known, where it should be
	podErr  error // it may be a pod, and this is why that is not known
	peer    Peer
	subnets []string // where it is: one, or several that are possible
	vpc     string
	outside bool   // nothing of ours filters on its side
	bare    bool   // security groups and ACLs do not apply to traffic with it
	port    int    // where it differs from the port asked for
	gateway string // it is reached only through this gateway endpoint
	docs    []Document
	snat    *Interface // where its traffic leaves the VPC, if not by iface
	snatErr error      // why that isn't known
}

func single(ips ...netip.Addr) []netip.Prefix {
	var blocks []netip.Prefix
	for _, ip := range ips {
		if ip.IsValid() {
			blocks = append(blocks, netip.PrefixFrom(ip, ip.BitLen()))
		}
	}
	return blocks
}

func (w *World) anywhere() []netip.Prefix {
	if len(w.Cluster.All) > 0 && w.Cluster.All[0].IPv6 {
		return []netip.Prefix{netip.MustParsePrefix("::/0")}
	}
	return []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
}

// on makes the interface the end's.
func (e *end) on(i *Interface, err error) {
	e.iface, e.err = i, err
	if i == nil {
		e.peer.GroupsErr = err
		return
	}
	e.peer.Groups, e.vpc = i.Groups, i.VPC
	e.subnets = []string{i.Subnet}
	e.docs = append(e.docs, i.Document)
	if len(e.peer.Within) == 0 {
		e.peer.Within = single(i.Addresses...)
	}
}

// resolve finds the ends that an endpoint stands for. A Service stands for its
// ready backends as seen from the given source.
func (w *World) resolve(p Endpoint, proto Protocol, port int, source *end) ([]end, []Hop) {
	switch p.Kind {
	case "Pod":
		pod := w.ix().pods[p.Namespace+"/"+p.Name]
		if pod == nil {
			err := absent(w, w.Pods, "pod", p.Namespace+"/"+p.Name)
			return []end{{is: p, err: err, podErr: err, peer: Peer{GroupsErr: err}}}, nil
		}
		return []end{w.podEnd(pod)}, nil
	case "Node":
		return []end{w.nodeEnd(p.Name)}, nil
	case "APIServer":
		return w.apiServerEnds(source)
	case "Service":
		return w.serviceEnds(p, proto, port, source)
	case "VPCEndpoint":
		return w.vpcEndpointEnds(p)
	case "Interface":
		e := end{is: p}
		i := w.ix().byID[p.Name]
		var err error
		if i == nil {
			err = absent(w, w.Interfaces, "interface", p.Name)
		}
		e.on(i, err)
		return []end{e}, nil
	case "Attached":
		within := w.vpcCIDRs()
		if len(within) == 0 {
			within = w.anywhere()
		}
		return []end{{is: p, peer: Peer{Groups: p.Groups, Within: within}, iface: &Interface{Groups: p.Groups}, vpc: w.vpc()}}, nil
	case "Name":
		// A private endpoint may hide behind any name.
		return []end{{is: p, outside: true, peer: Peer{Within: w.anywhere(), GroupsErr: fmt.Errorf("the address of %s isn't known", p.Name)}}}, nil
	}
	return w.addressEnds(p, proto, port, source)
}

func (w *World) podEnd(p *corev1.Pod) end {
	e := end{is: Pod(p.Namespace, p.Name), node: p.Spec.NodeName, docs: []Document{w.Pods.doc(p.Namespace + "/" + p.Name)}}
	e.peer.Within = single(podAddresses(p)...)
	e.host = p.Spec.HostNetwork
	if !e.host {
		e.pod = p
	}
	e.on(w.podInterface(p))
	if e.pod != nil && branchInterface(p) == "" {
		if e.snat, e.snatErr = e.iface, nil; e.iface == nil || !e.iface.Primary {
			e.snat, e.snatErr = w.NodeInterface(p.Spec.NodeName)
		}
	}
	return e
}

func (w *World) nodeEnd(name string) end {
	e := end{is: Node(name), node: name, host: true}
	if n := w.ix().nodes[name]; n != nil {
		e.peer.Within = single(nodeAddress(n))
		e.docs = append(e.docs, w.Nodes.doc(name))
	}
	e.on(w.NodeInterface(name))
	return e
}

// apiServerEnds are the control plane's interfaces, or the public endpoint for
// a source in a cluster without a private one.
func (w *World) apiServerEnds(source *end) ([]end, []Hop) {
	if !w.onAWS() {
		return []end{{is: APIServer(), outside: true, peer: Peer{Within: w.anywhere()}}}, nil
	}
	if source != nil && len(w.Cluster.All) == 0 {
		err := absent(w, w.Cluster, "the cluster's endpoint access", "")
		return []end{{is: APIServer(), err: err, peer: Peer{GroupsErr: err}}}, nil
	}
	if source != nil && (!w.Cluster.All[0].PrivateAccess || source.outside) {
		c := w.Cluster.All[0]
		h := Hop{Layer: Services, Code: AccessCIDRs, Kind: "EKSCluster", Names: []string{c.Name}, Documents: []Document{w.Cluster.doc(c.Name)}}
		switch {
		case !c.PublicAccess:
			h.Truth, h.Says = No, "the API server has no public endpoint"
		case slices.Contains(c.PublicCIDRs, "0.0.0.0/0") || len(c.PublicCIDRs) == 0:
			h.Truth, h.Says = Yes, "the API server's public endpoint is open to all addresses"
		default:
			h.Truth, h.Says = Unknown, "the API server is reached by its public endpoint, which only "+strings.Join(c.PublicCIDRs, ", ")+" may use; the public address that is used isn't known"
			h.Err = fmt.Errorf("the public address by which the VPC reaches the internet isn't known")
		}
		return []end{{is: APIServer(), outside: true, peer: Peer{Within: w.anywhere()}}}, []Hop{h}
	}
	return w.controlPlane()
}

// controlPlane are the control plane's interfaces; where they were not
// captured, one end that stands for any of them.
func (w *World) controlPlane() ([]end, []Hop) {
	var ends []end
	for _, i := range w.ControlPlaneInterfaces() {
		e := end{is: APIServer()}
		e.on(i, nil)
		ends = append(ends, e)
	}
	if len(ends) > 0 {
		return ends, nil
	}
	if len(w.Cluster.All) == 0 {
		err := absent(w, w.Cluster, "the control plane's interfaces", "")
		return []end{{is: APIServer(), err: err, peer: Peer{GroupsErr: err}}}, nil
	}
	c := w.Cluster.All[0]
	groups := slices.Compact(slices.Sorted(slices.Values(append([]string{c.PrimaryGroup}, c.AdditionalGroups...))))
	e := end{is: APIServer(), vpc: c.VPC, subnets: c.Subnets, docs: []Document{w.Cluster.doc(c.Name)}}
	e.iface = &Interface{Groups: groups, VPC: c.VPC, Document: w.Cluster.doc(c.Name)}
	e.peer = Peer{Groups: groups, Within: w.blocksOf(c.Subnets)}
	return []end{e}, nil
}

// blocksOf are the address blocks of subnets; none where one isn't known.
func (w *World) blocksOf(subnets []string) []netip.Prefix {
	var blocks []netip.Prefix
	for _, id := range subnets {
		s := w.ix().subnets[id]
		if s == nil {
			return nil
		}
		blocks = append(blocks, subnetBlocks(s)...)
	}
	return blocks
}

func (w *World) vpcEndpointEnds(p Endpoint) ([]end, []Hop) {
	for _, v := range w.VPCEndpoints.All {
		if str(v.VpcEndpointId) != p.Name {
			continue
		}
		doc := w.VPCEndpoints.doc(p.Name)
		var hops []Hop
		if s := strings.ToLower(string(v.State)); s != "" && s != "available" {
			hops = append(hops, Hop{
				Layer: Routes, Code: BadState, Truth: No, Kind: "VpcEndpoint", Names: []string{p.Name},
				Says: fmt.Sprintf("VPC endpoint %s (%s) is %s", p.Name, str(v.ServiceName), s), Documents: []Document{doc},
			})
		}
		if v.VpcEndpointType == "Gateway" {
			e := end{is: p, outside: true, gateway: p.Name, docs: []Document{doc}, vpc: str(v.VpcId)}
			e.peer = Peer{Within: w.anywhere(), PrefixList: w.prefixListOf(p.Name)}
			return []end{e}, hops
		}
		var ends []end
		for _, id := range v.NetworkInterfaceIds {
			if i := w.ix().byID[id]; i != nil {
				e := end{is: p, docs: []Document{doc}}
				e.on(i, nil)
				ends = append(ends, e)
			}
		}
		if len(ends) == 0 || len(ends) < len(v.NetworkInterfaceIds) {
			var groups []string
			for _, g := range v.Groups {
				groups = append(groups, str(g.GroupId))
			}
			slices.Sort(groups)
			e := end{is: p, vpc: str(v.VpcId), subnets: v.SubnetIds, docs: []Document{doc}, iface: &Interface{Groups: groups, VPC: str(v.VpcId), Document: doc}}
			e.peer = Peer{Groups: groups, Within: w.blocksOf(v.SubnetIds)}
			ends = []end{e}
		}
		return ends, hops
	}
	err := absent(w, w.VPCEndpoints, "VPC endpoint", p.Name)
	return []end{{is: p, err: err, peer: Peer{GroupsErr: err}}}, nil
}

var linkLocal = []netip.Prefix{netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("fd00:ec2::/32"), netip.MustParsePrefix("fe80::/10")}

func (w *World) addressEnds(p Endpoint, proto Protocol, port int, source *end) ([]end, []Hop) {
	ip, one := p.Block.Addr(), p.Block.IsSingleIP()
	e := end{is: p, peer: Peer{Within: []netip.Prefix{p.Block}}}
	if slices.ContainsFunc(linkLocal, func(l netip.Prefix) bool { return l.Contains(ip) && l.Bits() <= p.Block.Bits() }) || one && w.resolver(ip) {
		e.bare = true
		return []end{e}, nil
	}
	x := w.ix()
	if w.Pods.Err != nil && w.inVPC(p.Block) != No {
		e.podErr = fmt.Errorf("whether %s is a pod's address: %w", p.Name, w.Pods.Err)
	}
	if one {
		if pod := x.podsAt[ip]; pod != nil {
			return []end{w.podEnd(pod)}, nil
		}
		if n := x.nodesAt[ip]; n != nil {
			return []end{w.nodeEnd(n.Name)}, nil
		}
		if s := x.servicesAt[ip.String()]; s != nil {
			return w.serviceEnds(Service(s.Namespace, s.Name), proto, port, source)
		}
		if i, err := w.interfaceAt(ip, "", p.Name); err == nil {
			e.on(i, nil)
			return []end{e}, nil
		}
	}
	switch in := w.inVPC(p.Block); {
	case in == No, in == Unknown && !one:
		e.outside = true
		if ip.IsPrivate() { // a peered VPC's groups can be referred to
			e.peer.GroupsErr = fmt.Errorf("the security groups of %s, outside the VPC, aren't known", p.Name)
		}
	default:
		err := absent(w, w.Interfaces, "the interface at", p.Name)
		e.err, e.peer.GroupsErr = err, err
		if s := w.subnetOf(p.Block); s != "" {
			e.subnets = []string{s}
		}
	}
	return []end{e}, nil
}

// resolver says whether the address is AmazonProvidedDNS: the VPC's third.
func (w *World) resolver(ip netip.Addr) bool {
	for _, b := range w.vpcCIDRs() {
		if b.Addr().Next().Next() == ip {
			return true
		}
	}
	return false
}

// vpcCIDRs are the VPC's own blocks, from the local routes.
func (w *World) vpcCIDRs() []netip.Prefix {
	var blocks []netip.Prefix
	for _, t := range w.RouteTables.All {
		if str(t.VpcId) != w.vpc() {
			continue
		}
		for _, r := range t.Routes {
			if b, err := netip.ParsePrefix(str(r.DestinationCidrBlock) + str(r.DestinationIpv6CidrBlock)); err == nil && str(r.GatewayId) == "local" && !slices.Contains(blocks, b) {
				blocks = append(blocks, b)
			}
		}
	}
	return blocks
}

func (w *World) inVPC(block netip.Prefix) Truth {
	known := append(w.vpcCIDRs(), w.ix().vpcBlocks[w.vpc()]...)
	truth := No
	for _, b := range known {
		truth = or(truth, inBlock(b, block))
	}
	if truth != No || len(w.vpcCIDRs()) > 0 {
		return truth
	}
	if block.Addr().IsPrivate() || block.Bits() < 8 {
		return Unknown
	}
	return No
}

func (w *World) subnetOf(block netip.Prefix) string {
	for _, s := range w.Subnets.All {
		if str(s.VpcId) == w.vpc() && slices.ContainsFunc(subnetBlocks(&s), func(b netip.Prefix) bool { return inBlock(b, block) == Yes }) {
			return str(s.SubnetId)
		}
	}
	return ""
}
