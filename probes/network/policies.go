package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// policyHop says whether the NetworkPolicies that select the end's pod let it
// talk to the peer in a direction; port is the destination's. The policies are
// a union: one rule of one of them suffices.
//
// The semantics are those of k8s.io/api/networking/v1 and of
// kubernetes.io/docs/concepts/services-networking/network-policies: a pod on
// the host's network is not selected, nor does a selector match it as a peer; a
// pod can't be cut off from itself and from its own node.
func (w *World) policyHop(d Direction, of, peer *end, proto Protocol, port int) (Hop, bool) {
	h := Hop{Layer: NetworkPolicies, Kind: "NetworkPolicy"}
	if of.pod == nil && (of.podErr == nil || w.enforced() == No || w.Policies.Err == nil && len(w.Policies.All) == 0) {
		return h, false
	}
	if of.pod == nil {
		h.Truth, h.Code, h.Err, h.Says = Unknown, NotKnown, of.podErr, fmt.Sprintf("it isn't known whether NetworkPolicies select %s", of.is)
		return h, true
	}
	who := "pod " + of.pod.Namespace + "/" + of.pod.Name
	if w.Policies.Err != nil {
		if w.enforced() == No {
			return h, false
		}
		h.Truth, h.Code, h.Says = Unknown, NotKnown, "the NetworkPolicies of "+who+" aren't known"
		h.Err = fmt.Errorf("network policies of %s: %w", who, w.Policies.Err)
		return h, true
	}
	h.Documents = []Document{w.Policies.doc()}
	isolating, broken := w.isolating(d, of.pod)
	if len(isolating) == 0 && broken == nil {
		h.Truth, h.Code, h.Says = Yes, NotIsolated, "no NetworkPolicy isolates "+who+" for "+string(d)
		return h, true
	}
	if peer.pod == of.pod || peer.host && peer.node != "" && peer.node == of.node {
		h.Truth, h.Code, h.Says = Yes, PolicyExempt, "traffic between a pod and its own node, or itself, is not subject to NetworkPolicies"
		return h, true
	}
	truth, unknown := No, broken
	if broken != nil {
		truth = Unknown
	}
	var names []string
	for _, np := range isolating {
		name := np.Namespace + "/" + np.Name
		names = append(names, name)
		for i, r := range rulesIn(np, d) {
			t, err := w.policyRule(np, r, of, peer, d, proto, port)
			if t == Yes {
				h.Truth, h.Code, h.Names = Yes, PolicyAllows, []string{name}
				h.Rule = fmt.Sprintf("%s %s[%d]", name, d, i)
				h.Says = fmt.Sprintf("NetworkPolicy %s lets it pass by %s rule %d", name, d, i+1)
				h.Documents = []Document{w.Policies.doc(name)}
				return h, true
			}
			if t == Unknown {
				truth, unknown = Unknown, err
			}
		}
	}
	h.Names = names
	h.Documents = []Document{w.Policies.doc(names...)}
	h.Says = fmt.Sprintf("%s is isolated for %s by NetworkPolicy %s, and no rule of it lets %s %d %s %s pass",
		who, d, strings.Join(names, ", "), proto, port, d.preposition(), peer.is)
	switch {
	case w.enforced() == No:
		h.Truth, h.Code = Yes, NotEnforced
		h.Says += "; nothing in the cluster enforces NetworkPolicies, though"
	case truth == Unknown:
		h.Truth, h.Code, h.Err = Unknown, NotKnown, unknown
		h.Says = fmt.Sprintf("it isn't known whether NetworkPolicy %s lets it pass", strings.Join(names, ", "))
	case w.enforced() == Unknown:
		h.Truth, h.Code, h.Err = Unknown, NotKnown, w.EnforcedErr
		if h.Err == nil {
			h.Err = fmt.Errorf("it isn't known whether anything enforces NetworkPolicies")
		}
	default:
		h.Truth, h.Code = No, PolicyDenies
	}
	return h, true
}

