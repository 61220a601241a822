package probes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pposiraegi/ppodoctor/probes/iampolicy"
)

// A Role is an IAM role with what binds it. What was not captured is said by
// the errors of its methods.
type Role struct {
	Name, ARN, Path string
	Tags            map[string]string
	BoundaryARN     string   // empty: it has no permissions boundary, if the role itself was described
	Profiles        []string // instance profiles that hold it

	described bool // get-role or the account's listing had it
	trust     *iampolicy.Policy
	attached  map[string]bool // ARNs of managed policies; nil: not listed
	inline    map[string]bool // names of inline policies; nil: not listed
	documents map[string]iampolicy.Policy
	gaps      []*Gap // documents that were there and can't be read
}

// A RoleList is the roles that were captured.
type RoleList struct {
	roles    map[string]*Role // by name
	managed  map[string]iampolicy.Policy
	profiles map[string][]string // role names by instance profile
	accounts map[string]bool     // whose roles were all listed
	absent   map[string]bool     // names that IAM said don't exist
	denied   map[string]*Gap     // roles that could not be read
	reader   string              // the account in which it said so; empty: not told
	gap      *Gap                // what would show a role that isn't here
	listing  *Gap                // why the account's listing isn't here; nil: it is
}

// Roles are the IAM roles, merged from whichever of the IAM reads were made.
var Roles = &Probe[*RoleList]{
	Name:  "roles",
	About: "IAM roles with their trust policy, policies, permissions boundary and instance profiles",
	Reads: []Permission{
		{Action: "iam:GetRole"},
		{Action: "iam:ListAttachedRolePolicies"},
		{Action: "iam:ListRolePolicies"},
		{Action: "iam:GetRolePolicy"},
		{Action: "iam:GetPolicy"},
		{Action: "iam:GetPolicyVersion"},
		{Action: "iam:ListRoles"},
	},
	After: []Any{ServiceAccounts, EC2NodeClasses, PodIdentityAssociations},
	Gather: func(ctx context.Context, src Source, known *Facts) (*RoleList, error) {
		only := rolesInQuestion(known)
		l := &RoleList{
			roles: map[string]*Role{}, managed: map[string]iampolicy.Policy{}, profiles: map[string][]string{},
			accounts: map[string]bool{}, absent: map[string]bool{}, denied: map[string]*Gap{},
		}
		seen := false
		for _, command := range []string{
			"get-role", "list-roles", "list-attached-role-policies", "list-role-policies", "get-role-policy",
			"get-policy", "get-policy-version", "get-instance-profile", "list-instance-profiles", "get-account-authorization-details",
		} {
			doc := Document{Path: "aws/iam/" + command, Only: only}
			err := eachAWS(ctx, src, doc, func(fields map[string]json.RawMessage) error {
				seen = true
				return l.add(doc, fields)
			})
			var gap *Gap
			switch {
			case err == nil:
			case !errors.As(err, &gap):
				return nil, err
			case strings.Contains(gap.Detail, "NoSuchEntity"):
				for _, name := range only {
					if strings.Contains(gap.Detail, name) {
						l.absent[name] = true
					}
				}
			case command == "get-account-authorization-details":
				l.listing = gap
			case l.gap == nil, gap.Reason == Unreadable:
				l.gap = gap
			}
		}
		if l.listing != nil && l.listing.Reason == NotCaptured && l.gap != nil && l.gap.Reason == Forbidden {
			l.listing = nil // whoever captured asked for single roles
		}
		if !seen {
			return nil, joined(l.gap, l.listing)
		}
		if l.gap == nil {
			l.gap = gapf(Document{Path: "aws/iam/get-role"}, NotCaptured, "the role is not in it")
		}
		l.settle()
		return l, nil
	},
}

// joined is an error of those gaps that there are.
func joined(gaps ...*Gap) error {
	var all error
	for _, g := range gaps {
		if g != nil {
			all = errors.Join(all, g)
		}
	}
	return all
}

