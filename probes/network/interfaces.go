package network

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	ec2 "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// An Interface is a network interface (ENI), from describe-network-interfaces
// or, where that lacks it, from describe-instances.
type Interface struct {
	ID          string
	Instance    string // empty where it is not an instance's
	Description string
	Subnet, VPC string
	Primary     bool     // device 0 of network card 0
	Branch      bool     // of a pod with Security Groups for Pods
	Groups      []string // sorted
	Addresses   []netip.Addr
	Prefixes    []netip.Prefix // delegated to the interface; pods get addresses of these
	Document    Document
}

func (e *Interface) owns(ip netip.Addr) bool {
	return slices.Contains(e.Addresses, ip) ||
		slices.ContainsFunc(e.Prefixes, func(p netip.Prefix) bool { return p.Contains(ip) })
}

func fromNetworkInterface(n ec2.NetworkInterface, doc Document) *Interface {
	e := &Interface{
		ID: str(n.NetworkInterfaceId), Subnet: str(n.SubnetId), VPC: str(n.VpcId), Description: str(n.Description),
		Branch: n.InterfaceType == "branch", Document: doc, Groups: groupIDs(n.Groups),
	}
	if a := n.Attachment; a != nil {
		e.Instance = str(a.InstanceId)
		e.Primary = e.Instance != "" && a.DeviceIndex != nil && *a.DeviceIndex == 0 && (a.NetworkCardIndex == nil || *a.NetworkCardIndex == 0)
	}
	e.address(str(n.PrivateIpAddress))
	for _, a := range n.PrivateIpAddresses {
		e.address(str(a.PrivateIpAddress))
	}
	for _, a := range n.Ipv6Addresses {
		e.address(str(a.Ipv6Address))
	}
	for _, p := range n.Ipv4Prefixes {
		e.prefix(str(p.Ipv4Prefix))
	}
	for _, p := range n.Ipv6Prefixes {
		e.prefix(str(p.Ipv6Prefix))
	}
	return e
}

func fromInstance(i ec2.Instance, n ec2.InstanceNetworkInterface, doc Document) *Interface {
	e := &Interface{
		ID: str(n.NetworkInterfaceId), Instance: str(i.InstanceId), Subnet: str(n.SubnetId), VPC: str(n.VpcId),
		Description: str(n.Description), Document: doc, Groups: groupIDs(n.Groups),
	}
	if a := n.Attachment; a != nil {
		e.Primary = a.DeviceIndex != nil && *a.DeviceIndex == 0 && (a.NetworkCardIndex == nil || *a.NetworkCardIndex == 0)
	}
	e.address(str(n.PrivateIpAddress))
	for _, a := range n.PrivateIpAddresses {
		e.address(str(a.PrivateIpAddress))
	}
	for _, a := range n.Ipv6Addresses {
		e.address(str(a.Ipv6Address))
	}
	for _, p := range n.Ipv4Prefixes {
		e.prefix(str(p.Ipv4Prefix))
	}
	for _, p := range n.Ipv6Prefixes {
		e.prefix(str(p.Ipv6Prefix))
	}
	return e
}

func (e *Interface) address(s string) {
	if ip, err := netip.ParseAddr(s); err == nil && !slices.Contains(e.Addresses, ip) {
		e.Addresses = append(e.Addresses, ip)
	}
}

func (e *Interface) prefix(s string) {
	if p, err := netip.ParsePrefix(s); err == nil {
		e.Prefixes = append(e.Prefixes, p.Masked())
	}
}

