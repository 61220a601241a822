package diagnose

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/pposiraegi/ppodoctor/probes"
)

func protocolOf(p corev1.Protocol) corev1.Protocol {
	if p == "" {
		return corev1.ProtocolTCP
	}
	return p
}

// podPorts are the ports that a pod's containers declare, sidecars too.
func podPorts(p *corev1.Pod) []corev1.ContainerPort {
	var list []corev1.ContainerPort
	for _, c := range p.Spec.InitContainers {
		if sidecar(p, c.Name) {
			list = append(list, c.Ports...)
		}
	}
	for _, c := range p.Spec.Containers {
		list = append(list, c.Ports...)
	}
	return list
}

func declaredPorts(p *corev1.Pod) []string {
	var list []string
	for _, cp := range podPorts(p) {
		text := fmt.Sprintf("%d/%s", cp.ContainerPort, protocolOf(cp.Protocol))
		if cp.Name != "" {
			text = cp.Name + " " + text
		}
		list = append(list, text)
	}
	return list
}

// targetNumber is the port of the pod that a Service's port leads to, 0 if the
// pod has no port of that name.
func targetNumber(p *corev1.Pod, sp *corev1.ServicePort) int32 {
	if sp.TargetPort.Type == intstr.String && sp.TargetPort.StrVal != "" {
		for _, cp := range podPorts(p) {
			if cp.Name == sp.TargetPort.StrVal && protocolOf(cp.Protocol) == protocolOf(sp.Protocol) {
				return cp.ContainerPort
			}
		}
		return 0
	}
	if sp.TargetPort.IntVal != 0 {
		return sp.TargetPort.IntVal
	}
	return sp.Port
}

// declares reports whether a pod declares the port that a Service's port leads
// to, with its protocol.
func declares(p *corev1.Pod, sp *corev1.ServicePort) bool {
	n := targetNumber(p, sp)
	return n != 0 && slices.ContainsFunc(podPorts(p), func(cp corev1.ContainerPort) bool {
		return cp.ContainerPort == n && protocolOf(cp.Protocol) == protocolOf(sp.Protocol)
	})
}

// otherProtocol is the protocol under which pods declare the port of a
// Service, where they declare it only so.
func otherProtocol(pods []*corev1.Pod, sp *corev1.ServicePort) corev1.Protocol {
	var other corev1.Protocol
	for _, p := range pods {
		for _, cp := range podPorts(p) {
			named := sp.TargetPort.StrVal != "" && cp.Name == sp.TargetPort.StrVal
			numbered := sp.TargetPort.StrVal == "" && cp.ContainerPort == targetNumber(p, sp)
			switch {
			case !named && !numbered:
			case protocolOf(cp.Protocol) == protocolOf(sp.Protocol):
				return ""
			default:
				other = protocolOf(cp.Protocol)
			}
		}
	}
	return other
}

// A portState is whether a Service's port leads nowhere, with what says so.
type portState struct {
	dead  bool
	says  Evidence   // the Service and what its pods declare
	more  []Evidence // logs, probes
	right string     // the port that they serve; empty if several may be meant
	err   error      // what would tell, where it can't be told
}

