package diagnose

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// existing are the Services that a workload looked up in vain although they
// are there, by the names that it used.
func existing(dir *probes.Directory, e *Finding) (hosts []string, services []*corev1.Service) {
	t, ok := e.Data.(*lookupTrouble)
	if !ok {
		return nil, nil
	}
	for _, host := range t.hosts {
		target := dir.Lookup(e.Subject().Namespace, host, "")
		if target.Kind != probes.TargetService || target.Missing {
			continue
		}
		if s := dir.Services.Get(target.Ref.Namespace, target.Ref.Name); !headless(s) || len(dir.Behind(s)) > 0 {
			hosts, services = append(hosts, host), append(services, s)
		}
	}
	return hosts, services
}

// dnsPolicyOutside: a workload asks nameservers that don't know the cluster's
// names, by its dnsPolicy or dnsConfig.
var dnsPolicyOutside = &Rule{
	ID: "dns-policy-outside-cluster", Explains: []*Rule{nameLookupsFail}, Needs: append([]probes.Any{probes.Services}, callDirectoryFacts...),
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		dir, err := callDirectory(facts)
		if err != nil {
			return nil
		}
		var found []Suspect
		for _, e := range effects {
			t, ok := e.Data.(*lookupTrouble)
			hosts, _ := existing(dir, e)
			if !ok || len(t.pods) == 0 || len(hosts) == 0 {
				continue
			}
			found = append(found, Suspect{Subjects: []Ref{e.Subject()}, Effects: []*Finding{e}, Data: t.pods[0], Vars: map[string]string{"host": hosts[0], "policy": "", "namespace": e.Subject().Namespace, "target": strings.ToLower(e.Subject().Kind) + "/" + e.Subject().Name}})
		}
		return found
	},
	Tests: []Test{{
		Asks: "Do the dnsPolicy or the dnsConfig of {subject} keep its lookups of {host}, which is a Service, away from the cluster's DNS?", Needs: append([]probes.Any{probes.Services}, callDirectoryFacts...),
		Run: func(facts *probes.Facts, s Suspect) Answer {
			dir, err := callDirectory(facts)
			if err != nil {
				return CantTell(err)
			}
			p := s.Data.(*corev1.Pod)
			says := asksOutside(dir, p, s.Vars["host"])
			if says == "" {
				return Answered(false, SawObject("pods", p.Namespace, p.Name, "pod %s has dnsPolicy %s, which asks the cluster's DNS", p.Name, policyOf(p))).With("subject", short(s.Subjects[0]))
			}
			return Answered(true, SawObject("pods", p.Namespace, p.Name, "pod %s %s", p.Name, says)).With("policy", says).With("subject", short(s.Subjects[0]))
		},
	}},
}

func policyOf(p *corev1.Pod) corev1.DNSPolicy {
	if p.Spec.DNSPolicy == "" {
		return corev1.DNSClusterFirst
	}
	return p.Spec.DNSPolicy
}

// asksOutside says why a pod does not ask the cluster's DNS for a host by its
// full name; empty if it does.
// Source: kubernetes pkg/kubelet/network/dns/dns.go (GetPodDNS).
func asksOutside(dir *probes.Directory, p *corev1.Pod, host string) string {
	policy := policyOf(p)
	switch {
	case policy == corev1.DNSDefault:
		return "has dnsPolicy Default, so that it asks the nameservers of its node"
	case policy == corev1.DNSClusterFirst && p.Spec.HostNetwork:
		return "has hostNetwork with dnsPolicy ClusterFirst, so that it asks the nameservers of its node; ClusterFirstWithHostNet is for that"
	case policy != corev1.DNSNone || p.Spec.DNSConfig == nil:
		return ""
	}
	own := func(ip string) bool {
		return linkLocal(ip) || dir.Pods.At(ip) != nil || slices.ContainsFunc(dir.Services.All(), func(s *corev1.Service) bool { return s.Spec.ClusterIP == ip })
	}
	c := p.Spec.DNSConfig
	if len(c.Nameservers) > 0 && !own(c.Nameservers[0]) {
		return fmt.Sprintf("has dnsPolicy None with dnsConfig.nameservers %s, which is not the cluster's DNS", strings.Join(c.Nameservers, ", "))
	}
	if !strings.Contains(host, ".svc") && !slices.ContainsFunc(c.Searches, func(s string) bool { return strings.Contains(s, "svc.") }) {
		return fmt.Sprintf("has dnsPolicy None, and none of dnsConfig.searches (%s) completes %s", listed(c.Searches), host)
	}
	return ""
}

