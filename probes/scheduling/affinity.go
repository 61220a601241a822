package scheduling

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// affinityState is what the required pod (anti-)affinity of one pod, and of
// the running pods against it, means for each topology domain.
type affinityState struct {
	pod      *corev1.Pod
	affinity []termState
	anti     []termState
	others   []otherState // running pods' anti-affinity that this pod matches
	selfOnly bool         // no pod matches any affinity term, but the pod itself matches all
}

type termState struct {
	term    corev1.PodAffinityTerm
	says    string
	unknown string
	domains map[string][]*corev1.Pod // matching pods by the topology key's value
}

type otherState struct {
	pod    *corev1.Pod
	key    string // topology key
	domain string
	says   string
}

func (c *Cluster) newAffinityState(pod *corev1.Pod) *affinityState {
	s := &affinityState{pod: pod}
	nodes := c.nodesByName()
	for _, t := range podAffinityTerms(pod) {
		s.affinity = append(s.affinity, c.newTermState(t, pod, nodes))
	}
	for _, t := range podAntiAffinityTerms(pod) {
		s.anti = append(s.anti, c.newTermState(t, pod, nodes))
	}
	s.selfOnly = len(s.affinity) > 0
	for _, t := range s.affinity {
		match, _ := c.termMatches(t.term, pod, pod)
		if len(t.domains) > 0 || !match {
			s.selfOnly = false
		}
	}
	for _, name := range c.nodeNames() {
		node := nodes[name]
		for _, other := range c.onNode[name] {
			for _, t := range podAntiAffinityTerms(other) {
				if match, _ := c.termMatches(t, other, pod); !match {
					continue
				}
				if domain, ok := node.Labels[t.TopologyKey]; ok {
					s.others = append(s.others, otherState{pod: other, key: t.TopologyKey, domain: domain, says: podTermString(t, other.Namespace)})
				}
			}
		}
	}
	return s
}

func (c *Cluster) newTermState(t corev1.PodAffinityTerm, pod *corev1.Pod, nodes map[string]*corev1.Node) termState {
	s := termState{term: t, says: podTermString(t, pod.Namespace), domains: map[string][]*corev1.Pod{}}
	if c.Pods == nil {
		s.unknown = "the pods on the nodes are unknown"
		return s
	}
	for _, name := range c.nodeNames() {
		domain, ok := nodes[name].Labels[t.TopologyKey]
		if !ok {
			continue
		}
		for _, other := range c.onNode[name] {
			match, unknown := c.termMatches(t, pod, other)
			if unknown != "" {
				s.unknown = unknown
			}
			if match {
				s.domains[domain] = append(s.domains[domain], other)
			}
		}
	}
	return s
}

// on are the terms that a node doesn't meet.
func (s *affinityState) on(node *corev1.Node) []Failure {
	var failures []Failure
	for _, t := range s.affinity {
		domain, ok := node.Labels[t.term.TopologyKey]
		f := Failure{Predicate: Affinity, Key: t.term.TopologyKey, Want: t.says, Have: domain, Change: "meet the pod affinity to " + t.says, Unknown: t.unknown != ""}
		switch {
		case ok && (len(t.domains[domain]) > 0 || s.selfOnly):
			continue
		case f.Unknown:
			f.Says = t.unknown
		case !ok:
			f.Says = fmt.Sprintf("has no label %s, which the pod affinity to %s goes by", t.term.TopologyKey, t.says)
		case len(t.domains) == 0:
			f.Never = true
			f.Says = fmt.Sprintf("no running pod matches the pod affinity to %s", t.says)
		default:
			f.Says = fmt.Sprintf("no pod that matches the pod affinity to %s runs in %s=%s", t.says, t.term.TopologyKey, domain)
		}
		failures = append(failures, f)
	}
	for _, t := range s.anti {
		domain, ok := node.Labels[t.term.TopologyKey]
		if !ok {
			continue
		}
		f := Failure{Predicate: AntiAffinity, Key: t.term.TopologyKey, Want: t.says, Have: domain, Pods: t.domains[domain], Change: "relax the pod anti-affinity to " + t.says}
		switch {
		case len(t.domains[domain]) > 0:
			f.Says = fmt.Sprintf("%s=%s already has %s, and the pod wants none of %s there", t.term.TopologyKey, domain, podNames(t.domains[domain]), t.says)
		case t.unknown != "":
			f.Unknown, f.Says = true, t.unknown
		default:
			continue
		}
		failures = append(failures, f)
	}
	seen := map[string]bool{}
	for _, o := range s.others {
		if node.Labels[o.key] != o.domain || seen[o.says] {
			continue
		}
		seen[o.says] = true
		failures = append(failures, Failure{
			Predicate: AntiAffinityOfOthers, Key: o.key, Want: o.says, Have: o.domain, Pods: []*corev1.Pod{o.pod}, Change: fmt.Sprintf("relax the anti-affinity that running pods have to %s", o.says),
			Says: fmt.Sprintf("pod %s/%s on %s=%s wants none of %s beside it", o.pod.Namespace, o.pod.Name, o.key, o.domain, o.says),
		})
	}
	return failures
}