func groupIDs(groups []ec2.GroupIdentifier) []string {
	var ids []string
	for _, g := range groups {
		ids = append(ids, str(g.GroupId))
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

func str(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}

// index finds the things of a World by what other things call them.
type index struct {
	interfaces []*Interface // by id
	byID       map[string]*Interface
	byInstance map[string][]*Interface
	byAddress  map[netip.Addr][]*Interface
	instances  map[string]bool // of which all interfaces are known
	groups     map[string]*group
	acls       map[string]*ec2.NetworkAcl // by subnet
	subnets    map[string]*ec2.Subnet
	nodes      map[string]*corev1.Node
	pods       map[string]*corev1.Pod     // by namespace/name
	podsAt     map[netip.Addr]*corev1.Pod // that run now and are not on the host's network
	namespaces map[string]*corev1.Namespace
	nodesAt    map[netip.Addr]*corev1.Node
	services   map[string]*corev1.Service               // by namespace/name
	servicesAt map[string]*corev1.Service               // by cluster IP
	slices     map[string][]*discoveryv1.EndpointSlice  // by namespace/service
	policies   map[string][]*networkingv1.NetworkPolicy // by namespace
	prefixes   map[string][]netip.Prefix                // of prefix lists
	vpcBlocks  map[string][]netip.Prefix                // of a VPC's subnets
}

func (w *World) ix() *index {
	w.once.Do(w.buildIndex)
	return &w.index
}

func (w *World) buildIndex() {
	x := &w.index
	x.byID = map[string]*Interface{}
	x.byInstance = map[string][]*Interface{}
	x.byAddress = map[netip.Addr][]*Interface{}
	add := func(e *Interface) {
		if e.ID != "" && x.byID[e.ID] == nil {
			x.byID[e.ID] = e
			x.interfaces = append(x.interfaces, e)
		}
	}
	for _, n := range w.Interfaces.All {
		add(fromNetworkInterface(n, w.Interfaces.doc(str(n.NetworkInterfaceId))))
	}
	x.instances = map[string]bool{}
	for _, i := range w.Instances.All {
		x.instances[str(i.InstanceId)] = true
		for _, n := range i.NetworkInterfaces {
			add(fromInstance(i, n, w.Instances.doc(str(i.InstanceId))))
		}
	}
	slices.SortFunc(x.interfaces, func(a, b *Interface) int { return cmp.Compare(a.ID, b.ID) })
	for _, e := range x.interfaces {
		if e.Instance != "" {
			x.byInstance[e.Instance] = append(x.byInstance[e.Instance], e)
		}
		for _, ip := range e.Addresses {
			x.byAddress[ip] = append(x.byAddress[ip], e)
		}
	}
	x.groups = w.indexGroups()
	x.acls = map[string]*ec2.NetworkAcl{}
	for i, a := range w.ACLs.All {
		for _, as := range a.Associations {
			x.acls[str(as.SubnetId)] = &w.ACLs.All[i]
		}
	}
	x.subnets = map[string]*ec2.Subnet{}
	x.vpcBlocks = map[string][]netip.Prefix{}
	for i, s := range w.Subnets.All {
		x.subnets[str(s.SubnetId)] = &w.Subnets.All[i]
		for _, p := range subnetBlocks(&s) {
			x.vpcBlocks[str(s.VpcId)] = append(x.vpcBlocks[str(s.VpcId)], p)
		}
	}
	x.prefixes = map[string][]netip.Prefix{}
	for _, l := range w.PrefixLists.All {
		x.prefixes[l.ID] = nil
		for _, c := range l.CIDRs {
			if p, err := netip.ParsePrefix(c); err == nil {
				x.prefixes[l.ID] = append(x.prefixes[l.ID], p.Masked())
			}
		}
	}
	x.nodes = map[string]*corev1.Node{}
	x.nodesAt = map[netip.Addr]*corev1.Node{}
	for _, n := range w.Nodes.All {
		x.nodes[n.Name] = n
		if ip := nodeAddress(n); ip.IsValid() && x.nodesAt[ip] == nil {
			x.nodesAt[ip] = n
		}
	}
	x.services, x.servicesAt = map[string]*corev1.Service{}, map[string]*corev1.Service{}
	for _, s := range w.Services.All {
		x.services[s.Namespace+"/"+s.Name] = s
		for _, ip := range append([]string{s.Spec.ClusterIP}, s.Spec.ClusterIPs...) {
			x.servicesAt[ip] = s
		}
	}
	x.slices = map[string][]*discoveryv1.EndpointSlice{}
	for _, s := range w.Slices.All {
		of := s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]
		x.slices[of] = append(x.slices[of], s)
	}
	x.policies = map[string][]*networkingv1.NetworkPolicy{}
	for _, np := range w.Policies.All {
		x.policies[np.Namespace] = append(x.policies[np.Namespace], np)
	}
	x.namespaces = map[string]*corev1.Namespace{}
	for _, n := range w.Namespaces.All {
		x.namespaces[n.Name] = n
	}
	x.pods, x.podsAt = map[string]*corev1.Pod{}, map[netip.Addr]*corev1.Pod{}
	for _, p := range w.Pods.All {
		x.pods[p.Namespace+"/"+p.Name] = p
		if p.Spec.HostNetwork || finished(p) {
			continue
		}
		for _, ip := range podAddresses(p) {
			if x.podsAt[ip] == nil {
				x.podsAt[ip] = p
			}
		}
	}
}

// finished says whether the pod's containers are gone for good, and with them
// its claim to its address.
func finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func podAddresses(p *corev1.Pod) []netip.Addr {
	var ips []netip.Addr
	for _, s := range append([]corev1.PodIP{{IP: p.Status.PodIP}}, p.Status.PodIPs...) {
		if ip, err := netip.ParseAddr(s.IP); err == nil && !slices.Contains(ips, ip) {
			ips = append(ips, ip)
		}
	}
	return ips
}

func subnetBlocks(s *ec2.Subnet) []netip.Prefix {
	var blocks []netip.Prefix
	if p, err := netip.ParsePrefix(str(s.CidrBlock)); err == nil {
		blocks = append(blocks, p.Masked())
	}
	for _, a := range s.Ipv6CidrBlockAssociationSet {
		if p, err := netip.ParsePrefix(str(a.Ipv6CidrBlock)); err == nil {
			blocks = append(blocks, p.Masked())
		}
	}
	return blocks
}

// vpc is the cluster's VPC, empty where it isn't known: the control plane says
// it, else it is where the nodes' instances are.
func (w *World) vpc() string {
	if len(w.Cluster.All) > 0 {
		return w.Cluster.All[0].VPC
	}
	for _, n := range w.Nodes.All {
		for _, e := range w.ix().byInstance[instanceOf(n)] {
			return e.VPC
		}
	}
	return ""
}

// instanceOf is the EC2 instance that a node runs on, by its provider id
// (aws:///eu-west-1a/i-0abc…); empty for a Fargate node.
func instanceOf(n *corev1.Node) string {
	id := n.Spec.ProviderID[strings.LastIndex(n.Spec.ProviderID, "/")+1:]
	if !strings.HasPrefix(id, "i-") {
		return ""
	}
	return id
}

// NodeInterface is the primary network interface of a node: the one that the
// node's own address and hostNetwork pods use.
func (w *World) NodeInterface(node string) (*Interface, error) {
	n := w.ix().nodes[node]
	if n == nil {
		return nil, absent(w, w.Nodes, "node", node)
	}
	id := instanceOf(n)
	if id == "" {
		return w.interfaceAt(nodeAddress(n), "", "node "+node)
	}
	for _, e := range w.ix().byInstance[id] {
		if e.Primary {
			return e, nil
		}
	}
	if len(w.ix().byInstance[id]) > 0 || w.Interfaces.Err == nil {
		return nil, absent(w, w.Interfaces, "the primary interface of instance", id)
	}
	return nil, absent(w, w.Instances, "instance", id)
}

func nodeAddress(n *corev1.Node) netip.Addr {
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			ip, _ := netip.ParseAddr(a.Address)
			return ip
		}
	}
	return netip.Addr{}
}

