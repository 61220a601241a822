package iampolicy

import (
	"slices"
	"strings"
)

// The effects of statements.
const (
	Allow = "Allow"
	Deny  = "Deny"
)

// A Request is one call, as AWS sees it when it authorises it. A call that
// touches several resources is one request for each.
type Request struct {
	Action   string // "ec2:CreateFleet"
	Resource string // an ARN, also one with a wildcard as EC2 itself uses it (…:fleet/*), or "*"
	// Context are the condition keys that are present, with their values. A
	// key that is in neither Context nor Unknown is known to be absent; so is
	// one with an empty list.
	Context map[string][]string
	// Unknown are patterns (* and ?) of keys that AWS fills in by itself and
	// whose value isn't known here: "aws:SourceIp", "aws:PrincipalTag/*".
	Unknown []string
	// Absent are patterns of keys that are known to be absent, though they fit
	// Unknown: Unknown may be "*", Absent "aws:RequestTag/*".
	Absent []string
	// Principal is who asks; only trust and resource policies look at it.
	Principal Principal
}

// Policies are all that binds a request.
type Policies struct {
	Identity []Policy
	Boundary *Policy  // nil: none is set
	Session  []Policy // nil: none was passed
	Resource []Policy // the resource's own policy, or a role's trust policy
	// Organization are the service control policies, one list a level of the
	// organization from its root down. nil: not known, taken to allow all.
	Organization [][]Policy
}

// An Effect is the outcome of an evaluation, in the words of the IAM
// policy simulator.
type Effect string

// The effects.
const (
	Allowed      Effect = "allowed"
	ImplicitDeny Effect = "implicitDeny"
	ExplicitDeny Effect = "explicitDeny"
	// Undecided is the effect where it hangs on a context key whose value
	// isn't known.
	Undecided Effect = "unknown"
)

// A Reason is why a request is denied.
type Reason string

// The reasons.
const (
	NoStatement     Reason = "no-statement"      // nothing allows the action
	NotThisResource Reason = "not-this-resource" // the action is allowed, but on other resources
	ConditionFails  Reason = "condition-fails"   // it would be allowed here but for a condition
	NotThisCaller   Reason = "not-this-caller"   // a trust policy names others
	DenyStatement   Reason = "deny-statement"    // a statement denies it
)

// The kinds of policy that can deny.
const (
	ByIdentity     = "identity policy"
	ByBoundary     = "permissions boundary"
	BySession      = "session policy"
	ByOrganization = "service control policy"
	ByResource     = "resource policy"
)

// A Decision is what the policies say to a request, and why.
type Decision struct {
	Request Request
	Effect  Effect
	Reason  Reason // of a denial
	Kind    string // of the policy that decides a denial: ByIdentity …
	// Statements decide: the one that allows or denies, or those that allow
	// the action and come nearest.
	Statements []Match
	// Policies are the names of the policies that were looked at, of Kind.
	Policies []string
	// Missing are the keys of unknown value that the outcome hangs on.
	Missing []string
}

// A Match is a statement, and the conditions of it that the request fails.
type Match struct {
	Policy    string
	Statement Statement
	Failed    []Failure
}

// A Failure is a condition that isn't met.
type Failure struct {
	Condition
	Got []string // nil: the request doesn't have the key
}

