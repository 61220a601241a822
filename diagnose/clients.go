package diagnose

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/network"
)

// What a log entry says of a connection.
var (
	refusedMeanings = []string{"tcp-refused"}
	droppedMeanings = []string{"tcp-timeout", "tcp-no-route", "net-unreachable", "timeout-ambiguous", "read-timeout"}
	otherMeanings   = []string{"tcp-reset", "no-healthy-upstream", "mesh-fault", "rpc-unavailable", "db-unreachable", "kafka-unreachable", "redis-master-unreachable", "tls-protocol"}
	tlsMeanings     = []string{"tls-unknown-authority", "tls-expired", "tls-name-mismatch", "tls-protocol"}
	// fromClients is what servers say of those who call them.
	// Sources: Go net/http server.go, nginx ngx_event_openssl.c.
	fromClients = regexp.MustCompile(`TLS handshake error from |while SSL handshaking, client: `)
	// telemetry is what programs do beside their work: that it fails hurts nobody.
	telemetry = regexp.MustCompile(`(?i)\b(?:traces?|tracing|spans?|otlp|opentelemetry|otel|jaeger|zipkin|statsd|metrics?|telemetry|profil(?:er|ing))\b`)
)

// An unreached is one address that a workload calls and that does not serve it.
type unreached struct {
	client     Ref
	pods       []*corev1.Pod // that say so, or are configured so
	host, port string
	ip         string // that a log has for the host; empty: none
	target     probes.Target
	refused    bool       // at least one connection was refused
	dropped    bool       // at least one got no answer
	lines      []Evidence // of logs; none where only the configuration says so
	count      int
	mentions   []mention // where the address comes from
	tls        string    // what the logs say of TLS: one of tlsMeanings, or empty
}

func (u *unreached) address() string {
	if u.port == "" {
		return u.host
	}
	return u.host + ":" + u.port
}

// portNumber is the port that is called, 0 if it isn't known.
func (u *unreached) portNumber() int {
	n, _ := strconv.Atoi(u.port)
	return n
}

// failingClient is the Data of a clients-failing symptom.
type failingClient struct {
	pods  []*corev1.Pod
	calls []*unreached
}

var callFacts = append([]probes.Any{probes.Workloads, probes.AppLogs, probes.ConfigMaps, probes.Network}, callDirectoryFacts...)

// clientsFailing: a workload that looks healthy can't reach what it calls: its
// logs say so, again and again and to the end, or it is configured with an
// address that the cluster does not serve.
var clientsFailing = &Rule{
	ID:    "clients-failing",
	Needs: callFacts,
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		dir, err := callDirectory(facts)
		workloads, err2 := probes.Workloads.Of(facts)
		if err != nil || err2 != nil {
			return nil
		}
		logs, _ := probes.AppLogs.Of(facts)
		maps, _ := probes.ConfigMaps.Of(facts)
		now := facts.Source().Now()
		var found []Suspect
		for _, owner := range workloads.All() {
			var pods []*corev1.Pod
			for _, p := range workloads.Pods(owner) {
				if !probes.Finished(p) && p.DeletionTimestamp == nil && p.Spec.NodeName != "" {
					pods = append(pods, p)
				}
			}
			if len(pods) == 0 {
				continue
			}
			mentions := mentionsOf(pods[0], owner, maps)
			var calls []*unreached
			var lookups lookedUp
			if logs != nil {
				calls, lookups = loggedCalls(facts, dir, logs, owner, pods, mentions, &now)
			}
			if probes.Ready(pods[0]) {
				calls = append(calls, configuredCalls(facts, dir, logs, owner, pods, mentions, calls, lookups)...)
			}
			if len(calls) == 0 && lookups.count < 3 {
				continue
			}
			data := &failingClient{calls: calls}
			s := Suspect{Subjects: []Ref{owner}, Data: data, Vars: map[string]string{"targets": "names that it looks up"}}
			var addresses []string
			for _, c := range calls {
				addresses = append(addresses, c.address())
				for _, p := range c.pods {
					if !slices.Contains(data.pods, p) {
						data.pods = append(data.pods, p)
					}
				}
				if len(s.Found) < 2*maxExamples {
					s.Found = append(s.Found, c.lines[:min(len(c.lines), 2)]...)
					if len(c.lines) == 0 && len(c.mentions) > 0 {
						s.Found = append(s.Found, c.mentions[0].seen)
					}
				}
			}
			if len(calls) == 0 {
				data.pods = pods
			}
			for _, p := range data.pods {
				if podRef(p) != owner {
					s.Subjects = append(s.Subjects, podRef(p))
				}
			}
			if len(addresses) > 0 {
				s.Vars["targets"] = listed(addresses)
			}
			s.Count = len(data.pods)
			found = append(found, s)
		}
		return found
	},
}

