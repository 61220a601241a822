package diagnose

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/pposiraegi/ppodoctor/probes"
)

// rolloutHeld: a workload's pods are of an old revision and nothing replaces
// them, though none is in trouble.
var rolloutHeld = &Rule{
	ID:    "rollout-held",
	Needs: []probes.Any{probes.Deployments, probes.StatefulSets},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		var list []Suspect
		if deployments, err := probes.Deployments.Of(facts); err == nil {
			for _, d := range deployments.All() {
				if !d.Spec.Paused || d.Status.UpdatedReplicas >= replicas(d.Spec.Replicas) || d.DeletionTimestamp != nil {
					continue
				}
				list = append(list, Suspect{
					Subjects: []Ref{{Kind: "Deployment", Namespace: d.Namespace, Name: d.Name}}, Count: 1,
					Vars: map[string]string{"why": "it is paused", "field": "spec.paused: true"},
					Found: []Evidence{SawObject("deployments.apps", d.Namespace, d.Name, "deployment %s is paused (spec.paused: true); %d of %d pods are of the latest revision",
						d.Name, d.Status.UpdatedReplicas, replicas(d.Spec.Replicas))},
				})
			}
		}
		if sets, err := probes.StatefulSets.Of(facts); err == nil {
			for _, s := range sets.All() {
				n := replicas(s.Spec.Replicas)
				if s.Status.UpdateRevision == "" || s.Status.UpdateRevision == s.Status.CurrentRevision || s.Status.UpdatedReplicas >= n || s.Status.ReadyReplicas < n || n == 0 {
					continue
				}
				why, field := held(s, n)
				if why == "" {
					continue
				}
				list = append(list, Suspect{
					Subjects: []Ref{{Kind: "StatefulSet", Namespace: s.Namespace, Name: s.Name}}, Count: 1,
					Vars: map[string]string{"why": why, "field": field},
					Found: []Evidence{SawObject("statefulsets.apps", s.Namespace, s.Name, "stateful set %s: %s; %d of %d pods are of the latest revision %s",
						s.Name, field, s.Status.UpdatedReplicas, n, s.Status.UpdateRevision)},
				})
			}
		}
		return list
	},
}

// held says what holds a stateful set's roll-out back, or "".
func held(s *appsv1.StatefulSet, n int32) (why, field string) {
	if r := s.Spec.UpdateStrategy.RollingUpdate; r != nil && r.Partition != nil && *r.Partition >= n {
		return "its partition keeps all pods at the old revision", fmt.Sprintf("updateStrategy.rollingUpdate.partition: %d with %d replicas", *r.Partition, n)
	}
	return "", ""
}

// rolloutHeldBySpec: the workload's own spec holds its roll-out back.
var rolloutHeldBySpec = &Rule{
	ID:       "rollout-held-by-spec",
	Explains: []*Rule{rolloutHeld},
	Suspects: func(_ *probes.Facts, effects []*Finding) []Suspect {
		var list []Suspect
		for _, e := range effects {
			list = append(list, Suspect{Subjects: e.Subjects, Effects: []*Finding{e}, Vars: e.Vars, Found: e.Found})
		}
		return list
	},
	Tests: []Test{{
		Asks: "does the workload's spec say that its roll-out waits ({field})?",
		Run:  func(_ *probes.Facts, s Suspect) Answer { return Answered(true, s.Found...) },
	}},
}

// A need is a Service that a container in trouble waits for or can't reach.
type need struct {
	service *corev1.Service
	says    Evidence
}

// needsOf are the Services that the troubled container names in its failure
// or, while it waits, on its command line.
func needsOf(facts *probes.Facts, d *probes.Directory, c container) (*need, error) {
	f, err := decisive(facts, []container{c})
	if f != nil && f.failure.Host == "" && f.failure.Meaning != "" && reachMeaning(f.failure.Meaning) {
		// The line doesn't say whom: the one among the container's settings
		// behind which nobody is.
		list, err := settings(facts, c)
		if err != nil {
			return nil, err
		}
		for _, t := range serversOf(d, f, list) {
			if s := neededService(d, t); s != nil && len(d.Behind(s)) == 0 {
				return &need{s, f.evidence()}, nil
			}
		}
		return nil, nil
	}
	if f != nil && f.failure.Host != "" && reachMeaning(f.failure.Meaning) {
		t := d.Lookup(c.pod.Namespace, f.failure.Host, f.failure.Port)
		if s := neededService(d, t); s != nil {
			return &need{s, f.evidence()}, nil
		}
		return nil, nil
	}
	if c.init && c.status.State.Running != nil {
		line := strings.Join(slices.Concat(c.spec.Command, c.spec.Args), " ")
		for _, word := range strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t\n;\"'()|&=,", r) }) {
			word = strings.TrimPrefix(strings.TrimPrefix(word, "http://"), "https://")
			word, _, _ = strings.Cut(word, "/")
			host, port, _ := strings.Cut(word, ":")
			t := d.Lookup(c.pod.Namespace, host, port)
			if s := neededService(d, t); s != nil {
				return &need{s, SawObject("pods", c.pod.Namespace, c.pod.Name, "init container %s of pod %s waits: %s", c.spec.Name, c.pod.Name, line)}, nil
			}
		}
	}
	return nil, err
}

// reachMeaning reports whether a failure is that a server can't be reached.
func reachMeaning(meaning string) bool {
	for _, p := range []string{"tcp-", "dns-n", "dns-failed", "net-", "db-unreachable", "db-starting", "redis-master", "kafka-unreachable", "rpc-unavailable", "read-timeout", "timeout", "upstream", "no-healthy"} {
		if strings.HasPrefix(meaning, p) {
			return true
		}
	}
	return meaning == ""
}

