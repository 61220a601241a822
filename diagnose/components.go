package diagnose

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// parts are the parts of Kubernetes itself that run as pods, by a piece of
// their workload's or static pod's name, with what stops without them.
var parts = []struct {
	name  *regexp.Regexp
	stops string
}{
	{regexp.MustCompile(`^etcd-`), "the API server can store and read nothing where etcd has no quorum"},
	{regexp.MustCompile(`^kube-apiserver-`), "nobody can read or change anything through this API server"},
	{regexp.MustCompile(`^kube-scheduler-`), "new pods get no node"},
	{regexp.MustCompile(`^kube-controller-manager-`), "roll-outs, scaling, endpoints, Jobs and node states stand still"},
	{regexp.MustCompile(`cloud-controller-manager`), "Services of type LoadBalancer get no address, new nodes keep the taint node.cloudprovider.kubernetes.io/uninitialized, and gone machines stay as nodes"},
	{regexp.MustCompile(`^(calico-kube-controllers|cilium-operator|tigera-operator)`), "the network plug-in's addresses and policies are no longer kept in order"},
}

func partStops(r Ref) string {
	if r.Kind == "DaemonSet" && isNetworkAgent(r.Name) {
		return "new pods on its nodes get no network, and routes and policies are no longer kept in order"
	}
	for _, p := range parts {
		if p.name.MatchString(r.Name) {
			return p.stops
		}
	}
	return ""
}

// systemPartFails: a part of Kubernetes itself fails, and its own last words
// are all that is known of why.
var systemPartFails = &Rule{
	ID: "system-component-failing", Explains: []*Rule{podCrashLooping, podNotReady, podNotStarting, programFails, networkNotReady, sandboxNotCreated}, LastResort: true,
	Needs: []probes.Any{probes.Pods, probes.Nodes, probes.Logs, probes.Workloads},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		nodes, err := probes.Nodes.Of(facts)
		logs, _ := probes.Logs.Of(facts)
		if err != nil {
			return nil
		}
		index := map[Ref]int{}
		var found []Suspect
		for _, e := range effects {
			owner := e.Subject()
			stops := partStops(owner)
			pods := slices.DeleteFunc(slices.Clone(troubled(e)), func(p *corev1.Pod) bool { return lostNode(nodes, p) })
			if stops == "" || len(pods) == 0 {
				continue
			}
			i, ok := index[owner]
			if !ok {
				i = len(found)
				index[owner] = i
				found = append(found, Suspect{Subjects: []Ref{owner}, Vars: map[string]string{"stops": stops, "line": "its log says nothing", "pod": pods[0].Name, "command": commandLine(pods[0])}})
			}
			s := &found[i]
			s.Effects = appendOnce(s.Effects, e)
			list, _ := s.Data.([]*corev1.Pod)
			s.Data = appendNew(list, pods...)
			if words := saidLast(logs, pods); len(words) > 0 && len(s.Found) == 0 {
				s.Found = append(s.Found, words...)
				s.Vars["line"] = words[len(words)-1].Says
			}
		}
		// What its absence on a node does to the pods there.
		for i := range found {
			for _, e := range effects {
				if e.Rule == programFails && e.Subject() == found[i].Subjects[0] ||
					(e.Rule == networkNotReady || e.Rule == sandboxNotCreated) && isNetworkAgent(found[i].Subjects[0].Name) && sharesNode(found[i].Data.([]*corev1.Pod), e) {
					found[i].Effects = appendOnce(found[i].Effects, e)
				}
			}
		}
		return found
	},
	Tests: []Test{{
		Asks: "does this part of Kubernetes fail on a node that is well itself?", Needs: []probes.Any{probes.Pods},
		Run: func(_ *probes.Facts, s Suspect) Answer {
			var evidence []Evidence
			for _, p := range s.Data.([]*corev1.Pod)[:min(len(s.Data.([]*corev1.Pod)), maxExamples)] {
				for _, c := range probes.Statuses(p) {
					if !c.Ready {
						evidence = append(evidence, SawObject("pods", p.Namespace, p.Name, "pod %s on node %s: container %s %s", p.Name, p.Spec.NodeName, c.Name, stateWords(c)))
					}
				}
			}
			return Answered(len(evidence) > 0, append(evidence, s.Found...)...)
		},
	}},
}

