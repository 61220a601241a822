package probes

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Pods are all pods. Those that are well are reduced while they are read: they
// keep what places them and that they are ready, and share the rest with the
// others of their workload.
var Pods = &Probe[*PodList]{
	Name:  "pods",
	About: "pods with the state of their containers",
	Reads: []Permission{{Verb: "list", Resource: "pods"}},
	Gather: func(ctx context.Context, src Source, _ *Facts) (*PodList, error) {
		var pods []*corev1.Pod
		reducer := newPodReducer()
		for p, err := range Items[corev1.Pod](ctx, src, Document{Path: "pods"}) {
			if err != nil {
				return nil, fmt.Errorf("listing pods: %w", err)
			}
			p.ManagedFields = slimManagedFields(p.ManagedFields)
			pods = append(pods, reducer.reduce(p))
		}
		return NewPodList(pods), nil
	},
}

// A PodList is all pods, with indexes.
type PodList struct {
	*List[corev1.Pod]
	onNode map[string][]*corev1.Pod
	byIP   map[string]*corev1.Pod
}

// NewPodList indexes pods by node and by address.
func NewPodList(pods []*corev1.Pod) *PodList {
	l := &PodList{List: NewList(pods), onNode: map[string][]*corev1.Pod{}, byIP: map[string]*corev1.Pod{}}
	for _, p := range l.All() {
		if p.Spec.NodeName != "" {
			l.onNode[p.Spec.NodeName] = append(l.onNode[p.Spec.NodeName], p)
		}
		if Finished(p) || p.Spec.HostNetwork {
			continue // their addresses belong to somebody else
		}
		for _, ip := range p.Status.PodIPs {
			l.byIP[ip.IP] = p
		}
		if p.Status.PodIP != "" {
			l.byIP[p.Status.PodIP] = p
		}
	}
	return l
}

// On are the pods of a node, finished ones too.
func (l *PodList) On(node string) []*corev1.Pod { return l.onNode[node] }

// At is the running pod that owns an address, or nil; host-network pods own none.
func (l *PodList) At(ip string) *corev1.Pod { return l.byIP[ip] }

// Selected yields the unfinished pods of a namespace that a label selector
// matches; an empty selector matches none, as in a Service.
func (l *PodList) Selected(namespace string, selector map[string]string) iter.Seq[*corev1.Pod] {
	return func(yield func(*corev1.Pod) bool) {
		if len(selector) == 0 {
			return
		}
		s := labels.SelectorFromSet(selector)
		for p := range l.In(namespace) {
			if !Finished(p) && s.Matches(labels.Set(p.Labels)) && !yield(p) {
				return
			}
		}
	}
}

// Finished reports whether a pod has ended for good, well or badly.
func Finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// Ready reports whether a pod's Ready condition is true.
func Ready(p *corev1.Pod) bool { return conditionTrue(p, corev1.PodReady) }

func conditionTrue(p *corev1.Pod, t corev1.PodConditionType) bool {
	c := PodCondition(p, t)
	return c != nil && c.Status == corev1.ConditionTrue
}

// PodCondition is a condition of a pod, or nil.
func PodCondition(p *corev1.Pod, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == t {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// Statuses are the states of a pod's init containers and containers, in the
// order in which they run.
func Statuses(p *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses)
}

// ContainerOf is the spec of a pod's container or init container, or nil.
func ContainerOf(p *corev1.Pod, name string) *corev1.Container {
	for i := range p.Spec.InitContainers {
		if p.Spec.InitContainers[i].Name == name {
			return &p.Spec.InitContainers[i]
		}
	}
	for i := range p.Spec.Containers {
		if p.Spec.Containers[i].Name == name {
			return &p.Spec.Containers[i]
		}
	}
	return nil
}

// LastExit is how a container last ended: its present state if it has ended,
// else its last one; nil if it never ended.
func LastExit(s corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	if s.State.Terminated != nil {
		return s.State.Terminated
	}
	return s.LastTerminationState.Terminated
}

// Controller is the owner that manages an object, or nil.
func Controller(m metav1.Object) *metav1.OwnerReference { return metav1.GetControllerOf(m) }

// Age is how long ago a time was, at the source's clock.
func Age(now time.Time, t metav1.Time) time.Duration { return now.Sub(t.Time) }
