package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// A backend is where a rule of an Ingress sends requests.
type backend struct {
	service, port string
	rule          string // "shop.example.com/api", "its default"
	field         string // the field's path, for a patch
}

func ingressBackends(in *networkingv1.Ingress) []backend {
	var list []backend
	add := func(b *networkingv1.IngressBackend, rule, field string) {
		if b == nil || b.Service == nil {
			return
		}
		port := b.Service.Port.Name
		if port == "" {
			port = fmt.Sprint(b.Service.Port.Number)
		}
		list = append(list, backend{b.Service.Name, port, rule, field + "/service"})
	}
	add(in.Spec.DefaultBackend, "its default", "/spec/defaultBackend")
	for i, r := range in.Spec.Rules {
		if r.HTTP == nil {
			continue
		}
		for j, p := range r.HTTP.Paths {
			add(&p.Backend, cmp.Or(r.Host, "*")+p.Path, fmt.Sprintf("/spec/rules/%d/http/paths/%d/backend", i, j))
		}
	}
	return list
}

// ingressTrouble is the Data of an ingress-without-backend symptom.
type ingressTrouble struct {
	ingress  *networkingv1.Ingress
	backends []backend // that can't be served
	class    string    // that doesn't exist; empty if that isn't the trouble
	secrets  []string  // of TLS, that are not there
}

var ingressFacts = []probes.Any{probes.Ingresses, probes.Services, probes.IngressClassesInUse, probes.IngressSecrets}

// ingressWithoutBackend: an Ingress names a Service, a port, a class or a
// Secret that is not there.
var ingressWithoutBackend = &Rule{
	ID:    "ingress-without-backend",
	Needs: ingressFacts,
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		list, err := probes.Ingresses.Of(facts)
		if err != nil {
			return nil
		}
		services, servicesErr := probes.Services.Of(facts)
		classes, classesErr := probes.IngressClassesInUse.Of(facts)
		secrets, secretsErr := probes.IngressSecrets.Of(facts)
		var found []Suspect
		for _, in := range list.All() {
			if in.DeletionTimestamp != nil {
				continue
			}
			t := &ingressTrouble{ingress: in}
			var evidence []Evidence
			see := func(format string, args ...any) {
				evidence = append(evidence, SawObject("ingresses.networking.k8s.io", in.Namespace, in.Name, "Ingress %s/%s %s", in.Namespace, in.Name, fmt.Sprintf(format, args...)))
			}
			for _, b := range ingressBackends(in) {
				if servicesErr != nil || b.port == "use-annotation" {
					continue
				}
				s := services.Get(in.Namespace, b.service)
				if s == nil || s.Spec.Type != corev1.ServiceTypeExternalName && !hasIngressPort(s, b.port) {
					t.backends = append(t.backends, b)
					see("sends %s to Service %s port %s, which is not there", b.rule, b.service, b.port)
				}
			}
			if name := in.Spec.IngressClassName; classesErr == nil && name != nil && *name != "" && classes.Get("", *name) == nil {
				t.class = *name
				see("has ingressClassName %s, and there is no such IngressClass", *name)
			}
			if secretsErr == nil {
				for _, tls := range in.Spec.TLS {
					if tls.SecretName != "" && secrets.Get(in.Namespace, tls.SecretName) == nil && in.Annotations["cert-manager.io/cluster-issuer"]+in.Annotations["cert-manager.io/issuer"] == "" {
						t.secrets = append(t.secrets, tls.SecretName)
						see("takes its certificate from Secret %s, which is not there", tls.SecretName)
					}
				}
			}
			if len(evidence) == 0 {
				continue
			}
			found = append(found, Suspect{Subjects: []Ref{{Kind: "Ingress", Namespace: in.Namespace, Name: in.Name}}, Data: t, Found: evidence})
		}
		return found
	},
}

func hasIngressPort(s *corev1.Service, port string) bool {
	return slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == port || fmt.Sprint(p.Port) == port })
}

