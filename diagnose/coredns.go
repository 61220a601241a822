package diagnose

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// coreDNSDown: the pods behind the cluster's DNS Service are not ready.
var coreDNSDown = &Rule{
	ID:       "coredns-down",
	Relay:    true,
	Explains: []*Rule{nameLookupsFail, podCrashLooping, podNotReady},
	Needs:    []probes.Any{probes.Pods, probes.Services, probes.Workloads, probes.Logs},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		dns, err := findDNS(facts)
		workloads, err2 := probes.Workloads.Of(facts)
		if err != nil || err2 != nil || dns == nil || len(dns.pods) == 0 {
			return nil
		}
		owner := workloads.Of(dns.pods[0])
		s := Suspect{Subjects: []Ref{owner}, Data: dns, Vars: map[string]string{"why": "its pods are not ready"}}
		for _, e := range effects {
			if _, lookup := e.Data.(*lookupTrouble); lookup || e.Subject() == owner {
				s.Effects = append(s.Effects, e)
			}
		}
		if !slices.ContainsFunc(s.Effects, func(e *Finding) bool { return e.Rule == nameLookupsFail }) && !slices.ContainsFunc(s.Effects, func(e *Finding) bool { return e.Subject() == owner }) {
			return nil
		}
		logs, err := probes.Logs.Of(facts)
		if err != nil {
			return []Suspect{s}
		}
		// What CoreDNS itself said last names the object to change: its
		// configuration is a ConfigMap.
		for _, p := range dns.pods {
			for _, entry := range failures(logs, p) {
				if entry.meaning != "dns-loop" && entry.meaning != "coredns-config-invalid" {
					continue
				}
				s.Found = append(s.Found, Evidence{Says: entry.quote(), Document: entry.document, At: entry.at})
				if name := corefileMap(p); name != "" {
					s.Subjects = []Ref{{Kind: "ConfigMap", Namespace: p.Namespace, Name: name}, owner}
				}
				s.Vars["why"] = map[string]string{
					"dns-loop":               "its Corefile forwards to a resolver that sends the queries back to CoreDNS (plugin/loop)",
					"coredns-config-invalid": "it can't read its Corefile",
				}[entry.meaning]
				return []Suspect{s}
			}
		}
		return []Suspect{s}
	},
	Tests: []Test{
		{
			Asks:  "Is no CoreDNS pod ready?",
			Needs: []probes.Any{probes.Pods},
			Run: func(_ *probes.Facts, s Suspect) Answer {
				dns := s.Data.(*clusterDNS)
				ready := 0
				var evidence []Evidence
				for _, p := range dns.pods {
					if probes.Ready(p) {
						ready++
						continue
					}
					for _, c := range probes.Statuses(p) {
						if !c.Ready {
							evidence = append(evidence, SawObject("pods", p.Namespace, p.Name, "CoreDNS pod %s is not ready: container %s %s", p.Name, c.Name, stateWords(c)))
						}
					}
				}
				count := SawObject("pods", dns.pods[0].Namespace, dns.pods[0].Name, "%d of %d CoreDNS pods are ready", ready, len(dns.pods))
				return Answered(ready == 0, append([]Evidence{count}, evidence...)...)
			},
		},
		{
			Asks:  "If its configuration is at fault, is it in the ConfigMap?",
			Needs: []probes.Any{probes.ConfigMaps},
			Run: func(facts *probes.Facts, s Suspect) Answer {
				if s.Subjects[0].Kind != "ConfigMap" {
					return Answered(true)
				}
				maps, err := probes.ConfigMaps.Of(facts)
				if err != nil {
					// What CoreDNS said is enough; the file would only show it.
					return Answered(true)
				}
				m := maps.Get(s.Subjects[0].Namespace, s.Subjects[0].Name)
				if m == nil {
					return Answered(true)
				}
				var evidence []Evidence
				for _, line := range strings.Split(m.Data["Corefile"], "\n") {
					if strings.Contains(line, "forward") || strings.Contains(line, "proxy ") {
						evidence = append(evidence, SawObject("configmaps", m.Namespace, m.Name, "its Corefile says %q", strings.TrimSpace(line)))
					}
				}
				if w := lastWriter(m); w != "" {
					evidence = append(evidence, SawObject("configmaps", m.Namespace, m.Name, "ConfigMap %s was last written %s", m.Name, w))
				}
				return Answered(true, evidence...)
			},
		},
	},
}

