package diagnose

import (
	"fmt"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// ingressPrograms are parts of the images of ingress controllers, by a part of
// the name that an IngressClass gives.
// Sources: the installation manifests of each project.
var ingressPrograms = []struct {
	controller string
	images     []string
}{
	{"k8s.io/ingress-nginx", []string{"ingress-nginx/controller", "nginx-ingress-controller"}},
	{"nginx.org/ingress-controller", []string{"nginx/nginx-ingress", "nginx-ic"}},
	{"traefik.io/ingress-controller", []string{"traefik"}},
	{"haproxy.org/ingress-controller", []string{"haproxytech/kubernetes-ingress", "haproxy-ingress"}},
	{"haproxy-ingress.github.io/controller", []string{"haproxy-ingress"}},
	{"ingress.k8s.aws/alb", []string{"aws-load-balancer-controller"}},
	{"ingress-controllers.konghq.com/kong", []string{"kong"}},
	{"istio.io/ingress-controller", []string{"/pilot"}},
}

// ingressNotServed: the controller of an Ingress's class does not run, or no
// class is given and none is the default.
var ingressNotServed = &Rule{
	ID: "ingress-not-served", Needs: append([]probes.Any{probes.Ingresses, probes.IngressClassesInUse}, controllerFacts...),
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		list, err := probes.Ingresses.Of(facts)
		classes, err2 := probes.IngressClassesInUse.Of(facts)
		if err != nil || err2 != nil {
			return nil
		}
		var found []Suspect
		for _, in := range list.All() {
			if in.DeletionTimestamp != nil || facts.Source().Now().Sub(in.CreationTimestamp.Time) < 2*patience {
				continue
			}
			name := in.Annotations["kubernetes.io/ingress.class"]
			if in.Spec.IngressClassName != nil {
				name = *in.Spec.IngressClassName
			}
			ref := Ref{Kind: "Ingress", Namespace: in.Namespace, Name: in.Name}
			c := classes.Get("", name)
			switch {
			case name == "" && len(in.Status.LoadBalancer.Ingress) == 0 && othersServed(list, in) && defaultClass(classes) == "":
				var names []string
				for _, o := range classes.All() {
					names = append(names, o.Name)
				}
				found = append(found, objectSymptom(ref, "ingresses.networking.k8s.io", "it names no class, and no controller has taken it", &objectTrouble{fault: &objectFault{
					rule: "ingress-without-class", subject: ref, vars: map[string]string{"classes": listed(names)},
					found: []Evidence{SawObject("ingresses.networking.k8s.io", in.Namespace, in.Name, "Ingress %s has no ingressClassName and no address", in.Name), Saw("ingressclasses.networking.k8s.io", nil, "the IngressClasses are %s; none is the default", listed(names))},
				}}))
			case c != nil:
				for _, p := range ingressPrograms {
					if c.Spec.Controller != p.controller {
						continue
					}
					if f := controllerDown(facts, fmt.Sprintf("Ingresses of class %s (%s)", name, c.Spec.Controller), p.images...); f != nil {
						if c.Spec.Controller == awsController && f.subject.Kind == "Deployment" {
							f.rule = "load-balancer-controller-down"
						}
						found = append(found, objectSymptom(ref, "ingresses.networking.k8s.io", "no pod of its controller runs", &objectTrouble{fault: f}))
					}
				}
			}
		}
		return found
	},
}

func othersServed(list *probes.List[networkingv1.Ingress], in *networkingv1.Ingress) bool {
	for _, o := range list.All() {
		if o != in && len(o.Status.LoadBalancer.Ingress) > 0 {
			return true
		}
	}
	return list.Len() == 1
}

func defaultClass(list *probes.List[networkingv1.IngressClass]) string {
	for _, c := range list.All() {
		if strings.EqualFold(c.Annotations["ingressclass.kubernetes.io/is-default-class"], "true") {
			return c.Name
		}
	}
	return ""
}

var ingressWithoutClass = ofObject("ingress-without-class", "does it name no class, while none is the default?", ingressNotServed)

var ingressClassRules = []*Rule{ingressNotServed, ingressWithoutClass}
