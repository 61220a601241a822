package diagnose

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/scheduling"
)

// labelsMatchNoNode: the nodeSelector or required node affinity matches no
// node, and no NodePool could make one that it matches.
var labelsMatchNoNode = placementRule("node-labels-match-no-node", "does no node, and no NodePool, have the labels that pod {pod} demands of its node?",
	byLabels, false, []scheduling.Predicate{scheduling.NodeSelector, scheduling.NodeAffinity}, func(c pendingCase) told {
		f := c.failures[0]
		t := told{[]Ref{c.workload}, map[string]string{"wanted": strings.Join(c.wanted(), ", "), "field": fieldOf(f), "near": "", "wantedLabel": f.Key + "=" + f.Want}, nil}
		if f.Key == "" {
			return t
		}
		near, evidence := c.nearestLabel(f)
		t.vars["near"] = near
		t.evidence = append(t.evidence, evidence...)
		// A pod that demanded the same and runs shows that the label was there.
		if nodes, says := c.lostLabel(f); len(nodes) > 0 {
			t.subjects = append(nodes, c.workload)
			t.vars["near"] = " " + says
			t.evidence = append(t.evidence, Saw("nodes", nil, "%s", says))
		}
		return t
	})

// wanted is what the decisive failures ask of a node.
func (p *placement) wanted() []string {
	var list []string
	for _, change := range p.changes() {
		for _, prefix := range []string{"match nodeSelector ", "match the node affinity ", "drop "} {
			change = strings.TrimPrefix(change, prefix)
		}
		list = append(list, change)
	}
	return list
}

func fieldOf(f scheduling.Failure) string {
	switch f.Predicate {
	case scheduling.NodeAffinity:
		return "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
	case scheduling.NodeName:
		return "nodeName"
	}
	return "nodeSelector"
}

// nearestLabel says what the nodes have instead of the wanted label.
func (c pendingCase) nearestLabel(f scheduling.Failure) (near string, evidence []Evidence) {
	values := map[string]int{}
	var keys, pairs []string
	for _, n := range c.x.cluster.Nodes {
		for key, value := range n.Labels {
			keys = append(keys, key)
			pairs = append(pairs, key+"="+value)
			if key == f.Key {
				values[value]++
			}
		}
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	if len(values) == 0 {
		says := fmt.Sprintf("No node has a label %s.", f.Key)
		if key := nearest(f.Key, keys); key != "" {
			says += fmt.Sprintf(" There is a label %s.", key)
		} else if other := otherKeyWith(f.Want, pairs); other != "" {
			says += fmt.Sprintf(" There is %s.", other)
		}
		return " " + says, []Evidence{Saw("nodes", nil, "%s", says)}
	}
	var list []string
	for _, v := range sortedKeys(values) {
		list = append(list, fmt.Sprintf("%s=%s (%d)", f.Key, v, values[v]))
	}
	if len(list) > 6 {
		list = append(list[:6], "…")
	}
	says := "The nodes have " + strings.Join(list, ", ") + "."
	if v := nearest(f.Want, sortedKeys(values)); v != "" {
		says += fmt.Sprintf(" The nearest is %s=%s.", f.Key, v)
	}
	return " " + says, []Evidence{Saw("nodes", nil, "%s", says)}
}

// otherKeyWith is a label with the wanted value under another key.
func otherKeyWith(value string, pairs []string) string {
	slices.Sort(pairs)
	for _, p := range pairs {
		if _, v, _ := strings.Cut(p, "="); v == value && len(value) > 3 {
			return p
		}
	}
	return ""
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// lostLabel are nodes on which pods run that demanded the same label, which
// the nodes have no more.
func (c pendingCase) lostLabel(f scheduling.Failure) (nodes []Ref, says string) {
	for _, n := range c.x.cluster.Nodes {
		for _, p := range c.x.cluster.OnNode(n.Name) {
			demands := p.Spec.NodeSelector[f.Key] == f.Want && f.Want != "" || f.Predicate == scheduling.NodeAffinity && c.x.workloads.Of(p) == c.workload
			if demands && !scheduling.RequiredAffinityMatches(p, n) {
				nodes = append(nodes, Ref{Kind: "Node", Name: n.Name})
				if says == "" {
					says = fmt.Sprintf("Pod %s/%s, which demands %s too, runs on node %s, which doesn't have it any more: the label was removed or changed.", p.Namespace, p.Name, strings.Join(c.wanted(), ", "), n.Name)
				}
				break
			}
		}
	}
	slices.SortFunc(nodes, probes.CompareRefs)
	return nodes, says
}

// taintNotTolerated: all nodes that are meant for the pods have a taint that
// they don't tolerate. Who is to change depends on which came last.
var taintNotTolerated = placementRule("taint-not-tolerated", "does every node that is meant for pod {pod} have a taint that it doesn't tolerate?",
	byTaint, false, []scheduling.Predicate{scheduling.Taint}, func(c pendingCase) told {
		var taints []string
		for _, f := range c.failures {
			if s := scheduling.TaintString(f.Taint); !slices.Contains(taints, s) {
				taints = append(taints, s)
			}
		}
		slices.Sort(taints)
		nodes := c.refs()
		t := told{[]Ref{c.workload}, map[string]string{"taints": strings.Join(taints, ", "), "nodes": names(nodes), "nodeArgs": args(nodes), "side": "", "key": c.failures[0].Key}, nil}
		if says := c.taintCameLater(); says != "" {
			t.subjects = append(nodes, c.workload)
			t.vars["side"] = " " + says
			t.evidence = []Evidence{Saw("nodes", nil, "%s", says)}
		} else if says := c.almostTolerated(); says != "" {
			t.vars["side"] = " " + says
			t.evidence = []Evidence{SawObject("pods", c.pod.Namespace, c.pod.Name, "%s", says)}
		}
		return t
	})

// taintCameLater says why it is the taint that is out of place and not a
// toleration that is missing: pods without one run there still, or nothing in
// the cluster was ever made to go there.
func (c pendingCase) taintCameLater() string {
	if len(c.refs()) == 0 || slices.ContainsFunc(c.units, func(u unit) bool { return u.pool != nil }) || c.almostTolerated() != "" {
		return "" // a pool's taints are deliberate, and so is a toleration with a typo
	}
	for _, f := range c.failures {
		if f.Key == "nvidia.com/gpu" || strings.HasPrefix(f.Key, "node-role.kubernetes.io/") {
			return ""
		}
	}
	for _, u := range c.units {
		for _, p := range c.x.cluster.OnNode(u.node.Name) {
			if scheduling.OfDaemonSet(p) || probes.Controller(p) == nil {
				continue
			}
			for _, f := range u.fails(scheduling.Taint) {
				if !toleratesKey(p, f.Taint) {
					return fmt.Sprintf("Pod %s/%s runs on node %s without a toleration for %s: the taint came after it.", p.Namespace, p.Name, u.node.Name, scheduling.TaintString(f.Taint))
				}
			}
		}
	}
	if len(c.pod.Spec.NodeSelector) > 0 || c.pod.Spec.Affinity != nil && c.pod.Spec.Affinity.NodeAffinity != nil && c.pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		return "" // it wants these nodes and no others: its toleration is what is missing
	}
	for _, p := range c.x.cluster.Pods.All() {
		if scheduling.OfDaemonSet(p) {
			continue
		}
		for _, f := range c.failures {
			for _, tol := range p.Spec.Tolerations {
				if tol.Key == f.Key {
					return "" // made for somebody
				}
			}
		}
	}
	return "No workload in the cluster has a toleration for it."
}

func toleratesKey(p *corev1.Pod, taint *corev1.Taint) bool {
	return slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool { return t.Key == "" || t.Key == taint.Key })
}

