package network

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	ec2 "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// dice are where a random world comes from: a generator, or a fuzzer's bytes.
type dice func(n int) int

func (d dice) chance(percent int) bool { return d(100) < percent }

func pick[T any](d dice, from ...T) T { return from[d(len(from))] }

var (
	testPorts = []int{53, 80, 443, 8080, 9090, 10250}
	v4Blocks  = []string{"0.0.0.0/0", "10.0.0.0/16", "10.0.0.0/24", "10.0.1.0/24", "10.0.1.0/28", "10.0.0.10/32", "10.0.0.12/31", "192.168.0.0/16", "8.8.8.0/24"}
	v6Blocks  = []string{"::/0", "2001:db8::/56", "2001:db8:0:0::/64", "2001:db8:0:1::/64", "2001:db8:0:1::10/124", "2001:db8::10/128", "2600::/16"}
	allGroups = []string{"sg-a", "sg-b", "sg-c", "sg-d"}
)

// randomWorld is a small cluster in which everything is known, and its ends.
func randomWorld(d dice) (*World, []*host) {
	six := d.chance(20)
	blocks := v4Blocks
	if six {
		blocks = v6Blocks
	}
	address := func(subnet, n int) string {
		if six {
			return fmt.Sprintf("2001:db8:0:%d::%d", subnet, 10+n)
		}
		return fmt.Sprintf("10.0.%d.%d", subnet, 10+n)
	}
	w := &World{PodENIStandard: pick(d, Yes, No, No, ""), Enforced: pick(d, Yes, Yes, Yes, No, Unknown)}
	for _, k := range []*Document{&w.Interfaces.Document, &w.Groups.Document, &w.ACLs.Document, &w.Subnets.Document, &w.RouteTables.Document} {
		k.Path = "aws/ec2/describe-things"
	}
	w.Cluster.All = []Cluster{{Name: "c", VPC: "vpc-1", PrimaryGroup: "sg-a", IPv6: six, PrivateAccess: true}}
	if d.chance(50) {
		w.PrefixLists.All = []PrefixList{{ID: "pl-1", CIDRs: []string{pick(d, blocks...)}}, {ID: "pl-2"}}
	} else {
		w.PrefixLists.All = []PrefixList{{ID: "pl-1"}, {ID: "pl-2", CIDRs: []string{pick(d, blocks...), pick(d, blocks...)}}}
	}
	for i := range 2 {
		s := ec2.Subnet{SubnetId: aws.String("subnet-" + strconv.Itoa(i)), VpcId: aws.String("vpc-1")}
		if six {
			s.Ipv6CidrBlockAssociationSet = []ec2.SubnetIpv6CidrBlockAssociation{{Ipv6CidrBlock: aws.String(fmt.Sprintf("2001:db8:0:%d::/64", i))}}
		} else {
			s.CidrBlock = aws.String(fmt.Sprintf("10.0.%d.0/24", i))
		}
		w.Subnets.All = append(w.Subnets.All, s)
		w.ACLs.All = append(w.ACLs.All, randomACL(d, i, blocks, six))
		w.RouteTables.All = append(w.RouteTables.All, randomRoutes(d, i, six))
	}
	for _, id := range allGroups {
		w.Groups.All = append(w.Groups.All, ec2.SecurityGroup{
			GroupId:       aws.String(id),
			IpPermissions: randomPermissions(d, blocks, six), IpPermissionsEgress: randomPermissions(d, blocks, six),
		})
	}
	for _, ns := range []string{"red", "blue"} {
		w.Namespaces.All = append(w.Namespaces.All, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name:   ns,
			Labels: map[string]string{"kubernetes.io/metadata.name": ns, "env": pick(d, "prod", "dev")},
		}})
	}
	groups := func() []string {
		set := []string{pick(d, allGroups...)}
		if d.chance(30) {
			set = append(set, pick(d, allGroups...))
		}
		slices.Sort(set)
		return slices.Compact(set)
	}
	var hosts []*host
	for n := range 3 {
		node, subnet := "node-"+strconv.Itoa(n), d(2)
		primary, secondary := groups(), []string(nil)
		secondary = primary
		if d.chance(20) {
			secondary = groups()
		}
		ip := address(subnet, 4*n)
		obj := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: corev1.NodeSpec{ProviderID: "aws:///x/i-" + node},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}}},
		}
		w.Nodes.All = append(w.Nodes.All, obj)
		w.Interfaces.All = append(w.Interfaces.All, eni("eni-p-"+node, "i-"+node, 0, subnet, primary, ip),
			eni("eni-s-"+node, "i-"+node, 1, subnet, secondary, address(subnet, 4*n+1), address(subnet, 4*n+2)))
		exit := "subnet-" + strconv.Itoa(subnet)
		hosts = append(hosts, &host{name: node, ip: ip, node: node, groups: primary, nodeENI: primary, subnet: exit, exit: exit, onHost: true})
		for k := range 2 {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Namespace: pick(d, "red", "blue"), Name: fmt.Sprintf("pod-%d-%d", n, k),
				Labels: map[string]string{"app": pick(d, "web", "db")},
			}}
			if d.chance(30) {
				p.Labels["tier"] = "x"
			}
			p.Spec.NodeName = node
			p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: int32(pick(d, testPorts...)), Protocol: pick(d, corev1.ProtocolTCP, corev1.ProtocolUDP)}}}}
			p.Status.Phase = corev1.PodRunning
			h := &host{name: p.Name, node: node, groups: secondary, nodeENI: primary, subnet: exit, exit: exit, pod: p, notReady: d.chance(10)}
			h.ip = address(subnet, 4*n+1+k)
			switch {
			case d.chance(15):
				p.Spec.HostNetwork, h.onHost, h.ip, h.groups = true, true, ip, primary
			case d.chance(20):
				id, s := "eni-b-"+p.Name, d(2)
				h.branch, h.groups, h.subnet = true, groups(), "subnet-"+strconv.Itoa(s)
				h.exit, h.nodeENI = h.subnet, nil
				h.ip = address(s, 100+2*n+k)
				p.Annotations = map[string]string{"vpc.amazonaws.com/pod-eni": `[{"eniId":"` + id + `"}]`}
				w.Interfaces.All = append(w.Interfaces.All, eni(id, "", 0, s, h.groups, h.ip))
			}
			p.Status.PodIP = h.ip
			w.Pods.All = append(w.Pods.All, p)
			hosts = append(hosts, h)
		}
	}
	outside := []string{"8.8.8.8", "192.168.1.1"}
	if six {
		outside = []string{"2600::1"}
	}
	for _, ip := range outside {
		hosts = append(hosts, &host{name: ip, ip: ip, outside: true})
	}
	for n := range d(5) {
		w.Policies.All = append(w.Policies.All, randomPolicy(d, n, blocks))
	}
	return w, hosts
}

