package scheduling

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
)

// An Amount is one resource that a node has too little of.
type Amount struct {
	Resource    corev1.ResourceName
	Asked       resource.Quantity
	Free        resource.Quantity // may be negative
	Allocatable resource.Quantity
	// Overhead is what the node's DaemonSet pods take.
	Overhead resource.Quantity
	// Preemptible: removing the pods of lower priority would make room.
	Preemptible bool
}

// Requests are what the scheduler reserves for a pod: containers, init
// containers, sidecars, overhead, and one of "pods".
func Requests(pod *corev1.Pod) corev1.ResourceList {
	list := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{UseStatusResources: true})
	total := corev1.ResourceList{}
	maps.Copy(total, list)
	total[corev1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
	return total
}

// Used is the sum of the requests of pods.
func Used(pods []*corev1.Pod) corev1.ResourceList {
	total := corev1.ResourceList{}
	for _, p := range pods {
		for name, q := range Requests(p) {
			sum := total[name]
			sum.Add(q)
			total[name] = sum
		}
	}
	return total
}

// OnNode are the unfinished pods of a node.
func (c *Cluster) OnNode(name string) []*corev1.Pod {
	c.index()
	return c.onNode[name]
}

// resources are those of which the node has too little left.
func (c *Cluster) resources(pod *corev1.Pod, node *corev1.Node) []Failure {
	if c.Pods == nil {
		return []Failure{{Predicate: Resources, Change: "free resources", Unknown: true, Says: "the pods on the node are unknown"}}
	}
	var failures []Failure
	asked := Requests(pod)
	others := c.onNode[node.Name]
	used := Used(others)
	overhead := Used(slices.DeleteFunc(slices.Clone(others), func(p *corev1.Pod) bool { return !OfDaemonSet(p) }))
	priority := schedulinghelpers.PodPriority(pod)
	lower := Used(slices.DeleteFunc(slices.Clone(others), func(p *corev1.Pod) bool { return schedulinghelpers.PodPriority(p) >= priority }))
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		want := asked[name]
		if want.IsZero() {
			continue
		}
		allocatable, known := offers(node, name)
		if !known {
			if name == corev1.ResourceCPU || name == corev1.ResourceMemory {
				failures = append(failures, Failure{Predicate: Resources, Key: string(name), Change: "get more " + string(name), Unknown: true, Says: "what the node can allocate of " + string(name) + " is unknown"})
			}
			continue
		}
		free := allocatable.DeepCopy()
		free.Sub(used[name])
		if want.Cmp(free) <= 0 {
			continue
		}
		amount := &Amount{Resource: name, Asked: want, Free: free, Allocatable: allocatable, Overhead: overhead[name]}
		empty := allocatable.DeepCopy()
		empty.Sub(overhead[name])
		evicted := free.DeepCopy()
		evicted.Add(lower[name])
		amount.Preemptible = want.Cmp(evicted) <= 0 && (pod.Spec.PreemptionPolicy == nil || *pod.Spec.PreemptionPolicy != corev1.PreemptNever)
		f := Failure{Predicate: Resources, Amount: amount, Key: string(name), Never: want.Cmp(empty) > 0, Change: "get more " + string(name)}
		switch {
		case allocatable.IsZero():
			f.Says = fmt.Sprintf("offers no %s at all (asked: %s)", name, Show(name, want))
		case name == corev1.ResourcePods:
			f.Says = fmt.Sprintf("already runs %s of at most %s pods", Show(name, used[name]), Show(name, allocatable))
		case f.Never:
			f.Says = fmt.Sprintf("is too small: %s of %s asked, %s allocatable, of which DaemonSets take %s", Show(name, want), name, Show(name, allocatable), Show(name, overhead[name]))
		default:
			f.Says = fmt.Sprintf("is full: %s of %s asked, %s of %s free", Show(name, want), name, Show(name, free), Show(name, allocatable))
		}
		failures = append(failures, f)
	}
	return failures
}

