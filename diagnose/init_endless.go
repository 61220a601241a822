package diagnose

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/pposiraegi/ppodoctor/probes"
)

// endless recognises command lines that never end by themselves, whatever else
// is true: no loop with a condition is among them.
var endless = regexp.MustCompile(`(?:^|[\s;&|"'])(?:sleep\s+(?:infinity|inf|\d{5,}|\d+[dh])|tail\s+-[fF]\s*\S*|while\s+(?:true|:|\[ 1 \]);?\s*do\s+sleep\s+\S+\s*;?\s*done|pause)\s*["']?$`)

// initWaitsForEver: an init container's command never ends, so that the pod's
// own containers are never started.
var initWaitsForEver = &Rule{
	ID:       "init-container-never-ends",
	Explains: []*Rule{podNotStarting},
	Needs:    []probes.Any{probes.Pods},
	Suspects: perContainer(func(c container) bool {
		return c.init && c.status.State.Running != nil && !sidecar(c.pod, c.spec.Name)
	}),
	Tests: []Test{{
		Asks: "is the command of init container {container} one that never ends?",
		Run: func(facts *probes.Facts, s Suspect) Answer {
			c := containers(s)[0]
			line := strings.Join(append(append([]string{}, c.spec.Command...), c.spec.Args...), " ")
			since := c.status.State.Running.StartedAt
			says := SawObject("pods", c.pod.Namespace, c.pod.Name, "init container %s of pod %s has run since %s: %q", c.spec.Name, c.pod.Name, stampOf(since.Time), line)
			if !endless.MatchString(strings.TrimSpace(line)) {
				return Answered(false, says)
			}
			waited := facts.Source().Now().Sub(since.Time).Round(time.Minute)
			return Answered(waited >= time.Minute, says).With("command", line).With("waited", fmt.Sprint(waited)).With("target", strings.ToLower(s.Subjects[0].Kind)+"/"+s.Subjects[0].Name)
		},
	}},
}
