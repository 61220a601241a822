package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// argocdRevisionApart: of the applications that come from one repository a
// single one follows a branch that none of the others does: what people push
// to the branch of the others never reaches it, and Argo CD says Synced.
var argocdRevisionApart = &Rule{
	ID: "argocd-revision-apart", Latent: true, Needs: []probes.Any{probes.Applications},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		list, err := probes.Applications.Of(facts)
		if err != nil {
			return nil
		}
		byRepo := map[string]map[string][]*probes.Application{}
		for _, a := range list.All() {
			for _, s := range a.Sources() {
				if s.Chart != "" {
					continue // a chart's version, not a branch
				}
				repo := strings.TrimSuffix(strings.TrimSuffix(s.RepoURL, "/"), ".git")
				if byRepo[repo] == nil {
					byRepo[repo] = map[string][]*probes.Application{}
				}
				revision := cmp.Or(s.TargetRevision, "HEAD")
				byRepo[repo][revision] = append(byRepo[repo][revision], a)
			}
		}
		var found []Suspect
		for _, repo := range slices.Sorted(maps.Keys(byRepo)) {
			revisions := byRepo[repo]
			usual := ""
			for _, r := range slices.Sorted(maps.Keys(revisions)) {
				if len(revisions[r]) > len(revisions[usual]) {
					usual = r
				}
			}
			for _, r := range slices.Sorted(maps.Keys(revisions)) {
				if r == usual || len(revisions[r]) != 1 || len(revisions[usual]) < 2 || fixedRevision.MatchString(r) || len(revisions) > 2 {
					continue
				}
				a := revisions[r][0]
				found = append(found, Suspect{
					Subjects: []Ref{{Kind: "Application", Namespace: a.Namespace, Name: a.Name}}, Data: a,
					Vars: map[string]string{"revision": r, "usual": usual, "others": fmt.Sprint(len(revisions[usual])), "repo": repo, "sync": cmp.Or(a.Status.Sync.Status, "Unknown"), "commit": cmp.Or(a.Status.Sync.Revision, "not known")},
				})
			}
		}
		return found
	},
	Tests: []Test{{
		Asks: "does it follow {revision}, while the {others} other applications of that repository follow {usual}?",
		Run: func(_ *probes.Facts, s Suspect) Answer {
			a := s.Data.(*probes.Application)
			return Answered(true, SawObject("applications.argoproj.io", a.Namespace, a.Name, "Application %s: targetRevision %s of %s, status %s at %s; %s other applications of that repository follow %s", a.Name, s.Vars["revision"], s.Vars["repo"], s.Vars["sync"], s.Vars["commit"], s.Vars["others"], s.Vars["usual"]))
		},
	}},
}

// fixedRevision recognises tags, commits and ranges of versions: those are
// chosen one by one.
var fixedRevision = regexp.MustCompile(`^(?:refs/tags/.*|v?\d+(?:\.[\dx*]+)*(?:[-+].*)?|[0-9a-f]{7,40}|[~^<>=].*)$`)

// argocdCompareStale: an application was changed to follow another revision,
// and Argo CD's last comparison was with the one before.
var argocdCompareStale = &Rule{
	ID: "argocd-comparison-stale", Latent: true, Needs: []probes.Any{probes.Applications},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		list, err := probes.Applications.Of(facts)
		if err != nil {
			return nil
		}
		var found []Suspect
		for _, a := range list.All() {
			was := a.Status.Sync.ComparedTo.Source
			if a.Spec.Source == nil || was == nil || was.RepoURL == "" || len(a.Spec.Sources) > 0 || *was == *a.Spec.Source {
				continue
			}
			if a.Status.ReconciledAt == nil || facts.Source().Now().Sub(a.Status.ReconciledAt.Time) < 15*time.Minute {
				continue // it is compared every three minutes
			}
			found = append(found, Suspect{
				Subjects: []Ref{{Kind: "Application", Namespace: a.Namespace, Name: a.Name}}, Data: a,
				Vars: map[string]string{"now": sourceWords(*a.Spec.Source), "was": sourceWords(*was), "at": stampOf(a.Status.ReconciledAt.Time)},
			})
		}
		return found
	},
	Tests: []Test{{
		Asks: "was it last compared with {was}, while it should follow {now}?",
		Run: func(_ *probes.Facts, s Suspect) Answer {
			a := s.Data.(*probes.Application)
			return Answered(true, SawObject("applications.argoproj.io", a.Namespace, a.Name, "Application %s: spec.source is %s, but status.sync compared %s, at %s", a.Name, s.Vars["now"], s.Vars["was"], s.Vars["at"]))
		},
	}},
}

func sourceWords(s probes.ApplicationSource) string {
	return fmt.Sprintf("%s of %s, %s", cmp.Or(s.TargetRevision, "HEAD"), s.RepoURL, cmp.Or(s.Path, s.Chart, "its root"))
}

