package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"github.com/pposiraegi/ppodoctor/probes"
)

// serviceAccountMissing: the pods run as a ServiceAccount that doesn't exist.
var serviceAccountMissing = admissionRule("service-account-missing", "does {workload} name a ServiceAccount that doesn't exist?", "service-account",
	[]probes.Any{probes.ServiceAccounts}, func(facts *probes.Facts, c shortage, s *Suspect) Answer {
		name := orDefault(c.template.Spec.ServiceAccountName, orDefault(c.template.Spec.DeprecatedServiceAccount, "default"))
		accounts, err := probes.ServiceAccounts.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		if accounts.Get(c.workload.Namespace, name) != nil {
			return Answered(false, SawObject("serviceaccounts", c.workload.Namespace, name, "ServiceAccount %s/%s exists", c.workload.Namespace, name))
		}
		if name == "default" && kindOfRefusal(c.says) == "" {
			return Answered(false, Saw("serviceaccounts", nil, "%s runs as the default ServiceAccount", c.workload.Name))
		}
		var have []string
		for a := range accounts.In(c.workload.Namespace) {
			have = append(have, a.Name)
		}
		s.Vars["account"], s.Vars["near"] = name, fmt.Sprintf(" There are %s.", strings.Join(have, ", "))
		if len(have) == 0 {
			s.Vars["near"] = ""
		}
		if n := nearest(name, have); n != "" {
			s.Vars["near"] += fmt.Sprintf(" The nearest is %s.", n)
		}
		s.Subjects = append(s.Subjects, Ref{Kind: "ServiceAccount", Namespace: c.workload.Namespace, Name: name})
		return Answered(true, SawObject("serviceaccounts", c.workload.Namespace, name, "there is no ServiceAccount %s/%s, which serviceAccountName of %s names", c.workload.Namespace, name, c.workload.Name))
	})

// priorityClassMissing: the pods name a PriorityClass that doesn't exist.
var priorityClassMissing = admissionRule("priority-class-missing", "does {workload} name a PriorityClass that doesn't exist?", "priority-class",
	[]probes.Any{probes.PriorityClasses}, func(facts *probes.Facts, c shortage, s *Suspect) Answer {
		name := c.template.Spec.PriorityClassName
		if name == "" {
			return Answered(false, Saw("pods", nil, "%s names no PriorityClass", c.workload.Name))
		}
		classes, err := probes.PriorityClasses.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		if classes.Get("", name) != nil || strings.HasPrefix(name, "system-") {
			return Answered(false, SawObject("priorityclasses.scheduling.k8s.io", "", name, "PriorityClass %s exists", name))
		}
		var have []string
		for _, p := range classes.All() {
			have = append(have, p.Name)
		}
		s.Vars["class"], s.Vars["near"] = name, ""
		if len(have) > 0 {
			s.Vars["near"] = fmt.Sprintf(" There are %s.", strings.Join(have, ", "))
		}
		if n := nearest(name, have); n != "" {
			s.Vars["near"] += fmt.Sprintf(" The nearest is %s.", n)
		}
		s.Subjects = append(s.Subjects, Ref{Kind: "PriorityClass", Name: name})
		return Answered(true, SawObject("priorityclasses.scheduling.k8s.io", "", name, "there is no PriorityClass %s, which priorityClassName of %s names", name, c.workload.Name))
	})

// podSecurityRefuses: the namespace enforces a Pod Security level that the
// pods don't meet.
var podSecurityRefuses = admissionRule("pod-security-refuses", "does the namespace of {workload} enforce a Pod Security level that its pods don't meet?", "pod-security",
	[]probes.Any{probes.Namespaces, probes.Pods}, func(facts *probes.Facts, c shortage, s *Suspect) Answer {
		namespaces, err := probes.Namespaces.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		ns := namespaces.Get("", c.workload.Namespace)
		if ns == nil {
			return CantTell(fmt.Errorf("namespace %s is not among the namespaces", c.workload.Namespace))
		}
		// Invalid labels fall back to the strictest reading, as in the API server.
		levels, _ := api.PolicyToEvaluate(ns.Labels, api.Policy{
			Enforce: api.LevelVersion{Level: api.LevelPrivileged, Version: api.LatestVersion()},
			Audit:   api.LevelVersion{Level: api.LevelPrivileged, Version: api.LatestVersion()},
			Warn:    api.LevelVersion{Level: api.LevelPrivileged, Version: api.LatestVersion()},
		})
		evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
		if err != nil {
			return CantTell(err)
		}
		result := policy.AggregateCheckResults(evaluator.EvaluatePod(levels.Enforce, &c.template.ObjectMeta, &c.template.Spec))
		if result.Allowed {
			if kindOfRefusal(c.says) == "pod-security" {
				return CantTell(fmt.Errorf("the API server says %q, but by the labels of namespace %s the template is allowed: the cluster's own defaults may be stricter, or a container is injected", c.says, ns.Name), c.seen)
			}
			return Answered(false, SawObject("namespaces", "", ns.Name, "namespace %s enforces %s, which the pods meet", ns.Name, levels.Enforce.Level))
		}
		s.Vars["level"], s.Vars["says"] = string(levels.Enforce.Level), result.ForbiddenDetail()
		ref := Ref{Kind: "Namespace", Name: ns.Name}
		s.Subjects = append(s.Subjects, ref)
		evidence := []Evidence{
			SawObject("namespaces", "", ns.Name, "namespace %s has the label %s=%s", ns.Name, api.EnforceLevelLabel, levels.Enforce.Level),
			{Says: "the pods violate it: " + result.ForbiddenDetail(), Document: probes.Document{Path: creatorDocument(c.creator.Kind), Only: []string{c.creator.Namespace + "/" + c.creator.Name}}},
		}
		// Running pods that violate it too are older than the label.
		pods, err := probes.Pods.Of(facts)
		if err != nil {
			return CantTell(err, evidence...)
		}
		for p := range pods.In(ns.Name) {
			if !probes.Finished(p) && !policy.AggregateCheckResults(evaluator.EvaluatePod(levels.Enforce, &p.ObjectMeta, &p.Spec)).Allowed {
				s.Subjects = []Ref{ref, c.workload}
				s.Vars["near"] = fmt.Sprintf(" Pod %s, which runs, violates it too: the label came later.", p.Name)
				evidence = append(evidence, SawObject("pods", p.Namespace, p.Name, "running pod %s/%s violates level %s too", p.Namespace, p.Name, levels.Enforce.Level))
				break
			}
		}
		return Answered(true, evidence...)
	})

var admissionRules = slices.Concat(shortageRules, []*Rule{
	quotaExceeded, quotaDemandsRequests, limitRangeRefuses, serviceAccountMissing, priorityClassMissing, podSecurityRefuses,
	webhookDenies, webhookUnreachable, admissionPolicyDenies, podInvalid, managerDown,
})
