package diagnose

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/logread"
)

// dying and ailing are the symptoms that a container's log may explain.
var (
	dying  = []*Rule{podCrashLooping, podRestarting, jobFailing}
	ailing = []*Rule{podCrashLooping, podRestarting, jobFailing, podNotReady, podNotStarting}
	// ailingOrRefused are those whose containers may look healthy as well.
	ailingOrRefused = append([]*Rule{clientsRefused}, ailing...)
)

// A logFault is the failure that says most about a container, with its log.
type logFault struct {
	container container
	owner     Ref
	log       *probes.ContainerLog
	failure   *logread.Failure
}

// talkative takes the containers whose logs may tell of a refusal, too.
func talkative(c container) bool { return unwell(c) || c.status.Ready && probes.Ready(c.pod) }

// unwell takes the containers whose logs may say why their pod is in trouble.
func unwell(c container) bool {
	if exit := probes.LastExit(c.status); exit != nil && exit.ExitCode != 0 {
		return true
	}
	return !c.status.Ready && (c.status.State.Running != nil || c.status.RestartCount > 0)
}

// logsOf are the logs that could be read of a container; of a run that ended
// first. The error is the gap where none could.
func logsOf(facts *probes.Facts, c container) ([]*probes.ContainerLog, error) {
	set, err := probes.Logs.Of(facts)
	if err != nil {
		return nil, err
	}
	var list []*probes.ContainerLog
	var unread error
	for _, l := range set.Of(c.pod.Namespace, c.pod.Name) {
		switch {
		case l.Container != c.spec.Name:
		case l.Excerpt == nil:
			unread = l.Gap
		default:
			list = append(list, l)
		}
	}
	if len(list) > 0 {
		return list, nil
	}
	return nil, unread
}

// decisive is the failure that says most about the containers; nil where no
// log of theirs says anything. The error is a log that can't be had, if no
// other said anything.
func decisive(facts *probes.Facts, list []container) (*logFault, error) {
	var best *logFault
	var unread error
	for _, c := range list {
		logs, err := logsOf(facts, c)
		if err != nil {
			unread = err
		}
		for _, l := range logs {
			if l.Excerpt.Decisive == nil {
				continue
			}
			if d := l.Excerpt.Decisive; best == nil || best.failure.Meaning == "" && d.Meaning != "" {
				best = &logFault{container: c, log: l, failure: d}
			}
		}
	}
	if best == nil {
		return nil, unread
	}
	return best, nil
}

// means reports whether a failure has one of the meanings.
func (f *logFault) means(meanings ...string) bool {
	return f != nil && slices.Contains(meanings, f.failure.Meaning)
}

// line is the line of the failure that says what it is: the first, but the
// last of a Python traceback.
func (f *logFault) line() string {
	text := strings.TrimSpace(f.failure.Text)
	line, _, _ := strings.Cut(text, "\n")
	if strings.HasPrefix(line, "Traceback") {
		line = text[strings.LastIndex(text, "\n")+1:]
	}
	if len(line) > 300 {
		line = line[:300] + "…"
	}
	return line
}

func (f *logFault) evidence() Evidence {
	e := Evidence{
		Says:     fmt.Sprintf("log of container %s of pod %s: %q", f.container.spec.Name, f.container.pod.Name, f.line()),
		Document: f.log.Document(),
	}
	if at := f.failure.LastAt; !at.IsZero() {
		e.At = &at
	}
	return e
}

// A blame says which object is at fault for what a log says, with variables
// for the texts and what it found. An empty Ref is the workload.
type blame struct {
	subject Ref
	vars    map[string]string
	found   []Evidence
	// unless rules the fault out, or leaves it open; its zero is neither.
	unless Answer
}

// fromLog is a rule about containers whose log says one of the meanings: the
// failure that says most decides, so of such rules one fits. find says whom
// to blame; it may read the needs.
func fromLog(id, asks string, explains []*Rule, needs []probes.Any, find func(*probes.Facts, *logFault) blame, meanings ...string) *Rule {
	all := append([]probes.Any{probes.Logs, probes.Pods}, needs...)
	pick := unwell
	if slices.Contains(explains, clientsRefused) {
		all, pick = append(all, probes.AppLogs), talkative
	}
	return &Rule{
		ID: id, Explains: explains, Needs: all,
		Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
			var list []Suspect
			for _, s := range suspectsOf(effects, pick) {
				f, _ := decisive(facts, slices.DeleteFunc(slices.Clone(containers(s)), func(c container) bool { return !unwell(c) }))
				if f == nil && !unwell(containers(s)[0]) {
					f = refusedIn(facts, containers(s))
				}
				if !f.means(meanings...) {
					continue
				}
				f.owner = s.Subjects[0]
				var b blame
				if find != nil {
					b = find(facts, f)
				}
				if b.subject.Kind != "" {
					s.Subjects = append([]Ref{b.subject}, s.Subjects...)
				}
				maps.Copy(s.Vars, f.failure.Captures)
				s.Vars["container"], s.Vars["line"], s.Vars["workload"] = f.container.spec.Name, f.line(), short(f.owner)
				s.Vars["target"] = strings.ToLower(f.owner.Kind) + "/" + f.owner.Name
				for _, name := range []string{"file", "key", "name", "user", "port", "command", "module", "message", "host", "reason"} {
					if s.Vars[name] == "" {
						s.Vars[name] = "(not named)"
					}
				}
				maps.Copy(s.Vars, b.vars)
				s.Data = toldByLog{f, b, containers(s)}
				list = append(list, s)
			}
			return list
		},
		Tests: []Test{{
			Asks: asks, Needs: all,
			Run: func(facts *probes.Facts, s Suspect) Answer {
				d := s.Data.(toldByLog)
				if d.blame.unless.Truth != "" {
					return d.blame.unless
				}
				return Answered(true, append([]Evidence{d.fault.evidence()}, d.blame.found...)...)
			},
		}},
	}
}

// toldByLog is the Data of the rules made by fromLog.
type toldByLog struct {
	fault      *logFault
	blame      blame
	containers []container
}
