package diagnose

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/pposiraegi/ppodoctor/probes"
)

// oomKilled takes the containers that the kernel killed for memory.
func oomKilled(c container) bool {
	for _, t := range []*corev1.ContainerStateTerminated{c.status.State.Terminated, c.status.LastTerminationState.Terminated} {
		if t != nil && (t.Reason == "OOMKilled" || strings.Contains(t.Message, "OOM-killed")) {
			return true
		}
	}
	w := c.status.State.Waiting
	return w != nil && strings.Contains(w.Message, "OOM-killed")
}

// memoryLimit is the limit that a container's memory is held to: its own, or
// its pod's.
func memoryLimit(c container) (resource.Quantity, bool) {
	if q, ok := c.spec.Resources.Limits[corev1.ResourceMemory]; ok {
		return q, true
	}
	if r := c.pod.Spec.Resources; r != nil {
		if q, ok := r.Limits[corev1.ResourceMemory]; ok {
			return q, true
		}
	}
	return resource.Quantity{}, false
}

// nodeShortOfMemory says whether a node itself ran out of memory: its
// condition, or an OOM of the system that it reported.
func nodeShortOfMemory(facts *probes.Facts, node string) (Evidence, bool, error) {
	nodes, err := probes.Nodes.Of(facts)
	if err != nil {
		return Evidence{}, false, err
	}
	if n := nodes.Get("", node); n != nil {
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeMemoryPressure && c.Status == corev1.ConditionTrue {
				return SawObject("nodes", "", node, "node %s has MemoryPressure: %s", node, c.Message), true, nil
			}
		}
	}
	events, err := probes.Events.Of(facts)
	if err != nil {
		return Evidence{}, false, err
	}
	for _, e := range slices.Backward(events.About(Ref{Kind: "Node", Name: node})) {
		if e.Reason == "SystemOOM" {
			return SawObject("events", e.Namespace, e.Name, "event SystemOOM on node %s: %s", node, e.Message), true, nil
		}
	}
	return Evidence{}, false, nil
}

// memoryLimitTooLow: the container goes over its own memory limit.
var memoryLimitTooLow = &Rule{
	ID:       "memory-limit-exceeded",
	Explains: dying,
	Needs:    []probes.Any{probes.Pods},
	Suspects: perContainer(oomKilled),
	Tests: []Test{
		{
			Asks: "was container {container} killed for memory, and has it a limit of its own?",
			Run: func(_ *probes.Facts, s Suspect) Answer {
				c := containers(s)[0]
				limit, ok := memoryLimit(c)
				if !ok {
					return Answered(false, SawObject("pods", c.pod.Namespace, c.pod.Name, "container %s has no memory limit", c.spec.Name))
				}
				a := Answered(true, SawObject("pods", c.pod.Namespace, c.pod.Name, "pod %s: container %s was OOMKilled (exit code 137); its memory limit is %s, its request %s", c.pod.Name, c.spec.Name, limit.String(), requested(c)))
				return a.With("limit", limit.String()).With("hint", lifetime(c)+heapHint(c, limit))
			},
		},
		{
			Asks:  "was the node not short of memory itself?",
			Needs: []probes.Any{probes.Nodes, probes.Events},
			Run: func(facts *probes.Facts, s Suspect) Answer {
				e, short, err := nodeShortOfMemory(facts, s.Vars["node"])
				if err != nil {
					return CantTell(err)
				}
				if short {
					return Answered(false, e)
				}
				return Answered(true, SawObject("nodes", "", s.Vars["node"], "node %s is not short of memory", s.Vars["node"]))
			},
		},
	},
}

// pressureOn are the symptoms that a node itself reports the pressure.
func pressureOn(effects []*Finding, node string, pressure corev1.NodeConditionType) []*Finding {
	return slices.DeleteFunc(slices.Clone(effects), func(e *Finding) bool {
		return e.Rule != nodePressed || e.Subject().Name != node || e.Vars["pressure"] != string(pressure)
	})
}

