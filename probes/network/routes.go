package network

import (
	"fmt"
	"net/netip"
	"slices"

	ec2 "github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// tableOf is the route table of a subnet: the one associated with it, else the
// main one of its VPC.
func (w *World) tableOf(subnet, vpc string) *ec2.RouteTable {
	var main *ec2.RouteTable
	for i, t := range w.RouteTables.All {
		for _, a := range t.Associations {
			if str(a.SubnetId) == subnet && subnet != "" {
				return &w.RouteTables.All[i]
			}
			if a.Main != nil && *a.Main && str(t.VpcId) == vpc && vpc != "" {
				main = &w.RouteTables.All[i]
			}
		}
	}
	return main
}

// routeHop says whether the source's subnet has a route out of the VPC to the
// destination. What becomes of the packet at the other end of the route (a NAT
// gateway, a peering, a transit gateway) is not looked at.
func (w *World) routeHop(subnet, vpc string, subnetErr error, to *end) Hop {
	h := Hop{Layer: Routes, Kind: "RouteTable"}
	t := w.tableOf(subnet, vpc)
	if t == nil || subnet == "" || subnetErr != nil {
		h.Truth, h.Code, h.Says = Unknown, NotKnown, "the route table of the subnet isn't known"
		h.Err = subnetErr
		if subnetErr == nil {
			h.Err = absent(w, w.RouteTables, "the route table of subnet", subnet)
		}
		return h
	}
	id := str(t.RouteTableId)
	h.Names, h.Documents = []string{id}, []Document{w.RouteTables.doc(id)}
	if to.gateway != "" {
		if slices.ContainsFunc(t.Routes, func(r ec2.Route) bool { return str(r.GatewayId) == to.gateway }) {
			h.Truth, h.Code, h.Says = Yes, RouteFound, fmt.Sprintf("route table %s has a route to %s", id, to.gateway)
		} else {
			h.Truth, h.Code, h.Says = No, NoRoute, fmt.Sprintf("route table %s of subnet %s has no route to %s", id, subnet, to.gateway)
		}
		return h
	}
	all, none := true, true
	for _, block := range to.peer.Within {
		r, unsure := bestRoute(t.Routes, block, w.ix().prefixes)
		switch {
		case r == nil && unsure:
			all, none = false, false
		case r == nil:
			all = false
			h.Code, h.Says = NoRoute, fmt.Sprintf("route table %s of subnet %s has no route to %s", id, subnet, joinBlocks(to.peer.Within))
		case r.State == ec2.RouteStateBlackhole:
			all = false
			h.Rule = routeTo(r)
			h.Code, h.Says = BadRoute, fmt.Sprintf("route %s of route table %s is a blackhole: what it leads to is gone", h.Rule, id)
		default:
			none = false
			h.Rule = routeTo(r)
		}
	}
	switch {
	case all:
		h.Truth, h.Code, h.Says = Yes, RouteFound, fmt.Sprintf("route table %s has the route %s", id, h.Rule)
	case none:
		h.Truth = No
	default:
		h.Truth, h.Code, h.Err, h.Says = Unknown, NotKnown, errSomeAddresses, "route table "+id+" may have a route"
	}
	return h
}

func routeTo(r *ec2.Route) string {
	to := str(r.DestinationCidrBlock) + str(r.DestinationIpv6CidrBlock) + str(r.DestinationPrefixListId)
	for _, via := range []*string{r.NatGatewayId, r.GatewayId, r.TransitGatewayId, r.VpcPeeringConnectionId, r.EgressOnlyInternetGatewayId, r.NetworkInterfaceId, r.CoreNetworkArn} {
		if via != nil {
			return to + " via " + *via
		}
	}
	return to
}

// bestRoute is the most specific route to all of a block; unsure says that a
// route to a part of it, or to a list whose entries aren't known, may apply.
func bestRoute(routes []ec2.Route, block netip.Prefix, lists map[string][]netip.Prefix) (best *ec2.Route, unsure bool) {
	bits := -1
	for i, r := range routes {
		if str(r.GatewayId) == "local" && r.DestinationPrefixListId == nil && block.Bits() == 0 {
			continue // an address outside is asked for
		}
		blocks, known := lists[str(r.DestinationPrefixListId)]
		if r.DestinationPrefixListId != nil && !known {
			unsure = true
		}
		if b, err := netip.ParsePrefix(str(r.DestinationCidrBlock) + str(r.DestinationIpv6CidrBlock)); err == nil {
			blocks = []netip.Prefix{b}
		}
		for _, b := range blocks {
			switch inBlock(b.Masked(), block) {
			case Yes:
				if b.Bits() > bits {
					best, bits = &routes[i], b.Bits()
				}
			case Unknown:
				unsure = true
			}
		}
	}
	return best, unsure
}

// prefixListOf is the prefix list whose route leads to a gateway endpoint.
func (w *World) prefixListOf(endpoint string) string {
	for _, t := range w.RouteTables.All {
		for _, r := range t.Routes {
			if str(r.GatewayId) == endpoint && r.DestinationPrefixListId != nil {
				return *r.DestinationPrefixListId
			}
		}
	}
	return ""
}
