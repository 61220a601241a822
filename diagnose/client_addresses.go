package diagnose

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// ofCalls makes a rule about single addresses that workloads call. The answer
// may name another subject than the client.
func ofCalls(id string, needs []probes.Any, asks string, run func(*probes.Facts, *probes.Directory, *unreached, *Suspect) Answer) *Rule {
	all := slices.Concat(serviceFacts, needs)
	type answered struct {
		*unreached
		answer Answer
	}
	return &Rule{
		ID: id, Explains: []*Rule{targetUnreachable}, Needs: all,
		Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
			dir, err := callDirectory(facts)
			if err != nil {
				return nil
			}
			var found []Suspect
			for _, e := range effects {
				u := e.Data.(*unreached)
				s := Suspect{Subjects: []Ref{u.client}, Effects: []*Finding{e}, Vars: map[string]string{"address": u.address(), "host": u.host, "port": u.port, "client": short(u.client), "where": "it", "hint": ""}}
				if len(u.mentions) > 0 {
					s.Vars["where"] = u.mentions[0].where
				}
				a := run(facts, dir, u, &s)
				if i := slices.IndexFunc(found, func(o Suspect) bool { return o.Subjects[0] == s.Subjects[0] && o.Vars["address"] == s.Vars["address"] }); i >= 0 {
					found[i].Effects = append(found[i].Effects, e)
					continue
				}
				s.Data = answered{u, a}
				found = append(found, s)
			}
			return found
		},
		Tests: []Test{{Asks: asks, Needs: all, Run: func(_ *probes.Facts, s Suspect) Answer { return s.Data.(answered).answer }}},
	}
}

// blameMention makes the object that holds an address the subject, and shows it.
func blameMention(u *unreached, s *Suspect) []Evidence {
	if len(u.mentions) == 0 {
		return nil
	}
	m := u.mentions[0]
	if m.holder != u.client {
		s.Subjects = []Ref{m.holder, u.client}
	}
	return []Evidence{m.seen}
}

// clientPortWrong: a client calls a port that the Service does not have.
var clientPortWrong = ofCalls("client-port-wrong", templates, "does {client} call a port that the Service does not have, and it alone?",
	func(facts *probes.Facts, dir *probes.Directory, u *unreached, s *Suspect) Answer {
		svc := serviceOfCall(dir, u)
		if svc == nil || !wrongPort(dir, u) {
			return Answered(false, Evidence{Says: fmt.Sprintf("%s is not a port that a Service lacks", u.address())})
		}
		has := SawObject("services", svc.Namespace, svc.Name, "Service %s/%s has the ports %s, not %s", svc.Namespace, svc.Name, servicePortList(svc), u.port)
		service, _, right := portOfService(facts, dir, svc, u.port)
		if service {
			return Answered(false, has, Evidence{Says: "all its clients call that port"})
		}
		evidence := append([]Evidence{has}, blameMention(u, s)...)
		for _, m := range right[:min(len(right), 1)] {
			evidence = append(evidence, m.seen)
		}
		s.Vars["service"], s.Vars["has"] = svc.Name, servicePortList(svc)
		return Answered(true, evidence...)
	})

// clientHostWrong: a client calls a name or an address that nothing has.
var clientHostWrong = ofCalls("client-address-wrong", []probes.Any{probes.ConfigMaps}, "does {client} call a name or an address that no Service has?",
	func(facts *probes.Facts, dir *probes.Directory, u *unreached, s *Suspect) Answer {
		switch {
		case u.target.Kind == probes.TargetSelf:
			p := u.pods[0]
			maps, err := probes.ConfigMaps.Of(facts)
			if err != nil {
				return CantTell(err)
			}
			told, svc := meantByLocalhost(dir, p, u.port, mentionsOf(p, u.client, maps))
			if svc == nil {
				return Answered(false, Evidence{Says: "no Service has that port"})
			}
			evidence := []Evidence{SawObject("pods", p.Namespace, p.Name, "the containers of pod %s show the ports %s, not %s", p.Name, listed(declaredPorts(p)), u.port)}
			if told != nil {
				u.mentions = []mention{*told}
				s.Vars["where"] = told.where
				evidence = append(blameMention(u, s), evidence...)
			}
			s.Vars["hint"] = fmt.Sprintf(" localhost is the pod itself, where nothing listens on port %s; the Service that is meant may be %s.", u.port, svc.Name)
			return Answered(true, append(evidence, SawObject("services", svc.Namespace, svc.Name, "Service %s/%s has the ports %s", svc.Namespace, svc.Name, servicePortList(svc)))...)
		case staleAddress(facts, dir, u):
			evidence := append(blameMention(u, s), Saw("services", nil, "no Service, pod or node has the address %s", u.host))
			s.Vars["hint"] = " The address lies among those of Services, but none has it: it is of a Service that was made anew, or a slip."
			return Answered(true, evidence...)
		case u.target.Kind != probes.TargetService || !u.target.Missing:
			return Answered(false, Evidence{Says: u.host + " is there, or is outside the cluster"})
		}
		if owner, p := namesake(facts, dir, u.target.Ref); p != nil {
			return Answered(false, Evidence{Says: fmt.Sprintf("the name is right: %s is there, and its Service is not", short(owner))})
		}
		near := meantService(dir, u)
		if near == nil {
			near = sameNameElsewhere(dir, u)
		}
		none := Saw("services", nil, "there is no Service %s in namespace %s", u.target.Ref.Name, u.target.Ref.Namespace)
		if near == nil {
			return Answered(false, none)
		}
		s.Vars["hint"] = fmt.Sprintf(" The Service that is there is %s in namespace %s.", near.Name, near.Namespace)
		return Answered(true, append(blameMention(u, s), none, SawObject("services", near.Namespace, near.Name, "Service %s/%s has the ports %s", near.Namespace, near.Name, servicePortList(near)))...)
	})

