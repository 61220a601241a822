package probes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pposiraegi/ppodoctor/probes/iampolicy"
)

// A Simulation is one answer of IAM's policy simulator for a role.
type Simulation struct {
	Role, Action string
	Resource     string // an ARN or *; empty: the simulator named only a template
	Effect       iampolicy.Effect
	Statements   []string // names of the policies whose statements decide
	Missing      []string // context keys that were not given: a denial then says nothing
	Boundary     bool     // the permissions boundary is what denies
	Organization bool     // a service control policy is what denies
}

// A Call is a request to AWS that a role may or may not make. A nil Context
// means that it isn't known what the request carries.
type Call struct {
	Role             string // a name or an ARN
	Action, Resource string
	Context          map[string][]string
}

// simulation is the document that holds what the simulator says of the calls
// of one role. Only is the role, then ACTION RESOURCE and KEY=VALUE…: what a
// live read asks for.
func simulation(c Call) Document {
	doc := Document{Path: "aws/iam/simulate-principal-policy", Only: []string{c.Role, c.Action + " " + orStar(c.Resource)}}
	for _, key := range slices.Sorted(maps.Keys(c.Context)) {
		for _, value := range c.Context[key] {
			doc.Only = append(doc.Only, key+"="+value)
		}
	}
	return doc
}

// Simulations are what IAM's policy simulator said of roles.
var Simulations = &Probe[[]Simulation]{
	Name:  "simulations",
	About: "what IAM's policy simulator says of the roles in question",
	Reads: []Permission{{Action: "iam:SimulatePrincipalPolicy"}, {Action: "iam:GetRole"}},
	Gather: func(ctx context.Context, src Source, known *Facts) ([]Simulation, error) {
		// A snapshot has those that were captured; a running cluster simulates
		// only what is asked for.
		all, failed := readSimulations(ctx, src, []Document{{Path: "aws/iam/simulate-principal-policy"}})
		asked, err := Simulate(ctx, src, known.store.calls)
		all = append(all, asked...)
		if len(all) > 0 {
			return all, nil
		}
		return nil, errors.Join(failed, err)
	},
}

// Simulate puts calls to IAM's policy simulator; a snapshot answers with what
// was captured.
func Simulate(ctx context.Context, src Source, calls []Call) ([]Simulation, error) {
	var docs []Document
	for _, c := range calls {
		docs = append(docs, simulation(c))
	}
	return readSimulations(ctx, src, docs)
}

func readSimulations(ctx context.Context, src Source, docs []Document) (all []Simulation, failed error) {
	for _, doc := range docs {
		err := eachAWS(ctx, src, doc, func(fields map[string]json.RawMessage) error {
			var results []evaluationResult
			if fields["EvaluationResults"] == nil {
				return nil // nothing was asked
			}
			if err := json.Unmarshal(fields["EvaluationResults"], &results); err != nil {
				return err
			}
			for _, r := range results {
				all = append(all, r.simulations(RoleName(text(fields["RoleName"])))...)
			}
			return nil
		})
		failed = errors.Join(failed, err)
	}
	return all, failed
}

// An evaluationResult is one of `aws iam simulate-principal-policy`. Until
// 2026-07-30 there was one for each resource; since then there is one for each
// action, and the resources are in ResourceSpecificResults.
type evaluationResult struct {
	EvalActionName, EvalResourceName  string
	EvalDecision                      iampolicy.Effect
	MatchedStatements                 []matchedStatement
	MissingContextValues              []string
	PermissionsBoundaryDecisionDetail *struct{ AllowedByPermissionsBoundary bool }
	OrganizationsDecisionDetail       *struct{ AllowedByOrganizations bool }
	ResourceSpecificResults           []struct {
		EvalResourceName                  string
		EvalResourceDecision              iampolicy.Effect
		MatchedStatements                 []matchedStatement
		MissingContextValues              []string
		PermissionsBoundaryDecisionDetail *struct{ AllowedByPermissionsBoundary bool }
	}
}

type matchedStatement struct{ SourcePolicyId string }

