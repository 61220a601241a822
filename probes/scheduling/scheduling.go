// Package scheduling recomputes, from a cluster's objects, why a pod has no
// node: per node the predicates that fail, and which change would let it in.
// It quotes no scheduler; it is pure and deterministic.
//
// The semantics are those of kube-scheduler's default plug-ins, by way of
// k8s.io/component-helpers where that has them. Not modelled: dynamic resource
// claims, CSIStorageCapacity, scheduler extenders and out-of-tree plug-ins.
package scheduling

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// A Cluster is what decides where a pod may go. A nil list is unknown and not
// empty: the predicates that need it then fail as Unknown.
type Cluster struct {
	Nodes      []*corev1.Node
	Pods       *probes.List[corev1.Pod] // all of them, with and without a node
	Namespaces *probes.List[corev1.Namespace]
	Claims     *probes.List[corev1.PersistentVolumeClaim]
	Volumes    *probes.List[corev1.PersistentVolume]
	Classes    *probes.List[storagev1.StorageClass]
	CSINodes   *probes.List[storagev1.CSINode]

	onNode map[string][]*corev1.Pod
}

// A Predicate is one of the questions that a node must pass.
type Predicate string

// The predicates. Those of the second group hold for the pod on every node.
const (
	Cordoned     Predicate = "cordoned"
	Taint        Predicate = "taint"
	NodeName     Predicate = "node-name"
	NodeSelector Predicate = "node-selector"
	NodeAffinity Predicate = "node-affinity"
	Resources    Predicate = "resources"
	HostPort     Predicate = "host-port"
	Affinity     Predicate = "pod-affinity"
	AntiAffinity Predicate = "pod-anti-affinity"
	// AntiAffinityOfOthers is a running pod that refuses this one.
	AntiAffinityOfOthers Predicate = "anti-affinity-of-others"
	Spread               Predicate = "topology-spread"
	VolumeNode           Predicate = "volume-node-affinity"
	VolumeLimit          Predicate = "volume-limit"

	Gated          Predicate = "scheduling-gate"
	ClaimMissing   Predicate = "claim-missing"
	ClaimUnbound   Predicate = "claim-unbound"
	ClaimExclusive Predicate = "claim-read-write-once-pod"
	DeviceClaims   Predicate = "resource-claims"
)

// A Failure is a predicate that a node, or the pod as a whole, doesn't pass.
type Failure struct {
	Predicate Predicate
	// Change is what would make it pass, in words that are equal for nodes
	// that need the same: "tolerate dedicated=db:NoSchedule".
	Change string
	Says   string // the particulars
	// Unknown: it can't be told whether it fails; Says names what is missing.
	Unknown bool
	// Never: even the empty node wouldn't pass.
	Never bool

	Key, Want, Have string         // label, wanted and present value; host port; topology key
	Taint           *corev1.Taint  // of Taint
	Amount          *Amount        // of Resources
	Pods            []*corev1.Pod  // that are in the way
	Claim           string         // the PersistentVolumeClaim
	Domains         map[string]int // of Spread: matching pods per domain
	Expression      *corev1.NodeSelectorRequirement
}

// On is a node with what it fails; none means that the pod fits.
type On struct {
	Node     *corev1.Node
	Failures []Failure
}

// Fits reports whether the node takes the pod, as far as is known.
func (o On) Fits() bool {
	return !slices.ContainsFunc(o.Failures, func(f Failure) bool { return !f.Unknown })
}

// A Placement is why a pod has, or hasn't, a node to go to.
type Placement struct {
	Pod     *corev1.Pod
	Blocked []Failure // of the pod on every node
	Nodes   []On      // by name
}