// clientSchemeWrong: a client speaks TLS to a port that serves plain HTTP, or
// plain HTTP to one that serves TLS, because the URL that it is given says so.
var clientSchemeWrong = ofCalls("client-scheme-wrong", nil, "does {client} call by a scheme, TLS or not, that the port does not serve?",
	func(_ *probes.Facts, dir *probes.Directory, u *unreached, s *Suspect) Answer {
		if u.tls != "tls-protocol" || len(u.mentions) == 0 {
			return Answered(false, Evidence{Says: "nothing says that one side speaks TLS and the other does not"})
		}
		m := u.mentions[0]
		scheme := schemeOf.FindStringSubmatch(m.value)
		svc := serviceOfCall(dir, u)
		if scheme == nil || svc == nil {
			return Answered(false, m.seen)
		}
		s.Vars["scheme"], s.Vars["right"] = scheme[1], strings.TrimSuffix(scheme[1], "s")
		if s.Vars["right"] == scheme[1] {
			s.Vars["right"] += "s"
		}
		secured := securePort(svc, u)
		if secured == strings.HasSuffix(scheme[1], "s") {
			return Answered(false, m.seen, SawObject("services", svc.Namespace, svc.Name, "port %s of Service %s is one of that scheme", u.port, svc.Name))
		}
		return Answered(true, append(blameMention(u, s), SawObject("services", svc.Namespace, svc.Name, "Service %s has the ports %s", svc.Name, servicePortList(svc)))...)
	})

var (
	schemeOf   = regexp.MustCompile(`(?i)\b(https?|grpcs?|rediss?|amqps?|wss?)://`)
	secureName = regexp.MustCompile(`(?i)https|tls|ssl|secure`)
)

// securePort reports whether a Service's port is by number, name or
// application protocol one for TLS.
func securePort(s *corev1.Service, u *unreached) bool {
	n := u.portNumber()
	sp := portOf(s, n)
	return n == 443 || n == 8443 || n == 6443 || sp != nil && (secureName.MatchString(sp.Name+" "+sp.TargetPort.StrVal) || sp.AppProtocol != nil && secureName.MatchString(*sp.AppProtocol) || sp.TargetPort.IntVal == 8443 || sp.TargetPort.IntVal == 443)
}

// sameNameElsewhere is the only Service of the name that was called, in
// another namespace.
func sameNameElsewhere(dir *probes.Directory, u *unreached) *corev1.Service {
	list := dir.Services.Where(func(s *corev1.Service) bool {
		return s.Name == u.target.Ref.Name && s.Spec.Type != corev1.ServiceTypeExternalName
	})
	if len(list) == 1 && (u.port == "" || portOf(list[0], u.portNumber()) != nil) {
		return list[0]
	}
	return nil
}

// serviceMissing: what is called is a Service that is not there, though the
// workload that it is for is, or several clients rely on it.
var serviceMissing = &Rule{
	ID: "service-missing", Explains: []*Rule{targetUnreachable, nameLookupsFail}, Needs: serviceFacts,
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		dir, err := callDirectory(facts)
		if err != nil {
			return nil
		}
		hurt := map[Ref][]*Finding{}
		for _, e := range effects {
			switch data := e.Data.(type) {
			case *unreached:
				if data.target.Kind == probes.TargetService && data.target.Missing {
					hurt[data.target.Ref] = appendOnce(hurt[data.target.Ref], e)
				}
			case *lookupTrouble:
				for _, host := range data.noName {
					if t := dir.Lookup(e.Subject().Namespace, host, ""); t.Kind == probes.TargetService && t.Missing {
						hurt[t.Ref] = appendOnce(hurt[t.Ref], e)
					}
				}
			}
		}
		var found []Suspect
		for _, r := range sortedRefs(hurt) {
			found = append(found, Suspect{Subjects: []Ref{r}, Effects: hurt[r], Vars: map[string]string{"service": r.Name, "namespace": r.Namespace}})
		}
		return found
	},
	Tests: []Test{{
		Asks: "Is there no Service {service} in namespace {namespace}, though the workload of that name is there?", Needs: serviceFacts,
		Run: func(facts *probes.Facts, s Suspect) Answer {
			dir, err := callDirectory(facts)
			if err != nil {
				return CantTell(err)
			}
			owner, p := namesake(facts, dir, s.Subjects[0])
			none := Saw("services", nil, "there is no Service %s in namespace %s", s.Subjects[0].Name, s.Subjects[0].Namespace)
			if p == nil {
				return Answered(false, none, Saw("pods", nil, "nor is there a workload of that name without a Service"))
			}
			return Answered(true, none, SawObject("pods", p.Namespace, p.Name, "%s is there (pod %s), and no Service selects its pods; they declare %s", short(owner), p.Name, listed(declaredPorts(p)))).With("workload", short(owner)).With("target", strings.ToLower(owner.Kind)+"/"+owner.Name)
		},
	}},
}