func (r evaluationResult) simulations(role string) []Simulation {
	organization := r.OrganizationsDecisionDetail != nil && !r.OrganizationsDecisionDetail.AllowedByOrganizations
	one := Simulation{
		Role: role, Action: r.EvalActionName, Resource: r.EvalResourceName, Effect: r.EvalDecision,
		Statements: sources(r.MatchedStatements), Missing: r.MissingContextValues, Organization: organization,
		Boundary: r.PermissionsBoundaryDecisionDetail != nil && !r.PermissionsBoundaryDecisionDetail.AllowedByPermissionsBoundary,
	}
	if len(r.ResourceSpecificResults) == 0 {
		if strings.Contains(one.Resource, "${") {
			one.Resource = ""
		}
		return []Simulation{one}
	}
	var all []Simulation
	for _, s := range r.ResourceSpecificResults {
		each := one
		each.Resource, each.Effect, each.Statements, each.Missing = s.EvalResourceName, s.EvalResourceDecision, sources(s.MatchedStatements), s.MissingContextValues
		if s.PermissionsBoundaryDecisionDetail != nil {
			each.Boundary = !s.PermissionsBoundaryDecisionDetail.AllowedByPermissionsBoundary
		}
		all = append(all, each)
	}
	return all
}

func sources(statements []matchedStatement) []string {
	var all []string
	for _, s := range statements {
		if !slices.Contains(all, s.SourcePolicyId) {
			all = append(all, s.SourcePolicyId)
		}
	}
	return all
}

// A PermissionSolver says what roles may do.
type PermissionSolver struct {
	roles       *RoleList
	rolesGap    error
	simulations []Simulation
}

// Permissions answers what a role may do, from simulations and, where there
// are none, from the role's captured policies.
var Permissions = &Probe[*PermissionSolver]{
	Name:  "permissions",
	About: "what IAM roles may do",
	After: []Any{Roles, Simulations},
	Gather: func(_ context.Context, _ Source, known *Facts) (*PermissionSolver, error) {
		s := &PermissionSolver{}
		s.roles, s.rolesGap = Roles.Of(known)
		s.simulations, _ = Simulations.Of(known) // without them, policies are evaluated
		return s, nil
	},
}

// With is the solver with more simulations, which count before those it has.
func (s *PermissionSolver) With(more []Simulation) *PermissionSolver {
	if len(more) == 0 {
		return s
	}
	return &PermissionSolver{roles: s.roles, rolesGap: s.rolesGap, simulations: slices.Concat(more, s.simulations)}
}

// A Ruling is a decision and where it comes from.
type Ruling struct {
	iampolicy.Decision
	By       string   // "simulation" or "evaluation"
	Document Document // that shows it
	says     string
}

// Why is the ruling in a sentence.
func (r Ruling) Why() string {
	if r.says != "" {
		return r.says
	}
	return r.Decision.Why()
}

// sent are the kinds of condition key that a request has only if its caller
// sends them, or if the resource has the tag.
var sent = []string{
	"aws:requesttag/*", "aws:resourcetag/*", "aws:tagkeys", "ec2:resourcetag/*", "ec2:createaction", "iam:passedtoservice",
	"elasticloadbalancing:createaction", "iam:awsservicename", "autoscaling:resourcetag/*", "arc-zonal-shift:resourceidentifier",
}

// May is whether a role may do an action on a resource. A nil context means
// that it isn't known what the request carries. The error is a *[Gap] where
// the role's policies were not all captured and what is known doesn't settle
// it; an Undecided ruling without an error hangs on context that only AWS has.
// Service control policies are seen by simulations only.
func (s *PermissionSolver) May(role, action, resource string, context map[string][]string) (Ruling, error) {
	if r, ok := s.simulated(RoleName(role), action, resource); ok {
		if own, err := s.evaluated(role, action, resource, context); err == nil && own.Effect != iampolicy.Undecided && (own.Effect == iampolicy.Allowed) != (r.Effect == iampolicy.Allowed) && r.Kind == iampolicy.ByIdentity {
			r.says += fmt.Sprintf("; the role's policies as they were read say %s (%s): the simulator's word counts, it sees more", own.Effect, own.Why())
		}
		return r, nil
	}
	return s.evaluated(role, action, resource, context)
}

// evaluated is the ruling by the role's captured policies.
func (s *PermissionSolver) evaluated(role, action, resource string, context map[string][]string) (Ruling, error) {
	if s.rolesGap != nil {
		return Ruling{}, s.rolesGap
	}
	r, err := s.roles.Get(role)
	if err != nil {
		return Ruling{}, err
	}
	if r == nil {
		return Ruling{}, fmt.Errorf("role %s does not exist", role)
	}
	policies, gap := s.roles.bind(r)
	request := iampolicy.Request{Action: action, Resource: resource, Context: surroundings(r, resource, context), Unknown: []string{"*"}}
	if context != nil {
		request.Absent = sent
	}
	ruling := Ruling{Decision: iampolicy.Evaluate(request, policies), By: "evaluation", Document: Document{Path: s.policyDocument(r), Only: []string{r.Name}}}
	if gap != nil && ruling.Effect != iampolicy.ExplicitDeny {
		return Ruling{}, gap
	}
	return ruling, nil
}

