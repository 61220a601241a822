package diagnose

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/iampolicy"
)

// An identityCase is a service account whose pods don't get the rights that
// they need: AWS won't let them take a role, or they run with the node's.
type identityCase struct {
	account  Ref
	object   *corev1.ServiceAccount // nil: not captured
	workload Ref
	pod      *corev1.Pod
	denials  []*probes.Denial
}

func (c identityCase) is(kinds ...probes.DenialKind) bool {
	return slices.ContainsFunc(c.denials, func(d *probes.Denial) bool { return slices.Contains(kinds, d.Kind) })
}

// unclaimed is whether the calls were made without a role of the pod's own.
func (c identityCase) unclaimed() bool {
	return slices.ContainsFunc(c.denials, func(d *probes.Denial) bool {
		return d.Kind == probes.NoCredentials || d.Kind == probes.Denied && lacksOwnRole(d, c.object)
	})
}

// injected is how the pod gets its credentials, and the role that IRSA named
// when the pod was made.
func (c identityCase) injected() (by, role string) { return probes.Injection(c.pod, "") }

// asked is the service account as the pod took it: with the role that was
// injected when the pod was made.
func (c identityCase) asked() *corev1.ServiceAccount {
	if _, role := c.injected(); role != "" && c.object != nil {
		sa := c.object.DeepCopy()
		if sa.Annotations == nil {
			sa.Annotations = map[string]string{}
		}
		sa.Annotations[probes.RoleAnnotation] = role
		return sa
	}
	return c.object
}

// outdated is whether the service account names another role by now than the
// one that was injected into the pod.
func (c identityCase) outdated() bool {
	_, role := c.injected()
	return role != "" && c.object != nil && c.object.Annotations[probes.RoleAnnotation] != role
}

func identityCases(facts *probes.Facts) []identityCase {
	denials, err := probes.Denials.Of(facts)
	if err != nil {
		return nil
	}
	pods, err := probes.Pods.Of(facts)
	if err != nil {
		return nil
	}
	accounts, _ := probes.ServiceAccounts.Of(facts)
	var all []identityCase
	for _, d := range denials {
		pod := pods.Get(d.Namespace, d.Pod)
		c := identityCase{account: Ref{Kind: "ServiceAccount", Namespace: d.Namespace, Name: d.ServiceAccount}, workload: d.Workload, pod: pod}
		if accounts != nil {
			c.object = accounts.Get(d.Namespace, d.ServiceAccount)
		}
		if pod == nil || bygone(d, facts.Source().Now()) || d.Kind == probes.Denied && !lacksOwnRole(d, c.object) {
			continue
		}
		i := slices.IndexFunc(all, func(o identityCase) bool { return o.account == c.account && o.workload == c.workload })
		if i < 0 {
			all, i = append(all, c), len(all)
		}
		all[i].denials = append(all[i].denials, d)
	}
	return all
}

var identityNeeds = slices.Concat([]probes.Any{probes.Denials, probes.Pods, probes.ServiceAccounts}, probes.IdentityNeeds)

// identityRule is a rule for the cases in which one thing breaks the chain
// from a pod to its role. who is the subject, broken whether that is it.
func identityRule(id, asks string, applies func(identityCase) bool, who func(*probes.Facts, identityCase) Ref, broken func(*probes.Facts, identityCase) Answer) *Rule {
	return &Rule{
		ID:       id,
		Explains: refusalHurts,
		Needs:    []probes.Any{probes.Denials, probes.Pods, probes.ServiceAccounts, probes.EKSCluster, probes.PodIdentityAssociations},
		Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
			var suspects []Suspect
			for _, c := range identityCases(facts) {
				var hurt []*Finding
				for _, d := range c.denials {
					hurt = appendNew(hurt, refusedEffects(d, effects)...)
				}
				if !applies(c) || len(hurt) == 0 {
					continue
				}
				s := Suspect{Subjects: appendNew([]Ref{who(facts, c)}, c.account, c.workload), Effects: hurt, Data: c, Vars: map[string]string{
					"account": c.account.Name, "accountNamespace": c.account.Namespace, "workload": short(c.workload), "pod": c.pod.Name,
					// What the tests find replaces these.
					"says": "what is there could not be read", "issuer": "the cluster's issuer", "role": c.account.Name, "roleARN": "the role", "statement": "", "wanted": "the role that is meant for it",
				}}
				if c.object != nil {
					s.Vars["role"] = probes.RoleName(c.asked().Annotations[probes.RoleAnnotation])
					s.Vars["roleARN"] = c.asked().Annotations[probes.RoleAnnotation]
				}
				for _, d := range c.denials[:min(len(c.denials), maxExamples)] {
					s.Found = append(s.Found, sawDenial(d))
				}
				suspects = append(suspects, s)
			}
			return suspects
		},
		Tests: []Test{{Asks: asks, Needs: identityNeeds, Run: func(facts *probes.Facts, s Suspect) Answer {
			return broken(facts, s.Data.(identityCase))
		}}},
	}
}

