package network

import (
	"slices"
	"strconv"
	"strings"
)

// Truth is what is known of a path; its values are those of diagnose.Truth.
type Truth string

// The three truths.
const (
	Yes     Truth = "yes"
	No      Truth = "no"
	Unknown Truth = "unknown"
)

// A Protocol is a transport protocol, as NetworkPolicies spell it.
type Protocol string

// The protocols that a path can be asked for.
const (
	TCP  Protocol = "TCP"
	UDP  Protocol = "UDP"
	SCTP Protocol = "SCTP"
)

// A Document is where an answer comes from; it converts to probes.Document.
type Document struct {
	Path string
	Only []string
}

// A Layer is a kind of filter that a packet passes.
type Layer string

// The layers, in the order in which a packet meets them.
const (
	Services        Layer = "service"
	NetworkPolicies Layer = "network-policy"
	SecurityGroups  Layer = "security-group"
	NetworkACLs     Layer = "network-acl"
	Routes          Layer = "route"
)

// A Code says in one word how a hop decided. The upper-case ones are the
// explanation codes of VPC Reachability Analyzer (docs.aws.amazon.com
// vpc/latest/reachability/explanation-codes.html), the others are ours.
type Code string

// The codes.
const (
	SGRulesMismatch Code = "ENI_SG_RULES_MISMATCH"   // no rule of any group admits it
	SGHasNoRules    Code = "SG_HAS_NO_RULES"         // the groups have no rule at all in that direction
	ACLRestriction  Code = "SUBNET_ACL_RESTRICTION"  // a network ACL denies it
	NoRoute         Code = "NO_ROUTE_TO_DESTINATION" // the route table has no route
	BadRoute        Code = "BAD_STATE_ROUTE"         // the route is a blackhole

	SGAllows       Code = "sg-rule-allows"
	ACLAllows      Code = "acl-allows"
	RouteFound     Code = "route-found"
	SameHost       Code = "same-host"         // stays on one instance, where groups and ACLs do not filter
	SameSubnet     Code = "same-subnet"       // network ACLs do not filter inside a subnet
	NotFiltered    Code = "not-filtered"      // AmazonProvidedDNS, IMDS and other link-local services
	PolicyAllows   Code = "policy-allows"     // a NetworkPolicy's rule matches
	PolicyDenies   Code = "policy-denies"     // isolated, and no rule of any policy matches
	NotIsolated    Code = "not-isolated"      // no NetworkPolicy selects the pod in that direction
	PolicyExempt   Code = "policy-exempt"     // hostNetwork pods, and a pod's own node
	NotEnforced    Code = "policy-unenforced" // a policy would deny it, but nothing enforces policies
	NoEndpoints    Code = "service-has-no-ready-endpoints"
	NoServicePort  Code = "service-has-no-such-port"
	ServiceForward Code = "service-forwards"
	BadState       Code = "BAD_STATE"           // a VPC endpoint that is not available
	AccessCIDRs    Code = "public-access-cidrs" // the API server's publicAccessCidrs
	NotKnown       Code = "not-known"           // what would decide it was not captured
)

// A Hop is one filter's decision about the packet, or about its reply.
type Hop struct {
	Layer     Layer
	Code      Code
	Truth     Truth
	Says      string   // one sentence, naming the deciding rule or its absence
	Kind      string   // what decided: SecurityGroup, NetworkAcl, RouteTable, NetworkPolicy, Service …
	Names     []string // the ids, or namespace/name, of those; for a No the groups that lack a rule
	Rule      string   // the deciding rule in short; empty for an absence
	Fix       string   // for a No of a security group: the AWS CLI command that adds the missing rule
	Documents []Document
	Err       error // for an Unknown: why it isn't known; wraps a *probes.Gap where a document is missing
	Partly    bool  // holds for a part of the addresses or reply ports only
}

