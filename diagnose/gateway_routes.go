package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/pposiraegi/ppodoctor/probes"
)

var routeFacts = slices.Concat([]probes.Any{probes.HTTPRoutes, probes.GRPCRoutes, probes.Namespaces, probes.Workloads}, serviceFacts, gatewayFacts)

// routeNotServed: a Gateway does not take a route, or can't send its requests on.
var routeNotServed = &Rule{
	ID: "route-not-served", Needs: routeFacts,
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		var found []Suspect
		for _, k := range []struct {
			kind  string
			probe *probes.Probe[*probes.List[probes.Route]]
		}{{"HTTPRoute", probes.HTTPRoutes}, {"GRPCRoute", probes.GRPCRoutes}} {
			list, err := k.probe.Of(facts)
			if err != nil {
				continue
			}
			for _, r := range list.All() {
				if r.DeletionTimestamp != nil || facts.Source().Now().Sub(changedAt(r)) < 2*patience {
					continue
				}
				w := &routeWalk{facts, r, Ref{Kind: k.kind, Namespace: r.Namespace, Name: r.Name}}
				if says, fault := w.fault(); says != "" {
					found = append(found, objectSymptom(w.ref, w.resource(), says, &objectTrouble{fault: fault}))
				}
			}
		}
		return found
	},
}

type routeWalk struct {
	facts *probes.Facts
	*probes.Route
	ref Ref
}

func (w *routeWalk) resource() string {
	return probes.ResourceOf("gateway.networking.k8s.io/v1", w.ref.Kind)
}

func (w *routeWalk) saw(format string, args ...any) Evidence {
	return SawObject(w.resource(), w.Namespace, w.Name, "%s %s: %s", w.ref.Kind, w.Name, fmt.Sprintf(format, args...))
}

// fault says what keeps a route from being served; "" if nothing does.
func (w *routeWalk) fault() (string, *objectFault) {
	gateways, err := probes.Gateways.Of(w.facts)
	if err != nil {
		gateways = nil
	}
	for _, p := range w.Spec.ParentRefs {
		if cmp.Or(p.Kind, "Gateway") != "Gateway" {
			continue
		}
		ns := cmp.Or(p.Namespace, w.Namespace)
		var taken, resolved *metav1.Condition
		for _, s := range w.Status.Parents {
			if s.ParentRef.Name == p.Name && cmp.Or(s.ParentRef.Namespace, w.Namespace) == ns && s.ParentRef.SectionName == p.SectionName && s.ParentRef.Port == p.Port {
				taken, resolved = cmp.Or(taken, unmet(s.Conditions, "Accepted"), meta.FindStatusCondition(s.Conditions, "Accepted")), cmp.Or(resolved, unmet(s.Conditions, "ResolvedRefs"))
			}
		}
		if taken != nil && taken.Status == metav1.ConditionTrue && resolved == nil {
			continue
		}
		var g *probes.Gateway
		if gateways != nil {
			g = gateways.Get(ns, p.Name)
			if g == nil {
				var names []string
				for _, o := range gateways.All() {
					names = append(names, o.Namespace+"/"+o.Name)
				}
				hint := ""
				for _, o := range gateways.All() {
					if o.Name == p.Name {
						hint = fmt.Sprintf(" A Gateway %s is in namespace %s.", o.Name, o.Namespace)
					}
				}
				if hint == "" {
					hint = isHint("Gateway", ns+"/"+p.Name, names)
				}
				return fmt.Sprintf("no Gateway takes it: there is no Gateway %s/%s", ns, p.Name), &objectFault{
					rule: "route-gateway-missing", subject: w.ref, vars: map[string]string{"gateway": ns + "/" + p.Name, "hint": hint},
					found: []Evidence{w.saw("spec.parentRefs names Gateway %s/%s", ns, p.Name), Saw(gatewaysResource, nil, "the Gateways are %s", listed(names))},
				}
			}
		}
		if taken == nil {
			if g == nil {
				continue
			}
			if says, fault := gatewayFault(w.facts, g); says != "" {
				return "its Gateway is not served: " + says, fault
			}
			if len(w.Status.Parents) == 0 {
				if f := w.controllerDown(g); f != nil {
					return "nothing has acted on it: it has no status", f
				}
				return "nothing has acted on it: it has no status", nil
			}
			continue
		}
		if taken.Status != metav1.ConditionTrue {
			says := fmt.Sprintf("Accepted=%s, %s: %s", taken.Status, taken.Reason, taken.Message)
			return says, w.refusal(p, g, says)
		}
		says := fmt.Sprintf("ResolvedRefs=%s, %s: %s", resolved.Status, resolved.Reason, resolved.Message)
		return says, w.backend(says)
	}
	return "", nil
}

