package diagnose

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// together is how near in time nodes must have gone silent to have done so for
// one reason: the node controller looks every five seconds, and grants forty.
// Source: kubernetes pkg/controller/nodelifecycle (node-monitor-grace-period).
const together = 2 * time.Minute

// hurtByNode are the states that a node which is lost or can't run containers
// brings about.
var hurtByNode = []*Rule{
	nodeNotReady, podNotReady, podNotStarting, podUntouched, stuckTerminating, podOnLostNode, nodesNotReady, volumeInUse, volumeNotDetached, finalizerHolds,
}

// unreadyNodes are the nodes that the effects say are not ready.
func unreadyNodes(effects []*Finding) []string {
	var list []string
	for _, e := range effects {
		if e.Rule == nodeNotReady {
			list = append(list, e.Subject().Name)
		}
	}
	return list
}

// hurtOn reports whether what an effect is about is on the nodes.
func hurtOn(nodes []*corev1.Node, unready []string, e *Finding) bool {
	bad := func(name string) bool {
		return slices.ContainsFunc(nodes, func(n *corev1.Node) bool { return n.Name == name })
	}
	switch data := e.Data.(type) {
	case *corev1.Node:
		return bad(data.Name)
	case *corev1.Pod:
		return bad(data.Spec.NodeName)
	case podTrouble:
		// A DaemonSet suffers on each node that is not ready, whatever the fault;
		// of others most must be on such nodes.
		here, well := 0, 0
		for _, p := range data.pods {
			switch {
			case bad(p.Spec.NodeName):
				here++
			case !slices.Contains(unready, p.Spec.NodeName):
				well++
			}
		}
		return here > 0 && (e.Subject().Kind == "DaemonSet" || well <= len(data.pods)/2)
	}
	if bad(e.Vars["oldNode"]) || bad(e.Vars["userNode"]) {
		return true
	}
	return slices.ContainsFunc(e.Subjects, func(r Ref) bool { return r.Kind == "Node" && bad(r.Name) })
}

// nodeFault proposes the nodes of the symptoms that pick takes, with all that
// is hurt on them; nodes that became so together are one fault.
func nodeFault(pick func(*corev1.Node, *corev1.NodeCondition) bool) func(*probes.Facts, []*Finding) []Suspect {
	return func(_ *probes.Facts, effects []*Finding) []Suspect {
		unready := unreadyNodes(effects)
		var groups [][]*corev1.Node
		var since []time.Time
		for _, e := range effects {
			n, ok := e.Data.(*corev1.Node)
			if !ok || e.Rule != nodeNotReady {
				continue
			}
			c := nodeCondition(n, corev1.NodeReady)
			if !pick(n, c) {
				continue
			}
			at := c.LastTransitionTime.Time
			i := slices.IndexFunc(since, func(t time.Time) bool { return t.Sub(at).Abs() <= together })
			if i < 0 {
				groups, since = append(groups, nil), append(since, at)
				i = len(groups) - 1
			}
			groups[i] = append(groups[i], n)
		}
		var found []Suspect
		for i, nodes := range groups {
			s := Suspect{Data: nodes, Since: &since[i], Count: len(nodes), Vars: map[string]string{}}
			for _, n := range nodes {
				s.Subjects = append(s.Subjects, Ref{Kind: "Node", Name: n.Name})
			}
			s.Vars["nodes"], s.Vars["nodeArgs"], s.Vars["since"] = names(s.Subjects), args(s.Subjects), stamp(since[i])
			for _, e := range effects {
				if hurtOn(nodes, unready, e) {
					s.Effects = append(s.Effects, e)
				}
			}
			found = append(found, s)
		}
		return found
	}
}

