package scheduling

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/pposiraegi/ppodoctor/probes"
)

// Karpenter is what decides whether Karpenter would make a node for a pod. A
// nil list is unknown.
type Karpenter struct {
	Pools       *probes.List[probes.NodePool]
	Claims      *probes.List[probes.NodeClaim]
	NodeClasses *probes.List[probes.EC2NodeClass]
	DaemonSets  *probes.List[appsv1.DaemonSet]
	Nodes       []*corev1.Node
	Cluster     *Cluster // for the pod's volumes

	types []InstanceType
}

// The predicates of a NodePool, besides those that it shares with nodes.
const (
	PoolNotReady  Predicate = "nodepool-not-ready"
	PoolStatic    Predicate = "nodepool-static"
	PoolLimits    Predicate = "nodepool-limits"
	InstanceTypes Predicate = "instance-types"
)

// OnPool is a NodePool with what keeps it from serving the pod; no failure
// means that Karpenter could make a node for it.
type OnPool struct {
	Pool     *probes.NodePool
	Failures []Failure
	Fitting  []InstanceType // types that would take the pod, limits aside
}

// Serves reports whether the pool would serve the pod, as far as is known.
func (o OnPool) Serves() bool {
	return !slices.ContainsFunc(o.Failures, func(f Failure) bool { return !f.Unknown })
}

// Place asks every NodePool, by name. Weight is of no matter: it orders the
// pools, it excludes none.
func (k *Karpenter) Place(pod *corev1.Pod) []OnPool {
	if k.Pools == nil {
		return nil
	}
	if k.types == nil {
		k.types = k.catalog()
	}
	var all []OnPool
	for _, pool := range k.Pools.All() {
		all = append(all, k.onPool(pod, pool))
	}
	return all
}

func (k *Karpenter) onPool(pod *corev1.Pod, pool *probes.NodePool) OnPool {
	on := OnPool{Pool: pool}
	if pool.Spec.Replicas != nil {
		on.Failures = append(on.Failures, Failure{Predicate: PoolStatic, Change: "have a NodePool without spec.replicas", Says: "has a fixed number of nodes (spec.replicas) and makes none for pods"})
	}
	on.Failures = append(on.Failures, notReady(pool)...)
	on.Failures = append(on.Failures, taints(pod, &corev1.Node{Spec: corev1.NodeSpec{Taints: pool.Spec.Template.Spec.Taints}})...)

	offered := k.offered(pool)
	var best []Failure
	var combined requirements
	for i, wanted := range alternatives(pod) {
		failures, both := exclude(offered, wanted)
		if i == 0 || len(failures) < len(best) {
			best, combined = failures, both
		}
	}
	on.Failures = append(on.Failures, best...)
	on.Failures = append(on.Failures, k.volumeZones(pod, combined)...)
	if len(on.Failures) == 0 {
		on.Failures = append(on.Failures, k.topology(pod, pool, combined)...)
	}
	if len(best) == 0 {
		on.Failures = append(on.Failures, k.size(pod, pool, combined, &on)...)
	}
	return on
}

func notReady(pool *probes.NodePool) []Failure {
	f := Failure{Predicate: PoolNotReady, Change: "have NodePool " + pool.Name + " Ready"}
	if pool.DeletionTimestamp != nil {
		f.Says = "is being deleted"
		return []Failure{f}
	}
	ready := meta.FindStatusCondition(pool.Status.Conditions, "Ready")
	if ready == nil || ready.Status == "True" {
		return nil // before v1.0 a NodePool has no conditions
	}
	f.Says = fmt.Sprintf("is not Ready: %s %s", ready.Reason, ready.Message)
	for _, c := range pool.Status.Conditions {
		if c.Type != "Ready" && c.Type != "NodeRegistrationHealthy" && c.Status != "True" {
			f.Says = fmt.Sprintf("is not Ready: %s=%s, %s: %s", c.Type, c.Status, c.Reason, c.Message)
			break
		}
	}
	return []Failure{f}
}