// namesake is the workload that has the name of a missing Service and that no
// other Service for clients in the cluster selects.
func namesake(facts *probes.Facts, dir *probes.Directory, missing Ref) (Ref, *corev1.Pod) {
	workloads, err := probes.Workloads.Of(facts)
	if err != nil {
		return Ref{}, nil
	}
	return unselected(dir, workloads, missing)
}

func unselected(dir *probes.Directory, workloads *probes.WorkloadIndex, missing Ref) (Ref, *corev1.Pod) {
	for _, owner := range workloads.All() {
		if owner.Namespace != missing.Namespace || owner.Name != missing.Name {
			continue
		}
		p := workloads.Pods(owner)[0]
		selected := slices.ContainsFunc(dir.Services.All(), func(s *corev1.Service) bool {
			outside := s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer
			return s.Namespace == p.Namespace && !outside && !headless(s) && slices.Contains(dir.Behind(s), p)
		})
		if !selected {
			return owner, p
		}
	}
	return Ref{}, nil
}

// externalNameWrong: an ExternalName Service stands for a name that the
// cluster does not have.
var externalNameWrong = &Rule{
	ID: "external-name-wrong", Explains: []*Rule{targetUnreachable, nameLookupsFail}, Needs: serviceFacts,
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		dir, err := callDirectory(facts)
		if err != nil {
			return nil
		}
		hurt := map[Ref][]*Finding{}
		for _, e := range effects {
			var hosts []string
			switch data := e.Data.(type) {
			case *unreached:
				hosts = []string{data.host}
			case *lookupTrouble:
				hosts = data.noName
			}
			for _, host := range hosts {
				if t := dir.Lookup(e.Subject().Namespace, host, ""); t.Kind == probes.TargetService && t.External != "" {
					hurt[t.Ref] = appendOnce(hurt[t.Ref], e)
				}
			}
		}
		var found []Suspect
		for _, r := range sortedRefs(hurt) {
			s := dir.Services.Get(r.Namespace, r.Name)
			found = append(found, Suspect{Subjects: []Ref{r}, Effects: hurt[r], Data: s, Vars: map[string]string{"service": r.Name, "external": s.Spec.ExternalName, "hint": ""}})
		}
		return found
	},
	Tests: []Test{{
		Asks: "Does {external}, for which Service {service} stands, not exist?", Needs: serviceFacts,
		Run: func(facts *probes.Facts, s Suspect) Answer {
			dir, err := callDirectory(facts)
			if err != nil {
				return CantTell(err)
			}
			svc := s.Data.(*corev1.Service)
			says := SawObject("services", svc.Namespace, svc.Name, "Service %s/%s is an ExternalName for %s", svc.Namespace, svc.Name, svc.Spec.ExternalName)
			t := dir.Lookup(svc.Namespace, svc.Spec.ExternalName, "")
			inside := strings.Contains(svc.Spec.ExternalName, ".svc")
			lookedUp := slices.ContainsFunc(s.Effects, func(e *Finding) bool { d, ok := e.Data.(*lookupTrouble); return ok && !d.noAnswer })
			switch {
			case t.Kind == probes.TargetService && t.Missing:
				hint := ""
				if same := sameNameElsewhere(dir, &unreached{target: t}); same != nil {
					hint = fmt.Sprintf(" A Service of that name is in namespace %s.", same.Namespace)
				} else if near := nearestService(dir.Services, t.Ref.Namespace, t.Ref.Name); near != "" {
					hint = " The Service that is there is " + near + "."
				}
				return Answered(true, says, Saw("services", nil, "there is no Service %s in namespace %s", t.Ref.Name, t.Ref.Namespace)).With("hint", hint)
			case !inside && lookedUp:
				return Answered(true, says, Evidence{Says: "DNS answered that the name does not exist"})
			}
			return Answered(false, says)
		},
	}},
}
