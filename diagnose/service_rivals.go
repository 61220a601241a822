package diagnose

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/network"
)

// backendNotReady: what is called has pods, and none of them is ready. Why is
// for the rules about those pods to say: their causes are causes of this too.
var backendNotReady = &Rule{
	ID: "backend-not-ready", Explains: []*Rule{targetUnreachable, serviceWithoutEndpoints, nameLookupsFail}, Intermediate: true, Relay: true,
	Needs: append(serviceFacts, templates...),
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		dir, err := callDirectory(facts)
		workloads, err2 := probes.Workloads.Of(facts)
		if err != nil || err2 != nil {
			return nil
		}
		hurt := map[Ref][]*Finding{}
		behind := map[Ref][]*corev1.Pod{}
		for _, e := range effects {
			if use, ok := e.Data.(*serviceUse); ok {
				if a, ok := templateOf(facts, use.service); ok && a.replicas > 0 {
					hurt[a.workload] = appendOnce(hurt[a.workload], e)
				}
				continue
			}
			u, ok := e.Data.(*unreached)
			if !ok {
				for _, pods := range hiddenBackends(dir, e) {
					if owner := workloads.Of(pods[0]); owner != e.Subject() {
						hurt[owner], behind[owner] = appendOnce(hurt[owner], e), pods
					}
				}
				continue
			}
			t := u.target
			pods := t.Pods
			if s := serviceOfCall(dir, u); s != nil {
				pods = dir.Behind(s)
				if a, ok := templateOf(facts, s); ok && len(pods) == 0 && a.replicas > 0 {
					hurt[a.workload] = appendOnce(hurt[a.workload], e)
				}
			}
			if len(pods) == 0 || slices.ContainsFunc(pods, probes.Ready) {
				continue
			}
			owner := workloads.Of(pods[0])
			if owner == u.client {
				continue
			}
			hurt[owner] = appendOnce(hurt[owner], e)
			behind[owner] = pods
		}
		var found []Suspect
		for _, owner := range sortedRefs(hurt) {
			found = append(found, Suspect{Subjects: []Ref{owner}, Effects: hurt[owner], Through: podRefs(behind[owner]), Data: behind[owner], Vars: map[string]string{"pods": cmp.Or(podNames(behind[owner]), "none"), "backend": short(owner)}})
		}
		return found
	},
	Tests: []Test{{
		Asks: "Is none of the pods of {backend} ready?", Needs: []probes.Any{probes.Pods},
		Run: func(_ *probes.Facts, s Suspect) Answer {
			evidence := []Evidence{{Says: short(s.Subjects[0]) + " has no pod that is ready"}}
			for _, p := range s.Data.([]*corev1.Pod)[:min(len(s.Data.([]*corev1.Pod)), maxExamples)] {
				evidence = append(evidence, SawObject("pods", p.Namespace, p.Name, "pod %s/%s, which is called, is not ready (phase %s)", p.Namespace, p.Name, p.Status.Phase))
			}
			return Answered(true, evidence...)
		},
	}},
}

// hiddenBackends are the pods of headless Services that a workload looks up
// in vain because none of them is ready: DNS gives the addresses of ready ones
// only.
func hiddenBackends(dir *probes.Directory, e *Finding) (list [][]*corev1.Pod) {
	t, ok := e.Data.(*lookupTrouble)
	if !ok {
		return nil
	}
	for _, host := range t.hosts {
		target := dir.Lookup(e.Subject().Namespace, host, "")
		if target.Kind != probes.TargetService || target.Missing {
			continue
		}
		s := dir.Services.Get(target.Ref.Namespace, target.Ref.Name)
		if s == nil || !headless(s) || s.Spec.PublishNotReadyAddresses {
			continue
		}
		if pods := dir.Behind(s); len(pods) > 0 && !slices.ContainsFunc(pods, probes.Ready) {
			list = append(list, pods)
		}
	}
	return list
}

// blockedByPolicy: NetworkPolicies stop what a client sends to a backend.
var blockedByPolicy = &Rule{
	ID: "traffic-blocked-by-network-policy", Explains: []*Rule{targetUnreachable},
	Needs: append([]probes.Any{probes.NetworkPolicies}, callFacts...),
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		world, err := probes.Network.Of(facts)
		if err != nil {
			return nil
		}
		type decided struct {
			effects []*Finding
			hops    []network.Hop
			pods    []*corev1.Pod
			call    *unreached
		}
		byPolicy := map[Ref]*decided{}
		for _, e := range effects {
			u := e.Data.(*unreached)
			stop, _ := policyHops(world, u)
			if u.portNumber() == 0 || u.refused && !u.dropped && len(u.lines) > 0 {
				continue // what is refused arrived
			}
			for _, h := range stop {
				r := refOf(h)
				if byPolicy[r] == nil {
					byPolicy[r] = &decided{call: u}
				}
				d := byPolicy[r]
				d.effects = appendOnce(d.effects, e)
				d.hops = append(d.hops, h)
				d.pods = append(d.pods, u.pods...)
				break
			}
		}
		var found []Suspect
		for _, r := range sortedRefs(byPolicy) {
			d := byPolicy[r]
			found = append(found, Suspect{Subjects: []Ref{r}, Effects: d.effects, Data: d.hops, Vars: map[string]string{
				"policy": r.Name, "pods": podNames(d.pods), "address": d.call.address(), "port": d.call.port, "says": d.hops[0].Says, "client": short(d.call.client), "tunnel": "",
			}})
			if len(d.pods) > 0 && tunnelled(d.pods[0], d.call.target.Pods) {
				v := found[len(found)-1].Vars
				v["port"], v["tunnel"] = fmt.Sprint(tunnelPort), fmt.Sprintf(" Both are in the ambient mesh, whose pods call each other on port %d (HBONE): that is the port to let in, with or without %s.", tunnelPort, d.call.port)
			}
		}
		return found
	},
	Tests: []Test{{
		Asks: "Does a NetworkPolicy stop the traffic from {client} to {address}?", Needs: []probes.Any{probes.NetworkPolicies, probes.Network},
		Run: func(_ *probes.Facts, s Suspect) Answer { return Answered(true, fromHops(s.Data.([]network.Hop), 2)...) },
	}},
}