// termMatches reports whether a term of owner's selects other. unknown says
// what is missing where it can't be told.
func (c *Cluster) termMatches(t corev1.PodAffinityTerm, owner, other *corev1.Pod) (match bool, unknown string) {
	selector, err := metav1.LabelSelectorAsSelector(t.LabelSelector)
	if err != nil || !selector.Matches(labels.Set(other.Labels)) {
		return false, ""
	}
	if len(t.Namespaces) == 0 && t.NamespaceSelector == nil {
		return other.Namespace == owner.Namespace, ""
	}
	if slices.Contains(t.Namespaces, other.Namespace) {
		return true, ""
	}
	if t.NamespaceSelector == nil {
		return false, ""
	}
	inNamespaces, err := metav1.LabelSelectorAsSelector(t.NamespaceSelector)
	if err != nil {
		return false, ""
	}
	if inNamespaces.Empty() {
		return true, ""
	}
	if c.Namespaces == nil {
		return false, "the labels of the namespaces are unknown"
	}
	ns := c.Namespaces.Get("", other.Namespace)
	return ns != nil && inNamespaces.Matches(labels.Set(ns.Labels)), ""
}

func podTermString(t corev1.PodAffinityTerm, namespace string) string {
	in := namespace
	if len(t.Namespaces) > 0 {
		in = strings.Join(t.Namespaces, ",")
	}
	if t.NamespaceSelector != nil {
		in = "namespaces with " + metav1.FormatLabelSelector(t.NamespaceSelector)
	}
	return fmt.Sprintf("pods {%s} in %s per %s", metav1.FormatLabelSelector(t.LabelSelector), in, t.TopologyKey)
}

func podAffinityTerms(p *corev1.Pod) []corev1.PodAffinityTerm {
	if p.Spec.Affinity == nil || p.Spec.Affinity.PodAffinity == nil {
		return nil
	}
	return p.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

func podAntiAffinityTerms(p *corev1.Pod) []corev1.PodAffinityTerm {
	if p.Spec.Affinity == nil || p.Spec.Affinity.PodAntiAffinity == nil {
		return nil
	}
	return p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

func podNames(pods []*corev1.Pod) string {
	var names []string
	for i, p := range pods {
		if i == 3 {
			names = append(names, fmt.Sprintf("%d more", len(pods)-i))
			break
		}
		names = append(names, p.Namespace+"/"+p.Name)
	}
	return strings.Join(names, ", ")
}

func (c *Cluster) nodesByName() map[string]*corev1.Node {
	nodes := make(map[string]*corev1.Node, len(c.Nodes))
	for _, n := range c.Nodes {
		nodes[n.Name] = n
	}
	return nodes
}

func (c *Cluster) nodeNames() []string {
	names := make([]string, 0, len(c.Nodes))
	for _, n := range c.Nodes {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	return names
}
