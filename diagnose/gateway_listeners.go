package diagnose

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

const gatewaysResource = "gateways.gateway.networking.k8s.io"

var gatewayFacts = append([]probes.Any{probes.Gateways, probes.GatewayClasses, probes.ReferenceGrants, probes.Secrets, probes.Pods}, controllerFacts...)

// gatewayPrograms are parts of the images of the controllers, by a part of
// the name that a GatewayClass gives.
// Sources: the installation manifests of each project.
var gatewayPrograms = []struct{ controller, image string }{
	{"gateway.envoyproxy.io/", "envoyproxy/gateway"},
	{"istio.io/", "/pilot"},
	{"io.cilium/", "cilium/operator"},
	{"gateway.nginx.org/", "nginx-gateway-fabric"},
	{"traefik.io/", "traefik"},
	{"konghq.com/", "kong"},
	{"projectcontour.io/", "projectcontour/contour"},
}

func gatewayRef(g *probes.Gateway) Ref {
	return Ref{Kind: "Gateway", Namespace: g.Namespace, Name: g.Name}
}

// gatewayNotProgrammed: a controller has looked at a Gateway and can't serve
// it, or one of its listeners; or its class leads to no controller.
var gatewayNotProgrammed = &Rule{
	ID: "gateway-not-programmed", Needs: gatewayFacts,
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		list, err := probes.Gateways.Of(facts)
		if err != nil {
			return nil
		}
		var found []Suspect
		for _, g := range list.All() {
			if g.DeletionTimestamp != nil || facts.Source().Now().Sub(changedAt(g)) < 2*patience {
				continue
			}
			if says, fault := gatewayFault(facts, g); says != "" {
				found = append(found, objectSymptom(gatewayRef(g), gatewaysResource, says, &objectTrouble{fault: fault}))
			}
		}
		return found
	},
}

// gatewayFault says what a Gateway lacks; "" if it is served, or if the older
// rules about Istio's own class have it.
func gatewayFault(facts *probes.Facts, g *probes.Gateway) (string, *objectFault) {
	accepted, programmed := meta.FindStatusCondition(g.Status.Conditions, "Accepted"), meta.FindStatusCondition(g.Status.Conditions, "Programmed")
	waits := accepted == nil || accepted.Status == metav1.ConditionUnknown
	if classes, err := probes.GatewayClasses.Of(facts); err == nil && (waits || accepted.Status == metav1.ConditionFalse) {
		if says, fault := classFault(facts, g, classes); says != "" {
			return says, fault
		}
	}
	for _, l := range g.Status.Listeners {
		for _, kind := range []string{"ResolvedRefs", "Accepted", "Conflicted", "Programmed"} {
			c := meta.FindStatusCondition(l.Conditions, kind)
			bad := metav1.ConditionFalse
			if kind == "Conflicted" {
				bad = metav1.ConditionTrue
			}
			if c == nil || c.Status != bad {
				continue
			}
			return fmt.Sprintf("listener %s: %s=%s, %s: %s", l.Name, c.Type, c.Status, c.Reason, c.Message), listenerFault(facts, g, l.Name, c)
		}
	}
	for _, c := range []*metav1.Condition{accepted, programmed} {
		if c != nil && c.Status == metav1.ConditionFalse {
			says := fmt.Sprintf("%s=False, %s: %s", c.Type, c.Reason, c.Message)
			return says, &objectFault{rule: "gateway-refused", subject: gatewayRef(g), vars: map[string]string{"says": says, "gateway": g.Name}, found: []Evidence{SawObject(gatewaysResource, g.Namespace, g.Name, "Gateway %s: %s", g.Name, says)}}
		}
	}
	return "", nil
}