func eni(id, instance string, index int32, subnet int, groups []string, ips ...string) ec2.NetworkInterface {
	n := ec2.NetworkInterface{NetworkInterfaceId: aws.String(id), VpcId: aws.String("vpc-1"), SubnetId: aws.String("subnet-" + strconv.Itoa(subnet))}
	if instance != "" {
		n.Attachment = &ec2.NetworkInterfaceAttachment{InstanceId: aws.String(instance), DeviceIndex: aws.Int32(index)}
	} else {
		n.InterfaceType = "branch"
	}
	for _, g := range groups {
		n.Groups = append(n.Groups, ec2.GroupIdentifier{GroupId: aws.String(g)})
	}
	for _, ip := range ips {
		if netip.MustParseAddr(ip).Is6() {
			n.Ipv6Addresses = append(n.Ipv6Addresses, ec2.NetworkInterfaceIpv6Address{Ipv6Address: aws.String(ip)})
		} else {
			n.PrivateIpAddresses = append(n.PrivateIpAddresses, ec2.NetworkInterfacePrivateIpAddress{PrivateIpAddress: aws.String(ip)})
		}
	}
	return n
}

func randomPermissions(d dice, blocks []string, six bool) []ec2.IpPermission {
	var all []ec2.IpPermission
	for range d(4) {
		p := ec2.IpPermission{IpProtocol: aws.String(pick(d, "-1", "-1", "tcp", "tcp", "6", "udp", "17", "icmp", "50"))}
		if *p.IpProtocol != "-1" && *p.IpProtocol != "50" {
			from := pick(d, testPorts...)
			p.FromPort, p.ToPort = aws.Int32(int32(from)), aws.Int32(int32(pick(d, from, from, 65535)))
			if *p.IpProtocol == "icmp" {
				p.FromPort, p.ToPort = aws.Int32(-1), aws.Int32(-1)
			}
		}
		for range 1 + d(2) {
			switch d(5) {
			case 0, 1, 2:
				pair := ec2.UserIdGroupPair{GroupId: aws.String(pick(d, allGroups...))}
				if d.chance(10) {
					pair.PeeringStatus = aws.String(pick(d, "active", "deleted"))
				}
				p.UserIdGroupPairs = append(p.UserIdGroupPairs, pair)
			case 3:
				if six {
					p.Ipv6Ranges = append(p.Ipv6Ranges, ec2.Ipv6Range{CidrIpv6: aws.String(pick(d, blocks...))})
				} else {
					p.IpRanges = append(p.IpRanges, ec2.IpRange{CidrIp: aws.String(pick(d, blocks...))})
				}
			case 4:
				p.PrefixListIds = append(p.PrefixListIds, ec2.PrefixListId{PrefixListId: aws.String(pick(d, "pl-1", "pl-2"))})
			}
		}
		all = append(all, p)
	}
	return all
}

