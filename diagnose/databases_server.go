package diagnose

import (
	"regexp"
	"slices"
	"strings"

	"github.com/pposiraegi/ppodoctor/probes"
)

// databaseImage recognises images of databases and brokers, notDatabase those
// of what has only to do with one.
var (
	databaseImage = regexp.MustCompile(`(?i)postgres|mysql|maria|percona|mongo|redis|valkey|keydb|rabbit|kafka|cassandra|cockroach|clickhouse|mssql|elastic|opensearch|timescale|postgis|nats|memcached`)
	notDatabase   = regexp.MustCompile(`(?i)exporter|client|consumer|producer|console|operator|migrat|proxy|backup|-ui\b|connect`)
)

func isDatabase(image string) bool {
	name := image[strings.LastIndexByte(image, '/')+1:]
	return databaseImage.MatchString(name) && !notDatabase.MatchString(name)
}

// databaseKinds are what images of the servers are called whose words a
// signature knows, by its runtime.
var databaseKinds = map[string]*regexp.Regexp{
	"postgres": regexp.MustCompile(`(?i)postgres|timescale|postgis|cockroach|spilo`),
	"mysql":    regexp.MustCompile(`(?i)mysql|maria|percona`),
	"mongo":    regexp.MustCompile(`(?i)mongo`),
	"redis":    regexp.MustCompile(`(?i)redis|valkey|keydb`),
	"amqp":     regexp.MustCompile(`(?i)rabbit`),
	"kafka":    regexp.MustCompile(`(?i)kafka|redpanda`),
}

// A server is a database's container that a client uses.
type server struct {
	target    probes.Target
	container container
	told      *logFault // what its own log says of the same; nil if nothing
}

// databaseOf is the database that a client's failure is about, or nil where it
// can't be told or is outside the cluster. The failure's own host comes first,
// then the database whose own log tells of the same, then the only one that
// the client is configured with, or the one of the client's name.
func databaseOf(facts *probes.Facts, f *logFault, list []setting) *server {
	d, err := directory(facts)
	if err != nil {
		return nil
	}
	targets := serversOf(d, f, list)
	maps, _ := probes.ConfigMaps.Of(facts)
	for _, m := range mentionsOf(f.container.pod, f.owner, maps) {
		if t := d.Lookup(f.container.pod.Namespace, m.host, m.port); (t.Kind == probes.TargetService || t.Kind == probes.TargetPod) && !t.Missing {
			targets = append(targets, t)
		}
	}
	var servers []*server
	kind := databaseKinds[runtimeOf(f)]
	for _, t := range targets {
		for _, p := range t.Pods {
			for _, c := range containersOf(p) {
				if p == f.container.pod || !isDatabase(c.spec.Image) || kind != nil && !kind.MatchString(c.spec.Image) ||
					slices.ContainsFunc(servers, func(s *server) bool { return workloadOf(facts, s.container.pod) == workloadOf(facts, p) }) {
					continue
				}
				servers = append(servers, &server{target: t, container: c, told: toldByServer(facts, c, f.failure.Meaning)})
			}
		}
	}
	if len(servers) == 0 {
		return nil
	}
	own := d.Lookup(f.container.pod.Namespace, f.failure.Host, f.failure.Port)
	for _, fits := range []func(*server) bool{
		func(s *server) bool { return f.failure.Host != "" && s.target.Ref == own.Ref },
		func(s *server) bool { return s.told != nil },
		func(s *server) bool {
			name := f.failure.Captures["name"]
			return name != "" && shareWord(s.target.Ref.Name, name)
		},
		func(s *server) bool { return shareWord(s.target.Ref.Name, f.owner.Name) },
	} {
		var fit []*server
		for _, s := range servers {
			if fits(s) {
				fit = append(fit, s)
			}
		}
		if len(fit) == 1 {
			return fit[0]
		}
	}
	return servers[0]
}

func runtimeOf(f *logFault) string {
	if f.failure.Signature == nil {
		return ""
	}
	return f.failure.Signature.Runtime
}

// toldByServer is what a database's own log says of a failure of that meaning.
func toldByServer(facts *probes.Facts, c container, meaning string) *logFault {
	for _, probe := range []*probes.Probe[*probes.LogSet]{probes.AppLogs, probes.Logs} {
		logs, err := probe.Of(facts)
		if err != nil {
			continue
		}
		for _, l := range logs.Of(c.pod.Namespace, c.pod.Name) {
			if l.Container != c.spec.Name || l.Excerpt == nil {
				continue
			}
			for _, f := range l.Excerpt.Failures { // MongoDB tells of refusals as information
				if f.Meaning == meaning {
					return &logFault{container: c, log: l, failure: f}
				}
			}
		}
	}
	return nil
}

// generalWords occur in the names of databases of all kinds.
var generalWords = regexp.MustCompile(`^(?:service|svc|db|database|mongo|mongodb|mysql|postgres|postgresql|redis|cache|server|api|app|.|)$`)

// shareWord reports whether two names have a word in common that says what
// they are for.
func shareWord(a, b string) bool {
	split := func(s string) []string {
		return strings.FieldsFunc(strings.ToLower(s), func(r rune) bool { return r == '-' || r == '_' || r == '.' })
	}
	return slices.ContainsFunc(split(a), func(w string) bool { return !generalWords.MatchString(w) && slices.Contains(split(b), w) })
}
