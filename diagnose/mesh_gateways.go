package diagnose

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/pposiraegi/ppodoctor/probes"
)

const istioGatewaysResource = "gateways.networking.istio.io"

// meshGatewayBroken: a Gateway of Istio's own kind can't serve its hosts, or
// a VirtualService is for one that is not there.
var meshGatewayBroken = &Rule{
	ID: "mesh-gateway-broken", Needs: []probes.Any{probes.IstioGateways, probes.VirtualServices, probes.Pods, probes.Secrets, probes.Deployments, probes.DaemonSets},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		list, err := probes.IstioGateways.Of(facts)
		if err != nil {
			return nil
		}
		var found []Suspect
		now := facts.Source().Now()
		for _, g := range list.All() {
			if g.DeletionTimestamp != nil || now.Sub(changedAt(g)) < 2*patience {
				continue
			}
			if says, f := istioGatewayFault(facts, g); f != nil {
				found = append(found, objectSymptom(Ref{Kind: "Gateway", Namespace: g.Namespace, Name: g.Name}, istioGatewaysResource, says, &objectTrouble{fault: f}))
			}
		}
		if routes, err := probes.VirtualServices.Of(facts); err == nil {
			for _, v := range routes.All() {
				if says, f := routeGatewayFault(list, v); f != nil && now.Sub(changedAt(v)) >= 2*patience {
					found = append(found, objectSymptom(f.subject, "virtualservices.networking.istio.io", says, &objectTrouble{fault: f}))
				}
			}
		}
		return found
	},
}

// istioGatewayFault says why the pods of a Gateway can't serve it; nil if they can.
func istioGatewayFault(facts *probes.Facts, g *probes.IstioGateway) (string, *objectFault) {
	pods, err := probes.Pods.Of(facts)
	if err != nil || len(g.Spec.Selector) == 0 {
		return "", nil
	}
	ref := Ref{Kind: "Gateway", Namespace: g.Namespace, Name: g.Name}
	sel := labels.SelectorFromSet(g.Spec.Selector)
	var serving, near []*corev1.Pod
	for _, p := range pods.All() {
		if sel.Matches(labels.Set(p.Labels)) {
			serving = append(serving, p)
		} else if isGatewayProxy(p) {
			near = append(near, p)
		}
	}
	if len(serving) == 0 {
		if facts.Err(probes.Deployments) != nil || facts.Err(probes.DaemonSets) != nil || askedFor(facts, sel) {
			return "", nil // their pods are missing: that is another fault
		}
		vars := map[string]string{"selector": sel.String()}
		if len(near) > 0 {
			vars["hint"] = fmt.Sprintf(" Pod %s/%s is a gateway, with the labels %s.", near[0].Namespace, near[0].Name, labels.Set(near[0].Labels))
		}
		return "no pod has the labels that it selects: " + sel.String(), &objectFault{rule: "mesh-gateway-selects-nothing", subject: ref, vars: vars, found: []Evidence{
			SawObject(istioGatewaysResource, g.Namespace, g.Name, "Gateway %s: spec.selector %s", g.Name, sel), Saw("pods", nil, "of the %d pods none has these labels", pods.Len()),
		}}
	}
	secrets, err := probes.Secrets.Of(facts)
	if err != nil {
		return "", nil
	}
	for _, s := range g.Spec.Servers {
		if s.TLS == nil || s.TLS.CredentialName == "" || strings.Contains(s.TLS.CredentialName, "://") {
			continue
		}
		name := s.TLS.CredentialName
		if slices.ContainsFunc(serving, func(p *corev1.Pod) bool { return secrets.Get(p.Namespace, name) != nil }) {
			continue
		}
		in := serving[0].Namespace
		vars := map[string]string{"secret": name, "in": in, "hosts": listed(s.Hosts), "gateway": g.Namespace + "/" + g.Name}
		for _, o := range secrets.All() {
			if o.Name == name {
				vars["hint"] = fmt.Sprintf(" A Secret of that name is in namespace %s, where the gateway pods don't look.", o.Namespace)
			}
		}
		return fmt.Sprintf("the certificate of %s is not there: Secret %s/%s", listed(s.Hosts), in, name), &objectFault{rule: "mesh-gateway-secret-missing", subject: Ref{Kind: "Secret", Namespace: in, Name: name}, vars: vars, found: []Evidence{
			SawObject(istioGatewaysResource, g.Namespace, g.Name, "Gateway %s: tls.credentialName %s for %s", g.Name, name, listed(s.Hosts)),
			SawObject("pods", in, serving[0].Name, "its pods are in namespace %s", in), SawObject("secrets", in, name, "namespace %s has no Secret %s", in, name),
		}}
	}
	return "", nil
}