func randomACL(d dice, subnet int, blocks []string, six bool) ec2.NetworkAcl {
	a := ec2.NetworkAcl{
		NetworkAclId: aws.String("acl-" + strconv.Itoa(subnet)),
		Associations: []ec2.NetworkAclAssociation{{SubnetId: aws.String("subnet-" + strconv.Itoa(subnet))}},
	}
	add := func(number int, egress bool, action ec2.RuleAction, proto, block string, ports *ec2.PortRange) {
		e := ec2.NetworkAclEntry{RuleNumber: aws.Int32(int32(number)), Egress: aws.Bool(egress), RuleAction: action, Protocol: aws.String(proto), PortRange: ports}
		if six {
			e.Ipv6CidrBlock = aws.String(block)
		} else {
			e.CidrBlock = aws.String(block)
		}
		a.Entries = append(a.Entries, e)
	}
	plain := d.chance(60)
	for _, egress := range []bool{true, false} {
		add(32767, egress, ec2.RuleActionDeny, "-1", blocks[0], nil)
		if plain || d.chance(40) {
			add(900, egress, ec2.RuleActionAllow, "-1", blocks[0], nil)
		}
		if plain {
			continue
		}
		numbers := []int{100, 110, 120, 130, 140}
		for range d(5) {
			i := d(len(numbers))
			ports := pick(d, nil, &ec2.PortRange{From: aws.Int32(443), To: aws.Int32(443)}, &ec2.PortRange{From: aws.Int32(1024), To: aws.Int32(65535)},
				&ec2.PortRange{From: aws.Int32(32768), To: aws.Int32(60999)}, &ec2.PortRange{From: aws.Int32(40000), To: aws.Int32(50000)}, &ec2.PortRange{From: aws.Int32(53), To: aws.Int32(443)})
			proto := pick(d, "6", "6", "17", "-1")
			if proto == "-1" {
				ports = nil
			}
			add(numbers[i], egress, pick(d, ec2.RuleActionAllow, ec2.RuleActionDeny), proto, pick(d, blocks...), ports)
			numbers = slices.Delete(numbers, i, i+1)
		}
	}
	return a
}

