package diagnose

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/pposiraegi/ppodoctor/probes"
)

// A denial is a call in the mesh that is answered with 403 by a proxy.
type denial struct {
	server []*corev1.Pod
	name   string // what is called
	client *corev1.Pod
	policy string // namespace/name, where the log names it
	target Ref    // the Service that is called; zero where that isn't known
	plain  bool   // by a node's proxy, which knows no requests
}

var deniedPolicy = regexp.MustCompile(`ns\[(?P<ns>[^\]]+)\]-policy\[(?P<name>[^\]]+)\]`)

// meshCallsDenied: proxies answer calls with "RBAC: access denied".
var meshCallsDenied = &Rule{
	ID: "mesh-calls-denied", Needs: append([]probes.Any{probes.Logs}, callFacts...),
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		dir, err := callDirectory(facts)
		workloads, err2 := probes.Workloads.Of(facts)
		if err != nil || err2 != nil {
			return nil
		}
		now := facts.Source().Now()
		var found []Suspect
		var nodes nodeDenials
		for _, owner := range workloads.All() {
			var s *Suspect
			count := 0
			for _, probe := range []*probes.Probe[*probes.LogSet]{probes.AppLogs, probes.Logs} {
				logs, err := probe.Of(facts)
				if err != nil {
					continue
				}
				for _, p := range workloads.Pods(owner) {
					for _, entry := range failures(logs, p) {
						if entry.meaning != "mesh-denied" && !slices.Contains(entry.Also, "mesh-denied") || !entry.LastAt.IsZero() && now.Sub(entry.LastAt) > recent {
							continue
						}
						said := Evidence{Says: entry.quote(), Document: entry.document, At: entry.at}
						if entry.captures["server"] != "" {
							nodes = nodes.add(facts, workloads, entry, said)
							continue
						}
						d := denial{client: p, name: entry.Host}
						if strings.Contains(entry.Text, "rbac_access_denied") {
							d = denial{server: []*corev1.Pod{p}, name: short(owner)}
							if got := groups(deniedPolicy, entry.Text); got != nil {
								d.policy = got["ns"] + "/" + got["name"]
							}
						} else if t := dir.Lookup(p.Namespace, entry.Host, entry.Port); entry.Host != "" {
							d.server, d.target = t.Pods, t.Ref
						}
						count += entry.Count
						if s == nil {
							s = &Suspect{Subjects: []Ref{owner}, Data: d, Count: 1}
						}
						if podRef(p) != owner {
							s.Subjects = appendRef(s.Subjects, podRef(p))
						}
						if len(s.Data.(denial).server) == 0 {
							s.Data = d
						}
						if len(s.Found) < maxExamples {
							s.Found = append(s.Found, said)
						}
					}
				}
			}
			if s != nil && count >= 3 {
				found = append(found, *s)
			}
		}
		for _, n := range nodes {
			if !slices.ContainsFunc(found, func(s Suspect) bool { return s.Subjects[0] == n.Subjects[0] }) && n.count >= 3 {
				found = append(found, n.Suspect)
			}
		}
		return found
	},
}

// nodeDenials are the connections that the proxies of nodes in the ambient
// mesh reset by policy, a suspect for each workload that is called.
type nodeDenials []*nodeDenial

type nodeDenial struct {
	Suspect
	count int
}

// add takes in an entry of a node's proxy, which names both ends.
// Source: istio/ztunnel src/proxy.rs, the access log.
func (list nodeDenials) add(facts *probes.Facts, workloads *probes.WorkloadIndex, entry logged, said Evidence) nodeDenials {
	pods, err := probes.Pods.Of(facts)
	if err != nil {
		return list
	}
	c := entry.captures
	server := pods.Get(c["serverNamespace"], c["server"])
	if server == nil {
		return list // gone since
	}
	owner := workloads.Of(server)
	i := slices.IndexFunc(list, func(d *nodeDenial) bool { return d.Subjects[0] == owner })
	if i < 0 {
		d := denial{server: []*corev1.Pod{server}, client: pods.Get(c["clientNamespace"], c["client"]), name: short(owner), plain: true}
		if c["policyName"] != "" {
			d.policy = c["policyNamespace"] + "/" + c["policyName"]
		}
		i, list = len(list), append(list, &nodeDenial{Suspect: Suspect{Subjects: appendRef([]Ref{owner}, podRef(server)), Data: d, Count: 1}})
	}
	n := list[i]
	if n.count += entry.Count; len(n.Found) < maxExamples {
		n.Found = append(n.Found, said)
	}
	return list
}