// lookedUp are the hosts that logs say could not be looked up, and how often.
type lookedUp struct {
	hosts []string
	count int
}

// loggedCalls are the addresses that a workload's logs say could not be
// reached. With a clock they are those of pods that look healthy, and count
// only if they go on; lookups are the names that could not be looked up.
func loggedCalls(facts *probes.Facts, dir *probes.Directory, logs *probes.LogSet, owner Ref, pods []*corev1.Pod, mentions []mention, now *time.Time) (calls []*unreached, lookups lookedUp) {
	byAddress := map[string]*unreached{}
	var order []string
	for _, p := range pods {
		for _, l := range logs.Of(p.Namespace, p.Name) {
			if l.Excerpt == nil {
				continue
			}
			for _, entry := range failures(logs, p) {
				if entry.container != l.Container || entry.previous != l.Previous {
					continue
				}
				if now != nil && (telemetry.MatchString(entry.Text) || over(entry, l, *now)) || strings.Contains(entry.Text, "src.workload=") || fromClients.MatchString(entry.Text) {
					continue // the node's proxy tells of calls between pods, a server of those who call it
				}
				if m := entry.lookupMeaning(); slices.Contains(noAnswerMeanings, m) || slices.Contains(noNameMeanings, m) || m == "dns-failed" {
					lookups.count += entry.Count
					lookups.hosts = append(lookups.hosts, entry.Host)
					continue
				}
				meanings := append([]string{entry.meaning}, entry.Also...)
				says := func(list []string) bool {
					return slices.ContainsFunc(meanings, func(m string) bool { return slices.Contains(list, m) })
				}
				refused, dropped := says(refusedMeanings), says(droppedMeanings)
				host, port := entry.Host, entry.Port
				if host == "" || !refused && !dropped && !says(otherMeanings) && !says(tlsMeanings) {
					continue
				}
				t := dir.Lookup(p.Namespace, host, port)
				ip := dialled.FindStringSubmatch(entry.Text)
				if t.Kind == probes.TargetAWS && ip != nil {
					t = dir.Lookup(p.Namespace, ip[1], port) // an endpoint in the VPC, to which a path can be found
				}
				if t.Kind == probes.TargetSelf && !(refused && nobodyAtHome(logs, dir, p, port, mentions)) || t.Kind == probes.TargetMetadata || t.Kind == probes.TargetAWS && !slices.Contains(ownInVPC, t.AWSService) || t.Kind == probes.TargetIdentity {
					continue
				}
				if now != nil && (t.Kind == probes.TargetExternal || t.Kind == probes.TargetNode) {
					continue
				}
				key := t.Host + ":" + port
				u := byAddress[key]
				if u == nil {
					u = &unreached{client: owner, host: t.Host, port: port, target: t}
					byAddress[key] = u
					order = append(order, key)
				}
				if ip != nil && u.ip == "" {
					u.ip = ip[1]
				}
				u.count += entry.Count
				u.refused, u.dropped = u.refused || refused, u.dropped || dropped
				if i := slices.IndexFunc(meanings, func(m string) bool { return slices.Contains(tlsMeanings, m) }); i >= 0 {
					u.tls = meanings[i]
				}
				if !slices.Contains(u.pods, p) {
					u.pods = append(u.pods, p)
				}
				if len(u.lines) < maxExamples {
					u.lines = append(u.lines, Evidence{Says: entry.quote(), Document: entry.document, At: entry.at})
				}
			}
		}
	}
	for _, key := range order {
		u := byAddress[key]
		if u.tls == "" && !u.refused {
			u.tls, u.lines = toldOfPlainText(facts, u)
		}
		u.mentions = sameAddress(dir, owner.Namespace, mentions, u)
		if now == nil || u.count >= 3 || disserved(u) != "" {
			calls = append(calls, u)
		}
	}
	return calls, lookups
}

