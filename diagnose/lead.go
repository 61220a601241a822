package diagnose

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// lead is what helps a person where no rule knows the cause: what the
// containers said of failing, how they ended, and what the cluster said of
// them.
func (w *walk) lead(f *Finding) []Evidence {
	pods := troubled(f)
	var list []Evidence
	if w.facts.Has(probes.Logs) {
		if logs, err := probes.Logs.Of(w.facts); err == nil {
			for _, p := range pods[:min(len(pods), maxExamples)] {
				list = append(list, leadLines(logs, p)...)
			}
		}
	}
	if w.facts.Has(probes.Events) {
		if events, err := probes.Events.Of(w.facts); err == nil {
			for _, ref := range f.Subjects[:min(len(f.Subjects), 1+maxExamples)] {
				list = append(list, lastWarning(events, ref)...)
			}
		}
	}
	if len(list) == 0 {
		return f.Evidence()
	}
	return list
}

// leadLines are the most telling failures of a pod, else its last words.
func leadLines(logs *probes.LogSet, p *corev1.Pod) []Evidence {
	var list []Evidence
	for _, l := range failures(logs, p) {
		if len(list) == 2 {
			return list
		}
		list = append(list, Evidence{Says: l.quote(), Document: l.document, At: l.at})
	}
	if len(list) == 0 {
		return lastWords(logs, p, 3)
	}
	return list
}

// lastWarning is the newest warning about an object.
func lastWarning(events *probes.EventList, ref Ref) []Evidence {
	about := events.About(ref)
	for i := len(about) - 1; i >= 0; i-- {
		if e := about[i]; e.Type == corev1.EventTypeWarning {
			at := probes.EventTime(e)
			return []Evidence{{
				Says:     fmt.Sprintf("event %s about %s: %s", e.Reason, ref, strings.TrimSpace(e.Message)),
				Document: probes.Document{Path: "events"}, At: &at,
			}}
		}
	}
	return nil
}