func randomRoutes(d dice, subnet int, six bool) ec2.RouteTable {
	t := ec2.RouteTable{
		RouteTableId: aws.String("rtb-" + strconv.Itoa(subnet)), VpcId: aws.String("vpc-1"),
		Associations: []ec2.RouteTableAssociation{{SubnetId: aws.String("subnet-" + strconv.Itoa(subnet))}},
	}
	add := func(block, gateway string) {
		r := ec2.Route{GatewayId: aws.String(gateway), State: pick(d, ec2.RouteStateActive, ec2.RouteStateActive, ec2.RouteStateActive, ec2.RouteStateBlackhole)}
		if gateway == "local" {
			r.State = ec2.RouteStateActive
		}
		if six {
			r.DestinationIpv6CidrBlock = aws.String(block)
		} else {
			r.DestinationCidrBlock = aws.String(block)
		}
		t.Routes = append(t.Routes, r)
	}
	local, all, some := "10.0.0.0/16", "0.0.0.0/0", "8.8.0.0/16"
	if six {
		local, all, some = "2001:db8::/56", "::/0", "2600::/16"
	}
	add(local, "local")
	if d.chance(70) {
		add(all, "nat-1")
	}
	if d.chance(30) {
		add(some, "tgw-1")
	}
	return t
}

func randomSelector(d dice, keys ...string) *metav1.LabelSelector {
	values := map[string][]string{"app": {"web", "db"}, "tier": {"x", "y"}, "env": {"prod", "dev"}, "kubernetes.io/metadata.name": {"red", "blue"}}
	s := &metav1.LabelSelector{}
	if d.chance(25) {
		return s
	}
	key := pick(d, keys...)
	if d.chance(60) {
		s.MatchLabels = map[string]string{key: pick(d, values[key]...)}
		return s
	}
	e := metav1.LabelSelectorRequirement{Key: key, Operator: pick(d, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist)}
	if e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpNotIn {
		e.Values = []string{pick(d, values[key]...)}
	}
	s.MatchExpressions = []metav1.LabelSelectorRequirement{e}
	return s
}

func randomPolicy(d dice, n int, blocks []string) *networkingv1.NetworkPolicy {
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: pick(d, "red", "blue"), Name: "np-" + strconv.Itoa(n)}}
	np.Spec.PodSelector = *randomSelector(d, "app", "tier")
	in, out := networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress
	np.Spec.PolicyTypes = pick(d, nil, []networkingv1.PolicyType{in}, []networkingv1.PolicyType{out}, []networkingv1.PolicyType{in, out})
	peers := func() []networkingv1.NetworkPolicyPeer {
		var all []networkingv1.NetworkPolicyPeer
		for range d(3) {
			var p networkingv1.NetworkPolicyPeer
			switch d(4) {
			case 0:
				p.PodSelector = randomSelector(d, "app", "tier")
			case 1:
				p.NamespaceSelector = randomSelector(d, "env", "kubernetes.io/metadata.name")
			case 2:
				p.PodSelector, p.NamespaceSelector = randomSelector(d, "app", "tier"), randomSelector(d, "env")
			case 3:
				p.IPBlock = &networkingv1.IPBlock{CIDR: pick(d, blocks...)}
				if d.chance(40) {
					p.IPBlock.Except = []string{pick(d, blocks...)}
				}
			}
			all = append(all, p)
		}
		return all
	}
	ports := func() []networkingv1.NetworkPolicyPort {
		var all []networkingv1.NetworkPolicyPort
		for range d(3) {
			var p networkingv1.NetworkPolicyPort
			if d.chance(70) {
				p.Protocol = ptr(pick(d, corev1.ProtocolTCP, corev1.ProtocolUDP))
			}
			switch d(4) {
			case 0:
			case 1:
				p.Port = ptr(intstr.FromString("web"))
			default:
				p.Port = ptr(intstr.FromInt32(int32(pick(d, testPorts...))))
				if d.chance(30) {
					p.EndPort = aws.Int32(p.Port.IntVal + int32(d(9000)))
				}
			}
			all = append(all, p)
		}
		return all
	}
	for range d(3) {
		np.Spec.Ingress = append(np.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: peers(), Ports: ports()})
	}
	for range d(3) {
		np.Spec.Egress = append(np.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: peers(), Ports: ports()})
	}
	return np
}

