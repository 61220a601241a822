package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/pposiraegi/ppodoctor/probes"
)

var meshFacts = slices.Concat([]probes.Any{probes.PeerAuthentications, probes.DestinationRules, probes.VirtualServices, probes.ServiceEntries}, callFacts)

// inMesh reports whether a pod's traffic goes through a proxy of Istio's: a
// sidecar, or ztunnel. Source: istio pkg/config/constants (AmbientRedirection).
func inMesh(p *corev1.Pod) bool {
	return p.Annotations["ambient.istio.io/redirection"] == "enabled" || hasSidecar(p)
}

func hasSidecar(p *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(p.Spec.InitContainers, p.Spec.Containers), func(c corev1.Container) bool { return c.Name == "istio-proxy" })
}

// strictFor is the PeerAuthentication by which a port of a pod takes mutual
// TLS only, or nil: the narrowest scope that says anything decides.
// Source: https://istio.io/latest/docs/reference/config/security/peer_authentication/
func strictFor(facts *probes.Facts, p *corev1.Pod, port int32) *probes.PeerAuthentication {
	list, err := probes.PeerAuthentications.Of(facts)
	if err != nil || !inMesh(p) {
		return nil
	}
	var scopes [3]*probes.PeerAuthentication // of the pod, of its namespace, of the mesh
	for _, a := range list.All() {
		selects := a.Spec.Selector != nil && len(a.Spec.Selector.MatchLabels) > 0
		scope := -1
		switch {
		case selects && a.Namespace == p.Namespace && labels.SelectorFromSet(a.Spec.Selector.MatchLabels).Matches(labels.Set(p.Labels)):
			scope = 0
		case !selects && a.Namespace == p.Namespace:
			scope = 1
		case !selects && a.Namespace == meshRoot:
			scope = 2
		}
		// Of several of one scope the oldest holds.
		if scope >= 0 && (scopes[scope] == nil || a.CreationTimestamp.Before(&scopes[scope].CreationTimestamp)) {
			scopes[scope] = a
		}
	}
	for _, a := range scopes {
		if a == nil {
			continue
		}
		mode := a.Spec.MTLS.Mode
		if m, ok := a.Spec.PortLevelMTLS[fmt.Sprint(port)]; ok {
			mode = m.Mode
		}
		switch mode {
		case "STRICT":
			return a
		case "PERMISSIVE", "DISABLE":
			return nil
		}
	}
	return nil
}

// meshBroken: an object that decides over the mesh's traffic can't work.
var meshBroken = &Rule{
	ID: "mesh-configuration-broken", Needs: meshFacts,
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		dir, err := callDirectory(facts)
		if err != nil {
			return nil
		}
		var found []Suspect
		if list, err := probes.VirtualServices.Of(facts); err == nil {
			for _, v := range list.All() {
				if says, f := virtualServiceFault(facts, dir, v); f != nil {
					found = append(found, objectSymptom(Ref{Kind: "VirtualService", Namespace: v.Namespace, Name: v.Name}, "virtualservices.networking.istio.io", says, &objectTrouble{fault: f, makes: hostOf(dir, v)}))
				}
			}
		}
		if list, err := probes.DestinationRules.Of(facts); err == nil {
			for _, r := range list.All() {
				if says, f, to := tlsModeFault(facts, dir, r, nil); f != nil {
					found = append(found, objectSymptom(Ref{Kind: "DestinationRule", Namespace: r.Namespace, Name: r.Name}, "destinationrules.networking.istio.io", says, &objectTrouble{fault: f, makes: to}))
				}
			}
		}
		return found
	},
}

// serviceAt is the Service that a host of the mesh's configuration means; zero
// if it is none of the cluster's.
func serviceAt(dir *probes.Directory, namespace, host string) Ref {
	if t := dir.Lookup(namespace, host, ""); t.Kind == probes.TargetService && !strings.Contains(host, "*") {
		return t.Ref
	}
	return Ref{}
}

func hostOf(dir *probes.Directory, v *probes.VirtualService) Ref {
	for _, h := range v.Spec.Hosts {
		if r := serviceAt(dir, v.Namespace, h); r.Name != "" {
			return r
		}
	}
	return Ref{}
}