// deadPort decides whether a Service's port leads to a port that none of its
// pods serves. A port by name is looked up by Kubernetes itself. A number that
// no container declares may still be served: then the program must say that it
// listens elsewhere, or clients must have been refused, or else the pods be
// proved ready by a probe of another port and the number occur nowhere in them.
func deadPort(facts *probes.Facts, dir *probes.Directory, s *corev1.Service, sp *corev1.ServicePort, refused bool) portState {
	pods := dir.Behind(s)
	if len(pods) == 0 {
		return portState{}
	}
	listed := listed(declaredPorts(pods[0]))
	state := portState{says: SawObject("services", s.Namespace, s.Name, "Service %s sends port %d/%s to targetPort %s, and its pods (%s) declare %s", s.Name, sp.Port, protocolOf(sp.Protocol), sp.TargetPort.String(), pods[0].Name, listed)}
	if sp.TargetPort.IntVal == 0 && sp.TargetPort.StrVal == "" {
		state.says.Says = fmt.Sprintf("Service %s sends port %d/%s to the same port of its pods, and those (%s) declare %s", s.Name, sp.Port, protocolOf(sp.Protocol), pods[0].Name, listed)
	}
	if right := rightPort(s, sp, pods[0]); right != nil {
		state.right = fmt.Sprint(right.ContainerPort)
	}
	if slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return declares(p, sp) }) {
		return state
	}
	if sp.TargetPort.StrVal != "" || otherProtocol(pods, sp) != "" {
		state.dead = true
		return state
	}
	if protocolOf(sp.Protocol) != corev1.ProtocolTCP {
		return state // what clients of UDP see says little
	}
	number := fmt.Sprint(targetNumber(pods[0], sp))
	elsewhere := ""
	for _, p := range pods[:min(len(pods), maxExamples)] {
		for _, l := range listening(facts, p) {
			if l.port == number {
				state.more = append(state.more, l.says)
				return state
			}
			elsewhere = l.port
			state.more = append(state.more, l.says)
		}
	}
	if state.right == "" {
		state.right = elsewhere
	}
	declared := len(podPorts(pods[0])) > 0
	if mentionsNumber(pods[0], number) || !slices.ContainsFunc(pods, probes.Ready) {
		state.dead = refused && declared && elsewhere != ""
		return state
	}
	probed := ""
	for _, c := range pods[0].Spec.Containers {
		if c.ReadinessProbe != nil || c.LivenessProbe != nil {
			for _, n := range probedPorts(&c) {
				if n == number {
					return state
				}
				probed = n
			}
		}
	}
	switch {
	case refused && (declared || elsewhere != ""):
		state.dead = true
	case declared && probed != "" && probes.Ready(pods[0]):
		state.dead = true
		state.more = append(state.more, SawObject("pods", pods[0].Namespace, pods[0].Name, "pod %s is ready by a probe of its port %s; %s occurs nowhere in it", pods[0].Name, probed, number))
	case declared && elsewhere != "":
		state.dead = true
	}
	return state
}

// rightPort is the port that a Service's port was evidently meant to lead to:
// the one of the same name or number, else the only one.
func rightPort(s *corev1.Service, sp *corev1.ServicePort, p *corev1.Pod) *corev1.ContainerPort {
	ports := podPorts(p)
	for i, cp := range ports {
		if cp.Name != "" && (cp.Name == sp.Name || cp.Name == sp.TargetPort.StrVal) {
			return &ports[i]
		}
	}
	for i, cp := range ports {
		if cp.ContainerPort == sp.Port && protocolOf(cp.Protocol) == protocolOf(sp.Protocol) {
			return &ports[i]
		}
	}
	if len(ports) == 1 {
		return &ports[0]
	}
	// Of several the one that no other port of the Service leads to.
	var free []int
	for i, cp := range ports {
		if !slices.ContainsFunc(s.Spec.Ports, func(o corev1.ServicePort) bool { return targetNumber(p, &o) == cp.ContainerPort }) {
			free = append(free, i)
		}
	}
	if len(free) == 1 {
		return &ports[free[0]]
	}
	return nil
}

type listener struct {
	port string
	says Evidence
}

// listening are the ports that a pod's programs say they listen on.
func listening(facts *probes.Facts, p *corev1.Pod) []listener {
	var list []listener
	for _, probe := range []*probes.Probe[*probes.LogSet]{probes.Logs, probes.AppLogs} {
		if logs, err := probe.Of(facts); err == nil {
			list = append(list, listeningBy(logs, p)...)
		}
	}
	return list
}

func listeningBy(logs *probes.LogSet, p *corev1.Pod) []listener {
	var list []listener
	for _, l := range logs.Of(p.Namespace, p.Name) {
		if l.Excerpt == nil {
			continue
		}
		for _, m := range l.Excerpt.Milestones {
			if m.Meaning == "listening" && m.Captures["port"] != "" {
				list = append(list, listener{m.Captures["port"], Evidence{Says: fmt.Sprintf("log of %s/%s: %q", p.Name, l.Container, m.Text), Document: l.Document()}})
			}
		}
	}
	return list
}

var digits = regexp.MustCompile(`\d+`)

// mentionsNumber reports whether a port's number occurs in the commands,
// arguments or environment of a pod.
func mentionsNumber(p *corev1.Pod, number string) bool {
	in := func(text string) bool { return slices.Contains(digits.FindAllString(text, -1), number) }
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		if slices.ContainsFunc(slices.Concat(c.Command, c.Args), in) || slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return in(e.Value) }) {
			return true
		}
	}
	return false
}