// offered is what the nodes of a pool can be: its requirements and labels, and
// what its node class leaves of zones and architectures.
func (k *Karpenter) offered(pool *probes.NodePool) requirements {
	r := requirements{}
	spec := pool.Spec.Template.Spec
	for _, req := range spec.Requirements {
		r.add(req)
	}
	for _, key := range slices.Sorted(maps.Keys(pool.Spec.Template.Metadata.Labels)) {
		r.add(probes.Requirement{Key: key, Operator: "In", Values: []string{pool.Spec.Template.Metadata.Labels[key]}})
	}
	r.add(probes.Requirement{Key: "karpenter.sh/nodepool", Operator: "In", Values: []string{pool.Name}})
	if k.NodeClasses == nil || spec.NodeClassRef.Kind != "EC2NodeClass" {
		return r
	}
	class := k.NodeClasses.Get("", spec.NodeClassRef.Name)
	if class == nil {
		return r
	}
	var zones, archs []string
	for _, s := range class.Status.Subnets {
		zones = append(zones, s.Zone)
	}
	for _, ami := range class.Status.AMIs {
		for _, req := range ami.Requirements {
			if req.Key == corev1.LabelArchStable && req.Operator == "In" {
				archs = append(archs, req.Values...)
			}
		}
	}
	if len(zones) > 0 {
		slices.Sort(zones)
		r.add(probes.Requirement{Key: corev1.LabelTopologyZone, Operator: "In", Values: slices.Compact(zones)})
	}
	if len(archs) > 0 {
		slices.Sort(archs)
		r.add(probes.Requirement{Key: corev1.LabelArchStable, Operator: "In", Values: slices.Compact(archs)})
	}
	return r
}

// alternatives are the pod's label wishes, one for each affinity term.
func alternatives(pod *corev1.Pod) [][]wish {
	var base []wish
	for _, key := range slices.Sorted(maps.Keys(pod.Spec.NodeSelector)) {
		value := pod.Spec.NodeSelector[key]
		base = append(base, wish{
			Requirement: probes.Requirement{Key: key, Operator: "In", Values: []string{value}},
			predicate:   NodeSelector, change: fmt.Sprintf("match nodeSelector %s=%s", key, value),
		})
	}
	terms := requiredTerms(pod)
	if len(terms) == 0 {
		return [][]wish{base}
	}
	var all [][]wish
	for _, t := range terms {
		wishes := slices.Clone(base)
		for _, e := range t.MatchExpressions {
			wishes = append(wishes, wish{Requirement: ofExpression(e), predicate: NodeAffinity, change: "match the node affinity " + ExpressionString(e)})
		}
		for _, e := range t.MatchFields { // metadata.name: no node to come has that name
			wishes = append(wishes, wish{Requirement: probes.Requirement{Key: corev1.LabelHostname, Operator: "In", Values: e.Values}, predicate: NodeAffinity, change: "match the node affinity " + ExpressionString(e)})
		}
		all = append(all, wishes)
	}
	return all
}

type wish struct {
	probes.Requirement
	predicate Predicate
	change    string
}

// exclude are the wishes that a pool can't grant, and what is left of its
// requirements with those that it can.
func exclude(offered requirements, wishes []wish) ([]Failure, requirements) {
	both := maps.Clone(offered)
	var failures []Failure
	for _, w := range wishes {
		key := normal(w.Key)
		f := Failure{Predicate: w.predicate, Change: w.change, Key: key, Want: strings.Join(w.Values, ",")}
		before := both.of(key)
		positive := w.Operator != "NotIn" && w.Operator != "DoesNotExist"
		switch {
		case key == corev1.LabelHostname && w.Operator == "In":
			f.Says = fmt.Sprintf("can't make a node named %s", strings.Join(w.Values, " or "))
		case !before.defined() && positive && !wellKnown(key):
			f.Says = fmt.Sprintf("gives its nodes no label %s (wanted: %s)", key, RequirementString(w.Requirement))
		case before.and(w.Requirement).empty():
			f.Have = strings.Join(before.says, ", ")
			f.Says = fmt.Sprintf("offers %s, the pod wants %s", f.Have, RequirementString(w.Requirement))
		default:
			both[key] = before.and(w.Requirement)
			continue
		}
		failures = append(failures, f)
	}
	return failures, both
}

// volumeZones narrows the zone to those of the pod's bound volumes.
func (k *Karpenter) volumeZones(pod *corev1.Pod, both requirements) []Failure {
	if k.Cluster == nil || k.Cluster.Claims == nil || k.Cluster.Volumes == nil {
		return nil
	}
	var failures []Failure
	for _, name := range ClaimNames(pod) {
		claim := k.Cluster.Claims.Get(pod.Namespace, name)
		if claim == nil || !bound(claim) {
			continue
		}
		volume := k.Cluster.Volumes.Get("", claim.Spec.VolumeName)
		if volume == nil {
			continue
		}
		zones := VolumeZones(volume)
		if len(zones) == 0 {
			continue
		}
		r := probes.Requirement{Key: corev1.LabelTopologyZone, Operator: "In", Values: zones}
		before := both.of(r.Key)
		if before.and(r).empty() {
			failures = append(failures, Failure{
				Predicate: VolumeNode, Claim: name, Key: r.Key, Want: strings.Join(zones, " or "), Have: strings.Join(before.says, ", "),
				Change: fmt.Sprintf("have the volume %s of PersistentVolumeClaim %s elsewhere", volume.Name, name),
				Says:   fmt.Sprintf("offers %s, but PersistentVolume %s of claim %s is in %s", strings.Join(before.says, ", "), volume.Name, name, strings.Join(zones, " or ")),
			})
			continue
		}
		both[r.Key] = before.and(r)
	}
	return failures
}

