package diagnose

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

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
		probes.NodePools.Reads, probes.NodeClaims.Reads, probes.EC2NodeClasses.Reads, probes.DaemonSets.Reads,
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
	byKarpenter    reason = "karpenter" // a NodePool would serve it
	byScheduler    reason = "scheduler" // a node would take it, and no scheduler looked
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

// decide narrows the nodes and NodePools down to those that are meant for the
// pod, step by step: labels, volumes, taints. The step that leaves none is the
// reason; else it is what those that are left fail.
func (x *placementIndex) decide(p *placement) {
	for _, order := range []struct {
		predicate scheduling.Predicate
		reason    reason
	}{{scheduling.Gated, byGate}, {scheduling.ClaimMissing, byClaimMissing}, {scheduling.ClaimUnbound, byClaim}, {scheduling.ClaimExclusive, byExclusive}} {
		for _, f := range p.on.Blocked {
			if f.Predicate == order.predicate {
				p.reason, p.failures = order.reason, append(p.failures, f)
				if f.Unknown {
					p.err = cmp.Or(errors.Join(x.missing...), errors.New(f.Says))
				}
			}
		}
		if p.reason != "" {
			return
		}
	}
	units := x.suitable(p)
	if len(units) == 0 {
		p.reason = byNoNodes
		return
	}
	if x.fitting(p, units) {
		return
	}
	labelled := without(units, scheduling.NodeSelector, scheduling.NodeAffinity, scheduling.NodeName)
	if len(labelled) == 0 {
		p.settle(byLabels, nearestUnits(units), scheduling.NodeSelector, scheduling.NodeAffinity, scheduling.NodeName)
		return
	}
	reachable := without(labelled, scheduling.VolumeNode)
	if len(reachable) == 0 {
		p.settle(byVolume, labelled, scheduling.VolumeNode)
		return
	}
	meant := without(reachable, scheduling.Taint)
	if len(meant) == 0 {
		p.byTaints(reachable, x.startupTaints())
		return
	}
	if shut := shutPools(units, meant); len(shut) > 0 {
		p.settle(byTaint, shut, scheduling.Taint)
		return
	}
	p.byWhatIsLeft(meant, x.workloads.Pods(x.workloads.Of(p.pod)))
}

// shutPools are the NodePools whose own nodes are meant for the pod and full,
// while the nodes that they would make now carry a taint that it does not
// tolerate: the taint came later, and it, not the full nodes, keeps the pod out.
func shutPools(units, meant []unit) []unit {
	if slices.ContainsFunc(meant, func(u unit) bool { return u.pool != nil }) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(units), func(u unit) bool {
		if u.pool == nil || len(u.fails(scheduling.Taint)) == 0 || len(u.fails(scheduling.Taint)) != len(u.fails()) {
			return true
		}
		return !slices.ContainsFunc(meant, func(n unit) bool {
			r, ok := single(n)
			return ok && r == byNoRoom && n.node.Labels["karpenter.sh/nodepool"] == u.pool.Name
		})
	})
}

// suitable are the nodes and pools that anybody would expect to take the pod:
// not Fargate's, not those on their way out, and not the control plane unless
// there is nothing else.
func (x *placementIndex) suitable(p *placement) []unit {
	var units, reserve []unit
	for _, on := range p.on.Nodes {
		u := unit{node: on.Node, failures: on.Failures}
		leaving := on.Node.DeletionTimestamp != nil
		control := false
		for _, f := range u.fails(scheduling.Taint) {
			switch f.Key {
			case "eks.amazonaws.com/compute-type", "karpenter.sh/disrupted", "karpenter.sh/disruption", "ToBeDeletedByClusterAutoscaler", "DeletionCandidateOfClusterAutoscaler":
				leaving = true
			case "node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master", "node-role.kubernetes.io/etcd":
				control = true
			}
		}
		switch {
		case leaving:
		case control:
			reserve = append(reserve, u)
		default:
			units = append(units, u)
		}
	}
	for _, on := range p.pools {
		// A pool of a fixed size makes no nodes for pods.
		if u := (unit{pool: on.Pool, failures: on.Failures}); len(u.fails(scheduling.PoolStatic)) == 0 {
			units = append(units, u)
		}
	}
	if len(units) == 0 {
		return reserve
	}
	return units
}