// over reports whether a failure in the log of a healthy container is past:
// the log goes on without it, where it has no times for three times as long as
// there was between one and the next.
func over(entry logged, l *probes.ContainerLog, now time.Time) bool {
	if !entry.LastAt.IsZero() {
		return now.Sub(entry.LastAt) > recent || l.Excerpt.To.Sub(entry.LastAt) > 5*time.Minute
	}
	return entry.After > 20+10*entry.Count || entry.After > 15 && entry.After > 3*l.Excerpt.Entries/max(entry.Count, 1)
}

// sameAddress are the mentions that mean the same place as an unreached one.
func sameAddress(dir *probes.Directory, namespace string, mentions []mention, u *unreached) []mention {
	var same []mention
	for _, m := range mentions {
		if m.port != "" && u.port != "" && m.port != u.port {
			continue
		}
		if strings.TrimSuffix(m.host, ".") == u.host || u.target.Kind == probes.TargetService && dir.Lookup(namespace, m.host, m.port).Ref == u.target.Ref {
			same = append(same, m)
		}
	}
	return same
}

// disserved says why an address can't serve anybody; empty if it can, as far
// as Services and pods tell.
func disserved(u *unreached) string {
	t := u.target
	switch {
	case t.Missing:
		return fmt.Sprintf("there is no %s", short(t.Ref))
	case t.Kind == probes.TargetService && t.External == "" && len(t.Pods) > 0 && !slices.ContainsFunc(t.Pods, probes.Ready):
		return fmt.Sprintf("none of the %d pods behind %s is ready", len(t.Pods), short(t.Ref))
	}
	return ""
}

// configuredCalls are the addresses in a workload's configuration that can't
// work, whatever its logs say: a port that the Service does not have, a name
// that is a Service's but for a letter, the address of no Service, a path that
// a NetworkPolicy closes.
func configuredCalls(facts *probes.Facts, dir *probes.Directory, logs *probes.LogSet, owner Ref, pods []*corev1.Pod, mentions []mention, known []*unreached, lookups lookedUp) []*unreached {
	var calls []*unreached
	told := len(known) > 0 || slices.ContainsFunc(lookups.hosts, func(h string) bool { return h != "" })
	for _, m := range mentions {
		n, _ := strconv.Atoi(m.port)
		if m.port == "" || n < 53 || n > 65535 || strings.Contains(strings.ToLower(m.where+" "+m.value), "image") || telemetry.MatchString(strings.ReplaceAll(m.where, "_", " ")) {
			continue
		}
		t := dir.Lookup(owner.Namespace, m.host, m.port)
		u := &unreached{client: owner, pods: pods, host: strings.TrimSuffix(m.host, "."), port: m.port, target: t, mentions: []mention{m}}
		if slices.Contains(lookups.hosts, u.host) || t.Missing && slices.Contains(lookups.hosts, "") {
			continue // that is a lookup's failure
		}
		if m.file && logs != nil && (told || probes.Ready(pods[0])) && slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return len(logs.Of(p.Namespace, p.Name)) > 0 }) {
			continue // a file that many mount, and a log that tells of no such call
		}
		if slices.ContainsFunc(slices.Concat(known, calls), func(o *unreached) bool {
			return o.address() == u.address() || o.target.Ref == t.Ref && o.target.Kind == t.Kind && o.port == u.port
		}) {
			continue
		}
		if wrongPort(dir, u) || misspelt(dir, u, mentions) || staleAddress(facts, dir, u) || closed(facts, logs, u) {
			calls = append(calls, u)
		}
	}
	return calls
}