// corefileHidesName: the Corefile answers for a Service's name otherwise than
// by the Service.
var corefileHidesName = &Rule{
	ID: "corefile-hides-name", Explains: []*Rule{nameLookupsFail}, Needs: append([]probes.Any{probes.ConfigMaps}, callDirectoryFacts...),
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		dir, err := callDirectory(facts)
		dns, err2 := findDNS(facts)
		if err != nil || err2 != nil || dns == nil || len(dns.pods) == 0 {
			return nil
		}
		s := Suspect{Vars: map[string]string{"host": "", "line": "", "names": ""}}
		var services []*corev1.Service
		for _, e := range effects {
			if hosts, list := existing(dir, e); len(hosts) > 0 {
				s.Effects = append(s.Effects, e)
				s.Vars["names"] = strings.TrimPrefix(s.Vars["names"]+", "+hosts[0], ", ")
				services = append(services, list...)
			}
		}
		name := corefileMap(dns.pods[0])
		if name == "" || len(s.Effects) == 0 {
			return nil
		}
		s.Subjects, s.Data = []Ref{{Kind: "ConfigMap", Namespace: dns.service.Namespace, Name: name}}, services
		return []Suspect{s}
	},
	Tests: []Test{{
		Asks: "Does the Corefile answer for {names}, of Services that are there, otherwise than by the Services?", Needs: []probes.Any{probes.ConfigMaps, probes.Workloads},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			maps, err := probes.ConfigMaps.Of(facts)
			if err != nil {
				return CantTell(err)
			}
			m := maps.Get(s.Subjects[0].Namespace, s.Subjects[0].Name)
			if m == nil {
				return Answered(false, Evidence{Says: "there is no " + short(s.Subjects[0])})
			}
			domain := cmp.Or(clusterDomain(facts, maps), "cluster.local")
			for _, key := range sortedKeys(m.Data) {
				if !strings.Contains(m.Data[key], ":53") {
					continue // no Corefile
				}
				for _, svc := range s.Data.([]*corev1.Service) {
					if line := hiding(m.Data[key], domain, svc); line != "" {
						return Answered(true, SawObject("configmaps", m.Namespace, m.Name, "key %s of ConfigMap %s says %q", key, m.Name, line),
							SawObject("services", svc.Namespace, svc.Name, "Service %s/%s is there", svc.Namespace, svc.Name)).With("line", line)
					}
				}
			}
			return Answered(false, SawObject("configmaps", m.Namespace, m.Name, "nothing in ConfigMap %s takes these names out", m.Name))
		},
	}},
}

var (
	// kubernetesZones are the lines of the plug-in, with its zones.
	kubernetesZones = regexp.MustCompile(`(?m)^[ \t]*kubernetes([ \t][^\n#]*)?$`)
	dnsDomain       = regexp.MustCompile(`(?m)^\s*(?:dnsDomain|clusterDomain):\s*(\S+)`)
	ownNamespaces   = regexp.MustCompile(`(?m)^\s*namespaces\s+(.+)$`)
	rcodes          = regexp.MustCompile(`(?i)rcode\s+(?:NXDOMAIN|SERVFAIL|REFUSED)`)
)

// hiding is the line of a Corefile that keeps a Service's name from being
// answered; empty if none does.
// Sources: coredns.io/plugins: template, rewrite, hosts, kubernetes.
func hiding(corefile, domain string, svc *corev1.Service) string {
	domain, line := servedDomain(corefile, domain)
	if domain == "" {
		return line
	}
	fqdn := fmt.Sprintf("%s.%s.svc.%s", svc.Name, svc.Namespace, domain)
	lines := strings.Split(corefile, "\n")
	for i, raw := range lines {
		line := strings.TrimSpace(raw)
		words := strings.Fields(strings.TrimSuffix(line, "{"))
		if strings.HasPrefix(line, "#") || len(words) == 0 {
			continue
		}
		block := strings.Join(lines[i:blockEnd(lines, i)], "\n")
		switch words[0] {
		case "template":
			if rcodes.MatchString(block) && (zonesHold(words[1:], fqdn) || len(words) <= 3) && templateMatches(block, fqdn) {
				return line
			}
		case "rewrite":
			if rewrites(words[1:], fqdn) {
				return line
			}
		case "hosts":
			for _, entry := range strings.Split(block, "\n")[1:] {
				if slices.Contains(strings.Fields(entry), fqdn) {
					return strings.TrimSpace(entry)
				}
			}
		case "namespaces":
			if m := ownNamespaces.FindStringSubmatch(raw); m != nil && !slices.Contains(strings.Fields(m[1]), svc.Namespace) {
				return line
			}
		default:
			// A server block of its own for the name.
			zone, _, _ := strings.Cut(words[0], ":")
			if strings.HasSuffix(line, "{") && raw == strings.TrimLeft(raw, " \t") && zone != "." && zone != domain && zonesHold([]string{zone}, fqdn) && !strings.Contains(block, "kubernetes ") {
				return line
			}
		}
	}
	return ""
}