// ofIngresses makes a rule about the Ingresses in trouble.
func ofIngresses(id, asks string, needs []probes.Any, run func(*probes.Facts, *ingressTrouble, *Suspect) Answer) *Rule {
	all := slices.Concat(ingressFacts, needs)
	type answered struct {
		*ingressTrouble
		answer Answer
	}
	return &Rule{
		ID: id, Explains: []*Rule{ingressWithoutBackend}, Needs: all,
		Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
			var found []Suspect
			for _, e := range effects {
				s := Suspect{Subjects: []Ref{e.Subject()}, Effects: []*Finding{e}, Vars: map[string]string{"ingress": e.Subject().Name, "namespace": e.Subject().Namespace, "hint": ""}}
				a := run(facts, e.Data.(*ingressTrouble), &s)
				s.Data = answered{e.Data.(*ingressTrouble), a}
				found = append(found, s)
			}
			return found
		},
		Tests: []Test{{Asks: asks, Needs: all, Run: func(_ *probes.Facts, s Suspect) Answer { return s.Data.(answered).answer }}},
	}
}

// ingressServiceWrong: an Ingress sends requests to a Service that is not there.
var ingressServiceWrong = ofIngresses("ingress-service-missing", "does Ingress {ingress} send requests to a Service that is not there?", serviceFacts, func(facts *probes.Facts, t *ingressTrouble, s *Suspect) Answer {
	services, err := probes.Services.Of(facts)
	if err != nil {
		return CantTell(err)
	}
	in := t.ingress
	var evidence []Evidence
	for _, b := range t.backends {
		if services.Get(in.Namespace, b.service) != nil {
			continue
		}
		evidence = append(evidence, SawObject("ingresses.networking.k8s.io", in.Namespace, in.Name, "Ingress %s sends %s to Service %s port %s, and there is no Service %s in namespace %s", in.Name, b.rule, b.service, b.port, b.service, in.Namespace))
		if s.Vars["backend"] == "" {
			s.Vars["backend"], s.Vars["field"], s.Vars["rule"], s.Vars["right"] = b.service, b.field, b.rule, "the Service that is meant"
			if dir, err := callDirectory(facts); err == nil {
				if owner, p := namesake(facts, dir, Ref{Kind: "Service", Namespace: in.Namespace, Name: b.service}); p != nil {
					s.Subjects = []Ref{{Kind: "Service", Namespace: in.Namespace, Name: b.service}, s.Subjects[0]}
					s.Vars["hint"] = fmt.Sprintf(" %s is there, and its Service is not.", short(owner))
					evidence = append(evidence, SawObject("pods", p.Namespace, p.Name, "%s is there, and no Service selects its pods", short(owner)))
					continue
				}
			}
			if near := nearestService(services, in.Namespace, b.service); near != "" {
				s.Vars["hint"] = fmt.Sprintf(" The Service that is there is %s.", near)
				_, s.Vars["right"], _ = strings.Cut(near, "/")
				evidence = append(evidence, Saw("services", []string{near}, "Service %s is there", near))
			} else {
				var names []string
				for svc := range services.In(in.Namespace) {
					names = append(names, svc.Name)
				}
				s.Vars["hint"] = fmt.Sprintf(" Its Services are %s.", listed(names))
			}
		}
	}
	return Answered(len(evidence) > 0, evidence...)
})

// ingressPortWrong: an Ingress names a port that its Service does not have.
var ingressPortWrong = ofIngresses("ingress-port-wrong", "does Ingress {ingress} name a port that its Service does not have?", nil, func(facts *probes.Facts, t *ingressTrouble, s *Suspect) Answer {
	services, err := probes.Services.Of(facts)
	if err != nil {
		return CantTell(err)
	}
	in := t.ingress
	var evidence []Evidence
	for _, b := range t.backends {
		svc := services.Get(in.Namespace, b.service)
		if svc == nil {
			continue
		}
		evidence = append(evidence, SawObject("ingresses.networking.k8s.io", in.Namespace, in.Name, "Ingress %s sends %s to port %s of Service %s", in.Name, b.rule, b.port, b.service),
			SawObject("services", svc.Namespace, svc.Name, "Service %s has the ports %s", svc.Name, servicePortList(svc)))
		if s.Vars["backend"] == "" {
			s.Vars["backend"], s.Vars["port"], s.Vars["has"], s.Vars["field"], s.Vars["rule"] = b.service, b.port, servicePortList(svc), b.field, b.rule
		}
	}
	return Answered(len(evidence) > 0, evidence...)
})