// classFault says what keeps the class of a Gateway from being served.
func classFault(facts *probes.Facts, g *probes.Gateway, classes *probes.List[probes.GatewayClass]) (string, *objectFault) {
	name := g.Spec.GatewayClassName
	named := SawObject(gatewaysResource, g.Namespace, g.Name, "Gateway %s has gatewayClassName %s", g.Name, name)
	c := classes.Get("", name)
	if c == nil {
		if strings.HasPrefix(name, "istio") {
			return "", nil // istiod makes these itself
		}
		names := namesOf(probes.GatewayClasses, facts, "")
		return "nothing takes it: there is no GatewayClass " + name, &objectFault{
			rule: "gateway-class-missing", subject: gatewayRef(g), vars: map[string]string{"class": name, "hint": isHint("GatewayClass", name, names)},
			found: []Evidence{named, Saw("gatewayclasses.gateway.networking.k8s.io", nil, "the GatewayClasses are %s", listed(names))},
		}
	}
	taken := meta.FindStatusCondition(c.Status.Conditions, "Accepted")
	if taken != nil && taken.Status == metav1.ConditionTrue && !facts.Source().Now().After(changedAt(g)) {
		return "", nil
	}
	for _, p := range gatewayPrograms {
		if strings.HasPrefix(c.Spec.ControllerName, p.controller) {
			if f := controllerDown(facts, "Gateways of class "+name, p.image); f != nil {
				return "nothing takes it", f
			}
		}
	}
	if taken != nil && taken.Status == metav1.ConditionTrue {
		return "", nil
	}
	says := "no controller has taken it: nothing answers to the name " + c.Spec.ControllerName
	if taken != nil && taken.Status == metav1.ConditionFalse {
		says = fmt.Sprintf("Accepted=False, %s: %s", taken.Reason, taken.Message)
	}
	hint := ""
	for _, p := range gatewayPrograms {
		if running := programsOf(facts, p.image); len(running) > 0 && taken == nil || len(running) > 0 && taken.Status == metav1.ConditionUnknown {
			hint = fmt.Sprintf(" %s runs.", short(running[0].ref))
			for _, o := range classes.All() {
				if o != c && unmet(o.Status.Conditions, "Accepted") == nil && len(o.Status.Conditions) > 0 {
					hint += fmt.Sprintf(" GatewayClass %s is accepted, with controllerName %s.", o.Name, o.Spec.ControllerName)
				}
			}
			break
		}
	}
	return "its GatewayClass " + name + " is not accepted", &objectFault{
		rule: "gateway-class-not-accepted", subject: Ref{Kind: "GatewayClass", Name: name},
		vars:  map[string]string{"class": name, "controller": c.Spec.ControllerName, "says": says, "gateway": g.Namespace + "/" + g.Name, "hint": hint},
		found: []Evidence{named, SawObject("gatewayclasses.gateway.networking.k8s.io", "", name, "GatewayClass %s has controllerName %s; %s", name, c.Spec.ControllerName, says)},
	}
}

// listenerFault says what is wrong with a listener that a controller refuses.
func listenerFault(facts *probes.Facts, g *probes.Gateway, name string, c *metav1.Condition) *objectFault {
	says := fmt.Sprintf("%s=%s, %s: %s", c.Type, c.Status, c.Reason, c.Message)
	saw := SawObject(gatewaysResource, g.Namespace, g.Name, "Gateway %s, listener %s: %s", g.Name, name, says)
	vars := map[string]string{"gateway": g.Name, "listener": name, "says": says}
	i := slices.IndexFunc(g.Spec.Listeners, func(l probes.Listener) bool { return l.Name == name })
	if i < 0 || g.Spec.Listeners[i].TLS == nil || c.Reason != "InvalidCertificateRef" && c.Reason != "RefNotPermitted" && c.Type != "ResolvedRefs" {
		return &objectFault{rule: "gateway-refused", subject: gatewayRef(g), vars: vars, found: []Evidence{saw}}
	}
	for _, ref := range g.Spec.Listeners[i].TLS.CertificateRefs {
		ns := ref.Namespace
		if ns == "" {
			ns = g.Namespace
		}
		secret := Ref{Kind: "Secret", Namespace: ns, Name: ref.Name}
		vars["secret"], vars["in"] = ref.Name, ns
		if ns != g.Namespace && !granted(facts, "Gateway", g.Namespace, "Secret", ns, ref.Name) {
			return grantFault(facts, gatewayRef(g), secret, vars, saw)
		}
		secrets, err := probes.Secrets.Of(facts)
		if err != nil {
			if absent.MatchString(c.Message) {
				return &objectFault{rule: "gateway-secret-missing", subject: secret, vars: vars, found: []Evidence{saw}}
			}
			continue
		}
		s := secrets.Get(ns, ref.Name)
		if s == nil {
			f := &objectFault{rule: "gateway-secret-missing", subject: secret, vars: vars, found: []Evidence{saw, SawObject("secrets", ns, ref.Name, "namespace %s has no Secret %s", ns, ref.Name)}}
			var names []string
			for o := range secrets.In(ns) {
				if o.Type == string(corev1.SecretTypeTLS) {
					names = append(names, o.Name)
				}
			}
			if near := nearest(ref.Name, names); near != "" {
				f.subject, vars["hint"] = gatewayRef(g), fmt.Sprintf(" A TLS Secret %s is there.", near)
			}
			return f
		}
		_, cert := s.Keys["tls.crt"]
		_, key := s.Keys["tls.key"]
		if s.Type != string(corev1.SecretTypeTLS) || !cert || !key {
			vars["type"] = s.Type
			return &objectFault{rule: "gateway-secret-unusable", subject: secret, vars: vars, found: []Evidence{saw, SawObject("secrets", ns, ref.Name, "Secret %s is of type %s, tls.crt: %t, tls.key: %t", ref.Name, s.Type, cert, key)}}
		}
	}
	return &objectFault{rule: "gateway-refused", subject: gatewayRef(g), vars: vars, found: []Evidence{saw}}
}