// PodInterface is the network interface whose groups filter the pod's traffic:
// the node's primary one for a hostNetwork pod, its branch interface with
// Security Groups for Pods, else the interface that owns the pod's address.
func (w *World) PodInterface(namespace, name string) (*Interface, error) {
	p := w.ix().pods[namespace+"/"+name]
	if p == nil {
		return nil, absent(w, w.Pods, "pod", namespace+"/"+name)
	}
	return w.podInterface(p)
}

func (w *World) podInterface(p *corev1.Pod) (*Interface, error) {
	x := w.ix()
	who := "pod " + p.Namespace + "/" + p.Name
	if p.Spec.NodeName == "" {
		return nil, fmt.Errorf("%s has no node yet", who)
	}
	if p.Spec.HostNetwork {
		return w.NodeInterface(p.Spec.NodeName)
	}
	if id := branchInterface(p); id != "" {
		if e := x.byID[id]; e != nil {
			branch := *e
			branch.Branch = true
			return &branch, nil
		}
		return nil, absent(w, w.Interfaces, "the branch interface of "+who+",", id)
	}
	ips := podAddresses(p)
	if len(ips) == 0 {
		return nil, fmt.Errorf("%s has no address yet", who)
	}
	instance := ""
	if n := x.nodes[p.Spec.NodeName]; n != nil {
		instance = instanceOf(n)
	}
	for _, e := range x.byInstance[instance] {
		if e.owns(ips[0]) {
			return e, nil
		}
	}
	if instance == "" {
		return w.interfaceAt(ips[0], "", who)
	}
	// The interfaces may have been read before the pod got its address. All
	// that the VPC CNI makes for a node carry the groups of the primary one,
	// save with custom networking or with another CNI: so where all of the
	// instance's are known and agree, the pod's agrees with them.
	node := x.byInstance[instance]
	if len(node) > 0 && x.instances[instance] && slices.ContainsFunc(x.vpcBlocks[node[0].VPC], func(b netip.Prefix) bool { return b.Contains(ips[0]) }) {
		same := func(e *Interface) bool { return slices.Equal(e.Groups, node[0].Groups) && e.Subnet == node[0].Subnet }
		if !slices.ContainsFunc(node, func(e *Interface) bool { return !same(e) }) {
			return node[0], nil
		}
	}
	return nil, absent(w, w.Interfaces, "the interface of "+who+" at", ips[0].String())
}