// kubeletSilent: the control plane hears nothing from a node any more.
var kubeletSilent = &Rule{
	ID: "kubelet-silent", Explains: hurtByNode, LastResort: true, Needs: []probes.Any{probes.Nodes},
	Suspects: nodeFault(func(_ *corev1.Node, c *corev1.NodeCondition) bool { return c.Status == corev1.ConditionUnknown }),
	Tests: []Test{{
		Asks: "have the kubelets of {nodes} stopped posting their status, and does no lease say otherwise?", Needs: []probes.Any{probes.Leases, probes.Nodes},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			nodes := s.Data.([]*corev1.Node)
			var evidence []Evidence
			leases, err := probes.Leases.Of(facts)
			if silent := facts.Source().Now().Sub(*s.Since); err != nil && silent < together {
				return CantTell(err) // it may be back: later the condition alone says it
			}
			for _, n := range nodes {
				evidence = append(evidence, sawNodeCondition(n, nodeCondition(n, corev1.NodeReady)))
				if leases == nil {
					continue
				}
				l := leases.Get("kube-node-lease", n.Name)
				if l == nil || l.Spec.RenewTime == nil {
					continue
				}
				age := facts.Source().Now().Sub(l.Spec.RenewTime.Time)
				e := SawObject("leases.coordination.k8s.io", l.Namespace, l.Name, "the lease of node %s was last renewed at %s, %s ago; a kubelet renews it every 10 s", n.Name, stamp(l.Spec.RenewTime.Time), age.Round(time.Second))
				if age < time.Minute {
					return Answered(false, e)
				}
				evidence = append(evidence, e)
			}
			all, _ := probes.Nodes.Of(facts)
			return Answered(true, evidence...).With("hint", sharedLoss(nodes, all))
		},
	}},
}

// sharedLoss says what nodes that went silent together have in common.
func sharedLoss(lost []*corev1.Node, all *probes.List[corev1.Node]) string {
	if len(lost) == 1 || all == nil {
		return "On the machine: is it on, is the kubelet running (a full disk, an expired client certificate and a dead runtime end it), does it reach the API server?"
	}
	hint := fmt.Sprintf("%d nodes went silent within %s of each other: what they share is at fault, such as their network to the API server, a switch, a host or a power supply.", len(lost), together)
	zone := lost[0].Labels[corev1.LabelTopologyZone]
	same := func(n *corev1.Node) bool { return n.Labels[corev1.LabelTopologyZone] == zone }
	if zone == "" || slices.ContainsFunc(lost, func(n *corev1.Node) bool { return !same(n) }) {
		return hint
	}
	if n := len(all.Where(same)); n == len(lost) {
		return fmt.Sprintf("They are all %d nodes of zone %s, and went silent together: the zone is cut off from the control plane, or down.", n, zone)
	}
	return hint
}

// kubeletSays are the faults that a kubelet reports of its node, in the words
// of its Ready condition. Source: kubernetes pkg/kubelet/nodestatus/setters.go,
// pkg/kubelet/{runtime,kubelet}.go, pkg/kubelet/pleg/generic.go.
var kubeletSays = []struct {
	re        *regexp.Regexp
	what, fix string
}{
	{regexp.MustCompile(`container runtime is down`), "its container runtime is down", "systemctl status containerd; journalctl -u containerd; systemctl restart containerd"},
	{regexp.MustCompile(`PLEG is not healthy`), "its container runtime does not answer in time (PLEG is not healthy)", "crictl ps; journalctl -u containerd; systemctl restart containerd"},
	{regexp.MustCompile(`container runtime status check may not have completed`), "its container runtime does not answer", "systemctl status containerd; systemctl restart containerd"},
	{regexp.MustCompile(`node is shutting down`), "it is shutting down and does not end", "systemctl list-jobs; systemctl reboot"},
	{regexp.MustCompile(`missing node capacity|CSINode is not yet initialized`), "its kubelet has not finished to start", "journalctl -u kubelet"},
}