// almostTolerated says which toleration of the pod misses a taint narrowly.
func (c pendingCase) almostTolerated() string {
	for _, f := range c.failures {
		for _, t := range c.pod.Spec.Tolerations {
			has := fmt.Sprintf("%s %s %s:%s", t.Key, orDefault(string(t.Operator), "Equal"), t.Value, orDefault(string(t.Effect), "any effect"))
			if t.Key == f.Key || t.Key != "" && nearest(t.Key, []string{f.Key}) != "" && !strings.HasPrefix(t.Key, "node.kubernetes.io/") {
				return fmt.Sprintf("Its toleration %s misses the taint %s.", has, scheduling.TaintString(f.Taint))
			}
		}
	}
	return ""
}

func orDefault(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// startupTaintStays: nodes keep a taint that somebody was to take away once
// they are set up.
var startupTaintStays = &Rule{
	ID: "startup-taint-not-removed", Explains: []*Rule{podPending}, Needs: []probes.Any{placements, probes.Workloads},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		var suspects []Suspect
		for _, c := range pendingCases(facts, effects) {
			if c.reason != byStartupTaint {
				continue
			}
			taint := c.failures[0].Taint
			s := Suspect{Subjects: c.refs(), Effects: []*Finding{c.effect}, Data: c, Vars: map[string]string{
				"pod": c.pod.Name, "podNamespace": c.pod.Namespace, "nodeArgs": args(c.refs()), "taint": scheduling.TaintString(taint), "key": taint.Key, "nodes": names(c.refs()), "remover": remover(taint.Key), "misplaced": "",
			}}
			if pool := c.misplacedTaint(taint.Key); pool != "" {
				s.Subjects = append([]Ref{{Kind: "NodePool", Name: pool}}, s.Subjects...)
				s.Vars["misplaced"] = fmt.Sprintf(" NodePool %s has it under spec.template.spec.taints and not under startupTaints, so Karpenter waits for pods to tolerate it.", pool)
				s.Found = []Evidence{SawObject("nodepools.karpenter.sh", "", pool, "NodePool %s lists %s under taints", pool, taint.Key)}
			}
			suspects = append(suspects, s)
		}
		return merged(suspects)
	},
	Tests: []Test{{
		Asks: "do nodes {nodes} keep the taint {taint}, which is to go when they are set up, long after they joined?", Needs: []probes.Any{placements},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			c := s.Data.(pendingCase)
			if c.err != nil {
				return CantTell(c.err, c.evidence()...)
			}
			if c.misplacedTaint(c.failures[0].Key) != "" {
				return Answered(true, c.evidence()...)
			}
			now := facts.Source().Now()
			for _, u := range c.units {
				if u.node != nil && now.Sub(u.node.CreationTimestamp.Time) < 2*unscheduled {
					return Answered(false, SawObject("nodes", "", u.node.Name, "node %s joined only at %s", u.node.Name, u.node.CreationTimestamp.UTC().Format(time.RFC3339)))
				}
			}
			return Answered(true, c.evidence()...)
		},
	}},
}

