package diagnose

import (
	"regexp"
	"slices"
	"time"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/logread"
)

// refusals are what a server answers to a client whom it won't serve: the
// connection stands, so that the pods of both look healthy.
var refusals = []string{
	"db-credentials", "amqp-refused", "db-access-denied", "db-unknown", "db-connections", "db-read-only", "schema-missing", "kube-forbidden", "store-memory-full",
}

// clientsRefused: a workload that looks healthy says, again and again and to
// the end of its log, that a server refuses what it asks for.
var clientsRefused = &Rule{
	ID:    "clients-refused",
	Needs: []probes.Any{probes.Pods, probes.Workloads, probes.AppLogs},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		workloads, err := probes.Workloads.Of(facts)
		logs, err2 := probes.AppLogs.Of(facts)
		if err != nil || err2 != nil {
			return nil
		}
		now := facts.Source().Now()
		var found []Suspect
		for _, owner := range workloads.All() {
			s := Suspect{Subjects: []Ref{owner}}
			var data podTrouble
			for _, p := range workloads.Pods(owner) {
				if !probes.Ready(p) {
					continue
				}
				for _, c := range containersOf(p) {
					l, f := saidRefused(logs, c, now)
					if f == nil {
						continue
					}
					said := (&logFault{container: c, log: l, failure: f}).evidence()
					data.pods, data.troubles = append(data.pods, p), append(data.troubles, &trouble{container: c.spec.Name, says: said.Says, since: said.At})
					s.Count++
					if podRef(p) != owner {
						s.Subjects = append(s.Subjects, podRef(p))
					}
					if len(s.Found) < maxExamples {
						s.Found = append(s.Found, said)
					}
					break
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

// saidRefused is what a healthy container says of being refused, nil if it doesn't,
// if it is over, or if it is itself the server and says whom it refused.
func saidRefused(logs *probes.LogSet, c container, now time.Time) (*probes.ContainerLog, *logread.Failure) {
	for _, l := range logs.Of(c.pod.Namespace, c.pod.Name) {
		if l.Container != c.spec.Name || l.Excerpt == nil {
			continue
		}
		for _, f := range l.Excerpt.Failures {
			aside := telemetry.MatchString(f.Text) && f.Meaning != "kube-forbidden" // which names kube-state-metrics and the like
			if !f.Handled && f.Count >= 3 && slices.Contains(refusals, f.Meaning) && !aside && !relayed.MatchString(f.Text) && !over(logged{Failure: f}, l, now) && !isDatabase(c.spec.Image) {
				return l, f
			}
		}
	}
	return nil, nil
}

// refusedIn is the first refusal that one of the healthy containers tells of.
func refusedIn(facts *probes.Facts, list []container) *logFault {
	logs, err := probes.AppLogs.Of(facts)
	if err != nil {
		return nil
	}
	for _, c := range list {
		if l, f := saidRefused(logs, c, facts.Source().Now()); f != nil {
			return &logFault{container: c, log: l, failure: f}
		}
	}
	return nil
}

// relayed is how a client words an error that another program was given.
var relayed = regexp.MustCompile(`rpc error: code = \w+ desc = `)
