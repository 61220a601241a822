package diagnose

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/logread"
)

// directoryNeeds are the facts that directory reads.
var directoryNeeds = []probes.Any{probes.Services, probes.EndpointSlices, probes.Pods, probes.Namespaces}

// directory is what hosts are looked up in.
func directory(facts *probes.Facts) (*probes.Directory, error) {
	services, err := probes.Services.Of(facts)
	if err != nil {
		return nil, err
	}
	endpoints, err := probes.EndpointSlices.Of(facts)
	if err != nil {
		return nil, err
	}
	pods, err := probes.Pods.Of(facts)
	if err != nil {
		return nil, err
	}
	d := &probes.Directory{Services: services, Slices: endpoints, Pods: pods}
	if namespaces, err := probes.Namespaces.Of(facts); err == nil && namespaces.Len() > 0 {
		d.Namespaces = namespaces
	}
	return d, nil
}

// hostPort finds what may be a host with a port in a setting's value.
var hostPort = regexp.MustCompile(`(?:@|//|^|[\s=,(])([a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)(?::(\d{2,5}))?(?:$|[/,?;\s)])`)

// clientFacts are the settings of the client, or the reason why client or
// servers can't be known.
func clientFacts(facts *probes.Facts, f *logFault) ([]setting, error) {
	if _, err := directory(facts); err != nil {
		return nil, err
	}
	return settings(facts, f.container)
}

// serversOf are the in-cluster servers that a container's settings and the
// failure name, the failure's first.
func serversOf(d *probes.Directory, f *logFault, list []setting) []probes.Target {
	var targets []probes.Target
	add := func(host, port string) {
		t := d.Lookup(f.container.pod.Namespace, host, port)
		if (t.Kind == probes.TargetService || t.Kind == probes.TargetPod) && !t.Missing {
			targets = append(targets, t)
		}
	}
	if f.failure.Host != "" {
		add(f.failure.Host, f.failure.Port)
	}
	for _, s := range list {
		for _, m := range hostPort.FindAllStringSubmatch(s.value, -1) {
			add(m[1], m[2])
		}
	}
	return targets
}

var (
	passwordName = regexp.MustCompile(`(?i)pass|pwd|secret|credential|auth`)
	addressName  = regexp.MustCompile(`(?i)(?:url|uri|dsn|conn(?:ection)?_?(?:str|string)?)$`)
	userName     = regexp.MustCompile(`(?i)user(?:name)?$`)
	rootName     = regexp.MustCompile(`(?i)root`)
)

// pickSetting is the first setting whose name fits.
func pickSetting(list []setting, fits ...*regexp.Regexp) *setting {
	for _, re := range fits {
		for i := range list {
			if re.MatchString(list[i].name) && list[i].name != "args" {
				return &list[i]
			}
		}
	}
	return nil
}

var databaseNeeds = slices.Concat(settingNeeds, directoryNeeds, []probes.Any{probes.Claims, probes.Workloads, probes.AppLogs})

// databaseCredentialsWrong: a database or broker refuses user or password.
var databaseCredentialsWrong = fromLog("database-credentials-wrong", "does the server refuse the client's user or password?", ailingOrRefused, databaseNeeds,
	func(facts *probes.Facts, f *logFault) blame {
		b := blame{vars: map[string]string{"hint": "", "server": "the server", "user": f.failure.Captures["user"]}}
		if b.vars["user"] == "" {
			b.vars["user"] = "(not named)"
		}
		c := f.container
		mine, err := clientFacts(facts, f)
		if err != nil {
			b.unless = CantTell(err, f.evidence())
			return b
		}
		password := pickSetting(mine, databasePassword, passwordName, addressName)
		if password != nil {
			if password.from.Kind != "" {
				b.subject = password.from
			}
			b.vars["hint"] = fmt.Sprintf(" Its password comes from %s.", password.where())
			b.found = append(b.found, SawObject("pods", c.pod.Namespace, c.pod.Name, "container %s takes its password from %s", c.spec.Name, password.where()))
		}
		db := databaseOf(facts, f, mine)
		if db == nil {
			return b
		}
		b.vars["server"] = short(workloadOf(facts, db.container.pod))
		if t := db.told; t != nil {
			b.found = append(b.found, t.evidence())
			if m := userNotFound.FindStringSubmatch(t.failure.Text + " " + f.failure.Text); m != nil {
				b.subject, b.vars["user"] = workloadOf(facts, db.container.pod), m[1]+m[2]
				b.vars["hint"] += fmt.Sprintf(" The server says that it has no user %s.", m[1]+m[2])
				return b
			}
		}
		theirs, _ := settings(facts, db.container)
		compareCredentials(facts, f, &b, password, mine, theirs, db)
		return b
	}, "db-credentials", "amqp-refused")