// Place asks every predicate of every node.
func (c *Cluster) Place(pod *corev1.Pod) *Placement {
	c.index()
	p := &Placement{Pod: pod, Blocked: c.blocked(pod)}
	affinity := c.newAffinityState(pod)
	spread := c.newSpreadState(pod)
	nodes := slices.Clone(c.Nodes)
	slices.SortFunc(nodes, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	for _, node := range nodes {
		on := On{Node: node}
		on.Failures = append(on.Failures, cordoned(pod, node)...)
		on.Failures = append(on.Failures, taints(pod, node)...)
		on.Failures = append(on.Failures, nodeLabels(pod, node)...)
		on.Failures = append(on.Failures, c.resources(pod, node)...)
		on.Failures = append(on.Failures, c.hostPorts(pod, node)...)
		on.Failures = append(on.Failures, affinity.on(node)...)
		on.Failures = append(on.Failures, spread.on(node)...)
		on.Failures = append(on.Failures, c.volumes(pod, node)...)
		p.Nodes = append(p.Nodes, on)
	}
	return p
}

func (c *Cluster) index() {
	if c.onNode != nil {
		return
	}
	c.onNode = map[string][]*corev1.Pod{}
	if c.Pods == nil {
		return
	}
	for _, p := range c.Pods.All() {
		if p.Spec.NodeName != "" && !finished(p) {
			c.onNode[p.Spec.NodeName] = append(c.onNode[p.Spec.NodeName], p)
		}
	}
}

func finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// Fitting are the nodes that would take the pod now.
func (p *Placement) Fitting() []*corev1.Node {
	if len(p.Blocked) > 0 {
		return nil
	}
	var nodes []*corev1.Node
	for _, on := range p.Nodes {
		if on.Fits() {
			nodes = append(nodes, on.Node)
		}
	}
	return nodes
}

// A Way is a smallest set of changes that would let the pod onto some nodes.
type Way struct {
	Changes  []string
	Nodes    []*corev1.Node
	Failures []Failure // those that the changes mend, on all the nodes
}

// Ways are the changes that would open a node: the fewest changes first, then
// those that open the most nodes. What blocks the pod everywhere is not among
// them. A way never has a proper part of its changes in another way.
func (p *Placement) Ways() []Way {
	byChanges := map[string]*Way{}
	for _, on := range p.Nodes {
		changes := map[string]bool{}
		for _, f := range on.Failures {
			if !f.Unknown {
				changes[f.Change] = true
			}
		}
		if len(changes) == 0 {
			continue
		}
		list := slices.Sorted(maps.Keys(changes))
		key := strings.Join(list, "\n")
		way := byChanges[key]
		if way == nil {
			way = &Way{Changes: list}
			byChanges[key] = way
		}
		way.Nodes = append(way.Nodes, on.Node)
		way.Failures = append(way.Failures, on.Failures...)
	}
	var ways []Way
	for _, way := range byChanges {
		smaller := false
		for _, other := range byChanges {
			if len(other.Changes) < len(way.Changes) && subset(other.Changes, way.Changes) {
				smaller = true
			}
		}
		if !smaller {
			ways = append(ways, *way)
		}
	}
	slices.SortFunc(ways, func(a, b Way) int {
		return cmp.Or(cmp.Compare(len(a.Changes), len(b.Changes)), cmp.Compare(len(b.Nodes), len(a.Nodes)), slices.Compare(a.Changes, b.Changes))
	})
	return ways
}

func subset(part, whole []string) bool {
	for _, s := range part {
		if !slices.Contains(whole, s) {
			return false
		}
	}
	return true
}

// Failing are the failures of one predicate on all nodes.
func (p *Placement) Failing(predicate Predicate) []Failure {
	var all []Failure
	for _, on := range p.Nodes {
		for _, f := range on.Failures {
			if f.Predicate == predicate {
				all = append(all, f)
			}
		}
	}
	return all
}

// Unknowns are what could not be told of some node or of the pod.
func (p *Placement) Unknowns() []Failure {
	var all []Failure
	for _, f := range p.Blocked {
		if f.Unknown {
			all = append(all, f)
		}
	}
	for _, on := range p.Nodes {
		for _, f := range on.Failures {
			if f.Unknown && !slices.ContainsFunc(all, func(g Failure) bool { return g.Says == f.Says }) {
				all = append(all, f)
			}
		}
	}
	return all
}

// Summary is "0 of 6 nodes: 3 × tolerate …; 3 × …": every node once under
// each change that it needs.
func (p *Placement) Summary() string {
	counts := map[string]int{}
	fit := 0
	for _, on := range p.Nodes {
		if on.Fits() {
			fit++
			continue
		}
		seen := map[string]bool{}
		for _, f := range on.Failures {
			if !f.Unknown && !seen[f.Change] {
				seen[f.Change] = true
				counts[f.Change]++
			}
		}
	}
	changes := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	var parts []string
	for _, b := range p.Blocked {
		if !b.Unknown {
			parts = append(parts, b.Says)
		}
	}
	for _, change := range changes {
		parts = append(parts, fmt.Sprintf("%d would take it if one could %s", counts[change], change))
	}
	s := fmt.Sprintf("%d of %d nodes can take the pod", fit, len(p.Nodes))
	if len(p.Blocked) > 0 && fit > 0 {
		s = fmt.Sprintf("%d of %d nodes could take the pod, but it is held back", fit, len(p.Nodes))
	}
	if len(parts) > 0 {
		s += ": " + strings.Join(parts, "; ")
	}
	return s
}