// backendHidden: peers look for a pod of their own by a name that a headless
// Service gives only to pods that are ready, and they are not until they have
// found it.
var backendHidden = &Rule{
	ID: "headless-service-hides-unready-peers", Explains: []*Rule{nameLookupsFail, targetUnreachable},
	Needs: append([]probes.Any{probes.StatefulSets}, serviceFacts...),
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		dir, err := callDirectory(facts)
		workloads, err2 := probes.Workloads.Of(facts)
		if err != nil || err2 != nil {
			return nil
		}
		hurt := map[Ref][]*Finding{}
		peers := map[Ref]*corev1.Pod{}
		for _, e := range effects {
			d, ok := e.Data.(*lookupTrouble)
			if !ok || d.noAnswer {
				continue
			}
			for _, host := range d.noName {
				t := dir.Lookup(e.Subject().Namespace, host, "")
				if t.Kind != probes.TargetPod || t.Missing || probes.Ready(t.Pods[0]) || workloads.Of(t.Pods[0]) != e.Subject() {
					continue
				}
				p := t.Pods[0]
				for s := range dir.Services.In(p.Namespace) {
					if headless(s) && s.Name == p.Spec.Subdomain {
						r := Ref{Kind: "Service", Namespace: s.Namespace, Name: s.Name}
						hurt[r] = appendOnce(hurt[r], e)
						peers[r] = p
					}
				}
			}
		}
		var found []Suspect
		for _, r := range sortedRefs(hurt) {
			found = append(found, Suspect{Subjects: []Ref{r}, Effects: hurt[r], Data: peers[r], Vars: map[string]string{"service": r.Name, "namespace": r.Namespace, "peer": peers[r].Name}})
		}
		return found
	},
	Tests: []Test{{
		Asks: "Does headless Service {service} leave out peers that are not ready, for which they wait?", Needs: []probes.Any{probes.Services},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			services, err := probes.Services.Of(facts)
			if err != nil {
				return CantTell(err)
			}
			svc, p := services.Get(s.Subjects[0].Namespace, s.Subjects[0].Name), s.Data.(*corev1.Pod)
			return Answered(!svc.Spec.PublishNotReadyAddresses,
				SawObject("services", svc.Namespace, svc.Name, "headless Service %s has publishNotReadyAddresses: %t", svc.Name, svc.Spec.PublishNotReadyAddresses),
				SawObject("pods", p.Namespace, p.Name, "pod %s, whose name is looked up, is not ready", p.Name))
		},
	}},
}

// governingServiceMissing: a StatefulSet names a Service that is not there, so
// that its pods have no names in DNS.
var governingServiceMissing = &Rule{
	ID: "statefulset-service-missing", Explains: []*Rule{nameLookupsFail}, Needs: append([]probes.Any{probes.StatefulSets}, serviceFacts...),
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		sets, err := probes.StatefulSets.Of(facts)
		services, err2 := probes.Services.Of(facts)
		if err != nil || err2 != nil {
			return nil
		}
		var found []Suspect
		for _, set := range sets.All() {
			if set.Spec.ServiceName == "" || services.Get(set.Namespace, set.Spec.ServiceName) != nil {
				continue
			}
			s := Suspect{Subjects: []Ref{{Kind: "StatefulSet", Namespace: set.Namespace, Name: set.Name}}, Vars: map[string]string{"service": set.Spec.ServiceName, "hint": ""}}
			for _, e := range effects {
				d, ok := e.Data.(*lookupTrouble)
				if ok && slices.ContainsFunc(d.noName, func(h string) bool {
					return serviceLabel(h, set.Name) == set.Spec.ServiceName || (serviceLabel(h, set.Name) != "" && e.Subject().Namespace == set.Namespace)
				}) {
					s.Effects = appendOnce(s.Effects, e)
				}
			}
			if near := nearestService(services, set.Namespace, set.Spec.ServiceName); near != "" {
				s.Vars["hint"] = fmt.Sprintf(" The Service that is there is %s.", near)
			}
			if len(s.Effects) > 0 {
				found = append(found, s)
			}
		}
		return found
	},
	Tests: []Test{{
		Asks: "Does {subject} name a governing Service, {service}, that is not there?", Needs: []probes.Any{probes.Services},
		Run: func(_ *probes.Facts, s Suspect) Answer {
			return Answered(true, SawObject("statefulsets.apps", s.Subjects[0].Namespace, s.Subjects[0].Name, "StatefulSet %s has serviceName %s, and there is no such Service", s.Subjects[0].Name, s.Vars["service"])).With("subject", short(s.Subjects[0]))
		},
	}},
}

// podHost takes the name of a StatefulSet's pod in DNS apart.
var podHost = regexp.MustCompile(`^(.+)-\d+\.([^.]+)`)

// serviceLabel is the second label of a host whose first is a pod of the
// StatefulSet: the Service that should give it its name.
func serviceLabel(host, set string) string {
	m := podHost.FindStringSubmatch(host)
	if m == nil || m[1] != set {
		return ""
	}
	return m[2]
}
