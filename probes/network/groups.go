package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	ec2 "github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// A Direction is that of a rule, seen from what the rule is attached to.
type Direction string

// The directions.
const (
	Ingress Direction = "ingress"
	Egress  Direction = "egress"
)

// A Rule is one allowance of a security group: one peer, one port range.
type Rule struct {
	Group      string
	Direction  Direction
	Protocol   string // "tcp", "udp", "icmp", "-1" …: numbers are spelt out
	From, To   int    // ports; 0-65535 where the rule has none
	PeerGroup  string // exactly one of these four is set
	CIDR       netip.Prefix
	PrefixList string
	Broken     string // a CIDR that does not parse
	Peering    string // of PeerGroup in another VPC: "active", "deleted" …
}

// String is the rule as a person would say it: "sg-1 egress tcp 53 to sg-2".
func (r Rule) String() string {
	what := r.Protocol
	if r.Protocol == "-1" {
		what = "all traffic"
	} else if r.From != 0 || r.To != 65535 {
		what += " " + portRange(r.From, r.To)
	}
	return fmt.Sprintf("%s %s %s %s %s", r.Group, r.Direction, what, r.Direction.preposition(), r.peer())
}

func (r Rule) peer() string {
	switch {
	case r.PeerGroup == r.Group && r.PeerGroup != "":
		return "itself"
	case r.PeerGroup != "":
		return r.PeerGroup
	case r.PrefixList != "":
		return r.PrefixList
	case r.Broken != "":
		return r.Broken
	}
	return r.CIDR.String()
}

func portRange(from, to int) string {
	if from == to {
		return strconv.Itoa(from)
	}
	return strconv.Itoa(from) + "-" + strconv.Itoa(to)
}

func (d Direction) preposition() string {
	if d == Egress {
		return "to"
	}
	return "from"
}

// matches says whether the rule is about the protocol and port. A protocol
// other than TCP, UDP and ICMP has no ports: a rule for it allows all.
func (r Rule) matches(proto Protocol, port int) bool {
	if r.Protocol == "-1" {
		return true
	}
	if r.Protocol != strings.ToLower(string(proto)) {
		return false
	}
	return proto != TCP && proto != UDP || r.From <= port && port <= r.To
}

// protocolNames are the protocols that a rule may give by number.
// Source: docs.aws.amazon.com EC2 API, IpPermission.IpProtocol; IANA.
var protocolNames = map[string]string{"1": "icmp", "6": "tcp", "17": "udp", "58": "icmpv6", "132": "sctp", "all": "-1"}

func protocolName(s string) string {
	s = strings.ToLower(s)
	if name := protocolNames[s]; name != "" {
		return name
	}
	return s
}

type group struct {
	id, name string
	rules    map[Direction][]Rule
	document Document
}

func (w *World) indexGroups() map[string]*group {
	groups := map[string]*group{}
	for _, g := range w.Groups.All {
		id := str(g.GroupId)
		groups[id] = &group{id: id, name: str(g.GroupName), document: w.Groups.doc(id), rules: map[Direction][]Rule{
			Ingress: rulesOf(id, Ingress, g.IpPermissions), Egress: rulesOf(id, Egress, g.IpPermissionsEgress),
		}}
	}
	described := len(groups)
	for _, r := range w.GroupRules.All {
		id := str(r.GroupId)
		if described > 0 && groups[id] != nil && groups[id].document.Path == w.Groups.Document.Path {
			continue // the group's own document says all
		}
		if groups[id] == nil {
			groups[id] = &group{id: id, rules: map[Direction][]Rule{}, document: w.GroupRules.doc()}
		}
		rule := rule(id, Ingress, str(r.IpProtocol), r.FromPort, r.ToPort)
		if r.IsEgress != nil && *r.IsEgress {
			rule.Direction = Egress
		}
		switch {
		case r.ReferencedGroupInfo != nil:
			rule.PeerGroup, rule.Peering = str(r.ReferencedGroupInfo.GroupId), str(r.ReferencedGroupInfo.PeeringStatus)
		case r.PrefixListId != nil:
			rule.PrefixList = *r.PrefixListId
		case r.CidrIpv6 != nil:
			rule.setCIDR(*r.CidrIpv6)
		default:
			rule.setCIDR(str(r.CidrIpv4))
		}
		groups[id].rules[rule.Direction] = append(groups[id].rules[rule.Direction], rule)
	}
	return groups
}

func rule(group string, d Direction, proto string, from, to *int32) Rule {
	r := Rule{Group: group, Direction: d, Protocol: protocolName(proto), To: 65535}
	if (r.Protocol == "tcp" || r.Protocol == "udp") && from != nil && to != nil && *from >= 0 {
		r.From, r.To = int(*from), int(*to)
	}
	return r
}

