package diagnose

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/network"
)

// lookupPods are the pods of failed lookups, those with unreadable logs too.
func lookupPods(e *Finding) []*corev1.Pod {
	t, ok := e.Data.(*lookupTrouble)
	if !ok {
		return nil
	}
	return slices.Concat(t.pods, t.unread)
}

// dnsFiltered makes a rule of one layer of filters that stops lookups.
func dnsFiltered(id string, layer network.Layer, which, asks string, denies func(network.Hop) bool) *Rule {
	return &Rule{
		ID:       id,
		Explains: []*Rule{nameLookupsFail},
		Needs:    dnsFacts,
		Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
			dns, err := findDNS(facts)
			world, err2 := probes.Network.Of(facts)
			if err != nil || err2 != nil || dns == nil || len(dns.pods) == 0 {
				return nil
			}
			// One suspect for each thing that decides, with what it hurts.
			type decided struct {
				effects []*Finding
				data    layerData
			}
			byName := map[Ref]*decided{}
			var none decided
			for _, e := range effects {
				for _, p := range lookupPods(e) {
					hops, lacking, open := layerHops(world, dns, p, layer)
					if len(hops) == 0 {
						none.effects = appendOnce(none.effects, e)
						none.data.lacking = append(none.data.lacking, lacking...)
						none.data.open = append(none.data.open, open...)
						continue
					}
					for _, h := range hops {
						ref := refOf(h)
						if byName[ref] == nil {
							byName[ref] = &decided{}
						}
						d := byName[ref]
						d.effects = appendOnce(d.effects, e)
						d.data.hops = append(d.data.hops, h)
						d.data.pods = append(d.data.pods, p)
					}
				}
			}
			var found []Suspect
			for _, name := range sortedRefs(byName) {
				d := byName[name]
				found = append(found, Suspect{Subjects: []Ref{name}, Effects: d.effects, Data: d.data, Vars: map[string]string{
					"pods": podNames(d.data.pods), "says": d.data.hops[0].Says, "which": short(name),
				}})
			}
			if len(found) == 0 && len(none.effects) > 0 {
				found = append(found, Suspect{Subjects: []Ref{{Kind: "Service", Namespace: dns.service.Namespace, Name: dns.service.Name}}, Effects: none.effects, Data: none.data, Vars: map[string]string{"pods": "these pods", "says": "It may stop DNS", "which": which}})
			}
			return found
		},
		Tests: []Test{
			{Asks: "Did the lookups get no answer at all?", Run: func(_ *probes.Facts, s Suspect) Answer { return unanswered(s.Effects) }},
			{Asks: asks, Needs: dnsFacts, Run: func(facts *probes.Facts, s Suspect) Answer {
				d := s.Data.(layerData)
				sure := slices.DeleteFunc(slices.Clone(d.hops), func(h network.Hop) bool { return !denies(h) })
				switch {
				case len(sure) > 0:
					evidence := fromHops(sure, 2)
					return Answered(true, append(evidence, unfilteredNeighbour(facts, layer, d.pods)...)...)
				case len(d.hops) > 0 || len(d.lacking) > 0:
					return CantTell(errors.Join(d.lacking...), fromHops(d.hops, 1)...)
				}
				return Answered(false, fromHops(d.open, 1)...)
			}},
		},
	}
}

type layerData struct {
	hops    []network.Hop // that stop lookups, or may
	open    []network.Hop // that let them pass
	lacking []error
	pods    []*corev1.Pod
}

// layerHops are the hops of one layer that stop a pod's lookups.
func layerHops(world *network.World, dns *clusterDNS, p *corev1.Pod, layer network.Layer) (stop []network.Hop, lacking []error, open []network.Hop) {
	for _, to := range dns.pods {
		for _, proto := range []network.Protocol{network.UDP, network.TCP} {
			a := world.Path(network.Pod(p.Namespace, p.Name), network.Pod(to.Namespace, to.Name), proto, dnsPort(dns.service, to, proto)).On(layer)
			for _, h := range a.Hops {
				switch {
				case h.Truth == network.No, h.Code == network.PolicyDenies:
					stop = append(stop, h)
				case h.Truth == network.Unknown:
					lacking = append(lacking, h.Err)
				default:
					open = append(open, h)
				}
			}
		}
	}
	return stop, lacking, open
}

