package diagnose

import (
	"fmt"
	"regexp"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apilabels "k8s.io/apimachinery/pkg/labels"

	"github.com/pposiraegi/ppodoctor/probes"
)

const resourceMetrics = "metrics.k8s.io"

// apiUnavailable: the API server can't pass on calls of an aggregated API.
var apiUnavailable = &Rule{
	ID: "api-service-unavailable", Needs: []probes.Any{probes.APIServices},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		list, err := probes.APIServices.Of(facts)
		if err != nil {
			return nil
		}
		var found []Suspect
		for _, a := range list.All() {
			c := a.Available()
			if c == nil || c.Status == metav1.ConditionTrue || a.Spec.Service == nil || a.DeletionTimestamp != nil || facts.Source().Now().Sub(c.LastTransitionTime.Time) < 2*patience {
				continue
			}
			at := c.LastTransitionTime.Time
			found = append(found, Suspect{
				Subjects: []Ref{{Kind: "APIService", Name: a.Name}}, Data: a, Since: &at,
				Vars:  map[string]string{"api": a.Name, "reason": c.Reason, "message": c.Message, "service": a.Spec.Service.Namespace + "/" + a.Spec.Service.Name},
				Found: []Evidence{SawObject("apiservices.apiregistration.k8s.io", "", a.Name, "APIService %s: Available=%s, %s: %s", a.Name, c.Status, c.Reason, c.Message)},
			})
		}
		return found
	},
}

// hurtByAPI are the states that an API which does not answer brings about.
var hurtByAPI = []*Rule{apiUnavailable, namespaceHeldByAPI, autoscalerBlind}

// perAPI proposes the unavailable APIs that pick takes, with what is hurt.
func perAPI(pick func(*probes.Facts, *probes.APIService) *Suspect) func(*probes.Facts, []*Finding) []Suspect {
	return func(facts *probes.Facts, effects []*Finding) []Suspect {
		var found []Suspect
		for _, e := range effects {
			a, ok := e.Data.(*probes.APIService)
			if !ok {
				continue
			}
			s := pick(facts, a)
			if s == nil {
				continue
			}
			s.Data, s.Found = a, append(slices.Clone(e.Found), s.Found...)
			vars := map[string]string{"hint": ""}
			for _, m := range []map[string]string{e.Vars, s.Vars} {
				for k, v := range m {
					vars[k] = v
				}
			}
			s.Vars = vars
			for _, o := range effects {
				blind := o.Rule == autoscalerBlind && a.Spec.Group == resourceMetrics && noMetricsAPI.MatchString(o.Vars["message"])
				if o == e || blind || o.Rule == namespaceHeldByAPI && o.Subject() == e.Subject() {
					s.Effects = append(s.Effects, o)
				}
			}
			found = append(found, *s)
		}
		return found
	}
}

// apiServiceMissing: an APIService sends its calls to a Service that is not there.
var apiServiceMissing = &Rule{
	ID: "api-service-names-no-service", Explains: hurtByAPI, Needs: []probes.Any{probes.APIServices, probes.Services},
	Suspects: perAPI(func(facts *probes.Facts, a *probes.APIService) *Suspect {
		services, err := probes.Services.Of(facts)
		if err == nil && services.Get(a.Spec.Service.Namespace, a.Spec.Service.Name) != nil {
			return nil
		}
		return &Suspect{Subjects: []Ref{{Kind: "APIService", Name: a.Name}}}
	}),
	Tests: []Test{{
		Asks: "is there no Service {service}, to which {api} sends its calls?", Needs: []probes.Any{probes.Services},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			services, err := probes.Services.Of(facts)
			if err != nil {
				return CantTell(err)
			}
			at := s.Data.(*probes.APIService).Spec.Service
			if services.Get(at.Namespace, at.Name) != nil {
				return Answered(false, SawObject("services", at.Namespace, at.Name, "Service %s/%s is there", at.Namespace, at.Name))
			}
			var names []string
			for svc := range services.In(at.Namespace) {
				names = append(names, svc.Name)
			}
			a := Answered(true, append(slices.Clone(s.Found), SawObject("services", at.Namespace, at.Name, "there is no Service %s/%s", at.Namespace, at.Name))...)
			if near := nearest(at.Name, names); near != "" {
				a = a.With("hint", fmt.Sprintf(" There is a Service %s in %s.", near, at.Namespace))
			}
			return a
		},
	}},
}

// behindAPI is the Deployment that serves an API, or nil.
func behindAPI(facts *probes.Facts, a *probes.APIService) *appsv1.Deployment {
	services, err := probes.Services.Of(facts)
	deployments, deploymentsErr := probes.Deployments.Of(facts)
	if err != nil || deploymentsErr != nil {
		return nil
	}
	svc := services.Get(a.Spec.Service.Namespace, a.Spec.Service.Name)
	if svc == nil || len(svc.Spec.Selector) == 0 {
		return nil
	}
	for d := range deployments.In(svc.Namespace) {
		if covers(d.Spec.Template.Labels, svc.Spec.Selector) {
			return d
		}
	}
	return nil
}

