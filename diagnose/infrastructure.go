package diagnose

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// The words of the kubelet and the node controller for a node that can't work.
// Sources: kubernetes pkg/kubelet/{runtime,kubelet_node_status}.go,
// pkg/controller/nodelifecycle/node_lifecycle_controller.go.
var (
	runtimeSays = regexp.MustCompile(`container runtime is down|PLEG is not healthy|container runtime status check may not have completed|(?i:containerd|crio|docker|cri-dockerd)\S*\.sock|missing required RuntimeReady|RuntimeReady=false`)
	networkSays = regexp.MustCompile(`NetworkReady=false|NetworkPluginNotReady|cni (?:plugin|config)|network plugin (?:is not ready|returns error)|CNI plugin`)
)

func notReadyNode(e *Finding) (*corev1.Node, *corev1.NodeCondition) {
	n, ok := e.Data.(*corev1.Node)
	if !ok || e.Rule != nodeNotReady {
		return nil, nil
	}
	return n, nodeCondition(n, corev1.NodeReady)
}

// perNode proposes each node that is not ready.
func perNode(_ *probes.Facts, effects []*Finding) []Suspect {
	var found []Suspect
	for _, e := range effects {
		if n, _ := notReadyNode(e); n != nil {
			found = append(found, Suspect{Subjects: []Ref{{Kind: "Node", Name: n.Name}}, Effects: []*Finding{e}, Data: e, Vars: map[string]string{"node": n.Name, "runtime": n.Status.NodeInfo.ContainerRuntimeVersion, "since": "an unknown time"}})
		}
	}
	return found
}

// kubeletSilent: the kubelet of a node reports no more. What stopped it is on
// the node, unless something better explains that the node is cut off.
var kubeletSilent = &Rule{
	ID: "kubelet-silent", Explains: []*Rule{nodeNotReady}, LastResort: true, Needs: []probes.Any{probes.Nodes, probes.Leases},
	Suspects: perNode,
	Tests: []Test{{
		Asks: "does the kubelet of node {node} report no more?", Needs: []probes.Any{probes.Leases},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			n, c := notReadyNode(s.Data.(*Finding))
			says := sawNodeCondition(n, c)
			if c.Status != corev1.ConditionUnknown {
				return Answered(false, says)
			}
			now := facts.Source().Now()
			evidence := []Evidence{says}
			since := c.LastHeartbeatTime.Time
			if leases, err := probes.Leases.Of(facts); err == nil {
				if l := leases.Get("kube-node-lease", n.Name); l != nil && l.Spec.RenewTime != nil {
					age := now.Sub(l.Spec.RenewTime.Time)
					evidence = append(evidence, SawObject("leases.coordination.k8s.io", "kube-node-lease", n.Name, "its lease kube-node-lease/%s was last renewed at %s, %s ago", n.Name, stampOf(l.Spec.RenewTime.Time), age.Round(time.Second)))
					if age < stale {
						return Answered(false, evidence...)
					}
					since = l.Spec.RenewTime.Time
				}
			}
			return Answered(true, evidence...).With("since", stampOf(since))
		},
	}},
}

func stampOf(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// runtimeDown: the kubelet of a node reports, and gets no answer from the
// container runtime.
var runtimeDown = &Rule{
	ID: "container-runtime-down", Explains: []*Rule{nodeNotReady}, Needs: []probes.Any{probes.Nodes, probes.Events},
	Suspects: perNode,
	Tests: []Test{{
		Asks: "does the kubelet of node {node} say that the container runtime does not answer?", Needs: []probes.Any{probes.Events},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			n, c := notReadyNode(s.Data.(*Finding))
			says := sawNodeCondition(n, c)
			if c.Status == corev1.ConditionUnknown {
				return Answered(false, says)
			}
			evidence := []Evidence{says}
			told := runtimeSays.MatchString(c.Message)
			if events, err := probes.Events.Of(facts); err == nil {
				for _, e := range events.About(Ref{Kind: "Node", Name: n.Name}) {
					if runtimeSays.MatchString(e.Message) && len(evidence) < 3 {
						at := probes.EventTime(e)
						evidence = append(evidence, Evidence{Says: fmt.Sprintf("event %s about node %s: %s", e.Reason, n.Name, strings.TrimSpace(e.Message)), Document: probes.Document{Path: "events"}, At: &at})
						told = told || !networkSays.MatchString(c.Message)
					}
				}
			}
			return Answered(told, evidence...)
		},
	}},
}

// networkAgents are the DaemonSets without which pods have no network.
// Sources: the manifests and charts of the projects.
var networkAgents = []string{
	"aws-node", "calico-node", "canal", "cilium", "kube-flannel-ds", "kube-flannel", "weave-net", "kindnet", "antrea-agent", "kube-router",
	"azure-cni", "azure-cns", "anetd", "ovnkube-node", "kube-ovn-cni", "multus", "kube-multus-ds", "rke2-canal",
}

