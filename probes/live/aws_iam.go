package live

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	iamtypes "github.com/aws/aws-sdk-go-v2/service/iam/types"

	"github.com/pposiraegi/ppodoctor/probes"
)

// A roleCache remembers what several documents of one role need.
type roleCache struct {
	mu    sync.Mutex
	roles map[string]*roleReads
}

// A roleReads is what was read of one role.
type roleReads struct {
	once         sync.Once
	role         *iamtypes.Role
	roleErr      error
	onceAttached sync.Once
	attached     []iamtypes.AttachedPolicy
	attachedErr  error
	onceInline   sync.Once
	inline       []string
	inlineErr    error
}

func (s *awsSession) reads(name string) *roleReads {
	s.roles.mu.Lock()
	defer s.roles.mu.Unlock()
	if s.roles.roles == nil {
		s.roles.roles = map[string]*roleReads{}
	}
	if s.roles.roles[name] == nil {
		s.roles.roles[name] = &roleReads{}
	}
	return s.roles.roles[name]
}

func (s *awsSession) role(ctx context.Context, name string) (*iamtypes.Role, error) {
	r := s.reads(name)
	r.once.Do(func() {
		out, err := s.iam.GetRole(ctx, &iam.GetRoleInput{RoleName: &name})
		if r.roleErr = err; err == nil {
			r.role = out.Role
		}
	})
	return r.role, r.roleErr
}

func (s *awsSession) attachedPolicies(ctx context.Context, name string) ([]iamtypes.AttachedPolicy, error) {
	r := s.reads(name)
	r.onceAttached.Do(func() {
		r.attached = []iamtypes.AttachedPolicy{}
		r.attachedErr = eachPage(ctx, iam.NewListAttachedRolePoliciesPaginator(s.iam, &iam.ListAttachedRolePoliciesInput{RoleName: &name}), func(out *iam.ListAttachedRolePoliciesOutput) {
			r.attached = append(r.attached, out.AttachedPolicies...)
		})
	})
	return r.attached, r.attachedErr
}

func (s *awsSession) inlinePolicies(ctx context.Context, name string) ([]string, error) {
	r := s.reads(name)
	r.onceInline.Do(func() {
		r.inline = []string{}
		r.inlineErr = eachPage(ctx, iam.NewListRolePoliciesPaginator(s.iam, &iam.ListRolePoliciesInput{RoleName: &name}), func(out *iam.ListRolePoliciesOutput) {
			r.inline = append(r.inline, out.PolicyNames...)
		})
	})
	return r.inline, r.inlineErr
}

// noSuch is the code for what doesn't exist.
const noSuch = "NoSuchEntity"

// An attempt is what was read of one role, or why it can't be had.
type attempt[T any] struct {
	value T
	err   error
}

// perRole reads something of each role. What fails for one role must not hide
// the others: take gets the failure too. Only if AWS refuses it for all of them
// the document is a gap.
func perRole[T any](ctx context.Context, roles []string, read func(context.Context, string) (T, error), take func(string, T, error)) error {
	names := make([]string, len(roles))
	for i, r := range roles {
		names[i] = probes.RoleName(r)
	}
	var all []attempt[T]
	err := each(ctx, names, func(ctx context.Context, role string) (attempt[T], error) {
		value, err := read(ctx, role)
		return attempt[T]{value, err}, ctx.Err()
	}, func(_ string, a attempt[T]) { all = append(all, a) })
	if err != nil {
		return err
	}
	if failed := func(a attempt[T]) bool { return a.err != nil && !isCode(a.err, noSuch) }; len(all) > 0 && !slices.ContainsFunc(all, func(a attempt[T]) bool { return !failed(a) }) {
		return all[0].err
	}
	for i, a := range all {
		take(names[i], a.value, a.err)
	}
	return nil
}

// failed is the place of what can't be had of a role: the member that the CLI
// would print is null, with what the CLI would say.
func (s *awsSession) failed(key, role string, err error) map[string]any {
	return map[string]any{key: nil, "RoleName": role, "Account": s.Account, "Error": failure(err)}
}

func readRoles(ctx context.Context, s *awsSession, only []string, emit func(any)) error {
	return perRole(ctx, only, s.role, func(name string, r *iamtypes.Role, err error) {
		if err != nil {
			emit(s.failed("Role", name, err))
			return
		}
		emit(map[string]any{"Role": printedIAM(r)})
	})
}

// readTrusts reads the account's roles, and keeps those that pods can have by
// their trust policy, and those that are asked for. The list says that it is
// not whole.
func readTrusts(ctx context.Context, s *awsSession, only []string, emit func(any)) error {
	kept := []iamtypes.Role{}
	in := &iam.ListRolesInput{MaxItems: aws.Int32(1000)}
	err := eachPage(ctx, iam.NewListRolesPaginator(s.iam, in), func(out *iam.ListRolesOutput) {
		for _, r := range out.Roles {
			trust := str(r.AssumeRolePolicyDocument)
			if strings.Contains(trust, "oidc-provider") || strings.Contains(trust, "pods.eks.amazonaws.com") ||
				slices.ContainsFunc(only, func(name string) bool { return probes.RoleName(name) == str(r.RoleName) }) {
				kept = append(kept, r)
			}
		}
	})
	if err == nil {
		emit(map[string]any{"Roles": printedIAM(kept), "IsTruncated": true})
	}
	return err
}

func readAttachedPolicies(ctx context.Context, s *awsSession, only []string, emit func(any)) error {
	return perRole(ctx, only, s.attachedPolicies, func(name string, policies []iamtypes.AttachedPolicy, err error) {
		if err == nil {
			emit(map[string]any{"RoleName": name, "AttachedPolicies": printed(policies)})
		}
	})
}