// unfilteredNeighbour is a pod on the same node that no NetworkPolicy isolates:
// what it can do tells a policy from a fault of the node.
func unfilteredNeighbour(facts *probes.Facts, layer network.Layer, pods []*corev1.Pod) []Evidence {
	world, err := probes.Network.Of(facts)
	all, err2 := probes.Pods.Of(facts)
	if layer != network.NetworkPolicies || err != nil || err2 != nil {
		return nil
	}
	for _, p := range pods {
		for _, n := range all.On(p.Spec.NodeName) {
			if n.Namespace != p.Namespace && !n.Spec.HostNetwork && probes.Ready(n) && len(world.Isolating(network.Egress, n)) == 0 {
				return []Evidence{SawObject("pods", n.Namespace, n.Name, "pod %s/%s on the same node %s is selected by no policy for egress, and is ready", n.Namespace, n.Name, n.Spec.NodeName)}
			}
		}
	}
	return nil
}

func refOf(h network.Hop) Ref {
	name := first(h.Names)
	if ns, n, ok := strings.Cut(name, "/"); ok {
		return Ref{Kind: h.Kind, Namespace: ns, Name: n}
	}
	return Ref{Kind: h.Kind, Name: name}
}

func appendOnce(list []*Finding, f *Finding) []*Finding {
	if slices.Contains(list, f) {
		return list
	}
	return append(list, f)
}

func podNames(pods []*corev1.Pod) string {
	var names []string
	for _, p := range pods {
		if name := p.Namespace + "/" + p.Name; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) > maxExamples {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxExamples], ", "), len(names)-maxExamples)
	}
	return strings.Join(names, ", ")
}

// dnsBlockedByPolicy: a NetworkPolicy isolates the pods and lets no lookup
// through. Where nothing says whether policies are enforced, lookups without
// an answer from just the pods that a policy isolates say so.
var dnsBlockedByPolicy = dnsFiltered("dns-blocked-by-network-policy", network.NetworkPolicies, "a NetworkPolicy",
	"Does a NetworkPolicy stop their traffic to CoreDNS on port 53?",
	func(h network.Hop) bool { return h.Code == network.PolicyDenies })

// dnsBlockedByACL: a network ACL of a subnet drops lookups or their answers.
var dnsBlockedByACL = dnsFiltered("dns-blocked-by-network-acl", network.NetworkACLs, "a network ACL",
	"Does a network ACL drop their traffic to CoreDNS on port 53, or the answers?",
	func(h network.Hop) bool { return h.Truth == network.No })

