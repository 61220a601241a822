package network

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	ec2 "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func permission(proto string, from, to int32, peers ...string) ec2.IpPermission {
	p := ec2.IpPermission{IpProtocol: &proto}
	if proto != "-1" {
		p.FromPort, p.ToPort = &from, &to
	}
	for _, peer := range peers {
		switch {
		case strings.HasPrefix(peer, "sg-"):
			p.UserIdGroupPairs = append(p.UserIdGroupPairs, ec2.UserIdGroupPair{GroupId: aws.String(peer)})
		case strings.HasPrefix(peer, "pl-"):
			p.PrefixListIds = append(p.PrefixListIds, ec2.PrefixListId{PrefixListId: aws.String(peer)})
		default:
			p.IpRanges = append(p.IpRanges, ec2.IpRange{CidrIp: aws.String(peer)})
		}
	}
	return p
}

var out = permission("-1", 0, 0, "0.0.0.0/0")

func securityGroup(id string, egress []ec2.IpPermission, ingress ...ec2.IpPermission) ec2.SecurityGroup {
	return ec2.SecurityGroup{GroupId: aws.String(id), IpPermissions: ingress, IpPermissionsEgress: egress}
}

// smallWorld is a cluster as Terraform's module makes it: nodes with a group of
// their own, the control plane with the primary and an additional group; two
// nodes in two subnets, a webhook pod on node-1, an API pod on node-0.
func smallWorld() *World {
	w := &World{Enforced: Yes, PodENIStandard: No}
	w.Cluster.All = []Cluster{{
		Name: "demo", VPC: "vpc-1", PrimaryGroup: "sg-primary", AdditionalGroups: []string{"sg-additional"},
		Subnets: []string{"subnet-0", "subnet-1"}, PrivateAccess: true, PublicAccess: true, PublicCIDRs: []string{"0.0.0.0/0"},
	}}
	w.Groups.All = []ec2.SecurityGroup{
		securityGroup("sg-primary", []ec2.IpPermission{out}, permission("-1", 0, 0, "sg-primary")),
		securityGroup("sg-additional", []ec2.IpPermission{out}, permission("tcp", 443, 443, "sg-node")),
		securityGroup("sg-node", []ec2.IpPermission{out}, permission("tcp", 443, 443, "sg-additional"), permission("tcp", 10250, 10250, "sg-additional"),
			permission("udp", 53, 53, "sg-node"), permission("tcp", 53, 53, "sg-node"), permission("tcp", 1025, 65535, "sg-node")),
		securityGroup("sg-pods", []ec2.IpPermission{out}, permission("tcp", 5432, 5432, "sg-pods")),
		securityGroup("sg-lb", nil),
		securityGroup("sg-endpoint", nil, permission("tcp", 443, 443, "sg-primary")),
	}
	control := eni("eni-control", "", 0, 0, []string{"sg-additional", "sg-primary"}, "10.0.0.200")
	control.Description, control.InterfaceType = aws.String("Amazon EKS demo"), "interface"
	w.Interfaces.All = []ec2.NetworkInterface{control}
	for i, n := range []string{"node-0", "node-1"} {
		w.Subnets.All = append(w.Subnets.All, ec2.Subnet{SubnetId: aws.String("subnet-" + n[5:]), VpcId: aws.String("vpc-1"), CidrBlock: aws.String("10.0." + n[5:] + ".0/24")})
		w.Interfaces.All = append(w.Interfaces.All, eni("eni-"+n, "i-"+n, 0, i, []string{"sg-node"}, "10.0."+n[5:]+".10", "10.0."+n[5:]+".11", "10.0."+n[5:]+".12"))
		w.Nodes.All = append(w.Nodes.All, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: n}, Spec: corev1.NodeSpec{ProviderID: "aws:///z/i-" + n},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0." + n[5:] + ".10"}}},
		})
		w.ACLs.All = append(w.ACLs.All, ec2.NetworkAcl{
			NetworkAclId: aws.String("acl-" + n[5:]), Associations: []ec2.NetworkAclAssociation{{SubnetId: aws.String("subnet-" + n[5:])}},
			Entries: []ec2.NetworkAclEntry{aclEntry(100, true, "allow", 0, 65535), aclEntry(100, false, "allow", 0, 65535)},
		})
	}
	w.RouteTables.All = []ec2.RouteTable{{
		RouteTableId: aws.String("rtb-1"), VpcId: aws.String("vpc-1"), Associations: []ec2.RouteTableAssociation{{Main: aws.Bool(true)}},
		Routes: []ec2.Route{{DestinationCidrBlock: aws.String("10.0.0.0/16"), GatewayId: aws.String("local")}, {DestinationCidrBlock: aws.String("0.0.0.0/0"), NatGatewayId: aws.String("nat-1")}},
	}}
	w.Pods.All = []*corev1.Pod{testPod("shop", "api", "node-0", "10.0.0.11"), testPod("kube-system", "hook", "node-1", "10.0.1.11")}
	w.Pods.All[1].Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "webhook", ContainerPort: 9443}}}}
	w.Services.All = []*corev1.Service{{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "hook"}, Spec: corev1.ServiceSpec{
		ClusterIP: "172.20.0.7",
		Selector:  map[string]string{"app": "hook"}, Ports: []corev1.ServicePort{{Port: 443, TargetPort: intstr.FromString("webhook")}},
	}}}
	w.Slices.All = []*discoveryv1.EndpointSlice{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "hook-1", Labels: map[string]string{discoveryv1.LabelServiceName: "hook"}},
		Ports:      []discoveryv1.EndpointPort{{Name: aws.String(""), Port: aws.Int32(9443)}},
		Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"10.0.1.11"}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "kube-system", Name: "hook"}}},
	}}
	return w
}