// saidLast are the last words of the first of the pods whose log was read:
// only some of a workload's are.
func saidLast(logs *probes.LogSet, pods []*corev1.Pod) []Evidence {
	if logs == nil {
		return nil
	}
	for _, p := range pods {
		if words := lastWords(logs, p, 3); len(words) > 0 {
			return words
		}
	}
	return nil
}

// lostNode reports whether a pod is in trouble because its node is.
func lostNode(nodes *probes.List[corev1.Node], p *corev1.Pod) bool {
	n := nodes.Get("", p.Spec.NodeName)
	if n == nil {
		return p.Spec.NodeName != ""
	}
	c := nodeCondition(n, corev1.NodeReady)
	return c != nil && c.Status != corev1.ConditionTrue && !noCNI.MatchString(c.Message)
}

// sharesNode reports whether an effect is about a node that has one of the pods.
func sharesNode(pods []*corev1.Pod, e *Finding) bool {
	on := func(node string) bool {
		return slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.Spec.NodeName == node })
	}
	switch data := e.Data.(type) {
	case []bareNode:
		return slices.ContainsFunc(data, func(b bareNode) bool { return on(b.node.Name) })
	case []container:
		return slices.ContainsFunc(data, func(c container) bool { return on(c.pod.Spec.NodeName) })
	}
	return false
}

func commandLine(p *corev1.Pod) string {
	c := p.Spec.Containers[0]
	return fmt.Sprintf("image %s, command %s", c.Image, orDefault(strings.Join(slices.Concat(c.Command, c.Args), " "), "of the image"))
}

// leaders are the parts of the control plane that hold a lease while they
// work. Source: kubernetes component-base/config/v1alpha1/defaults.go.
var leaders = []string{"kube-scheduler", "kube-controller-manager"}

// leaderLeaseStale: nobody holds the lease of a part of the control plane,
// while nodes go on renewing theirs.
var leaderLeaseStale = &Rule{
	ID: "leader-lease-stale", Needs: []probes.Any{probes.Leases},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		leases, err := probes.Leases.Of(facts)
		if err != nil {
			return nil
		}
		now := facts.Source().Now()
		age := func(l *probes.Lease) time.Duration { return now.Sub(l.Spec.RenewTime.Time) }
		// The clock of a snapshot is good only where somebody else is on time.
		if len(leases.Where(func(l *probes.Lease) bool {
			return l.Namespace == "kube-node-lease" && l.Spec.RenewTime != nil && age(l) < stale
		})) == 0 {
			return nil
		}
		var found []Suspect
		for _, name := range leaders {
			l := leases.Get("kube-system", name)
			if l == nil || l.Spec.RenewTime == nil || age(l) < stale {
				continue
			}
			at := l.Spec.RenewTime.Time
			found = append(found, Suspect{
				Subjects: []Ref{{Kind: "Lease", Namespace: "kube-system", Name: name}}, Since: &at, Data: l,
				Vars:  map[string]string{"since": stamp(at), "component": name},
				Found: []Evidence{SawObject("leases.coordination.k8s.io", "kube-system", name, "the lease kube-system/%s was last renewed at %s, %s ago; its holder renews it every 2 s", name, stamp(at), age(l).Round(time.Second))},
			})
		}
		return found
	},
}

// withOwn adds to what a stopped part of the control plane brings about the
// troubles of its own: its lease, and its pods where either is there.
func withOwn(hurt, effects []*Finding, component string) []*Finding {
	stopped := len(hurt) > 0
	var pods []*Finding
	for _, e := range effects {
		switch e.Rule {
		case leaderLeaseStale:
			if e.Subject().Name == component {
				hurt, stopped = append(hurt, e), true
			}
		case podCrashLooping, podNotReady, podNotStarting:
			if e.Subject().Namespace == "kube-system" && strings.HasPrefix(e.Subject().Name, component+"-") {
				pods = append(pods, e)
			}
		}
	}
	if !stopped {
		return nil // one of several may fail while another leads
	}
	return append(hurt, pods...)
}

var componentRules = []*Rule{leaderLeaseStale, systemPartFails}
