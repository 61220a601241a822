package diagnose

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/pposiraegi/ppodoctor/probes"
)

// The API server's words. Sources: kubernetes
// staging/src/k8s.io/apiserver/pkg/admission/plugin/webhook/{errors,generic}.
var (
	webhookDenied = regexp.MustCompile(`admission webhook "([^"]+)" denied the request:?\s*(.*)`)
	webhookFailed = regexp.MustCompile(`failed calling webhook "([^"]+)": (.*)`)
)

// A hook is one webhook of a configuration.
type hook struct {
	config    Ref
	name      string
	client    admissionv1.WebhookClientConfig
	policy    admissionv1.FailurePolicyType
	namespace *metav1.LabelSelector
}

func (h hook) resource() string {
	return strings.ToLower(h.config.Kind) + "s.admissionregistration.k8s.io"
}

// hookNamed finds a webhook by the name that the API server's messages give.
func hookNamed(facts *probes.Facts, name string) (*hook, error) {
	validating, verr := probes.ValidatingWebhooks.Of(facts)
	if verr == nil {
		for _, c := range validating.All() {
			for _, w := range c.Webhooks {
				if w.Name == name {
					return &hook{Ref{Kind: "ValidatingWebhookConfiguration", Name: c.Name}, name, w.ClientConfig, failurePolicy(w.FailurePolicy), w.NamespaceSelector}, nil
				}
			}
		}
	}
	mutating, merr := probes.MutatingWebhooks.Of(facts)
	if merr == nil {
		for _, c := range mutating.All() {
			for _, w := range c.Webhooks {
				if w.Name == name {
					return &hook{Ref{Kind: "MutatingWebhookConfiguration", Name: c.Name}, name, w.ClientConfig, failurePolicy(w.FailurePolicy), w.NamespaceSelector}, nil
				}
			}
		}
	}
	if verr != nil {
		return nil, verr
	}
	if merr != nil {
		return nil, merr
	}
	return nil, fmt.Errorf("no webhook named %s is configured any more", name)
}

func failurePolicy(p *admissionv1.FailurePolicyType) admissionv1.FailurePolicyType {
	if p == nil {
		return admissionv1.Fail
	}
	return *p
}

// webhookDenies: a webhook was asked and said no.
var webhookDenies = admissionRule("webhook-denies-pods", "did an admission webhook that is configured here refuse the pods of {workload}?", "webhook-denial",
	[]probes.Any{probes.ValidatingWebhooks, probes.MutatingWebhooks}, func(facts *probes.Facts, c shortage, s *Suspect) Answer {
		m := webhookDenied.FindStringSubmatch(c.says)
		if m == nil {
			return Answered(false, Saw("events", nil, "no refusal by a webhook is reported"))
		}
		h, err := hookNamed(facts, m[1])
		if err != nil {
			return CantTell(err, c.seen)
		}
		s.Subjects = append(s.Subjects, h.config)
		s.Vars["webhook"], s.Vars["config"], s.Vars["says"] = m[1], h.config.Name, strings.TrimSpace(m[2])
		return Answered(true, c.seen, SawObject(h.resource(), "", h.config.Name, "%s %s has the webhook %s with failurePolicy %s", h.config.Kind, h.config.Name, m[1], h.policy))
	})

// webhookUnreachable: the API server can't get an answer from a webhook whose
// failurePolicy is Fail. What is wrong behind it decides who is to change.
var webhookUnreachable = relay(alsoOfInstalls(admissionRule("webhook-unreachable", "does the API server get no answer from a webhook that must approve what {workload} makes?", "webhook-call",
	[]probes.Any{probes.ValidatingWebhooks, probes.MutatingWebhooks, probes.Services, probes.EndpointSlices, probes.Deployments}, webhookAnswers)))

// alsoOfInstalls lets the rule explain what Helm, Argo CD or Flux could not
// apply as well.
func alsoOfInstalls(r *Rule) *Rule {
	ofPods := r.Suspects
	r.Explains = append(slices.Clone(installing), r.Explains...)
	r.Suspects = func(facts *probes.Facts, effects []*Finding) []Suspect {
		suspects := ofPods(facts, effects)
		for _, e := range effects {
			refused, _ := e.Data.([]setback)
			for _, b := range refused {
				if webhookFailed.MatchString(b.text) {
					c := shortage{workload: e.Subject(), says: b.text, seen: b.from}
					s := Suspect{Subjects: []Ref{c.workload}, Effects: []*Finding{e}, Vars: map[string]string{"workload": short(c.workload), "podNamespace": c.workload.Namespace}}
					s.Data = webhookAnswers(facts, c, &s)
					suspects = append(suspects, s)
				}
			}
		}
		return mergedAnswers(suspects)
	}
	return r
}

func webhookAnswers(facts *probes.Facts, c shortage, s *Suspect) Answer {
	m := webhookFailed.FindStringSubmatch(c.says)
	if m == nil {
		return Answered(false, Saw("events", nil, "no failed call of a webhook is reported"))
	}
	h, err := hookNamed(facts, m[1])
	if err != nil {
		return CantTell(err, c.seen)
	}
	s.Subjects = []Ref{h.config, c.workload}
	s.Vars["webhook"], s.Vars["config"], s.Vars["configKind"], s.Vars["error"], s.Vars["says"] = m[1], h.config.Name, h.config.Kind, m[2], m[2]
	configured := SawObject(h.resource(), "", h.config.Name, "%s %s calls the webhook %s with failurePolicy %s", h.config.Kind, h.config.Name, m[1], h.policy)
	if strings.Contains(m[2], "x509") || strings.Contains(m[2], "certificate") {
		return badCertificate(facts, *h, m[2], s, c.seen, configured)
	}
	if h.client.Service == nil {
		return CantTell(fmt.Errorf("the webhook %s is outside the cluster: %s", m[1], m[2]), c.seen, configured)
	}
	return backendOf(facts, *h, c, m[2], s, configured)
}