func (w *routeWalk) controllerDown(g *probes.Gateway) *objectFault {
	classes, err := probes.GatewayClasses.Of(w.facts)
	if err != nil {
		return nil
	}
	c := classes.Get("", g.Spec.GatewayClassName)
	for _, p := range gatewayPrograms {
		if c != nil && strings.HasPrefix(c.Spec.ControllerName, p.controller) {
			return controllerDown(w.facts, "Gateways of class "+c.Name, p.image)
		}
	}
	return nil
}

// refusal says which field keeps a Gateway from taking a route.
func (w *routeWalk) refusal(p probes.ParentRef, g *probes.Gateway, says string) *objectFault {
	vars := map[string]string{"gateway": p.Name, "says": says, "route": w.Name, "field": "spec.parentRefs"}
	f := &objectFault{rule: "route-refused", subject: w.ref, vars: vars, found: []Evidence{w.saw("%s", says)}}
	if g == nil {
		return f
	}
	var all []string
	var chosen []probes.Listener
	for _, l := range g.Spec.Listeners {
		all = append(all, fmt.Sprintf("%s (port %d, %s, hostname %s)", l.Name, l.Port, l.Protocol, cmp.Or(l.Hostname, "any")))
		if (p.SectionName == "" || p.SectionName == l.Name) && (p.Port == 0 || p.Port == l.Port) {
			chosen = append(chosen, l)
		}
	}
	has := SawObject(gatewaysResource, g.Namespace, g.Name, "Gateway %s has the listeners %s", g.Name, strings.Join(all, ", "))
	f.found = append(f.found, has)
	if len(chosen) == 0 {
		wants := "sectionName " + p.SectionName
		if p.Port != 0 {
			wants = strings.TrimSpace(fmt.Sprintf("port %d %s", p.Port, strings.TrimSuffix(wants, "sectionName ")))
		}
		f.rule, vars["wants"], vars["listeners"] = "route-listener-missing", wants, strings.Join(all, ", ")
		return f
	}
	var allowing []probes.Listener
	var closed string
	var selects bool
	for _, l := range chosen {
		ok, why, bySelector := w.allowed(l, g.Namespace)
		if ok {
			allowing = append(allowing, l)
		} else {
			closed, selects = why, bySelector
		}
	}
	if len(allowing) == 0 {
		f.rule, f.subject, vars["closed"] = "route-not-allowed", gatewayRef(g), closed
		f.found = append(f.found, SawObject(gatewaysResource, g.Namespace, g.Name, "%s", closed))
		if namespaces, err := probes.Namespaces.Of(w.facts); err == nil && selects {
			if ns := namespaces.Get("", w.Namespace); ns != nil && !changedAt(g).After(w.CreationTimestamp.Time) {
				f.subject = Ref{Kind: "Namespace", Name: w.Namespace}
			}
		}
		return f
	}
	if len(w.Spec.Hostnames) > 0 && !slices.ContainsFunc(allowing, func(l probes.Listener) bool {
		return slices.ContainsFunc(w.Spec.Hostnames, func(h string) bool { return intersects(l.Hostname, h) })
	}) {
		f.rule, vars["hosts"], vars["listeners"] = "route-hostname-foreign", listed(w.Spec.Hostnames), strings.Join(all, ", ")
	}
	return f
}

// allowed reports whether a listener takes routes of the route's namespace.
func (w *routeWalk) allowed(l probes.Listener, gatewayNamespace string) (ok bool, why string, selects bool) {
	from := "Same"
	var selector *metav1.LabelSelector
	if l.AllowedRoutes != nil {
		if len(l.AllowedRoutes.Kinds) > 0 {
			var kinds []string
			for _, k := range l.AllowedRoutes.Kinds {
				kinds = append(kinds, k.Kind)
			}
			if !slices.Contains(kinds, w.ref.Kind) {
				return false, fmt.Sprintf("listener %s takes only %s", l.Name, listed(kinds)), false
			}
		}
		if n := l.AllowedRoutes.Namespaces; n != nil {
			from, selector = cmp.Or(n.From, "Same"), n.Selector
		}
	}
	switch from {
	case "Same":
		return w.Namespace == gatewayNamespace, fmt.Sprintf("listener %s takes routes of its own namespace %s only (allowedRoutes.namespaces.from: Same), and the route is in %s", l.Name, gatewayNamespace, w.Namespace), false
	case "Selector":
		sel, err := metav1.LabelSelectorAsSelector(selector)
		namespaces, err2 := probes.Namespaces.Of(w.facts)
		if err != nil || err2 != nil {
			return true, "", false
		}
		ns := namespaces.Get("", w.Namespace)
		if ns == nil {
			return true, "", false
		}
		return sel.Matches(labels.Set(ns.Labels)), fmt.Sprintf("listener %s takes routes of namespaces with %s only, and namespace %s has the labels %s", l.Name, sel, w.Namespace, labels.Set(ns.Labels)), true
	}
	return true, "", false
}