func testPod(namespace, name, node, ip string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}}, Spec: corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
}

func aclEntry(number int32, egress bool, action ec2.RuleAction, from, to int32) ec2.NetworkAclEntry {
	return ec2.NetworkAclEntry{RuleNumber: &number, Egress: &egress, RuleAction: action, Protocol: aws.String("6"), CidrBlock: aws.String("0.0.0.0/0"), PortRange: &ec2.PortRange{From: &from, To: &to}}
}

func (w *World) group(id string) *ec2.SecurityGroup {
	i := slices.IndexFunc(w.Groups.All, func(g ec2.SecurityGroup) bool { return *g.GroupId == id })
	return &w.Groups.All[i]
}

func TestPath(t *testing.T) {
	hook, api, node0 := Service("kube-system", "hook"), Pod("shop", "api"), Node("node-0")
	for name, test := range map[string]struct {
		change   func(*World)
		from, to Endpoint
		port     int
		want     Truth
		code     Code
		says     string // of what decides
		fix      string
	}{
		"the kubelet is reached":                 {nil, APIServer(), node0, 10250, Yes, "", "", ""},
		"the API server is reached":              {nil, node0, APIServer(), 443, Yes, "", `sg-additional ingress tcp 443 from sg-node`, ""},
		"a Service is decided at the pod's port": {nil, APIServer(), hook, 443, No, SGRulesMismatch, "TCP 9443", "aws ec2 authorize-security-group-ingress --group-id sg-node --ip-permissions IpProtocol=tcp,FromPort=9443,ToPort=9443,UserIdGroupPairs=[{GroupId=sg-additional}]"},
		"not at its own port, which groups let in": {func(w *World) {
			w.group("sg-node").IpPermissions = append(w.group("sg-node").IpPermissions, permission("tcp", 9443, 9443, "sg-primary"))
		}, APIServer(), hook, 443, Yes, "", "port 9443", ""},
		"the Service's address is the Service":     {nil, api, Address(netip.MustParseAddr("172.20.0.7")), 443, Yes, "", "port 9443", ""},
		"without slices the selector decides":      {func(w *World) { w.Slices = Known[*discoveryv1.EndpointSlice]{Err: errors.New("none")} }, APIServer(), hook, 443, No, SGRulesMismatch, "TCP 9443", ""},
		"an unready pod is no backend":             {func(w *World) { w.Slices.All[0].Endpoints[0].Conditions.Ready = aws.Bool(false) }, api, hook, 443, No, NoEndpoints, "no ready endpoint", ""},
		"a port that the Service lacks":            {nil, api, hook, 9443, No, NoServicePort, "no port 9443/TCP", ""},
		"low ports between nodes are shut":         {nil, api, Pod("kube-system", "hook"), 80, No, SGRulesMismatch, "no ingress rule of sg-node lets TCP 80", ""},
		"but not inside a node":                    {func(w *World) { w.Pods.All[1] = testPod("kube-system", "hook", "node-0", "10.0.0.12") }, api, Pod("kube-system", "hook"), 80, Yes, SameHost, "", ""},
		"a finished pod's address is free":         {func(w *World) { w.Pods.All[1].Status.Phase = corev1.PodSucceeded }, api, Address(netip.MustParseAddr("10.0.1.11")), 80, No, SGRulesMismatch, "", ""},
		"a branch interface has its own groups":    {branch, api, Pod("kube-system", "hook"), 5432, No, SGRulesMismatch, "sg-pods", ""},
		"and hears its own kind":                   {branch, Pod("kube-system", "hook"), Pod("kube-system", "hook"), 5432, Yes, SameHost, "", ""},
		"the node's kubelet is filtered by strict": {branch, Node("node-1"), Pod("kube-system", "hook"), 8080, No, SGRulesMismatch, "sg-pods", ""},
		"and not by standard":                      {func(w *World) { branch(w); w.PodENIStandard = Yes }, Node("node-1"), Pod("kube-system", "hook"), 8080, Yes, SameHost, "", ""},
		"a branch interface not captured":          {func(w *World) { branch(w); w.Interfaces.All = w.Interfaces.All[:3] }, api, Pod("kube-system", "hook"), 5432, Unknown, NotKnown, "", ""},
		"an unknown prefix list": {func(w *World) {
			w.group("sg-node").IpPermissionsEgress = []ec2.IpPermission{permission("tcp", 443, 443, "pl-1")}
		}, node0, External("sts.amazonaws.com"), 443, Unknown, NotKnown, "", ""},
		"no egress at all":                     {func(w *World) { w.group("sg-node").IpPermissionsEgress = nil }, node0, External("sts.amazonaws.com"), 443, No, SGHasNoRules, "sg-node has no egress rule at all", ""},
		"out to the internet":                  {nil, api, External("sts.amazonaws.com"), 443, Yes, "", "nat-1", ""},
		"the NAT gateway is gone":              {func(w *World) { w.RouteTables.All[0].Routes[1].State = ec2.RouteStateBlackhole }, api, External("sts.amazonaws.com"), 443, No, BadRoute, "blackhole", ""},
		"no route out":                         {func(w *World) { w.RouteTables.All[0].Routes = w.RouteTables.All[0].Routes[:1] }, api, External("sts.amazonaws.com"), 443, No, NoRoute, "no route to", ""},
		"the metadata service is not filtered": {func(w *World) { w.group("sg-node").IpPermissionsEgress = nil }, api, Address(netip.MustParseAddr("169.254.169.254")), 80, Yes, NotFiltered, "", ""},
		"nor is the VPC's resolver":            {func(w *World) { w.group("sg-node").IpPermissionsEgress = nil }, api, Address(netip.MustParseAddr("10.0.0.2")), 53, Yes, NotFiltered, "", ""},
		"a load balancer that no rule lets in": {nil, Attached("load balancer web", "sg-lb"), api, 8080, No, SGHasNoRules, "sg-lb has no egress rule", ""},
		"a public endpoint only":               {func(w *World) { w.Cluster.All[0].PrivateAccess = false }, node0, APIServer(), 443, Yes, "", "open to all", ""},
		"a public endpoint that is restricted": {func(w *World) {
			w.Cluster.All[0].PrivateAccess = false
			w.Cluster.All[0].PublicCIDRs = []string{"203.0.113.0/24"}
		}, node0, APIServer(), 443, Unknown, AccessCIDRs, "203.0.113.0/24", ""},
		"the control plane's interfaces unseen":     {func(w *World) { w.Interfaces.All = w.Interfaces.All[1:] }, node0, APIServer(), 443, Yes, "", "sg-additional ingress tcp 443", ""},
		"a private endpoint that refuses the nodes": {endpoint, node0, VPCEndpoint("vpce-1"), 443, No, SGRulesMismatch, "no ingress rule of sg-endpoint lets TCP 443 in from sg-node", "aws ec2 authorize-security-group-ingress --group-id sg-endpoint --ip-permissions IpProtocol=tcp,FromPort=443,ToPort=443,UserIdGroupPairs=[{GroupId=sg-node}]"},
		"a gateway endpoint without a route":        {endpoint, node0, VPCEndpoint("vpce-2"), 443, No, NoRoute, "no route to vpce-2", ""},
		"a gateway endpoint with one, by its list":  {func(w *World) { endpoint(w); gatewayRoute(w) }, node0, VPCEndpoint("vpce-2"), 443, Yes, "", "pl-s3", ""},
		"an endpoint that is no longer there":       {endpoint, node0, VPCEndpoint("vpce-3"), 443, Unknown, NotKnown, "", ""},
		"an endpoint that failed":                   {func(w *World) { endpoint(w); w.VPCEndpoints.All[1].State = "Rejected"; gatewayRoute(w) }, node0, VPCEndpoint("vpce-2"), 443, No, BadState, "rejected", ""},
		"a pod that does not exist":                 {nil, api, Pod("shop", "nobody"), 443, Unknown, NotKnown, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := smallWorld()
			if test.change != nil {
				test.change(w)
			}
			a := w.Path(test.from, test.to, TCP, test.port)
			if a.Truth != test.want {
				t.Fatalf("%s: %s (%v)", a.Truth, a.Says(), a.Err())
			}
			decisive, all := a.Decisive(), ""
			for _, h := range decisive {
				all += h.Says + "\n"
			}
			if test.code != "" && !slices.ContainsFunc(decisive, func(h Hop) bool { return h.Code == test.code }) {
				t.Errorf("no %s: %s", test.code, all)
			}
			if !strings.Contains(all, test.says) {
				t.Errorf("does not say %q: %s", test.says, all)
			}
			if test.fix != "" && decisive[0].Fix != test.fix {
				t.Errorf("fix %s, want %s", decisive[0].Fix, test.fix)
			}
		})
	}
}