// topology is whether pod (anti-)affinity and spread would let the pod onto a
// new node of the pool in any zone.
func (k *Karpenter) topology(pod *corev1.Pod, pool *probes.NodePool, both requirements) []Failure {
	if k.Cluster == nil {
		return nil
	}
	k.Cluster.index()
	labels, seen := map[string]string{}, map[string]bool{}
	var zones []string
	for _, n := range k.Nodes {
		zone := n.Labels[corev1.LabelTopologyZone]
		if !seen[zone] && zone != "" && both.of(corev1.LabelTopologyZone).has(zone) {
			seen[zone] = true
			zones = append(zones, zone)
		}
		if region := n.Labels[corev1.LabelTopologyRegion]; region != "" {
			labels[corev1.LabelTopologyRegion] = region
		}
	}
	if set := both.of(corev1.LabelTopologyZone); !set.complement {
		for _, zone := range set.values {
			if !seen[zone] {
				zones = append(zones, zone)
			}
		}
	}
	for key, set := range both {
		if !set.complement && len(set.values) == 1 {
			labels[key] = set.values[0]
		}
	}
	affinity, spread := k.Cluster.newAffinityState(pod), k.Cluster.newSpreadState(pod)
	var last []Failure
	for _, zone := range zones {
		node := &corev1.Node{}
		node.Name = "a new node of NodePool " + pool.Name
		node.Labels = maps.Clone(labels)
		node.Labels[corev1.LabelHostname] = node.Name
		node.Labels[corev1.LabelTopologyZone] = zone
		last = append(affinity.on(node), spread.on(node)...)
		if !slices.ContainsFunc(last, func(f Failure) bool { return !f.Unknown }) {
			return nil
		}
	}
	return last
}

// VolumeZones are the zones that a volume can be reached from; none: anywhere.
func VolumeZones(volume *corev1.PersistentVolume) []string {
	var zones []string
	if a := volume.Spec.NodeAffinity; a != nil && a.Required != nil {
		for _, term := range a.Required.NodeSelectorTerms {
			for _, e := range term.MatchExpressions {
				switch e.Key {
				case corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaZone, "topology.ebs.csi.aws.com/zone", "topology.gke.io/zone", "topology.disk.csi.azure.com/zone":
					if e.Operator == corev1.NodeSelectorOpIn {
						zones = append(zones, e.Values...)
					}
				}
			}
		}
	}
	if len(zones) == 0 {
		if label := cmp.Or(volume.Labels[corev1.LabelTopologyZone], volume.Labels[corev1.LabelFailureDomainBetaZone]); label != "" {
			zones = strings.Split(label, "__")
		}
	}
	slices.Sort(zones)
	return slices.Compact(zones)
}

// size is whether a type that the pool allows takes the pod, and whether the
// pool's limits still let one be made.
func (k *Karpenter) size(pod *corev1.Pod, pool *probes.NodePool, reqs requirements, on *OnPool) []Failure {
	asked := Requests(pod)
	overhead := k.overhead(pool, reqs)
	total := corev1.ResourceList{}
	for name, q := range asked {
		sum := q.DeepCopy()
		sum.Add(overhead[name])
		total[name] = sum
	}
	types, sure := allowed(k.types, reqs)
	var largest InstanceType
	for _, t := range types {
		if t.CPU > largest.CPU || t.CPU == largest.CPU && t.MemoryMiB > largest.MemoryMiB {
			largest = t
		}
		if fits, known := t.holds(total); fits && known {
			on.Fitting = append(on.Fitting, t)
		} else if !known {
			sure = false
		}
	}
	if len(on.Fitting) == 0 {
		f := Failure{Predicate: InstanceTypes, Unknown: !sure, Never: true, Change: "ask for what an instance type of NodePool " + pool.Name + " can hold"}
		switch {
		case !sure:
			f.Says = fmt.Sprintf("whether an instance type that it allows holds the pod can't be told (asked: %s)", ShowList(asked))
		case len(types) == 0:
			f.Says = "no known instance type meets its requirements together with the pod's"
		default:
			f.Says = fmt.Sprintf("no instance type that it allows holds the pod: %s asked, DaemonSets take %s, the largest type is %s (%d vCPU, %s)",
				ShowList(asked), ShowList(overhead), largest.Name, largest.CPU, Show(corev1.ResourceMemory, *resource.NewQuantity(largest.MemoryMiB<<20, resource.BinarySI)))
		}
		return []Failure{f}
	}
	return limits(pool, asked, on.Fitting)
}