// authorizationDenies: the AuthorizationPolicy that denies a call.
var authorizationDenies = &Rule{
	ID: "authorization-policy-denies", Explains: append([]*Rule{meshCallsDenied, targetUnreachable}, ailing...), Needs: []probes.Any{probes.AuthorizationRules, probes.Namespaces},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		list, err := probes.AuthorizationRules.Of(facts)
		if err != nil {
			return nil
		}
		var found []Suspect
		for _, e := range effects {
			d, ok := denialOf(e)
			if !ok {
				continue
			}
			p, why := denier(facts, list, d)
			if p == nil {
				continue
			}
			hurt := []*Finding{e}
			for _, o := range effects { // the caller's own troubles, where the proxy names it
				if e.Rule == meshCallsDenied && d.plain && d.client != nil && slices.Contains(troubled(o), d.client) {
					hurt = appendOnce(hurt, o)
				}
			}
			found = append(found, Suspect{
				Subjects: []Ref{authorizationRef(p), e.Subject()}, Effects: hurt,
				Vars:  map[string]string{"server": d.name, "action": cmp.Or(p.Spec.Action, "ALLOW"), "scope": scopeWords(p), "why": why},
				Found: append(slices.Clone(e.Found), SawObject("authorizationpolicies.security.istio.io", p.Namespace, p.Name, "AuthorizationPolicy %s/%s (%s, for %s): %s", p.Namespace, p.Name, cmp.Or(p.Spec.Action, "ALLOW"), scopeWords(p), why)),
			})
		}
		return found
	},
	Tests: []Test{{Asks: "does {subject} keep these calls out?", Run: func(_ *probes.Facts, s Suspect) Answer { return Answered(true, s.Found...) }}},
}

// denier is the policy that denies a call, with the reason; nil where none of
// those that select the server does.
func denier(facts *probes.Facts, list *probes.List[probes.AuthorizationPolicy], d denial) (*probes.AuthorizationPolicy, string) {
	if ns, name, ok := strings.Cut(d.policy, "/"); ok {
		if p := list.Get(ns, name); p != nil {
			return p, "the proxy names it as the one that denies: " + rulesWords(p)
		}
	}
	if len(d.server) == 0 {
		return nil, ""
	}
	var allow, deny []*probes.AuthorizationPolicy
	for _, p := range list.All() {
		if !enforcedOn(p, d.server[0]) && (d.plain || !attachedTo(facts, p, d)) {
			continue
		}
		switch {
		case allows(p):
			allow = append(allow, p)
		case p.Spec.Action == "DENY":
			deny = append(deny, p)
		}
	}
	newest := func(list []*probes.AuthorizationPolicy) *probes.AuthorizationPolicy {
		return slices.MaxFunc(list, func(a, b *probes.AuthorizationPolicy) int { return changedAt(a).Compare(changedAt(b)) })
	}
	if len(allow) == 0 {
		if len(deny) == 0 || d.plain {
			return nil, ""
		}
		return newest(deny), "it denies what " + rulesWords(newest(deny))
	}
	var partly []*probes.AuthorizationPolicy
	for _, p := range allow {
		for _, r := range p.Spec.Rules {
			if d.client == nil || !admitsSource(r, d.client) {
				continue
			}
			if len(r.To) == 0 && len(r.When) == 0 {
				if len(deny) > 0 {
					return newest(deny), "it denies what " + rulesWords(newest(deny))
				}
				return nil, "" // the caller is let in
			}
			partly = append(partly, p)
		}
	}
	if len(partly) > 0 && d.plain {
		return newest(partly), "it lets " + identity(d.client) + " in for part of the requests only: " + rulesWords(newest(partly)) + "; no waypoint enforces it, and the nodes' proxies know no requests, so that they let nobody in by such a rule"
	}
	if len(partly) > 0 {
		return newest(partly), "it lets " + identity(d.client) + " in, but only for part of the requests: " + rulesWords(newest(partly))
	}
	p := newest(allow)
	if len(p.Spec.Rules) == 0 {
		return p, "it has no rule, so that it lets nothing in"
	}
	why := "it lets in only " + rulesWords(p)
	if d.client != nil {
		why += "; the caller is " + identity(d.client)
	}
	return p, why
}