func readInlinePolicyNames(ctx context.Context, s *awsSession, only []string, emit func(any)) error {
	return perRole(ctx, only, s.inlinePolicies, func(name string, policies []string, err error) {
		if err == nil {
			emit(map[string]any{"RoleName": name, "PolicyNames": policies})
		}
	})
}

func readInlinePolicies(ctx context.Context, s *awsSession, only []string, emit func(any)) error {
	return perRole(ctx, only, func(ctx context.Context, role string) ([]*iam.GetRolePolicyOutput, error) {
		names, err := s.inlinePolicies(ctx, role)
		if err != nil {
			return nil, err
		}
		var all []*iam.GetRolePolicyOutput
		for _, name := range names {
			out, err := s.iam.GetRolePolicy(ctx, &iam.GetRolePolicyInput{RoleName: &role, PolicyName: &name})
			if err != nil && !isCode(err, noSuch) {
				return all, err
			}
			if err == nil {
				all = append(all, out)
			}
		}
		return all, nil
	}, func(_ string, policies []*iam.GetRolePolicyOutput, _ error) {
		for _, p := range policies {
			emit(printedIAM(p))
		}
	})
}

// readManagedPolicies reads the default versions of the policies that are
// attached to the roles, and of their boundaries. The CLI's output doesn't say
// which policy it is of; here PolicyArn does.
func readManagedPolicies(ctx context.Context, s *awsSession, only []string, emit func(any)) error {
	var arns []string
	err := perRole(ctx, only, func(ctx context.Context, role string) ([]string, error) {
		attached, err := s.attachedPolicies(ctx, role)
		var of []string
		for _, p := range attached {
			of = append(of, str(p.PolicyArn))
		}
		if r, roleErr := s.role(ctx, role); roleErr == nil && r.PermissionsBoundary != nil {
			of = append(of, str(r.PermissionsBoundary.PermissionsBoundaryArn))
		}
		return of, err
	}, func(_ string, of []string, _ error) { arns = append(arns, of...) })
	if err != nil {
		return err
	}
	slices.Sort(arns)
	var first error
	read := 0
	err = each(ctx, slices.Compact(arns), func(ctx context.Context, arn string) (attempt[*iamtypes.PolicyVersion], error) {
		version, err := s.policy(ctx, arn)
		return attempt[*iamtypes.PolicyVersion]{version, err}, ctx.Err()
	}, func(arn string, a attempt[*iamtypes.PolicyVersion]) {
		if a.err != nil {
			if first == nil {
				first = a.err
			}
			return
		}
		read++
		emit(map[string]any{"PolicyArn": arn, "PolicyVersion": printedIAM(a.value)})
	})
	if err == nil && read == 0 {
		return first
	}
	return err
}

func (s *awsSession) policy(ctx context.Context, arn string) (*iamtypes.PolicyVersion, error) {
	p, err := s.iam.GetPolicy(ctx, &iam.GetPolicyInput{PolicyArn: &arn})
	if err != nil {
		return nil, err
	}
	v, err := s.iam.GetPolicyVersion(ctx, &iam.GetPolicyVersionInput{PolicyArn: &arn, VersionId: p.Policy.DefaultVersionId})
	if err != nil {
		return nil, err
	}
	return v.PolicyVersion, nil
}

func readOIDCProviders(ctx context.Context, s *awsSession, _ []string, emit func(any)) error {
	out, err := s.iam.ListOpenIDConnectProviders(ctx, &iam.ListOpenIDConnectProvidersInput{})
	if err == nil {
		emit(printedList("OpenIDConnectProviderList", out.OpenIDConnectProviderList, printed))
	}
	return err
}

// readSimulation asks IAM's simulator for the calls of one role: only is the
// role, then ACTION RESOURCE for each call, and KEY=VALUE for what they carry.
// Calls on the same resource are asked for together.
func readSimulation(ctx context.Context, s *awsSession, only []string, emit func(any)) error {
	if len(only) == 0 {
		return nil
	}
	role, err := s.role(ctx, probes.RoleName(only[0]))
	if err != nil {
		return err
	}
	actions := map[string][]string{} // by resource
	values := map[string][]string{}
	for _, ask := range only[1:] {
		if action, resource, ok := strings.Cut(ask, " "); ok && !strings.Contains(action, "=") {
			actions[resource] = append(actions[resource], action)
		} else if key, value, ok := strings.Cut(ask, "="); ok {
			values[key] = append(values[key], value)
		}
	}
	var entries []iamtypes.ContextEntry
	for _, key := range slices.Sorted(maps.Keys(values)) {
		kind := iamtypes.ContextKeyTypeEnumString
		if len(values[key]) > 1 || strings.EqualFold(key, "aws:TagKeys") {
			kind = iamtypes.ContextKeyTypeEnumStringList
		}
		entries = append(entries, iamtypes.ContextEntry{ContextKeyName: &key, ContextKeyType: kind, ContextKeyValues: values[key]})
	}
	for _, resource := range slices.Sorted(maps.Keys(actions)) {
		in := &iam.SimulatePrincipalPolicyInput{PolicySourceArn: role.Arn, ActionNames: actions[resource], ContextEntries: entries}
		if resource != "*" {
			in.ResourceArns = []string{resource}
		}
		err := eachPage(ctx, iam.NewSimulatePrincipalPolicyPaginator(s.iam, in), func(out *iam.SimulatePrincipalPolicyOutput) {
			emit(map[string]any{"RoleName": str(role.RoleName), "EvaluationResults": printed(out.EvaluationResults)})
		})
		if err != nil {
			return err
		}
	}
	return nil
}