// probedPorts are the numbers of the ports that a container's probes ask.
func probedPorts(c *corev1.Container) []string {
	var list []string
	for _, p := range []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe, c.StartupProbe} {
		switch {
		case p == nil:
		case p.HTTPGet != nil:
			list = append(list, portText(c, p.HTTPGet.Port))
		case p.TCPSocket != nil:
			list = append(list, portText(c, p.TCPSocket.Port))
		case p.GRPC != nil:
			list = append(list, fmt.Sprint(p.GRPC.Port))
		}
	}
	return list
}

func portText(c *corev1.Container, port intstr.IntOrString) string {
	if port.Type == intstr.String {
		for _, cp := range c.Ports {
			if cp.Name == port.StrVal {
				return fmt.Sprint(cp.ContainerPort)
			}
		}
	}
	return port.String()
}

// targetPortWrong: a Service sends its port to one that the pods don't serve.
var targetPortWrong = ofServices("service-target-port-wrong", nil, "does Service {service} send a port to one that its pods don't serve?",
	func(facts *probes.Facts, dir *probes.Directory, g *perService, s *Suspect) Answer {
		for _, sp := range g.ports {
			d := deadPort(facts, dir, g.service, sp, g.refused)
			if d.err != nil {
				return CantTell(d.err, d.says)
			}
			if !d.dead || otherProtocol(dir.Behind(g.service), sp) != "" {
				continue
			}
			if near := meantFor(facts, dir, g.service); near != nil && declares(near.pods[0], sp) {
				return Answered(false, d.says, SawObject("pods", near.pods[0].Namespace, near.pods[0].Name, "the pods that it is for, those of %s, serve it: its selector is wrong", short(near.workload)))
			}
			s.Vars["port"], s.Vars["targetPort"] = fmt.Sprint(sp.Port), sp.TargetPort.String()
			if sp.TargetPort.StrVal == "" {
				s.Vars["targetPort"] = fmt.Sprint(targetNumber(dir.Behind(g.service)[0], sp))
			}
			s.Vars["served"], s.Vars["right"] = listed(declaredPorts(dir.Behind(g.service)[0])), d.right
			s.Vars["portName"] = sp.Name
			s.Vars["index"] = fmt.Sprint(slices.IndexFunc(g.service.Spec.Ports, func(o corev1.ServicePort) bool { return o.Port == sp.Port && o.Protocol == sp.Protocol }))
			if d.right == "" {
				s.Vars["right"] = "the port that the program serves"
			}
			return Answered(true, append([]Evidence{d.says}, d.more...)...)
		}
		return Answered(false, SawObject("services", g.service.Namespace, g.service.Name, "the targetPorts of Service %s lead to ports that its pods serve, as far as they say, or it has no pods", g.service.Name))
	})

// protocolWrong: a Service and its pods name different protocols for a port.
var protocolWrong = ofServices("service-protocol-wrong", nil, "does Service {service} forward another protocol than its pods serve on that port?",
	func(_ *probes.Facts, dir *probes.Directory, g *perService, s *Suspect) Answer {
		pods := dir.Behind(g.service)
		for _, sp := range g.ports {
			if other := otherProtocol(pods, sp); other != "" {
				s.Vars["port"], s.Vars["protocol"], s.Vars["right"] = fmt.Sprint(sp.Port), string(protocolOf(sp.Protocol)), string(other)
				s.Vars["index"] = fmt.Sprint(slices.IndexFunc(g.service.Spec.Ports, func(o corev1.ServicePort) bool { return o.Port == sp.Port && o.Protocol == sp.Protocol }))
				return Answered(true, SawObject("services", g.service.Namespace, g.service.Name, "Service %s has port %d with protocol %s (targetPort %s), and its pods declare %s", g.service.Name, sp.Port, protocolOf(sp.Protocol), sp.TargetPort.String(), listed(declaredPorts(pods[0]))))
			}
		}
		return Answered(false, SawObject("services", g.service.Namespace, g.service.Name, "the protocols of Service %s are those that its pods declare, if they declare any", g.service.Name))
	})