// ingressClassMissing: no IngressClass has the name that an Ingress gives, so
// no controller takes it.
var ingressClassMissing = ofIngresses("ingress-class-missing", "does Ingress {ingress} name an IngressClass that is not there?", nil, func(facts *probes.Facts, t *ingressTrouble, s *Suspect) Answer {
	if t.class == "" {
		return Answered(false, SawObject("ingresses.networking.k8s.io", t.ingress.Namespace, t.ingress.Name, "its class is there, or it names none"))
	}
	classes, err := probes.IngressClassesInUse.Of(facts)
	if err != nil {
		return CantTell(err)
	}
	var names []string
	for _, c := range classes.All() {
		names = append(names, c.Name)
	}
	s.Vars["class"], s.Vars["classes"] = t.class, listed(names)
	return Answered(true, SawObject("ingresses.networking.k8s.io", t.ingress.Namespace, t.ingress.Name, "Ingress %s has ingressClassName %s", t.ingress.Name, t.class), Saw("ingressclasses.networking.k8s.io", nil, "the IngressClasses are %s", listed(names)))
})

// ingressSecretMissing: the certificate that an Ingress names is not there.
var ingressSecretMissing = ofIngresses("ingress-tls-secret-missing", "does Ingress {ingress} name a TLS Secret that is not there?", nil, func(facts *probes.Facts, t *ingressTrouble, s *Suspect) Answer {
	if len(t.secrets) == 0 {
		return Answered(false, SawObject("ingresses.networking.k8s.io", t.ingress.Namespace, t.ingress.Name, "its TLS Secrets are there, or it names none"))
	}
	secrets, err := probes.IngressSecrets.Of(facts)
	if err != nil {
		return CantTell(err)
	}
	s.Vars["secret"] = t.secrets[0]
	s.Subjects = append(s.Subjects, Ref{Kind: "Secret", Namespace: t.ingress.Namespace, Name: t.secrets[0]})
	evidence := []Evidence{SawObject("secrets", t.ingress.Namespace, t.secrets[0], "Ingress %s names Secret %s for TLS, and namespace %s has none of that name", t.ingress.Name, t.secrets[0], t.ingress.Namespace)}
	var names []string
	for sec := range secrets.In(t.ingress.Namespace) {
		if sec.Type == string(corev1.SecretTypeTLS) {
			names = append(names, sec.Name)
		}
	}
	if near := nearest(t.secrets[0], names); near != "" {
		s.Vars["hint"] = fmt.Sprintf(" A TLS Secret %s is there.", near)
		evidence = append(evidence, SawObject("secrets", t.ingress.Namespace, near, "Secret %s of type kubernetes.io/tls is there", near))
	} else if len(names) > 0 {
		s.Vars["hint"] = fmt.Sprintf(" Its TLS Secrets are %s.", listed(names))
	}
	return Answered(true, evidence...)
})

var serviceRules = []*Rule{
	clientsFailing, clientsRefused, serviceWithoutEndpoints, servicePortDead, serviceLeadsElsewhere, ingressWithoutBackend, targetUnreachable,
	selectorMatchesNothing, noPodsAsked, selectorMatchesOthers, targetPortWrong, listensElsewhere, protocolWrong, servicePortWrong,
	clientPortWrong, clientHostWrong, clientSchemeWrong, serviceMissing, externalNameWrong,
	backendNotReady, blockedByPolicy, backendHidden, governingServiceMissing,
	ingressServiceWrong, ingressPortWrong, ingressClassMissing, ingressSecretMissing,
}