// serviceOfCall is the Service that a call goes to, nil if it goes elsewhere.
func serviceOfCall(dir *probes.Directory, u *unreached) *corev1.Service {
	if u.target.Kind != probes.TargetService || u.target.Missing {
		return nil
	}
	return dir.Services.Get(u.target.Ref.Namespace, u.target.Ref.Name)
}

func headless(s *corev1.Service) bool { return s.Spec.ClusterIP == corev1.ClusterIPNone }

// portOf is the port of a Service that has the number, or nil.
func portOf(s *corev1.Service, number int) *corev1.ServicePort {
	for i := range s.Spec.Ports {
		if int(s.Spec.Ports[i].Port) == number {
			return &s.Spec.Ports[i]
		}
	}
	return nil
}

// wrongPort reports whether a call is for a port that the Service does not
// have. A headless Service has none of its own, nor has an address behind it, and a pod may name its own
// Service with a port that it shows nobody.
func wrongPort(dir *probes.Directory, u *unreached) bool {
	s := serviceOfCall(dir, u)
	if s == nil || u.target.Backend || headless(s) || s.Spec.Type == corev1.ServiceTypeExternalName || len(s.Spec.Ports) == 0 || u.portNumber() == 0 {
		return false
	}
	own := slices.ContainsFunc(u.target.Pods, func(p *corev1.Pod) bool { return slices.Contains(u.pods, p) })
	return portOf(s, u.portNumber()) == nil && !own
}

// misspelt reports whether a missing Service's name is that of one that is
// there but for a letter or two, which the workload names nowhere.
func misspelt(dir *probes.Directory, u *unreached, mentions []mention) bool {
	near := meantService(dir, u)
	if near == nil {
		return false
	}
	return !slices.ContainsFunc(mentions, func(m mention) bool {
		return dir.Lookup(u.client.Namespace, m.host, m.port).Ref == Ref{Kind: "Service", Namespace: near.Namespace, Name: near.Name}
	})
}

// meantService is the Service that was evidently meant by a missing one: its
// name is nearly the same and it has the port.
func meantService(dir *probes.Directory, u *unreached) *corev1.Service {
	if u.target.Kind != probes.TargetService || !u.target.Missing {
		return nil
	}
	var names []string
	for s := range dir.Services.In(u.target.Ref.Namespace) {
		if likeness(u.target.Ref.Name, s.Name) >= 85 {
			names = append(names, s.Name)
		}
	}
	name := nearest(u.target.Ref.Name, names)
	if name == "" {
		return nil
	}
	s := dir.Services.Get(u.target.Ref.Namespace, name)
	if u.port != "" && portOf(s, u.portNumber()) == nil {
		return nil
	}
	return s
}

// staleAddress reports whether a call is for an address among those of
// Services that none of them has.
func staleAddress(facts *probes.Facts, dir *probes.Directory, u *unreached) bool {
	ip, err := netip.ParseAddr(u.host)
	if err != nil || u.target.Kind != probes.TargetUnknown || facts.Err(probes.EndpointSlices) != nil || facts.Err(probes.Nodes) != nil {
		return false
	}
	block, err := ip.Prefix(20)
	if err != nil || !ip.Is4() {
		return false
	}
	return slices.ContainsFunc(dir.Services.All(), func(s *corev1.Service) bool {
		own, err := netip.ParseAddr(s.Spec.ClusterIP)
		return err == nil && block.Contains(own)
	})
}

// closed reports whether enforced NetworkPolicies stop a call to a Service
// that could serve it. A log that tells of none of it outweighs that.
func closed(facts *probes.Facts, logs *probes.LogSet, u *unreached) bool {
	world, err := probes.Network.Of(facts)
	if err != nil || world.Enforced != network.Yes || u.target.Kind != probes.TargetService || u.target.Missing || u.portNumber() == 0 {
		return false
	}
	if logs != nil {
		for _, l := range logs.Of(u.pods[0].Namespace, u.pods[0].Name) {
			if l.Excerpt != nil && l.Excerpt.Entries > 20 {
				return false
			}
		}
	}
	stop, _ := policyHops(world, u)
	return len(stop) > 0
}