// notServedThere are the words for a webhook server's 404.
// Source: kubernetes staging/src/k8s.io/apimachinery/pkg/api/errors (NewGenericServerResponse).
const notServedThere = "the server could not find the requested resource"

// badCertificate looks into the configuration's CA bundle: the API server's
// TLS error is its own observation, the bundle says more.
func badCertificate(facts *probes.Facts, h hook, failure string, s *Suspect, evidence ...Evidence) Answer {
	now := facts.Source().Now()
	says := "its caBundle is empty"
	for rest := h.client.CABundle; len(rest) > 0; {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		if block == nil {
			says = "its caBundle holds no certificate"
			break
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			says = "its caBundle can't be parsed: " + err.Error()
			break
		}
		says = fmt.Sprintf("its caBundle trusts %q, valid from %s to %s", cert.Subject, cert.NotBefore.UTC().Format(time.RFC3339), cert.NotAfter.UTC().Format(time.RFC3339))
		if now.After(cert.NotAfter) {
			says = fmt.Sprintf("the certificate %q in its caBundle expired at %s", cert.Subject, cert.NotAfter.UTC().Format(time.RFC3339))
			break
		}
	}
	s.Vars["says"] = fmt.Sprintf("the API server rejects its certificate (%s); %s", failure, says)
	return Answered(true, append(evidence, SawObject(h.resource(), "", h.config.Name, "%s", says))...)
}

// backendOf looks behind a webhook's Service.
func backendOf(facts *probes.Facts, h hook, c shortage, failure string, s *Suspect, configured Evidence) Answer {
	at := h.client.Service
	name := at.Namespace + "/" + at.Name
	services, err := probes.Services.Of(facts)
	if err != nil {
		return CantTell(err, c.seen, configured)
	}
	service := services.Get(at.Namespace, at.Name)
	if service == nil {
		s.Vars["says"] = fmt.Sprintf("its Service %s doesn't exist", name)
		return Answered(true, c.seen, configured, SawObject("services", at.Namespace, at.Name, "Service %s, which the webhook names, doesn't exist", name))
	}
	port := int32(443)
	if at.Port != nil {
		port = *at.Port
	}
	var ports []string
	for _, p := range service.Spec.Ports {
		ports = append(ports, fmt.Sprint(p.Port))
	}
	if len(ports) > 0 && !slices.Contains(ports, fmt.Sprint(port)) {
		s.Vars["says"] = fmt.Sprintf("it calls port %d of Service %s, which has only %s", port, name, strings.Join(ports, ", "))
		return Answered(true, c.seen, configured, SawObject("services", at.Namespace, at.Name, "Service %s has no port %d, which the webhook calls; it has %s", name, port, strings.Join(ports, ", ")))
	}
	if strings.Contains(failure, notServedThere) {
		path := "/"
		if at.Path != nil {
			path = *at.Path
		}
		s.Vars["says"] = fmt.Sprintf("its server answers that it does not serve path %s", path)
		return Answered(true, c.seen, configured, SawObject(h.resource(), "", h.config.Name, "webhook %s calls path %s of Service %s", h.name, path, name))
	}
	endpointSlices, err := probes.EndpointSlices.Of(facts)
	if err != nil {
		return CantTell(err, c.seen, configured)
	}
	ready := 0
	for slice := range endpointSlices.In(at.Namespace) {
		if slice.Labels["kubernetes.io/service-name"] != at.Name {
			continue
		}
		for _, e := range slice.Endpoints {
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				ready += len(e.Addresses)
			}
		}
	}
	if ready > 0 {
		// Packets are lost, or the program doesn't answer: that is for others to prove.
		return CantTell(fmt.Errorf("the Service %s has %d ready endpoints; why the API server can't reach them (%s) is not known", name, ready, failure), c.seen, configured)
	}
	none := SawObject("endpointslices.discovery.k8s.io", at.Namespace, at.Name, "Service %s has no ready endpoint", name)
	s.Vars["says"] = fmt.Sprintf("its Service %s has no ready endpoint", name)
	deployments, err := probes.Deployments.Of(facts)
	if err != nil {
		return CantTell(err, c.seen, configured, none)
	}
	for d := range deployments.In(at.Namespace) {
		if len(service.Spec.Selector) == 0 || !labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(d.Spec.Template.Labels)) {
			continue
		}
		owner := Ref{Kind: "Deployment", Namespace: d.Namespace, Name: d.Name}
		says := fmt.Sprintf("Deployment %s/%s behind it has %d of %d pods ready", d.Namespace, d.Name, d.Status.ReadyReplicas, replicas(d.Spec.Replicas))
		s.Vars["says"] += "; " + says
		if owner != c.workload { // its own pods are refused too: then the configuration is what is wrong
			s.Subjects = []Ref{owner, h.config, c.workload}
		}
		return Answered(true, c.seen, configured, none, SawObject("deployments.apps", d.Namespace, d.Name, "%s", says))
	}
	s.Subjects = []Ref{{Kind: "Service", Namespace: at.Namespace, Name: at.Name}, h.config, c.workload}
	s.Vars["says"] += fmt.Sprintf("; no Deployment has pods with its selector %s", labels.Set(service.Spec.Selector))
	return Answered(true, c.seen, configured, none)
}