// irsaBroken answers whether the chain of IRSA breaks at a link.
func irsaBroken(at probes.StepName) func(*probes.Facts, identityCase) Answer {
	return func(facts *probes.Facts, c identityCase) Answer {
		if c.object == nil {
			_, err := probes.ServiceAccounts.Of(facts)
			return CantTell(err)
		}
		if c.outdated() {
			return Answered(false, SawObject("pods", c.pod.Namespace, c.pod.Name, "pod %s was made with another role than %s names now", c.pod.Name, short(c.account)))
		}
		id := probes.IdentityOf(facts)
		a := answerOf(id.IRSA(c.asked()), at)
		if a.Truth == Yes && at == probes.StepTrust {
			a = a.With("statement", id.TrustStatement(c.object, c.asked().Annotations[probes.RoleAnnotation]))
		}
		if a.Truth == Yes {
			a = a.With("issuer", id.Issuer())
		}
		return a
	}
}

// answerOf is whether a chain breaks at a link. A link that comes after the
// break, or that the chain doesn't reach, is not where it breaks.
func answerOf(chain []probes.Step, at probes.StepName) Answer {
	link := probes.Link(chain, at)
	switch {
	case link == nil:
		if last := chain[len(chain)-1]; last.Err != nil {
			return CantTell(last.Err)
		}
		last := chain[len(chain)-1]
		return Answered(false, Evidence{Says: last.Says, Document: last.Document})
	case link.Err != nil:
		return CantTell(link.Err)
	case link.Holds:
		return Answered(false, Evidence{Says: link.Says, Document: link.Document})
	}
	return Answered(true, Evidence{Says: link.Says, Document: link.Document}).With("says", link.Says)
}

func roleRef(_ *probes.Facts, c identityCase) Ref {
	if c.object != nil {
		if arn := c.asked().Annotations[probes.RoleAnnotation]; arn != "" {
			return Ref{Kind: "IAMRole", Name: probes.RoleName(arn)}
		}
	}
	return c.account
}

// associatedRef is the role that Pod Identity associates with the account.
func associatedRef(facts *probes.Facts, c identityCase) Ref {
	if list, err := probes.PodIdentityAssociations.Of(facts); err == nil {
		if x := list.Of(c.account.Namespace, c.account.Name); x != nil && x.RoleARN != "" {
			return Ref{Kind: "IAMRole", Name: probes.RoleName(x.RoleARN)}
		}
	}
	return c.account
}

func accountRef(_ *probes.Facts, c identityCase) Ref  { return c.account }
func workloadRef(_ *probes.Facts, c identityCase) Ref { return c.workload }

func clusterRef(facts *probes.Facts, c identityCase) Ref {
	if cluster, err := probes.EKSCluster.Of(facts); err == nil {
		return Ref{Kind: "EKSCluster", Name: cluster.Name}
	}
	if m, ok := facts.Source().(interface{ ClusterMeta() probes.SnapshotMeta }); ok && m.ClusterMeta().Cluster != "" {
		return Ref{Kind: "EKSCluster", Name: m.ClusterMeta().Cluster}
	}
	return c.account
}

func tookIRSA(c identityCase) bool {
	by, _ := c.injected()
	annotated := c.object != nil && c.object.Annotations[probes.RoleAnnotation] != ""
	return (by == "irsa" || annotated) && c.is(probes.NoWebIdentity, probes.TokenInvalid, probes.BadRoleARN)
}

// irsaNotARole: the annotation is not the ARN of a role.
var irsaNotARole = identityRule("irsa-annotation-not-a-role",
	"is what ServiceAccount {accountNamespace}/{account} names not the ARN of a role?",
	tookIRSA, accountRef, irsaBroken(probes.StepRoleARN))

// irsaRoleMissing: the role that the annotation names does not exist.
var irsaRoleMissing = identityRule("irsa-role-missing",
	"is there no role {roleARN}?", tookIRSA, roleRef, irsaBroken(probes.StepRole))

// irsaTrust: the role exists, and its trust policy doesn't fit the account.
var irsaTrust = identityRule("irsa-trust-mismatch",
	"does the trust policy of role {role} refuse ServiceAccount {accountNamespace}/{account} of this cluster?",
	tookIRSA, roleRef, func(facts *probes.Facts, c identityCase) Answer {
		a := irsaBroken(probes.StepTrust)(facts, c)
		if a.Truth == Yes {
			// Without its provider no trust policy helps: that is the deeper fault.
			if provider := irsaBroken(probes.StepProvider)(facts, c); provider.Truth == Yes && c.is(probes.TokenInvalid) {
				return Answered(false, provider.Evidence...)
			}
		}
		return a
	})

