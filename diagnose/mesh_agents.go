package diagnose

import (
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// daemonDown is the DaemonSet whose name or image has a part, if it has no
// ready pod on a node; nil where it has, and where there is no such DaemonSet.
func daemonDown(facts *probes.Facts, node string, part *regexp.Regexp) *appsv1.DaemonSet {
	sets, err := probes.DaemonSets.Of(facts)
	pods, err2 := probes.Pods.Of(facts)
	if err != nil || err2 != nil {
		return nil
	}
	for _, d := range sets.All() {
		if !part.MatchString(d.Name) && !slices.ContainsFunc(d.Spec.Template.Spec.Containers, func(c corev1.Container) bool { return part.MatchString(c.Image) }) {
			continue
		}
		if slices.ContainsFunc(pods.On(node), func(p *corev1.Pod) bool {
			o := probes.Controller(p)
			return o != nil && o.Kind == "DaemonSet" && o.Name == d.Name && p.Namespace == d.Namespace && probes.Ready(p)
		}) {
			return nil
		}
		return d
	}
	return nil
}

var ztunnel = regexp.MustCompile(`(?:^|/)ztunnel(?:$|[:@-])`)

// ambientProxyDown: all traffic of a node's pods in the ambient mesh goes
// through the ztunnel of the node, which does not run.
var ambientProxyDown = &Rule{
	ID: "ambient-proxy-down", Explains: []*Rule{targetUnreachable, nameLookupsFail}, Relay: true, Needs: []probes.Any{probes.Pods, probes.DaemonSets},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		by := map[Ref]*Suspect{}
		for _, e := range effects {
			u, ok := e.Data.(*unreached)
			if !ok {
				continue
			}
			for _, p := range u.pods {
				if !inMesh(p) || hasSidecar(p) {
					continue
				}
				d := daemonDown(facts, p.Spec.NodeName, ztunnel)
				if d == nil {
					continue
				}
				r := daemonRef(d)
				if by[r] == nil {
					by[r] = &Suspect{Subjects: []Ref{r}, Vars: map[string]string{"nodes": p.Spec.NodeName, "client": short(u.client)}}
				}
				s := by[r]
				s.Effects = appendOnce(s.Effects, e)
				s.Found = append(s.Found, SawObject("pods", p.Namespace, p.Name, "pod %s of %s is in the ambient mesh, on node %s, on which no pod of DaemonSet %s is ready", p.Name, short(u.client), p.Spec.NodeName, d.Name))
				break
			}
		}
		var list []Suspect
		for _, r := range sortedRefs(by) {
			list = append(list, *by[r])
		}
		return list
	},
	Tests: []Test{{Asks: "is no ztunnel ready on {nodes}, through which the calls of {client} go?", Run: func(_ *probes.Facts, s Suspect) Answer { return Answered(true, s.Found...) }}},
}

// pluginUnanswered recognises that a CNI plug-in got no answer from its agent.
// Sources: istio cni/pkg/plugin, cilium plugins/cilium-cni, calico cni-plugin, multus.
var pluginUnanswered = regexp.MustCompile(`plugin type="(?P<plugin>[^"]+)"[^\n]*?(?P<why>(?:dial unix|Post "?http://|connect to|error getting ClusterInformation|unable to connect|no such file or directory|connection refused)[^\n]*)`)

// networkAgentDown: the runtime makes no pod's network on a node, as the agent
// that a CNI plug-in there asks does not run.
var networkAgentDown = &Rule{
	ID: "network-plugin-agent-down", Explains: []*Rule{sandboxNotCreated}, Relay: true, Needs: []probes.Any{probes.Pods, probes.DaemonSets, probes.Events},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		var found []Suspect
		for _, e := range effects {
			list, _ := e.Data.([]container)
			if len(list) == 0 {
				continue
			}
			r, got, _ := said(facts, list, sandboxReason, pluginUnanswered)
			if got == nil {
				continue
			}
			name, _, _ := strings.Cut(strings.TrimSuffix(got["plugin"], "-cni"), " ")
			part := regexp.MustCompile(`(?:^|[/-])` + regexp.QuoteMeta(name) + `(?:$|[:@-])`)
			if name == "istio" {
				part = regexp.MustCompile(`istio-cni|istio/install-cni`)
			}
			d := daemonDown(facts, list[0].pod.Spec.NodeName, part)
			if d == nil {
				continue
			}
			found = append(found, Suspect{
				Subjects: []Ref{{Kind: "DaemonSet", Namespace: d.Namespace, Name: d.Name}}, Effects: []*Finding{e},
				Vars:  map[string]string{"plugin": got["plugin"], "node": list[0].pod.Spec.NodeName, "why": clip(got["why"], 200)},
				Found: []Evidence{r.from, SawObject("daemonsets.apps", d.Namespace, d.Name, "DaemonSet %s has no ready pod on node %s", d.Name, list[0].pod.Spec.NodeName)},
			})
		}
		return found
	},
	Tests: []Test{{Asks: "does {subject}, which the plug-in {plugin} asks, not run on {node}?", Run: func(_ *probes.Facts, s Suspect) Answer { return Answered(true, s.Found...) }}},
}

var meshAgentRules = []*Rule{networkAgentDown}
