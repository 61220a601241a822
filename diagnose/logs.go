package diagnose

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/logread"
)

// A logged failure is one entry of a container's log that says that something
// failed, with where it stands.
type logged struct {
	*logread.Failure
	pod       *corev1.Pod
	container string
	previous  bool
	document  probes.Document
	at        *time.Time
	meaning   string
	captures  map[string]string
}

// quote is the entry as evidence, with how often it was said.
func (l logged) quote() string {
	run := "log"
	if l.previous {
		run = "previous log"
	}
	often := ""
	if l.Count > 1 {
		often = fmt.Sprintf(" (%d times)", l.Count)
	}
	return fmt.Sprintf("%s of %s/%s: %q%s", run, l.pod.Name, l.container, l.Text, often)
}

// failures are what a pod's containers said of failing, the runs that ended
// first and the most telling entries of each first. What a program mended by
// itself doesn't count.
func failures(logs *probes.LogSet, p *corev1.Pod) []logged {
	var list []logged
	for _, l := range logs.Of(p.Namespace, p.Name) {
		if l.Excerpt == nil {
			continue
		}
		for _, f := range l.Excerpt.Failures {
			if f.Handled {
				continue
			}
			entry := logged{
				Failure: f, pod: p, container: l.Container, previous: l.Previous, meaning: f.Meaning, captures: f.Captures,
				document: probes.Log(p.Namespace, p.Name, l.Container, l.Previous),
			}
			if !f.FirstAt.IsZero() {
				at := f.FirstAt
				entry.at = &at
			}
			list = append(list, entry)
		}
	}
	return list
}

// lastWords are the last lines of a pod's containers before they died.
func lastWords(logs *probes.LogSet, p *corev1.Pod, most int) []Evidence {
	var list []Evidence
	for _, l := range logs.Of(p.Namespace, p.Name) {
		if l.Excerpt == nil || len(list) > 0 && !l.Previous {
			continue
		}
		last := l.Excerpt.Last
		for _, line := range last[max(0, len(last)-most):] {
			list = append(list, Evidence{
				Says:     fmt.Sprintf("last words of %s/%s: %q", p.Name, l.Container, line),
				Document: probes.Log(p.Namespace, p.Name, l.Container, l.Previous),
			})
		}
	}
	return list
}
