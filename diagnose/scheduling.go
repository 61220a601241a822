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

// unscheduled is how long a pod may wait for a node before anybody would ask
// why: longer than a cloud takes to make one.
const unscheduled = 3 * time.Minute

// podPending: a pod of the workload has no node.
var podPending = &Rule{
	ID:    "pod-pending",
	Needs: []probes.Any{probes.Pods, probes.Workloads},
	Suspects: perWorkload(func(p *corev1.Pod, now time.Time) *trouble {
		if !pending(p) || now.Sub(p.CreationTimestamp.Time) < unscheduled || placeholder(p) {
			return nil
		}
		says := "has no node since " + p.CreationTimestamp.UTC().Format(time.RFC3339)
		if s := schedulerSays(p); s != "" {
			says += "; the scheduler says: " + s
		}
		return &trouble{since: &p.CreationTimestamp.Time, says: says}
	}),
}

// placeholder reports whether a pod only keeps room for others: it gives way
// to any, and is meant to wait when they have come.
// Source: kubernetes autoscaler FAQ, "How can I configure overprovisioning".
func placeholder(p *corev1.Pod) bool { return p.Spec.Priority != nil && *p.Spec.Priority < 0 }

// podUntouched: a pod is bound to a node, and the kubelet there has not taken
// it: there is no such node, or its kubelet is down.
var podUntouched = &Rule{
	ID:    "pod-not-taken-by-kubelet",
	Needs: []probes.Any{probes.Pods, probes.Workloads},
	Suspects: perWorkload(func(p *corev1.Pod, now time.Time) *trouble {
		bound := p.CreationTimestamp.Time
		if c := probes.PodCondition(p, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionTrue {
			bound = c.LastTransitionTime.Time
		}
		if p.Spec.NodeName == "" || p.Status.Phase != corev1.PodPending || p.Status.StartTime != nil || len(probes.Statuses(p)) > 0 || now.Sub(bound) < patience {
			return nil
		}
		return &trouble{since: &bound, says: fmt.Sprintf("is bound to node %s, whose kubelet has not taken it", p.Spec.NodeName)}
	}),
}

// nodeNameMissing: the pods are bound, by spec.nodeName, to a node that
// doesn't exist.
var nodeNameMissing = &Rule{
	ID: "node-name-missing", Explains: []*Rule{podUntouched}, Needs: []probes.Any{probes.Nodes},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		var suspects []Suspect
		for _, e := range effects {
			for _, p := range troubled(e) {
				suspects = append(suspects, Suspect{Subjects: []Ref{e.Subject()}, Effects: []*Finding{e}, Data: p, Vars: map[string]string{
					"workload": short(e.Subject()), "node": p.Spec.NodeName, "pod": p.Name, "podNamespace": p.Namespace, "near": "",
				}})
				break
			}
		}
		return suspects
	},
	Tests: []Test{{Asks: "is there no node named {node}?", Needs: []probes.Any{probes.Nodes}, Run: func(facts *probes.Facts, s Suspect) Answer {
		nodes, err := probes.Nodes.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		p := s.Data.(*corev1.Pod)
		if nodes.Get("", p.Spec.NodeName) != nil {
			return Answered(false, SawObject("nodes", "", p.Spec.NodeName, "node %s exists", p.Spec.NodeName))
		}
		var have []string
		for _, n := range nodes.All() {
			have = append(have, n.Name)
		}
		a := Answered(true, SawObject("pods", p.Namespace, p.Name, "pod %s/%s has spec.nodeName: %s, and there is no such node", p.Namespace, p.Name, p.Spec.NodeName))
		if n := nearest(p.Spec.NodeName, have); n != "" {
			a = a.With("near", " The nearest is "+n+".")
		}
		return a
	}}},
}

// A pendingCase is a workload whose pods have no node, with what decides the
// case of its first such pod.
type pendingCase struct {
	effect   *Finding
	workload Ref
	*placement
	x *placementIndex
}