// branch puts the webhook pod on a branch interface with groups of its own.
func branch(w *World) {
	w.Pods.All[1].Annotations = map[string]string{"vpc.amazonaws.com/pod-eni": `[{"eniId":"eni-branch","ifAddress":"0e:00:00:00:00:01","privateIp":"10.0.1.50","vlanId":1,"subnetCidr":"10.0.1.0/24"}]`}
	w.Pods.All[1].Status.PodIP = "10.0.1.50"
	w.Interfaces.All = append(w.Interfaces.All, eni("eni-branch", "", 0, 1, []string{"sg-pods"}, "10.0.1.50"))
}

func endpoint(w *World) {
	w.VPCEndpoints.All = []ec2.VpcEndpoint{
		{VpcEndpointId: aws.String("vpce-1"), VpcEndpointType: "Interface", State: "available", Groups: []ec2.SecurityGroupIdentifier{{GroupId: aws.String("sg-endpoint")}}, SubnetIds: []string{"subnet-0", "subnet-1"}},
		{VpcEndpointId: aws.String("vpce-2"), VpcEndpointType: "Gateway", State: "available"},
	}
}

func gatewayRoute(w *World) {
	w.RouteTables.All[0].Routes = append(w.RouteTables.All[0].Routes, ec2.Route{DestinationPrefixListId: aws.String("pl-s3"), GatewayId: aws.String("vpce-2")})
	w.group("sg-node").IpPermissionsEgress = []ec2.IpPermission{permission("tcp", 443, 443, "pl-s3")}
}

