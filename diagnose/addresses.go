package diagnose

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// A mention is a host and port that a workload's configuration names: where a
// client gets the address from that it calls.
type mention struct {
	host, port string
	holder     Ref    // the object that holds the value: the workload or a ConfigMap
	where      string // "env CART_ADDR of container web", "key addr of ConfigMap web"
	value      string // the text that names it, without credentials
	file       bool   // a mounted file says it: whether the program uses it isn't known
	seen       Evidence
}

var (
	// hostPorts finds HOST:PORT in a text, also within URLs, lists and DSNs.
	hostPorts = regexp.MustCompile(`(?i)(?:^|[\s,;=("'/@])((?:\d{1,3}\.){3}\d{1,3}|[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*\.?):(\d{2,5})(?:$|[^\w.:-])`)
	// hostURLs finds the host of URLs without a port.
	hostURLs = regexp.MustCompile(`(?i)\b(https?|postgres(?:ql)?|mysql|mariadb|rediss?|amqps?|mongodb|nats)://(?:[^\s/@]*@)?([a-z0-9][a-z0-9.-]*[a-z0-9])(?:$|[/?#\s"',])`)
	hostName = regexp.MustCompile(`^(?:(?:\d{1,3}\.){3}\d{1,3}|[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*\.?)$`)
	hostEnv  = regexp.MustCompile(`(?i)^(.*?)_?(HOST|HOSTNAME|SERVER|ADDR|ADDRESS|SERVICE|ENDPOINT)$`)
	secretIn = regexp.MustCompile(`://[^\s/@]*@`)
	urlPath  = regexp.MustCompile(`(://[^\s/?#"']+)[/?#][^\s"']*`)
)

// mentionsOf are the addresses that a pod's containers are configured with, in
// the order of its spec. ConfigMaps may be nil: then their values are unknown.
func mentionsOf(p *corev1.Pod, owner Ref, maps *probes.List[corev1.ConfigMap]) []mention {
	var list []mention
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		list = append(list, containerMentions(p, &c, owner, maps)...)
	}
	if maps == nil {
		return list
	}
	for _, v := range p.Spec.Volumes {
		if v.ConfigMap == nil {
			continue
		}
		m := maps.Get(p.Namespace, v.ConfigMap.Name)
		if m == nil {
			continue
		}
		holder := Ref{Kind: "ConfigMap", Namespace: m.Namespace, Name: m.Name}
		begin := len(list)
		for _, key := range sortedKeys(m.Data) {
			where := fmt.Sprintf("key %s of ConfigMap %s", key, m.Name)
			for _, one := range pairMentions(m.Data[key], mention{holder: holder, where: where}) {
				one.seen = SawObject("configmaps", m.Namespace, m.Name, "%s says %s", where, one.value)
				list = append(list, one)
			}
			for _, line := range strings.Split(m.Data[key], "\n") {
				if len(line) > 2000 || strings.HasPrefix(strings.TrimSpace(line), "#") {
					continue
				}
				list = append(list, textMentions(strings.TrimSpace(line), holder, where, SawObject("configmaps", m.Namespace, m.Name, "%s says %q", where, clean(line)))...)
			}
		}
		for i := begin; i < len(list); i++ {
			list[i].file = true
		}
	}
	return list
}

// clean is a value as it is shown: of URLs without credentials and path, where
// tokens may be.
func clean(s string) string {
	s = urlPath.ReplaceAllString(s, "$1/…")
	s = secretIn.ReplaceAllString(strings.TrimSpace(s), "://…@")
	s = secretPair.ReplaceAllString(s, "$1…")
	if len(s) > 200 {
		s = s[:200] + "…"
	}
	return s
}

