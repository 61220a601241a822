package diagnose

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// networkPodDown: the network plug-in's pod of a node is not ready, so no pod
// that starts there gets a network.
var networkPodDown = &Rule{
	ID:       "network-plugin-down-on-node",
	Explains: []*Rule{sandboxNotCreated, podCrashLooping, podNotReady, programFails},
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
				if slices.Contains(e.Subjects, s.Through[0]) || e.Rule == programFails && e.Subject() == s.Subjects[1] {
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

var downRules = []*Rule{networkPodDown}
