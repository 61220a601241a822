package diagnose

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// How recent and how frequent trouble must be before it is a symptom.
const (
	// recent is how long ago a container may have died for its restarts to
	// count as going on. The kubelet's back-off ends at 5 minutes and resets
	// after 10 minutes of running.
	// Source: kubernetes pkg/kubelet/kubelet.go MaxContainerBackOff.
	recent = 30 * time.Minute
	// patience is how long a pod may take to get ready or to be scheduled
	// before anybody would ask why.
	patience = 90 * time.Second
)

// podCrashLooping: a container of the workload dies again and again.
var podCrashLooping = &Rule{
	ID:    "pod-crash-looping",
	Needs: []probes.Any{probes.Pods, probes.Workloads},
	Suspects: perWorkload(func(p *corev1.Pod, now time.Time) *trouble {
		for _, s := range probes.Statuses(p) {
			exit := probes.LastExit(s)
			waiting := s.State.Waiting != nil && s.State.Waiting.Reason == "CrashLoopBackOff"
			died := exit != nil && now.Sub(exit.FinishedAt.Time) < recent && p.Spec.RestartPolicy != corev1.RestartPolicyNever
			again := died && s.RestartCount >= 2
			failedNow := died && s.State.Terminated != nil && exit.ExitCode != 0
			killed := died && exit.Reason == "OOMKilled"
			if waiting || again || failedNow || killed {
				t := &trouble{container: s.Name, says: fmt.Sprintf("container %s has restarted %s", s.Name, times(int(s.RestartCount)))}
				if exit != nil {
					t.since = &exit.StartedAt.Time
					t.says += fmt.Sprintf("; it last ended with exit code %d (%s)", exit.ExitCode, exit.Reason)
				}
				return t
			}
		}
		return nil
	}),
}

// podNotReady: containers run, but the pod does not become ready.
var podNotReady = &Rule{
	ID:    "pod-not-ready",
	Needs: []probes.Any{probes.Pods, probes.Workloads},
	Suspects: perWorkload(func(p *corev1.Pod, now time.Time) *trouble {
		if o := probes.Controller(p); o != nil && o.Kind == "Job" {
			return nil // a job's pod is to end, not to be ready
		}
		c := probes.PodCondition(p, corev1.PodReady)
		if p.Status.Phase != corev1.PodRunning || c == nil || c.Status == corev1.ConditionTrue || now.Sub(c.LastTransitionTime.Time) < patience {
			return nil
		}
		for _, s := range probes.Statuses(p) {
			if s.State.Waiting != nil {
				return nil // another symptom says it better
			}
		}
		says := "the pod runs but is not ready"
		if c.Message != "" {
			says += ": " + c.Message
		}
		return &trouble{since: &c.LastTransitionTime.Time, says: says}
	}),
}

// podNotStarting: the pod has a node, but a container never starts.
var podNotStarting = &Rule{
	ID:    "pod-not-starting",
	Needs: []probes.Any{probes.Pods, probes.Workloads},
	Suspects: perWorkload(func(p *corev1.Pod, now time.Time) *trouble {
		if p.Spec.NodeName == "" {
			return nil
		}
		for _, s := range probes.Statuses(p) {
			w := s.State.Waiting
			if w == nil || w.Reason == "CrashLoopBackOff" {
				continue
			}
			early := w.Reason == "" || w.Reason == "ContainerCreating" || w.Reason == "PodInitializing"
			if early && (now.Sub(p.CreationTimestamp.Time) < patience || w.Reason == "PodInitializing" && !stuckInit(p)) {
				continue
			}
			says := fmt.Sprintf("container %s is waiting: %s", s.Name, w.Reason)
			if w.Message != "" {
				says += ": " + w.Message
			}
			return &trouble{container: s.Name, since: &p.CreationTimestamp.Time, says: says}
		}
		for _, s := range p.Status.InitContainerStatuses {
			// An init container that runs and runs is waiting for something.
			if r := s.State.Running; r != nil && !s.Ready && !sidecar(p, s.Name) && now.Sub(r.StartedAt.Time) > 2*patience {
				return &trouble{container: s.Name, since: &r.StartedAt.Time, says: fmt.Sprintf("init container %s has been running since %s and has not ended", s.Name, r.StartedAt.UTC().Format(time.RFC3339))}
			}
		}
		return nil
	}),
}

// stuckInit reports whether the init containers themselves are not the ones
// that keep a pod from starting.
func stuckInit(p *corev1.Pod) bool {
	return !slices.ContainsFunc(p.Status.InitContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.State.Terminated == nil || s.State.Terminated.ExitCode != 0
	})
}

func sidecar(p *corev1.Pod, container string) bool {
	c := probes.ContainerOf(p, container)
	return c != nil && c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// trouble is what is wrong with one pod.
type trouble struct {
	container string
	says      string
	since     *time.Time
}

// podTrouble is the Data of a pod symptom: the pods in trouble, with what is
// wrong with each.
type podTrouble struct {
	pods     []*corev1.Pod
	troubles []*trouble // one for each pod
}

// troubled are the pods behind a pod symptom.
func troubled(f *Finding) []*corev1.Pod {
	if t, ok := f.Data.(podTrouble); ok {
		return t.pods
	}
	return nil
}

// perWorkload makes a symptom of one finding per workload out of a look at
// single pods. Finished pods and pods that are being deleted don't count.
func perWorkload(look func(*corev1.Pod, time.Time) *trouble) func(*probes.Facts, []*Finding) []Suspect {
	return func(facts *probes.Facts, _ []*Finding) []Suspect {
		workloads, err := probes.Workloads.Of(facts)
		if err != nil {
			return nil
		}
		now := facts.Source().Now()
		var found []Suspect
		for _, owner := range workloads.All() {
			s := Suspect{Subjects: []Ref{owner}, Vars: map[string]string{"of": fmt.Sprint(len(workloads.Pods(owner)))}}
			var data podTrouble
			for _, p := range workloads.Pods(owner) {
				if probes.Finished(p) || p.DeletionTimestamp != nil {
					continue
				}
				t := look(p, now)
				if t == nil {
					continue
				}
				data.pods, data.troubles = append(data.pods, p), append(data.troubles, t)
				s.Count++
				if podRef(p) != owner {
					s.Subjects = append(s.Subjects, podRef(p))
				}
				if t.since != nil && (s.Since == nil || t.since.Before(*s.Since)) {
					s.Since = t.since
				}
				if len(s.Found) < maxExamples {
					s.Found = append(s.Found, SawObject("pods", p.Namespace, p.Name, "pod %s: %s", p.Name, t.says))
				}
			}
			if s.Count > 0 {
				s.Data = data
				found = append(found, s)
			}
		}
		return found
	}
}

func podRef(p *corev1.Pod) Ref { return Ref{Kind: "Pod", Namespace: p.Namespace, Name: p.Name} }

func podRefs(pods []*corev1.Pod) []Ref {
	var refs []Ref
	for _, p := range pods {
		refs = append(refs, podRef(p))
	}
	return refs
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

var symptomRules = []*Rule{podCrashLooping, podNotReady, podNotStarting, podPending, podUntouched}