// fitting decides the case of a pod that something would take.
func (x *placementIndex) fitting(p *placement, units []unit) bool {
	fit := slices.DeleteFunc(slices.Clone(units), func(u unit) bool { return len(u.fails()) > 0 })
	if len(fit) == 0 {
		return false
	}
	p.units = fit
	for _, u := range fit {
		if len(u.failures) > 0 {
			continue
		}
		switch {
		case u.pool != nil && p.reason == "":
			p.reason = byKarpenter
			x.undoneAct(p, units)
		case u.node != nil && waitsForVolume(x.cluster, p.pod):
			p.reason = byClaim
		case u.node != nil && !p.tried:
			p.reason = byScheduler
		case u.node != nil:
			p.reason = byNothing
			p.err = fmt.Errorf("node %s would take pod %s by all that is recomputed, but the scheduler says: %s", u.node.Name, p.pod.Name, p.says)
			if len(scheduling.ClaimNames(p.pod)) > 0 && x.limitsErr != nil {
				p.err = x.limitsErr
			}
		}
	}
	if p.reason == "" { // all that fit do so only as far as is known
		f := fit[0].failures[0]
		p.reason = byNothing
		p.err = cmp.Or(errors.Join(slices.Concat(x.missing, []error{x.karpenterErr})...), errors.New(f.Says))
	}
	if p.reason == byClaim {
		for _, name := range scheduling.ClaimNames(p.pod) {
			if c := x.cluster.Claims.Get(p.pod.Namespace, name); c != nil && c.Status.Phase != corev1.ClaimBound {
				p.failures = append(p.failures, scheduling.Failure{Predicate: scheduling.ClaimUnbound, Claim: name, Says: fmt.Sprintf("PersistentVolumeClaim %s/%s has a node and no volume yet", p.pod.Namespace, name)})
			}
		}
	}
	return true
}

// undoneAct looks past the NodePool that would serve a pod and yet has not:
// where undoing what somebody did to the nodes would be enough, that decides.
func (x *placementIndex) undoneAct(p *placement, units []unit) {
	nodes := &placement{pod: p.pod, on: p.on}
	for _, r := range []scheduling.Predicate{scheduling.Cordoned, scheduling.Taint} {
		for _, u := range units {
			if f := u.fails(); u.node != nil && len(f) > 0 && len(f) == len(u.fails(r)) {
				nodes.units = append(nodes.units, u)
				nodes.failures = append(nodes.failures, f...)
			}
		}
		if len(nodes.units) == 0 {
			continue
		}
		if nodes.reason = byCordon; r == scheduling.Taint {
			nodes.reason = byTaint
			c := pendingCase{workload: x.workloads.Of(p.pod), placement: nodes, x: x}
			if slices.ContainsFunc(nodes.failures, func(f scheduling.Failure) bool { return notReadyTaint(f.Key) || x.startupTaints()(f.Key) }) || c.taintCameLater() == "" {
				return
			}
		}
		p.reason, p.units, p.failures = nodes.reason, nodes.units, nodes.failures
		return
	}
}

// waitsForVolume reports whether the scheduler has chosen a node already and
// waits for a volume to be made there.
func waitsForVolume(c *scheduling.Cluster, pod *corev1.Pod) bool {
	if c.Claims == nil {
		return false
	}
	for _, name := range scheduling.ClaimNames(pod) {
		claim := c.Claims.Get(pod.Namespace, name)
		if claim != nil && claim.Status.Phase != corev1.ClaimBound && claim.Annotations["volume.kubernetes.io/selected-node"] != "" {
			return true
		}
	}
	return false
}

func without(units []unit, predicates ...scheduling.Predicate) []unit {
	return slices.DeleteFunc(slices.Clone(units), func(u unit) bool { return len(u.fails(predicates...)) > 0 })
}

// nearestUnits are the units that lack the fewest labels.
func nearestUnits(units []unit) []unit {
	least := 1 << 30
	count := func(u unit) int {
		return len(u.fails(scheduling.NodeSelector, scheduling.NodeAffinity, scheduling.NodeName))
	}
	for _, u := range units {
		least = min(least, count(u))
	}
	return slices.DeleteFunc(slices.Clone(units), func(u unit) bool { return count(u) > least })
}

func (p *placement) settle(r reason, units []unit, predicates ...scheduling.Predicate) {
	p.reason, p.units = r, units
	for _, u := range units {
		p.failures = append(p.failures, u.fails(predicates...)...)
	}
}

// byTaints tells whose taints keep the pod out: nodes that are only down or
// not yet set up are the ones that are meant for it.
func (p *placement) byTaints(units []unit, startup func(string) bool) {
	kind := func(key string) reason {
		switch {
		case notReadyTaint(key):
			return byNotReady
		case startup(key):
			return byStartupTaint
		}
		return byTaint
	}
	for _, r := range []reason{byStartupTaint, byNotReady} {
		only := slices.DeleteFunc(slices.Clone(units), func(u unit) bool {
			return slices.ContainsFunc(u.fails(scheduling.Taint), func(f scheduling.Failure) bool {
				k := kind(f.Key)
				return k == byTaint || r == byNotReady && k != byNotReady
			})
		})
		// A new node has both taints at first; what stays is the startup taint.
		if r == byStartupTaint {
			only = slices.DeleteFunc(only, func(u unit) bool {
				return !slices.ContainsFunc(u.fails(scheduling.Taint), func(f scheduling.Failure) bool { return kind(f.Key) == byStartupTaint })
			})
		}
		if len(only) > 0 {
			p.settle(r, only, scheduling.Taint)
			return
		}
	}
	p.settle(byTaint, units, scheduling.Taint)
}