// dnsAddressWrong: the kubelet gives pods a nameserver that no Service has.
var dnsAddressWrong = &Rule{
	ID:       "cluster-dns-address-wrong",
	Explains: []*Rule{nameLookupsFail},
	Needs:    append([]probes.Any{probes.NodePools}, dnsFacts...),
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		dns, err := findDNS(facts)
		nodes, err2 := probes.Nodes.Of(facts)
		if err != nil || err2 != nil || dns == nil {
			return nil
		}
		classes, _ := probes.EC2NodeClasses.Of(facts)
		pools, _ := probes.NodePools.Of(facts)
		bySetting := map[Ref]*dnsSetting{}
		for _, e := range effects {
			for _, p := range lookupPods(e) {
				ref, setting := nameserversOf(p, nodes.Get("", p.Spec.NodeName), classes, pools)
				if setting == nil {
					// The kubelet's own default: the address that EKS and
					// kubeadm put there is that of the Service.
					ref, setting = podRef(p), &dnsSetting{field: "the kubelet"}
				}
				if bySetting[ref] == nil {
					bySetting[ref] = setting
				}
				bySetting[ref].effects = appendOnce(bySetting[ref].effects, e)
			}
		}
		var found []Suspect
		for _, ref := range sortedRefs(bySetting) {
			s := bySetting[ref]
			found = append(found, Suspect{Subjects: []Ref{ref}, Effects: s.effects, Data: s, Vars: map[string]string{
				"field": s.field, "address": strings.Join(s.servers, ", "), "right": dns.service.Spec.ClusterIP, "service": dns.service.Namespace + "/" + dns.service.Name,
			}})
		}
		return found
	},
	Tests: []Test{{Asks: "Did the lookups get no answer at all?", Run: func(_ *probes.Facts, s Suspect) Answer { return unanswered(s.Effects) }}, {
		Asks:  "Does {field} give pods a nameserver that is the address of no DNS Service?",
		Needs: []probes.Any{probes.Services, probes.Pods},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			set := s.Data.(*dnsSetting)
			if len(set.servers) == 0 {
				return Answered(false, Evidence{Says: "neither the pod nor the settings of its node name a nameserver, so it is given " + s.Vars["right"] + ", the address of Service " + s.Vars["service"]})
			}
			services, err := probes.Services.Of(facts)
			if err != nil {
				return CantTell(err)
			}
			pods, err := probes.Pods.Of(facts)
			if err != nil {
				return CantTell(err)
			}
			says := SawObject(set.resource, s.Subjects[0].Namespace, s.Subjects[0].Name, "%s %s sets %s to %s", s.Subjects[0].Kind, s.Subjects[0].Name, set.field, strings.Join(set.servers, ", "))
			for _, ip := range set.servers {
				if a, err := netip.ParseAddr(ip); err == nil && !a.IsPrivate() && s.Subjects[0].Kind == "Pod" {
					return Answered(false, says, Evidence{Says: ip + " is a public address, where a nameserver may well answer: that it does not know the cluster's names is another fault"})
				}
				owned := slices.ContainsFunc(services.All(), func(svc *corev1.Service) bool {
					return slices.Contains(svc.Spec.ClusterIPs, ip) || svc.Spec.ClusterIP == ip
				})
				if owned || linkLocal(ip) || pods.At(ip) != nil {
					return Answered(false, says, Evidence{Says: ip + " is the address of a Service, of a pod or of a cache on the node"})
				}
			}
			return Answered(true, says, Evidence{
				Says:     fmt.Sprintf("no Service has that address; Service %s, the cluster's DNS, has %s", s.Vars["service"], s.Vars["right"]),
				Document: probes.Document{Path: "services"},
			})
		},
	}},
}

// A dnsSetting is a nameserver that somebody set by hand.
type dnsSetting struct {
	resource, field string
	servers         []string
	effects         []*Finding
}

// nameserversOf finds the setting that decides a pod's nameservers, if there
// is one: its own dnsConfig, or the kubelet settings of its EC2NodeClass
// (v1) or NodePool (v1beta1).
func nameserversOf(p *corev1.Pod, node *corev1.Node, classes *probes.List[probes.EC2NodeClass], pools *probes.List[probes.NodePool]) (Ref, *dnsSetting) {
	if p.Spec.DNSConfig != nil && len(p.Spec.DNSConfig.Nameservers) > 0 {
		return podRef(p), &dnsSetting{resource: "pods", field: "spec.dnsConfig.nameservers", servers: p.Spec.DNSConfig.Nameservers}
	}
	if node == nil {
		return Ref{}, nil
	}
	if classes != nil {
		if c := classes.Get("", node.Labels["karpenter.k8s.aws/ec2nodeclass"]); c != nil && c.Spec.Kubelet != nil && len(c.Spec.Kubelet.ClusterDNS) > 0 {
			return Ref{Kind: "EC2NodeClass", Name: c.Name}, &dnsSetting{resource: "ec2nodeclasses.karpenter.k8s.aws", field: "spec.kubelet.clusterDNS", servers: c.Spec.Kubelet.ClusterDNS}
		}
	}
	if pools != nil {
		if np := pools.Get("", node.Labels["karpenter.sh/nodepool"]); np != nil && np.Spec.Template.Spec.Kubelet != nil && len(np.Spec.Template.Spec.Kubelet.ClusterDNS) > 0 {
			return Ref{Kind: "NodePool", Name: np.Name}, &dnsSetting{resource: "nodepools.karpenter.sh", field: "spec.template.spec.kubelet.clusterDNS", servers: np.Spec.Template.Spec.Kubelet.ClusterDNS}
		}
	}
	return Ref{}, nil
}