// TestReplyPorts: an ACL that opens a part of the ephemeral ports lets some
// connections through and not others.
func TestReplyPorts(t *testing.T) {
	for _, test := range []struct {
		from, to int32
		want     Truth
		partly   bool
	}{{1024, 65535, Yes, false}, {32768, 60999, Yes, false}, {32768, 40000, No, true}, {1, 1023, No, false}} {
		w := smallWorld()
		w.ACLs.All[0].Entries[1] = aclEntry(100, false, "allow", test.from, test.to)
		a := w.Path(Pod("shop", "api"), Pod("kube-system", "hook"), TCP, 8080)
		if a.Truth != test.want || a.Partly != test.partly {
			t.Errorf("replies to %d-%d: %s, partly %v: %s", test.from, test.to, a.Truth, a.Partly, a.Says())
		}
		if groups := a.On(SecurityGroups); groups.Truth != Yes {
			t.Errorf("groups: %s", groups.Says())
		}
	}
}

// TestServicePartly: one of two backends is cut off.
func TestServicePartly(t *testing.T) {
	w := smallWorld()
	w.Pods.All = append(w.Pods.All, testPod("kube-system", "hook-b", "node-0", "10.0.0.12"))
	slice := w.Slices.All[0]
	slice.Ports[0].Port = aws.Int32(80)
	slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.0.0.12"}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "kube-system", Name: "hook-b"}})
	a := w.Path(Pod("shop", "api"), Service("kube-system", "hook"), TCP, 443)
	if a.Truth != No || !a.Partly || len(a.Parts) != 2 {
		t.Errorf("%s, partly %v, %d parts: %s", a.Truth, a.Partly, len(a.Parts), a.Says())
	}
	w.Services.All[0].Spec.InternalTrafficPolicy = ptr(corev1.ServiceInternalTrafficPolicyLocal)
	if a := w.Path(Pod("shop", "api"), Service("kube-system", "hook"), TCP, 443); a.Truth != Yes {
		t.Errorf("internalTrafficPolicy Local: %s: %s", a.Truth, a.Says())
	}
}