// oidcProviderMissing: IAM doesn't know the cluster's token issuer.
var oidcProviderMissing = identityRule("oidc-provider-missing",
	"does the account have no OIDC provider for the cluster's issuer?",
	tookIRSA, clusterRef, irsaBroken(probes.StepProvider))

// irsaAnnotationMissing: nothing gives the account a role, so its pods call
// AWS with the node's.
var irsaAnnotationMissing = identityRule("irsa-annotation-missing",
	"does nothing give ServiceAccount {accountNamespace}/{account} a role: no annotation and no Pod Identity association?",
	identityCase.unclaimed, accountRef, func(facts *probes.Facts, c identityCase) Answer {
		if c.object == nil {
			_, err := probes.ServiceAccounts.Of(facts)
			return CantTell(err)
		}
		where := SawObject("serviceaccounts", c.account.Namespace, c.account.Name, "ServiceAccount %s/%s has no annotation %s", c.account.Namespace, c.account.Name, probes.RoleAnnotation)
		if c.object.Annotations[probes.RoleAnnotation] != "" {
			return Answered(false, SawObject("serviceaccounts", c.account.Namespace, c.account.Name, "ServiceAccount %s/%s names %s", c.account.Namespace, c.account.Name, c.object.Annotations[probes.RoleAnnotation]))
		}
		if by, _ := c.injected(); by != "" {
			return Answered(false, SawObject("pods", c.pod.Namespace, c.pod.Name, "pod %s has credentials by %s", c.pod.Name, by))
		}
		id := probes.IdentityOf(facts)
		if id.Associations != nil && id.Associations.Of(c.account.Namespace, c.account.Name) != nil {
			return Answered(false, Saw("aws/eks/list-pod-identity-associations", nil, "Pod Identity associates ServiceAccount %s/%s with a role", c.account.Namespace, c.account.Name))
		}
		if id.Associations == nil && trusts(id, c.account) == nil {
			// Without the agent Pod Identity gives nobody anything; with it an
			// association that wasn't captured may be meant.
			pods, err := probes.Pods.Of(facts)
			if err != nil {
				return CantTell(err)
			}
			if agent := pods.Where(podIdentityAgent); len(agent) > 0 && !noneForPodIdentity(id) {
				return CantTell(errors.Join(id.AssocErr, id.RolesErr), where)
			}
		}
		a := Answered(true, where).With("wanted", "the role that is meant for it")
		if role := trusts(id, c.account); role != nil {
			a.Evidence = append(a.Evidence, Saw("aws/iam/get-role", []string{role.Name}, "role %s trusts ServiceAccount %s/%s", role.ARN, c.account.Namespace, c.account.Name))
			a = a.With("wanted", role.ARN)
		}
		for _, d := range c.denials {
			if d.AsNode() {
				a.Evidence = append(a.Evidence, Evidence{Says: fmt.Sprintf("the call was made as %s: session %s is an instance, so it is the node's role", probes.RoleName(d.Principal), d.Session()), Document: d.Document})
				break
			}
		}
		return a
	})

func podIdentityAgent(p *corev1.Pod) bool {
	return p.Labels["app.kubernetes.io/name"] == "eks-pod-identity-agent" || strings.HasPrefix(p.Name, "eks-pod-identity-agent-")
}

// noneForPodIdentity reports whether no role of the account trusts EKS Pod
// Identity, so that no association could be of any use.
func noneForPodIdentity(id probes.Identity) bool {
	if id.Roles == nil || !id.Roles.Whole() {
		return false
	}
	return !slices.ContainsFunc(id.Roles.All(), func(r *probes.Role) bool {
		trust, err := r.Trust()
		return err != nil || slices.ContainsFunc(trust.Statements, func(st iampolicy.Statement) bool {
			return slices.Contains(st.Principals, iampolicy.Principal{Type: "Service", Name: "pods.eks.amazonaws.com"})
		})
	})
}

// trusts is a role whose trust policy names the account, or nil.
func trusts(id probes.Identity, account Ref) *probes.Role {
	if id.Roles == nil {
		return nil
	}
	for _, r := range id.Roles.All() {
		trust, err := r.Trust()
		if err != nil {
			continue
		}
		for _, st := range trust.Statements {
			for _, c := range st.Conditions {
				if strings.HasSuffix(c.Key, ":sub") && slices.Contains(c.Values, "system:serviceaccount:"+account.Namespace+":"+account.Name) {
					return r
				}
			}
		}
	}
	return nil
}

