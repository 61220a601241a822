package diagnose

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// waitsForItself: a workload gets ready, or starts, only when its own Service
// answers, and that Service sends nothing to pods that are not ready.
var waitsForItself = &Rule{
	ID:         "readiness-waits-for-itself",
	Explains:   []*Rule{podNotReady, podNotStarting, podCrashLooping},
	LastResort: true,
	Needs:      slices.Concat(directoryNeeds, settingNeeds, []probes.Any{probes.Logs, probes.Events, probes.Workloads}),
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		d, err := directory(facts)
		if err != nil {
			return nil
		}
		var list []Suspect
		for _, s := range suspectsOf(effects, unwell) {
			for _, c := range containers(s) {
				service, says := awaited(facts, d, c)
				if service == nil || !slices.ContainsFunc(d.Behind(service), func(p *corev1.Pod) bool { return p == c.pod }) || service.Spec.PublishNotReadyAddresses {
					continue
				}
				s.Vars["service"], s.Data = service.Name, service
				s.Found = []Evidence{says}
				list = append(list, s)
				break
			}
		}
		return list
	},
	Tests: []Test{{
		Asks: "is no pod behind Service {service}, which {subject} waits for and is itself, ready?",
		Run: func(facts *probes.Facts, s Suspect) Answer {
			d, err := directory(facts)
			if err != nil {
				return CantTell(err)
			}
			service := s.Data.(*corev1.Service)
			pods := d.Behind(service)
			own := func(p *corev1.Pod) bool { return workloadOf(facts, p) == s.Subjects[0] }
			says := SawObject("services", service.Namespace, service.Name, "Service %s selects %d pods, all of them of %s: %v; none ready: %v; publishNotReadyAddresses is false",
				service.Name, len(pods), short(s.Subjects[0]), !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return !own(p) }), !slices.ContainsFunc(pods, probes.Ready))
			return Answered(!slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return !own(p) || probes.Ready(p) }), says)
		},
	}},
}

// awaited is the Service that a container's readiness check names in its
// command, or that its last failure or its init container's command line is
// about.
func awaited(facts *probes.Facts, d *probes.Directory, c container) (*corev1.Service, Evidence) {
	if p := c.spec.ReadinessProbe; p != nil && p.Exec != nil && !c.init {
		line := strings.Join(p.Exec.Command, " ")
		if s := serviceIn(d, c.pod.Namespace, line); s != nil {
			return s, SawObject("pods", c.pod.Namespace, c.pod.Name, "the readiness check of container %s asks Service %s: %s", c.spec.Name, s.Name, line)
		}
	}
	n, _ := needsOf(facts, d, c)
	if n == nil {
		return nil, Evidence{}
	}
	return n.service, n.says
}

// serviceIn is the first Service that a command line names as a host.
func serviceIn(d *probes.Directory, namespace, line string) *corev1.Service {
	for _, word := range strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t\n;\"'()|&=,", r) }) {
		_, rest, found := strings.Cut(word, "://")
		if found {
			word = rest
		}
		word, _, _ = strings.Cut(word, "/")
		host, port, _ := strings.Cut(word, ":")
		if !found && port == "" && !strings.Contains(host, ".") {
			continue // a word, not an address
		}
		if s := neededService(d, d.Lookup(namespace, host, port)); s != nil {
			return s
		}
	}
	return nil
}

// waitForEachOther: each of some workloads waits for the next, and the last for
// the first: none can be the first to get ready.
var waitForEachOther = &Rule{
	ID:         "workloads-wait-for-each-other",
	Explains:   []*Rule{dependencyNotReady, backendNotReady},
	LastResort: true,
	Needs:      []probes.Any{probes.ReplicaSets},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		next := map[Ref][]*Finding{} // by the one that waits
		for _, e := range effects {
			if e.Rule == dependencyNotReady {
				next[e.Subjects[1]] = append(next[e.Subjects[1]], e)
			}
		}
		var list []Suspect
		seen := map[Ref]bool{}
		for _, start := range sortedRefs(next) {
			round := circle(next, start, nil)
			if len(round) == 0 || seen[start] {
				continue
			}
			var s Suspect
			for _, e := range round {
				seen[e.Subjects[1]] = true
				s.Subjects = append(s.Subjects, e.Subjects[1])
				s.Found = append(s.Found, e.Found...)
			}
			s.Effects = round
			var names []string
			for _, r := range append(slices.Clone(s.Subjects), start) {
				names = append(names, short(r))
			}
			s.Vars = map[string]string{"round": strings.Join(names, " → ")}
			for _, e := range effects {
				if e.Rule == backendNotReady && slices.Contains(s.Subjects, e.Subject()) {
					s.Effects = append(s.Effects, e)
				}
			}
			// Who came last closed the circle.
			slices.SortStableFunc(s.Subjects, func(a, b Ref) int { return revisionMade(facts, b).Compare(revisionMade(facts, a)) })
			list = append(list, s)
		}
		return list
	},
	Tests: []Test{{
		Asks: "do they wait for each other in a circle ({round})?",
		Run:  func(_ *probes.Facts, s Suspect) Answer { return Answered(len(s.Effects) > 1, s.Found...) },
	}},
}

// revisionMade is when a Deployment's latest revision was made.
func revisionMade(facts *probes.Facts, r Ref) time.Time {
	var made time.Time
	if sets, err := probes.ReplicaSets.Of(facts); err == nil {
		for s := range sets.In(r.Namespace) {
			if o := probes.Controller(s); o != nil && o.Name == r.Name && s.CreationTimestamp.After(made) {
				made = s.CreationTimestamp.Time
			}
		}
	}
	return made
}

// circle is the way over the waits from a workload back to it; nil if there is none.
func circle(next map[Ref][]*Finding, start Ref, way []*Finding) []*Finding {
	at := start
	if len(way) > 0 {
		at = way[len(way)-1].Subject()
	}
	for _, e := range next[at] {
		if e.Subject() == start {
			return append(slices.Clone(way), e)
		}
		if slices.ContainsFunc(way, func(w *Finding) bool { return w.Subjects[1] == e.Subject() }) {
			continue
		}
		if round := circle(next, start, append(slices.Clone(way), e)); round != nil {
			return round
		}
	}
	return nil
}

var cycleRules = []*Rule{waitsForItself, waitForEachOther}
