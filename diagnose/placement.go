package diagnose

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/scheduling"
)

// placements says for every pod without a node why it has none, recomputed.
// It reads volumes, node pools and the like only where a pod depends on them.
var placements = &probes.Probe[*placementIndex]{
	Name:  "placements",
	About: "why each pending pod has no node, recomputed per predicate, node and NodePool",
	Reads: slices.Concat(
		probes.Claims.Reads, probes.Volumes.Reads, probes.StorageClasses.Reads, probes.CSINodes.Reads, probes.Namespaces.Reads,
		probes.ReplicaSets.Reads, probes.NodePools.Reads, probes.NodeClaims.Reads, probes.EC2NodeClasses.Reads, probes.DaemonSets.Reads,
	),
	After: []probes.Any{probes.Pods, probes.Nodes, probes.Workloads, probes.Events},
	Gather: func(ctx context.Context, _ probes.Source, known *probes.Facts) (*placementIndex, error) {
		pods, err := probes.Pods.Of(known)
		if err != nil {
			return nil, err
		}
		nodes, err := probes.Nodes.Of(known)
		if err != nil {
			return nil, err
		}
		workloads, err := probes.Workloads.Of(known)
		if err != nil {
			return nil, err
		}
		waiting := pods.Where(pending)
		x := &placementIndex{of: map[*corev1.Pod]*placement{}, workloads: workloads}
		x.cluster = &scheduling.Cluster{Nodes: nodes.All(), Pods: pods.List}
		c := x.cluster
		if slices.ContainsFunc(waiting, func(p *corev1.Pod) bool { return len(scheduling.ClaimNames(p)) > 0 }) {
			c.Claims = optional(ctx, known, x, probes.Claims)
			c.Volumes = optional(ctx, known, x, probes.Volumes)
			c.Classes = optional(ctx, known, x, probes.StorageClasses)
			c.CSINodes, x.limitsErr = probes.CSINodes.Ask(ctx, known)
		}
		if slices.ContainsFunc(waiting, selectsNamespaces) {
			c.Namespaces = optional(ctx, known, x, probes.Namespaces)
		}
		x.events, _ = probes.Events.Of(known) // they only say more than the pods' conditions
		x.karpenter, x.karpenterErr = readKarpenter(ctx, known, c)
		for _, p := range waiting {
			x.of[p] = x.place(p)
			if owner := metav1.GetControllerOf(p); owner != nil && owner.Kind == "ReplicaSet" && x.of[p].reason == byTooLarge && x.replicaSets == nil {
				x.replicaSets, _ = probes.ReplicaSets.Ask(ctx, known) // they only say since when it asks for that
			}
		}
		return x, nil
	},
}

// optional reads a list; where it can't be had it is nil, which the scheduling
// package takes for unknown, and the gap is kept.
func optional[T any](ctx context.Context, known *probes.Facts, x *placementIndex, p *probes.Probe[*probes.List[T]]) *probes.List[T] {
	list, err := p.Ask(ctx, known)
	if err != nil {
		x.missing = append(x.missing, err)
		return nil
	}
	return list
}

func pending(p *corev1.Pod) bool {
	return p.Spec.NodeName == "" && p.DeletionTimestamp == nil && !probes.Finished(p)
}

func selectsNamespaces(p *corev1.Pod) bool {
	if p.Spec.Affinity == nil {
		return false
	}
	var terms []corev1.PodAffinityTerm
	if a := p.Spec.Affinity.PodAffinity; a != nil {
		terms = append(terms, a.RequiredDuringSchedulingIgnoredDuringExecution...)
	}
	if a := p.Spec.Affinity.PodAntiAffinity; a != nil {
		terms = append(terms, a.RequiredDuringSchedulingIgnoredDuringExecution...)
	}
	return slices.ContainsFunc(terms, func(t corev1.PodAffinityTerm) bool { return t.NamespaceSelector != nil })
}

// readKarpenter is Karpenter's state, or nil where there is no sign of it. An
// error means that it is there and can't be read.
func readKarpenter(ctx context.Context, known *probes.Facts, c *scheduling.Cluster) (*scheduling.Karpenter, error) {
	pools, err := probes.NodePools.Ask(ctx, known)
	if err != nil {
		var gap *probes.Gap
		if errors.As(err, &gap) && gap.Reason == probes.NotCaptured && len(c.Nodes) > 0 && !karpenterSigns(c) {
			return nil, nil
		}
		return nil, err
	}
	if pools.Len() == 0 {
		return nil, nil
	}
	k := &scheduling.Karpenter{Pools: pools, Nodes: c.Nodes, Cluster: c}
	// These only sharpen what is known of the pools.
	k.Claims, _ = probes.NodeClaims.Ask(ctx, known)
	k.NodeClasses, _ = probes.EC2NodeClasses.Ask(ctx, known)
	k.DaemonSets, _ = probes.DaemonSets.Ask(ctx, known)
	return k, nil
}