// isolating are the policies that select the pod for a direction, by name.
func (w *World) isolating(d Direction, p *corev1.Pod) (selecting []*networkingv1.NetworkPolicy, broken error) {
	for _, np := range w.ix().policies[p.Namespace] {
		if !isolates(np, d) {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(&np.Spec.PodSelector)
		if err != nil {
			broken = fmt.Errorf("network policy %s/%s: %w", np.Namespace, np.Name, err)
			continue
		}
		if selector.Matches(labels.Set(p.Labels)) {
			selecting = append(selecting, np)
		}
	}
	slices.SortFunc(selecting, func(a, b *networkingv1.NetworkPolicy) int { return strings.Compare(a.Name, b.Name) })
	return selecting, broken
}

// Isolating are the NetworkPolicies that isolate a pod in a direction.
func (w *World) Isolating(d Direction, p *corev1.Pod) []*networkingv1.NetworkPolicy {
	if p.Spec.HostNetwork {
		return nil
	}
	selecting, _ := w.isolating(d, p)
	return selecting
}

// isolates says whether a policy is about the direction. Without policyTypes it
// is about ingress, and about egress if it has an egress rule.
func isolates(np *networkingv1.NetworkPolicy, d Direction) bool {
	if len(np.Spec.PolicyTypes) == 0 {
		return d == Ingress || len(np.Spec.Egress) > 0
	}
	want := networkingv1.PolicyTypeIngress
	if d == Egress {
		want = networkingv1.PolicyTypeEgress
	}
	return slices.Contains(np.Spec.PolicyTypes, want)
}

// A policyRule is an ingress or egress rule: both have the same shape.
type policyRule struct {
	peers []networkingv1.NetworkPolicyPeer
	ports []networkingv1.NetworkPolicyPort
}

func rulesIn(np *networkingv1.NetworkPolicy, d Direction) []policyRule {
	var rules []policyRule
	if d == Egress {
		for _, r := range np.Spec.Egress {
			rules = append(rules, policyRule{r.To, r.Ports})
		}
		return rules
	}
	for _, r := range np.Spec.Ingress {
		rules = append(rules, policyRule{r.From, r.Ports})
	}
	return rules
}

func (w *World) policyRule(np *networkingv1.NetworkPolicy, r policyRule, of, peer *end, d Direction, proto Protocol, port int) (Truth, error) {
	to := of
	if d == Egress {
		to = peer
	}
	if len(r.ports) > 0 && !slices.ContainsFunc(r.ports, func(p networkingv1.NetworkPolicyPort) bool { return portMatches(p, to.pod, proto, port) }) {
		return No, nil
	}
	if len(r.peers) == 0 {
		return Yes, nil
	}
	truth, why := No, error(nil)
	for _, p := range r.peers {
		t, err := w.policyPeer(np, p, peer)
		if t == Yes {
			return Yes, nil
		}
		if t == Unknown {
			truth, why = Unknown, err
		}
	}
	return truth, why
}

// portMatches says whether a policy's port is the destination's. A named port
// is looked up in the destination pod, which has none where it is not a pod.
func portMatches(p networkingv1.NetworkPolicyPort, to *corev1.Pod, proto Protocol, port int) bool {
	if protocolOf(p.Protocol) != proto {
		return false
	}
	if p.Port == nil {
		return true
	}
	if p.Port.StrVal != "" {
		if to == nil {
			return false
		}
		for _, c := range containersOf(to) {
			for _, cp := range c.Ports {
				if cp.Name == p.Port.StrVal && int(cp.ContainerPort) == port && protocolOf(&cp.Protocol) == proto {
					return true
				}
			}
		}
		return false
	}
	if p.EndPort != nil {
		return int(p.Port.IntVal) <= port && port <= int(*p.EndPort)
	}
	return int(p.Port.IntVal) == port
}

func (w *World) policyPeer(np *networkingv1.NetworkPolicy, p networkingv1.NetworkPolicyPeer, peer *end) (Truth, error) {
	if p.IPBlock != nil {
		return ipBlock(p.IPBlock, peer)
	}
	if peer.pod == nil && peer.podErr != nil {
		return Unknown, peer.podErr
	}
	if peer.pod == nil || p.NamespaceSelector == nil && p.PodSelector == nil {
		return No, nil
	}
	if p.PodSelector != nil {
		selector, err := metav1.LabelSelectorAsSelector(p.PodSelector)
		if err != nil {
			return Unknown, fmt.Errorf("network policy %s/%s: %w", np.Namespace, np.Name, err)
		}
		if !selector.Matches(labels.Set(peer.pod.Labels)) {
			return No, nil
		}
	}
	if p.NamespaceSelector == nil {
		if peer.pod.Namespace == np.Namespace {
			return Yes, nil
		}
		return No, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(p.NamespaceSelector)
	if err != nil {
		return Unknown, fmt.Errorf("network policy %s/%s: %w", np.Namespace, np.Name, err)
	}
	return w.namespaceMatches(selector, peer.pod.Namespace)
}

// namespaceMatches evaluates a selector on a namespace's labels. Where those
// aren't known, one label still is: kubernetes.io/metadata.name, the name.
func (w *World) namespaceMatches(selector labels.Selector, namespace string) (Truth, error) {
	set := labels.Set{corev1.LabelMetadataName: namespace}
	ns := w.ix().namespaces[namespace]
	if ns != nil {
		for k, v := range ns.Labels {
			set[k] = v
		}
	}
	requirements, selectable := selector.Requirements()
	if ns == nil && selectable && slices.ContainsFunc(requirements, func(r labels.Requirement) bool { return r.Key() != corev1.LabelMetadataName }) {
		return Unknown, absent(w, w.Namespaces, "namespace", namespace)
	}
	if selector.Matches(set) {
		return Yes, nil
	}
	return No, nil
}

func ipBlock(b *networkingv1.IPBlock, peer *end) (Truth, error) {
	cidr, err := netip.ParsePrefix(b.CIDR)
	if err != nil {
		return Unknown, fmt.Errorf("ipBlock %q is not a CIDR", b.CIDR)
	}
	if len(peer.peer.Within) == 0 {
		return Unknown, fmt.Errorf("the address of %s isn't known", peer.is)
	}
	all, none := true, true
	for _, block := range peer.peer.Within {
		truth := inBlock(cidr.Masked(), block)
		for _, e := range b.Except {
			except, err := netip.ParsePrefix(e)
			if err != nil {
				return Unknown, fmt.Errorf("ipBlock except %q is not a CIDR", e)
			}
			switch out := inBlock(except.Masked(), block); {
			case out == Yes:
				truth = No
			case out == Unknown && truth == Yes:
				truth = Unknown
			}
		}
		all, none = all && truth == Yes, none && truth == No
	}
	switch {
	case all:
		return Yes, nil
	case none:
		return No, nil
	}
	return Unknown, errSomeAddresses
}