func isNetworkAgent(ds string) bool { return slices.Contains(networkAgents, ds) }

// agentOn is the pod of a DaemonSet on a node, or nil.
func agentOn(pods *probes.PodList, node, set string) *corev1.Pod {
	for _, p := range pods.On(node) {
		if owner := probes.Controller(p); owner != nil && owner.Kind == "DaemonSet" && owner.Name == set {
			return p
		}
	}
	return nil
}

// cniDown: the network plug-in's agent does not work on the nodes on which
// pods get no network.
var cniDown = &Rule{
	ID: "network-plugin-down", Explains: []*Rule{nodeNotReady, sandboxNotCreated}, Needs: []probes.Any{probes.Nodes, probes.Pods, probes.DaemonSets},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		pods, err := probes.Pods.Of(facts)
		sets, err2 := probes.DaemonSets.Of(facts)
		if err != nil || err2 != nil {
			return nil
		}
		type hurt struct {
			effects []*Finding
			nodes   []string
			pods    []*corev1.Pod
		}
		bySet := map[Ref]*hurt{}
		take := func(node string, e *Finding) {
			for _, set := range sets.All() {
				if !isNetworkAgent(set.Name) {
					continue
				}
				p := agentOn(pods, node, set.Name)
				if p != nil && probes.Ready(p) {
					continue
				}
				r := Ref{Kind: "DaemonSet", Namespace: set.Namespace, Name: set.Name}
				if bySet[r] == nil {
					bySet[r] = &hurt{}
				}
				h := bySet[r]
				h.effects = appendOnce(h.effects, e)
				if !slices.Contains(h.nodes, node) {
					h.nodes = append(h.nodes, node)
					if p != nil {
						h.pods = append(h.pods, p)
					}
				}
			}
		}
		for _, e := range effects {
			if n, c := notReadyNode(e); n != nil {
				if networkSays.MatchString(c.Message) {
					take(n.Name, e)
				}
				continue
			}
			for _, symptom := range append([]*Finding{e}, e.Effects...) {
				for _, p := range troubled(symptom) {
					take(p.Spec.NodeName, e)
				}
			}
		}
		var found []Suspect
		for _, r := range sortedRefs(bySet) {
			h := bySet[r]
			found = append(found, Suspect{Subjects: []Ref{r}, Effects: h.effects, Data: notReadyPods(h.pods), Vars: map[string]string{"agent": r.Name, "namespace": r.Namespace, "nodes": strings.Join(h.nodes, ", ")}})
		}
		return found
	},
	Tests: []Test{{
		Asks: "does {agent} not work on {nodes}?", Needs: []probes.Any{probes.Pods, probes.Logs},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			pods := s.Data.(notReadyPods)
			evidence := []Evidence{SawObject("daemonsets.apps", s.Subjects[0].Namespace, s.Subjects[0].Name, "DaemonSet %s has no ready pod on %s", s.Subjects[0].Name, s.Vars["nodes"])}
			for _, p := range pods[:min(len(pods), maxExamples)] {
				evidence = append(evidence, agentState(facts, p)...)
			}
			return Answered(true, evidence...)
		},
	}},
}

// agentState is the state of a pod's containers that are not ready, and their
// last words.
func agentState(facts *probes.Facts, p *corev1.Pod) []Evidence {
	var list []Evidence
	for _, c := range probes.Statuses(p) {
		if !c.Ready {
			list = append(list, SawObject("pods", p.Namespace, p.Name, "pod %s on node %s: container %s %s", p.Name, p.Spec.NodeName, c.Name, stateWords(c)))
		}
	}
	if logs, err := probes.Logs.Of(facts); err == nil {
		list = append(list, lastWords(logs, p, 2)...)
	}
	return list
}

// agentsMissing: an agent that every node needs runs on none of them.
var agentsMissing = &Rule{
	ID: "node-agent-on-no-node", Needs: []probes.Any{probes.DaemonSets, probes.Nodes, probes.Pods},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		sets, err := probes.DaemonSets.Of(facts)
		nodes, err2 := probes.Nodes.Of(facts)
		pods, err3 := probes.Pods.Of(facts)
		if err != nil || err2 != nil || err3 != nil {
			return nil
		}
		var found []Suspect
		for _, set := range sets.All() {
			if set.Name != "kube-proxy" && !isNetworkAgent(set.Name) || set.Status.DesiredNumberScheduled > 0 || set.DeletionTimestamp != nil || nodes.Len() == 0 {
				continue
			}
			if slices.ContainsFunc(nodes.All(), func(n *corev1.Node) bool { return agentOn(pods, n.Name, set.Name) != nil }) || fargateOnly(nodes) {
				continue
			}
			// A cluster may leave one agent unused where another does its work.
			if slices.ContainsFunc(sets.All(), func(o *appsv1.DaemonSet) bool {
				return o != set && isNetworkAgent(o.Name) && o.Status.DesiredNumberScheduled > 0 && (isNetworkAgent(set.Name) || strings.Contains(o.Name, "cilium"))
			}) {
				continue
			}
			found = append(found, Suspect{
				Subjects: []Ref{{Kind: "DaemonSet", Namespace: set.Namespace, Name: set.Name}}, Data: set,
				Found: []Evidence{SawObject("daemonsets.apps", set.Namespace, set.Name, "DaemonSet %s/%s wants 0 of %d nodes", set.Namespace, set.Name, nodes.Len())},
			})
		}
		return found
	},
}