func requested(c container) string {
	if q, ok := c.spec.Resources.Requests[corev1.ResourceMemory]; ok {
		return q.String()
	}
	return "not set"
}

// lifetime says how long the run that was killed had lasted: constant
// seconds point at what a start loads, hours at growth.
func lifetime(c container) string {
	exit := probes.LastExit(c.status)
	if exit == nil || exit.StartedAt.IsZero() {
		return ""
	}
	d := exit.FinishedAt.Sub(exit.StartedAt.Time).Round(time.Second)
	if d < 2*time.Minute {
		return fmt.Sprintf(" It was killed %s after it started: what it loads at the start is already too much.", d)
	}
	return fmt.Sprintf(" It was killed %s after it started.", d)
}

var heapSize = regexp.MustCompile(`(?:-Xmx|-XX:MaxHeapSize=|--max-old-space-size=)(\d+)([kKmMgG]?)`)

// heapHint compares the heap that the program may use with the limit.
func heapHint(c container, limit resource.Quantity) string {
	texts := slices.Concat(c.spec.Command, c.spec.Args)
	names := make([]string, len(texts))
	for _, e := range c.spec.Env {
		texts, names = append(texts, e.Value), append(names, e.Name)
	}
	for i, t := range texts {
		m := heapSize.FindStringSubmatch(t)
		if m == nil {
			continue
		}
		n, err := strconv.ParseInt(m[1], 10, 64)
		if err != nil {
			continue
		}
		unit := map[string]int64{"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "": 1}[strings.ToLower(m[2])]
		if strings.HasPrefix(m[0], "--max-old") {
			unit = 1 << 20
		}
		if n*unit*10 >= limit.Value()*8 {
			return fmt.Sprintf(" %s lets the heap alone grow to %s, and the limit is %s.", cmp.Or(names[i], "The command line"), m[0], limit.String())
		}
	}
	return ""
}

// memoryOfNodeUsedUp: the node ran out of memory, and a workload without a
// limit was killed there.
var memoryOfNodeUsedUp = &Rule{
	ID:       "memory-without-limit",
	Explains: append(slices.Clone(dying), podEvicted, nodePressed),
	Needs:    []probes.Any{probes.Pods},
	Suspects: func(_ *probes.Facts, effects []*Finding) []Suspect {
		// The victims of a node are the effects of the workload that uses most.
		type hog struct {
			c     container
			owner Ref
			used  resource.Quantity
		}
		hogs := map[string]hog{}
		onNode := map[string][]*Finding{}
		for _, e := range rootSymptoms(effects) {
			for _, p := range troubled(e.symptom) {
				node := p.Spec.NodeName
				m := lowOnMemory.FindStringSubmatch(p.Status.Message)
				if p.Status.Reason == "Evicted" && strings.Contains(p.Status.Message, "low on resource: memory") && !slices.Contains(onNode[node], e.effect) {
					onNode[node] = append(onNode[node], e.effect)
				}
				for _, c := range containersOf(p) {
					used := resource.Quantity{}
					if m != nil && m[1] == c.spec.Name {
						if q, err := resource.ParseQuantity(m[2]); err == nil {
							used = q
						}
					} else if !oomKilled(c) {
						continue
					}
					if !slices.Contains(onNode[node], e.effect) {
						onNode[node] = append(onNode[node], e.effect)
					}
					if _, limited := memoryLimit(c); !limited && (hogs[node].c.pod == nil || used.Cmp(hogs[node].used) > 0) {
						hogs[node] = hog{c, e.symptom.Subject(), used}
					}
				}
			}
		}
		var list []Suspect
		for _, node := range sortedKeys(hogs) {
			h := hogs[node]
			s := Suspect{Subjects: []Ref{h.owner}, Effects: append(onNode[node], pressureOn(effects, node, corev1.NodeMemoryPressure)...), Vars: containerVars(h.c), Data: []container{h.c}}
			s.Vars["used"] = "more than the node had left"
			if !h.used.IsZero() {
				s.Vars["used"] = h.used.String()
			}
			list = append(list, s)
		}
		return list
	},
	Tests: []Test{{
		Asks:  "did node {node} run out of memory, while container {container} has no memory limit?",
		Needs: []probes.Any{probes.Nodes, probes.Events},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			c := containers(s)[0]
			e, short, err := nodeShortOfMemory(facts, s.Vars["node"])
			says := SawObject("pods", c.pod.Namespace, c.pod.Name, "container %s of pod %s has no memory limit; its request is %s", c.spec.Name, c.pod.Name, requested(c))
			if c.pod.Status.Reason == "Evicted" {
				return Answered(true, SawObject("pods", c.pod.Namespace, c.pod.Name, "pod %s was evicted: %s", c.pod.Name, c.pod.Status.Message), says)
			}
			if err != nil {
				return CantTell(err)
			}
			if !short {
				return Answered(oomKilled(c), SawObject("pods", c.pod.Namespace, c.pod.Name, "pod %s: container %s was OOMKilled though no limit holds it", c.pod.Name, c.spec.Name), says)
			}
			return Answered(true, e, says)
		},
	}},
}

