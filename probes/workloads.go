package probes

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Workloads says which workload each pod belongs to.
var Workloads = &Probe[*WorkloadIndex]{
	Name:  "workloads",
	About: "which Deployment, StatefulSet or other owner each pod belongs to",
	After: []Any{Pods, ReplicaSets, Jobs},
	Gather: func(_ context.Context, _ Source, known *Facts) (*WorkloadIndex, error) {
		pods, err := Pods.Of(known)
		if err != nil {
			return nil, err
		}
		w := &WorkloadIndex{of: map[*corev1.Pod]Ref{}, pods: map[Ref][]*corev1.Pod{}}
		// ReplicaSets and Jobs only lift a pod's owner by one step; where they
		// can't be had, the owner's name still says it.
		sets, _ := ReplicaSets.Of(known)
		jobs, _ := Jobs.Of(known)
		for _, p := range pods.All() {
			ref := Ref{Kind: "Pod", Namespace: p.Namespace, Name: p.Name}
			if owner := Controller(p); owner != nil && owner.Kind != "Node" {
				ref = Ref{Kind: owner.Kind, Namespace: p.Namespace, Name: owner.Name}
				switch owner.Kind {
				case "ReplicaSet":
					if sets != nil {
						if rs := sets.Get(p.Namespace, owner.Name); rs != nil {
							if up := Controller(rs); up != nil {
								ref = Ref{Kind: up.Kind, Namespace: p.Namespace, Name: up.Name}
							}
							break
						}
					}
					if hash := p.Labels["pod-template-hash"]; hash != "" {
						if name, ok := strings.CutSuffix(owner.Name, "-"+hash); ok {
							ref = Ref{Kind: "Deployment", Namespace: p.Namespace, Name: name}
						}
					}
				case "Job":
					if jobs != nil {
						if job := jobs.Get(p.Namespace, owner.Name); job != nil {
							if up := Controller(job); up != nil {
								ref = Ref{Kind: up.Kind, Namespace: p.Namespace, Name: up.Name}
							}
						}
					}
				}
			}
			w.of[p] = ref
			if w.pods[ref] == nil {
				w.all = append(w.all, ref)
			}
			w.pods[ref] = append(w.pods[ref], p)
		}
		slices.SortFunc(w.all, CompareRefs)
		return w, nil
	},
}

// A WorkloadIndex maps pods to the workloads that own them and back.
type WorkloadIndex struct {
	of   map[*corev1.Pod]Ref
	pods map[Ref][]*corev1.Pod
	all  []Ref
}

// Of is the workload of a pod: the topmost owner that is known, or the pod itself.
func (w *WorkloadIndex) Of(p *corev1.Pod) Ref { return w.of[p] }

// Pods are a workload's pods, by name.
func (w *WorkloadIndex) Pods(r Ref) []*corev1.Pod { return w.pods[r] }

// All are the workloads that have pods, in the order of [CompareRefs].
func (w *WorkloadIndex) All() []Ref { return w.all }