func (r *Rule) setCIDR(s string) {
	if p, err := netip.ParsePrefix(s); err == nil {
		r.CIDR = p.Masked()
	} else {
		r.Broken = s
	}
}

func rulesOf(id string, d Direction, permissions []ec2.IpPermission) []Rule {
	var rules []Rule
	for _, p := range permissions {
		base := rule(id, d, str(p.IpProtocol), p.FromPort, p.ToPort)
		for _, g := range p.UserIdGroupPairs {
			r := base
			r.PeerGroup, r.Peering = str(g.GroupId), str(g.PeeringStatus)
			rules = append(rules, r)
		}
		for _, c := range p.IpRanges {
			r := base
			r.setCIDR(str(c.CidrIp))
			rules = append(rules, r)
		}
		for _, c := range p.Ipv6Ranges {
			r := base
			r.setCIDR(str(c.CidrIpv6))
			rules = append(rules, r)
		}
		for _, l := range p.PrefixListIds {
			r := base
			r.PrefixList = str(l.PrefixListId)
			rules = append(rules, r)
		}
	}
	return rules
}

// A Peer is the other end of the traffic, as a security group sees it.
type Peer struct {
	// Groups are those of the peer's interface: a reference to a group matches
	// by them. Nil with a nil GroupsErr is an end that carries no group.
	Groups    []string
	GroupsErr error
	// Within is where the peer's address is: one block per address that
	// counts, a whole range where the address itself isn't known.
	Within []netip.Prefix
	// PrefixList is the list that all addresses of the peer are in: a gateway
	// endpoint's.
	PrefixList string
}

// PeerAt is a peer whose address is known.
func PeerAt(ip netip.Addr, groups ...string) Peer {
	return Peer{Groups: groups, Within: []netip.Prefix{netip.PrefixFrom(ip, ip.BitLen())}}
}

// Admits says whether the groups together let the traffic pass in a direction.
// Several groups on an interface are a union; the groups are stateful, so that
// replies need no rule.
func (w *World) Admits(d Direction, groups []string, peer Peer, proto Protocol, port int) Hop {
	h := Hop{Layer: SecurityGroups, Kind: "SecurityGroup"}
	var rules []Rule
	var errs []error
	total := 0
	for _, id := range groups {
		g := w.ix().groups[id]
		if g == nil {
			errs = append(errs, absent(w, w.Groups, "security group", id))
			continue
		}
		h.Documents = append(h.Documents, g.document)
		total += len(g.rules[d])
		for _, r := range g.rules[d] {
			if r.matches(proto, port) {
				rules = append(rules, r)
			}
		}
	}
	within := peer.Within
	if len(within) == 0 {
		within = []netip.Prefix{{}}
	}
	var allowing []Rule
	all, none := true, true
	for _, block := range within {
		truth := No
		for _, r := range rules {
			t, err := w.ruleMatches(r, peer, block)
			if t == Yes {
				truth = Yes
				if !slices.Contains(allowing, r) {
					allowing = append(allowing, r)
				}
				break
			}
			if t == Unknown {
				truth = Unknown
				errs = append(errs, err)
			}
		}
		if truth == No && slices.ContainsFunc(groups, func(id string) bool { return w.ix().groups[id] == nil }) {
			truth = Unknown
		}
		all, none = all && truth == Yes, none && truth == No
	}
	what := fmt.Sprintf("%s %d", proto, port)
	switch {
	case all:
		h.Truth, h.Code = Yes, SGAllows
		h.Rule = allowing[0].String()
		h.Names = []string{allowing[0].Group}
		h.Says = fmt.Sprintf("%s is let %s by the rule %q", what, inOrOut(d), h.Rule)
	case none:
		h.Truth, h.Code, h.Names = No, SGRulesMismatch, groups
		if len(groups) > 0 {
			h.Fix = RuleToAdd(d, groups[0], peer, proto, port)
		}
		h.Says = fmt.Sprintf("no %s rule of %s lets %s %s %s %s", d, w.names(groups), what, inOrOut(d), d.preposition(), w.describe(peer))
		if total == 0 {
			h.Code = SGHasNoRules
			h.Says = fmt.Sprintf("%s has no %s rule at all, so %s %s %s can't pass", w.names(groups), d, what, d.preposition(), w.describe(peer))
		}
	default:
		h.Truth, h.Code, h.Names = Unknown, NotKnown, groups
		h.Says = fmt.Sprintf("it isn't known whether %s lets %s %s %s %s", w.names(groups), what, inOrOut(d), d.preposition(), w.describe(peer))
		h.Err = errSomeAddresses
		for _, err := range errs {
			h.Err = err
			break
		}
	}
	return h
}

var errSomeAddresses = fmt.Errorf("the rules let a part of the addresses pass, and it isn't known which one is used")