func containerMentions(p *corev1.Pod, c *corev1.Container, owner Ref, maps *probes.List[corev1.ConfigMap]) []mention {
	type variable struct {
		value, where string
		holder       Ref
		seen         Evidence
	}
	vars := map[string]variable{}
	var names []string
	set := func(name string, v variable) {
		if _, ok := vars[name]; !ok {
			names = append(names, name)
		}
		vars[name] = v
	}
	fromMap := func(name, key, value string, m *corev1.ConfigMap) {
		where := fmt.Sprintf("env %s of container %s, from key %s of ConfigMap %s", name, c.Name, key, m.Name)
		set(name, variable{value, where, Ref{Kind: "ConfigMap", Namespace: m.Namespace, Name: m.Name}, SawObject("configmaps", m.Namespace, m.Name, "ConfigMap %s has %s=%s, which container %s of %s gets as env %s", m.Name, key, clean(value), c.Name, short(owner), name)})
	}
	for _, from := range c.EnvFrom {
		if from.ConfigMapRef == nil || maps == nil {
			continue
		}
		if m := maps.Get(p.Namespace, from.ConfigMapRef.Name); m != nil {
			for _, key := range sortedKeys(m.Data) {
				fromMap(from.Prefix+key, key, m.Data[key], m)
			}
		}
	}
	for _, e := range c.Env {
		switch {
		case e.ValueFrom != nil && e.ValueFrom.ConfigMapKeyRef != nil && maps != nil:
			ref := e.ValueFrom.ConfigMapKeyRef
			if m := maps.Get(p.Namespace, ref.Name); m != nil {
				fromMap(e.Name, ref.Key, m.Data[ref.Key], m)
			}
		case e.Value != "":
			set(e.Name, variable{e.Value, fmt.Sprintf("env %s of container %s", e.Name, c.Name), owner, SawObject("pods", p.Namespace, p.Name, "container %s of %s has env %s=%s", c.Name, short(owner), e.Name, clean(e.Value))})
		}
	}
	var list []mention
	for _, name := range names {
		v := vars[name]
		value := v.value
		for other, o := range vars { // $(OTHER) within a value
			value = strings.ReplaceAll(value, "$("+other+")", o.value)
		}
		found := append(textMentions(value, v.holder, v.where, v.seen), pairMentions(value, mention{holder: v.holder, where: v.where, seen: v.seen})...)
		if m := hostEnv.FindStringSubmatch(name); len(found) == 0 && m != nil && hostName.MatchString(value) {
			one := mention{host: value, holder: v.holder, where: v.where, value: clean(value), seen: v.seen}
			for _, sibling := range []string{m[1] + "_PORT", strings.TrimSuffix(name, "HOST") + "PORT", m[1] + "PORT"} {
				if o, ok := vars[sibling]; ok && o.value != "" && sibling != name {
					one.port, one.where = o.value, v.where+" and env "+sibling
					one.holder = o.holder
					one.seen.Says += fmt.Sprintf(", and %s=%s", sibling, o.value)
					break
				}
			}
			found = append(found, one)
		}
		list = append(list, found...)
	}
	for _, a := range slices.Concat(c.Command, c.Args) {
		if len(a) > 4000 {
			continue
		}
		for _, line := range strings.Split(a, "\n") {
			where := "the arguments of container " + c.Name
			seen := SawObject("pods", p.Namespace, p.Name, "container %s of %s has the argument %q", c.Name, short(owner), clean(line))
			list = append(list, textMentions(line, owner, where, seen)...)
			list = append(list, pairMentions(line, mention{holder: owner, where: where, seen: seen})...)
		}
	}
	return list
}

// aTime is what the date and the hour of a time look like before its minutes:
// Go's TLS says "current time 2026-05-01T00:00:00Z is after …".
var aTime = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}t\d{2}$`)

// textMentions are the addresses in a text. What only looks like one (a time,
// an image's tag) doesn't matter: it is looked up before it is believed.
func textMentions(text string, holder Ref, where string, seen Evidence) []mention {
	var list []mention
	for rest := text; ; {
		m := hostPorts.FindStringSubmatchIndex(rest)
		if m == nil {
			break
		}
		if host := strings.ToLower(rest[m[2]:m[3]]); !aTime.MatchString(host) {
			list = append(list, mention{host: host, port: rest[m[4]:m[5]], holder: holder, where: where, value: clean(text), seen: seen})
		}
		rest = rest[m[5]:]
	}
	for _, m := range hostURLs.FindAllStringSubmatch(text, -1) {
		list = append(list, mention{host: strings.ToLower(m[2]), port: defaultPorts[strings.ToLower(m[1])], holder: holder, where: where, value: clean(text), seen: seen})
	}
	return list
}

// callDirectoryFacts are what callDirectory reads.
var callDirectoryFacts = []probes.Any{probes.Services, probes.EndpointSlices, probes.Pods, probes.Nodes, probes.Namespaces}

// callDirectory is what the addresses of calls are looked up in: those of nodes
// too, and where EndpointSlices can't be had with what the selectors say.
func callDirectory(facts *probes.Facts) (*probes.Directory, error) {
	services, err := probes.Services.Of(facts)
	if err != nil {
		return nil, err
	}
	pods, err := probes.Pods.Of(facts)
	if err != nil {
		return nil, err
	}
	d := &probes.Directory{Services: services, Pods: pods, Slices: probes.NewList[discoveryv1.EndpointSlice](nil)}
	if list, err := probes.EndpointSlices.Of(facts); err == nil {
		d.Slices = list
	}
	if list, err := probes.Nodes.Of(facts); err == nil {
		d.Nodes = list
	}
	if list, err := probes.Namespaces.Of(facts); err == nil {
		d.Namespaces = list
	}
	return d, nil
}
