package diagnose

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// stale is how old a leader's lease must be for nobody to hold it any more;
// leaders renew every two seconds and lose it after fifteen.
// Source: kubernetes staging/src/k8s.io/component-base/config/v1alpha1/defaults.go.
const stale = 2 * time.Minute

// schedulerDown: pods would fit, and nothing has even tried them.
var schedulerDown = &Rule{
	ID: "scheduler-not-running", Relay: true, Explains: []*Rule{podPending, leaderLeaseStale, podCrashLooping, podNotReady, podNotStarting}, Needs: []probes.Any{placements, probes.Workloads, probes.Pods, probes.Nodes, probes.Logs},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		s := Suspect{Vars: map[string]string{}}
		for _, c := range pendingCases(facts, effects) {
			if untouched(c) && defaultScheduler(c.pod) {
				s.Effects = append(s.Effects, c.effect)
				if len(s.Found) < maxExamples {
					s.Found = append(s.Found, SawObject("pods", c.pod.Namespace, c.pod.Name, "no scheduler has looked at pod %s/%s: it has no PodScheduled condition (%s)", c.pod.Namespace, c.pod.Name, c.on.Summary()))
				}
			}
		}
		if s.Effects = withOwn(s.Effects, effects, "kube-scheduler"); len(s.Effects) == 0 {
			return nil
		}
		subject, says, evidence := componentPod(facts, "kube-scheduler")
		evidence = append(evidence, wordsOf(facts, "kube-scheduler")...)
		s.Subjects, s.Vars["says"], s.Found = []Ref{subject}, says, append(evidence, s.Found...)
		return []Suspect{s}
	},
	Tests: []Test{
		stopped("kube-scheduler"),
	},
}

// stopped asks whether a component of the control plane works no more.
func stopped(component string) Test {
	return Test{
		Asks:  "has " + component + " stopped: is none of its pods running, or its leader lease no longer renewed?",
		Needs: []probes.Any{probes.Leases, probes.Pods, probes.Nodes},
		Run: func(facts *probes.Facts, _ Suspect) Answer {
			pods, err := probes.Pods.Of(facts)
			if err != nil {
				return CantTell(err)
			}
			ours := podsOfComponent(pods, component)
			running := slices.ContainsFunc(ours, probes.Ready)
			leases, err := probes.Leases.Of(facts)
			if err != nil {
				if len(ours) > 0 && !running {
					return Answered(true, Saw("pods", nil, "none of the %d %s pods is ready", len(ours), component))
				}
				return CantTell(err)
			}
			lease := leases.Get("kube-system", component)
			switch {
			case lease != nil && lease.Spec.RenewTime != nil:
				age := facts.Source().Now().Sub(lease.Spec.RenewTime.Time)
				e := SawObject("leases.coordination.k8s.io", "kube-system", component, "the lease kube-system/%s was last renewed at %s, %s ago", component, lease.Spec.RenewTime.UTC().Format(time.RFC3339), age.Round(time.Second))
				return Answered(age > stale, e)
			case len(ours) > 0:
				return Answered(!running, Saw("pods", nil, "%d %s pods are there, one ready: %v", len(ours), component, running))
			case leases.Len() > 0:
				return Answered(true, Saw("leases.coordination.k8s.io", nil, "there is no lease kube-system/%s and no pod of it", component))
			}
			return CantTell(fmt.Errorf("neither a pod of %s nor its lease is to be seen", component))
		},
	}
}

// managerDown: workloads lack pods, and nobody refused to make them.
var managerDown = &Rule{
	ID: "controller-manager-not-running", Relay: true, Explains: []*Rule{workloadShortOfPods, leaderLeaseStale, podCrashLooping, podNotReady, podNotStarting}, Needs: []probes.Any{probes.Pods, probes.Nodes, probes.Logs},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		s := Suspect{Vars: map[string]string{}}
		for _, e := range effects {
			if c, ok := e.Data.(shortage); ok && c.says == "" {
				s.Effects = append(s.Effects, e)
			}
		}
		if s.Effects = withOwn(s.Effects, effects, "kube-controller-manager"); len(s.Effects) == 0 {
			return nil
		}
		subject, says, evidence := componentPod(facts, "kube-controller-manager")
		evidence = append(evidence, wordsOf(facts, "kube-controller-manager")...)
		s.Subjects, s.Vars["says"], s.Found = []Ref{subject}, says, evidence
		return []Suspect{s}
	},
	Tests: []Test{stopped("kube-controller-manager")},
}

// untouched reports whether no scheduler has tried the pod.
func untouched(c pendingCase) bool {
	return !c.tried && len(c.pod.Spec.SchedulingGates) == 0
}

func defaultScheduler(p *corev1.Pod) bool {
	return p.Spec.SchedulerName == "" || p.Spec.SchedulerName == corev1.DefaultSchedulerName
}

// podsOfComponent are the pods of a control plane component, static or otherwise.
func podsOfComponent(pods *probes.PodList, component string) []*corev1.Pod {
	var list []*corev1.Pod
	for p := range pods.In("kube-system") {
		if p.Labels["component"] == component || strings.HasPrefix(p.Name, component+"-") {
			list = append(list, p)
		}
	}
	return list
}