// rolesInQuestion are the names of roles that something in the cluster names.
func rolesInQuestion(known *Facts) []string {
	names := map[string]bool{}
	if accounts, err := ServiceAccounts.Of(known); err == nil {
		for _, sa := range accounts.All() {
			names[RoleName(sa.Annotations[RoleAnnotation])] = true
		}
	}
	if classes, err := EC2NodeClasses.Of(known); err == nil {
		for _, c := range classes.All() {
			names[RoleName(c.Spec.Role)] = true
		}
	}
	if associations, err := PodIdentityAssociations.Of(known); err == nil {
		for _, a := range associations.All() {
			names[RoleName(a.RoleARN)] = true
		}
	}
	for _, c := range known.store.calls {
		names[RoleName(c.Role)] = true
	}
	delete(names, "")
	return slices.Sorted(maps.Keys(names))
}

// RoleName is the name of a role, given its name, its ARN with a path, or the
// ARN of a session of it (arn:aws:sts::1:assumed-role/NAME/SESSION).
func RoleName(s string) string {
	parts := strings.SplitN(strings.TrimSpace(s), ":", 6)
	if len(parts) != 6 {
		return s[strings.LastIndex(s, "/")+1:]
	}
	if rest, ok := strings.CutPrefix(parts[5], "assumed-role/"); ok {
		name, _, _ := strings.Cut(rest, "/")
		return name
	}
	return parts[5][strings.LastIndex(parts[5], "/")+1:]
}

// account is the account number in an ARN, or empty.
func account(arn string) string {
	if parts := strings.SplitN(arn, ":", 6); len(parts) == 6 {
		return parts[4]
	}
	return ""
}

type policyDocument struct {
	PolicyName     string
	PolicyArn      string
	PolicyDocument json.RawMessage
}

type iamRole struct {
	RoleName, Arn, Path      string
	AssumeRolePolicyDocument json.RawMessage
	PermissionsBoundary      struct{ PermissionsBoundaryArn string }
	Tags                     []struct{ Key, Value string }
	RolePolicyList           []policyDocument
	AttachedManagedPolicies  []policyDocument
	InstanceProfileList      []instanceProfile
}

type instanceProfile struct {
	InstanceProfileName string
	Roles               []iamRole
}

func (l *RoleList) role(name string) *Role {
	if l.roles[name] == nil {
		l.roles[name] = &Role{Name: name, documents: map[string]iampolicy.Policy{}}
	}
	return l.roles[name]
}

// add merges one document of any of the IAM reads.
func (l *RoleList) add(doc Document, fields map[string]json.RawMessage) error {
	var d struct {
		Role             *iamRole
		Roles            []iamRole
		RoleDetailList   []iamRole
		IsTruncated      bool
		RoleName         string
		AttachedPolicies []policyDocument
		PolicyNames      []string
		PolicyName       string
		PolicyDocument   json.RawMessage
		InstanceProfile  *instanceProfile
		InstanceProfiles []instanceProfile
		PolicyVersion    *struct {
			Document         json.RawMessage
			IsDefaultVersion *bool
		}
		FileName  string
		PolicyArn string // of PolicyVersion, where it was read from a running cluster
		Account   string // of who reads
		Error     string // what the CLI says in place of the role
		Policies  []struct {
			Arn, PolicyName, DefaultVersionId string
			PolicyVersionList                 []struct {
				VersionId        string
				IsDefaultVersion bool
				Document         json.RawMessage
			}
		}
	}
	raw, err := json.Marshal(fields)
	if err == nil {
		err = json.Unmarshal(raw, &d)
	}
	if err != nil {
		return err
	}
	if d.Error != "" && d.RoleName != "" {
		l.refused(doc, d.RoleName, d.Account, d.Error)
		return nil
	}
	all := slices.Concat(d.Roles, d.RoleDetailList)
	if len(all) > 0 && !d.IsTruncated {
		for _, r := range all {
			l.accounts[account(r.Arn)] = true
		}
	}
	if d.Role != nil {
		all = append(all, *d.Role)
	}
	for _, r := range all {
		l.describe(doc, r, d.RoleDetailList != nil)
	}
	if d.RoleName != "" && d.AttachedPolicies != nil {
		l.role(d.RoleName).list(&l.role(d.RoleName).attached, d.AttachedPolicies)
	}
	if d.RoleName != "" && d.PolicyNames != nil {
		r := l.role(d.RoleName)
		r.inline = known(r.inline)
		for _, name := range d.PolicyNames {
			r.inline[name] = true
		}
	}
	if d.RoleName != "" && d.PolicyDocument != nil {
		l.role(d.RoleName).keep(doc, d.PolicyName, d.PolicyDocument)
	}
	if v := d.PolicyVersion; v != nil && (v.IsDefaultVersion == nil || *v.IsDefaultVersion) {
		// Which policy it is of, only the names of its file and folder say.
		p, err := iampolicy.Parse(cmp.Or(RoleName(d.PolicyArn), d.FileName), v.Document)
		if err != nil {
			return err
		}
		if d.PolicyArn != "" {
			l.managed[d.PolicyArn] = p
			return nil
		}
		l.managed["file:"+d.RoleName+"/"+d.FileName] = p
	}
	for _, p := range d.Policies {
		for _, v := range p.PolicyVersionList {
			if v.IsDefaultVersion || p.DefaultVersionId != "" && v.VersionId == p.DefaultVersionId {
				document, err := iampolicy.Parse(p.PolicyName, v.Document)
				if err != nil {
					continue // the role that has it lacks it then
				}
				l.managed[p.Arn] = document
			}
		}
	}
	if d.InstanceProfile != nil {
		d.InstanceProfiles = append(d.InstanceProfiles, *d.InstanceProfile)
	}
	for _, p := range d.InstanceProfiles {
		l.hold(p)
	}
	return nil
}

