package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	ec2 "github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// ephemeral are the ports that a Linux client's replies come to
// (net.ipv4.ip_local_port_range).
var ephemeral = [2]int{32768, 60999}

// aclHop says whether a subnet's network ACL lets a packet pass to or from the
// peer on any port of a range. ACLs are stateless: entries are tried in the
// order of their numbers, the first that matches decides, and none denies.
func (w *World) aclHop(subnet string, subnetErr error, d Direction, peer []netip.Prefix, proto Protocol, ports [2]int, what string) Hop {
	h := Hop{Layer: NetworkACLs, Kind: "NetworkAcl"}
	acl := w.ix().acls[subnet]
	if acl == nil {
		h.Truth, h.Code = Unknown, NotKnown
		h.Err = subnetErr
		if subnetErr == nil {
			h.Err = absent(w, w.ACLs, "the network ACL of subnet", subnet)
		}
		h.Says = "the network ACL of the subnet isn't known"
		return h
	}
	id := str(acl.NetworkAclId)
	h.Names, h.Documents = []string{id}, []Document{w.ACLs.doc(id)}
	if len(peer) == 0 {
		peer = []netip.Prefix{{}}
	}
	all, none := true, true
	var deciding string
	for _, block := range peer {
		truth, entry := decideACL(acl.Entries, d, block, proto, ports)
		if deciding == "" || truth != Yes {
			deciding = entry
		}
		all, none = all && truth == Yes, none && truth == No
	}
	h.Rule = deciding
	by := "network ACL " + id + " of subnet " + subnet
	dir := fmt.Sprintf("%s %s %s", what, d.preposition(), joinBlocks(peer))
	switch {
	case all:
		h.Truth, h.Code, h.Says = Yes, ACLAllows, fmt.Sprintf("%s lets %s pass by %s", by, dir, deciding)
	case none:
		h.Truth, h.Code, h.Says = No, ACLRestriction, fmt.Sprintf("%s denies %s by %s", by, dir, deciding)
	case ports[0] < ports[1] && !slices.ContainsFunc(peer, func(b netip.Prefix) bool { return !b.IsValid() || !b.IsSingleIP() }):
		h.Truth, h.Code, h.Partly = No, ACLRestriction, true
		h.Says = fmt.Sprintf("%s lets only a part of the ports of %s pass: %s", by, dir, deciding)
	default:
		h.Truth, h.Code, h.Says = Unknown, NotKnown, fmt.Sprintf("%s lets a part of %s pass: %s", by, dir, deciding)
		h.Err = errSomeAddresses
	}
	return h
}

func joinBlocks(blocks []netip.Prefix) string {
	var s []string
	for _, b := range blocks {
		switch {
		case !b.IsValid():
			s = append(s, "an unknown address")
		case b.IsSingleIP():
			s = append(s, b.Addr().String())
		default:
			s = append(s, b.String())
		}
	}
	return strings.Join(s, ", ")
}

// decideACL is Yes where the entries allow every port of the range from any
// address in the block, No where they allow none, Unknown between.
func decideACL(entries []ec2.NetworkAclEntry, d Direction, block netip.Prefix, proto Protocol, ports [2]int) (Truth, string) {
	ordered := slices.Clone(entries)
	slices.SortStableFunc(ordered, func(a, b ec2.NetworkAclEntry) int { return int(num(a.RuleNumber, 0)) - int(num(b.RuleNumber, 0)) })
	undecided := [][2]int{ports}
	allowed, denied, by := false, false, "no entry that matches"
	for _, e := range ordered {
		if e.Egress == nil || *e.Egress != (d == Egress) || len(undecided) == 0 {
			continue
		}
		entryPorts, ok := aclPorts(e, proto)
		if !ok {
			continue
		}
		outer, err := netip.ParsePrefix(str(e.CidrBlock) + str(e.Ipv6CidrBlock))
		if err != nil {
			continue
		}
		in := inBlock(outer.Masked(), block)
		if in == No {
			continue
		}
		var rest [][2]int
		hit := false
		for _, u := range undecided {
			lo, hi := max(u[0], entryPorts[0]), min(u[1], entryPorts[1])
			if lo > hi {
				rest = append(rest, u)
				continue
			}
			hit = true
			if in == Unknown {
				rest = append(rest, u)
				continue
			}
			if u[0] < lo {
				rest = append(rest, [2]int{u[0], lo - 1})
			}
			if hi < u[1] {
				rest = append(rest, [2]int{hi + 1, u[1]})
			}
		}
		if !hit {
			continue
		}
		undecided = rest
		if e.RuleAction == ec2.RuleActionAllow {
			allowed = true
		} else {
			denied = true
		}
		number := fmt.Sprintf("rule %d (%s)", num(e.RuleNumber, 0), e.RuleAction)
		if num(e.RuleNumber, 0) >= 32767 {
			number = "the final deny"
		}
		by = number
	}
	if len(undecided) > 0 {
		denied = true
	}
	switch {
	case allowed && denied:
		return Unknown, by
	case allowed:
		return Yes, by
	}
	return No, by
}

func num(p *int32, none int32) int32 {
	if p == nil {
		return none
	}
	return *p
}

// aclPorts are the ports that an entry is about; ok is false where it is about
// another protocol. An ACL gives protocols by number.
func aclPorts(e ec2.NetworkAclEntry, proto Protocol) (ports [2]int, ok bool) {
	all := [2]int{0, 65535}
	name := protocolName(str(e.Protocol))
	if name == "-1" {
		return all, true
	}
	if name != strings.ToLower(string(proto)) {
		return all, false
	}
	if e.PortRange == nil || proto != TCP && proto != UDP {
		return all, true
	}
	return [2]int{int(num(e.PortRange.From, 0)), int(num(e.PortRange.To, 65535))}, true
}