// misplacedTaint is the NodePool that has a startup taint among its plain taints.
func (c pendingCase) misplacedTaint(key string) string {
	for _, u := range c.units {
		if u.pool != nil && slices.ContainsFunc(u.pool.Spec.Template.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key }) {
			return u.pool.Name
		}
	}
	return ""
}

// remover is who takes a startup taint away.
func remover(key string) string {
	switch {
	case key == "node.cloudprovider.kubernetes.io/uninitialized":
		return "the cloud controller manager"
	case key == "karpenter.sh/unregistered":
		return "Karpenter, when it registers the node"
	case strings.HasPrefix(key, "node.cilium.io/"):
		return "Cilium's agent on the node"
	case strings.Contains(key, "csi"):
		return "the node pods of the CSI driver " + strings.TrimSuffix(key, "/agent-not-ready")
	}
	return "the agent that the taint is named after"
}

// volumeElsewhere: the pods' volume is where none of their nodes is.
var volumeElsewhere = placementRule("volume-where-no-node-is", "is the volume of pod {pod} out of reach from every node that is meant for it?",
	byVolume, false, []scheduling.Predicate{scheduling.VolumeNode}, func(c pendingCase) told {
		f := c.failures[0]
		claim := Ref{Kind: "PersistentVolumeClaim", Namespace: c.pod.Namespace, Name: f.Claim}
		t := told{[]Ref{claim, c.workload}, map[string]string{"claim": f.Claim, "says": f.Says, "wants": f.Key + "=" + f.Want, "side": ""}, nil}
		// Nodes that the volume can be reached from, but the pod's own demands exclude.
		var there []string
		for _, on := range c.on.Nodes {
			only := unit{node: on.Node, failures: on.Failures}
			if len(only.fails(scheduling.VolumeNode)) == 0 && len(only.fails(scheduling.NodeSelector, scheduling.NodeAffinity)) > 0 {
				there = append(there, on.Node.Name)
			}
		}
		if len(there) > 0 {
			t.subjects = []Ref{c.workload, claim}
			t.vars["side"] = fmt.Sprintf(" Nodes %s could reach it, but the pod's own nodeSelector or affinity excludes them.", strings.Join(there[:min(3, len(there))], ", "))
		}
		t.evidence = []Evidence{SawObject("persistentvolumeclaims", c.pod.Namespace, f.Claim, "%s", f.Says)}
		if says := c.zonesApart(); says != "" {
			t.vars["side"] = " " + says
			t.evidence = append(t.evidence, Saw("persistentvolumes", nil, "%s", says))
		}
		return t
	})

// zonesApart says where the pod's volumes are, if no zone has them all.
func (c pendingCase) zonesApart() string {
	if c.x.cluster.Claims == nil || c.x.cluster.Volumes == nil {
		return ""
	}
	var common, parts []string
	for _, name := range scheduling.ClaimNames(c.pod) {
		claim := c.x.cluster.Claims.Get(c.pod.Namespace, name)
		if claim == nil {
			continue
		}
		volume := c.x.cluster.Volumes.Get("", claim.Spec.VolumeName)
		if volume == nil || len(scheduling.VolumeZones(volume)) == 0 {
			continue
		}
		zones := scheduling.VolumeZones(volume)
		if parts == nil {
			common = zones
		}
		common = slices.DeleteFunc(slices.Clone(common), func(z string) bool { return !slices.Contains(zones, z) })
		parts = append(parts, fmt.Sprintf("%s in %s (StorageClass %s)", name, strings.Join(zones, "/"), scheduling.ClassOfClaim(claim)))
	}
	if len(parts) < 2 || len(common) > 0 {
		return ""
	}
	return "Its claims are in different zones, so no node can reach them all: " + strings.Join(parts, ", ") + ". A class with volumeBindingMode Immediate makes each volume before a node is chosen."
}