func virtualServiceFault(facts *probes.Facts, dir *probes.Directory, v *probes.VirtualService) (string, *objectFault) {
	ref := Ref{Kind: "VirtualService", Namespace: v.Namespace, Name: v.Name}
	rules, err := probes.DestinationRules.Of(facts)
	if says, f := faultInjected(v); f != nil {
		return says, f
	}
	for _, route := range slices.Concat(v.Spec.HTTP, v.Spec.TCP, v.Spec.TLS) {
		for _, d := range route.Route {
			if d.Weight != nil && *d.Weight == 0 && len(route.Route) > 1 {
				continue
			}
			to := serviceAt(dir, v.Namespace, d.Destination.Host)
			host, subset := d.Destination.Host, d.Destination.Subset
			words := strings.TrimSuffix("host "+host+", subset "+subset, ", subset ")
			saw := SawObject("virtualservices.networking.istio.io", v.Namespace, v.Name, "VirtualService %s for %s sends requests to %s", v.Name, listed(v.Spec.Hosts), words)
			vars := map[string]string{"host": host, "subset": subset, "route": short(ref), "virtualService": v.Name}
			svc := dir.Services.Get(to.Namespace, to.Name)
			if to.Name == "" {
				continue
			}
			if svc == nil {
				if entryFor(facts, host) {
					continue
				}
				if near := nearestService(dir.Services, to.Namespace, to.Name); near != "" {
					vars["hint"] = fmt.Sprintf(" The Service that is there is %s.", near)
				}
				return "it sends requests to " + words + ", which is not there", &objectFault{rule: "mesh-route-host-missing", subject: ref, vars: vars, found: []Evidence{saw, Saw("services", nil, "there is no Service %s/%s", to.Namespace, to.Name)}}
			}
			if n := d.Destination.Port.Number; n != 0 && portOf(svc, int(n)) == nil && svc.Spec.Type != corev1.ServiceTypeExternalName {
				vars["port"], vars["has"] = fmt.Sprint(n), servicePortList(svc)
				return fmt.Sprintf("it sends requests to port %d of %s, which it does not have", n, host), &objectFault{rule: "mesh-route-port-missing", subject: ref, vars: vars, found: []Evidence{
					SawObject("virtualservices.networking.istio.io", v.Namespace, v.Name, "VirtualService %s for %s sends requests to port %d of %s", v.Name, listed(v.Spec.Hosts), n, host),
					SawObject("services", svc.Namespace, svc.Name, "Service %s has the ports %s", svc.Name, servicePortList(svc)),
				}}
			}
			if subset == "" || err != nil {
				continue
			}
			if f := subsetFault(dir, rules, v, svc, route, vars, saw); f != nil {
				return "it sends requests to " + words + ", which leads to no pod", f
			}
		}
	}
	return "", nil
}

// subsetFault says what is wrong with a subset that a route names.
func subsetFault(dir *probes.Directory, rules *probes.List[probes.DestinationRule], v *probes.VirtualService, svc *corev1.Service, route probes.MeshRoute, vars map[string]string, saw Evidence) *objectFault {
	ref := Ref{Kind: "VirtualService", Namespace: v.Namespace, Name: v.Name}
	var others []string
	var near *probes.DestinationRule
	for _, r := range rules.All() {
		if serviceAt(dir, r.Namespace, r.Spec.Host) != (Ref{Kind: "Service", Namespace: svc.Namespace, Name: svc.Name}) {
			continue
		}
		near = r
		for _, s := range r.Spec.Subsets {
			if s.Name != vars["subset"] {
				others = append(others, s.Name)
				continue
			}
			pods := dir.Behind(svc)
			if len(pods) == 0 || len(route.Match) > 0 || slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return labels.SelectorFromSet(s.Labels).Matches(labels.Set(p.Labels)) }) {
				return nil
			}
			var have []string
			for _, p := range pods {
				for k := range s.Labels {
					if text := k + "=" + p.Labels[k]; !slices.Contains(have, text) {
						have = append(have, text)
					}
				}
			}
			slices.Sort(have)
			vars["labels"], vars["hint"] = labels.Set(s.Labels).String(), fmt.Sprintf(" The pods behind %s have %s.", vars["host"], listed(have))
			return &objectFault{rule: "mesh-subset-without-pods", subject: Ref{Kind: "DestinationRule", Namespace: r.Namespace, Name: r.Name}, vars: vars, found: []Evidence{
				saw, SawObject("destinationrules.networking.istio.io", r.Namespace, r.Name, "DestinationRule %s: subset %s has the labels %s", r.Name, s.Name, labels.Set(s.Labels)),
				SawObject("services", svc.Namespace, svc.Name, "none of the %d pods behind Service %s has these labels; they have %s", len(pods), svc.Name, listed(have)),
			}}
		}
	}
	f := &objectFault{rule: "mesh-subset-missing", subject: ref, vars: vars, found: []Evidence{saw}}
	if near == nil {
		vars["hint"] = " There is no DestinationRule for that host."
		f.found = append(f.found, Saw("destinationrules.networking.istio.io", nil, "there is no DestinationRule for %s", vars["host"]))
		return f
	}
	vars["hint"] = fmt.Sprintf(" DestinationRule %s defines %s.", near.Name, listed(others))
	f.found = append(f.found, SawObject("destinationrules.networking.istio.io", near.Namespace, near.Name, "DestinationRule %s defines the subsets %s", near.Name, listed(others)))
	if changedAt(near).After(changedAt(v)) {
		f.subject = Ref{Kind: "DestinationRule", Namespace: near.Namespace, Name: near.Name}
	}
	return f
}