// lastWriter says who wrote an object last, by its managedFields.
func lastWriter(m *corev1.ConfigMap) string {
	var says string
	var last int64
	for _, e := range m.ManagedFields {
		if e.Time != nil && e.Time.Unix() >= last {
			last = e.Time.Unix()
			says = fmt.Sprintf("by %s at %s", e.Manager, e.Time.UTC().Format("2006-01-02T15:04:05Z"))
		}
	}
	return says
}

// corefileMap is the name of the ConfigMap that a CoreDNS pod reads its
// Corefile from.
func corefileMap(p *corev1.Pod) string {
	for _, v := range p.Spec.Volumes {
		if v.ConfigMap != nil && (len(v.ConfigMap.Items) == 0 || v.ConfigMap.Items[0].Key == "Corefile") {
			return v.ConfigMap.Name
		}
	}
	return ""
}

// stateWords says in what state a container is.
func stateWords(c corev1.ContainerStatus) string {
	switch {
	case c.State.Waiting != nil:
		return "is waiting (" + c.State.Waiting.Reason + ") after " + restarts(c)
	case c.State.Terminated != nil:
		return fmt.Sprintf("ended with exit code %d (%s) after %s", c.State.Terminated.ExitCode, c.State.Terminated.Reason, restarts(c))
	}
	return "runs, after " + restarts(c)
}

func restarts(c corev1.ContainerStatus) string {
	if c.RestartCount == 1 {
		return "1 restart"
	}
	return fmt.Sprintf("%d restarts", c.RestartCount)
}

// coreDNSScaledToZero: the cluster's DNS Service has no pod, because its
// workload is asked to have none.
var coreDNSScaledToZero = &Rule{
	ID:       "coredns-scaled-to-zero",
	Explains: []*Rule{nameLookupsFail},
	Needs:    []probes.Any{probes.Pods, probes.Services, probes.Deployments},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		dns, err := findDNS(facts)
		if err != nil || dns == nil {
			return nil
		}
		deployments, err := probes.Deployments.Of(facts)
		if err != nil {
			return nil
		}
		for d := range deployments.In(dns.service.Namespace) {
			if len(dns.service.Spec.Selector) == 0 || !covers(d.Spec.Template.Labels, dns.service.Spec.Selector) {
				continue
			}
			return []Suspect{{
				Subjects: []Ref{{Kind: "Deployment", Namespace: d.Namespace, Name: d.Name}}, Effects: effects, Data: d.Spec.Replicas,
				Vars: map[string]string{"service": dns.service.Name},
			}}
		}
		return nil
	},
	Tests: []Test{{
		Asks:  "Is it asked to have no pod?",
		Needs: []probes.Any{probes.Deployments},
		Run: func(_ *probes.Facts, s Suspect) Answer {
			replicas := s.Data.(*int32)
			n := int32(1)
			if replicas != nil {
				n = *replicas
			}
			return Answered(n == 0, SawObject("deployments.apps", s.Subjects[0].Namespace, s.Subjects[0].Name, "Deployment %s, behind Service %s, has spec.replicas: %d", s.Subjects[0].Name, s.Vars["service"], n))
		},
	}},
}

// covers reports whether labels hold all of a selector.
func covers(labels, selector map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return true
}