// Evaluate decides a request. The order is that of the IAM User Guide's
// "Policy evaluation logic": a deny anywhere, then the organization, the
// resource's policy, the boundary, the session, the identity's own policies.
func Evaluate(r Request, p Policies) Decision {
	var missing []string
	all := []struct {
		kind     string
		policies []Policy
	}{{ByIdentity, p.Identity}, {BySession, p.Session}, {ByResource, p.Resource}, {ByOrganization, slices.Concat(p.Organization...)}}
	if p.Boundary != nil {
		all = append(all, struct {
			kind     string
			policies []Policy
		}{ByBoundary, []Policy{*p.Boundary}})
	}
	denied := no
	for _, layer := range all {
		is, by := r.denied(layer.policies, &missing)
		if is == yes {
			return Decision{Request: r, Effect: ExplicitDeny, Reason: DenyStatement, Kind: layer.kind, Statements: []Match{by}, Policies: names(layer.policies)}
		}
		denied = max(denied, is)
	}
	verdict := Decision{Request: r, Effect: Allowed}
	require := func(kind string, policies []Policy) (refused bool) {
		layer := r.allowed(policies, kind)
		missing = append(missing, layer.Missing...)
		switch {
		case layer.Effect == ImplicitDeny:
			verdict = layer
			return true
		case layer.Effect == Undecided || verdict.Effect == Undecided:
			verdict.Effect = Undecided
		default:
			verdict.Statements = layer.Statements
		}
		return false
	}
	for _, level := range p.Organization {
		if require(ByOrganization, level) {
			return verdict
		}
	}
	if p.Boundary != nil && require(ByBoundary, []Policy{*p.Boundary}) {
		return verdict
	}
	if p.Session != nil && require(BySession, p.Session) {
		return verdict
	}
	switch {
	case len(p.Resource) > 0 && len(p.Identity) == 0:
		if require(ByResource, p.Resource) {
			return verdict
		}
	case len(p.Resource) > 0 && r.allowed(p.Resource, ByResource).Effect == Allowed:
		// The account's own resource may let the caller in by itself.
	default:
		if require(ByIdentity, p.Identity) {
			return verdict
		}
	}
	if denied == maybe {
		verdict.Effect = Undecided
	}
	if verdict.Effect == Undecided {
		slices.Sort(missing)
		verdict.Missing = slices.Compact(missing)
		verdict.Statements = nil
	}
	return verdict
}

func names(policies []Policy) []string {
	var all []string
	for _, p := range policies {
		all = append(all, p.Name)
	}
	return all
}

func (r Request) scope(p Policy, missed *[]string) scope {
	s := scope{values: make(map[string][]string, len(r.Context)), variables: p.Version == version2012, missed: missed}
	for key, values := range r.Context {
		s.values[strings.ToLower(key)] = values
	}
	for _, u := range r.Unknown {
		s.unknown = append(s.unknown, strings.ToLower(u))
	}
	for _, a := range r.Absent {
		s.absent = append(s.absent, strings.ToLower(a))
	}
	return s
}

func (r Request) denied(policies []Policy, missing *[]string) (truth, Match) {
	worst := no
	for _, p := range policies {
		for _, st := range p.Statements {
			if st.Effect != Deny || !st.coversAction(r.Action) || !st.coversPrincipal(r.Principal) {
				continue
			}
			var missed []string
			s := r.scope(p, &missed)
			is := st.coversResource(s, r.Resource)
			for _, c := range st.Conditions {
				is = min(is, c.holds(s))
			}
			if is == yes {
				return yes, Match{Policy: p.Name, Statement: st}
			}
			if is == maybe {
				*missing = append(*missing, missed...)
			}
			worst = max(worst, is)
		}
	}
	return worst, Match{}
}

// allowed is whether these policies, taken together, have a statement that
// allows the request; else why not.
func (r Request) allowed(policies []Policy, kind string) Decision {
	d := Decision{Request: r, Effect: ImplicitDeny, Reason: NoStatement, Kind: kind, Policies: names(policies)}
	rank := map[Reason]int{NoStatement: 0, NotThisCaller: 1, NotThisResource: 2, ConditionFails: 3}
	near := func(reason Reason, m Match) {
		if rank[reason] > rank[d.Reason] {
			d.Reason, d.Statements = reason, nil
		}
		if reason == d.Reason {
			d.Statements = append(d.Statements, m)
		}
	}
	for _, p := range policies {
		for _, st := range p.Statements {
			if st.Effect != Allow || !st.coversAction(r.Action) {
				continue
			}
			m := Match{Policy: p.Name, Statement: st}
			if !st.coversPrincipal(r.Principal) {
				near(NotThisCaller, m)
				continue
			}
			var missed []string
			s := r.scope(p, &missed)
			is := st.coversResource(s, r.Resource)
			if is == no {
				near(NotThisResource, m)
				continue
			}
			for _, c := range st.Conditions {
				t := c.holds(s)
				if t == no {
					got, _ := s.get(c.Key)
					m.Failed = append(m.Failed, Failure{c, got})
				}
				is = min(is, t)
			}
			switch is {
			case yes:
				return Decision{Request: r, Effect: Allowed, Kind: kind, Statements: []Match{m}, Policies: d.Policies}
			case maybe:
				d.Effect = Undecided
				d.Missing = append(d.Missing, missed...)
			default:
				near(ConditionFails, m)
			}
		}
	}
	return d
}