func entryFor(facts *probes.Facts, host string) bool {
	list, err := probes.ServiceEntries.Of(facts)
	if err != nil {
		return true // can't be ruled out
	}
	return slices.ContainsFunc(list.All(), func(e *probes.ServiceEntry) bool { return slices.Contains(e.Spec.Hosts, host) })
}

// tlsModeFault says why the TLS mode of a DestinationRule can't work, and for
// which Service; of is one of those that a wildcard host means.
func tlsModeFault(facts *probes.Facts, dir *probes.Directory, r *probes.DestinationRule, of *corev1.Service) (string, *objectFault, Ref) {
	if r.Spec.TrafficPolicy == nil || r.Spec.TrafficPolicy.TLS == nil {
		return "", nil, Ref{}
	}
	mode := cmp.Or(r.Spec.TrafficPolicy.TLS.Mode, "DISABLE")
	to := serviceAt(dir, r.Namespace, r.Spec.Host)
	svc := dir.Services.Get(to.Namespace, to.Name)
	if suffix, wild := strings.CutPrefix(r.Spec.Host, "*"); wild && of == nil {
		for _, s := range dir.Services.All() {
			if strings.HasSuffix(s.Name+"."+s.Namespace+".svc.cluster.local", suffix) {
				if says, f, _ := tlsModeFault(facts, dir, r, s); f != nil {
					return says, f, Ref{Kind: "Service", Namespace: s.Namespace, Name: s.Name}
				}
			}
		}
		return "", nil, Ref{}
	}
	if of != nil {
		svc = of
	}
	if svc == nil || len(svc.Spec.Ports) == 0 {
		return "", nil, Ref{}
	}
	pods := slices.DeleteFunc(dir.Behind(svc), probes.Finished)
	if len(pods) == 0 {
		return "", nil, Ref{}
	}
	why := ""
	found := []Evidence{SawObject("destinationrules.networking.istio.io", r.Namespace, r.Name, "DestinationRule %s for %s: trafficPolicy.tls.mode %s", r.Name, r.Spec.Host, mode)}
	switch mode {
	case "DISABLE":
		var by *probes.PeerAuthentication
		for _, p := range pods {
			if by = strictFor(facts, p, targetNumber(p, &svc.Spec.Ports[0])); by == nil {
				return "", nil, Ref{}
			}
		}
		why = fmt.Sprintf("PeerAuthentication %s/%s demands mutual TLS (STRICT), and plain text is reset", by.Namespace, by.Name)
		found = append(found, SawObject("peerauthentications.security.istio.io", by.Namespace, by.Name, "PeerAuthentication %s/%s: mtls.mode STRICT", by.Namespace, by.Name))
	case "ISTIO_MUTUAL":
		if slices.ContainsFunc(pods, inMesh) {
			return "", nil, Ref{}
		}
		why = fmt.Sprintf("none of the %d pods behind it is in the mesh, so that they don't understand mutual TLS", len(pods))
		found = append(found, SawObject("pods", pods[0].Namespace, pods[0].Name, "pod %s has no istio-proxy", pods[0].Name))
	default:
		return "", nil, Ref{}
	}
	return "TLS mode " + mode + " can't work for " + r.Spec.Host, &objectFault{
		rule: "mesh-tls-mode-conflict", subject: Ref{Kind: "DestinationRule", Namespace: r.Namespace, Name: r.Name},
		vars: map[string]string{"host": r.Spec.Host, "mode": mode, "why": why}, found: found,
	}, Ref{Kind: "Service", Namespace: svc.Namespace, Name: svc.Name}
}