func (h *host) endpoint() Endpoint {
	switch {
	case h.outside:
		return Address(netip.MustParseAddr(h.ip))
	case h.pod != nil:
		return Pod(h.pod.Namespace, h.pod.Name)
	}
	return Node(h.name)
}

// withService adds a Service in front of some pods, at a port of its own.
func withService(d dice, w *World, hosts []*host) (backends []*host, port int) {
	target := pick(d, testPorts...)
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: "svc"}}
	s.Spec.Ports = []corev1.ServicePort{{Name: "p", Port: 1234, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt(target)}}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: "svc-1", Labels: map[string]string{discoveryv1.LabelServiceName: "svc"}}}
	slice.Ports = []discoveryv1.EndpointPort{{Name: aws.String("p"), Port: aws.Int32(int32(target)), Protocol: ptr(corev1.ProtocolTCP)}}
	for _, h := range hosts {
		if h.pod == nil || !d.chance(40) {
			continue
		}
		ready := !h.notReady
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{h.ip}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: h.pod.Namespace, Name: h.pod.Name},
		})
		if ready {
			backends = append(backends, h)
		}
	}
	w.Services.All = []*corev1.Service{s}
	w.Slices.All = []*discoveryv1.EndpointSlice{slice}
	return backends, target
}

// withhold takes one kind of thing away from the world.
func withhold(d dice, w *World) *World {
	why := errors.New("withheld")
	v := &World{
		Instances: w.Instances, Interfaces: w.Interfaces, Groups: w.Groups, Subnets: w.Subnets, ACLs: w.ACLs, RouteTables: w.RouteTables,
		PrefixLists: w.PrefixLists, Cluster: w.Cluster, Pods: w.Pods, Nodes: w.Nodes, Namespaces: w.Namespaces, Services: w.Services, Slices: w.Slices,
		Policies: w.Policies, Enforced: w.Enforced, PodENIStandard: w.PodENIStandard,
	}
	drop := func() {
		switch d(14) {
		case 0:
			v.Interfaces = Known[ec2.NetworkInterface]{Err: why}
		case 1:
			v.Groups = Known[ec2.SecurityGroup]{Err: why}
		case 2:
			v.Subnets = Known[ec2.Subnet]{Err: why}
		case 3:
			v.ACLs = Known[ec2.NetworkAcl]{Err: why}
		case 4:
			v.RouteTables = Known[ec2.RouteTable]{Err: why}
		case 5:
			v.PrefixLists = Known[PrefixList]{Err: why}
		case 6:
			v.Cluster = Known[Cluster]{Err: why}
		case 7:
			v.Pods = Known[*corev1.Pod]{Err: why}
		case 8:
			v.Nodes = Known[*corev1.Node]{Err: why}
		case 9:
			v.Namespaces = Known[*corev1.Namespace]{Err: why}
		case 10:
			v.Services = Known[*corev1.Service]{Err: why}
		case 11:
			v.Slices = Known[*discoveryv1.EndpointSlice]{Err: why}
		case 12:
			v.Policies = Known[*networkingv1.NetworkPolicy]{Err: why}
		case 13: // a document that was narrowed
			if i := d(len(w.Groups.All)); len(v.Groups.All) > 0 {
				v.Groups.All = slices.Delete(slices.Clone(w.Groups.All), i, i+1)
			}
			if i := d(len(w.Interfaces.All)); len(v.Interfaces.All) > 0 {
				v.Interfaces.All = slices.Delete(slices.Clone(w.Interfaces.All), i, i+1)
			}
		}
	}
	for range 1 + d(3) {
		drop()
	}
	return v
}

