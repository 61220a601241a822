package diagnose

import (
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/scheduling"
)

// proxyConfig recognises kube-proxy's complaints about its configuration.
// Source: kubernetes cmd/kube-proxy/app/{server,options}.go.
var proxyConfig = regexp.MustCompile(`KubeProxyConfiguration|failed (?:validate|complete)|config\.conf|strict decoding|couldn't get version/kind|no kind "`)

// proxiesMisconfigured makes one suspect of kube-proxies that are down on
// several nodes: where they complain of their configuration, that is at fault.
func proxiesMisconfigured(logs *probes.LogSet, down []Suspect) []Suspect {
	var proxies []*corev1.Pod
	for _, s := range down {
		proxies = append(proxies, s.Data.(*corev1.Pod))
	}
	one := oneDaemon(down)[0]
	words := saidLast(logs, proxies)
	one.Found = append(one.Found, words...)
	if !slices.ContainsFunc(words, func(e Evidence) bool { return proxyConfig.MatchString(e.Says) }) {
		return []Suspect{one}
	}
	for _, v := range proxies[0].Spec.Volumes {
		if v.ConfigMap != nil {
			one.Subjects = append([]Ref{{Kind: "ConfigMap", Namespace: proxies[0].Namespace, Name: v.ConfigMap.Name}}, one.Subjects...)
			break
		}
	}
	return []Suspect{one}
}

// proxyAbsent: pods can't reach Services on nodes on which the kube-proxy that
// others have is not to run.
var proxyAbsent = &Rule{
	ID: "kube-proxy-absent-from-node", Explains: []*Rule{nameLookupsFail, targetUnreachable}, Needs: []probes.Any{probes.Pods, probes.Nodes, probes.DaemonSets},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		sets, err := probes.DaemonSets.Of(facts)
		pods, podsErr := probes.Pods.Of(facts)
		nodes, nodesErr := probes.Nodes.Of(facts)
		if err != nil || podsErr != nil || nodesErr != nil {
			return nil
		}
		var set *appsv1.DaemonSet
		for _, d := range sets.All() {
			if d.Name == "kube-proxy" && d.Status.CurrentNumberScheduled > 0 {
				set = d
			}
		}
		if set == nil {
			return nil
		}
		s := Suspect{Subjects: []Ref{{Kind: "DaemonSet", Namespace: set.Namespace, Name: set.Name}}, Data: set}
		for _, e := range effects {
			bare := bareOf(pods, nodes, e)
			for _, n := range bare {
				s.Subjects = appendNew(s.Subjects, Ref{Kind: "Node", Name: n})
			}
			if len(bare) > 0 {
				s.Effects = append(s.Effects, e)
			}
		}
		if len(s.Effects) == 0 {
			return nil
		}
		s.Vars = map[string]string{"nodes": names(s.Subjects[1:]), "node": s.Subjects[1].Name, "set": set.Name, "why": "its selector or affinity leaves them out"}
		return []Suspect{s}
	},
	Tests: []Test{{
		Asks: "does DaemonSet {set}, which other nodes have, keep off {nodes}?", Needs: []probes.Any{probes.Nodes},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			nodes, err := probes.Nodes.Of(facts)
			if err != nil {
				return CantTell(err)
			}
			set := s.Data.(*appsv1.DaemonSet)
			n := nodes.Get("", s.Vars["node"])
			says := SawObject("daemonsets.apps", set.Namespace, set.Name, "DaemonSet %s has a pod on %d of %d nodes, and none on %s", set.Name, set.Status.CurrentNumberScheduled, nodes.Len(), s.Vars["nodes"])
			pod := &corev1.Pod{Spec: set.Spec.Template.Spec}
			for _, on := range (&scheduling.Cluster{Nodes: []*corev1.Node{n}, Pods: probes.NewList[corev1.Pod](nil)}).Place(pod).Nodes {
				for _, f := range on.Failures {
					if f.Taint != nil && strings.HasPrefix(f.Taint.Key, "node.kubernetes.io/") || f.Taint == nil && f.Key == "" {
						continue // tolerated by each DaemonSet, or not about where it may run
					}
					return Answered(true, says, SawObject("nodes", "", n.Name, "node %s %s", n.Name, f.Says)).With("why", "node "+n.Name+" "+f.Says)
				}
			}
			return Answered(true, says)
		},
	}},
}

// bareOf are the nodes without kube-proxy, where all that an effect is about
// is on such nodes. Nodes of EKS Auto Mode and Fargate do without its pod.
func bareOf(pods *probes.PodList, nodes *probes.List[corev1.Node], e *Finding) []string {
	list := troubled(e)
	switch d := e.Data.(type) {
	case *lookupTrouble:
		list = d.pods
	case *unreached:
		if d.target.Kind != probes.TargetService || len(d.lines) == 0 {
			return nil
		}
		list = d.pods
	}
	var bare []string
	for _, p := range list {
		n := nodes.Get("", p.Spec.NodeName)
		if n == nil || n.Labels["eks.amazonaws.com/compute-type"] != "" || strings.HasPrefix(n.Name, "fargate-") || slices.ContainsFunc(pods.On(n.Name), isKubeProxy) {
			return nil
		}
		bare = appendNew(bare, n.Name)
	}
	return bare
}
