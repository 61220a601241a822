package diagnose

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// nodeOut: a node's kubelet has fallen silent, or says that its container
// runtime is down: what runs there is lost with it.
// Sources: kubernetes pkg/controller/nodelifecycle/node_lifecycle_controller.go,
// pkg/kubelet/nodestatus/setters.go (ReadyCondition).
var nodeOut = &Rule{
	ID:         "node-out-of-service",
	Explains:   []*Rule{nodeNotReady, podNotReady, podNotStarting, podOnLostNode, nodesNotReady},
	LastResort: true,
	Relay:      true,
	Needs:      []probes.Any{probes.Nodes, probes.Pods},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		nodes, err := probes.Nodes.Of(facts)
		if err != nil {
			return nil
		}
		var list []Suspect
		for _, n := range nodes.All() {
			c := nodeCondition(n, corev1.NodeReady)
			if c == nil || c.Status == corev1.ConditionTrue {
				continue
			}
			ref := Ref{Kind: "Node", Name: n.Name}
			s := Suspect{Subjects: []Ref{ref}, Data: n, Found: []Evidence{sawNodeCondition(n, c)}, Since: &c.LastTransitionTime.Time, Vars: map[string]string{
				"node": n.Name, "since": stamp(c.LastTransitionTime.Time), "says": c.Message,
			}}
			for _, e := range effects {
				on := func(p *corev1.Pod) bool { return p.Spec.NodeName == n.Name }
				if slices.Contains(e.Subjects, ref) || slices.ContainsFunc(troubled(e), on) {
					s.Effects = append(s.Effects, e)
				}
			}
			if slices.ContainsFunc(s.Effects, func(e *Finding) bool { return e.Subject() == ref }) {
				list = append(list, s)
			}
		}
		return list
	},
	Tests: []Test{{
		Asks:  "has the kubelet of node {node} fallen silent, or does it say that the node's container runtime is down?",
		Needs: []probes.Any{probes.Leases},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			n := s.Data.(*corev1.Node)
			c := nodeCondition(n, corev1.NodeReady)
			if c.Status == corev1.ConditionUnknown && c.Reason != "NodeStatusUnknown" && !strings.Contains(c.Message, "stopped posting") {
				return Answered(false, sawNodeCondition(n, c))
			}
			if c.Status == corev1.ConditionFalse {
				down := slices.ContainsFunc([]string{"container runtime is down", "PLEG is not healthy", "container runtime status check may not have completed"}, func(m string) bool { return strings.Contains(c.Message, m) })
				return Answered(down, sawNodeCondition(n, c)).With("how", "says that its container runtime does not answer")
			}
			how := "has not reported since " + stamp(c.LastHeartbeatTime.Time)
			leases, err := probes.Leases.Of(facts)
			if err != nil {
				return Answered(c.Reason == "NodeStatusUnknown", sawNodeCondition(n, c)).With("how", how)
			}
			l := leases.Get("kube-node-lease", n.Name)
			if l == nil || l.Spec.RenewTime == nil {
				return Answered(true, sawNodeCondition(n, c), SawObject("leases.coordination.k8s.io", "kube-node-lease", n.Name, "node %s renews no lease", n.Name)).With("how", how)
			}
			age := facts.Source().Now().Sub(l.Spec.RenewTime.Time)
			return Answered(age > stale, sawNodeCondition(n, c), SawObject("leases.coordination.k8s.io", "kube-node-lease", n.Name, "the kubelet of node %s last renewed its lease at %s", n.Name, stamp(l.Spec.RenewTime.Time))).With("how", how)
		},
	}},
}

// networkPodDown: the network plug-in's pod of a node is not ready, so no pod
// that starts there gets a network.
var networkPodDown = &Rule{
	ID:       "network-plugin-down-on-node",
	Explains: []*Rule{sandboxNotCreated, podCrashLooping, podNotReady},
	Needs:    []probes.Any{probes.Pods, probes.Workloads},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		pods, err := probes.Pods.Of(facts)
		if err != nil {
			return nil
		}
		var list []Suspect
		index := map[string]int{}
		for _, e := range effects {
			if e.Rule != sandboxNotCreated || e.Truth != Yes {
				continue
			}
			for _, root := range rootSymptoms([]*Finding{e}) {
				for _, p := range troubled(root.symptom) {
					for _, plugin := range pods.On(p.Spec.NodeName) {
						if !isNetworkAgent(workloadOf(facts, plugin).Name) || workloadOf(facts, plugin).Kind != "DaemonSet" || probes.Ready(plugin) {
							continue
						}
						i, ok := index[p.Spec.NodeName]
						if !ok {
							i = len(list)
							index[p.Spec.NodeName] = i
							list = append(list, Suspect{
								Subjects: []Ref{{Kind: "Node", Name: p.Spec.NodeName}, workloadOf(facts, plugin), podRef(plugin)}, Through: []Ref{podRef(plugin)}, Data: plugin,
								Vars: map[string]string{"node": p.Spec.NodeName, "plugin": short(workloadOf(facts, plugin)), "pod": plugin.Name, "podNamespace": plugin.Namespace},
							})
						}
						list[i].Effects = appendNew(list[i].Effects, e)
					}
				}
			}
		}
		for i, s := range list {
			for _, e := range effects { // the plug-in's own troubles
				if slices.Contains(e.Subjects, s.Through[0]) {
					list[i].Effects = appendNew(list[i].Effects, e)
				}
			}
		}
		return oneDaemon(list)
	},
	Tests: []Test{{
		Asks: "is the pod of {plugin} on node {node} not ready?", Needs: []probes.Any{probes.Logs},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			p := s.Data.(*corev1.Pod)
			evidence := []Evidence{SawObject("pods", p.Namespace, p.Name, "pod %s, which gives the pods of node %s their network, is not ready", p.Name, p.Spec.NodeName)}
			for _, c := range probes.Statuses(p) {
				if !c.Ready {
					evidence = append(evidence, SawObject("pods", p.Namespace, p.Name, "container %s %s", c.Name, stateWords(c)))
				}
			}
			if logs, err := probes.Logs.Of(facts); err == nil {
				evidence = append(evidence, lastWords(logs, p, 3)...)
			}
			return Answered(true, evidence...)
		},
	}},
}

// oneDaemon makes one suspect of those on several nodes: what is wrong with a
// daemon everywhere is wrong with the DaemonSet. The subjects are the node,
// the DaemonSet and the pod.
func oneDaemon(list []Suspect) []Suspect {
	if len(list) < 2 {
		return list
	}
	all := list[0]
	all.Subjects = []Ref{list[0].Subjects[1]}
	all.Vars["node"] = fmt.Sprintf("%d nodes", len(list))
	for _, s := range list {
		all.Subjects = append(all.Subjects, s.Subjects[0])
		all.Through = appendNew(all.Through, s.Through...)
		all.Effects = appendNew(all.Effects, s.Effects...)
	}
	return []Suspect{all}
}

var downRules = []*Rule{nodeOut, networkPodDown}