// lowOnMemory and lowOnDisk are what the kubelet says of an eviction.
// Source: kubernetes pkg/kubelet/eviction/helpers.go.
var (
	lowOnMemory = regexp.MustCompile(`low on resource: memory.*?Container (\S+) was using (\S+?), request is`)
	lowOnDisk   = regexp.MustCompile(`low on resource: (?:ephemeral-storage|inodes).*?Container (\S+) was using (\S+?), request is`)
	overOwn     = regexp.MustCompile(`(?i)(?P<why>Pod ephemeral local storage usage exceeds the total limit of containers (?P<limit>\S+?)\.?\s*$|Container (?P<container>\S+) exceeded its local ephemeral storage limit "(?P<limit2>[^"]+)"|Usage of EmptyDir volume "(?P<volume>[^"]+)" exceeds the limit "(?P<limit3>[^"]+)")`)
)

// shortBy is how much the node was short of.
var shortBy = regexp.MustCompile(`low on resource: ephemeral-storage\. Threshold quantity: (\S+?), available: (\S+?)\.`)

// bystander reports whether a container that was evicted for the node's disk
// used too little of it to have filled it: all of it would not have sufficed.
func bystander(message string, used resource.Quantity) bool {
	m := shortBy.FindStringSubmatch(message)
	if m == nil {
		return false
	}
	threshold, err := resource.ParseQuantity(m[1])
	available, err2 := resource.ParseQuantity(m[2])
	if err != nil || err2 != nil {
		return false
	}
	threshold.Sub(available)
	return used.Cmp(threshold) < 0
}

// localStorageLimitExceeded: a pod is evicted for its own limit of local disk.
var localStorageLimitExceeded = &Rule{
	ID:       "local-storage-limit-exceeded",
	Explains: []*Rule{podEvicted},
	Needs:    []probes.Any{probes.Pods},
	Suspects: func(_ *probes.Facts, effects []*Finding) []Suspect {
		var list []Suspect
		for _, e := range effects {
			for _, p := range troubled(e) {
				got := groups(overOwn, strings.TrimSpace(p.Status.Message))
				if got == nil {
					continue
				}
				s := Suspect{Subjects: []Ref{e.Subject()}, Effects: []*Finding{e}, Vars: map[string]string{"pod": p.Name, "node": p.Spec.NodeName, "limit": got["limit"], "why": got["why"]}}
				s.Found = []Evidence{SawObject("pods", p.Namespace, p.Name, "pod %s was evicted: %s", p.Name, p.Status.Message)}
				list = append(list, s)
				break
			}
		}
		return list
	},
	Tests: []Test{{
		Asks: "did the pod go over its own limit of local storage ({limit})?",
		Run:  func(_ *probes.Facts, s Suspect) Answer { return Answered(true, s.Found...) },
	}},
}