// linkLocal addresses are those of a DNS cache on the node itself.
// Source: kubernetes cluster/addons/dns/nodelocaldns (169.254.20.10).
func linkLocal(ip string) bool {
	return strings.HasPrefix(ip, "169.254.") || strings.HasPrefix(ip, "fe80:")
}

// nameDoesNotExist: a workload asks for a name that DNS answers not to exist.
var nameDoesNotExist = &Rule{
	ID:       "dns-name-does-not-exist",
	Explains: []*Rule{nameLookupsFail},
	Needs:    append([]probes.Any{probes.StatefulSets}, serviceFacts...),
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		services, err := probes.Services.Of(facts)
		if err != nil {
			return nil
		}
		configMaps, _ := probes.ConfigMaps.Of(facts)
		var found []Suspect
		for _, e := range effects {
			t := e.Data.(*lookupTrouble)
			s := Suspect{Subjects: []Ref{e.Subject()}, Effects: []*Finding{e}, Data: t, Vars: map[string]string{"names": strings.Join(t.noName, ", "), "hint": ""}}
			for _, host := range t.noName {
				if near := nearestService(services, e.Subject().Namespace, host); near != "" {
					s.Vars["hint"] = fmt.Sprintf(" The Service that is there is %s.", near)
				}
				for _, p := range t.pods {
					for _, m := range mentionsOf(p, e.Subject(), configMaps) {
						if strings.TrimSuffix(m.host, ".") == strings.TrimSuffix(host, ".") && m.holder != e.Subject() && s.Subjects[0] == e.Subject() {
							s.Subjects = []Ref{m.holder, e.Subject()}
							s.Found = append(s.Found, m.seen)
						}
					}
				}
			}
			found = append(found, s)
		}
		return found
	},
	Tests: []Test{
		{
			Asks: "Did DNS answer that the name does not exist?",
			Run: func(_ *probes.Facts, s Suspect) Answer {
				t := s.Data.(*lookupTrouble)
				switch {
				case len(t.noName) > 0 && !t.noAnswer:
					return Answered(true, t.lines...)
				case len(t.pods) == 0 && len(t.unread) > 0:
					return CantTell(t.err)
				}
				return Answered(false, t.lines...)
			},
		},
		{
			Asks:  "Is there no Service of the name {names}, and nothing that it would be for?",
			Needs: append([]probes.Any{probes.StatefulSets}, serviceFacts...),
			Run: func(facts *probes.Facts, s Suspect) Answer {
				services, err := probes.Services.Of(facts)
				if err != nil {
					return CantTell(err)
				}
				t := s.Data.(*lookupTrouble)
				var evidence []Evidence
				for _, host := range t.noName {
					if svc := serviceOf(services, s.Effects[0].Subject().Namespace, host); svc != nil {
						return Answered(false, SawObject("services", svc.Namespace, svc.Name, "Service %s/%s exists", svc.Namespace, svc.Name))
					}
					if err := facts.Err(probes.StatefulSets); err != nil && podHost.MatchString(host) {
						return CantTell(err) // the name may be right, of a StatefulSet's pod
					}
					if owner, ok := lacksService(facts, s.Effects[0].Subject().Namespace, host); ok {
						return Answered(false, Evidence{Says: fmt.Sprintf("the name is right: %s is there, and its Service is not", short(owner))})
					}
					says := fmt.Sprintf("no Service answers to %s", host)
					if near := nearestService(services, s.Effects[0].Subject().Namespace, host); near != "" {
						says += "; the nearest name is " + near
					}
					evidence = append(evidence, Saw("services", nil, "%s", says))
					evidence = append(evidence, whereNamed(t.pods, host)...)
				}
				return Answered(true, evidence...)
			},
		},
	},
}