// componentPod is what to mend: a pod of the component that isn't ready, else
// the static pod that a control plane node should have.
func componentPod(facts *probes.Facts, component string) (subject Ref, says string, evidence []Evidence) {
	subject = Ref{Kind: "Pod", Namespace: "kube-system", Name: component}
	pods, err := probes.Pods.Of(facts)
	if err != nil {
		return subject, "", nil
	}
	for _, p := range podsOfComponent(pods, component) {
		subject = podRef(p)
		if probes.Ready(p) {
			continue
		}
		says = fmt.Sprintf("pod %s is not ready", p.Name)
		for _, s := range p.Status.ContainerStatuses {
			switch {
			case s.State.Waiting != nil:
				says += fmt.Sprintf(": %s %s", s.State.Waiting.Reason, s.State.Waiting.Message)
			case s.State.Terminated != nil:
				says += fmt.Sprintf(": ended with exit code %d (%s) %s", s.State.Terminated.ExitCode, s.State.Terminated.Reason, s.State.Terminated.Message)
			}
			if exit := s.LastTerminationState.Terminated; exit != nil {
				says += fmt.Sprintf("; last exit code %d, restarted %s", exit.ExitCode, times(int(s.RestartCount)))
			}
		}
		for _, c := range p.Spec.Containers {
			says += fmt.Sprintf("; image %s, command %s", c.Image, strings.Join(slices.Concat(c.Command, c.Args), " "))
		}
		return subject, says, []Evidence{SawObject("pods", p.Namespace, p.Name, "%s", says)}
	}
	if len(podsOfComponent(pods, component)) > 0 {
		return subject, "its pod looks ready, but it does nothing", nil
	}
	nodes, err := probes.Nodes.Of(facts)
	if err != nil {
		return subject, "", nil
	}
	for _, n := range nodes.All() {
		_, control := n.Labels["node-role.kubernetes.io/control-plane"]
		_, master := n.Labels["node-role.kubernetes.io/master"]
		if control || master {
			subject.Name = component + "-" + n.Name
			says = fmt.Sprintf("control plane node %s runs no %s pod: its static pod manifest (/etc/kubernetes/manifests/%s.yaml) is gone or the kubelet can't start it", n.Name, component, component)
			return subject, says, []Evidence{SawObject("nodes", "", n.Name, "%s", says)}
		}
	}
	return subject, "no " + component + " pod is to be seen", nil
}

// wordsOf are the last words of a component of the control plane.
func wordsOf(facts *probes.Facts, component string) []Evidence {
	pods, err := probes.Pods.Of(facts)
	logs, logsErr := probes.Logs.Of(facts)
	if err != nil || logsErr != nil {
		return nil
	}
	return saidLast(logs, podsOfComponent(pods, component))
}

// schedulerUnknown: the pods ask for a scheduler that nobody runs.
var schedulerUnknown = &Rule{
	ID: "scheduler-name-unknown", Explains: []*Rule{podPending}, Needs: []probes.Any{placements, probes.Workloads},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		var suspects []Suspect
		for _, c := range pendingCases(facts, effects) {
			if untouched(c) && !defaultScheduler(c.pod) {
				suspects = append(suspects, Suspect{Subjects: []Ref{c.workload}, Effects: []*Finding{c.effect}, Data: c, Vars: map[string]string{"scheduler": c.pod.Spec.SchedulerName, "pod": c.pod.Name, "podNamespace": c.pod.Namespace, "workload": short(c.workload)}})
			}
		}
		return suspects
	},
	Tests: []Test{
		{Asks: "has no scheduler named {scheduler} ever shown itself: no pod of its own, no pod that it placed, no lease?", Needs: []probes.Any{probes.Pods, probes.Leases}, Run: func(facts *probes.Facts, s Suspect) Answer {
			c := s.Data.(pendingCase)
			name := c.pod.Spec.SchedulerName
			pods, err := probes.Pods.Of(facts)
			if err != nil {
				return CantTell(err)
			}
			if name == "fargate-scheduler" {
				return CantTell(fmt.Errorf("AWS runs the %s itself, outside the cluster", name))
			}
			for _, p := range pods.All() {
				if p.Spec.SchedulerName == name && p.Spec.NodeName != "" {
					return Answered(false, SawObject("pods", p.Namespace, p.Name, "%s placed pod %s/%s", name, p.Namespace, p.Name))
				}
				named := strings.HasPrefix(p.Name, name+"-") && c.x.workloads.Of(p) != c.workload
				for _, container := range p.Spec.Containers {
					for _, arg := range slices.Concat(container.Command, container.Args) {
						named = named || strings.HasSuffix(arg, "scheduler-name="+name)
					}
				}
				if named {
					return CantTell(fmt.Errorf("pod %s/%s may be the scheduler %s", p.Namespace, p.Name, name))
				}
			}
			e := SawObject("pods", c.pod.Namespace, c.pod.Name, "pod %s/%s has spec.schedulerName: %s, and no scheduler of that name is to be seen; the default one is %s", c.pod.Namespace, c.pod.Name, name, corev1.DefaultSchedulerName)
			leases, err := probes.Leases.Of(facts)
			if err != nil {
				return CantTell(err, e)
			}
			for _, l := range leases.All() {
				if l.Name == name {
					return Answered(false, SawObject("leases.coordination.k8s.io", l.Namespace, l.Name, "there is a lease %s/%s", l.Namespace, l.Name))
				}
			}
			return Answered(true, e)
		}},
	},
}