// absent recognises what controllers say of an object that is not there.
var absent = regexp.MustCompile(`(?i)not found|does not exist|doesn't exist|no such|missing`)

// granted reports whether a ReferenceGrant lets an object of one namespace
// refer to an object of another; true where that can't be known.
func granted(facts *probes.Facts, kind, from, toKind, to, name string) bool {
	grants, err := probes.ReferenceGrants.Of(facts)
	if err != nil {
		return true
	}
	for r := range grants.In(to) {
		for _, f := range r.Spec.From {
			for _, t := range r.Spec.To {
				if f.Kind == kind && f.Namespace == from && t.Kind == toKind && (t.Name == "" || t.Name == name) {
					return true
				}
			}
		}
	}
	return false
}

// grantFault is a reference over namespaces that no ReferenceGrant lets: the
// one that is there and is for something else, or else what refers.
func grantFault(facts *probes.Facts, from, to Ref, vars map[string]string, saw Evidence) *objectFault {
	vars["from"], vars["to"], vars["fromKind"], vars["fromNamespace"], vars["toKind"], vars["toNamespace"] = short(from), short(to), from.Kind, from.Namespace, to.Kind, to.Namespace
	f := &objectFault{rule: "reference-not-granted", subject: from, vars: vars, found: []Evidence{saw}}
	grants, err := probes.ReferenceGrants.Of(facts)
	if err != nil {
		return f
	}
	n := 0
	for r := range grants.In(to.Namespace) {
		n++
		var words []string
		for _, x := range r.Spec.From {
			words = append(words, x.Kind+" of "+x.Namespace)
		}
		for _, x := range r.Spec.To {
			words = append(words, strings.TrimSpace("to "+x.Kind+" "+x.Name))
		}
		f.found = append(f.found, SawObject("referencegrants.gateway.networking.k8s.io", r.Namespace, r.Name, "ReferenceGrant %s/%s lets %s", r.Namespace, r.Name, strings.Join(words, ", ")))
		f.subject, vars["hint"] = Ref{Kind: "ReferenceGrant", Namespace: r.Namespace, Name: r.Name}, fmt.Sprintf(" ReferenceGrant %s is there, for %s.", r.Name, strings.Join(words, ", "))
	}
	if n == 0 {
		f.found = append(f.found, Saw("referencegrants.gateway.networking.k8s.io", nil, "namespace %s has no ReferenceGrant", to.Namespace))
	}
	if n > 1 {
		f.subject = from
	}
	return f
}

var (
	gatewayClassMissing     = ofObject("gateway-class-missing", "is there no GatewayClass {class}?", gatewayNotProgrammed, routeNotServed)
	gatewayClassNotAccepted = ofObject("gateway-class-not-accepted", "has no controller accepted GatewayClass {class}?", gatewayNotProgrammed, routeNotServed)
	gatewaySecretMissing    = ofObject("gateway-secret-missing", "does listener {listener} name a Secret that is not there?", gatewayNotProgrammed, routeNotServed)
	gatewaySecretUnusable   = ofObject("gateway-secret-unusable", "is the Secret of listener {listener} no TLS Secret?", gatewayNotProgrammed, routeNotServed)
	gatewayRefused          = ofObject("gateway-refused", "does its controller refuse {object}?", gatewayNotProgrammed, routeNotServed)
	referenceNotGranted     = ofObject("reference-not-granted", "does no ReferenceGrant let {from} refer to {to}?", gatewayNotProgrammed, routeNotServed)
)

var gatewayListenerRules = []*Rule{gatewayNotProgrammed, gatewayClassMissing, gatewayClassNotAccepted, gatewaySecretMissing, gatewaySecretUnusable, gatewayRefused, referenceNotGranted}