// karpenterSigns reports whether nodes or pods show that Karpenter is in use.
func karpenterSigns(c *scheduling.Cluster) bool {
	for _, n := range c.Nodes {
		if n.Labels["karpenter.sh/nodepool"] != "" {
			return true
		}
	}
	return slices.ContainsFunc(c.Pods.All(), func(p *corev1.Pod) bool {
		return p.Labels["app.kubernetes.io/name"] == "karpenter" || slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool { return strings.Contains(c.Image, "karpenter/controller") })
	})
}

type placementIndex struct {
	cluster      *scheduling.Cluster
	karpenter    *scheduling.Karpenter
	karpenterErr error
	missing      []error // lists that could not be had
	limitsErr    error   // why the attach limits could not be had: they matter only where nothing else decides
	workloads    *probes.WorkloadIndex
	events       *probes.EventList
	replicaSets  *probes.List[appsv1.ReplicaSet] // nil: not read
	of           map[*corev1.Pod]*placement
}

// A reason is the kind of thing that decides that a pod has no node.
type reason string

const (
	byLabels       reason = "labels"        // nodeSelector or node affinity
	byVolume       reason = "volume"        // where its volume is
	byTaint        reason = "taint"         // somebody's taint
	byStartupTaint reason = "startup-taint" // a taint that was to be removed
	byNotReady     reason = "not-ready"     // the node controller's taints
	byCordon       reason = "cordon"
	byTooLarge     reason = "too-large"
	byNoRoom       reason = "no-room"
	byHostPort     reason = "host-port"
	byAntiAffinity reason = "anti-affinity"
	byAffinity     reason = "affinity"
	bySpread       reason = "spread"
	byAttachLimit  reason = "attach-limit"
	byGate         reason = "gate"
	byClaim        reason = "claim"
	byClaimMissing reason = "claim-missing"
	byExclusive    reason = "claim-exclusive"
	byPoolLimits   reason = "nodepool-limits"
	byPoolNotReady reason = "nodepool-not-ready"
	byPoolRules    reason = "nodepool-rules"    // what a NodePool says of the nodes that it makes
	byKarpenter    reason = "karpenter"         // a NodePool would serve it
	byBranch       reason = "branch-interfaces" // no node offers the interfaces of Security Groups for Pods
	byScheduler    reason = "scheduler"         // a node would take it, and no scheduler looked
	byNoNodes      reason = "no-nodes"
	byNothing      reason = "nothing" // a node would take it, though a scheduler says no
)

// A placement is a pod with what decides its case.
type placement struct {
	pod      *corev1.Pod
	on       *scheduling.Placement
	pools    []scheduling.OnPool
	says     string // the scheduler's own account of its last try; empty where none is kept
	tried    bool   // a scheduler has tried the pod
	reason   reason
	failures []scheduling.Failure // those of the reason
	units    []unit               // the nodes and pools on which it decides
	err      error                // why it can't be told; the reason is then a guess at best
}

// A unit is a node, or a NodePool as the node that it could make.
type unit struct {
	node     *corev1.Node
	pool     *probes.NodePool
	failures []scheduling.Failure
}

func (u unit) ref() Ref {
	if u.pool != nil {
		return Ref{Kind: "NodePool", Name: u.pool.Name}
	}
	return Ref{Kind: "Node", Name: u.node.Name}
}

// fails are the unit's certain failures, those of some predicates if given.
func (u unit) fails(predicates ...scheduling.Predicate) []scheduling.Failure {
	var list []scheduling.Failure
	for _, f := range u.failures {
		if !f.Unknown && (len(predicates) == 0 || slices.Contains(predicates, f.Predicate)) {
			list = append(list, f)
		}
	}
	return list
}

func (x *placementIndex) place(pod *corev1.Pod) *placement {
	p := &placement{pod: pod, on: x.cluster.Place(pod), says: schedulerSays(pod)}
	if c := probes.PodCondition(pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		p.tried = true
	}
	if x.events != nil {
		for _, e := range x.events.About(podRef(pod)) {
			if e.Reason == "FailedScheduling" {
				p.tried = true
				if p.says == "" || e.Source.Component != "karpenter" && e.ReportingController != "karpenter" {
					p.says = e.Message
				}
			}
		}
	}
	if x.karpenter != nil {
		p.pools = x.karpenter.Place(pod)
	}
	x.decide(p)
	// What a NodePool could do matters only where nodes decide.
	if p.err == nil && !slices.Contains([]reason{byGate, byClaim, byClaimMissing, byExclusive, byScheduler}, p.reason) {
		p.err = x.karpenterErr
	}
	if p.err == nil && p.reason == byNothing {
		p.err = fmt.Errorf("by all that is recomputed %s", p.on.Summary())
	}
	if p.err == nil && contradicted(p) {
		p.err = fmt.Errorf("the scheduler itself names other reasons: %s", p.says)
	}
	return p
}