// refused notes that a role could not be read, in the words of the AWS CLI.
func (l *RoleList) refused(doc Document, role, account, says string) {
	if strings.Contains(says, "NoSuchEntity") {
		l.absent[role], l.reader = true, account
		return
	}
	reason := Unreadable
	if strings.Contains(says, "AccessDenied") {
		reason = Forbidden
	}
	l.denied[role] = gapf(Document{Path: doc.Path, Only: []string{role}}, reason, "%s", says)
}

func (l *RoleList) hold(p instanceProfile) {
	l.profiles[p.InstanceProfileName] = knownList(l.profiles[p.InstanceProfileName])
	for _, r := range p.Roles {
		if !slices.Contains(l.profiles[p.InstanceProfileName], r.RoleName) {
			l.profiles[p.InstanceProfileName] = append(l.profiles[p.InstanceProfileName], r.RoleName)
		}
	}
}

func known(m map[string]bool) map[string]bool {
	if m == nil {
		return map[string]bool{}
	}
	return m
}

func knownList(l []string) []string {
	if l == nil {
		return []string{}
	}
	return l
}

func (r *Role) list(into *map[string]bool, policies []policyDocument) {
	*into = known(*into)
	for _, p := range policies {
		(*into)[p.PolicyArn] = true
	}
}

func (r *Role) keep(doc Document, name string, raw json.RawMessage) {
	p, err := iampolicy.Parse("inline policy "+name, raw)
	if err != nil {
		r.gaps = append(r.gaps, gapf(doc, Unreadable, "%v", err))
		return
	}
	r.documents[name] = p
}

func (l *RoleList) describe(doc Document, d iamRole, detailed bool) {
	r := l.role(d.RoleName)
	r.described = r.described || doc.Path != "aws/iam/list-roles" // which leaves the boundary out
	r.ARN, r.Path = d.Arn, d.Path
	if d.PermissionsBoundary.PermissionsBoundaryArn != "" {
		r.BoundaryARN = d.PermissionsBoundary.PermissionsBoundaryArn
	}
	if d.Tags != nil {
		r.Tags = map[string]string{}
		for _, t := range d.Tags {
			r.Tags[t.Key] = t.Value
		}
	}
	if d.AssumeRolePolicyDocument != nil {
		p, err := iampolicy.Parse("the trust policy", d.AssumeRolePolicyDocument)
		if err != nil {
			r.gaps = append(r.gaps, gapf(doc, Unreadable, "%v", err))
		} else {
			r.trust = &p
		}
	}
	if !detailed {
		return
	}
	r.list(&r.attached, d.AttachedManagedPolicies)
	r.inline = known(r.inline)
	for _, p := range d.RolePolicyList {
		r.inline[p.PolicyName] = true
		r.keep(doc, p.PolicyName, p.PolicyDocument)
	}
	for _, p := range d.InstanceProfileList {
		p.Roles = append(p.Roles, iamRole{RoleName: d.RoleName})
		l.hold(p)
	}
}