// userNotFound: the server says that there is no such user.
var userNotFound = regexp.MustCompile(`(?i)could not find user \\?"([^"\\]+)|(?:user|role) \\?"([^"\\]+)\\?" does not exist`)

var databasePassword = regexp.MustCompile(`(?i)(?:db|database|postgres|pg|mysql|maria|mongo|redis|rabbit|amqp|sql|datasource|jdbc|sasl|kafka).*(?:pass|pwd)`)

func workloadOf(facts *probes.Facts, p *corev1.Pod) Ref {
	if w, err := probes.Workloads.Of(facts); err == nil {
		return w.Of(p)
	}
	return podRef(p)
}

// compareCredentials says where client and server take their credentials
// from, and what differs. Values of Secrets are never known.
func compareCredentials(facts *probes.Facts, f *logFault, b *blame, password *setting, mine, theirs []setting, db *server) {
	saw := func(format string, args ...any) {
		p := db.container.pod
		b.found = append(b.found, SawObject("pods", p.Namespace, p.Name, format, args...))
	}
	// A user that the server was not set up with.
	if user := f.failure.Captures["user"]; user != "" {
		given := pickSetting(theirs, userName)
		root := rootName.MatchString(user) || user == "postgres"
		if given != nil && given.value != "" && !given.secret && given.value != user && !root {
			saw("the server %s was set up with user %s", db.container.pod.Name, given.value)
			b.vars["hint"] += fmt.Sprintf(" The server %s was set up with user %s.", db.container.pod.Name, given.value)
			if s := holder(mine, user); s != nil {
				b.subject = s.from
			}
			return
		}
	}
	var candidates []setting
	for _, s := range theirs {
		if passwordName.MatchString(s.name) && s.name != "args" {
			candidates = append(candidates, s)
		}
	}
	if password == nil || len(candidates) == 0 {
		return
	}
	same := slices.IndexFunc(candidates, func(s setting) bool {
		return s.from == password.from && s.key == password.key && (s.from.Kind != "" || s.value == password.value)
	})
	if same < 0 {
		other := candidates[0]
		if i := slices.IndexFunc(candidates, func(s setting) bool {
			return rootName.MatchString(s.name) == rootName.MatchString(f.failure.Captures["user"])
		}); i >= 0 {
			other = candidates[i]
		}
		if addressName.MatchString(password.name) {
			return // a whole address in one value: it may hold the right password
		}
		saw("the server %s takes its password from %s", db.container.pod.Name, other.where())
		b.vars["hint"] += fmt.Sprintf(" The server takes it from %s: that is another value.", other.where())
		if password.from.Kind == "ConfigMap" {
			return
		}
		b.subject = Ref{}
		return
	}
	// Both take it from the same place: one of them has an old value.
	if password.from.Kind != "Secret" {
		return
	}
	secrets, err := probes.Secrets.Of(facts)
	if err != nil {
		b.unless = CantTell(err, f.evidence())
		return
	}
	secret := secrets.Get(password.from.Namespace, password.from.Name)
	if secret == nil {
		return
	}
	changed := secret.CreationTimestamp.Time
	for _, m := range secret.ManagedFields {
		if m.Time != nil && m.Time.After(changed) {
			changed = m.Time.Time
		}
	}
	stamp := changed.UTC().Format(time.RFC3339)
	if r := f.container.pod.Status.StartTime; r != nil && r.Time.Before(changed) && db.container.pod.Status.StartTime != nil && db.container.pod.Status.StartTime.After(changed) {
		b.subject = Ref{}
		b.vars["hint"] += fmt.Sprintf(" The secret was changed at %s, after this pod began: the pod still has the old value.", stamp)
		return
	}
	claims, err := probes.Claims.Of(facts)
	if err != nil {
		return
	}
	for _, v := range db.container.pod.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		claim := claims.Get(db.container.pod.Namespace, v.PersistentVolumeClaim.ClaimName)
		if claim != nil && claim.CreationTimestamp.Time.Before(changed.Add(-time.Minute)) {
			b.subject = password.from
			b.vars["hint"] += fmt.Sprintf(" The server's claim %s is from %s, before the secret was last written (%s): the data folder keeps the password with which it was made.",
				claim.Name, claim.CreationTimestamp.UTC().Format(time.RFC3339), stamp)
			b.found = append(b.found, SawObject("persistentvolumeclaims", claim.Namespace, claim.Name, "claim %s was made at %s, before secret %s was written (%s)", claim.Name, claim.CreationTimestamp.UTC().Format(time.RFC3339), secret.Name, stamp))
			return
		}
	}
}

