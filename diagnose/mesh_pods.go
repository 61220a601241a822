package diagnose

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/pposiraegi/ppodoctor/probes"
)

// programBeforeProxy: a program could reach nothing in its first seconds, as
// the proxy of its pod was not ready yet, and stays up since.
var programBeforeProxy = &Rule{
	ID: "program-before-its-proxy", Explains: []*Rule{podCrashLooping, podRestarting, targetUnreachable}, Needs: []probes.Any{probes.Pods, probes.Logs},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		var list []Suspect
		for _, s := range suspectsOf(effects, func(c container) bool { return c.spec.Name != "istio-proxy" && !c.init && outrun(c) != nil }) {
			f, _ := decisive(facts, containers(s))
			if f == nil || !slices.ContainsFunc(append([]string{f.failure.Meaning}, f.failure.Also...), func(m string) bool {
				return slices.Contains(refusedMeanings, m) || slices.Contains(droppedMeanings, m) || slices.Contains(noAnswerMeanings, m) || slices.Contains(otherMeanings, m)
			}) {
				continue
			}
			c := containers(s)[0]
			s.Vars["line"] = f.line()
			s.Found = append(s.Found, f.evidence(), SawObject("pods", c.pod.Namespace, c.pod.Name, "pod %s: container %s ended at %s, istio-proxy started at %s; it has run since %s", c.pod.Name, c.spec.Name, stampOf(c.status.LastTerminationState.Terminated.FinishedAt.Time), stampOf(outrun(c).Time), stampOf(c.status.State.Running.StartedAt.Time)))
			list = append(list, s)
		}
		return list
	},
	Tests: []Test{{Asks: "did container {container} end before istio-proxy was ready, and does it run since?", Run: func(_ *probes.Facts, s Suspect) Answer { return Answered(true, s.Found...) }}},
}

// proxyStart is how long a proxy may take until it is ready.
const proxyStart = 20 * time.Second

// outrun is when the proxy of a container's pod started, if the container's
// last run ended before the proxy can have been ready, and it runs since; else nil.
func outrun(c container) *metav1.Time {
	last, now := c.status.LastTerminationState.Terminated, c.status.State.Running
	if last == nil || now == nil || !c.status.Ready || strings.Contains(c.pod.Annotations["proxy.istio.io/config"], "holdApplicationUntilProxyStarts") {
		return nil
	}
	for _, s := range c.pod.Status.ContainerStatuses { // a native sidecar is an init container and starts first
		if s.Name == "istio-proxy" && s.State.Running != nil && s.RestartCount == 0 && last.FinishedAt.Sub(s.State.Running.StartedAt.Time) < proxyStart {
			return &s.State.Running.StartedAt
		}
	}
	return nil
}

// ambientProbe is where the kubelet's probes of pods in the ambient mesh come from.
// Source: istio cni/pkg/iptables (HostProbeSNATIP).
var ambientProbe = netip.MustParseAddr("169.254.7.127")

// ambientProbesBlocked: a NetworkPolicy drops the probes of pods in the ambient mesh.
var ambientProbesBlocked = &Rule{
	ID: "ambient-probes-blocked", Explains: []*Rule{podNotReady, podCrashLooping}, Needs: []probes.Any{probes.Pods, probes.Events, probes.NetworkPolicies},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		var list []Suspect
		for _, s := range perHealthcheck(facts, effects) {
			h := s.Data.(healthcheck)
			p := h.container.pod
			by := dropsAmbientProbes(facts, p)
			if by == nil || h.event == nil || !strings.Contains(h.message, "timeout") && !strings.Contains(h.message, "deadline exceeded") {
				continue
			}
			policy := Ref{Kind: "NetworkPolicy", Namespace: by.Namespace, Name: by.Name}
			s.Vars["workload"] = short(s.Subjects[0])
			s.Subjects = append([]Ref{policy}, s.Subjects...)
			s.Found = append(s.Found, h.says(), SawObject("pods", p.Namespace, p.Name, "pod %s is in the ambient mesh (ambient.istio.io/redirection: enabled)", p.Name), SawObject("networkpolicies.networking.k8s.io", by.Namespace, by.Name, "NetworkPolicy %s isolates it for ingress and has no ipBlock with 169.254.7.127", by.Name))
			s.Data = nil
			list = append(list, s)
		}
		return list
	},
	Tests: []Test{{Asks: "do the probes of {workload} time out, while no NetworkPolicy lets 169.254.7.127 in?", Run: func(_ *probes.Facts, s Suspect) Answer { return Answered(true, s.Found...) }}},
}

// dropsAmbientProbes is a policy that isolates a pod of the ambient mesh,
// where none lets its probes in; else nil.
func dropsAmbientProbes(facts *probes.Facts, p *corev1.Pod) *networkingv1.NetworkPolicy {
	list, err := probes.NetworkPolicies.Of(facts)
	if err != nil || p.Annotations["ambient.istio.io/redirection"] != "enabled" {
		return nil
	}
	var by *networkingv1.NetworkPolicy
	for n := range list.In(p.Namespace) {
		sel, err := metav1.LabelSelectorAsSelector(&n.Spec.PodSelector)
		if err != nil || !sel.Matches(labels.Set(p.Labels)) || len(n.Spec.PolicyTypes) > 0 && !slices.Contains(n.Spec.PolicyTypes, networkingv1.PolicyTypeIngress) {
			continue
		}
		by = n
		for _, rule := range n.Spec.Ingress {
			if len(rule.From) == 0 || slices.ContainsFunc(rule.From, func(f networkingv1.NetworkPolicyPeer) bool {
				if f.IPBlock == nil {
					return false
				}
				block, err := netip.ParsePrefix(f.IPBlock.CIDR)
				return err == nil && block.Contains(ambientProbe)
			}) {
				return nil
			}
		}
	}
	return by
}