func pendingCases(facts *probes.Facts, effects []*Finding) []pendingCase {
	x, err := placements.Of(facts)
	if err != nil {
		return nil
	}
	var cases []pendingCase
	for _, e := range effects {
		for _, pod := range troubled(e) {
			if p := x.of[pod]; p != nil {
				cases = append(cases, pendingCase{effect: e, workload: e.Subject(), placement: p, x: x})
				break
			}
		}
	}
	return cases
}

// A told is who is at fault in a case, and the words for it.
type told struct {
	subjects []Ref
	vars     map[string]string
	evidence []Evidence
}

// placementRule is a rule for the cases that one reason decides. Cases in
// which the predicates fail somewhere, but don't decide, are ruled out with
// what decides them.
func placementRule(id, asks string, r reason, intermediate bool, predicates []scheduling.Predicate, tell func(pendingCase) told) *Rule {
	return &Rule{
		ID: id, Explains: []*Rule{podPending}, Intermediate: intermediate,
		Needs: []probes.Any{placements, probes.Workloads},
		Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
			var suspects []Suspect
			for _, c := range pendingCases(facts, effects) {
				s := Suspect{Subjects: []Ref{c.workload}, Effects: []*Finding{c.effect}, Data: c, Vars: map[string]string{"pod": c.pod.Name, "podNamespace": c.pod.Namespace, "workload": short(c.workload)}}
				switch {
				case c.reason == r:
					t := tell(c)
					s.Subjects, s.Found = t.subjects, t.evidence
					for k, v := range t.vars {
						s.Vars[k] = v
					}
				default:
					rival := c.failing(predicates)
					if len(rival.failures) == 0 {
						continue
					}
					for k, v := range tell(rival).vars {
						s.Vars[k] = v
					}
				}
				suspects = append(suspects, s)
			}
			return merged(suspects)
		},
		Tests: []Test{{Asks: asks, Needs: []probes.Any{placements}, Run: func(_ *probes.Facts, s Suspect) Answer {
			c := s.Data.(pendingCase)
			if c.reason != r {
				return Answered(false, append(c.decisive(), c.evidence()...)...)
			}
			if c.err != nil {
				return CantTell(c.err, c.evidence()...)
			}
			return Answered(true, c.evidence()...)
		}}},
	}
}

// failing is the case as it would be if only some predicates counted.
func (c pendingCase) failing(predicates []scheduling.Predicate) pendingCase {
	only := &placement{pod: c.pod, on: c.on, pools: c.pools}
	for _, on := range c.on.Nodes {
		u := unit{node: on.Node, failures: on.Failures}
		if f := u.fails(predicates...); len(predicates) > 0 && len(f) > 0 {
			only.units, only.failures = append(only.units, u), append(only.failures, f...)
		}
	}
	c.placement = only
	return c
}

// decisive says what decides instead of what was asked about.
func (c pendingCase) decisive() []Evidence {
	if len(c.failures) == 0 {
		return nil
	}
	return []Evidence{SawObject("pods", c.pod.Namespace, c.pod.Name, "what decides for pod %s/%s is another matter: one would have to %s", c.pod.Namespace, c.pod.Name, strings.Join(c.changes(), " and "))}
}

// merged joins the suspects that have the same subjects, so that one cordoned
// node that keeps out ten workloads is one cause.
func merged(suspects []Suspect) []Suspect {
	var list []Suspect
	for _, s := range suspects {
		i := slices.IndexFunc(list, func(o Suspect) bool {
			a, b := o.Data.(pendingCase), s.Data.(pendingCase)
			return o.Subjects[0] == s.Subjects[0] && a.reason == b.reason && (a.err == nil) == (b.err == nil)
		})
		if i < 0 {
			list = append(list, s)
			continue
		}
		list[i].Effects = append(list[i].Effects, s.Effects...)
		list[i].Found = append(list[i].Found, s.Found...)
		for _, r := range s.Subjects {
			if !slices.Contains(list[i].Subjects, r) {
				list[i].Subjects = append(list[i].Subjects, r)
			}
		}
	}
	return list
}