func fargateOnly(nodes *probes.List[corev1.Node]) bool {
	return !slices.ContainsFunc(nodes.All(), func(n *corev1.Node) bool { return n.Labels["eks.amazonaws.com/compute-type"] != "fargate" })
}

// agentSelectsNoNode: the node selector of an agent matches no node.
var agentSelectsNoNode = &Rule{
	ID: "daemonset-selects-no-node", Explains: []*Rule{agentsMissing, nameLookupsFail, targetUnreachable}, Needs: []probes.Any{probes.Nodes, probes.DaemonSets},
	Suspects: func(_ *probes.Facts, effects []*Finding) []Suspect {
		var found []Suspect
		for _, e := range effects {
			set, ok := e.Data.(*appsv1.DaemonSet)
			if !ok {
				continue
			}
			s := Suspect{Subjects: []Ref{e.Subject()}, Effects: []*Finding{e}, Data: set, Vars: map[string]string{"set": set.Name, "namespace": set.Namespace, "selector": selectorText(set.Spec.Template.Spec.NodeSelector)}}
			for _, o := range effects {
				if o.Rule == nameLookupsFail || o.Rule == targetUnreachable {
					s.Effects = append(s.Effects, o) // nothing reaches a Service without its agents
				}
			}
			found = append(found, s)
		}
		return found
	},
	Tests: []Test{{
		Asks: "does the nodeSelector of DaemonSet {set} ({selector}) match no node?", Needs: []probes.Any{probes.Nodes},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			nodes, err := probes.Nodes.Of(facts)
			if err != nil {
				return CantTell(err)
			}
			set := s.Data.(*appsv1.DaemonSet)
			selector := set.Spec.Template.Spec.NodeSelector
			says := SawObject("daemonsets.apps", set.Namespace, set.Name, "DaemonSet %s has nodeSelector %s", set.Name, selectorText(selector))
			for _, n := range nodes.All() {
				if covers(n.Labels, selector) {
					return Answered(false, says, SawObject("nodes", "", n.Name, "node %s has these labels", n.Name))
				}
			}
			return Answered(true, says, Saw("nodes", nil, "none of the %d nodes has these labels", nodes.Len()))
		},
	}},
}

// nodeFull: what uses up a node's disk, memory or processes.
var nodeFull = &Rule{
	ID: "node-runs-out", Explains: []*Rule{nodePressed}, LastResort: true, Needs: []probes.Any{probes.Pods, probes.Events},
	Suspects: func(_ *probes.Facts, effects []*Finding) []Suspect {
		var found []Suspect
		for _, e := range effects {
			n := e.Data.(*corev1.Node)
			found = append(found, Suspect{Subjects: []Ref{{Kind: "Node", Name: n.Name}}, Effects: []*Finding{e}, Data: e, Vars: map[string]string{"node": n.Name, "pressure": e.Vars["pressure"], "hint": ""}})
		}
		return found
	},
	Tests: []Test{{
		Asks: "does node {node} report {pressure}?", Needs: []probes.Any{probes.Pods},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			e := s.Data.(*Finding)
			n := e.Data.(*corev1.Node)
			evidence := slices.Clone(e.Found)
			pods, err := probes.Pods.Of(facts)
			if err != nil {
				return Answered(true, evidence...)
			}
			var unlimited []string
			for _, p := range pods.On(n.Name) {
				if probes.Finished(p) {
					if p.Status.Reason == "Evicted" && len(evidence) < 4 {
						evidence = append(evidence, SawObject("pods", p.Namespace, p.Name, "pod %s/%s was evicted: %s", p.Namespace, p.Name, p.Status.Message))
					}
					continue
				}
				for _, c := range p.Spec.Containers {
					_, limited := c.Resources.Limits[corev1.ResourceMemory]
					if s.Vars["pressure"] == string(corev1.NodeMemoryPressure) && !limited {
						unlimited = append(unlimited, p.Namespace+"/"+p.Name)
					}
				}
			}
			hint := ""
			if len(unlimited) > 0 {
				unlimited = slices.Compact(unlimited)
				hint = fmt.Sprintf(" Without a memory limit on it: %s.", strings.Join(unlimited[:min(len(unlimited), maxExamples)], ", "))
			}
			return Answered(true, evidence...).With("hint", hint)
		},
	}},
}

var infrastructureRules = []*Rule{
	agentsMissing, kubeletSilent, runtimeDown, cniDown, agentSelectsNoNode, nodeFull,
}