func neededService(d *probes.Directory, t probes.Target) *corev1.Service {
	switch {
	case t.Kind == probes.TargetService && !t.Missing:
		return d.Services.Get(t.Ref.Namespace, t.Ref.Name)
	case t.Kind == probes.TargetPod && t.Missing:
		// POD.HEADLESS of a pod that is not there.
		for label := range strings.SplitSeq(t.Host, ".") {
			if s := d.Services.Get(t.Ref.Namespace, label); s != nil {
				return s
			}
		}
	}
	return nil
}

// dependencyScaledToZero: what a workload needs has been scaled to zero.
var dependencyScaledToZero = &Rule{
	ID:         "dependency-scaled-to-zero",
	Explains:   ailing,
	LastResort: true,
	Needs:      slices.Concat(directoryNeeds, settingNeeds, []probes.Any{probes.Logs, probes.Deployments, probes.StatefulSets}),
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		d, err := directory(facts)
		if err != nil {
			return nil
		}
		var list []Suspect
		index := map[Ref]int{}
		for _, s := range suspectsOf(effects, unwell) {
			for _, c := range containers(s) {
				n, _ := needsOf(facts, d, c)
				if n == nil || len(d.Behind(n.service)) > 0 || len(n.service.Spec.Selector) == 0 {
					continue
				}
				for _, w := range scaledToZero(facts, n.service) {
					i, ok := index[w.ref]
					if !ok {
						i = len(list)
						index[w.ref] = i
						list = append(list, Suspect{
							Subjects: []Ref{w.ref}, Found: []Evidence{w.says},
							Vars: map[string]string{"service": n.service.Name, "client": short(s.Subjects[0])},
						})
					}
					if !slices.Contains(list[i].Subjects, s.Subjects[0]) {
						list[i].Subjects = append(list[i].Subjects, s.Subjects[0])
						list[i].Found = append(list[i].Found, n.says)
					}
					for _, e := range s.Effects {
						if !slices.Contains(list[i].Effects, e) {
							list[i].Effects = append(list[i].Effects, e)
						}
					}
				}
				break
			}
		}
		return list
	},
	Tests: []Test{{
		Asks: "is the workload behind Service {service}, which {client} needs, scaled to zero?",
		Run:  func(_ *probes.Facts, s Suspect) Answer { return Answered(true, s.Found...) },
	}},
}

// An idle is a workload with zero replicas.
type idle struct {
	ref  Ref
	says Evidence
}

// scaledToZero are the workloads with zero replicas that a Service selects.
func scaledToZero(facts *probes.Facts, s *corev1.Service) []idle {
	var list []idle
	selector := labels.SelectorFromSet(s.Spec.Selector)
	add := func(kind, name string, n *int32, template map[string]string) {
		if replicas(n) == 0 && selector.Matches(labels.Set(template)) {
			r := Ref{Kind: kind, Namespace: s.Namespace, Name: name}
			list = append(list, idle{r, SawObject(resourceOfKind(kind)+".apps", s.Namespace, name, "%s has replicas 0, and Service %s has no pod", short(r), s.Name)})
		}
	}
	if deployments, err := probes.Deployments.Of(facts); err == nil {
		for d := range deployments.In(s.Namespace) {
			add("Deployment", d.Name, d.Spec.Replicas, d.Spec.Template.Labels)
		}
	}
	if sets, err := probes.StatefulSets.Of(facts); err == nil {
		for t := range sets.In(s.Namespace) {
			add("StatefulSet", t.Name, t.Spec.Replicas, t.Spec.Template.Labels)
		}
	}
	return list
}

// dependencyNotReady: what a workload needs has pods, and they are in trouble
// of their own.
var dependencyNotReady = &Rule{
	ID:         "dependency-not-ready",
	Relay:      true,
	Explains:   ailing,
	LastResort: true,
	Needs:      slices.Concat(directoryNeeds, settingNeeds, []probes.Any{probes.Logs, probes.Workloads}),
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		d, err := directory(facts)
		if err != nil {
			return nil
		}
		var list []Suspect
		for _, s := range suspectsOf(effects, unwell) {
			for _, c := range containers(s) {
				n, _ := needsOf(facts, d, c)
				if n == nil {
					continue
				}
				pods := d.Behind(n.service)
				if len(pods) == 0 || slices.ContainsFunc(pods, probes.Ready) || slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return workloadOf(facts, p) == s.Subjects[0] }) {
					continue
				}
				one := s
				one.Subjects = []Ref{workloadOf(facts, pods[0]), s.Subjects[0]}
				one.Through = podRefs(pods)
				one.Vars["service"], one.Vars["client"], one.Vars["backend"] = n.service.Name, short(s.Subjects[0]), pods[0].Name
				one.Found = []Evidence{n.says, SawObject("pods", pods[0].Namespace, pods[0].Name, "Service %s has %d pods, and none is ready (%s)", n.service.Name, len(pods), pods[0].Name)}
				list = append(list, one)
				break
			}
		}
		return list
	},
	Tests: []Test{{
		Asks: "is no pod behind Service {service}, which {client} waits for, ready?",
		Run:  func(_ *probes.Facts, s Suspect) Answer { return Answered(true, s.Found...) },
	}},
}

var rolloutRules = []*Rule{rolloutHeld, rolloutHeldBySpec, dependencyScaledToZero, dependencyNotReady}
