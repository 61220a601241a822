package scheduling

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// cordoned is spec.unschedulable, which a toleration of its taint lifts.
func cordoned(pod *corev1.Pod, node *corev1.Node) []Failure {
	taint := corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	if !node.Spec.Unschedulable || tolerates(pod.Spec.Tolerations, &taint) {
		return nil
	}
	return []Failure{{Predicate: Cordoned, Change: "uncordon the node", Says: "is cordoned (spec.unschedulable: true)"}}
}

// taints are those of the node that the pod doesn't tolerate, without the one
// that mirrors the cordon.
func taints(pod *corev1.Pod, node *corev1.Node) []Failure {
	var failures []Failure
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		if taint.Effect == corev1.TaintEffectPreferNoSchedule || tolerates(pod.Spec.Tolerations, taint) {
			continue
		}
		if taint.Key == corev1.TaintNodeUnschedulable {
			if node.Spec.Unschedulable {
				continue
			}
		}
		failures = append(failures, Failure{
			Predicate: Taint, Taint: taint, Key: taint.Key, Want: taint.Value,
			Change: "tolerate " + TaintString(taint), Says: "has the taint " + TaintString(taint) + ", which the pod doesn't tolerate",
		})
	}
	return failures
}

// TaintString is key=value:effect, as kubectl prints it.
func TaintString(t *corev1.Taint) string {
	if t.Value == "" {
		return t.Key + ":" + string(t.Effect)
	}
	return t.Key + "=" + t.Value + ":" + string(t.Effect)
}

func tolerates(tolerations []corev1.Toleration, taint *corev1.Taint) bool {
	return schedulinghelpers.TolerationsTolerateTaint(klog.Logger{}, tolerations, taint, true)
}

// nodeLabels are spec.nodeName, spec.nodeSelector and the required node
// affinity: each entry that fails is its own failure, but several affinity
// terms, which are alternatives, are one.
func nodeLabels(pod *corev1.Pod, node *corev1.Node) []Failure {
	var failures []Failure
	if pod.Spec.NodeName != "" && pod.Spec.NodeName != node.Name {
		failures = append(failures, Failure{Predicate: NodeName, Want: pod.Spec.NodeName, Change: "drop nodeName " + pod.Spec.NodeName, Says: "is not the node " + pod.Spec.NodeName})
	}
	for _, key := range slices.Sorted(maps.Keys(pod.Spec.NodeSelector)) {
		want := pod.Spec.NodeSelector[key]
		have, ok := node.Labels[key]
		if ok && have == want {
			continue
		}
		says := fmt.Sprintf("has %s=%s and not %s", key, have, want)
		if !ok {
			says = "has no label " + key
		}
		failures = append(failures, Failure{Predicate: NodeSelector, Key: key, Want: want, Have: have, Change: fmt.Sprintf("match nodeSelector %s=%s", key, want), Says: says})
	}
	terms := requiredTerms(pod)
	if terms == nil {
		return failures
	}
	matches := func(ts []corev1.NodeSelectorTerm) bool {
		ok, err := nodeaffinity.NewLazyErrorNodeSelector(&corev1.NodeSelector{NodeSelectorTerms: ts}).Match(node)
		return err == nil && ok
	}
	if matches(terms) {
		return failures
	}
	if len(terms) != 1 {
		var alternatives []string
		for _, t := range terms {
			alternatives = append(alternatives, TermString(t))
		}
		return append(failures, Failure{
			Predicate: NodeAffinity, Change: "match the node affinity " + strings.Join(alternatives, " or "),
			Says: "matches none of the node affinity terms " + strings.Join(alternatives, " or "),
		})
	}
	fail := func(e corev1.NodeSelectorRequirement, have string, ok bool) {
		says := fmt.Sprintf("has %s=%s and not %s", e.Key, have, ExpressionString(e))
		if !ok {
			says = fmt.Sprintf("has no label %s (wanted: %s)", e.Key, ExpressionString(e))
		}
		failures = append(failures, Failure{
			Predicate: NodeAffinity, Key: e.Key, Want: strings.Join(e.Values, ","), Have: have, Expression: &e,
			Change: "match the node affinity " + ExpressionString(e), Says: says,
		})
	}
	term := terms[0]
	for _, e := range term.MatchExpressions {
		if !matches([]corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{e}}}) {
			have, ok := node.Labels[e.Key]
			fail(e, have, ok)
		}
	}
	for _, e := range term.MatchFields {
		if !matches([]corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{e}}}) {
			fail(e, node.Name, true)
		}
	}
	if len(term.MatchExpressions)+len(term.MatchFields) == 0 {
		failures = append(failures, Failure{Predicate: NodeAffinity, Change: "drop the empty node affinity term", Says: "an empty node affinity term matches no node"})
	}
	return failures
}

// requiredTerms are the alternatives of the required node affinity; nil: none asked for.
func requiredTerms(pod *corev1.Pod) []corev1.NodeSelectorTerm {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil || pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	terms := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if terms == nil {
		return []corev1.NodeSelectorTerm{}
	}
	return terms
}

// TermString is the term's expressions joined by "and".
func TermString(t corev1.NodeSelectorTerm) string {
	var parts []string
	for _, e := range append(slices.Clone(t.MatchExpressions), t.MatchFields...) {
		parts = append(parts, ExpressionString(e))
	}
	return "(" + strings.Join(parts, " and ") + ")"
}

// ExpressionString is "key In [a b]".
func ExpressionString(e corev1.NodeSelectorRequirement) string {
	if len(e.Values) == 0 {
		return fmt.Sprintf("%s %s", e.Key, e.Operator)
	}
	return fmt.Sprintf("%s %s [%s]", e.Key, e.Operator, strings.Join(e.Values, " "))
}

// RequiredAffinityMatches reports whether a node passes the nodeSelector and
// the required node affinity.
func RequiredAffinityMatches(pod *corev1.Pod, node *corev1.Node) bool {
	ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	return err == nil && ok
}