// administrator is what AWS's policy AdministratorAccess says, which is known
// where the account's listing leaves it out.
const administrator = `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"*","Resource":"*"}]}`

// settle gives each role the documents of its managed policies.
func (l *RoleList) settle() {
	for name, r := range l.roles {
		var open []string
		for arn := range r.attached {
			short := RoleName(arn)
			if p, ok := l.managed[arn]; ok {
				r.documents[arn] = p
			} else if p, ok := l.named(name, short); ok {
				r.documents[arn] = p
			} else if strings.HasSuffix(arn, ":aws:policy/AdministratorAccess") {
				r.documents[arn], _ = iampolicy.Parse(short, []byte(administrator))
			} else {
				open = append(open, arn)
			}
		}
		// A policy's version in the role's folder is that of its only policy
		// without one.
		if prefix := "file:" + name + "/"; len(open) == 1 {
			var there []string
			for key := range l.managed {
				if strings.HasPrefix(key, prefix) && !strings.Contains(key, RoleName(open[0])) {
					there = append(there, key)
				}
			}
			if len(there) == 1 && len(r.attached) == 1 {
				p := l.managed[there[0]]
				p.Name = RoleName(open[0])
				r.documents[open[0]] = p
			}
		}
		for profile, roles := range l.profiles {
			if slices.Contains(roles, name) {
				r.Profiles = append(r.Profiles, profile)
			}
		}
		slices.Sort(r.Profiles)
	}
}

// named is the version of a managed policy in a file that is named after it.
func (l *RoleList) named(role, policy string) (iampolicy.Policy, bool) {
	for _, key := range slices.Sorted(maps.Keys(l.managed)) {
		file, ok := strings.CutPrefix(key, "file:")
		if !ok {
			continue
		}
		folder, base, _ := strings.Cut(file, "/")
		base = strings.TrimPrefix(strings.TrimPrefix(base, "get-policy-version"), "-")
		if base == policy || base == "" && folder == policy {
			p := l.managed[key]
			p.Name = policy
			return p, true
		}
	}
	return iampolicy.Policy{}, false
}

// All are the roles that were captured, by name.
func (l *RoleList) All() []*Role {
	var all []*Role
	for _, name := range slices.Sorted(maps.Keys(l.roles)) {
		all = append(all, l.roles[name])
	}
	return all
}

// Whole reports whether all roles of an account were listed.
func (l *RoleList) Whole() bool { return len(l.accounts) > 0 }

// Get is the role of a name or an ARN. It is nil without an error where all
// roles of the account were listed and it is not among them, and nil with a
// *Gap where it just was not captured. An ARN of another account is always a
// gap; one with the wrong path names no role, see [RoleList.Named].
func (l *RoleList) Get(nameOrARN string) (*Role, error) {
	name := RoleName(nameOrARN)
	r := l.roles[name]
	isARN := strings.HasPrefix(nameOrARN, "arn:") && strings.Contains(nameOrARN, ":role/")
	if r != nil && (!isARN || r.ARN == "" || r.ARN == nameOrARN) {
		return r, nil
	}
	in := account(nameOrARN)
	switch {
	case r != nil && account(r.ARN) == in: // same name, other path
		return nil, nil
	case l.absent[name] && (!isARN || l.reader == "" || l.reader == in):
		return nil, nil
	case isARN && l.accounts[in], !isARN && len(l.accounts) > 0:
		return nil, nil
	}
	if denied := l.denied[name]; denied != nil {
		return nil, denied
	}
	gap := *l.gap
	gap.Document = Document{Path: "aws/iam/get-role", Only: []string{name}}
	gap.Grant = gap.Document.Grant()
	if gap.Reason == "" || gap.Reason == Unreadable {
		gap.Reason = NotCaptured
	}
	gap.Detail = fmt.Sprintf("role %s was not captured", name)
	if l.listing != nil {
		return nil, joined(&gap, l.listing)
	}
	return nil, &gap
}