func (s *PermissionSolver) policyDocument(r *Role) string {
	if len(s.roles.accounts) > 0 {
		return "aws/iam/get-account-authorization-details"
	}
	if len(r.inline) > 0 && len(r.attached) == 0 {
		return "aws/iam/get-role-policy"
	}
	return "aws/iam/list-attached-role-policies"
}

// surroundings adds to a request's context what AWS fills in and is known.
func surroundings(r *Role, resource string, context map[string][]string) map[string][]string {
	all := map[string][]string{"aws:SecureTransport": {"true"}, "aws:PrincipalType": {"AssumedRole"}}
	if r.ARN != "" {
		all["aws:PrincipalArn"], all["aws:PrincipalAccount"] = []string{r.ARN}, []string{account(r.ARN)}
	}
	for key, value := range r.Tags {
		all["aws:PrincipalTag/"+key] = []string{value}
	}
	if parts := strings.SplitN(resource, ":", 6); len(parts) == 6 {
		if parts[3] != "" {
			all["aws:RequestedRegion"] = []string{parts[3]}
		}
		if parts[4] != "" {
			all["aws:ResourceAccount"] = []string{parts[4]}
		}
	}
	maps.Copy(all, context)
	for key, values := range context {
		if tag, ok := strings.CutPrefix(key, "aws:ResourceTag/"); ok {
			all["ec2:ResourceTag/"+tag] = values
		}
	}
	return all
}

// simulated is what the simulator said of the same action and resource. A
// denial for want of context keys says nothing.
func (s *PermissionSolver) simulated(role, action, resource string) (Ruling, bool) {
	for _, sim := range s.simulations {
		if sim.Role != role || !strings.EqualFold(sim.Action, action) {
			continue
		}
		same := sim.Resource == resource || sim.Resource == "" && resource == "*" || sim.Resource == "*" && resource == ""
		if !same && !(sim.Resource == "*" && sim.Effect == iampolicy.Allowed) {
			continue
		}
		if sim.Effect == iampolicy.ImplicitDeny && len(sim.Missing) > 0 {
			continue
		}
		d := iampolicy.Decision{Request: iampolicy.Request{Action: action, Resource: resource}, Effect: sim.Effect, Kind: iampolicy.ByIdentity, Policies: sim.Statements}
		says := fmt.Sprintf("IAM's simulator says %s for %s on %s", sim.Effect, action, orStar(resource))
		switch {
		case sim.Effect == iampolicy.ExplicitDeny:
			d.Reason = iampolicy.DenyStatement
		case sim.Effect == iampolicy.ImplicitDeny:
			d.Reason = iampolicy.NoStatement
		}
		switch {
		case sim.Organization:
			d.Kind = iampolicy.ByOrganization
			says += ": a service control policy does not allow it"
		case sim.Boundary:
			d.Kind = iampolicy.ByBoundary
			says += ": the permissions boundary does not allow it"
		case len(sim.Statements) > 0:
			says += " (by " + strings.Join(sim.Statements, ", ") + ")"
		}
		return Ruling{Decision: d, By: "simulation", Document: Document{Path: "aws/iam/simulate-principal-policy", Only: []string{role}}, says: says}, true
	}
	return Ruling{}, false
}

func orStar(resource string) string {
	if resource == "" {
		return "*"
	}
	return resource
}

// IsGap is whether an error is about something that was not captured.
func IsGap(err error) bool {
	var gap *Gap
	return errors.As(err, &gap)
}

// GapsIn are the gaps that an error wraps or joins, each document once.
func GapsIn(err error) []*Gap {
	var gaps []*Gap
	var visit func(error)
	visit = func(err error) {
		switch e := err.(type) {
		case nil:
		case *Gap:
			if !slices.ContainsFunc(gaps, func(g *Gap) bool { return g.Document.Path == e.Document.Path }) {
				gaps = append(gaps, e)
			}
		case interface{ Unwrap() error }:
			visit(e.Unwrap())
		case interface{ Unwrap() []error }:
			for _, part := range e.Unwrap() {
				visit(part)
			}
		}
	}
	visit(err)
	return gaps
}
