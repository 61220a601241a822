package scheduling

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// spreadState is what each hard topology spread constraint of a pod counts.
type spreadState struct {
	constraints []constraintState
	unknown     string
}

type constraintState struct {
	corev1.TopologySpreadConstraint
	counts map[string]int // matching pods by domain, over the domains that count
	self   int            // 1 if the pod matches its own constraint
	least  int            // the fewest in a domain; 0 with too few domains
}

func (c *Cluster) newSpreadState(pod *corev1.Pod) *spreadState {
	s := &spreadState{}
	var hard []corev1.TopologySpreadConstraint
	for _, t := range pod.Spec.TopologySpreadConstraints {
		if t.WhenUnsatisfiable == corev1.DoNotSchedule {
			hard = append(hard, t)
		}
	}
	if len(hard) > 0 && c.Pods == nil {
		s.unknown = "the pods on the nodes are unknown"
	}
	for _, t := range hard {
		selector := spreadSelector(t, pod)
		state := constraintState{TopologySpreadConstraint: t, counts: map[string]int{}}
		if selector.Matches(labels.Set(pod.Labels)) {
			state.self = 1
		}
		for _, node := range c.Nodes {
			// A node counts if it has the keys of all hard constraints and passes the policies.
			if !hasKeys(node, hard) || !counts(t, pod, node) {
				continue
			}
			domain := node.Labels[t.TopologyKey]
			state.counts[domain] += 0
			for _, other := range c.onNode[node.Name] {
				if other.Namespace == pod.Namespace && other.DeletionTimestamp == nil && selector.Matches(labels.Set(other.Labels)) {
					state.counts[domain]++
				}
			}
		}
		state.least = math.MaxInt
		for _, n := range state.counts {
			state.least = min(state.least, n)
		}
		if len(state.counts) == 0 || t.MinDomains != nil && len(state.counts) < int(*t.MinDomains) {
			state.least = 0
		}
		s.constraints = append(s.constraints, state)
	}
	return s
}

func spreadSelector(t corev1.TopologySpreadConstraint, pod *corev1.Pod) labels.Selector {
	selector, err := metav1.LabelSelectorAsSelector(t.LabelSelector)
	if err != nil {
		return labels.Nothing()
	}
	for _, key := range t.MatchLabelKeys {
		if value, ok := pod.Labels[key]; ok {
			if r, err := labels.NewRequirement(key, "in", []string{value}); err == nil {
				selector = selector.Add(*r)
			}
		}
	}
	return selector
}

func hasKeys(node *corev1.Node, constraints []corev1.TopologySpreadConstraint) bool {
	for _, t := range constraints {
		if _, ok := node.Labels[t.TopologyKey]; !ok {
			return false
		}
	}
	return true
}

// counts reports whether a node's domain counts, by the constraint's policies:
// by default node affinity is honoured and taints are ignored.
func counts(t corev1.TopologySpreadConstraint, pod *corev1.Pod, node *corev1.Node) bool {
	if (t.NodeAffinityPolicy == nil || *t.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor) && !RequiredAffinityMatches(pod, node) {
		return false
	}
	if t.NodeTaintsPolicy != nil && *t.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor && len(taints(pod, node)) > 0 {
		return false
	}
	return true
}

func (s *spreadState) on(node *corev1.Node) []Failure {
	if s.unknown != "" {
		return []Failure{{Predicate: Spread, Change: "relax the topology spread", Unknown: true, Says: s.unknown}}
	}
	var failures []Failure
	for _, t := range s.constraints {
		f := Failure{Predicate: Spread, Key: t.TopologyKey, Domains: t.counts, Change: "relax the topology spread over " + t.TopologyKey}
		domain, ok := node.Labels[t.TopologyKey]
		f.Have = domain
		n := t.counts[domain] + t.self
		switch {
		case !ok:
			f.Says = fmt.Sprintf("has no label %s, over which the pod must be spread", t.TopologyKey)
		case n-t.least > int(t.MaxSkew):
			f.Says = fmt.Sprintf("would bring %s=%s to %d while the emptiest domain has %d (maxSkew %d; %s)", t.TopologyKey, domain, n, t.least, t.MaxSkew, t.domains())
		default:
			continue
		}
		failures = append(failures, f)
	}
	return failures
}

func (t constraintState) domains() string {
	var parts []string
	for _, d := range slices.Sorted(maps.Keys(t.counts)) {
		parts = append(parts, fmt.Sprintf("%s: %d", d, t.counts[d]))
	}
	if t.MinDomains != nil && len(t.counts) < int(*t.MinDomains) {
		parts = append(parts, fmt.Sprintf("minDomains %d", *t.MinDomains))
	}
	return strings.Join(parts, ", ")
}
