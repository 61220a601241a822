package diagnose

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

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

var infrastructureRules = []*Rule{agentsMissing, agentSelectsNoNode, webhookCutOff, proxyAbsent}