// Named is the role of that name, whatever its path or account, or nil.
func (l *RoleList) Named(name string) *Role { return l.roles[RoleName(name)] }

// Profile are the names of the roles in an instance profile; the error is a
// *Gap where it was not captured.
func (l *RoleList) Profile(name string) ([]string, error) {
	name = RoleName(name)
	if roles, ok := l.profiles[name]; ok {
		return roles, nil
	}
	return nil, gapf(Document{Path: "aws/iam/get-instance-profile", Only: []string{name}}, NotCaptured, "instance profile %s was not captured", name)
}

// ProfileNames are the instance profiles that were captured, sorted.
func (l *RoleList) ProfileNames() []string { return slices.Sorted(maps.Keys(l.profiles)) }

// Trust is who may assume the role.
func (r *Role) Trust() (iampolicy.Policy, error) {
	if r.trust == nil {
		return iampolicy.Policy{}, r.lacks("get-role", "its trust policy was not captured")
	}
	return *r.trust, nil
}

func (r *Role) lacks(command, format string, args ...any) *Gap {
	if len(r.gaps) > 0 {
		return r.gaps[0]
	}
	return gapf(Document{Path: "aws/iam/" + command, Only: []string{r.Name}}, NotCaptured, "role %s: %s", r.Name, fmt.Sprintf(format, args...))
}

// Attaches reports whether a managed policy of that name is attached to the
// role. Own policies may allow the same, so a role that has any is a *Gap
// rather than a no.
func (r *Role) Attaches(name string) (bool, error) {
	for arn := range r.attached {
		if strings.HasSuffix(arn, "/"+name) {
			return true, nil
		}
	}
	if r.attached == nil {
		return false, r.lacks("list-attached-role-policies", "its attached policies were not listed")
	}
	if r.inline == nil {
		return false, r.lacks("list-role-policies", "its inline policies were not listed")
	}
	for arn := range r.attached {
		if !strings.Contains(arn, "::aws:policy/") {
			return false, r.lacks("simulate-principal-policy", "whether its own policies allow what %s does", name)
		}
	}
	if len(r.inline) > 0 {
		return false, r.lacks("simulate-principal-policy", "whether its own policies allow what %s does", name)
	}
	return false, nil
}

// Policies are what the role allows: those that were captured, in the order of
// their names, and a *Gap if there are others, or if its boundary or the lists
// of its policies were not captured.
func (r *Role) Policies() (iampolicy.Policies, error) {
	var p iampolicy.Policies
	var gap error
	miss := func(command, format string, args ...any) {
		if gap == nil {
			gap = r.lacks(command, format, args...)
		}
	}
	if r.attached == nil {
		miss("list-attached-role-policies", "which policies are attached was not captured")
	}
	if r.inline == nil {
		miss("list-role-policies", "its inline policies were not captured")
	}
	if !r.described {
		miss("get-role", "whether it has a permissions boundary was not captured")
	}
	for _, arn := range slices.Sorted(maps.Keys(r.attached)) {
		if _, ok := r.documents[arn]; !ok {
			miss("get-policy-version", "the text of its policy %s was not captured", arn)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.inline)) {
		if _, ok := r.documents[name]; !ok {
			miss("get-role-policy", "the text of its inline policy %s was not captured", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.documents)) {
		p.Identity = append(p.Identity, r.documents[name])
	}
	return p, gap
}

// bind adds the role's permissions boundary.
func (l *RoleList) bind(r *Role) (iampolicy.Policies, error) {
	p, gap := r.Policies()
	if r.BoundaryARN == "" {
		return p, gap
	}
	name := RoleName(r.BoundaryARN)
	if b, ok := l.managed[r.BoundaryARN]; ok {
		p.Boundary = &b
	} else if b, ok := l.named(r.Name, name); ok {
		p.Boundary = &b
	} else if gap == nil {
		gap = r.lacks("get-policy-version", "the text of its permissions boundary %s was not captured", r.BoundaryARN)
	}
	return p, gap
}
