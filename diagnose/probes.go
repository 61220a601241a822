package diagnose

import "github.com/pposiraegi/ppodoctor/probes"

// Probes are all that a walk of the rules and a search for an object may read,
// prerequisites first.
func Probes(rules []*Rule) []probes.Any {
	wanted := []probes.Any{probes.Nodes, probes.Pods, probes.Workloads}
	for _, r := range rules {
		wanted = append(wanted, r.Needs...)
		for _, t := range r.Tests {
			wanted = append(wanted, t.Needs...)
		}
	}
	for _, k := range findable {
		wanted = append(wanted, k.probe)
	}
	return probes.Closure(wanted...)
}
