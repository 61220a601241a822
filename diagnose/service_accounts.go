package diagnose

import (
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// accessFacts are what RBAC decides by.
var accessFacts = []probes.Any{probes.KubeRoles, probes.RoleBindings, probes.ClusterRoles, probes.ClusterRoleBindings, probes.ServiceAccounts}

// A grant is one binding that names a service account, with the rules of the
// role that it refers to.
type grant struct {
	binding, role Ref
	rules         []rbacv1.PolicyRule
	missing       bool // the role is not there
}

// A verbAsked is what a caller was denied.
type verbAsked struct{ verb, group, resource, namespace string }

func (v verbAsked) kind() string { return strings.TrimSuffix(v.resource+"."+v.group, ".") }

func (v verbAsked) String() string {
	text := v.verb + " " + v.kind()
	if v.namespace != "" {
		return text + " in namespace " + v.namespace
	}
	return text + " in the whole cluster"
}

func (v verbAsked) allowedBy(rules []rbacv1.PolicyRule) bool {
	has := func(list []string, want string) bool {
		return slices.Contains(list, want) || slices.Contains(list, "*")
	}
	return slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool {
		return has(r.Verbs, v.verb) && has(r.APIGroups, v.group) && has(r.Resources, v.resource) && len(r.ResourceNames) == 0
	})
}

// grantsOf are the bindings that hold for a service account in a namespace;
// near is one that names nearly that account, for nobody else.
func grantsOf(facts *probes.Facts, account Ref, namespace string) (list []grant, near *grant, err error) {
	roles, err1 := probes.KubeRoles.Of(facts)
	bindings, err2 := probes.RoleBindings.Of(facts)
	clusterRoles, err3 := probes.ClusterRoles.Of(facts)
	clusterBindings, err4 := probes.ClusterRoleBindings.Of(facts)
	for _, err := range []error{err1, err2, err3, err4} {
		if err != nil {
			return nil, nil, err
		}
	}
	resolve := func(binding Ref, to rbacv1.RoleRef) grant {
		g := grant{binding: binding, role: Ref{Kind: to.Kind, Name: to.Name}}
		if to.Kind == "Role" {
			g.role.Namespace = binding.Namespace
			r := roles.Get(binding.Namespace, to.Name)
			if g.missing = r == nil; r != nil {
				g.rules = r.Rules
			}
		} else if r := clusterRoles.Get("", to.Name); r == nil {
			g.missing = true
		} else {
			g.rules = r.Rules
		}
		return g
	}
	add := func(binding Ref, subjects []rbacv1.Subject, to rbacv1.RoleRef) {
		for _, s := range subjects {
			space := s.Namespace
			if space == "" {
				space = binding.Namespace
			}
			switch {
			case s.Kind == "ServiceAccount" && s.Name == account.Name && space == account.Namespace,
				s.Kind == "Group" && slices.Contains([]string{"system:serviceaccounts", "system:serviceaccounts:" + account.Namespace, "system:authenticated"}, s.Name):
				list = append(list, resolve(binding, to))
			case s.Kind == "ServiceAccount" && (s.Name == account.Name || space == account.Namespace && likeness(s.Name, account.Name) >= 85):
				g := resolve(binding, to)
				near = &g
			}
		}
	}
	for b := range bindings.In(namespace) {
		if namespace != "" {
			add(Ref{Kind: "RoleBinding", Namespace: b.Namespace, Name: b.Name}, b.Subjects, b.RoleRef)
		}
	}
	for _, b := range clusterBindings.All() {
		add(Ref{Kind: "ClusterRoleBinding", Name: b.Name}, b.Subjects, b.RoleRef)
	}
	return list, near, nil
}

// serviceAccountDenied: the Kubernetes API denies a program a verb, and RBAC
// as it stands does not grant it. The subject is the object that comes nearest
// to granting it.
var serviceAccountDenied = fromLog("service-account-denied", "does RBAC not grant the service account what the API server denies it?", ailingOrRefused, accessFacts,
	func(facts *probes.Facts, f *logFault) blame {
		c := f.failure.Captures
		parts := strings.Split(c["user"], ":")
		b := blame{vars: map[string]string{"hint": "", "user": c["user"], "asked": "", "account": "", "can": ""}}
		if len(parts) != 4 || parts[1] != "serviceaccount" || c["resource"] == "" {
			b.unless = Answered(false, f.evidence())
			return b
		}
		account := Ref{Kind: "ServiceAccount", Namespace: parts[2], Name: parts[3]}
		asked := verbAsked{c["action"], c["group"], c["resource"], c["namespace"]}
		b.subject, b.vars["asked"], b.vars["account"] = account, asked.String(), parts[2]+"/"+parts[3]
		b.vars["can"] = asked.verb + " " + asked.kind() + " --all-namespaces"
		if asked.namespace != "" {
			b.vars["can"] = asked.verb + " " + asked.kind() + " -n " + asked.namespace
		}
		grants, near, err := grantsOf(facts, account, asked.namespace)
		if err != nil {
			b.unless = CantTell(err, f.evidence())
			return b
		}
		bound := slices.DeleteFunc(slices.Clone(grants), func(g grant) bool { return strings.HasPrefix(g.role.Name, "system:") })
		for _, g := range grants {
			if asked.allowedBy(g.rules) {
				b.unless = Answered(false, SawObject(accessResource(g.role.Kind), g.role.Namespace, g.role.Name, "%s %s grants it by now", g.role.Kind, g.role.Name))
				return b
			}
		}
		see := func(r Ref, format string, args ...any) {
			says := fmt.Sprintf(format, args...)
			b.vars["hint"] = " " + capital(says) + "."
			b.found = append(b.found, SawObject(accessResource(r.Kind), r.Namespace, r.Name, "%s", says))
		}
		switch missing := slices.IndexFunc(bound, func(g grant) bool { return g.missing }); {
		case missing >= 0:
			g := bound[missing]
			b.subject = g.binding
			see(g.binding, "%s %s refers to %s %s, which is not there", g.binding.Kind, g.binding.Name, g.role.Kind, g.role.Name)
		case len(bound) > 0:
			b.subject = bound[0].role
			see(bound[0].role, "%s %s, which %s %s gives it, does not grant %s", bound[0].role.Kind, bound[0].role.Name, bound[0].binding.Kind, bound[0].binding.Name, asked)
		case near != nil && asked.allowedBy(near.rules):
			b.subject = near.binding
			see(near.binding, "%s %s grants it, to another service account", near.binding.Kind, near.binding.Name)
		default:
			other := accountOf(facts, f.owner, account)
			if other.Name != "" {
				b.subject = f.owner
				see(other, "service account %s of that name is there, and the pods run as %s", other.Name, account.Name)
				break
			}
			see(account, "no binding gives service account %s a role", account.Name)
		}
		return b
	}, "kube-forbidden")

// accountOf is the service account of a workload's own name, where its pods
// run as another.
func accountOf(facts *probes.Facts, owner, used Ref) Ref {
	accounts, err := probes.ServiceAccounts.Of(facts)
	if err != nil || used.Name != "default" || accounts.Get(owner.Namespace, owner.Name) == nil {
		return Ref{}
	}
	return Ref{Kind: "ServiceAccount", Namespace: owner.Namespace, Name: owner.Name}
}

func accessResource(kind string) string {
	if kind == "ServiceAccount" {
		return resourceOfKind(kind)
	}
	return resourceOfKind(kind) + ".rbac.authorization.k8s.io"
}