// TestGroupRulesOnly: describe-security-group-rules alone gives the same
// answers; a group that it does not mention is unknown.
func TestGroupRulesOnly(t *testing.T) {
	w := smallWorld()
	for _, g := range w.Groups.All {
		for _, d := range []Direction{Ingress, Egress} {
			permissions := g.IpPermissions
			if d == Egress {
				permissions = g.IpPermissionsEgress
			}
			for _, p := range permissions {
				r := ec2.SecurityGroupRule{GroupId: g.GroupId, IsEgress: aws.Bool(d == Egress), IpProtocol: p.IpProtocol, FromPort: p.FromPort, ToPort: p.ToPort}
				for _, pair := range p.UserIdGroupPairs {
					r.ReferencedGroupInfo = &ec2.ReferencedSecurityGroup{GroupId: pair.GroupId}
				}
				for _, c := range p.IpRanges {
					r.CidrIpv4 = c.CidrIp
				}
				w.GroupRules.All = append(w.GroupRules.All, r)
			}
		}
	}
	w.Groups = Known[ec2.SecurityGroup]{Err: errors.New("not captured")}
	for port, want := range map[int]Truth{80: No, 8080: Yes} {
		if a := w.Path(Pod("shop", "api"), Pod("kube-system", "hook"), TCP, port); a.Truth != want {
			t.Errorf("port %d: %s: %s", port, a.Truth, a.Says())
		}
	}
	if a := w.Path(Attached("lb", "sg-lb"), Pod("shop", "api"), TCP, 8080).On(SecurityGroups); a.Truth == Yes {
		t.Errorf("a group without rules: %s", a.Says())
	}
}

func TestCompare(t *testing.T) {
	c := Compare([]string{"sg-a", "sg-b"}, []string{"sg-b", "sg-c"})
	if !slices.Equal(c.Both, []string{"sg-b"}) || !slices.Equal(c.OnlyA, []string{"sg-a"}) || !slices.Equal(c.OnlyB, []string{"sg-c"}) {
		t.Errorf("%+v", c)
	}
}