// offers is what a node can allocate of a resource. A node without the entry
// for one of the four that every kubelet reports is one of which little is
// known; extended resources are none where there is no entry.
func offers(node *corev1.Node, name corev1.ResourceName) (q resource.Quantity, known bool) {
	list := node.Status.Allocatable
	if len(list) == 0 {
		list = node.Status.Capacity
	}
	if q, ok := list[name]; ok {
		return q, true
	}
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods:
		return resource.Quantity{}, false
	}
	return resource.Quantity{}, true
}

// Show prints an amount of a resource for people: "500m", "3.92", "14.2Gi".
func Show(name corev1.ResourceName, q resource.Quantity) string {
	switch {
	case name == corev1.ResourceCPU:
		if m := q.MilliValue(); m%1000 != 0 {
			return fmt.Sprintf("%dm", m)
		}
		return fmt.Sprintf("%d", q.Value())
	case name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage || name == corev1.ResourceStorage || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) || strings.HasSuffix(string(name), ".memory") || strings.HasSuffix(string(name), ".storage"):
		v := float64(q.Value())
		for _, unit := range []struct {
			size float64
			name string
		}{{1 << 40, "Ti"}, {1 << 30, "Gi"}, {1 << 20, "Mi"}, {1 << 10, "Ki"}} {
			if v >= unit.size || v <= -unit.size {
				return strings.TrimSuffix(fmt.Sprintf("%.1f", v/unit.size), ".0") + unit.name
			}
		}
		return q.String()
	default:
		return q.String()
	}
}

// OfDaemonSet reports whether a DaemonSet controls the pod.
func OfDaemonSet(p *corev1.Pod) bool {
	owner := metav1.GetControllerOf(p)
	return owner != nil && owner.Kind == "DaemonSet"
}

// hostPorts are the ports of the node that others hold already.
func (c *Cluster) hostPorts(pod *corev1.Pod, node *corev1.Node) []Failure {
	var failures []Failure
	for _, want := range HostPorts(pod) {
		for _, other := range c.onNode[node.Name] {
			if !slices.ContainsFunc(HostPorts(other), want.conflicts) {
				continue
			}
			failures = append(failures, Failure{
				Predicate: HostPort, Key: want.String(), Pods: []*corev1.Pod{other}, Change: "free host port " + want.String(),
				Says: fmt.Sprintf("host port %s is taken by pod %s/%s", want, other.Namespace, other.Name),
			})
		}
	}
	return failures
}

// A Port is a port of the node that a pod wants for itself.
type Port struct {
	IP       string // empty or 0.0.0.0: every address
	Protocol corev1.Protocol
	Number   int32
}

func (p Port) String() string {
	s := fmt.Sprintf("%d/%s", p.Number, p.Protocol)
	if p.IP != "0.0.0.0" {
		s = p.IP + ":" + s
	}
	return s
}

func (p Port) conflicts(q Port) bool {
	return p.Number == q.Number && p.Protocol == q.Protocol && (p.IP == q.IP || p.IP == "0.0.0.0" || q.IP == "0.0.0.0")
}

// HostPorts are the ports of the node that a pod's containers and sidecars ask for.
func HostPorts(pod *corev1.Pod) []Port {
	var ports []Port
	add := func(container corev1.Container) {
		for _, p := range container.Ports {
			if p.HostPort <= 0 {
				continue
			}
			port := Port{IP: p.HostIP, Protocol: p.Protocol, Number: p.HostPort}
			if port.IP == "" {
				port.IP = "0.0.0.0"
			}
			if port.Protocol == "" {
				port.Protocol = corev1.ProtocolTCP
			}
			ports = append(ports, port)
		}
	}
	for _, container := range pod.Spec.Containers {
		add(container)
	}
	for _, container := range pod.Spec.InitContainers {
		if container.RestartPolicy != nil && *container.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(container)
		}
	}
	return ports
}