// intersects reports whether a listener's hostname and a route's have a name
// in common. Source: sigs.k8s.io/gateway-api apis/v1 Listener.Hostname.
func intersects(listener, route string) bool {
	if listener == "" || route == "" || listener == route {
		return true
	}
	wild := func(pattern, name string) bool {
		suffix, ok := strings.CutPrefix(pattern, "*")
		return ok && strings.HasSuffix(name, suffix) && len(name) > len(suffix)
	}
	return wild(listener, route) || wild(route, listener)
}

// backend says what is wrong with where a route sends its requests.
func (w *routeWalk) backend(says string) *objectFault {
	vars := map[string]string{"route": w.Name, "says": says, "field": "spec.rules[].backendRefs", "gateway": ""}
	f := &objectFault{rule: "route-refused", subject: w.ref, vars: vars, found: []Evidence{w.saw("%s", says)}}
	services, err := probes.Services.Of(w.facts)
	if err != nil {
		return f
	}
	for _, rule := range w.Spec.Rules {
		for _, b := range rule.BackendRefs {
			if cmp.Or(b.Kind, "Service") != "Service" {
				continue
			}
			ns := cmp.Or(b.Namespace, w.Namespace)
			target := Ref{Kind: "Service", Namespace: ns, Name: b.Name}
			vars["service"], vars["port"] = ns+"/"+b.Name, fmt.Sprint(b.Port)
			svc := services.Get(ns, b.Name)
			switch {
			case ns != w.Namespace && !granted(w.facts, w.ref.Kind, w.Namespace, "Service", ns, b.Name):
				return grantFault(w.facts, w.ref, target, vars, f.found[0])
			case svc == nil:
				f.rule = "route-service-missing"
				f.found = append(f.found, w.saw("backendRefs names Service %s port %d, and there is none of that name", ns+"/"+b.Name, b.Port))
				if near := nearestService(services, ns, b.Name); near != "" {
					vars["hint"] = fmt.Sprintf(" The Service that is there is %s.", near)
				} else if dir, err := callDirectory(w.facts); err == nil {
					if owner, p := namesake(w.facts, dir, target); p != nil {
						f.subject, vars["hint"] = target, fmt.Sprintf(" %s is there, and its Service is not.", short(owner))
					}
				}
				return f
			case b.Port != 0 && !slices.ContainsFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == b.Port }):
				f.rule, vars["has"] = "route-port-missing", servicePortList(svc)
				f.found = append(f.found, SawObject("services", ns, svc.Name, "Service %s has the ports %s", svc.Name, servicePortList(svc)))
				return f
			}
		}
	}
	return f
}

var (
	routeGatewayMissing  = ofObject("route-gateway-missing", "is the Gateway that the route is for not there?", routeNotServed)
	routeListenerMissing = ofObject("route-listener-missing", "does Gateway {gateway} have no listener with {wants}?", routeNotServed)
	routeNotAllowed      = ofObject("route-not-allowed", "do the listeners of Gateway {gateway} take no routes of that namespace or kind?", routeNotServed)
	routeHostnameForeign = ofObject("route-hostname-foreign", "does no listener of Gateway {gateway} have a hostname of the route?", routeNotServed)
	routeServiceMissing  = ofObject("route-service-missing", "is Service {service}, to which the route sends requests, not there?", routeNotServed)
	routePortMissing     = ofObject("route-port-missing", "does Service {service} have no port {port}?", routeNotServed)
	routeRefused         = ofObject("route-refused", "does the controller refuse {object}?", routeNotServed)
)

var gatewayRouteRules = []*Rule{routeNotServed, routeGatewayMissing, routeListenerMissing, routeNotAllowed, routeHostnameForeign, routeServiceMissing, routePortMissing, routeRefused}
