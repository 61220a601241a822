package diagnose

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/scheduling"
)

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

// bootTime is within which a new node gets the pods of its DaemonSets: such
// pods are young for the node is.
const bootTime = 10 * time.Minute

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
			daemons := slices.DeleteFunc(slices.Clone(c.x.cluster.OnNode(u.node.Name)), func(p *corev1.Pod) bool { return !scheduling.OfDaemonSet(p) })
			overhead := scheduling.Used(daemons)
			for _, p := range daemons {
				q := scheduling.Requests(p)[f.Amount.Resource]
				withNode := p.CreationTimestamp.Sub(u.node.CreationTimestamp.Time) < bootTime
				if withNode || q.IsZero() || !p.CreationTimestamp.After(newest) {
					continue
				}
				// The pod would have to fit without it.
				without := f.Amount.Asked.DeepCopy()
				without.Add(overhead[f.Amount.Resource])
				without.Sub(q)
				if without.Cmp(f.Amount.Allocatable) > 0 {
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
	// Without such a pod: its revision is older than what grew.
	if owner := metav1.GetControllerOf(c.pod); !ran && owner != nil && c.x.replicaSets != nil {
		set := c.x.replicaSets.Get(c.pod.Namespace, owner.Name)
		ran = set != nil && set.CreationTimestamp.Time.Before(newest)
	}
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
		if by, why := c.preemptor(); why != "" && by != c.workload {
			hog, says, overshadows = by, why, true
		}
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

// preempted recognises the event about a pod that made room for another one,
// which is named by its UID, before Kubernetes 1.28 by its name.
// Source: kubernetes pkg/scheduler/framework/preemption/preemption.go.
var preempted = regexp.MustCompile(`^Preempted by (?:pod )?(\S+) on node`)

// preemptor is the workload whose pods of a higher priority drove pods of this
// one from nodes that decide, and are there.
func (c pendingCase) preemptor() (by Ref, says string) {
	if c.x.events == nil {
		return Ref{}, ""
	}
	for _, e := range c.x.events.All() {
		m := preempted.FindStringSubmatch(e.Message)
		if e.Reason != "Preempted" || m == nil || e.InvolvedObject.Namespace != c.workload.Namespace || !strings.HasPrefix(e.InvolvedObject.Name, c.workload.Name+"-") {
			continue
		}
		for _, u := range c.units {
			if u.node == nil {
				continue
			}
			for _, p := range c.x.cluster.OnNode(u.node.Name) {
				if string(p.UID) != m[1] && p.Namespace+"/"+p.Name != m[1] {
					continue
				}
				by = c.x.workloads.Of(p)
				return by, fmt.Sprintf("Pod %s was preempted at %s: %s, of priority %d (%s), took its place on node %s", e.InvolvedObject.Name, stamp(probes.EventTime(e)),
					short(by), priorityOf(p), orDefault(p.Spec.PriorityClassName, "no PriorityClass"), u.node.Name)
			}
		}
	}
	return Ref{}, ""
}

func priorityOf(p *corev1.Pod) int32 {
	if p.Spec.Priority == nil {
		return 0
	}
	return *p.Spec.Priority
}

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