func inOrOut(d Direction) string {
	if d == Egress {
		return "out"
	}
	return "in"
}

// ruleMatches says whether the rule is about the peer, at an address anywhere
// in block; an invalid block is an address of which nothing is known.
func (w *World) ruleMatches(r Rule, peer Peer, block netip.Prefix) (Truth, error) {
	switch {
	case r.PeerGroup != "":
		if r.Peering != "" && r.Peering != "active" {
			return No, nil
		}
		if slices.Contains(peer.Groups, r.PeerGroup) {
			return Yes, nil
		}
		if peer.GroupsErr != nil {
			return Unknown, peer.GroupsErr
		}
		return No, nil
	case r.PrefixList != "" && r.PrefixList == peer.PrefixList:
		return Yes, nil
	case r.PrefixList != "":
		blocks, ok := w.ix().prefixes[r.PrefixList]
		if !ok {
			return Unknown, absent(w, w.PrefixLists, "prefix list", r.PrefixList)
		}
		truth := No
		for _, b := range blocks {
			truth = or(truth, inBlock(b, block))
		}
		return truth, errSomeAddresses
	case r.Broken != "":
		return Unknown, fmt.Errorf("security group %s: %q is not a CIDR", r.Group, r.Broken)
	}
	return inBlock(r.CIDR, block), errSomeAddresses
}

func or(a, b Truth) Truth {
	switch {
	case a == Yes || b == Yes:
		return Yes
	case a == Unknown || b == Unknown:
		return Unknown
	}
	return No
}

// inBlock says whether an address anywhere in block is in outer.
func inBlock(outer, block netip.Prefix) Truth {
	switch {
	case !block.IsValid():
		return Unknown
	case outer.Bits() <= block.Bits() && outer.Contains(block.Addr()):
		return Yes
	case outer.Overlaps(block):
		return Unknown
	}
	return No
}

// GroupName is the name of a group, empty where it isn't known.
func (w *World) GroupName(id string) string {
	if g := w.ix().groups[id]; g != nil {
		return g.name
	}
	return ""
}

// RulesOf are the rules of a group in a direction; ok is false where the
// group was not captured.
func (w *World) RulesOf(id string, d Direction) (rules []Rule, ok bool) {
	g := w.ix().groups[id]
	if g == nil {
		return nil, false
	}
	return g.rules[d], true
}

func (w *World) names(groups []string) string {
	if len(groups) == 0 {
		return "no security group"
	}
	var names []string
	for _, id := range groups {
		if name := w.GroupName(id); name != "" {
			id += " (" + name + ")"
		}
		names = append(names, id)
	}
	return strings.Join(names, ", ")
}

func (w *World) describe(p Peer) string {
	var blocks []string
	for _, b := range p.Within {
		if b.IsSingleIP() {
			blocks = append(blocks, b.Addr().String())
		} else {
			blocks = append(blocks, b.String())
		}
	}
	at := strings.Join(blocks, ", ")
	switch {
	case len(p.Groups) == 0 && at == "":
		return "an unknown address"
	case len(p.Groups) == 0:
		return at
	case at == "":
		return w.names(p.Groups)
	}
	return w.names(p.Groups) + " at " + at
}

// RuleToAdd is the AWS CLI command that would add the missing rule to a group:
// from the peer's first group, or its address where it carries none.
func RuleToAdd(d Direction, group string, peer Peer, proto Protocol, port int) string {
	source := ""
	switch {
	case len(peer.Groups) > 0:
		source = "UserIdGroupPairs=[{GroupId=" + peer.Groups[0] + "}]"
	case len(peer.Within) > 0 && peer.Within[0].Addr().Is6():
		source = "Ipv6Ranges=[{CidrIpv6=" + peer.Within[0].String() + "}]"
	case len(peer.Within) > 0:
		source = "IpRanges=[{CidrIp=" + peer.Within[0].String() + "}]"
	default:
		source = "IpRanges=[{CidrIp=CIDR}]"
	}
	return fmt.Sprintf("aws ec2 authorize-security-group-%s --group-id %s --ip-permissions IpProtocol=%s,FromPort=%d,ToPort=%d,%s",
		d, group, strings.ToLower(string(proto)), port, port, source)
}

// A Comparison of two sets of security groups.
type Comparison struct{ Both, OnlyA, OnlyB []string }

// Compare splits the groups of two sets.
func Compare(a, b []string) Comparison {
	var c Comparison
	for _, id := range a {
		if slices.Contains(b, id) {
			c.Both = append(c.Both, id)
		} else {
			c.OnlyA = append(c.OnlyA, id)
		}
	}
	for _, id := range b {
		if !slices.Contains(a, id) {
			c.OnlyB = append(c.OnlyB, id)
		}
	}
	return c
}