// limits are those of the pool that leave no room for a node that takes the pod.
func limits(pool *probes.NodePool, asked corev1.ResourceList, fitting []InstanceType) []Failure {
	var failures []Failure
	for _, name := range slices.Sorted(maps.Keys(pool.Spec.Limits)) {
		limit, used := pool.Spec.Limits[name], pool.Status.Resources[name]
		left := limit.DeepCopy()
		left.Sub(used)
		need := asked[name]
		switch name {
		case "nodes":
			need = *resource.NewQuantity(1, resource.DecimalSI)
		case corev1.ResourceCPU:
			smallest := slices.MinFunc(fitting, func(a, b InstanceType) int { return cmp.Compare(a.CPU, b.CPU) })
			need = *resource.NewQuantity(smallest.CPU, resource.DecimalSI)
		case corev1.ResourceMemory:
			smallest := slices.MinFunc(fitting, func(a, b InstanceType) int { return cmp.Compare(a.MemoryMiB, b.MemoryMiB) })
			// An estimated type's memory is nominal; Karpenter counts what the VM leaves.
			if estimate := resource.NewQuantity(smallest.MemoryMiB*9/10<<20, resource.BinarySI); estimate.Cmp(need) > 0 {
				need = *estimate
			}
		}
		if need.IsZero() || need.Cmp(left) <= 0 {
			continue
		}
		failures = append(failures, Failure{
			Predicate: PoolLimits, Key: string(name), Change: fmt.Sprintf("raise spec.limits.%s of NodePool %s", name, pool.Name),
			Amount: &Amount{Resource: name, Asked: need, Free: left, Allocatable: limit},
			Says:   fmt.Sprintf("spec.limits.%s is %s, its nodes have %s, and the smallest node for this pod needs %s more", name, Show(name, limit), Show(name, used), Show(name, need)),
		})
	}
	return failures
}

// accelerators are the domains of resources that no type of the catalog has:
// GPUs, Neuron and Gaudi are of families of their own (g, p, inf, trn, dl).
// Source: https://aws.amazon.com/ec2/instance-types/#Accelerated_Computing.
var accelerators = []string{"nvidia.com/", "amd.com/gpu", "aws.amazon.com/neuron", "habana.ai/"}

// holds reports whether the type holds the resources. known is false where it
// can't be told (extended resources of a type that nobody has seen).
func (t InstanceType) holds(total corev1.ResourceList) (fits, known bool) {
	has := t.allocatable()
	fits, known = true, true
	for name, want := range total {
		have, ok := has[name]
		switch {
		case ok:
			fits = fits && want.Cmp(have) <= 0
		case name == corev1.ResourcePods || name == corev1.ResourceEphemeralStorage || want.IsZero():
		case t.Seen, slices.ContainsFunc(accelerators, func(a string) bool { return strings.HasPrefix(string(name), a) }):
			fits = false
		default:
			known = false
		}
	}
	return fits, known || !fits
}

// overhead is what the DaemonSets that would run on the pool's nodes ask for.
func (k *Karpenter) overhead(pool *probes.NodePool, reqs requirements) corev1.ResourceList {
	if k.DaemonSets == nil {
		return nil
	}
	var pods []*corev1.Pod
	node := &corev1.Node{Spec: corev1.NodeSpec{Taints: pool.Spec.Template.Spec.Taints}}
	for _, ds := range k.DaemonSets.All() {
		pod := &corev1.Pod{Spec: ds.Spec.Template.Spec}
		if len(taints(pod, node)) > 0 {
			continue
		}
		for _, wanted := range alternatives(pod) {
			if failures, _ := exclude(reqs, wanted); len(failures) == 0 {
				pods = append(pods, pod)
				break
			}
		}
	}
	total := Used(pods)
	delete(total, corev1.ResourcePods)
	return total
}

// ShowList is "cpu 2, memory 4Gi", without pods.
func ShowList(list corev1.ResourceList) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(list)) {
		if q := list[name]; name != corev1.ResourcePods && !q.IsZero() {
			parts = append(parts, string(name)+" "+Show(name, q))
		}
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}
