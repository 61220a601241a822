package diagnose

import (
	"errors"
	"fmt"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/network"
)

// webhookTimesOut recognises calls of a webhook that got nothing back: neither a refusal nor a
// certificate. Source: Go net and net/http, as the API server reports them.
var webhookTimesOut = regexp.MustCompile(`context deadline exceeded|i/o timeout|Client\.Timeout|no route to host|request canceled while waiting for connection`)

// webhookCutOff: packets of the API server to a webhook's pods are dropped. It
// calls the pods themselves, at the port behind the Service's.
var webhookCutOff = admissionRule("webhook-unreachable-from-control-plane", "do security groups or NetworkPolicies stop the API server's calls of the webhook that must approve the pods of {workload}?", "webhook-call",
	slices.Concat([]probes.Any{probes.ValidatingWebhooks, probes.MutatingWebhooks, probes.Network, probes.Instances, probes.SecurityGroups}, callDirectoryFacts), func(facts *probes.Facts, c shortage, s *Suspect) Answer {
		s.Vars["webhook"], s.Vars["port"], s.Vars["pod"], s.Vars["service"] = "a webhook", "its port", "its pods", "its Service"
		m := webhookFailed.FindStringSubmatch(c.says)
		if m == nil {
			return Answered(false, Saw("events", nil, "no failed call of a webhook is reported"))
		}
		s.Vars["webhook"] = m[1]
		if !webhookTimesOut.MatchString(m[2]) {
			return Answered(false, c.seen)
		}
		h, err := hookNamed(facts, m[1])
		if err != nil {
			return CantTell(err, c.seen)
		}
		if h.client.Service == nil {
			return Answered(false, SawObject(h.resource(), "", h.config.Name, "the webhook %s is outside the cluster", m[1]))
		}
		dir, err := callDirectory(facts)
		if err != nil {
			return CantTell(err, c.seen)
		}
		world, err := probes.Network.Of(facts)
		if err != nil {
			return CantTell(err, c.seen)
		}
		at := h.client.Service
		svc := dir.Services.Get(at.Namespace, at.Name)
		if svc == nil {
			return Answered(false, Saw("services", nil, "there is no Service %s/%s", at.Namespace, at.Name))
		}
		port := 443
		if at.Port != nil {
			port = int(*at.Port)
		}
		sp := portOf(svc, port)
		pods := slices.DeleteFunc(dir.Behind(svc), func(p *corev1.Pod) bool { return !probes.Ready(p) })
		if sp == nil || len(pods) == 0 {
			return Answered(false, SawObject("services", svc.Namespace, svc.Name, "Service %s/%s has no port %d, or no ready pod", svc.Namespace, svc.Name, port))
		}
		var unknown error
		for _, p := range pods {
			n := int(targetNumber(p, sp))
			s.Vars["port"], s.Vars["pod"], s.Vars["service"] = fmt.Sprint(n), p.Namespace+"/"+p.Name, svc.Namespace+"/"+svc.Name
			a := world.Path(network.APIServer(), network.Pod(p.Namespace, p.Name), network.TCP, n).On(network.SecurityGroups, network.NetworkPolicies, network.NetworkACLs)
			switch a.Truth {
			case network.No:
				hop := a.Decisive()[0]
				s.Subjects = []Ref{refOf(hop), h.config, c.workload}
				s.Vars["fix"] = hop.Fix
				evidence := append([]Evidence{c.seen, SawObject("services", svc.Namespace, svc.Name, "Service %s/%s sends port %d to port %d of pod %s", svc.Namespace, svc.Name, port, n, p.Name)}, fromHops(a.Decisive(), 2)...)
				return Answered(true, evidence...)
			case network.Unknown:
				unknown = a.Err()
			}
		}
		if unknown != nil {
			s.Subjects = []Ref{h.config, c.workload}
			return CantTell(errors.Join(append([]error{unknown}, missingGroups(facts)...)...), c.seen)
		}
		return Answered(false, Saw("services", nil, "security groups and NetworkPolicies let the API server reach the pods behind %s/%s", svc.Namespace, svc.Name))
	})