// compare asks every question of a random world twice, and again of the same
// world with things withheld: the answers may become Unknown, but never flip.
func compare(t testing.TB, d dice, questions int, seen map[Truth]int) {
	w, hosts := randomWorld(d)
	backends, target := withService(d, w, hosts)
	less := withhold(d, w)
	for range questions {
		from := pick(d, hosts[:len(hosts)-1]...)
		if from.outside {
			continue
		}
		p := packet{from: from, to: pick(d, hosts...), proto: pick(d, TCP, TCP, UDP), port: pick(d, testPorts...)}
		to, want := p.to.endpoint(), Truth("")
		if d.chance(20) {
			to, p.proto = Service("red", "svc"), TCP
			truths := []Truth{}
			for _, b := range backends {
				truths = append(truths, oracle(w, packet{from: from, to: b, proto: TCP, port: target}))
			}
			want, p.port = and(truths...), 1234
			if len(backends) == 0 {
				want = No
			}
		} else {
			want = oracle(w, p)
		}
		got := w.Path(from.endpoint(), to, p.proto, p.port)
		seen[got.Truth]++
		if got.Truth != want {
			t.Fatalf("%s → %s %s %d: %s, want %s: %s", from.endpoint(), to, p.proto, p.port, got.Truth, want, got.Says())
		}
		if got.Says() == "" || got.Truth == Unknown && got.Err() == nil {
			t.Fatalf("%s → %s: %s without a reason: %+v", from.endpoint(), to, got.Truth, got)
		}
		blind := less.Path(from.endpoint(), to, p.proto, p.port)
		seen["blind "+blind.Truth]++
		if blind.Truth != Unknown && blind.Truth != got.Truth {
			t.Fatalf("%s → %s %s %d: %s (%s), but with things withheld %s (%s)", from.endpoint(), to, p.proto, p.port, got.Truth, got.Says(), blind.Truth, blind.Says())
		}
	}
}

// TestPathsAgainstOracle compares the solver with the plain evaluator: some
// thousands of questions, or as many as NETWORK_PATHS says.
func TestPathsAgainstOracle(t *testing.T) {
	questions := 20000
	if s := os.Getenv("NETWORK_PATHS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		questions = n
	}
	seen := map[Truth]int{}
	for world := range uint64(questions/20 + 1) {
		rng := rand.New(rand.NewPCG(world, 4))
		d := dice(rng.IntN)
		func() {
			defer func() {
				if t.Failed() {
					t.Logf("world %d", world)
				}
			}()
			compare(t, d, 20, seen)
		}()
	}
	t.Logf("answers: %v", seen)
	for _, truth := range []Truth{Yes, No, Unknown, "blind yes", "blind no", "blind unknown"} {
		if seen[truth] < questions/200 {
			t.Errorf("%s was answered %d times only", truth, seen[truth])
		}
	}
}

// FuzzPath builds the world and the questions from the fuzzer's bytes. Run it
// with -fuzzminimizetime 10x: minimising an input of this size takes minutes.
func FuzzPath(f *testing.F) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 7))
		data := make([]byte, 2000)
		for i := range data {
			data[i] = byte(rng.IntN(256))
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d := dice(func(n int) int {
			if len(data) == 0 {
				return 0
			}
			b := int(data[0])
			data = data[1:]
			if n > 256 && len(data) > 0 {
				b = b<<8 | int(data[0])
				data = data[1:]
			}
			return b % n
		})
		compare(t, d, 10, map[Truth]int{})
	})
}

func ptr[T any](v T) *T { return &v }
