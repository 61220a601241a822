package diagnose

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// aboutOthers recognises lines without a known meaning that are about
// something outside the program.
var aboutOthers = regexp.MustCompile(`(?i)connect|time[d -]*out|refused|unreachable|resolv|lookup|dial|network|\bhost|socket|tls|certificate|upstream|broker|unavailable|://|\b50[234]\b|denied|unauthori[sz]ed|forbidden`)

// blamesOthers reports whether a failure blames something else than the
// program: other rules explain it.
func blamesOthers(f *logFault) bool {
	if f.failure.Meaning == "" {
		return f.failure.Host != "" || aboutOthers.MatchString(f.line())
	}
	return slices.ContainsFunc(append([]string{f.failure.Meaning}, f.failure.Also...), func(m string) bool { return !slices.Contains(ownErrors, m) })
}

// ownErrors are the meanings that blame the program, and that no other rule is about.
var ownErrors = []string{"panic", "segfault", "jvm-cgroup", "plugin-unavailable", "start-failed"}

// programFails: the program itself ends with an error that its log names, or
// stays unready with one, and nothing else explains it.
var programFails = &Rule{
	ID:         "program-fails",
	Explains:   append(slices.Clone(dying), podNotReady),
	LastResort: true,
	Needs:      []probes.Any{probes.Pods, probes.Workloads},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		list := perContainer(func(c container) bool {
			exit := probes.LastExit(c.status)
			if exit == nil {
				return c.status.State.Running != nil && !c.status.Ready
			}
			return exit.ExitCode != 0 && exit.Reason != "OOMKilled" && exit.Reason != "StartError" && exit.ExitCode != 137 && exit.ExitCode != 143
		})(facts, effects)
		// Programs that fail on one node and run well on others have the node in common.
		byNode := map[string][]Ref{}
		for _, s := range list {
			if node := onlyNode(facts, s); node != "" {
				byNode[node] = appendNew(byNode[node], s.Subjects[0])
			}
		}
		for i, s := range list {
			if others := byNode[onlyNode(facts, s)]; len(others) > 1 {
				list[i].Vars["together"] = fmt.Sprintf("%s fail on node %s and run well on others", refNames(others), onlyNode(facts, s))
			}
		}
		return list
	},
	Tests: []Test{{
		Asks: "does it fail for itself, not together with other programs on one node?",
		Run: func(_ *probes.Facts, s Suspect) Answer {
			if says := s.Vars["together"]; says != "" {
				return Answered(false, Saw("pods", nil, "%s", says))
			}
			return Answer{Truth: Yes}
		},
	}, {
		Asks:  "does the log name an error of the program itself?",
		Needs: []probes.Any{probes.Logs},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			f, _ := decisive(facts, containers(s))
			how := "runs and does not become ready"
			if exit := probes.LastExit(containers(s)[0].status); exit != nil {
				how = fmt.Sprintf("ends with exit code %d", exit.ExitCode)
			}
			switch {
			case f == nil:
				// A log that can't be had is a gap of its own: without it nothing
				// points at the program more than at anything else.
				return Answered(false)
			case blamesOthers(f):
				return Answered(false, f.evidence())
			}
			a := Answered(true, f.evidence()).With("line", f.line()).With("how", how)
			if frame := f.failure.Frame; frame != "" {
				a.Evidence = append(a.Evidence, Evidence{Says: "first frame of its own code: " + frame, Document: f.log.Document()})
			}
			return a
		},
	}},
}

// onlyNode is the node that all failing containers of a suspect run on, while
// its workload's pods on other nodes are ready; empty if there is no such node.
func onlyNode(facts *probes.Facts, s Suspect) string {
	node := ""
	for _, c := range containers(s) {
		if node != "" && c.pod.Spec.NodeName != node {
			return ""
		}
		node = c.pod.Spec.NodeName
	}
	workloads, err := probes.Workloads.Of(facts)
	if err != nil || !slices.ContainsFunc(workloads.Pods(s.Subjects[0]), func(p *corev1.Pod) bool { return p.Spec.NodeName != node && probes.Ready(p) }) {
		return ""
	}
	return node
}

