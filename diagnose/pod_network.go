package diagnose

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// noPodCIDR recognises a network agent that waits for its node's range of pod
// addresses. Sources: flannel pkg/subnet/kube, kindnetd, kube-router, cilium.
var noPodCIDR = regexp.MustCompile(`(?i)pod ?cidr (?:is )?not (?:assigned|set|available)|no pod ?cidr|(?:node|required) .*pod ?cidr.* (?:not|empty|missing)|waiting for (?:node )?pod ?cidr`)

// podCIDRMissing: a node has no range of pod addresses, which its network
// agent waits for; the controller manager gives them out.
var podCIDRMissing = &Rule{
	ID: "node-without-pod-cidr", Explains: []*Rule{podCrashLooping, podNotReady, networkNotReady, sandboxNotCreated}, Needs: []probes.Any{probes.Nodes, probes.Pods, probes.Logs},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		nodes, err := probes.Nodes.Of(facts)
		pods, podsErr := probes.Pods.Of(facts)
		logs, _ := probes.Logs.Of(facts)
		if err != nil || podsErr != nil || logs == nil {
			return nil
		}
		bare := nodes.Where(func(n *corev1.Node) bool { return n.Spec.PodCIDR == "" })
		s := Suspect{Vars: map[string]string{"of": fmt.Sprint(nodes.Len())}}
		var agents []*corev1.Pod
		for _, n := range bare {
			for _, p := range pods.On(n.Name) {
				if o := probes.Controller(p); o == nil || !isNetworkAgent(o.Name) {
					continue
				}
				for _, w := range lastWords(logs, p, 5) {
					if noPodCIDR.MatchString(w.Says) {
						agents, s.Found = append(agents, p), append(s.Found, w)
						s.Subjects = appendNew(s.Subjects, Ref{Kind: "Node", Name: n.Name})
						break
					}
				}
			}
		}
		if len(agents) == 0 {
			return nil
		}
		for _, e := range effects {
			list := troubled(e)
			if len(list) > 0 && !slices.ContainsFunc(list, func(p *corev1.Pod) bool { return !slices.Contains(agents, p) }) || sharesNode(agents, e) {
				s.Effects = append(s.Effects, e)
			}
		}
		s.Vars["nodes"], s.Vars["node"] = names(s.Subjects), s.Subjects[0].Name
		s.Found = append(s.Found[:min(len(s.Found), maxExamples)], SawObject("nodes", "", s.Subjects[0].Name, "node %s has no spec.podCIDR", s.Subjects[0].Name))
		s.Vars["why"] = "other nodes have one: give this node one, or let it join anew"
		if len(bare) == nodes.Len() && nodes.Len() > 1 {
			subject, _, _ := componentPod(facts, "kube-controller-manager")
			s.Subjects = append([]Ref{subject}, s.Subjects...)
			s.Vars["why"] = "no node has one: kube-controller-manager runs without --allocate-node-cidrs=true and --cluster-cidr"
		}
		return []Suspect{s}
	},
	Tests: []Test{{
		Asks: "does the network agent of {nodes} wait for a spec.podCIDR that the node has not?",
		Run:  func(_ *probes.Facts, s Suspect) Answer { return Answered(len(s.Effects) > 0, s.Found...) },
	}},
}

// rangeFull recognises that a node's or a pool's addresses for pods are used
// up. Sources: containernetworking/plugins host-local, projectcalico/calico
// cni-plugin/pkg/ipamplugin, cilium pkg/ipam.
var rangeFull = []*regexp.Regexp{
	regexp.MustCompile(`(?P<why>no IP addresses available in range set: (?P<range>[0-9a-fA-F.:-]+))`),
	regexp.MustCompile(`(?P<why>Assigned 0 out of 1 requested IPv[46] addresses[^"]*)`),
	regexp.MustCompile(`(?P<why>(?:unable to allocate IP|Unable to allocate) [^"]*(?:range is full|pool is full|No more IPs available)[^"]*)`),
}

// addressRangeUsedUp: no address for a pod is left on its node.
var addressRangeUsedUp = &Rule{
	ID: "pod-addresses-used-up", Explains: []*Rule{sandboxNotCreated}, Needs: []probes.Any{probes.Pods},
	Suspects: func(_ *probes.Facts, effects []*Finding) []Suspect {
		var found []Suspect
		for _, e := range effects {
			list, _ := e.Data.([]container)
			if len(list) == 0 {
				continue
			}
			node := list[0].pod.Spec.NodeName
			found = append(found, Suspect{Subjects: []Ref{{Kind: "Node", Name: node}}, Effects: []*Finding{e}, Data: list, Vars: map[string]string{"node": node, "range": "its range", "cidr": "", "pods": ""}})
		}
		return found
	},
	Tests: []Test{
		heard("are the addresses for pods of node {node} used up?", []string{"FailedCreatePodSandBox"}, rangeFull...),
		{
			Asks: "how many pods has node {node}, and which range?", Needs: []probes.Any{probes.Nodes, probes.Pods},
			Run: func(facts *probes.Facts, s Suspect) Answer {
				nodes, err := probes.Nodes.Of(facts)
				pods, podsErr := probes.Pods.Of(facts)
				n := (*corev1.Node)(nil)
				if err == nil {
					n = nodes.Get("", s.Vars["node"])
				}
				if n == nil || podsErr != nil {
					return Answered(true) // the plug-in's word is enough
				}
				held := 0
				for _, p := range pods.On(n.Name) {
					if !p.Spec.HostNetwork && !probes.Finished(p) {
						held++
					}
				}
				cidr := orDefault(n.Spec.PodCIDR, "(none)")
				says := SawObject("nodes", "", n.Name, "node %s has podCIDR %s, may hold %s pods, and has %d with addresses of their own; addresses of pods that are gone, which the plug-in never gave back, count too", n.Name, cidr, n.Status.Allocatable.Pods(), held)
				return Answered(true, says).With("cidr", cidr).With("pods", fmt.Sprint(held))
			},
		},
	},
}