// lacksService is the workload that a host name is right for, but for its
// missing Service.
func lacksService(facts *probes.Facts, namespace, host string) (Ref, bool) {
	dir, err := callDirectory(facts)
	if err != nil {
		return Ref{}, false
	}
	if t := dir.Lookup(namespace, host, ""); t.Kind == probes.TargetService && t.Missing {
		if owner, p := namesake(facts, dir, t.Ref); p != nil {
			return owner, true
		}
	}
	if sets, err := probes.StatefulSets.Of(facts); err == nil {
		for _, set := range sets.All() {
			if label := serviceLabel(host, set.Name); label != "" && dir.Services.Get(set.Namespace, set.Spec.ServiceName) == nil {
				return Ref{Kind: "StatefulSet", Namespace: set.Namespace, Name: set.Name}, true
			}
		}
	}
	return Ref{}, false
}

// serviceOf is the Service that a host name means when looked up from a
// namespace, or nil.
func serviceOf(services *probes.List[corev1.Service], from, host string) *corev1.Service {
	labels := strings.Split(strings.TrimSuffix(host, "."), ".")
	candidates := [][2]string{{from, labels[0]}}
	if len(labels) > 1 {
		candidates = append(candidates, [2]string{labels[1], labels[0]}, [2]string{from, labels[1]})
	}
	if len(labels) > 2 {
		candidates = append(candidates, [2]string{labels[2], labels[1]})
	}
	if len(labels) > 1 {
		candidates = candidates[1:]
	}
	for _, c := range candidates {
		if svc := services.Get(c[0], c[1]); svc != nil {
			return svc
		}
	}
	return nil
}

// nearestService is the Service whose name is most like the first label of a
// host, as namespace/name; empty where none is alike.
func nearestService(services *probes.List[corev1.Service], from, host string) string {
	label, _, _ := strings.Cut(host, ".")
	for _, local := range []bool{true, false} {
		byName := map[string]*corev1.Service{}
		for _, svc := range services.All() {
			if (svc.Namespace == from) == local {
				byName[svc.Name] = svc
			}
		}
		if name := nearest(label, sortedKeys(byName)); name != "" {
			return byName[name].Namespace + "/" + name
		}
	}
	return ""
}

// whereNamed finds the environment variable or argument that holds a host.
func whereNamed(pods []*corev1.Pod, host string) []Evidence {
	for _, p := range pods {
		for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
			for _, e := range c.Env {
				if strings.Contains(e.Value, host) {
					return []Evidence{SawObject("pods", p.Namespace, p.Name, "container %s has the name from its env %s=%s", c.Name, e.Name, e.Value)}
				}
			}
			for _, a := range slices.Concat(c.Command, c.Args) {
				if strings.Contains(a, host) {
					return []Evidence{SawObject("pods", p.Namespace, p.Name, "container %s has the name from its argument %q", c.Name, a)}
				}
			}
		}
	}
	return nil
}

var dnsRules = []*Rule{
	nameLookupsFail, dnsCutOff, dnsBlockedByPolicy, dnsBlockedByACL, dnsAddressWrong,
	coreDNSDown, coreDNSScaledToZero, kubeProxyDown, nameDoesNotExist, dnsPolicyOutside, corefileHidesName, severalTaggedGroups,
}
