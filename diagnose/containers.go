package diagnose

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// A container is one container of a pod that a symptom is about: the Data of
// the rules that look into pods.
type container struct {
	pod    *corev1.Pod
	spec   *corev1.Container
	status corev1.ContainerStatus
	init   bool
}

// containers are the Data of a suspect made by perContainer.
func containers(s Suspect) []container {
	list, _ := s.Data.([]container)
	return list
}

// containersOf are a pod's containers, the init containers first.
func containersOf(p *corev1.Pod) []container {
	var list []container
	for i, s := range probes.Statuses(p) {
		spec := probes.ContainerOf(p, s.Name)
		if spec == nil {
			continue
		}
		list = append(list, container{pod: p, spec: spec, status: s, init: i < len(p.Status.InitContainerStatuses)})
	}
	return list
}

// perContainer proposes each workload that has troubled pods with a container
// that pick takes: one suspect for each name of a container, for all symptoms
// of the workload.
func perContainer(pick func(container) bool) func(*probes.Facts, []*Finding) []Suspect {
	return func(_ *probes.Facts, effects []*Finding) []Suspect {
		return suspectsOf(effects, pick)
	}
}

func suspectsOf(effects []*Finding, pick func(container) bool) []Suspect {
	type key struct {
		owner Ref
		name  string
	}
	var suspects []Suspect
	index := map[key]int{}
	seen := map[key]map[*corev1.Pod]bool{}
	for _, e := range rootSymptoms(effects) {
		for _, p := range troubled(e.symptom) {
			for _, c := range containersOf(p) {
				if !pick(c) {
					continue
				}
				k := key{e.symptom.Subject(), c.spec.Name}
				i, ok := index[k]
				if !ok {
					i = len(suspects)
					index[k], seen[k] = i, map[*corev1.Pod]bool{}
					suspects = append(suspects, Suspect{Subjects: []Ref{e.symptom.Subject()}, Vars: containerVars(c)})
				}
				s := &suspects[i]
				if !slices.Contains(s.Effects, e.effect) {
					s.Effects = append(s.Effects, e.effect)
				}
				if !seen[k][p] {
					seen[k][p] = true
					s.Data = append(containers(*s), c)
				}
			}
		}
	}
	return suspects
}

// An effectOf pairs an effect with a symptom that it leads to.
type effectOf struct{ effect, symptom *Finding }

// rootSymptoms are the pod symptoms at the bottom of the effects: an effect
// may itself be a link between a symptom and its cause.
func rootSymptoms(effects []*Finding) []effectOf {
	var list []effectOf
	var down func(effect, f *Finding)
	down = func(effect, f *Finding) {
		if troubled(f) != nil {
			list = append(list, effectOf{effect, f})
		}
		for _, e := range f.Effects {
			down(effect, e)
		}
	}
	for _, e := range effects {
		down(e, e)
	}
	return list
}

func containerVars(c container) map[string]string {
	return map[string]string{
		"container": c.spec.Name, "image": c.spec.Image, "pod": c.pod.Name, "node": c.pod.Spec.NodeName,
		"hint": "", "namespace": c.pod.Namespace,
	}
}

// A remark is what the kubelet, the runtime or a controller said about a
// container, in a status or an event.
type remark struct {
	reason string // of the event; empty where a status says it
	text   string
	from   Evidence
}