// servedDomain is the cluster's domain, if the Corefile serves it, or if none
// is known the first that it serves. Else it is empty, and line says what the
// Corefile serves instead.
func servedDomain(corefile, domain string) (served, line string) {
	lines := kubernetesZones.FindAllStringSubmatch(corefile, -1)
	if len(lines) == 0 {
		if strings.Contains(corefile, "{") && !strings.Contains(corefile, "import ") {
			return "", "no kubernetes plug-in"
		}
		return cmp.Or(domain, "cluster.local"), ""
	}
	first := ""
	for _, m := range lines {
		zones := strings.Fields(strings.TrimSuffix(strings.TrimSpace(m[1]), "{"))
		for _, z := range zones {
			z = strings.TrimSuffix(z, ".")
			if z == domain {
				return domain, ""
			}
			first = cmp.Or(first, z)
		}
		if len(zones) == 0 {
			return cmp.Or(domain, "cluster.local"), "" // it serves its block's zones
		}
	}
	if domain == "" || strings.HasSuffix(domain, "."+first) {
		return cmp.Or(domain, first), ""
	}
	return "", strings.TrimSpace(lines[0][0])
}

// clusterDomain is the domain that pods look Services up in: what kubeadm was
// told, else what the settings of workloads write out, else the one that all
// installers give. Sources: kubeadm ClusterConfiguration networking.dnsDomain.
func clusterDomain(facts *probes.Facts, maps *probes.List[corev1.ConfigMap]) string {
	if m := maps.Get("kube-system", "kubeadm-config"); m != nil {
		if found := dnsDomain.FindStringSubmatch(m.Data["ClusterConfiguration"]); found != nil {
			return strings.Trim(found[1], `"'`)
		}
	}
	if m := maps.Get("kube-system", "kubelet-config"); m != nil {
		if found := dnsDomain.FindStringSubmatch(m.Data["kubelet"]); found != nil {
			return strings.Trim(found[1], `"'`)
		}
	}
	if workloads, err := probes.Workloads.Of(facts); err == nil {
		for _, owner := range workloads.All() {
			for _, m := range mentionsOf(workloads.Pods(owner)[0], owner, maps) {
				if _, domain, ok := strings.Cut(m.host, ".svc."); ok && !m.file {
					return strings.TrimSuffix(domain, ".")
				}
			}
		}
	}
	return ""
}

// blockEnd is the line after the block that line i opens.
func blockEnd(lines []string, i int) int {
	if !strings.Contains(lines[i], "{") {
		return i + 1
	}
	depth := 0
	for j := i; j < len(lines); j++ {
		depth += strings.Count(lines[j], "{") - strings.Count(lines[j], "}")
		if depth <= 0 {
			return j + 1
		}
	}
	return len(lines)
}

// zonesHold reports whether a name lies in one of the zones; words that are no
// zones (a class, a type) don't matter.
func zonesHold(zones []string, fqdn string) bool {
	return slices.ContainsFunc(zones, func(z string) bool {
		z = strings.ToLower(strings.TrimSuffix(z, "."))
		return strings.Contains(z, ".") && (fqdn == z || strings.HasSuffix(fqdn, "."+z)) || z == "" && len(zones) > 2
	})
}

// templateMatches reports whether a template's match lines, if it has any,
// fit the name.
func templateMatches(block, fqdn string) bool {
	any := false
	for _, line := range strings.Split(block, "\n") {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "match" {
			continue
		}
		any = true
		for _, expr := range words[1:] {
			if re, err := regexp.Compile(strings.Trim(expr, `"`)); err == nil && re.MatchString(fqdn+".") {
				return true
			}
		}
	}
	// Without a match line a template is for all of its zones.
	return !any && strings.Contains(strings.SplitN(block, "\n", 2)[0], "svc")
}

// rewrites reports whether a rewrite's words change the name.
func rewrites(words []string, fqdn string) bool {
	if len(words) > 0 && (words[0] == "stop" || words[0] == "continue") {
		words = words[1:]
	}
	if len(words) < 3 || words[0] != "name" {
		return false
	}
	kind, from, to := "exact", words[1], words[2]
	if len(words) > 3 && slices.Contains([]string{"exact", "prefix", "suffix", "substring", "regex"}, words[1]) {
		kind, from, to = words[1], words[2], words[3]
	}
	from, to = strings.Trim(from, `"`), strings.TrimSuffix(to, ".")
	if to == fqdn {
		return false
	}
	switch kind {
	case "prefix":
		return strings.HasPrefix(fqdn, from)
	case "suffix":
		return strings.HasSuffix(fqdn+".", strings.TrimSuffix(from, ".")+".")
	case "substring":
		return strings.Contains(fqdn, from)
	case "regex":
		re, err := regexp.Compile(from)
		return err == nil && re.MatchString(fqdn+".")
	}
	return strings.TrimSuffix(from, ".") == fqdn
}