// noHandler recognises that a node's runtime lacks a RuntimeClass's handler.
// Sources: containerd internal/cri/server/sandbox_run.go, cri-o server/sandbox_run_linux.go.
var noHandler = []*regexp.Regexp{
	regexp.MustCompile(`no runtime for "(?P<handler>[^"]+)" is configured`),
	regexp.MustCompile(`failed to find runtime handler (?P<handler>\S+) from runtime list`),
	regexp.MustCompile(`RuntimeHandler "(?P<handler>[^"]+)" not supported`),
}

// runtimeHandlerMissing: the pods ask for a kind of runtime that is not
// installed on their node.
var runtimeHandlerMissing = &Rule{
	ID: "runtime-handler-missing", Explains: []*Rule{sandboxNotCreated}, Needs: []probes.Any{probes.Pods},
	Suspects: func(_ *probes.Facts, effects []*Finding) []Suspect {
		var found []Suspect
		for _, e := range effects {
			list, _ := e.Data.([]container)
			if len(list) == 0 || list[0].pod.Spec.RuntimeClassName == nil {
				continue
			}
			p := list[0].pod
			found = append(found, Suspect{Subjects: []Ref{{Kind: "RuntimeClass", Name: *p.Spec.RuntimeClassName}, e.Subject()}, Effects: []*Finding{e}, Data: list, Vars: map[string]string{"class": *p.Spec.RuntimeClassName, "node": p.Spec.NodeName, "handler": "", "where": "", "workload": short(e.Subject())}})
		}
		return found
	},
	Tests: []Test{
		heard("does the runtime of node {node} not know the handler of RuntimeClass {class}?", []string{"FailedCreatePodSandBox"}, noHandler...),
		{
			Asks: "where do pods of RuntimeClass {class} run?", Needs: []probes.Any{probes.Pods},
			Run: func(facts *probes.Facts, s Suspect) Answer {
				pods, err := probes.Pods.Of(facts)
				if err != nil {
					return Answered(true)
				}
				for _, p := range pods.All() {
					if p.Spec.RuntimeClassName != nil && *p.Spec.RuntimeClassName == s.Vars["class"] && probes.Ready(p) && p.Spec.NodeName != s.Vars["node"] {
						return Answered(true, SawObject("pods", p.Namespace, p.Name, "pod %s of the same RuntimeClass runs on node %s", p.Name, p.Spec.NodeName)).
							With("where", " On node "+p.Spec.NodeName+" it is installed: let the RuntimeClass's scheduling.nodeSelector keep pods to such nodes.")
					}
				}
				return Answered(true, Saw("pods", nil, "no pod of RuntimeClass %s runs anywhere", s.Vars["class"]))
			},
		},
	},
}

var runtimeClassNamed = regexp.MustCompile(`RuntimeClass "([^"]+)" not found`)

// runtimeClassMissing: the pods name a RuntimeClass that does not exist.
var runtimeClassMissing = admissionRule("runtime-class-missing", "do the pods of {workload} name a RuntimeClass that does not exist?", "runtime-class",
	[]probes.Any{probes.RuntimeClasses}, func(facts *probes.Facts, c shortage, s *Suspect) Answer {
		s.Vars["class"], s.Vars["have"] = "", ""
		if c.template.Spec.RuntimeClassName == nil {
			return Answered(false, Evidence{Says: c.workload.Name + " names no RuntimeClass"})
		}
		class := *c.template.Spec.RuntimeClassName
		s.Vars["class"] = class
		list, err := probes.RuntimeClasses.Of(facts)
		if err != nil {
			if m := runtimeClassNamed.FindStringSubmatch(c.says); m != nil && m[1] == class {
				return Answered(true, c.seen) // the API server's word is enough
			}
			return CantTell(err, c.seen)
		}
		var have []string
		for _, r := range list.All() {
			have = append(have, r.Name)
		}
		slices.Sort(have)
		if slices.Contains(have, class) {
			return Answered(false, Saw("runtimeclasses.node.k8s.io", nil, "RuntimeClass %s exists", class))
		}
		s.Vars["have"] = " There is none at all."
		if len(have) > 0 {
			s.Vars["have"] = " There are: " + strings.Join(have, ", ") + "."
		}
		if near := nearest(class, have); near != "" {
			s.Vars["near"] = " The nearest is " + near + "."
		}
		return Answered(true, c.seen, Saw("runtimeclasses.node.k8s.io", nil, "there is no RuntimeClass %s", class))
	})

var podNetworkRules = []*Rule{podCIDRMissing, addressRangeUsedUp, runtimeHandlerMissing, runtimeClassMissing}