// diskOfNodeUsedUp: a workload without a limit of local storage fills the
// node's disk, and others are evicted with it.
var diskOfNodeUsedUp = &Rule{
	ID:       "local-storage-without-limit",
	Explains: []*Rule{podEvicted, nodePressed},
	Needs:    []probes.Any{probes.Pods},
	Suspects: func(_ *probes.Facts, effects []*Finding) []Suspect {
		type use struct {
			effect *Finding
			pod    *corev1.Pod
			name   string
			used   resource.Quantity
		}
		most := map[string]use{}
		onNode := map[string][]*Finding{}
		for _, e := range effects {
			for _, p := range troubled(e) {
				if !strings.Contains(p.Status.Message, "low on resource: ephemeral-storage") && !strings.Contains(p.Status.Message, "low on resource: inodes") {
					continue
				}
				if !slices.Contains(onNode[p.Spec.NodeName], e) {
					onNode[p.Spec.NodeName] = append(onNode[p.Spec.NodeName], e)
				}
				m := lowOnDisk.FindStringSubmatch(p.Status.Message)
				if m == nil {
					continue
				}
				q, err := resource.ParseQuantity(m[2])
				if err == nil && bystander(p.Status.Message, q) {
					continue
				}
				if err == nil && (most[p.Spec.NodeName].pod == nil || q.Cmp(most[p.Spec.NodeName].used) > 0) {
					most[p.Spec.NodeName] = use{e, p, m[1], q}
				}
			}
		}
		var list []Suspect
		for _, node := range sortedKeys(most) {
			u := most[node]
			list = append(list, Suspect{
				Subjects: []Ref{u.effect.Subject()}, Effects: append(onNode[node], pressureOn(effects, node, corev1.NodeDiskPressure)...), Data: u.pod,
				Vars:  map[string]string{"node": node, "container": u.name, "used": u.used.String(), "pod": u.pod.Name},
				Found: []Evidence{SawObject("pods", u.pod.Namespace, u.pod.Name, "pod %s was evicted: %s", u.pod.Name, u.pod.Status.Message)},
			})
		}
		return list
	},
	Tests: []Test{{
		Asks: "does container {container}, which used most of node {node}'s disk, have no limit of local storage?",
		Run: func(_ *probes.Facts, s Suspect) Answer {
			p := s.Data.(*corev1.Pod)
			c := probes.ContainerOf(p, s.Vars["container"])
			if c == nil {
				return Answered(false)
			}
			if q, ok := c.Resources.Limits[corev1.ResourceEphemeralStorage]; ok {
				return Answered(false, SawObject("pods", p.Namespace, p.Name, "container %s has a limit of %s", c.Name, q.String()))
			}
			return Answered(true, SawObject("pods", p.Namespace, p.Name, "container %s has no limits.ephemeral-storage", c.Name))
		},
	}},
}

// heapExhausted: the program's own heap is full, without the kernel.
var heapExhausted = fromLog("heap-exhausted", "does the program say that its own heap is full?", ailing, nil,
	func(_ *probes.Facts, f *logFault) blame {
		b := blame{vars: map[string]string{"limit": "not set", "hint": ""}}
		if q, ok := memoryLimit(f.container); ok {
			b.vars["limit"] = q.String()
		}
		for _, e := range f.container.spec.Env {
			if m := heapSize.FindString(e.Value); m != "" {
				b.vars["hint"] = fmt.Sprintf(" %s sets %s.", e.Name, m)
			}
		}
		return b
	}, "out-of-memory-heap")

var memoryRules = []*Rule{memoryLimitTooLow, memoryOfNodeUsedUp, localStorageLimitExceeded, diskOfNodeUsedUp, heapExhausted}
