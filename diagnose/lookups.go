package diagnose

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// Meanings of log entries about name lookups. Whether an answer came is what
// separates the causes: no answer is a matter of packets and of CoreDNS, an
// answer "no such name" is a matter of the name.
var (
	noAnswerMeanings = []string{"dns-timeout", "dns-temporary", "dns-refused", "dns-no-route"}
	noNameMeanings   = []string{"dns-nxdomain", "dns-nodata"}
	// vagueMeanings may be either, or no lookup at all; they count as lookups
	// without an answer only where another workload in the same place shows
	// such lookups clearly.
	vagueMeanings = []string{"dns-failed", "dns-servfail", "redis-master-unreachable", "kafka-unreachable"}
)

// lookupTrouble is the Data of a name-lookups-fail finding.
type lookupTrouble struct {
	pods     []*corev1.Pod // whose lookups fail
	unread   []*corev1.Pod // whose logs can't be had
	noAnswer bool          // at least one lookup got no answer at all
	hosts    []string      // the names that were looked up in vain, as far as the lines say
	noName   []string      // the names that were answered not to exist
	vague    bool          // only vague lines so far
	lines    []Evidence
	err      error // the gaps
}

// nameLookupsFail: what the containers said last is that a name could not be
// looked up. It is a state on the way: many faults lead to it.
var nameLookupsFail = &Rule{
	ID:           "name-lookups-fail",
	Explains:     []*Rule{podCrashLooping, podNotReady, podNotStarting, clientsFailing},
	Intermediate: true,
	Needs:        append([]probes.Any{probes.Logs}, callFacts...),
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		logs, err := probes.Logs.Of(facts)
		if err != nil {
			return nil
		}
		dir, _ := callDirectory(facts)
		maps, _ := probes.ConfigMaps.Of(facts)
		var found []Suspect
		clear := map[string]bool{} // nodes on which lookups clearly get no answer
		for _, effect := range effects {
			t := &lookupTrouble{}
			from, pods := logs, troubled(effect)
			if c, ok := effect.Data.(*failingClient); ok {
				if from, err = probes.AppLogs.Of(facts); err != nil {
					continue
				}
				pods = c.pods
			}
			for _, p := range pods {
				t.read(from, p, func(host string) string { return absentName(dir, maps, effect.Subject(), p, host) })
			}
			if t.noAnswer {
				for _, p := range t.pods {
					clear[p.Spec.NodeName] = true
				}
			}
			found = append(found, Suspect{
				Subjects: []Ref{effect.Subject()}, Effects: []*Finding{effect}, Found: nil, Data: t,
				Count: len(t.pods), Since: effect.Since,
			})
		}
		for _, s := range found {
			t := s.Data.(*lookupTrouble)
			if t.vague && slices.ContainsFunc(t.pods, func(p *corev1.Pod) bool { return clear[p.Spec.NodeName] }) {
				t.vague, t.noAnswer = false, true
			}
		}
		return found
	},
	Tests: []Test{{
		Asks: "Do the last words of its containers say that a name could not be looked up?",
		Run: func(_ *probes.Facts, s Suspect) Answer {
			t := s.Data.(*lookupTrouble)
			switch {
			case t.noAnswer || len(t.noName) > 0 || t.vague && len(t.lines) > 0 && t.clearlyLookup():
				return Answered(true, t.lines...)
			case len(t.unread) > 0:
				return CantTell(t.err)
			}
			return Answered(false, Evidence{Says: fmt.Sprintf("no log entry of %s is about a failed lookup", short(s.Subjects[0]))})
		},
	}},
}

// clearlyLookup reports whether a vague entry is at least about a lookup.
func (t *lookupTrouble) clearlyLookup() bool {
	return slices.ContainsFunc(t.lines, func(e Evidence) bool { return strings.Contains(e.Says, lookupMark) })
}

const lookupMark = "(a failed lookup)"

// lookupMeaning is what an entry says of a lookup, where it says anything: one
// entry may name the peer that wasn't reached and, behind it, the lookup.
func (l logged) lookupMeaning() string {
	for _, wanted := range [][]string{noAnswerMeanings, noNameMeanings, vagueMeanings} {
		for _, m := range append([]string{l.meaning}, l.Also...) {
			if slices.Contains(wanted, m) {
				return m
			}
		}
	}
	return ""
}

// absentName is the name that a workload's failed lookup was for, where the
// cluster has no such Service, so that DNS must have answered that it does not
// exist. Of a line that says no name it is the only absent one that the
// workload is configured with. Else it is empty.
func absentName(dir *probes.Directory, maps *probes.List[corev1.ConfigMap], owner Ref, p *corev1.Pod, host string) string {
	if dir == nil {
		return ""
	}
	absent := func(host string) bool {
		t := dir.Lookup(p.Namespace, host, "")
		if t.Kind == probes.TargetService && t.External != "" {
			t = dir.Lookup(t.Ref.Namespace, t.External, "")
		}
		return t.Kind == probes.TargetService && t.Missing
	}
	if host != "" {
		if absent(host) {
			return host
		}
		return ""
	}
	only := ""
	for _, m := range mentionsOf(p, owner, maps) {
		if absent(m.host) && m.host != only {
			if only != "" {
				return ""
			}
			only = m.host
		}
	}
	return only
}

// read takes from a pod's logs what they say of lookups; absent gives the name
// that can't exist, for a host or for a line without one.
func (t *lookupTrouble) read(logs *probes.LogSet, p *corev1.Pod, absent func(string) string) {
	var missing []error
	seen := false
	for _, entry := range failures(logs, p) {
		meaning := entry.lookupMeaning()
		name := ""
		switch {
		case meaning == "dns-failed":
			name = absent(entry.Host)
		case slices.Contains(noNameMeanings, meaning):
			if name = entry.Host; name == "" {
				name = absent("")
			}
		}
		if name != "" && !slices.Contains(t.noName, name) {
			t.noName = append(t.noName, name)
		}
		switch {
		case slices.Contains(noAnswerMeanings, meaning):
			t.noAnswer = true
		case slices.Contains(noNameMeanings, meaning), name != "":
		case slices.Contains(vagueMeanings, meaning):
			t.vague = true
		default:
			continue
		}
		seen = true
		if entry.Host != "" && !slices.Contains(t.hosts, entry.Host) {
			t.hosts = append(t.hosts, entry.Host)
		}
		says := entry.quote()
		if meaning == "dns-failed" || meaning == "dns-servfail" {
			says += " " + lookupMark
		}
		if len(t.lines) < 2*maxExamples {
			t.lines = append(t.lines, Evidence{Says: says, Document: entry.document, At: entry.at})
		}
	}
	if seen {
		t.pods = append(t.pods, p)
		return
	}
	for _, l := range logs.Of(p.Namespace, p.Name) {
		if l.Gap != nil {
			missing = append(missing, l.Gap)
		}
	}
	if len(missing) > 0 {
		t.unread = append(t.unread, p)
		t.err = errors.Join(append([]error{t.err}, missing...)...)
	}
}
