package diagnose

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/scheduling"
)

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
	if nodes := wantsBranchInterface(p, units); len(nodes) > 0 {
		p.settle(byBranch, nodes, scheduling.Resources)
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
	if r, predicates, shut := shutPools(units, meant); len(shut) > 0 {
		p.settle(r, shut, predicates...)
		return
	}
	p.byWhatIsLeft(meant, x.workloads.Pods(x.workloads.Of(p.pod)))
}

// shutPools are the NodePools that would make a node for the pod but for one
// thing that they say themselves, a taint or what their nodes may be, while the
// nodes that are meant for it are full. Where a pool's own nodes are among the
// full ones it made such nodes once, and what it says came later; a zone that it
// leaves out is its own choice in any case. That, and not the full nodes, keeps
// the pod out.
func shutPools(units, meant []unit) (reason, []scheduling.Predicate, []unit) {
	if slices.ContainsFunc(meant, func(u unit) bool { return u.pool != nil }) {
		return "", nil, nil
	}
	full := slices.DeleteFunc(slices.Clone(meant), func(n unit) bool { r, ok := single(n); return !ok || r != byNoRoom })
	for _, by := range []struct {
		reason     reason
		predicates []scheduling.Predicate
	}{
		{byTaint, []scheduling.Predicate{scheduling.Taint}},
		{byPoolRules, []scheduling.Predicate{scheduling.NodeSelector, scheduling.NodeAffinity, scheduling.VolumeNode}},
	} {
		shut := slices.DeleteFunc(slices.Clone(units), func(u unit) bool {
			fails := u.fails(by.predicates...)
			if u.pool == nil || len(fails) == 0 || len(fails) != len(u.fails()) {
				return true
			}
			zone := by.reason != byTaint && !slices.ContainsFunc(fails, func(f scheduling.Failure) bool { return f.Key != corev1.LabelTopologyZone })
			return !slices.ContainsFunc(full, func(n unit) bool { return zone || n.node.Labels["karpenter.sh/nodepool"] == u.pool.Name })
		})
		if len(shut) > 0 {
			return by.reason, by.predicates, shut
		}
	}
	return "", nil, nil
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

// takesMost reports whether one node for the pod would take more than half of
// a pool's limit, of which more than half is free: then the pod asks for too
// much rather than the pool for too little.
func takesMost(f scheduling.Failure) bool {
	if f.Amount == nil || f.Key == "nodes" {
		return false
	}
	overHalf := func(q resource.Quantity) bool {
		q.Add(q)
		return q.Cmp(f.Amount.Allocatable) > 0
	}
	return overHalf(f.Amount.Asked.DeepCopy()) && overHalf(f.Amount.Free.DeepCopy())
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
	full := len(nodes) > 0 && !slices.ContainsFunc(nodes, func(u unit) bool { r, ok := single(u); return !ok || r != byNoRoom })
	if (full || len(nodes) == 0) && len(pools) > 0 { // room can be made, so what keeps it from being made decides
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
	if full && chosen == byTooLarge && best[0].pool != nil { // the nodes would hold it, those of the pool would not
		p.settle(byPoolRules, best, scheduling.InstanceTypes)
		return
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