// portOfService says whose a wrong port is: the Service's, where all that call
// it agree on another that its pods serve; else the client's.
func portOfService(facts *probes.Facts, dir *probes.Directory, s *corev1.Service, called string) (serviceIsWrong bool, wrong, right []mention) {
	workloads, err := probes.Workloads.Of(facts)
	if err != nil {
		return false, nil, nil
	}
	configMaps, _ := probes.ConfigMaps.Of(facts)
	clients := map[Ref]bool{}
	for _, owner := range workloads.All() {
		pods := workloads.Pods(owner)
		for _, m := range mentionsOf(pods[0], owner, configMaps) {
			t := dir.Lookup(owner.Namespace, m.host, m.port)
			if t.Kind != probes.TargetService || t.Missing || t.Ref.Name != s.Name || t.Ref.Namespace != s.Namespace || slices.Contains(t.Pods, pods[0]) {
				continue
			}
			switch {
			case m.port == called:
				wrong = append(wrong, m)
				clients[m.holder] = true // those that share a ConfigMap are one
			case slices.ContainsFunc(s.Spec.Ports, func(sp corev1.ServicePort) bool { return fmt.Sprint(sp.Port) == m.port }):
				right = append(right, m)
			}
		}
	}
	if len(right) > 0 {
		return false, wrong, right
	}
	if in, err := probes.Ingresses.Of(facts); err == nil {
		for _, i := range in.All() {
			for _, b := range ingressBackends(i) {
				if i.Namespace == s.Namespace && b.service == s.Name && slices.ContainsFunc(s.Spec.Ports, func(sp corev1.ServicePort) bool { return fmt.Sprint(sp.Port) == b.port || sp.Name == b.port }) {
					return false, wrong, right
				}
			}
		}
	}
	if len(clients) == 1 && len(wrong) > 0 {
		if service, known := changedLast(facts, s, wrong[0].holder); known {
			return service, wrong, right
		}
	}
	pods := dir.Behind(s)
	serves := len(pods) > 0 && slices.ContainsFunc(podPorts(pods[0]), func(cp corev1.ContainerPort) bool { return fmt.Sprint(cp.ContainerPort) == called })
	// With one client it is a guess, unless the Service renumbers for no
	// reason: its pods serve the number that is called.
	return len(clients) > 1 || serves && len(s.Spec.Ports) == 1 && !wellKnown(s), wrong, right
}

// wellKnown reports whether a Service has a port that is meant to differ from
// that of its pods: 80 and 443 in front of any other.
func wellKnown(s *corev1.Service) bool {
	return slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == 80 || p.Port == 443 })
}

func servicePortList(s *corev1.Service) string {
	var list []string
	for _, p := range s.Spec.Ports {
		text := fmt.Sprint(p.Port)
		if p.Name != "" {
			text = p.Name + " " + text
		}
		list = append(list, text)
	}
	return strings.Join(list, ", ")
}

// servicePortWrong: all clients of a Service call a port that it lost.
var servicePortWrong = ofServices("service-port-wrong", templates, "do the clients of Service {service} agree on a port that it does not have?",
	func(facts *probes.Facts, dir *probes.Directory, g *perService, s *Suspect) Answer {
		for _, u := range g.calls {
			if !wrongPort(dir, u) {
				continue
			}
			yes, wrong, _ := portOfService(facts, dir, g.service, u.port)
			if !yes {
				break
			}
			s.Vars["port"], s.Vars["has"] = u.port, servicePortList(g.service)
			evidence := []Evidence{SawObject("services", g.service.Namespace, g.service.Name, "Service %s has the ports %s, not %s", g.service.Name, s.Vars["has"], u.port)}
			for _, m := range wrong[:min(len(wrong), maxExamples)] {
				evidence = append(evidence, m.seen)
			}
			if pods := dir.Behind(g.service); len(pods) > 0 {
				evidence = append(evidence, SawObject("pods", pods[0].Namespace, pods[0].Name, "its pods declare %s", listed(declaredPorts(pods[0]))))
			}
			return Answered(true, evidence...)
		}
		return Answered(false, SawObject("services", g.service.Namespace, g.service.Name, "Service %s has the ports %s, and the clients that call another are alone with it", g.service.Name, servicePortList(g.service)))
	})