// programEndsWell: the program does its work and ends, where one is expected
// that stays.
var programEndsWell = &Rule{
	ID:         "program-ends-by-itself",
	Explains:   []*Rule{podCrashLooping},
	LastResort: true,
	Needs:      []probes.Any{probes.Pods},
	Suspects: perContainer(func(c container) bool {
		exit := probes.LastExit(c.status)
		return exit != nil && exit.ExitCode == 0 && !c.init && c.status.RestartCount > 0
	}),
	Tests: []Test{
		{
			Asks: "did container {container} end with exit code 0, and is restarted because its pod is to run always?",
			Run: func(_ *probes.Facts, s Suspect) Answer {
				c := containers(s)[0]
				line := strings.Join(slices.Concat(c.spec.Command, c.spec.Args), " ")
				if line == "" {
					line = "the entrypoint of image " + c.spec.Image
				}
				return Answered(c.pod.Spec.RestartPolicy == corev1.RestartPolicyAlways,
					SawObject("pods", c.pod.Namespace, c.pod.Name, "pod %s: container %s ended with exit code 0 (Completed) and was restarted %s; it runs %s", c.pod.Name, c.spec.Name, times(int(c.status.RestartCount)), line)).
					With("command", line)
			},
		},
		{
			Asks:  "did nobody tell it to end?",
			Needs: []probes.Any{probes.Events},
			Run: func(facts *probes.Facts, s Suspect) Answer {
				for _, c := range containers(s) {
					failing, err := failingHealthchecks(facts, c)
					if err != nil {
						return CantTell(err)
					}
					for _, h := range failing {
						if h.kind != "readiness" {
							return Answered(false, h.says())
						}
					}
				}
				return Answered(true)
			},
		},
	},
}

// A revision is a ReplicaSet of a Deployment with its pods.
type revision struct {
	set  *appsv1.ReplicaSet
	pods []*corev1.Pod
}

// newRevisionFails: the pods of the latest revision fail, and those of the one
// before run: what the roll-out changed is at fault.
var newRevisionFails = &Rule{
	ID:         "new-revision-fails",
	Explains:   []*Rule{programFails, podCrashLooping, podNotReady},
	LastResort: true,
	Needs:      []probes.Any{probes.Pods, probes.ReplicaSets, probes.Workloads},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		sets, err := probes.ReplicaSets.Of(facts)
		if err != nil {
			return nil
		}
		var list []Suspect
		byOwner := map[Ref]int{}
		for _, e := range effects {
			owner := e.Subject()
			if owner.Kind != "Deployment" {
				continue
			}
			if i, ok := byOwner[owner]; ok {
				list[i].Effects = append(list[i].Effects, e)
				continue
			}
			last, before := revisions(facts, sets, owner)
			if last == nil || before == nil {
				continue
			}
			byOwner[owner] = len(list)
			list = append(list, Suspect{
				Subjects: []Ref{owner}, Effects: []*Finding{e}, Data: [2]*revision{before, last},
				Vars: map[string]string{"new": last.set.Name, "old": before.set.Name, "changes": ""},
			})
		}
		return list
	},
	Tests: []Test{
		{
			Asks: "do all pods of the new revision {new} fail, while those of {old} run?",
			Run: func(_ *probes.Facts, s Suspect) Answer {
				d := s.Data.([2]*revision)
				old, last := d[0], d[1]
				if len(old.pods) == 0 || len(last.pods) == 0 ||
					slices.ContainsFunc(last.pods, probes.Ready) || !slices.ContainsFunc(old.pods, probes.Ready) {
					return Answered(false)
				}
				return Answered(true,
					SawObject("replicasets.apps", last.set.Namespace, last.set.Name, "0 of %d pods of revision %s (%s) are ready", len(last.pods), revisionOf(last.set), last.set.Name),
					SawObject("replicasets.apps", old.set.Namespace, old.set.Name, "pods of revision %s (%s) are ready", revisionOf(old.set), old.set.Name))
			},
		},
		{
			Asks: "did the roll-out change the pods' template?",
			Run: func(_ *probes.Facts, s Suspect) Answer {
				d := s.Data.([2]*revision)
				changes := templateChanges(&d[0].set.Spec.Template.Spec, &d[1].set.Spec.Template.Spec)
				if len(changes) == 0 {
					return Answered(false)
				}
				text := strings.Join(changes, "; ")
				return Answered(true, SawObject("replicasets.apps", d[1].set.Namespace, d[1].set.Name, "the roll-out changed: %s", text)).With("changes", text)
			},
		},
	},
}