// notReadyTaint reports whether the node controller sets the taint for a
// node's condition. Source: kubernetes.io/docs/reference/labels-annotations-taints.
func notReadyTaint(key string) bool {
	switch key {
	case corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeMemoryPressure, corev1.TaintNodeDiskPressure,
		corev1.TaintNodePIDPressure, corev1.TaintNodeNetworkUnavailable, corev1.TaintNodeOutOfService, "node.cloudprovider.kubernetes.io/shutdown":
		return true
	}
	return false
}

// startupTaints reports which taints are put on new nodes for somebody to take
// away. Sources: kubernetes.io/docs/reference/labels-annotations-taints,
// karpenter.sh/docs (startupTaints), docs.cilium.io, the CSI drivers' docs.
func (x *placementIndex) startupTaints() func(string) bool {
	var own []string
	if x.karpenter != nil {
		for _, p := range x.karpenter.Pools.All() {
			for _, t := range p.Spec.Template.Spec.StartupTaints {
				own = append(own, t.Key)
			}
		}
	}
	return func(key string) bool {
		return key == "node.cloudprovider.kubernetes.io/uninitialized" || key == "karpenter.sh/unregistered" ||
			strings.HasSuffix(key, "/agent-not-ready") || strings.HasSuffix(key, "/not-ready") && key != corev1.TaintNodeNotReady || slices.Contains(own, key)
	}
}

// takesMost reports whether one node for the pod would take more than half of
// a pool's limit: then the pod asks for too much rather than the pool for too
// little.
func takesMost(f scheduling.Failure) bool {
	if f.Amount == nil || f.Key == "nodes" {
		return false
	}
	twice := f.Amount.Asked.DeepCopy()
	twice.Add(f.Amount.Asked)
	return twice.Cmp(f.Amount.Allocatable) > 0
}

// byWhatIsLeft decides among the nodes and pools that are meant for the pod.
func (p *placement) byWhatIsLeft(meant []unit, siblings []*corev1.Pod) {
	pools := slices.DeleteFunc(slices.Clone(meant), func(u unit) bool { return u.pool == nil })
	nodes := slices.DeleteFunc(slices.Clone(meant), func(u unit) bool { return u.node == nil })
	tooLarge := func(u unit) bool {
		if u.pool != nil && len(nodes) > 0 && slices.ContainsFunc(u.fails(scheduling.PoolLimits), takesMost) {
			return true
		}
		return slices.ContainsFunc(u.fails(scheduling.Resources, scheduling.InstanceTypes), func(f scheduling.Failure) bool { return f.Never })
	}
	if !slices.ContainsFunc(meant, func(u unit) bool { return !tooLarge(u) }) {
		p.settle(byTooLarge, meant, scheduling.Resources, scheduling.InstanceTypes)
		return
	}
	// Where Karpenter could make a node, why it may not is what decides.
	for _, by := range []struct {
		predicate scheduling.Predicate
		reason    reason
	}{{scheduling.PoolLimits, byPoolLimits}, {scheduling.PoolNotReady, byPoolNotReady}} {
		only := slices.DeleteFunc(slices.Clone(pools), func(u unit) bool {
			return len(u.fails(by.predicate)) == 0 || len(u.fails(by.predicate)) != len(u.fails())
		})
		if len(only) > 0 {
			p.settle(by.reason, only, by.predicate)
			return
		}
	}
	if len(nodes) == 0 {
		nodes = pools
	}
	var best []unit
	var chosen reason
	rank := func(r reason, n int) int { return n - 1000*slices.Index(preference(nodes, siblings), r) }
	for _, u := range nodes {
		r, ok := single(u)
		if !ok {
			continue
		}
		same := slices.DeleteFunc(slices.Clone(nodes), func(v unit) bool { s, ok := single(v); return !ok || s != r })
		if chosen == "" || rank(r, len(same)) > rank(chosen, len(best)) {
			chosen, best = r, same
		}
	}
	if chosen == "" || chosen == byNothing { // each node fails in several ways: the one that fails least
		best = []unit{slices.MinFunc(nodes, func(a, b unit) int { return cmp.Compare(len(a.fails()), len(b.fails())) })}
		for _, r := range preference(nodes, siblings) {
			if slices.ContainsFunc(best[0].fails(), func(f scheduling.Failure) bool { return reasonOf(f) == r }) {
				chosen = r
				break
			}
		}
	}
	if chosen == "" {
		chosen = byNothing
	}
	p.reason, p.units = chosen, best
	for _, u := range best {
		for _, f := range u.fails() {
			if reasonOf(f) == chosen {
				p.failures = append(p.failures, f)
			}
		}
	}
}