// blameHolder blames the setting that holds a name which the line says.
func blameHolder(facts *probes.Facts, f *logFault, name string) blame {
	b := blame{vars: map[string]string{"hint": "", "name": name}}
	list, err := clientFacts(facts, f)
	if err != nil {
		b.unless = CantTell(err, f.evidence())
		return b
	}
	if s := holder(list, name); s != nil {
		b.vars["hint"] = fmt.Sprintf(" The name comes from %s.", s.where())
		b.found = []Evidence{SawObject("pods", f.container.pod.Namespace, f.container.pod.Name, "container %s: %s says %s", f.container.spec.Name, s.where(), name)}
		if s.from.Kind != "" {
			b.subject = s.from
		}
	}
	if db := databaseOf(facts, f, list); db != nil {
		theirs, _ := settings(facts, db.container)
		if s := pickSetting(theirs, regexp.MustCompile(`(?i)(?:^|_)(?:db|database)$`)); s != nil && s.value != "" && !s.secret && s.value != name {
			b.vars["hint"] += fmt.Sprintf(" The server %s was set up with database %s.", db.container.pod.Name, s.value)
			b.found = append(b.found, SawObject("pods", db.container.pod.Namespace, db.container.pod.Name, "server %s: %s is %s", db.container.pod.Name, s.where(), s.value))
		}
	}
	return b
}

// databaseUnknown: the server has no such database or role.
var databaseUnknown = fromLog("database-unknown", "does the server say that it has no such database, role, queue or topic?", ailingOrRefused, databaseNeeds,
	func(facts *probes.Facts, f *logFault) blame {
		b := blameHolder(facts, f, unknownName(f))
		b.vars["name"] = cmp.Or(b.vars["name"], "that it names")
		return b
	}, "db-unknown", "kafka-topic-missing")

// unknownName is what the server has not, by the decisive line or by another
// of the same meaning.
func unknownName(f *logFault) string {
	for _, failure := range append([]*logread.Failure{f.failure}, f.log.Excerpt.Failures...) {
		if name := cmp.Or(failure.Captures["name"], failure.Captures["name2"]); name != "" && failure.Meaning == f.failure.Meaning {
			return name
		}
	}
	return ""
}

// databaseAccessDenied: the server knows the user, who may not.
var databaseAccessDenied = fromLog("database-access-denied", "does the server deny the operation to a user whom it knows?", ailingOrRefused, databaseNeeds,
	func(facts *probes.Facts, f *logFault) blame {
		b := blame{vars: map[string]string{"server": "the server"}}
		list, err := clientFacts(facts, f)
		if err != nil {
			b.unless = CantTell(err, f.evidence())
			return b
		}
		if db := databaseOf(facts, f, list); db != nil {
			b.subject = workloadOf(facts, db.container.pod)
			b.vars["server"] = short(b.subject)
			if db.told != nil {
				b.found = append(b.found, db.told.evidence())
			}
		}
		return b
	}, "db-access-denied")

// overFlood is how Elasticsearch refuses writes for its disk's sake.
// Source: elasticsearch reference, "Disk-based shard allocation settings".
var overFlood = regexp.MustCompile(`flood-stage|read-only-allow-delete|FORBIDDEN/12`)

// databaseReadOnly: a write goes to a server that only reads.
var databaseReadOnly = fromLog("database-read-only", "does the server say that it only reads?", ailingOrRefused, databaseNeeds,
	func(facts *probes.Facts, f *logFault) blame {
		b := blame{vars: map[string]string{"hint": ""}}
		list, err := clientFacts(facts, f)
		if err != nil {
			b.unless = CantTell(err, f.evidence())
			return b
		}
		if db := databaseOf(facts, f, list); db != nil {
			host := db.target.Host
			b.vars["hint"] = fmt.Sprintf(" It writes to %s.", host)
			if overFlood.MatchString(f.line()) {
				b.subject = workloadOf(facts, db.container.pod)
				b.vars["hint"] = fmt.Sprintf(" %s has closed its indices for writes, as its disk is full past the flood stage: free space or grow its volume; it opens them by itself then.", short(b.subject))
				return b
			}
			if s := holder(list, host); s != nil {
				b.vars["hint"] = fmt.Sprintf(" It writes to %s (%s).", host, s.where())
				if s.from.Kind != "" {
					b.subject = s.from
				}
			}
			b.found = append(b.found, SawObject("services", db.target.Ref.Namespace, db.target.Ref.Name, "host %s is %s, with pod %s", host, short(db.target.Ref), db.container.pod.Name))
		}
		return b
	}, "db-read-only")

