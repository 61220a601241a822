package diagnose

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pposiraegi/ppodoctor/probes"
)

// authorizationVoided: an AuthorizationPolicy lets only some callers, or only
// some paths, through, and another one of the same scope lets more through:
// what any ALLOW admits is admitted.
// Source: https://istio.io/latest/docs/concepts/security/#implicit-enablement
var authorizationVoided = &Rule{
	ID: "authorization-policy-voided", Latent: true, Needs: []probes.Any{probes.AuthorizationRules},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		list, err := probes.AuthorizationRules.Of(facts)
		if err != nil {
			return nil
		}
		var found []Suspect
		for _, broad := range list.All() {
			if !allows(broad) {
				continue
			}
			for _, strict := range list.All() {
				if strict == broad || !allows(strict) || !enforcedOver(broad, strict) {
					continue
				}
				for _, rule := range strict.Spec.Rules {
					if words := voids(broad, rule); words != "" {
						found = append(found, Suspect{
							Subjects: []Ref{authorizationRef(broad), authorizationRef(strict)},
							Vars:     map[string]string{"strict": short(authorizationRef(strict)), "rule": ruleWords(rule), "admits": words, "scope": scopeWords(strict)},
							Data:     [2]*probes.AuthorizationPolicy{broad, strict},
						})
						break
					}
				}
			}
		}
		return found
	},
	Tests: []Test{{
		Asks: "does {subject} admit what {strict} is there to keep out?",
		Run: func(_ *probes.Facts, s Suspect) Answer {
			d := s.Data.([2]*probes.AuthorizationPolicy)
			saw := func(p *probes.AuthorizationPolicy, says string) Evidence {
				return SawObject("authorizationpolicies.security.istio.io", p.Namespace, p.Name, "%s: ALLOW for %s: %s", short(authorizationRef(p)), scopeWords(p), says)
			}
			return Answered(true, saw(d[1], "only "+s.Vars["rule"]), saw(d[0], s.Vars["admits"]))
		},
	}},
}

func authorizationRef(p *probes.AuthorizationPolicy) Ref {
	return Ref{Kind: "AuthorizationPolicy", Namespace: p.Namespace, Name: p.Name}
}

func allows(p *probes.AuthorizationPolicy) bool {
	return p.Spec.Action == "" || p.Spec.Action == "ALLOW"
}

// enforcedOver reports whether a policy is enforced wherever another one is.
func enforcedOver(broad, strict *probes.AuthorizationPolicy) bool {
	if broad.Namespace != strict.Namespace && broad.Namespace != meshRoot {
		return false
	}
	targets := func(p *probes.AuthorizationPolicy) []probes.PolicyTarget {
		if p.Spec.TargetRef != nil {
			return append([]probes.PolicyTarget{*p.Spec.TargetRef}, p.Spec.TargetRefs...)
		}
		return p.Spec.TargetRefs
	}
	if b, s := targets(broad), targets(strict); len(b) > 0 || len(s) > 0 {
		// A policy that is attached is enforced there only, by the waypoint.
		return len(s) > 0 && len(b) > 0 && !slices.ContainsFunc(s, func(t probes.PolicyTarget) bool { return !slices.Contains(b, t) })
	}
	if broad.Spec.Selector == nil || len(broad.Spec.Selector.MatchLabels) == 0 {
		return true
	}
	if strict.Spec.Selector == nil {
		return false
	}
	for k, v := range broad.Spec.Selector.MatchLabels {
		if strict.Spec.Selector.MatchLabels[k] != v {
			return false
		}
	}
	return true
}

// meshRoot is where policies hold for the whole mesh, by default.
const meshRoot = "istio-system"

// voids says how a policy admits what a rule is there to restrict; empty if it
// doesn't: whoever it lets in anyway, or all paths to the callers of the rule.
func voids(broad *probes.AuthorizationPolicy, strict probes.AuthorizationRule) string {
	if len(strict.From) == 0 && len(strict.To) == 0 {
		return "" // restricts nothing itself
	}
	for _, r := range broad.Spec.Rules {
		if len(r.When) > 0 || !anyOperation(r) {
			continue
		}
		switch {
		case anySource(r) && len(strict.From) > 0:
			return "lets every caller in, on every path"
		case anySource(r) && len(strict.To) > 0 && len(strict.From) == 0:
			return "lets every caller in, on every path"
		case len(strict.To) > 0 && len(strict.From) > 0 && sameSources(r, strict):
			return "lets the same callers in on every path"
		}
	}
	return ""
}

func anyOperation(r probes.AuthorizationRule) bool {
	if len(r.To) == 0 {
		return true
	}
	return slices.ContainsFunc(r.To, func(t struct {
		Operation map[string][]string `json:"operation,omitempty"`
	},
	) bool {
		for field, values := range t.Operation {
			if field != "paths" || !slices.ContainsFunc(values, func(v string) bool { return v == "*" || v == "/*" }) {
				return false
			}
		}
		return true
	})
}

func anySource(r probes.AuthorizationRule) bool {
	if len(r.From) == 0 {
		return true
	}
	return slices.ContainsFunc(r.From, func(f struct {
		Source map[string][]string `json:"source,omitempty"`
	},
	) bool {
		for field, values := range f.Source {
			if field != "principals" && field != "namespaces" || !slices.Contains(values, "*") {
				return false
			}
		}
		return true
	})
}

// sameSources reports whether a rule admits each source of another one.
func sameSources(r, strict probes.AuthorizationRule) bool {
	for _, s := range strict.From {
		if !slices.ContainsFunc(r.From, func(f struct {
			Source map[string][]string `json:"source,omitempty"`
		},
		) bool {
			return maps.EqualFunc(f.Source, s.Source, func(a, b []string) bool {
				return !slices.ContainsFunc(b, func(v string) bool { return !slices.Contains(a, v) })
			})
		}) {
			return false
		}
	}
	return true
}

func ruleWords(r probes.AuthorizationRule) string {
	part := func(fields map[string][]string) string {
		var words []string
		for _, k := range slices.Sorted(maps.Keys(fields)) {
			words = append(words, k+" "+strings.Join(fields[k], ", "))
		}
		return strings.Join(words, " and ")
	}
	var from, to []string
	for _, f := range r.From {
		from = append(from, part(f.Source))
	}
	for _, t := range r.To {
		to = append(to, part(t.Operation))
	}
	words := "callers "
	if len(from) == 0 {
		words += "of any kind"
	} else {
		words += "from " + strings.Join(from, " or ")
	}
	if len(to) > 0 {
		words += " on " + strings.Join(to, " or ")
	}
	return words
}

func scopeWords(p *probes.AuthorizationPolicy) string {
	var words []string
	for _, t := range p.Spec.TargetRefs {
		words = append(words, t.Kind+" "+t.Name)
	}
	if t := p.Spec.TargetRef; t != nil {
		words = append(words, t.Kind+" "+t.Name)
	}
	if s := p.Spec.Selector; s != nil {
		for _, k := range slices.Sorted(maps.Keys(s.MatchLabels)) {
			words = append(words, k+"="+s.MatchLabels[k])
		}
	}
	if len(words) == 0 {
		if p.Namespace == meshRoot {
			return "the whole mesh"
		}
		return "all of namespace " + p.Namespace
	}
	return fmt.Sprintf("%s in namespace %s", strings.Join(words, ", "), p.Namespace)
}

var meshPolicyRules = []*Rule{authorizationVoided}
