package network

// A second evaluator, written to be obviously right and not fast: it sends one
// concrete packet, and a reply to each port at which anything could change, and
// asks every rule by itself. It shares no code with the solver.

import (
	"net/netip"
	"strconv"
	"strings"

	ec2 "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A host is what the generator knows of an end.
type host struct {
	name     string
	ip       string
	node     string // "" outside
	groups   []string
	nodeENI  []string // the groups of the node's primary interface
	subnet   string
	exit     string // the subnet from which traffic leaves the VPC
	pod      *corev1.Pod
	onHost   bool
	branch   bool
	outside  bool
	notReady bool
}

type packet struct {
	from, to *host
	proto    Protocol
	port     int
}

func and(truths ...Truth) Truth {
	result := Yes
	for _, t := range truths {
		if t == No {
			return No
		}
		if t == Unknown {
			result = Unknown
		}
	}
	return result
}

func yes(b bool) Truth {
	if b {
		return Yes
	}
	return No
}

func oracle(w *World, p packet) Truth {
	policies := and(
		oraclePolicies(w, p, p.from, p.to, networkingv1.PolicyTypeEgress),
		oraclePolicies(w, p, p.to, p.from, networkingv1.PolicyTypeIngress))
	inside := p.from.node != "" && p.from.node == p.to.node
	if inside {
		if p.from == p.to || !p.from.branch && !p.to.branch || w.PodENIStandard == Yes {
			return policies
		}
		if vpc := oracleVPC(w, p); vpc == Yes || w.PodENIStandard == No {
			return and(policies, vpc)
		}
		return and(policies, Unknown)
	}
	return and(policies, oracleVPC(w, p))
}

func oracleVPC(w *World, p packet) Truth {
	var truths []Truth
	out := oracleGroups(w, p.from.groups, p.to, p, true)
	if p.to.outside && !p.from.onHost && !p.from.branch {
		if other := oracleGroups(w, p.from.nodeENI, p.to, p, true); other != out {
			out = Unknown
		}
	}
	truths = append(truths, out)
	if !p.to.outside {
		truths = append(truths, oracleGroups(w, p.to.groups, p.from, p, false))
	} else {
		truths = append(truths, oracleRoute(w, p))
	}
	if p.to.outside || p.from.subnet != p.to.subnet {
		truths = append(truths, yes(oracleACL(w, p.from.subnet, true, p.to.ip, p.proto, p.port)))
		if !p.to.outside {
			truths = append(truths, yes(oracleACL(w, p.to.subnet, false, p.from.ip, p.proto, p.port)))
		}
		for _, port := range replyPorts(w) {
			truths = append(truths, yes(oracleACL(w, p.from.subnet, false, p.to.ip, p.proto, port)))
			if !p.to.outside {
				truths = append(truths, yes(oracleACL(w, p.to.subnet, true, p.from.ip, p.proto, port)))
			}
		}
	}
	return and(truths...)
}

// replyPorts are the ends of the ephemeral range and both sides of every
// boundary in it that any ACL entry draws.
func replyPorts(w *World) []int {
	ports := []int{32768, 60999}
	for _, a := range w.ACLs.All {
		for _, e := range a.Entries {
			if e.PortRange == nil {
				continue
			}
			for _, at := range []int{int(*e.PortRange.From) - 1, int(*e.PortRange.From), int(*e.PortRange.To), int(*e.PortRange.To) + 1} {
				if at >= 32768 && at <= 60999 {
					ports = append(ports, at)
				}
			}
		}
	}
	return ports
}

func covers(cidr, ip string) bool {
	c, err := netip.ParsePrefix(cidr)
	if err != nil {
		return false
	}
	return c.Contains(netip.MustParseAddr(ip))
}

func protoIs(given string, proto Protocol) bool {
	number := map[Protocol]string{TCP: "6", UDP: "17", SCTP: "132"}[proto]
	return given == "-1" || given == number || strings.EqualFold(given, string(proto))
}

func oracleGroups(w *World, groups []string, peer *host, p packet, egress bool) Truth {
	unsure := false
	for _, g := range w.Groups.All {
		for _, id := range groups {
			if *g.GroupId != id {
				continue
			}
			permissions := g.IpPermissions
			if egress {
				permissions = g.IpPermissionsEgress
			}
			for _, perm := range permissions {
				if !protoIs(*perm.IpProtocol, p.proto) {
					continue
				}
				portless := *perm.IpProtocol == "-1" || p.proto == SCTP || perm.FromPort == nil
				if !portless && (p.port < int(*perm.FromPort) || p.port > int(*perm.ToPort)) {
					continue
				}
				for _, pair := range perm.UserIdGroupPairs {
					if pair.PeeringStatus != nil && *pair.PeeringStatus != "active" {
						continue
					}
					for _, carried := range peer.groups {
						if carried == *pair.GroupId {
							return Yes
						}
					}
					if peer.outside && netip.MustParseAddr(peer.ip).IsPrivate() {
						unsure = true
					}
				}
				for _, r := range perm.IpRanges {
					if covers(*r.CidrIp, peer.ip) {
						return Yes
					}
				}
				for _, r := range perm.Ipv6Ranges {
					if covers(*r.CidrIpv6, peer.ip) {
						return Yes
					}
				}
				for _, l := range perm.PrefixListIds {
					for _, known := range w.PrefixLists.All {
						if known.ID != *l.PrefixListId {
							continue
						}
						for _, c := range known.CIDRs {
							if covers(c, peer.ip) {
								return Yes
							}
						}
					}
				}
			}
		}
	}
	if unsure {
		return Unknown
	}
	return No
}

func oracleACL(w *World, subnet string, egress bool, ip string, proto Protocol, port int) bool {
	for _, a := range w.ACLs.All {
		for _, as := range a.Associations {
			if *as.SubnetId != subnet {
				continue
			}
			var best *ec2.NetworkAclEntry
			for i, e := range a.Entries {
				cidr := str(e.CidrBlock) + str(e.Ipv6CidrBlock)
				if *e.Egress != egress || !protoIs(*e.Protocol, proto) || !covers(cidr, ip) {
					continue
				}
				if e.PortRange != nil && *e.Protocol != "-1" && proto != SCTP && (port < int(*e.PortRange.From) || port > int(*e.PortRange.To)) {
					continue
				}
				if best == nil || *e.RuleNumber < *best.RuleNumber {
					best = &a.Entries[i]
				}
			}
			return best != nil && best.RuleAction == ec2.RuleActionAllow
		}
	}
	return false
}

func oracleRoute(w *World, p packet) Truth {
	for _, t := range w.RouteTables.All {
		for _, a := range t.Associations {
			if a.SubnetId == nil || *a.SubnetId != p.from.exit {
				continue
			}
			bits, state := -1, ec2.RouteState("")
			for _, r := range t.Routes {
				cidr := str(r.DestinationCidrBlock) + str(r.DestinationIpv6CidrBlock)
				if !covers(cidr, p.to.ip) {
					continue
				}
				n, _ := strconv.Atoi(cidr[strings.Index(cidr, "/")+1:])
				if n > bits {
					bits, state = n, r.State
				}
			}
			return yes(bits >= 0 && state != ec2.RouteStateBlackhole)
		}
	}
	return No
}

func oraclePolicies(w *World, p packet, of, peer *host, direction networkingv1.PolicyType) Truth {
	if of.pod == nil || of.onHost || of.outside {
		return Yes
	}
	isolated := false
	for _, np := range w.Policies.All {
		if np.Namespace != of.pod.Namespace || !oracleSelects(&np.Spec.PodSelector, of.pod.Labels) {
			continue
		}
		applies := false
		for _, t := range np.Spec.PolicyTypes {
			applies = applies || t == direction
		}
		if len(np.Spec.PolicyTypes) == 0 {
			applies = direction == networkingv1.PolicyTypeIngress || len(np.Spec.Egress) > 0
		}
		if !applies {
			continue
		}
		isolated = true
		to := p.to
		if direction == networkingv1.PolicyTypeIngress {
			for _, r := range np.Spec.Ingress {
				if oraclePorts(r.Ports, to, p) && oraclePeers(w, np, r.From, peer) {
					return Yes
				}
			}
			continue
		}
		for _, r := range np.Spec.Egress {
			if oraclePorts(r.Ports, to, p) && oraclePeers(w, np, r.To, peer) {
				return Yes
			}
		}
	}
	if !isolated || of == peer || peer.onHost && peer.node == of.node {
		return Yes
	}
	switch w.Enforced {
	case Yes:
		return No
	case No:
		return Yes
	}
	return Unknown
}

func oraclePorts(ports []networkingv1.NetworkPolicyPort, to *host, p packet) bool {
	if len(ports) == 0 {
		return true
	}
	for _, np := range ports {
		proto := TCP
		if np.Protocol != nil {
			proto = Protocol(*np.Protocol)
		}
		if proto != p.proto {
			continue
		}
		if np.Port == nil {
			return true
		}
		last := int(np.Port.IntVal)
		if np.EndPort != nil {
			last = int(*np.EndPort)
		}
		if np.Port.StrVal == "" && p.port >= int(np.Port.IntVal) && p.port <= last {
			return true
		}
		if np.Port.StrVal != "" && to.pod != nil && !to.onHost {
			for _, c := range to.pod.Spec.Containers {
				for _, cp := range c.Ports {
					if cp.Name == np.Port.StrVal && int(cp.ContainerPort) == p.port && string(cp.Protocol) == string(p.proto) {
						return true
					}
				}
			}
		}
	}
	return false
}

func oraclePeers(w *World, np *networkingv1.NetworkPolicy, peers []networkingv1.NetworkPolicyPeer, peer *host) bool {
	if len(peers) == 0 {
		return true
	}
	for _, np1 := range peers {
		if b := np1.IPBlock; b != nil {
			in := covers(b.CIDR, peer.ip)
			for _, e := range b.Except {
				in = in && !covers(e, peer.ip)
			}
			if in {
				return true
			}
			continue
		}
		if peer.pod == nil || peer.onHost {
			continue
		}
		if np1.NamespaceSelector == nil && peer.pod.Namespace != np.Namespace {
			continue
		}
		if np1.PodSelector != nil && !oracleSelects(np1.PodSelector, peer.pod.Labels) {
			continue
		}
		if np1.NamespaceSelector != nil {
			labels := map[string]string{}
			for _, ns := range w.Namespaces.All {
				if ns.Name == peer.pod.Namespace {
					labels = ns.Labels
				}
			}
			if !oracleSelects(np1.NamespaceSelector, labels) {
				continue
			}
		}
		return true
	}
	return false
}

func oracleSelects(s *metav1.LabelSelector, labels map[string]string) bool {
	for k, v := range s.MatchLabels {
		if labels[k] != v {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		got, has := labels[e.Key]
		in := false
		for _, v := range e.Values {
			in = in || has && v == got
		}
		switch e.Operator {
		case metav1.LabelSelectorOpIn:
			if !in {
				return false
			}
		case metav1.LabelSelectorOpNotIn:
			if in {
				return false
			}
		case metav1.LabelSelectorOpExists:
			if !has {
				return false
			}
		case metav1.LabelSelectorOpDoesNotExist:
			if has {
				return false
			}
		}
	}
	return true
}
