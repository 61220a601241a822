package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pposiraegi/ppodoctor/probes"
)

// listensElsewhere: Service and pod agree on a port, and the program says that
// it listens on another: it runs with the wrong command or setting.
var listensElsewhere = ofServices("program-listens-elsewhere", templates, "do the pods behind Service {service} show its port, and their program listens on another?",
	func(facts *probes.Facts, dir *probes.Directory, g *perService, s *Suspect) Answer {
		pods := dir.Behind(g.service)
		none := SawObject("services", g.service.Namespace, g.service.Name, "nothing says that the pods of Service %s listen on another port", g.service.Name)
		if len(pods) == 0 || !g.refused || !probes.Ready(pods[0]) {
			return Answered(false, none)
		}
		workloads, err := probes.Workloads.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		p := pods[0]
		for _, sp := range g.ports {
			number := fmt.Sprint(targetNumber(p, sp))
			said := listening(facts, p)
			if !declares(p, sp) || len(said) == 0 || slices.ContainsFunc(said, func(l listener) bool { return l.port == number }) {
				continue
			}
			var others []string
			evidence := []Evidence{SawObject("pods", p.Namespace, p.Name, "pod %s declares %s, and clients of its port %s are refused", p.Name, listed(declaredPorts(p)), number)}
			for _, l := range said {
				others = append(others, l.port)
				evidence = append(evidence, l.says)
			}
			for _, c := range p.Spec.Containers {
				if line := append(slices.Clone(c.Command), c.Args...); len(line) > 0 {
					evidence = append(evidence, SawObject("pods", p.Namespace, p.Name, "container %s runs %q", c.Name, strings.Join(line, " ")))
				}
			}
			owner := workloads.Of(p)
			s.Subjects = append([]Ref{owner}, s.Subjects...)
			s.Vars["port"], s.Vars["others"], s.Vars["target"] = number, listed(others), strings.ToLower(owner.Kind)+"/"+owner.Name
			return Answered(true, evidence...)
		}
		return Answered(false, none)
	})