// kubeProxyDown: Service addresses don't work on one node, because its
// kube-proxy is not ready.
var kubeProxyDown = &Rule{
	ID:       "kube-proxy-down-on-node",
	Explains: []*Rule{nameLookupsFail, targetUnreachable, podCrashLooping, podNotReady},
	Needs:    []probes.Any{probes.Pods, probes.Nodes, probes.Logs, probes.Services, probes.Workloads},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		pods, err := probes.Pods.Of(facts)
		if err != nil {
			return nil
		}
		logs, _ := probes.Logs.Of(facts)
		services, _ := probes.Services.Of(facts)
		hurt := map[string][]*Finding{}
		for _, e := range effects {
			list := troubled(e)
			if t, ok := e.Data.(*lookupTrouble); ok {
				list = slices.Concat(t.pods, t.unread)
			}
			_, lookup := e.Data.(*lookupTrouble)
			if u, ok := e.Data.(*unreached); ok {
				list, lookup = u.pods, u.target.Kind == probes.TargetService && len(u.lines) > 0
			}
			for _, p := range list {
				if p.Spec.NodeName != "" && !slices.Contains(hurt[p.Spec.NodeName], e) && (lookup || isKubeProxy(p) || missesServices(logs, services, p)) {
					hurt[p.Spec.NodeName] = append(hurt[p.Spec.NodeName], e)
				}
			}
		}
		var found []Suspect
		nodes, _ := probes.Nodes.Of(facts)
		for _, node := range sortedKeys(hurt) {
			for _, p := range pods.On(node) {
				if nodes != nil && lostNode(nodes, p) {
					continue // all pods of such a node lose their readiness, kube-proxy too
				}
				if isKubeProxy(p) && p.DeletionTimestamp == nil {
					found = append(found, Suspect{
						Subjects: []Ref{{Kind: "Node", Name: node}, workloadOf(facts, p), podRef(p)}, Effects: hurt[node], Through: []Ref{podRef(p)}, Data: p,
						Vars: map[string]string{"node": node, "pod": p.Name, "namespace": p.Namespace},
					})
				}
			}
		}
		if down := slices.DeleteFunc(slices.Clone(found), func(s Suspect) bool { return probes.Ready(s.Data.(*corev1.Pod)) }); len(down) > 1 {
			return proxiesMisconfigured(logs, down)
		}
		return found
	},
	Tests: []Test{{
		Asks:  "Is the node itself well?",
		Needs: []probes.Any{probes.Nodes},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			nodes, err := probes.Nodes.Of(facts)
			if err != nil {
				return CantTell(err)
			}
			n := nodes.Get("", s.Data.(*corev1.Pod).Spec.NodeName)
			if n == nil {
				return Answered(true)
			}
			for _, c := range n.Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
					// All pods of such a node lose their readiness, kube-proxy too.
					return Answered(false, SawObject("nodes", "", n.Name, "node %s is not Ready: %s (%s)", n.Name, c.Reason, c.Message))
				}
			}
			return Answered(true)
		},
	}, {
		Asks:  "Is kube-proxy not ready on {node}?",
		Needs: []probes.Any{probes.Pods, probes.Logs},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			p := s.Data.(*corev1.Pod)
			says := SawObject("pods", p.Namespace, p.Name, "kube-proxy pod %s on node %s is ready", p.Name, p.Spec.NodeName)
			if probes.Ready(p) {
				return Answered(false, says)
			}
			says.Says = fmt.Sprintf("kube-proxy pod %s on node %s is not ready", p.Name, p.Spec.NodeName)
			evidence := []Evidence{says}
			for _, c := range probes.Statuses(p) {
				evidence = append(evidence, SawObject("pods", p.Namespace, p.Name, "container %s %s", c.Name, stateWords(c)))
			}
			if logs, err := probes.Logs.Of(facts); err == nil {
				evidence = append(evidence, lastWords(logs, p, 3)...)
			}
			return Answered(true, evidence...)
		},
	}},
}

// missesServices reports whether a pod's containers could not reach the
// address of a Service.
func missesServices(logs *probes.LogSet, services *probes.List[corev1.Service], p *corev1.Pod) bool {
	if logs == nil || services == nil {
		return false
	}
	return slices.ContainsFunc(failures(logs, p), func(l logged) bool {
		return l.Host != "" && slices.ContainsFunc(services.All(), func(s *corev1.Service) bool { return s.Spec.ClusterIP == l.Host })
	})
}

// isKubeProxy recognises kube-proxy by the label that kubeadm and EKS give it.
func isKubeProxy(p *corev1.Pod) bool {
	return p.Labels["k8s-app"] == "kube-proxy" || strings.HasPrefix(p.Name, "kube-proxy-")
}