// policyHops are the hops by which NetworkPolicies stop a call, and those that
// let it pass.
func policyHops(world *network.World, u *unreached) (stop, open []network.Hop) {
	for _, p := range u.pods[:min(len(u.pods), maxExamples)] {
		var to network.Endpoint
		switch u.target.Kind {
		case probes.TargetService:
			to = network.Service(u.target.Ref.Namespace, u.target.Ref.Name)
		case probes.TargetPod:
			to = network.Pod(u.target.Ref.Namespace, u.target.Ref.Name)
		default:
			ip, err := netip.ParseAddr(u.host)
			if err != nil {
				continue
			}
			to = network.Address(ip)
		}
		port := u.portNumber()
		if tunnelled(p, u.target.Pods) {
			to, port = network.Pod(u.target.Pods[0].Namespace, u.target.Pods[0].Name), tunnelPort
		}
		a := world.Path(network.Pod(p.Namespace, p.Name), to, network.TCP, port).On(network.NetworkPolicies)
		hops := a.Hops
		for _, part := range a.Parts {
			hops = append(hops, part.Hops...)
		}
		for _, h := range hops {
			if h.Code == network.PolicyDenies {
				stop = append(stop, h)
			} else if h.Truth == network.Yes {
				open = append(open, h)
			}
		}
	}
	return stop, open
}

// tunnelPort is where pods of the ambient mesh take each other's calls,
// whatever port these are for: all that a NetworkPolicy sees of them.
// Source: https://istio.io/latest/docs/ambient/usage/networkpolicy/
const tunnelPort = 15008

// tunnelled reports whether a call is between pods of the ambient mesh.
func tunnelled(client *corev1.Pod, servers []*corev1.Pod) bool {
	ambient := func(p *corev1.Pod) bool { return inMesh(p) && !hasSidecar(p) }
	return ambient(client) && len(servers) > 0 && ambient(servers[0])
}

// targetUnreachable: a workload can't reach an address that it calls. Many
// faults lead to it.
var targetUnreachable = &Rule{
	ID:           "target-unreachable",
	Explains:     []*Rule{podCrashLooping, podNotReady, podNotStarting, clientsFailing},
	Intermediate: true,
	Needs:        append([]probes.Any{probes.Logs}, callFacts...),
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		dir, err := callDirectory(facts)
		if err != nil {
			return nil
		}
		logs, _ := probes.Logs.Of(facts)
		maps, _ := probes.ConfigMaps.Of(facts)
		var found []Suspect
		merged := map[string]int{}
		for _, e := range effects {
			var calls []*unreached
			if c, ok := e.Data.(*failingClient); ok {
				calls = c.calls
			} else if pods := troubled(e); len(pods) > 0 && logs != nil {
				mentions := mentionsOf(pods[0], e.Subject(), maps)
				var lookups lookedUp
				calls, lookups = loggedCalls(facts, dir, logs, e.Subject(), pods, mentions, nil)
				calls = append(calls, configuredCalls(facts, dir, logs, e.Subject(), pods, mentions, calls, lookups)...)
			}
			for _, u := range calls {
				key := e.Subject().String() + " " + u.address()
				if i, ok := merged[key]; ok {
					found[i].Effects = append(found[i].Effects, e)
					continue
				}
				merged[key] = len(found)
				found = append(found, Suspect{Subjects: []Ref{u.client}, Effects: []*Finding{e}, Data: u, Count: len(u.pods), Since: e.Since, Vars: map[string]string{"address": u.address()}})
			}
		}
		return found
	},
	Tests: []Test{{
		Asks: "Does {subject} call {address}, and get nowhere?",
		Run: func(_ *probes.Facts, s Suspect) Answer {
			u := s.Data.(*unreached)
			if len(u.lines) > 0 {
				return Answered(true, u.lines...).With("subject", short(u.client))
			}
			return Answered(true, u.mentions[0].seen).With("subject", short(u.client))
		},
	}},
}
