package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// A poolRole is a label by which NodePools are told apart: role=platform on
// one, role=apps on another.
type poolRole struct {
	key   string
	pools map[string][]string // value to names
}

// poolRoles are the labels that at least two NodePools have in different
// values, and that at least one workload or taint goes by, of pools that any
// pod may land on. Pools that a taint keeps for themselves don't count.
func poolRoles(facts *probes.Facts) []poolRole {
	pools, err := probes.NodePools.Of(facts)
	if err != nil {
		return nil
	}
	byKey := map[string]poolRole{}
	for _, p := range pools.All() {
		if p.DeletionTimestamp != nil || slices.ContainsFunc(p.Spec.Template.Spec.Taints, func(t corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }) {
			continue
		}
		for k, v := range p.Spec.Template.Metadata.Labels {
			if byKey[k].pools == nil {
				byKey[k] = poolRole{key: k, pools: map[string][]string{}}
			}
			byKey[k].pools[v] = append(byKey[k].pools[v], p.Name)
		}
	}
	var roles []poolRole
	for _, k := range slices.Sorted(maps.Keys(byKey)) {
		if len(byKey[k].pools) > 1 {
			roles = append(roles, byKey[k])
		}
	}
	return roles
}

// selectsBy reports whether a pod chooses its nodes by a label.
func selectsBy(spec *corev1.PodSpec, key string) bool {
	if _, ok := spec.NodeSelector[key]; ok {
		return true
	}
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil {
		return false
	}
	by := func(terms ...corev1.NodeSelectorTerm) bool {
		return slices.ContainsFunc(terms, func(t corev1.NodeSelectorTerm) bool {
			return slices.ContainsFunc(t.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool { return e.Key == key })
		})
	}
	a := spec.Affinity.NodeAffinity
	if r := a.RequiredDuringSchedulingIgnoredDuringExecution; r != nil && by(r.NodeSelectorTerms...) {
		return true
	}
	return slices.ContainsFunc(a.PreferredDuringSchedulingIgnoredDuringExecution, func(p corev1.PreferredSchedulingTerm) bool { return by(p.Preference) })
}

// workloadWithoutRole: NodePools are labelled for roles, some workloads go by
// the label, and this one lands on whichever pool is cheapest.
var workloadWithoutRole = &Rule{
	ID: "workload-on-any-nodepool", Latent: true, Needs: []probes.Any{probes.NodePools, probes.Pods, probes.Workloads, probes.Nodes},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		workloads, err := probes.Workloads.Of(facts)
		if err != nil {
			return nil
		}
		var found []Suspect
		for _, role := range poolRoles(facts) {
			var free, bound []Ref
			for _, w := range workloads.All() {
				if w.Kind != "Deployment" && w.Kind != "StatefulSet" || w.Namespace == "kube-system" || len(workloads.Pods(w)) == 0 {
					continue
				}
				spec := &workloads.Pods(w)[0].Spec
				switch {
				case selectsBy(spec, role.key):
					bound = append(bound, w)
				case onPools(facts, workloads.Pods(w), role) && len(spec.NodeSelector) == 0 && spec.Affinity == nil && len(customTolerations(spec)) == 0:
					free = append(free, w)
				}
			}
			if len(free) == 0 || len(bound) == 0 {
				continue
			}
			var values []string
			for _, v := range slices.Sorted(maps.Keys(role.pools)) {
				slices.Sort(role.pools[v])
				values = append(values, fmt.Sprintf("%s=%s (NodePool %s)", role.key, v, strings.Join(role.pools[v], ", ")))
			}
			var names []string
			for _, w := range free {
				names = append(names, short(w))
			}
			found = append(found, Suspect{
				Subjects: free, Count: len(free), Data: workloads.Pods(free[0])[0],
				Vars: map[string]string{"label": role.key, "roles": strings.Join(values, ", "), "workloads": clip(strings.Join(names, ", "), 300), "goesBy": short(bound[0])},
			})
		}
		return found
	},
	Tests: []Test{{
		Asks: "does {workloads} choose none of {roles}, as {goesBy} does?", Needs: []probes.Any{probes.Nodes},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			p := s.Data.(*corev1.Pod)
			at := "it has no node yet"
			if nodes, err := probes.Nodes.Of(facts); err == nil && nodes.Get("", p.Spec.NodeName) != nil {
				at = fmt.Sprintf("it runs on %s of NodePool %s", p.Spec.NodeName, cmp.Or(nodes.Get("", p.Spec.NodeName).Labels["karpenter.sh/nodepool"], "(none)"))
			}
			return Answered(true,
				Saw("nodepools.karpenter.sh", nil, "NodePools are told apart by %s; none of them has a taint that would keep other pods away", s.Vars["roles"]),
				SawObject("pods", p.Namespace, p.Name, "pod %s has no nodeSelector, affinity or toleration; %s", p.Name, at))
		},
	}},
}