// mutualTLSRequired: a client outside the mesh calls pods that take mutual TLS only.
var mutualTLSRequired = &Rule{
	ID: "mutual-tls-required", Explains: []*Rule{targetUnreachable}, Needs: append([]probes.Any{probes.Namespaces}, meshFacts...),
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		var list []Suspect
		for _, e := range effects {
			u, ok := e.Data.(*unreached)
			if !ok || len(u.pods) == 0 || len(u.target.Pods) == 0 || u.tls == "tls-expired" || slices.ContainsFunc(u.pods, inMesh) {
				continue
			}
			server := u.target.Pods[0]
			by := strictFor(facts, server, int32(u.portNumber()))
			if by == nil {
				continue
			}
			policy := Ref{Kind: "PeerAuthentication", Namespace: by.Namespace, Name: by.Name}
			s := Suspect{Subjects: []Ref{policy, u.client}, Effects: []*Finding{e}, Data: u, Vars: map[string]string{
				"client": short(u.client), "address": u.address(), "policy": short(policy), "clientNamespace": u.client.Namespace, "clientTarget": strings.ToLower(u.client.Kind) + "/" + u.client.Name,
				"outside": "its namespace is not labelled for injection",
			}}
			s.Found = append(slices.Clone(u.lines), SawObject("peerauthentications.security.istio.io", by.Namespace, by.Name, "%s: mtls.mode STRICT", short(policy)),
				SawObject("pods", server.Namespace, server.Name, "pod %s behind %s is in the mesh", server.Name, u.address()), SawObject("pods", u.pods[0].Namespace, u.pods[0].Name, "pod %s of the client has no istio-proxy and is not in the ambient mesh", u.pods[0].Name))
			if namespaces, err := probes.Namespaces.Of(facts); err == nil {
				if ns := namespaces.Get("", u.client.Namespace); ns != nil && (ns.Labels["istio-injection"] == "enabled" || ns.Labels["istio.io/rev"] != "" || ns.Labels["istio.io/dataplane-mode"] == "ambient") {
					s.Subjects = []Ref{u.client, policy}
					s.Vars["outside"] = "its namespace is labelled for the mesh, but these pods were made before that, or opt out"
					if u.pods[0].Annotations["sidecar.istio.io/inject"] == "false" || u.pods[0].Labels["sidecar.istio.io/inject"] == "false" {
						s.Vars["outside"] = "its pods opt out by sidecar.istio.io/inject: false"
						s.Found = append(s.Found, SawObject("pods", u.pods[0].Namespace, u.pods[0].Name, "pod %s has sidecar.istio.io/inject: false", u.pods[0].Name))
					}
				}
			}
			list = append(list, s)
		}
		return list
	},
	Tests: []Test{{Asks: "does {policy} demand mutual TLS of {client}, which is outside the mesh, and are its connections cut?", Run: func(_ *probes.Facts, s Suspect) Answer {
		u := s.Data.(*unreached)
		if u.refused || u.dropped {
			return Answered(false, u.lines...)
		}
		return Answered(len(u.lines) > 0, s.Found...)
	}}},
}

var (
	meshRouteHostMissing  = ofObject("mesh-route-host-missing", "is {host}, to which it sends requests, not there?", meshBroken, targetUnreachable)
	meshRoutePortMissing  = ofObject("mesh-route-port-missing", "does {host} have no port {port}, to which it sends requests?", meshBroken, targetUnreachable)
	meshSubsetMissing     = ofObject("mesh-subset-missing", "does no DestinationRule define subset {subset} of {host}?", meshBroken, targetUnreachable)
	meshSubsetWithoutPods = ofObject("mesh-subset-without-pods", "does no pod have the labels of subset {subset}?", meshBroken, targetUnreachable)
	meshTLSModeConflict   = ofObject("mesh-tls-mode-conflict", "can the pods of {host} not take TLS mode {mode}?", meshBroken, targetUnreachable)
)

var meshRules = []*Rule{meshBroken, meshCallsDenied, mutualTLSRequired, meshEgressClosed, meshRouteHostMissing, meshRoutePortMissing, meshSubsetMissing, meshSubsetWithoutPods, meshTLSModeConflict, authorizationDenies, programBeforeProxy, ambientProbesBlocked, ambientProxyDown}