// kubeletReportsFault: the kubelet itself says what is wrong with its node.
var kubeletReportsFault = &Rule{
	ID: "kubelet-reports-fault", Explains: hurtByNode, LastResort: true, Needs: []probes.Any{probes.Nodes},
	Suspects: nodeFault(func(_ *corev1.Node, c *corev1.NodeCondition) bool {
		return c.Status == corev1.ConditionFalse && !noCNI.MatchString(c.Message)
	}),
	Tests: []Test{{
		Asks: "does the kubelet of {nodes} say itself why it is not ready?", Needs: []probes.Any{probes.Events},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			nodes := s.Data.([]*corev1.Node)
			message := nodeCondition(nodes[0], corev1.NodeReady).Message
			if message == "" {
				return Answered(false)
			}
			what, fix := "it says "+message, "journalctl -u kubelet"
			for _, k := range kubeletSays {
				if k.re.MatchString(message) {
					what, fix = k.what, k.fix
					break
				}
			}
			if r := nodes[0].Status.NodeInfo.ContainerRuntimeVersion; r != "" && !strings.HasPrefix(r, "containerd") {
				name, _, _ := strings.Cut(r, ":")
				fix = strings.ReplaceAll(fix, "containerd", strings.Replace(name, "cri-o", "crio", 1))
			}
			var evidence []Evidence
			for _, n := range nodes {
				evidence = append(evidence, sawNodeCondition(n, nodeCondition(n, corev1.NodeReady)))
			}
			if events, err := probes.Events.Of(facts); err == nil {
				for _, e := range slices.Backward(events.About(s.Subjects[0])) {
					if e.Type == corev1.EventTypeWarning && len(evidence) < len(nodes)+maxExamples {
						evidence = append(evidence, SawObject("events", e.Namespace, e.Name, "event %s about node %s: %s", e.Reason, nodes[0].Name, e.Message))
					}
				}
			}
			return Answered(true, evidence...).With("what", what).With("fix", fix)
		},
	}},
}

// pressures are what a node under pressure is short of.
var pressures = map[string][2]string{
	string(corev1.NodeDiskPressure):   {"disk space", "df -h; du -xsh /var/lib/* /var/log; crictl rmi --prune"},
	string(corev1.NodeMemoryPressure): {"memory", "free -m; ps aux --sort=-rss | head"},
	string(corev1.NodePIDPressure):    {"process IDs", "ps -eLf | awk '{print $2}' | sort | uniq -c | sort -rn | head"},
}

// nodeShort: a node is short of disk, memory or processes, and no single
// workload is known to have used them up.
var nodeShort = &Rule{
	ID: "node-short-of-resource", Explains: []*Rule{nodePressed, podEvicted, podNotReady}, LastResort: true, Needs: []probes.Any{probes.Nodes},
	Suspects: func(_ *probes.Facts, effects []*Finding) []Suspect {
		var found []Suspect
		for _, e := range effects {
			n, ok := e.Data.(*corev1.Node)
			if !ok || e.Rule != nodePressed {
				continue
			}
			p := pressures[e.Vars["pressure"]]
			s := Suspect{Subjects: []Ref{{Kind: "Node", Name: n.Name}}, Data: n, Since: e.Since, Found: e.Found, Vars: map[string]string{
				"node": n.Name, "what": p[0], "look": p[1], "pressure": e.Vars["pressure"],
				"capacity": fmt.Sprintf("ephemeral-storage %s, memory %s", n.Status.Capacity.StorageEphemeral(), n.Status.Capacity.Memory()),
			}}
			for _, o := range effects {
				if hurtOn([]*corev1.Node{n}, nil, o) {
					s.Effects = append(s.Effects, o)
				}
			}
			found = append(found, s)
		}
		return found
	},
	Tests: []Test{{
		Asks: "does the kubelet of {node} report {pressure}?", Needs: []probes.Any{probes.Events, probes.Pods, classes},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			// Who uses it up, or made it small, is asked of others first.
			_, podsErr := probes.Pods.Of(facts)
			_, classesErr := classes.Of(facts)
			if err := errors.Join(podsErr, classesErr); err != nil {
				return CantTell(err)
			}
			evidence := slices.Clone(s.Found)
			if events, err := probes.Events.Of(facts); err == nil {
				for _, e := range slices.Backward(events.About(s.Subjects[0])) {
					if e.Type == corev1.EventTypeWarning && len(evidence) <= maxExamples {
						evidence = append(evidence, SawObject("events", e.Namespace, e.Name, "event %s about node %s: %s", e.Reason, s.Vars["node"], e.Message))
					}
				}
			}
			return Answered(true, evidence...)
		},
	}},
}

var nodeFaultRules = []*Rule{kubeletSilent, kubeletReportsFault, nodeShort}