// remarks are what was said about a container: its states first, then the
// warnings about its pod, the latest first. The error says that events could
// not be read; the remarks in the states are there all the same.
func remarks(facts *probes.Facts, c container) ([]remark, error) {
	var list []remark
	add := func(text string, format string, args ...any) {
		if text != "" {
			list = append(list, remark{"", text, SawObject("pods", c.pod.Namespace, c.pod.Name, format, args...)})
		}
	}
	name := c.status.Name
	if w := c.status.State.Waiting; w != nil {
		add(w.Reason+": "+w.Message, "pod %s: container %s is waiting: %s: %s", c.pod.Name, name, w.Reason, w.Message)
	}
	for _, t := range []*corev1.ContainerStateTerminated{c.status.State.Terminated, c.status.LastTerminationState.Terminated} {
		if t != nil && t.Message != "" {
			add(t.Message, "pod %s: container %s ended with exit code %d (%s): %s", c.pod.Name, name, t.ExitCode, t.Reason, strings.TrimSpace(t.Message))
		}
	}
	events, err := probes.Events.Of(facts)
	if err != nil {
		return list, err
	}
	about := events.About(podRef(c.pod))
	for _, e := range slices.Backward(about) {
		if e.Type != corev1.EventTypeWarning {
			continue
		}
		if field := e.InvolvedObject.FieldPath; field != "" && !strings.Contains(field, "{"+name+"}") && strings.Contains(field, "ontainers{") {
			continue // about another container
		}
		at := probes.EventTime(e)
		from := SawObject("events", e.Namespace, e.Name, "event %s on pod %s: %s", e.Reason, c.pod.Name, strings.TrimSpace(e.Message))
		from.At = &at
		list = append(list, remark{e.Reason, e.Reason + ": " + e.Message, from})
	}
	return list, nil
}

// said finds the first remark about any of the containers that matches one of
// the patterns, with what the pattern's named groups captured. Of events only
// those with one of the reasons count, if reasons are given.
func said(facts *probes.Facts, list []container, reasons []string, patterns ...*regexp.Regexp) (remark, map[string]string, error) {
	var unread error
	for _, c := range list {
		heard, err := remarks(facts, c)
		if err != nil {
			unread = err
		}
		for _, r := range heard {
			if r.reason != "" && reasons != nil && !slices.Contains(reasons, r.reason) {
				continue
			}
			for _, re := range patterns {
				if got := groups(re, r.text); got != nil {
					return r, got, nil
				}
			}
		}
	}
	return remark{}, nil, unread
}

// groups are the named groups of a match, or nil where there is none.
func groups(re *regexp.Regexp, text string) map[string]string {
	m := re.FindStringSubmatch(text)
	if m == nil {
		return nil
	}
	got := map[string]string{}
	for i, name := range re.SubexpNames() {
		name = strings.TrimRight(name, "0123456789")
		if name != "" && (got[name] == "" || m[i] != "") {
			got[name] = strings.TrimSpace(m[i])
		}
	}
	return got
}

// heard is the question whether a remark about the containers matches one of
// the patterns. Captures become variables of the texts.
func heard(asks string, reasons []string, patterns ...*regexp.Regexp) Test {
	return Test{Asks: asks, Needs: []probes.Any{probes.Events}, Run: func(facts *probes.Facts, s Suspect) Answer {
		return hears(facts, containers(s), reasons, patterns...)
	}}
}

func hears(facts *probes.Facts, list []container, reasons []string, patterns ...*regexp.Regexp) Answer {
	r, got, err := said(facts, list, reasons, patterns...)
	switch {
	case got != nil:
		a := Answered(true, r.from)
		for k, v := range got {
			a = a.With(k, v)
		}
		return a
	case err != nil:
		a := CantTell(err)
		for _, re := range patterns {
			for _, name := range re.SubexpNames() {
				if name != "" {
					a = a.With(strings.TrimRight(name, "0123456789"), "(not known)")
				}
			}
		}
		return a
	}
	return Answered(false)
}

// waitsFor reports whether a container waits for one of the reasons.
func waitsFor(reasons ...string) func(container) bool {
	return func(c container) bool {
		w := c.status.State.Waiting
		return w != nil && slices.Contains(reasons, w.Reason)
	}
}

// anyContainer takes every container.
func anyContainer(container) bool { return true }

// field is where in a workload's manifest a container's field stands.
func (c container) field(name string) string {
	list := "containers"
	if c.init {
		list = "initContainers"
	}
	return fmt.Sprintf("spec.%s[%s].%s", list, c.spec.Name, name)
}