// irsaNotInjected: the account names a role, and the pod is from before.
var irsaNotInjected = identityRule("irsa-not-injected",
	"was pod {pod} made without the role that its ServiceAccount names now?",
	func(c identityCase) bool { return c.unclaimed() || c.outdated() }, workloadRef, func(facts *probes.Facts, c identityCase) Answer {
		if c.object == nil {
			_, err := probes.ServiceAccounts.Of(facts)
			return CantTell(err)
		}
		arn := c.object.Annotations[probes.RoleAnnotation]
		if arn == "" {
			return Answered(false, SawObject("serviceaccounts", c.account.Namespace, c.account.Name, "ServiceAccount %s/%s has no annotation %s", c.account.Namespace, c.account.Name, probes.RoleAnnotation))
		}
		by, role := c.injected()
		switch {
		case by == "irsa" && (role == arn || role == ""), by == "pod-identity":
			return Answered(false, SawObject("pods", c.pod.Namespace, c.pod.Name, "pod %s has credentials by %s %s", c.pod.Name, by, role))
		case by == "irsa":
			return Answered(true, SawObject("pods", c.pod.Namespace, c.pod.Name, "pod %s, made %s, has AWS_ROLE_ARN=%s, but its ServiceAccount names %s", c.pod.Name, stamp(c.pod.CreationTimestamp.Time), role, arn)).With("roleARN", arn)
		}
		return Answered(true, SawObject("pods", c.pod.Namespace, c.pod.Name, "pod %s, made %s, has no AWS_ROLE_ARN in its environment, though its ServiceAccount names %s", c.pod.Name, stamp(c.pod.CreationTimestamp.Time), arn)).With("roleARN", arn)
	})

func tookPodIdentity(c identityCase) bool {
	by, _ := c.injected()
	return by == "pod-identity" && c.is(probes.NoPodIdentity, probes.NoWebIdentity)
}

func podIdentityBroken(at probes.StepName) func(*probes.Facts, identityCase) Answer {
	return func(facts *probes.Facts, c identityCase) Answer {
		id := probes.IdentityOf(facts)
		a := answerOf(id.PodIdentity(c.account.Namespace, c.account.Name), at)
		if id.Associations != nil {
			if x := id.Associations.Of(c.account.Namespace, c.account.Name); x != nil {
				a = a.With("roleARN", x.RoleARN).With("role", probes.RoleName(x.RoleARN))
			}
		}
		return a
	}
}

// podIdentityRoleMissing: the associated role does not exist.
var podIdentityRoleMissing = identityRule("pod-identity-role-missing",
	"does the role that Pod Identity associates with ServiceAccount {accountNamespace}/{account} not exist?",
	tookPodIdentity, accountRef, podIdentityBroken(probes.StepRole))

// podIdentityTrust: the associated role doesn't trust Pod Identity.
var podIdentityTrust = identityRule("pod-identity-trust-mismatch",
	"does the trust policy of the associated role refuse pods.eks.amazonaws.com?",
	tookPodIdentity, associatedRef, podIdentityBroken(probes.StepTrust))

// podIdentityNotInjected: the association is younger than the pod.
var podIdentityNotInjected = identityRule("pod-identity-not-injected",
	"was pod {pod} made without the credentials that a Pod Identity association gives its ServiceAccount?",
	identityCase.unclaimed, workloadRef, func(facts *probes.Facts, c identityCase) Answer {
		id := probes.IdentityOf(facts)
		if c.object != nil && c.object.Annotations[probes.RoleAnnotation] != "" {
			return Answered(false, SawObject("serviceaccounts", c.account.Namespace, c.account.Name, "ServiceAccount %s/%s gets its role by IRSA", c.account.Namespace, c.account.Name))
		}
		if by, _ := c.injected(); by != "" {
			return Answered(false, SawObject("pods", c.pod.Namespace, c.pod.Name, "pod %s has credentials by %s", c.pod.Name, by))
		}
		if id.Associations == nil || id.Associations.Of(c.account.Namespace, c.account.Name) == nil {
			return Answered(false) // nothing shows an association; that there is none is another rule's
		}
		x := id.Associations.Of(c.account.Namespace, c.account.Name)
		return Answered(true, SawObject("pods", c.pod.Namespace, c.pod.Name, "pod %s, made %s, has no AWS_CONTAINER_CREDENTIALS_FULL_URI, though association %s gives its ServiceAccount %s", c.pod.Name, stamp(c.pod.CreationTimestamp.Time), x.ID, x.RoleARN)).With("roleARN", x.RoleARN)
	})