// targetsOwnedTwice: a Service is behind a load balancer that the AWS Load
// Balancer Controller makes for an Ingress or the Service itself, and in a
// target group that somebody else made.
// Source: aws-load-balancer-controller docs/guide/targetgroupbinding.
var targetsOwnedTwice = &Rule{
	ID: "service-behind-two-load-balancers", Latent: true, Needs: []probes.Any{probes.TargetGroupBindings, probes.Ingresses, probes.IngressClasses, probes.Services},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		bindings, err := probes.TargetGroupBindings.Of(facts)
		if err != nil {
			return nil
		}
		var found []Suspect
		for _, b := range bindings.All() {
			if madeByController(b) {
				continue
			}
			for _, owner := range loadBalanced(facts, b.Namespace, b.Spec.ServiceRef.Name) {
				found = append(found, Suspect{
					Subjects: []Ref{{Kind: "TargetGroupBinding", Namespace: b.Namespace, Name: b.Name}, owner}, Data: b,
					Vars: map[string]string{"service": b.Spec.ServiceRef.Name, "owner": short(owner), "targetGroup": b.Spec.TargetGroupARN},
				})
			}
		}
		return found
	},
	Tests: []Test{{
		Asks: "do {subject} and {owner} both put Service {service} behind a load balancer?",
		Run: func(_ *probes.Facts, s Suspect) Answer {
			b := s.Data.(*probes.TargetGroupBinding)
			return Answered(true,
				SawObject("targetgroupbindings.elbv2.k8s.aws", b.Namespace, b.Name, "TargetGroupBinding %s puts Service %s into %s; it has no label of the controller, so the target group was made elsewhere", b.Name, b.Spec.ServiceRef.Name, b.Spec.TargetGroupARN),
				Saw(probes.ResourceOf("", s.Subjects[1].Kind), nil, "for %s the AWS Load Balancer Controller makes a load balancer of its own", s.Vars["owner"]))
		},
	}},
}

// madeByController recognises the bindings that the controller makes.
// Source: aws-load-balancer-controller pkg/deploy/tracking/provider.go.
func madeByController(b *probes.TargetGroupBinding) bool {
	for k := range b.Labels {
		if strings.HasSuffix(k, ".k8s.aws/stack-name") || strings.HasSuffix(k, ".k8s.aws/stack") {
			return true
		}
	}
	return slices.ContainsFunc(b.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "Service" || o.Kind == "Ingress" })
}

// loadBalanced are the objects for which the controller makes a load balancer
// in front of a Service.
func loadBalanced(facts *probes.Facts, namespace, service string) []Ref {
	var owners []Ref
	albs := map[string]bool{"alb": true}
	if classes, err := probes.IngressClasses.Of(facts); err == nil {
		for _, c := range classes.All() {
			albs[c.Name] = c.Spec.Controller == "ingress.k8s.aws/alb"
		}
	}
	if ingresses, err := probes.Ingresses.Of(facts); err == nil {
		for ing := range ingresses.In(namespace) {
			class := ing.Annotations["kubernetes.io/ingress.class"]
			if ing.Spec.IngressClassName != nil {
				class = *ing.Spec.IngressClassName
			}
			if !albs[class] {
				continue
			}
			for _, r := range ing.Spec.Rules {
				if r.HTTP == nil {
					continue
				}
				for _, p := range r.HTTP.Paths {
					if p.Backend.Service != nil && p.Backend.Service.Name == service {
						owners = appendRef(owners, Ref{Kind: "Ingress", Namespace: ing.Namespace, Name: ing.Name})
					}
				}
			}
		}
	}
	if services, err := probes.Services.Of(facts); err == nil {
		if s := services.Get(namespace, service); s != nil && s.Spec.Type == corev1.ServiceTypeLoadBalancer {
			owners = append(owners, Ref{Kind: "Service", Namespace: s.Namespace, Name: s.Name})
		}
	}
	return owners
}