// onPools reports whether one of the pods has come to a node of the pools.
func onPools(facts *probes.Facts, pods []*corev1.Pod, role poolRole) bool {
	nodes, err := probes.Nodes.Of(facts)
	return err == nil && slices.ContainsFunc(pods, func(p *corev1.Pod) bool {
		n := nodes.Get("", p.Spec.NodeName)
		if n == nil {
			return false
		}
		for _, names := range role.pools {
			if slices.Contains(names, n.Labels["karpenter.sh/nodepool"]) {
				return true
			}
		}
		return false
	})
}

// customTolerations leaves out those that Kubernetes gives every pod.
func customTolerations(spec *corev1.PodSpec) []corev1.Toleration {
	return slices.DeleteFunc(slices.Clone(spec.Tolerations), func(t corev1.Toleration) bool {
		return strings.HasPrefix(t.Key, "node.kubernetes.io/")
	})
}

// statefulOnSpot: a pod with a volume of its own runs on spot capacity that is
// consolidated within minutes, while another NodePool is on demand only.
var statefulOnSpot = &Rule{
	ID: "stateful-on-spot", Latent: true, Needs: []probes.Any{probes.NodePools, probes.Pods, probes.Workloads, probes.Nodes},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		pools, err := probes.NodePools.Of(facts)
		nodes, err2 := probes.Nodes.Of(facts)
		workloads, err3 := probes.Workloads.Of(facts)
		if err != nil || err2 != nil || err3 != nil {
			return nil
		}
		steady := ""
		for _, p := range pools.All() {
			if types := capacityTypes(p); len(types) > 0 && !slices.Contains(types, "spot") && len(p.Spec.Template.Spec.Taints) == 0 {
				steady = cmp.Or(steady, p.Name)
			}
		}
		if steady == "" {
			return nil // nothing better is there
		}
		var found []Suspect
		for _, w := range workloads.All() {
			for _, p := range workloads.Pods(w) {
				n := nodes.Get("", p.Spec.NodeName)
				if n == nil || n.Labels["karpenter.sh/capacity-type"] != "spot" || !ownsVolume(p) || p.Annotations["karpenter.sh/do-not-disrupt"] == "true" {
					continue
				}
				pool := pools.Get("", n.Labels["karpenter.sh/nodepool"])
				if pool == nil || !consolidatesSoon(pool) {
					continue
				}
				found = append(found, Suspect{
					Subjects: []Ref{w, {Kind: "NodePool", Name: pool.Name}}, Data: p,
					Vars: map[string]string{"pool": pool.Name, "steady": steady, "node": n.Name, "after": cmp.Or(pool.Spec.Disruption.ConsolidateAfter, "0s"), "policy": cmp.Or(pool.Spec.Disruption.ConsolidationPolicy, "WhenEmptyOrUnderutilized")},
				})
				break
			}
		}
		return found
	},
	Tests: []Test{{
		Asks: "does it keep data on a spot node of NodePool {pool}, which is consolidated after {after}?",
		Run: func(_ *probes.Facts, s Suspect) Answer {
			p := s.Data.(*corev1.Pod)
			return Answered(true,
				SawObject("pods", p.Namespace, p.Name, "pod %s has a claim of its own and runs on spot node %s", p.Name, p.Spec.NodeName),
				SawObject("nodepools.karpenter.sh", "", s.Vars["pool"], "NodePool %s: consolidationPolicy %s, consolidateAfter %s", s.Vars["pool"], s.Vars["policy"], s.Vars["after"]),
				SawObject("nodepools.karpenter.sh", "", s.Vars["steady"], "NodePool %s launches on-demand capacity only and has no taints", s.Vars["steady"]))
		},
	}},
}

func ownsVolume(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil })
}

// capacityTypes are those that a pool names; Karpenter takes on-demand where
// it names none. Source: karpenter docs, "NodePools", karpenter.sh/capacity-type.
func capacityTypes(p *probes.NodePool) []string {
	for _, r := range p.Spec.Template.Spec.Requirements {
		if r.Key == "karpenter.sh/capacity-type" && r.Operator == "In" {
			return r.Values
		}
	}
	return nil
}

// consolidatesSoon reports whether a pool moves pods away within ten minutes.
func consolidatesSoon(p *probes.NodePool) bool {
	d := p.Spec.Disruption
	if d.ConsolidationPolicy == "WhenEmpty" || d.ConsolidateAfter == "Never" {
		return false
	}
	after, err := time.ParseDuration(cmp.Or(d.ConsolidateAfter, "0s"))
	return err == nil && after <= 10*time.Minute
}

var poolRoleRules = []*Rule{workloadWithoutRole, statefulOnSpot}