var (
	maxConnections = regexp.MustCompile(`max_connections[= ]+(\d+)`)
	poolSize       = regexp.MustCompile(`(?i)(?:pool|max_?conn)`)
)

// connectionsExhausted: the server takes no more connections.
var connectionsExhausted = fromLog("database-connections-exhausted", "does the server take no more connections?", ailingOrRefused, databaseNeeds,
	func(facts *probes.Facts, f *logFault) blame {
		b := blame{vars: map[string]string{"server": "the server", "hint": ""}}
		list, err := clientFacts(facts, f)
		if err != nil {
			b.unless = CantTell(err, f.evidence())
			return b
		}
		db := databaseOf(facts, f, list)
		if db != nil {
			b.subject = workloadOf(facts, db.container.pod)
			b.vars["server"] = short(b.subject)
			theirs, _ := settings(facts, db.container)
			for _, s := range theirs {
				if m := maxConnections.FindStringSubmatch(s.value); m != nil {
					b.vars["hint"] = fmt.Sprintf(" The server has max_connections %s.", m[1])
					b.found = append(b.found, SawObject("pods", db.container.pod.Namespace, db.container.pod.Name, "server %s: max_connections is %s", db.container.pod.Name, m[1]))
				}
			}
		}
		if s := pickSetting(list, poolSize); s != nil && s.value != "" {
			replicas := 1
			if w, err := probes.Workloads.Of(facts); err == nil {
				replicas = len(w.Pods(f.owner))
			}
			b.vars["hint"] += fmt.Sprintf(" The client has %s=%s in each of its %d pods.", s.name, s.value, replicas)
			b.found = append(b.found, SawObject("pods", f.container.pod.Namespace, f.container.pod.Name, "container %s: %s is %s, in %d pods", f.container.spec.Name, s.name, s.value, replicas))
		}
		return b
	}, "db-connections")

// databaseDataUnusable: the server can't use what is in its volume.
var databaseDataUnusable = fromLog("database-data-unusable", "does the server say that it can't use its data folder?", ailing, nil,
	func(_ *probes.Facts, f *logFault) blame {
		b := blame{vars: map[string]string{"image": f.container.spec.Image, "claim": "its volume"}}
		for _, m := range f.container.spec.VolumeMounts {
			for _, v := range f.container.pod.Spec.Volumes {
				if v.Name == m.Name && v.PersistentVolumeClaim != nil {
					b.vars["claim"] = "claim " + v.PersistentVolumeClaim.ClaimName
				}
			}
		}
		return b
	}, "db-data-unusable", "prometheus-storage-damaged")

// schemaMissing: a migration has not run.
var schemaMissing = fromLog("database-schema-missing", "does the server lack a table or column?", ailingOrRefused, []probes.Any{probes.Jobs},
	func(facts *probes.Facts, f *logFault) blame {
		b := blame{vars: map[string]string{"name": f.failure.Captures["name"], "hint": ""}}
		if b.vars["name"] == "" {
			b.vars["name"] = "a table"
		}
		jobs, err := probes.Jobs.Of(facts)
		if err != nil {
			b.unless = CantTell(err, f.evidence())
			return b
		}
		for j := range jobs.In(f.container.pod.Namespace) {
			if strings.Contains(j.Name, "migrat") && j.Status.Succeeded == 0 {
				b.subject = jobOwner(j)
				b.vars["hint"] = fmt.Sprintf(" Job %s has not succeeded.", j.Name)
				b.found = append(b.found, SawObject("jobs.batch", j.Namespace, j.Name, "job %s: succeeded 0, failed %d, suspend %t", j.Name, j.Status.Failed, j.Spec.Suspend != nil && *j.Spec.Suspend))
			}
		}
		return b
	}, "schema-missing", "migration-failed")

// dataLocked: another process holds the lock.
var dataLocked = fromLog("data-lock-held", "does another process hold the lock of the data?", ailing, nil, nil, "db-lock-held")

var databaseRules = []*Rule{
	storeMemoryFull,
	databaseCredentialsWrong, databaseUnknown, databaseAccessDenied, databaseReadOnly, connectionsExhausted, databaseDataUnusable, schemaMissing, dataLocked,
	serviceAccountDenied,
}