// evidence is the recomputation in words: what each node and pool that
// decides fails, and the scheduler's own account.
func (p *placement) evidence() []Evidence {
	name := p.pod.Namespace + "/" + p.pod.Name
	list := []Evidence{SawObject("pods", p.pod.Namespace, p.pod.Name, "recomputed for pod %s: %s", name, p.on.Summary())}
	shown := 0
	// Pools first: they say what a new node could be.
	units := slices.Clone(p.units)
	slices.SortStableFunc(units, func(a, b unit) int { return strings.Compare(b.ref().Kind, a.ref().Kind) })
	for _, u := range units {
		var says []string
		for _, f := range u.fails() {
			says = append(says, f.Says)
		}
		if len(says) == 0 {
			continue
		}
		if shown++; shown > 4 {
			list = append(list, Evidence{Says: fmt.Sprintf("and %d more nodes for the like reasons", len(p.units)-4)})
			break
		}
		resource := "nodes"
		if u.pool != nil {
			resource = "nodepools.karpenter.sh"
		}
		list = append(list, SawObject(resource, "", u.ref().Name, "%s: %s", short(u.ref()), strings.Join(says, "; ")))
	}
	for _, on := range p.pools {
		if slices.ContainsFunc(p.units, func(u unit) bool { return u.pool == on.Pool }) || on.Serves() {
			continue
		}
		var says []string
		for _, f := range on.Failures {
			says = append(says, f.Says)
		}
		if len(list) < 8 {
			list = append(list, SawObject("nodepools.karpenter.sh", "", on.Pool.Name, "NodePool %s: %s", on.Pool.Name, strings.Join(says, "; ")))
		}
	}
	if p.says != "" {
		list = append(list, SawObject("pods", p.pod.Namespace, p.pod.Name, "the scheduler says of pod %s: %s", name, p.says))
	}
	return list
}

// changes are what the decisive failures ask for, each once.
func (p *placement) changes() []string {
	var list []string
	for _, f := range p.failures {
		if !slices.Contains(list, f.Change) {
			list = append(list, f.Change)
		}
	}
	slices.Sort(list)
	return list
}

// nodesOf are the nodes (and pools) on which a case is decided.
func (p *placement) refs() []Ref {
	var refs []Ref
	for _, u := range p.units {
		refs = append(refs, u.ref())
	}
	slices.SortFunc(refs, probes.CompareRefs)
	return slices.Compact(refs)
}

func names(refs []Ref) string {
	var list []string
	for i, r := range refs {
		if i == 5 {
			list = append(list, fmt.Sprintf("%d more", len(refs)-i))
			break
		}
		list = append(list, r.Name)
	}
	return strings.Join(list, ", ")
}

