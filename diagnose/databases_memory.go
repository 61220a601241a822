package diagnose

import (
	"regexp"
	"slices"

	"github.com/pposiraegi/ppodoctor/probes"
)

// maxMemory finds the limit that a store in memory is given.
// Source: redis/redis redis.conf (maxmemory, maxmemory-policy).
var maxMemory = regexp.MustCompile(`(?i)maxmemory[ =:"',]+(\d+ ?[a-z]*)`)

// storeMemoryFull: a store in memory refuses writes, because it holds all that
// it may and drops nothing.
var storeMemoryFull = fromLog("store-memory-full", "does the server refuse writes because its memory is full?", ailingOrRefused, databaseNeeds,
	func(facts *probes.Facts, f *logFault) blame {
		b := blame{vars: map[string]string{"server": "the server", "hint": ""}}
		list, err := clientFacts(facts, f)
		if err != nil {
			b.unless = CantTell(err, f.evidence())
			return b
		}
		db := databaseOf(facts, f, list)
		if db == nil {
			db = onlyStore(facts, f.container.pod.Namespace)
		}
		if db == nil {
			return b
		}
		b.subject = workloadOf(facts, db.container.pod)
		b.vars["server"] = short(b.subject)
		theirs, _ := settings(facts, db.container)
		for _, s := range theirs {
			if m := maxMemory.FindStringSubmatch(s.value); m != nil {
				b.vars["hint"] = " Its maxmemory is " + m[1] + "."
				b.found = append(b.found, SawObject("pods", db.container.pod.Namespace, db.container.pod.Name, "server %s: maxmemory is %s (%s)", db.container.pod.Name, m[1], s.where()))
			}
		}
		return b
	}, "store-memory-full")

// onlyStore is the only store in memory of a namespace that is given a limit.
func onlyStore(facts *probes.Facts, namespace string) *server {
	pods, err := probes.Pods.Of(facts)
	if err != nil {
		return nil
	}
	var found []*server
	for p := range pods.In(namespace) {
		for _, c := range containersOf(p) {
			if !databaseKinds["redis"].MatchString(c.spec.Image) || !isDatabase(c.spec.Image) {
				continue
			}
			list, _ := settings(facts, c)
			if slices.ContainsFunc(list, func(s setting) bool { return maxMemory.MatchString(s.value) }) &&
				!slices.ContainsFunc(found, func(s *server) bool { return workloadOf(facts, s.container.pod) == workloadOf(facts, p) }) {
				found = append(found, &server{container: c})
			}
		}
	}
	if len(found) == 1 {
		return found[0]
	}
	return nil
}