// preference is which reason counts where several would each do: a cordon is
// an act, a full node is a state. Anti-affinity comes before lack of room only
// where there are more replicas than places.
func preference(nodes []unit, siblings []*corev1.Pod) []reason {
	list := []reason{byCordon, byAffinity, byHostPort, byNoRoom, bySpread, byTooLarge, byAntiAffinity, byAttachLimit}
	for _, u := range nodes {
		for _, f := range u.fails(scheduling.AntiAffinity) {
			domains := map[string]bool{}
			for _, v := range nodes {
				if v.node != nil {
					domains[v.node.Labels[f.Key]] = true
				}
			}
			live := slices.DeleteFunc(slices.Clone(siblings), probes.Finished)
			if len(live) > len(domains) {
				return []reason{byCordon, byAffinity, byHostPort, byAntiAffinity, byNoRoom, bySpread, byTooLarge, byAttachLimit}
			}
		}
	}
	return list
}

func reasonOf(f scheduling.Failure) reason {
	switch f.Predicate {
	case scheduling.Cordoned:
		return byCordon
	case scheduling.Resources:
		if f.Never {
			return byTooLarge
		}
		return byNoRoom
	case scheduling.HostPort:
		return byHostPort
	case scheduling.Affinity:
		return byAffinity
	case scheduling.AntiAffinity, scheduling.AntiAffinityOfOthers:
		return byAntiAffinity
	case scheduling.Spread:
		return bySpread
	case scheduling.VolumeLimit:
		return byAttachLimit
	case scheduling.InstanceTypes:
		return byTooLarge
	case scheduling.PoolLimits:
		return byPoolLimits
	case scheduling.PoolNotReady:
		return byPoolNotReady
	}
	return byNothing
}

// single is the reason of a node that fails for one reason only.
func single(u unit) (reason, bool) {
	var r reason
	for _, f := range u.fails() {
		if r != "" && reasonOf(f) != r {
			return "", false
		}
		r = reasonOf(f)
	}
	return r, r != ""
}

// schedulerSays is the scheduler's account of its last try as the pod keeps it.
func schedulerSays(p *corev1.Pod) string {
	if c := probes.PodCondition(p, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		return c.Message
	}
	return ""
}

// schedulerWords are what kube-scheduler says of each reason, in any version
// since 1.18. Source: kubernetes pkg/scheduler/framework/plugins.
var schedulerWords = map[reason]*regexp.Regexp{
	byLabels:       regexp.MustCompile(`(?i)node affinity|node selector|nodeselector|didn't match Pod's|NodeAffinity`),
	byVolume:       regexp.MustCompile(`(?i)volume node affinity|available persistent volumes|no available volume zone|volume|NodeSelectorTerms`),
	byTaint:        regexp.MustCompile(`(?i)taint`),
	byStartupTaint: regexp.MustCompile(`(?i)taint`),
	byNotReady:     regexp.MustCompile(`(?i)taint|not ready`),
	byCordon:       regexp.MustCompile(`(?i)unschedulable`),
	byTooLarge:     regexp.MustCompile(`(?i)insufficient|too many pods|no instance type`),
	byNoRoom:       regexp.MustCompile(`(?i)insufficient|too many pods`),
	byHostPort:     regexp.MustCompile(`(?i)port`),
	byAntiAffinity: regexp.MustCompile(`(?i)anti-affinity|affinity/anti-affinity`),
	byAffinity:     regexp.MustCompile(`(?i)pod affinity|affinity/anti-affinity|inter-?pod`),
	bySpread:       regexp.MustCompile(`(?i)topology spread`),
	byAttachLimit:  regexp.MustCompile(`(?i)max volume count`),
}

// contradicted reports whether the scheduler gave an account of the nodes in
// which the recomputed reason doesn't occur: then a document is incomplete, or
// something else decides.
func contradicted(p *placement) bool {
	says, words := p.says, schedulerWords[p.reason]
	onPools := slices.ContainsFunc(p.units, func(u unit) bool { return u.pool != nil }) // of which kube-scheduler knows nothing
	return words != nil && !onPools && strings.Contains(says, "nodes are available") && !words.MatchString(says)
}
