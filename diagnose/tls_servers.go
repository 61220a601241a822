package diagnose

import (
	"slices"

	"github.com/pposiraegi/ppodoctor/probes"
)

// toldOfPlainText is what a server's own log says of clients that don't speak
// TLS with it, for a client that only sees its connections closed: the meaning,
// empty if it says nothing of the kind, and the lines with the server's added.
func toldOfPlainText(facts *probes.Facts, u *unreached) (string, []Evidence) {
	logs, err := probes.AppLogs.Of(facts)
	if err != nil {
		return "", u.lines
	}
	now := facts.Source().Now()
	for _, p := range u.target.Pods {
		for _, l := range logs.Of(p.Namespace, p.Name) {
			if l.Excerpt == nil {
				continue
			}
			for _, f := range l.Excerpt.Failures {
				if f.Meaning == "tls-protocol" && f.Count >= 3 && !over(logged{Failure: f}, l, now) {
					says := (&logFault{container: container{pod: p, spec: probes.ContainerOf(p, l.Container)}, log: l, failure: f}).evidence()
					return f.Meaning, append(slices.Clone(u.lines), says)
				}
			}
		}
	}
	return "", u.lines
}