// isGatewayProxy reports whether a pod is a proxy and nothing else.
func isGatewayProxy(p *corev1.Pod) bool {
	return len(p.Spec.Containers) == 1 && (p.Spec.Containers[0].Name == "istio-proxy" || strings.Contains(p.Spec.Containers[0].Image, "proxyv2"))
}

// askedFor reports whether a workload is to make pods that a selector takes.
func askedFor(facts *probes.Facts, sel labels.Selector) bool {
	deployments, _ := probes.Deployments.Of(facts)
	for _, d := range deployments.All() {
		if sel.Matches(labels.Set(d.Spec.Template.Labels)) {
			return true
		}
	}
	sets, _ := probes.DaemonSets.Of(facts)
	for _, d := range sets.All() {
		if sel.Matches(labels.Set(d.Spec.Template.Labels)) {
			return true
		}
	}
	return false
}

// routeGatewayFault says which Gateway of a VirtualService is not there.
func routeGatewayFault(list *probes.List[probes.IstioGateway], v *probes.VirtualService) (string, *objectFault) {
	for _, name := range v.Spec.Gateways {
		if name == "mesh" {
			continue
		}
		ns, short, ok := strings.Cut(name, "/")
		if !ok {
			ns, short = v.Namespace, name
		}
		if strings.Contains(short, ".") || list.Get(ns, short) != nil {
			continue // a host name of old, or there
		}
		var names []string
		hint := ""
		for _, g := range list.All() {
			names = append(names, g.Namespace+"/"+g.Name)
			if g.Name == short {
				hint = fmt.Sprintf(" Gateway %s is in namespace %s: name it as %s/%s.", g.Name, g.Namespace, g.Namespace, g.Name)
			}
		}
		if hint == "" {
			hint = isHint("Gateway", ns+"/"+short, names)
		}
		return fmt.Sprintf("it is for Gateway %s/%s, which is not there", ns, short), &objectFault{
			rule: "mesh-gateway-missing", subject: Ref{Kind: "VirtualService", Namespace: v.Namespace, Name: v.Name}, vars: map[string]string{"gateway": ns + "/" + short, "hosts": listed(v.Spec.Hosts), "hint": hint},
			found: []Evidence{SawObject("virtualservices.networking.istio.io", v.Namespace, v.Name, "VirtualService %s: spec.gateways names %s", v.Name, name), Saw(istioGatewaysResource, nil, "the Gateways are %s", listed(names))},
		}
	}
	return "", nil
}

// faultInjected is the fault of a VirtualService that answers every request of
// a route with an error, on purpose.
func faultInjected(v *probes.VirtualService) (string, *objectFault) {
	for _, route := range v.Spec.HTTP {
		if route.Fault == nil || route.Fault.Abort == nil || len(route.Match) > 0 {
			continue
		}
		a := route.Fault.Abort
		if a.Percentage != nil && a.Percentage.Value < 100 {
			continue
		}
		status := fmt.Sprint(a.HTTPStatus)
		if a.GRPCStatus != "" {
			status = a.GRPCStatus
		}
		return "it answers every request with " + status, &objectFault{
			rule: "mesh-fault-injected", subject: Ref{Kind: "VirtualService", Namespace: v.Namespace, Name: v.Name}, vars: map[string]string{"hosts": listed(v.Spec.Hosts), "status": status},
			found: []Evidence{SawObject("virtualservices.networking.istio.io", v.Namespace, v.Name, "VirtualService %s for %s: fault.abort with %s, for all requests", v.Name, listed(v.Spec.Hosts), status)},
		}
	}
	return "", nil
}

var (
	meshGatewaySelectsNothing = ofObject("mesh-gateway-selects-nothing", "has no pod the labels {selector}, which the Gateway selects?", meshGatewayBroken)
	meshGatewaySecretMissing  = ofObject("mesh-gateway-secret-missing", "is Secret {secret} not in namespace {in}, where the gateway pods are?", meshGatewayBroken)
	meshGatewayMissing        = ofObject("mesh-gateway-missing", "is Gateway {gateway} not there?", meshGatewayBroken)
	meshFaultInjected         = ofObject("mesh-fault-injected", "does the VirtualService answer every request with {status}?", meshBroken, targetUnreachable)
)

var meshGatewayRules = []*Rule{meshGatewayBroken, meshGatewaySelectsNothing, meshGatewaySecretMissing, meshGatewayMissing, meshFaultInjected}