// args are names as arguments of a command.
func args(refs []Ref) string {
	var list []string
	for _, r := range refs {
		list = append(list, r.Name)
	}
	return strings.Join(list, " ")
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// nodeCordoned: every node that would take the pods is cordoned.
var nodeCordoned = placementRule("node-cordoned", "are the nodes that would take pod {pod} cordoned, and is that all that keeps it out?",
	byCordon, false, []scheduling.Predicate{scheduling.Cordoned}, func(c pendingCase) told {
		nodes := c.refs()
		return told{nodes, map[string]string{"nodes": names(nodes), "nodeArgs": args(nodes), "cordonedVerb": plural(len(nodes), "is", "are")}, nil}
	})

// requestTooLarge: the pods ask for more than the largest node has, empty.
var requestTooLarge = placementRule("request-larger-than-any-node", "does pod {pod} ask for more than any node that is meant for it has, even empty?",
	byTooLarge, false, []scheduling.Predicate{scheduling.Resources}, func(c pendingCase) told {
		t := told{[]Ref{c.workload}, map[string]string{"resource": "resources", "asked": scheduling.ShowList(scheduling.Requests(c.pod)), "largest": "no node is there yet"}, nil}
		for _, f := range c.failures {
			if f.Amount == nil || !f.Never {
				continue
			}
			best := f.Amount
			for _, g := range c.failures {
				if g.Amount != nil && g.Amount.Resource == best.Resource && g.Amount.Allocatable.Cmp(best.Allocatable) > 0 {
					best = g.Amount
				}
			}
			t.vars["resource"] = string(best.Resource)
			t.vars["asked"] = scheduling.Show(best.Resource, best.Asked) + " of " + string(best.Resource)
			t.vars["largest"] = "the largest node has " + scheduling.Show(best.Resource, best.Allocatable) + " allocatable"
			break
		}
		for _, f := range c.failures {
			if f.Predicate == scheduling.InstanceTypes && f.Never {
				t.vars["largest"] += "; of its NodePool: " + f.Says
				break
			}
		}
		t.evidence = requestEvidence(c)
		if ds, says := c.overheadGrew(); says != "" {
			t.subjects = []Ref{ds, c.workload}
			t.vars["largest"] += "; " + says
			t.evidence = append(t.evidence, Saw("pods", nil, "%s", says))
		}
		return t
	})

// overheadGrew says which DaemonSet took the room, where the pod would fit on
// a node without DaemonSets and pods of its workload once did: then the
// DaemonSet's pods, which are newer, are what changed.
func (c pendingCase) overheadGrew() (ds Ref, says string) {
	var newest time.Time
	for _, u := range c.units {
		for _, f := range u.fails(scheduling.Resources) {
			if !f.Never || f.Amount == nil {
				continue
			}
			if f.Amount.Asked.Cmp(f.Amount.Allocatable) > 0 {
				return Ref{}, ""
			}
			for _, p := range c.x.cluster.OnNode(u.node.Name) {
				q := scheduling.Requests(p)[f.Amount.Resource]
				if !scheduling.OfDaemonSet(p) || q.IsZero() || !p.CreationTimestamp.After(newest) {
					continue
				}
				newest, ds = p.CreationTimestamp.Time, c.x.workloads.Of(p)
				says = fmt.Sprintf("%s, whose pods are the newest there (%s), asks for %s of %s on each node", short(ds), newest.UTC().Format(time.RFC3339), scheduling.Show(f.Amount.Resource, q), f.Amount.Resource)
			}
		}
	}
	ran := slices.ContainsFunc(c.x.workloads.Pods(c.workload), func(p *corev1.Pod) bool {
		return p.Spec.NodeName != "" && p.CreationTimestamp.Time.Before(newest)
	})
	if !ran {
		return Ref{}, ""
	}
	return ds, says
}

// requestEvidence names the containers that ask for most of what decides.
func requestEvidence(c pendingCase) []Evidence {
	var list []Evidence
	seen := map[corev1.ResourceName]bool{}
	for _, f := range c.failures {
		if f.Amount == nil || seen[f.Amount.Resource] {
			continue
		}
		seen[f.Amount.Resource] = true
		for _, container := range slices.Concat(c.pod.Spec.InitContainers, c.pod.Spec.Containers) {
			if q, ok := container.Resources.Requests[f.Amount.Resource]; ok {
				list = append(list, SawObject("pods", c.pod.Namespace, c.pod.Name, "container %s requests %s of %s", container.Name, scheduling.Show(f.Amount.Resource, q), f.Amount.Resource))
			}
		}
	}
	return list
}

// noRoom: nodes would hold the pod if they were not full.
var noRoom = placementRule("no-room-on-nodes", "is every node that is meant for pod {pod} too full to take it, though it would fit on an empty one?",
	byNoRoom, false, []scheduling.Predicate{scheduling.Resources}, func(c pendingCase) told {
		resource := c.failures[0].Amount.Resource
		t := told{[]Ref{c.workload}, map[string]string{
			"resource": string(resource), "asked": scheduling.Show(resource, c.failures[0].Amount.Asked), "nodes": names(c.refs()),
		}, requestEvidence(c)}
		free := c.failures[0].Amount
		for _, f := range c.failures {
			if f.Amount.Resource == resource && f.Amount.Free.Cmp(free.Free) > 0 {
				free = f.Amount
			}
		}
		t.vars["free"] = scheduling.Show(resource, free.Free)
		hog, says, overshadows := c.hog(resource)
		t.vars["hog"] = says
		if hog != (Ref{}) {
			t.evidence = append(t.evidence, Saw("pods", nil, "%s", says))
			if hog != c.workload {
				t.subjects = append(t.subjects, hog)
			}
			if overshadows {
				t.subjects = []Ref{hog, c.workload}
			}
		}
		return t
	})

// hog is the workload that takes most of a resource on the nodes that decide.
// overshadows: it takes at least half of what they have and came after the
// workload that waits, so that it, and not the one that waits, is what changed.
func (c pendingCase) hog(resource corev1.ResourceName) (hog Ref, says string, overshadows bool) {
	used := map[Ref]int64{}
	born := map[Ref]time.Time{}
	var capacity int64
	amount := func(list corev1.ResourceList) int64 {
		q := list[resource]
		return q.MilliValue()
	}
	for _, u := range c.units {
		if u.node == nil {
			continue
		}
		capacity += amount(u.node.Status.Allocatable)
		for _, p := range c.x.cluster.OnNode(u.node.Name) {
			w := c.x.workloads.Of(p)
			used[w] += amount(scheduling.Requests(p))
			if t, ok := born[w]; !ok || p.CreationTimestamp.Time.Before(t) {
				born[w] = p.CreationTimestamp.Time
			}
		}
	}
	for w := range used {
		if hog == (Ref{}) || used[w] > used[hog] || used[w] == used[hog] && probes.CompareRefs(w, hog) < 0 {
			hog = w
		}
	}
	if hog == (Ref{}) || capacity == 0 || used[hog] == 0 {
		return Ref{}, "", false
	}
	share := used[hog] * 100 / capacity
	says = fmt.Sprintf("%s takes %d %% of the %s of these nodes", short(hog), share, resource)
	first := c.pod.CreationTimestamp.Time
	for _, p := range c.x.workloads.Pods(c.workload) {
		if p.CreationTimestamp.Time.Before(first) {
			first = p.CreationTimestamp.Time
		}
	}
	return hog, says, hog != c.workload && share >= 50 && !born[hog].IsZero() && born[hog].After(first)
}

// hostPortTaken: another pod on each node holds the host port.
var hostPortTaken = placementRule("host-port-taken", "is the host port that pod {pod} asks for taken on every node that is meant for it?",
	byHostPort, false, []scheduling.Predicate{scheduling.HostPort}, func(c pendingCase) told {
		t := told{[]Ref{c.workload}, map[string]string{"port": c.failures[0].Key, "holder": ""}, nil}
		var holders []string
		for _, f := range c.failures {
			for _, p := range f.Pods {
				holder := c.x.workloads.Of(p)
				if holder != c.workload && !slices.Contains(t.subjects, holder) {
					t.subjects = append(t.subjects, holder)
				}
				if !slices.Contains(holders, short(holder)) {
					holders = append(holders, short(holder))
				}
			}
		}
		t.vars["holder"] = strings.Join(holders, ", ")
		return t
	})

// antiAffinity: each place already has a pod that this one must not be with.
var antiAffinity = placementRule("anti-affinity-leaves-no-node", "does a pod anti-affinity keep pod {pod} from every node that is meant for it?",
	byAntiAffinity, false, []scheduling.Predicate{scheduling.AntiAffinity, scheduling.AntiAffinityOfOthers}, func(c pendingCase) told {
		live := slices.DeleteFunc(slices.Clone(c.x.workloads.Pods(c.workload)), probes.Finished)
		domains := map[string]bool{}
		for _, f := range c.failures {
			domains[f.Have] = true
		}
		f := c.failures[0]
		t := told{[]Ref{c.workload}, map[string]string{
			"term": f.Want, "key": f.Key, "domains": fmt.Sprint(len(domains)), "replicas": fmt.Sprint(len(live)), "nodes": names(c.refs()), "kindLower": strings.ToLower(c.workload.Kind),
		}, nil}
		if f.Predicate == scheduling.AntiAffinityOfOthers && len(f.Pods) > 0 {
			if other := c.x.workloads.Of(f.Pods[0]); other != c.workload {
				t.subjects = append(t.subjects, other)
			}
		}
		return t
	})

// affinityToNobody: the pods must run beside pods that run nowhere suitable.
var affinityToNobody = placementRule("pod-affinity-unmet", "must pod {pod} run beside pods that run on no node that is meant for it?",
	byAffinity, false, []scheduling.Predicate{scheduling.Affinity}, func(c pendingCase) told {
		return told{[]Ref{c.workload}, map[string]string{"term": c.failures[0].Want, "says": c.failures[0].Says}, nil}
	})

// spreadUnsatisfiable: a hard topology spread constraint refuses each node.
var spreadUnsatisfiable = placementRule("topology-spread-unsatisfiable", "does a topology spread constraint (DoNotSchedule) refuse every node that is meant for pod {pod}?",
	bySpread, false, []scheduling.Predicate{scheduling.Spread}, func(c pendingCase) told {
		return told{[]Ref{c.workload}, map[string]string{"key": c.failures[0].Key, "says": c.failures[0].Says}, nil}
	})

// attachLimit: no node may attach another volume.
var attachLimit = placementRule("volume-attach-limit-reached", "has every node that is meant for pod {pod} attached as many volumes as it may?",
	byAttachLimit, false, []scheduling.Predicate{scheduling.VolumeLimit}, func(c pendingCase) told {
		return told{[]Ref{c.workload}, map[string]string{"driver": c.failures[0].Key, "says": c.failures[0].Says}, nil}
	})

// gated: nobody has removed a scheduling gate.
var gated = placementRule("scheduling-gate-not-removed", "does pod {pod} have a scheduling gate that nobody removed?",
	byGate, false, nil, func(c pendingCase) told {
		return told{[]Ref{c.workload}, map[string]string{"gate": c.failures[0].Key}, nil}
	})

// nodesNotReady: the nodes that are meant for the pods are down; what took
// them down explains it.
var nodesNotReady = placementRule("pod-waits-for-ready-node", "are all nodes that are meant for pod {pod} not ready?",
	byNotReady, true, nil, func(c pendingCase) told {
		nodes := c.refs()
		return told{nodes, map[string]string{"nodes": names(nodes)}, nil}
	})

// claimNotBound: the pods wait for a claim; why it isn't bound explains it.
var claimNotBound = placementRule("claim-not-bound", "does pod {pod} wait for a PersistentVolumeClaim that is not bound?",
	byClaim, true, nil, func(c pendingCase) told {
		return told{[]Ref{{Kind: "PersistentVolumeClaim", Namespace: c.pod.Namespace, Name: c.failures[0].Claim}}, map[string]string{"claim": c.failures[0].Claim}, nil}
	})

// claimMissing: the pods name a claim that doesn't exist.
var claimMissing = placementRule("claim-missing", "does pod {pod} use a PersistentVolumeClaim that doesn't exist?",
	byClaimMissing, false, nil, func(c pendingCase) told {
		f := c.failures[0]
		t := told{[]Ref{c.workload}, map[string]string{"claim": f.Claim, "near": "", "says": f.Says}, nil}
		if c.x.cluster.Claims != nil {
			var have []string
			for claim := range c.x.cluster.Claims.In(c.pod.Namespace) {
				have = append(have, claim.Name)
			}
			if near := nearest(f.Claim, have); near != "" {
				t.vars["near"] = fmt.Sprintf(" There is a claim named %s.", near)
			}
		}
		t.evidence = []Evidence{SawObject("persistentvolumeclaims", c.pod.Namespace, f.Claim, "%s", f.Says)}
		return t
	})

// claimExclusive: a ReadWriteOncePod claim is in use.
var claimExclusive = placementRule("claim-used-by-another-pod", "does another pod hold the ReadWriteOncePod claim of pod {pod}?",
	byExclusive, false, nil, func(c pendingCase) told {
		f := c.failures[0]
		holder := c.x.workloads.Of(f.Pods[0])
		t := told{[]Ref{c.workload}, map[string]string{"claim": f.Claim, "holder": short(holder)}, nil}
		if holder != c.workload {
			t.subjects = append(t.subjects, holder)
		}
		return t
	})

// poolLimit: the NodePools that would serve the pods are at their limits.
var poolLimit = placementRule("nodepool-limit-reached", "are all NodePools that would serve pod {pod} at their spec.limits?",
	byPoolLimits, false, nil, func(c pendingCase) told {
		pools := c.refs()
		f := c.failures[0]
		return told{pools, map[string]string{"pool": pools[0].Name, "resource": f.Key, "limit": scheduling.Show(f.Amount.Resource, f.Amount.Allocatable), "left": scheduling.Show(f.Amount.Resource, f.Amount.Free), "says": f.Says}, nil}
	})

// poolNotReady: the NodePools that would serve the pods are not Ready; why
// they are not explains it.
var poolNotReady = placementRule("nodepool-not-ready", "are the NodePools that would serve pod {pod} not Ready?",
	byPoolNotReady, true, nil, func(c pendingCase) told {
		pools := c.refs()
		return told{pools, map[string]string{"pool": pools[0].Name, "says": c.failures[0].Says}, nil}
	})

// noNodeFromKarpenter: a NodePool would serve the pods, and no node comes; why
// it doesn't explains it.
var noNodeFromKarpenter = placementRule("karpenter-makes-no-node", "would a NodePool serve pod {pod}, while no node comes for it?",
	byKarpenter, true, nil, func(c pendingCase) told {
		pools := c.refs()
		return told{pools, map[string]string{"pool": pools[0].Name}, nil}
	})

// placementUnclear: nothing that is recomputed keeps the pods from a node, or
// what would decide can't be had.
var placementUnclear = &Rule{
	ID: "placement-unclear", Explains: []*Rule{podPending}, LastResort: true, Needs: []probes.Any{placements, probes.Workloads},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		var suspects []Suspect
		for _, c := range pendingCases(facts, effects) {
			if c.reason != byNothing && c.reason != byScheduler {
				continue
			}
			err := c.err
			if err == nil {
				err = fmt.Errorf("%s, and no scheduler has said that it tried", c.on.Summary())
			}
			suspects = append(suspects, Suspect{Subjects: []Ref{c.workload}, Effects: []*Finding{c.effect}, Data: CantTell(err, c.evidence()...), Vars: map[string]string{
				"workload": short(c.workload), "pod": c.pod.Name, "podNamespace": c.pod.Namespace, "says": err.Error(),
			}})
		}
		return suspects
	},
	Tests: []Test{{
		Asks: "does something keep pod {pod} from every node that can't be recomputed from what is here?", Needs: []probes.Any{placements},
		Run: func(_ *probes.Facts, s Suspect) Answer { return s.Data.(Answer) },
	}},
}

// noNodes: there is no node at all that pods could go to; what became of them
// explains it.
var noNodes = placementRule("no-node-for-pods", "does the cluster have no node at all, and no NodePool, that could take pod {pod}?",
	byNoNodes, true, nil, func(c pendingCase) told {
		return told{[]Ref{c.workload}, map[string]string{"all": fmt.Sprint(len(c.x.cluster.Nodes))}, nil}
	})

var schedulingRules = []*Rule{
	nodeCordoned, labelsMatchNoNode, taintNotTolerated, startupTaintStays, requestTooLarge, noRoom, hostPortTaken, antiAffinity,
	affinityToNobody, spreadUnsatisfiable, attachLimit, volumeElsewhere, gated, nodesNotReady, claimNotBound, claimMissing,
	claimExclusive, poolLimit, poolNotReady, noNodeFromKarpenter, schedulerDown, schedulerUnknown, noNodes, placementUnclear, nodeNameMissing,
}