// nodesWithoutKarpenter: Karpenter is gone, its NodeClaims are not: nothing
// ends their instances, and what is deleted of them hangs on its finalizer.
var nodesWithoutKarpenter = &Rule{
	ID: "nodes-without-karpenter", Latent: true, Needs: []probes.Any{probes.NodeClaims, probes.NodePools, probes.Deployments, probes.Pods},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		claims, err := probes.NodeClaims.Of(facts)
		pools, _ := probes.NodePools.Of(facts)
		if err != nil || claims.Len() == 0 {
			return nil
		}
		byPool := map[string][]*probes.NodeClaim{}
		for _, c := range claims.All() {
			if c.Spec.NodeClassRef.Kind == "EC2NodeClass" { // not of EKS Auto Mode, whose Karpenter is AWS's
				byPool[c.Labels["karpenter.sh/nodepool"]] = append(byPool[c.Labels["karpenter.sh/nodepool"]], c)
			}
		}
		var found []Suspect
		for _, pool := range slices.Sorted(maps.Keys(byPool)) {
			var names []string
			for _, c := range byPool[pool] {
				names = append(names, fmt.Sprintf("%s (%s)", c.Name, cmp.Or(c.Status.ProviderID, "no instance")))
			}
			ref := Ref{Kind: "NodePool", Name: pool}
			if pool == "" || pools == nil || pools.Get("", pool) == nil {
				ref = Ref{Kind: "NodeClaim", Name: byPool[pool][0].Name}
			}
			found = append(found, Suspect{Subjects: []Ref{ref}, Vars: map[string]string{"claims": clip(strings.Join(names, ", "), 400), "count": fmt.Sprint(len(names)), "why": ""}})
		}
		return found
	},
	Tests: []Test{{
		Asks: "is Karpenter gone, or is the cluster being deleted, while they are there?", Needs: []probes.Any{probes.Deployments, probes.Pods, probes.EKSCluster},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			claims := Saw("nodeclaims.karpenter.sh", nil, "%s NodeClaims are there: %s", s.Vars["count"], s.Vars["claims"])
			if c, err := probes.EKSCluster.Of(facts); err == nil && string(c.Status) == "DELETING" {
				return Answered(true, claims, Saw("aws/eks/describe-cluster", nil, "cluster %s is DELETING", c.Name)).With("why", "The cluster is being deleted")
			}
			deployments, err := probes.Deployments.Of(facts)
			pods, err2 := probes.Pods.Of(facts)
			if err != nil || err2 != nil {
				return CantTell(cmp.Or(err, err2), claims)
			}
			for _, p := range pods.All() {
				if probes.IsController(p, "karpenter") {
					return Answered(false, SawObject("pods", p.Namespace, p.Name, "Karpenter runs: pod %s", p.Name))
				}
			}
			for _, d := range deployments.All() {
				if isKarpenter(d) {
					return Answered(false, SawObject("deployments.apps", d.Namespace, d.Name, "Deployment %s is Karpenter's", d.Name))
				}
			}
			return Answered(true, claims, Saw("deployments.apps", nil, "of the %d Deployments none is Karpenter's, and no pod is", deployments.Len())).With("why", "Karpenter is not installed any more")
		},
	}},
}

func isKarpenter(d *appsv1.Deployment) bool {
	return probes.IsController(&corev1.Pod{ObjectMeta: d.Spec.Template.ObjectMeta, Spec: d.Spec.Template.Spec}, "karpenter") || d.Labels["app.kubernetes.io/name"] == "karpenter"
}

// accountWithoutRole: a ServiceAccount names an IAM role that nobody made; no
// pod has been refused yet, or nobody has looked.
var accountWithoutRole = &Rule{
	ID: "service-account-role-absent", Latent: true, Needs: []probes.Any{probes.ServiceAccounts, probes.Roles, probes.Pods},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		accounts, err := probes.ServiceAccounts.Of(facts)
		if err != nil {
			return nil
		}
		var found []Suspect
		for _, sa := range accounts.All() {
			arn := sa.Annotations[probes.RoleAnnotation]
			if arn == "" {
				continue
			}
			found = append(found, Suspect{
				Subjects: []Ref{{Kind: "IAMRole", Name: probes.RoleName(arn)}, {Kind: "ServiceAccount", Namespace: sa.Namespace, Name: sa.Name}}, Data: arn,
				Vars: map[string]string{"account": sa.Namespace + "/" + sa.Name, "role": probes.RoleName(arn), "roleARN": arn},
			})
		}
		return found
	},
	Tests: []Test{{
		Asks: "is role {role} known not to exist?", Needs: []probes.Any{probes.Roles},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			roles, err := probes.Roles.Of(facts)
			if err != nil {
				return CantTell(err)
			}
			role, err := roles.Get(s.Data.(string))
			switch {
			case err != nil:
				return CantTell(err)
			case role != nil:
				return Answered(false, Saw("aws/iam/get-role", []string{role.Name}, "role %s exists", role.Name))
			}
			return Answered(true, SawObject("serviceaccounts", s.Subjects[1].Namespace, s.Subjects[1].Name, "ServiceAccount %s is annotated with %s", s.Vars["account"], s.Vars["roleARN"]),
				Saw("aws/iam/get-role", []string{s.Vars["role"]}, "the account has no role %s", s.Vars["role"]))
		},
	}},
}

var installRiskRules = []*Rule{argocdRevisionApart, argocdCompareStale, targetsOwnedTwice, nodesWithoutKarpenter, accountWithoutRole, interfacesLeft, budgetNotComputed}
