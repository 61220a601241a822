package diagnose

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// evictionMemory is how long ago a pod may have been evicted to be a symptom.
const evictionMemory = 6 * time.Hour

// podEvicted: kubelets evict pods of the workload.
var podEvicted = &Rule{
	ID:    "pod-evicted",
	Needs: []probes.Any{probes.Pods, probes.Workloads},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		workloads, err := probes.Workloads.Of(facts)
		if err != nil {
			return nil
		}
		now := facts.Source().Now()
		var found []Suspect
		for _, owner := range workloads.All() {
			s := Suspect{Subjects: []Ref{owner}, Vars: map[string]string{}}
			var data podTrouble
			for _, p := range workloads.Pods(owner) {
				at, ok := evictedAt(p)
				if !ok || now.Sub(at) > evictionMemory {
					continue
				}
				s.Count++
				data.pods = append(data.pods, p)
				data.troubles = append(data.troubles, &trouble{says: p.Status.Message, since: &at})
				if s.Since == nil || at.Before(*s.Since) {
					s.Since = &at
				}
				if podRef(p) != owner && len(s.Subjects) <= maxExamples {
					s.Subjects = append(s.Subjects, podRef(p))
				}
				if len(s.Found) < maxExamples {
					s.Found = append(s.Found, SawObject("pods", p.Namespace, p.Name, "pod %s was evicted: %s", p.Name, p.Status.Message))
				}
			}
			if s.Count > 0 {
				s.Data = data
				found = append(found, s)
			}
		}
		return found
	},
}

// evictedAt is when the kubelet evicted a pod. An evicted pod without any time
// of its end tells nothing of now.
func evictedAt(p *corev1.Pod) (time.Time, bool) {
	if p.Status.Phase != corev1.PodFailed || p.Status.Reason != "Evicted" {
		return time.Time{}, false
	}
	var at time.Time
	for _, c := range p.Status.Conditions {
		if (c.Type == corev1.DisruptionTarget || c.Type == corev1.PodReady) && c.LastTransitionTime.After(at) {
			at = c.LastTransitionTime.Time
		}
	}
	for _, s := range p.Status.ContainerStatuses {
		if t := s.State.Terminated; t != nil && t.FinishedAt.After(at) {
			at = t.FinishedAt.Time
		}
	}
	if at.IsZero() && p.Status.StartTime != nil {
		at = p.Status.StartTime.Time
	}
	return at, !at.IsZero()
}

var evictionSymptoms = []*Rule{podEvicted}