// apiBackendDown: what serves the API has no pod that is ready.
var apiBackendDown = &Rule{
	ID: "api-service-backend-down", Explains: hurtByAPI, Relay: true, Needs: []probes.Any{probes.APIServices, probes.Services, probes.Deployments},
	Suspects: perAPI(func(facts *probes.Facts, a *probes.APIService) *Suspect {
		d := behindAPI(facts, a)
		if d == nil || a.Spec.Group == resourceMetrics {
			return nil // metrics-server has a rule of its own
		}
		n := replicas(d.Spec.Replicas)
		state := fmt.Sprintf("%d of %d pods of Deployment %s/%s are available", d.Status.AvailableReplicas, n, d.Namespace, d.Name)
		fix := "kubectl get pods -n " + d.Namespace
		if n == 0 {
			state = fmt.Sprintf("Deployment %s/%s has spec.replicas 0", d.Namespace, d.Name)
			fix = "kubectl scale deployment " + d.Name + " -n " + d.Namespace + " --replicas 1"
		}
		return &Suspect{
			Subjects: []Ref{{Kind: "Deployment", Namespace: d.Namespace, Name: d.Name}, {Kind: "APIService", Name: a.Name}},
			Vars:     map[string]string{"state": state, "fix": fix, "ready": fmt.Sprint(d.Status.AvailableReplicas)},
			Found:    []Evidence{SawObject("deployments.apps", d.Namespace, d.Name, "%s", state)},
		}
	}),
	Tests: []Test{{
		Asks: "has the Deployment behind {api} no available pod?",
		Run: func(_ *probes.Facts, s Suspect) Answer {
			return Answered(s.Vars["ready"] == "0", s.Found...)
		},
	}},
}

// apiCallDropped recognises calls of an aggregated API that get no answer.
// Source: kubernetes kube-aggregator pkg/controllers/status/remote.
var apiCallDropped = regexp.MustCompile(`Client\.Timeout|context deadline exceeded|i/o timeout|no route to host|connection refused|request canceled`)

// apiCutOff: pods serve the API, and the API server does not reach them.
var apiCutOff = &Rule{
	ID: "api-service-cut-off", Explains: hurtByAPI, LastResort: true, Needs: []probes.Any{probes.APIServices, probes.Services, probes.Deployments, probes.NetworkPolicies},
	Suspects: perAPI(func(facts *probes.Facts, a *probes.APIService) *Suspect {
		d := behindAPI(facts, a)
		if d == nil || d.Status.AvailableReplicas == 0 || !apiCallDropped.MatchString(a.Available().Message) {
			return nil
		}
		s := &Suspect{Subjects: []Ref{{Kind: "Deployment", Namespace: d.Namespace, Name: d.Name}, {Kind: "APIService", Name: a.Name}}, Vars: map[string]string{
			"state": fmt.Sprintf("%d pods of Deployment %s/%s are available", d.Status.AvailableReplicas, d.Namespace, d.Name), "policy": "",
		}}
		policies, err := probes.NetworkPolicies.Of(facts)
		if err != nil {
			return s
		}
		for p := range policies.In(d.Namespace) {
			if deniesAPIServer(p, d.Spec.Template.Labels) {
				s.Subjects = append([]Ref{{Kind: "NetworkPolicy", Namespace: p.Namespace, Name: p.Name}}, s.Subjects...)
				s.Vars["policy"] = p.Name
				s.Found = []Evidence{SawObject("networkpolicies.networking.k8s.io", p.Namespace, p.Name, "NetworkPolicy %s/%s selects the pods of Deployment %s for Ingress and has no rule that lets in an address outside the pods'", p.Namespace, p.Name, d.Name)}
				break
			}
		}
		return s
	}),
	Tests: []Test{{
		Asks: "does a NetworkPolicy keep the API server's calls from the pods behind {api}?", Needs: []probes.Any{probes.NetworkPolicies},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			if s.Vars["policy"] != "" {
				return Answered(true, s.Found...)
			}
			if _, err := probes.NetworkPolicies.Of(facts); err != nil {
				return CantTell(err, s.Found...)
			}
			return CantTell(fmt.Errorf("%s, and the API server gets no answer: the path from the control plane to their port, their certificate or they themselves are at fault", s.Vars["state"]), s.Found...)
		},
	}},
}

// deniesAPIServer reports whether a policy lets nothing from outside the pods
// in to pods with these labels: the API server is no pod of the cluster's network.
func deniesAPIServer(p *networkingv1.NetworkPolicy, labels map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
	ingress := len(p.Spec.PolicyTypes) == 0 || slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeIngress)
	if err != nil || !ingress || !selector.Matches(apilabels.Set(labels)) {
		return false
	}
	return !slices.ContainsFunc(p.Spec.Ingress, func(r networkingv1.NetworkPolicyIngressRule) bool {
		return len(r.From) == 0 || slices.ContainsFunc(r.From, func(f networkingv1.NetworkPolicyPeer) bool { return f.IPBlock != nil })
	})
}

var apiServiceRules = []*Rule{apiUnavailable, apiServiceMissing, apiBackendDown, apiCutOff}