// interfaceAt is the interface that owns an address in the cluster's VPC.
func (w *World) interfaceAt(ip netip.Addr, vpc, who string) (*Interface, error) {
	x := w.ix()
	if vpc == "" {
		vpc = w.vpc()
	}
	var found []*Interface
	for _, e := range x.byAddress[ip] {
		if vpc == "" || e.VPC == "" || e.VPC == vpc {
			found = append(found, e)
		}
	}
	if len(found) == 0 {
		for _, e := range x.interfaces {
			if (vpc == "" || e.VPC == "" || e.VPC == vpc) && e.owns(ip) {
				found = append(found, e)
			}
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	return nil, absent(w, w.Interfaces, "the interface of "+who+" at", ip.String())
}

// branchInterface is the interface that Security Groups for Pods gave a pod,
// from its annotation. The VPC resource controller writes it as a JSON array
// (github.com/aws/amazon-vpc-resource-controller-k8s, pkg/provider/branch).
func branchInterface(p *corev1.Pod) string {
	var of []struct {
		ENI string `json:"eniId"`
	}
	if json.Unmarshal([]byte(p.Annotations["vpc.amazonaws.com/pod-eni"]), &of) != nil || len(of) == 0 {
		return ""
	}
	return of[0].ENI
}

// ControlPlaneInterfaces are those through which the API server is reached and
// reaches nodes and pods. EKS describes each as "Amazon EKS <cluster>".
func (w *World) ControlPlaneInterfaces() []*Interface {
	var found []*Interface
	for _, e := range w.ix().interfaces {
		if len(w.Cluster.All) > 0 && e.Description == "Amazon EKS "+w.Cluster.All[0].Name {
			found = append(found, e)
		}
		if len(w.Cluster.All) == 0 && strings.HasPrefix(e.Description, "Amazon EKS ") && (w.vpc() == "" || e.VPC == w.vpc()) {
			found = append(found, e)
		}
	}
	if len(w.Cluster.All) == 0 && slices.ContainsFunc(found, func(e *Interface) bool { return e.Description != found[0].Description }) {
		return nil // of several clusters: it isn't known which
	}
	return found
}