// An Answer says whether a packet gets from one end to the other, and its
// reply back.
type Answer struct {
	From, To Endpoint
	Protocol Protocol
	Port     int
	// Truth is No where a filter stops the packet or, with several possible
	// ends (a Service's pods, the API server's interfaces), where it stops the
	// packet to one of them; Partly is then set.
	Truth  Truth
	Partly bool
	Hops   []Hop    // of a single pair of ends, in the order travelled
	Parts  []Answer // one per pair of ends where there are several
}

// conclude sets the truth from the hops or the parts.
func (a *Answer) conclude() {
	truths := make([]Truth, 0, len(a.Hops)+len(a.Parts))
	for _, h := range a.Hops {
		truths = append(truths, h.Truth)
	}
	for _, p := range a.Parts {
		truths = append(truths, p.Truth)
	}
	a.Partly = false
	switch {
	case slices.Contains(truths, No):
		a.Truth = No
		a.Partly = len(a.Parts) > 0 && slices.ContainsFunc(a.Parts, func(p Answer) bool { return p.Truth != No || p.Partly })
		hard := slices.ContainsFunc(a.Hops, func(h Hop) bool { return h.Truth == No && !h.Partly })
		if len(a.Hops) > 0 && !hard && len(a.Parts) == 0 {
			a.Partly = true
		}
		if len(a.Parts) > 0 && hard {
			a.Partly = false
		}
	case slices.Contains(truths, Unknown), len(truths) == 0:
		a.Truth = Unknown
	default:
		a.Truth = Yes
	}
}

// On is the answer that the given layers alone give: "do the security groups
// let it pass?", whatever is known of the other layers. A layer that does not
// touch the path says Yes.
func (a Answer) On(layers ...Layer) Answer {
	b := a
	b.Hops, b.Parts = nil, nil
	for _, h := range a.Hops {
		if slices.Contains(layers, h.Layer) {
			b.Hops = append(b.Hops, h)
		}
	}
	for _, p := range a.Parts {
		b.Parts = append(b.Parts, p.On(layers...))
	}
	b.conclude()
	if len(b.Hops)+len(b.Parts) == 0 {
		b.Truth = Yes
	}
	return b
}

// Decisive are the hops that make the answer what it is: each No of a No,
// each Unknown of an Unknown, all of a Yes.
func (a Answer) Decisive() []Hop {
	var hops []Hop
	for _, h := range a.Hops {
		if h.Truth == a.Truth {
			hops = append(hops, h)
		}
	}
	for _, p := range a.Parts {
		if p.Truth == a.Truth {
			for _, h := range p.Decisive() {
				if !slices.ContainsFunc(hops, func(o Hop) bool { return o.Says == h.Says }) {
					hops = append(hops, h)
				}
			}
		}
	}
	return hops
}

// Says is the answer in words: what decides it, one sentence a hop, at most three.
func (a Answer) Says() string {
	var says []string
	for _, h := range a.Decisive() {
		says = append(says, h.Says)
	}
	if len(says) > 3 {
		says = append(says[:3], "and "+strconv.Itoa(len(says)-3)+" more")
	}
	return strings.Join(says, "; ")
}

// Err is why an Unknown isn't known, nil otherwise.
func (a Answer) Err() error {
	if a.Truth != Unknown {
		return nil
	}
	for _, h := range a.Decisive() {
		if h.Err != nil {
			return h.Err
		}
	}
	return errNothingKnown
}

// Documents are what the answer rests on, each once, in the order of the hops.
func (a Answer) Documents() []Document {
	var docs []Document
	add := func(more []Document) {
		for _, d := range more {
			if !slices.ContainsFunc(docs, func(o Document) bool { return o.Path == d.Path && slices.Equal(o.Only, d.Only) }) {
				docs = append(docs, d)
			}
		}
	}
	for _, h := range a.Hops {
		add(h.Documents)
	}
	for _, p := range a.Parts {
		add(p.Documents())
	}
	return docs
}