// denialOf is the denied call behind an effect: one that is answered with 403,
// or one that the proxy of a node in the ambient mesh resets, which knows no
// requests and so gives no answer.
func denialOf(e *Finding) (denial, bool) {
	switch d := e.Data.(type) {
	case denial:
		return d, true
	case *unreached:
		if len(d.pods) == 0 || len(d.lines) == 0 || d.refused || d.dropped || d.tls != "" || len(d.target.Pods) == 0 || !inMesh(d.target.Pods[0]) || hasSidecar(d.target.Pods[0]) {
			return denial{}, false
		}
		return denial{server: d.target.Pods, client: d.pods[0], name: d.address(), target: d.target.Ref, plain: true}, true
	}
	return denial{}, false
}

// attachedTo reports whether a policy is attached to the Service that is
// called, or to the waypoint that stands before it.
// Source: https://istio.io/latest/docs/ambient/usage/l7-features/
func attachedTo(facts *probes.Facts, a *probes.AuthorizationPolicy, d denial) bool {
	targets := a.Spec.TargetRefs
	if a.Spec.TargetRef != nil {
		targets = append(slices.Clone(targets), *a.Spec.TargetRef)
	}
	waypoint := ""
	if list, err := probes.Namespaces.Of(facts); err == nil {
		if ns := list.Get("", d.server[0].Namespace); ns != nil {
			waypoint = ns.Labels["istio.io/use-waypoint"]
		}
	}
	return a.Namespace == d.server[0].Namespace && slices.ContainsFunc(targets, func(t probes.PolicyTarget) bool {
		return t.Kind == "Service" && t.Name == d.target.Name || t.Kind == "Gateway" && t.Name == waypoint
	})
}

// identity is who the mesh takes a pod for.
func identity(p *corev1.Pod) string {
	if !inMesh(p) {
		return fmt.Sprintf("pod %s/%s, which is outside the mesh and so has no identity", p.Namespace, p.Name)
	}
	return fmt.Sprintf("cluster.local/ns/%s/sa/%s", p.Namespace, cmp.Or(p.Spec.ServiceAccountName, "default"))
}

func rulesWords(p *probes.AuthorizationPolicy) string {
	var words []string
	for _, r := range p.Spec.Rules {
		words = append(words, ruleWords(r))
	}
	return clip(strings.Join(words, "; or "), 300)
}

func enforcedOn(a *probes.AuthorizationPolicy, p *corev1.Pod) bool {
	switch {
	case a.Namespace != p.Namespace && a.Namespace != meshRoot:
		return false
	case a.Spec.TargetRef != nil || len(a.Spec.TargetRefs) > 0:
		return false // of a waypoint or gateway
	case a.Spec.Selector == nil:
		return true
	}
	return labels.SelectorFromSet(a.Spec.Selector.MatchLabels).Matches(labels.Set(p.Labels))
}

// admitsSource reports whether a rule is for the caller.
func admitsSource(r probes.AuthorizationRule, client *corev1.Pod) bool {
	if len(r.From) == 0 {
		return true
	}
	like := func(pattern, value string) bool {
		if pattern == "*" {
			return true
		}
		if s, ok := strings.CutPrefix(pattern, "*"); ok {
			return strings.HasSuffix(value, s)
		}
		if s, ok := strings.CutSuffix(pattern, "*"); ok {
			return strings.HasPrefix(value, s)
		}
		return pattern == value || strings.HasSuffix(pattern, value[strings.Index(value, "/")+1:]) && strings.Contains(value, "/ns/")
	}
	for _, f := range r.From {
		matches := true
		for field, values := range f.Source {
			value := ""
			switch field {
			case "principals":
				value = identity(client)
			case "namespaces":
				value = client.Namespace
			case "serviceAccounts":
				value = cmp.Or(client.Spec.ServiceAccountName, "default")
			default:
				continue
			}
			matches = matches && inMesh(client) && slices.ContainsFunc(values, func(v string) bool { return like(v, value) })
		}
		if matches {
			return true
		}
	}
	return false
}