func revisionOf(rs *appsv1.ReplicaSet) string {
	return rs.Annotations["deployment.kubernetes.io/revision"]
}

// revisions are the newest revision of a Deployment, and the newest before it
// that still has pods.
func revisions(facts *probes.Facts, sets *probes.List[appsv1.ReplicaSet], owner Ref) (last, before *revision) {
	pods, err := probes.Pods.Of(facts)
	if err != nil {
		return nil, nil
	}
	number := func(rs *appsv1.ReplicaSet) int {
		n := 0
		fmt.Sscan(revisionOf(rs), &n)
		return n
	}
	var all []*appsv1.ReplicaSet
	for rs := range sets.In(owner.Namespace) {
		if o := probes.Controller(rs); o != nil && o.Kind == "Deployment" && o.Name == owner.Name {
			all = append(all, rs)
		}
	}
	slices.SortStableFunc(all, func(a, b *appsv1.ReplicaSet) int { return number(b) - number(a) })
	for i, rs := range all {
		r := &revision{set: rs}
		for p := range pods.In(rs.Namespace) {
			if o := probes.Controller(p); o != nil && o.Name == rs.Name && !probes.Finished(p) && p.DeletionTimestamp == nil {
				r.pods = append(r.pods, p)
			}
		}
		switch {
		case i == 0:
			last = r
		case len(r.pods) > 0:
			return last, r
		}
	}
	return last, nil
}

// templateChanges says in words what differs between the pods of two
// revisions; never values of environment variables.
func templateChanges(old, last *corev1.PodSpec) []string {
	var changes []string
	for _, c := range last.Containers {
		i := slices.IndexFunc(old.Containers, func(o corev1.Container) bool { return o.Name == c.Name })
		if i < 0 {
			changes = append(changes, "container "+c.Name+" is new")
			continue
		}
		o := old.Containers[i]
		if o.Image != c.Image {
			changes = append(changes, fmt.Sprintf("image of container %s from %s to %s", c.Name, o.Image, c.Image))
		}
		if a, b := fmt.Sprintf("%q %q", o.Command, o.Args), fmt.Sprintf("%q %q", c.Command, c.Args); a != b {
			changes = append(changes, fmt.Sprintf("command of container %s", c.Name))
		}
		env := func(list []corev1.EnvVar, name string) *corev1.EnvVar {
			if i := slices.IndexFunc(list, func(e corev1.EnvVar) bool { return e.Name == name }); i >= 0 {
				return &list[i]
			}
			return nil
		}
		for _, e := range c.Env {
			if was := env(o.Env, e.Name); was == nil {
				changes = append(changes, "env "+e.Name+" is new")
			} else if was.Value != e.Value || fmt.Sprint(was.ValueFrom) != fmt.Sprint(e.ValueFrom) {
				changes = append(changes, "env "+e.Name+" is another")
			}
		}
		for _, e := range o.Env {
			if env(c.Env, e.Name) == nil {
				changes = append(changes, "env "+e.Name+" is gone")
			}
		}
		if o.Resources.Limits.Memory().Cmp(*c.Resources.Limits.Memory()) != 0 {
			changes = append(changes, fmt.Sprintf("memory limit of container %s from %s to %s", c.Name, o.Resources.Limits.Memory(), c.Resources.Limits.Memory()))
		}
		for _, p := range []struct {
			name string
			a, b *corev1.Probe
		}{{"readinessProbe", o.ReadinessProbe, c.ReadinessProbe}, {"livenessProbe", o.LivenessProbe, c.LivenessProbe}, {"startupProbe", o.StartupProbe, c.StartupProbe}} {
			if !sameProbe(p.a, p.b) {
				changes = append(changes, p.name+" of container "+c.Name)
			}
		}
	}
	return changes
}

func sameProbe(a, b *corev1.Probe) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.String() == b.String()
}

var crashRules = []*Rule{programFails, programEndsWell, newRevisionFails}
