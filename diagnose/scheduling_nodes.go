package diagnose

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/scheduling"
)

// podUntouched: a pod is bound to a node, and the kubelet there has not taken
// it: there is no such node, or its kubelet is down.
var podUntouched = &Rule{
	ID:    "pod-not-taken-by-kubelet",
	Needs: []probes.Any{probes.Pods, probes.Workloads},
	Suspects: perWorkload(func(p *corev1.Pod, now time.Time) *trouble {
		bound := p.CreationTimestamp.Time
		if c := probes.PodCondition(p, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionTrue {
			bound = c.LastTransitionTime.Time
		}
		if p.Spec.NodeName == "" || p.Status.Phase != corev1.PodPending || p.Status.StartTime != nil || len(probes.Statuses(p)) > 0 || now.Sub(bound) < patience {
			return nil
		}
		return &trouble{since: &bound, says: fmt.Sprintf("is bound to node %s, whose kubelet has not taken it", p.Spec.NodeName)}
	}),
}

// nodeNameMissing: the pods are bound, by spec.nodeName, to a node that
// doesn't exist.
var nodeNameMissing = &Rule{
	ID: "node-name-missing", Explains: []*Rule{podUntouched}, Needs: []probes.Any{probes.Nodes},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		var suspects []Suspect
		for _, e := range effects {
			for _, p := range troubled(e) {
				suspects = append(suspects, Suspect{Subjects: []Ref{e.Subject()}, Effects: []*Finding{e}, Data: p, Vars: map[string]string{
					"workload": short(e.Subject()), "node": p.Spec.NodeName, "pod": p.Name, "podNamespace": p.Namespace, "near": "",
				}})
				break
			}
		}
		return suspects
	},
	Tests: []Test{{Asks: "is there no node named {node}?", Needs: []probes.Any{probes.Nodes}, Run: func(facts *probes.Facts, s Suspect) Answer {
		nodes, err := probes.Nodes.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		p := s.Data.(*corev1.Pod)
		if nodes.Get("", p.Spec.NodeName) != nil {
			return Answered(false, SawObject("nodes", "", p.Spec.NodeName, "node %s exists", p.Spec.NodeName))
		}
		var have []string
		for _, n := range nodes.All() {
			have = append(have, n.Name)
		}
		a := Answered(true, SawObject("pods", p.Namespace, p.Name, "pod %s/%s has spec.nodeName: %s, and there is no such node", p.Namespace, p.Name, p.Spec.NodeName))
		if n := nearest(p.Spec.NodeName, have); n != "" {
			a = a.With("near", " The nearest is "+n+".")
		}
		return a
	}}},
}

// nodeCordoned: every node that would take the pods is cordoned.
var nodeCordoned = placementRule("node-cordoned", "are the nodes that would take pod {pod} cordoned, and is that all that keeps it out?",
	byCordon, false, []scheduling.Predicate{scheduling.Cordoned}, func(c pendingCase) told {
		nodes := c.refs()
		return told{nodes, map[string]string{"nodes": names(nodes), "nodeArgs": args(nodes), "cordonedVerb": plural(len(nodes), "is", "are")}, nil}
	})

// nodesNotReady: the nodes that are meant for the pods are down; what took
// them down explains it.
var nodesNotReady = placementRule("pod-waits-for-ready-node", "are all nodes that are meant for pod {pod} not ready?",
	byNotReady, true, nil, func(c pendingCase) told {
		nodes := c.refs()
		return told{nodes, map[string]string{"nodes": names(nodes)}, nil}
	})

// poolLimit: the NodePools that would serve the pods are at their limits.
var poolLimit = placementRule("nodepool-limit-reached", "are all NodePools that would serve pod {pod} at their spec.limits?",
	byPoolLimits, false, nil, func(c pendingCase) told {
		pools := c.refs()
		f := c.failures[0]
		return told{pools, map[string]string{"pool": pools[0].Name, "resource": f.Key, "limit": scheduling.Show(f.Amount.Resource, f.Amount.Allocatable), "left": scheduling.Show(f.Amount.Resource, f.Amount.Free), "says": f.Says}, nil}
	})

// poolRulesOut: the nodes that suit the pods are full, and the NodePools that
// would make more of them rule such nodes out.
var poolRulesOut = placementRule("nodepool-rules-out-pods", "are the nodes that suit pod {pod} full, and does each NodePool that would make more rule such nodes out?",
	byPoolRules, false, nil, func(c pendingCase) told {
		pools := c.refs()
		var keys, says []string
		for _, f := range c.failures {
			keys, says = appendNew(keys, orDefault(f.Key, "an instance type that is large enough")), appendNew(says, f.Says)
		}
		return told{append(pools, c.workload), map[string]string{"pool": pools[0].Name, "pools": names(pools), "keys": strings.Join(keys, ", "), "says": strings.Join(says, "; ")}, nil}
	})

// poolNotReady: the NodePools that would serve the pods are not Ready; why
// they are not explains it.
var poolNotReady = placementRule("nodepool-not-ready", "are the NodePools that would serve pod {pod} not Ready?",
	byPoolNotReady, true, nil, func(c pendingCase) told {
		pools := c.refs()
		return told{pools, map[string]string{"pool": pools[0].Name, "says": c.failures[0].Says}, nil}
	})

// noNodeFromKarpenter: a NodePool would serve the pods, and no node comes; why
// it doesn't explains it.
var noNodeFromKarpenter = placementRule("karpenter-makes-no-node", "would a NodePool serve pod {pod}, while no node comes for it?",
	byKarpenter, true, nil, func(c pendingCase) told {
		pools := c.refs()
		return told{pools, map[string]string{"pool": pools[0].Name}, nil}
	})

// placementUnclear: nothing that is recomputed keeps the pods from a node, or
// what would decide can't be had.
var placementUnclear = &Rule{
	ID: "placement-unclear", Explains: []*Rule{podPending}, LastResort: true, Needs: []probes.Any{placements, probes.Workloads},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		var suspects []Suspect
		for _, c := range pendingCases(facts, effects) {
			if c.reason != byNothing && c.reason != byScheduler {
				continue
			}
			err := c.err
			if err == nil {
				err = fmt.Errorf("%s, and no scheduler has said that it tried", c.on.Summary())
			}
			suspects = append(suspects, Suspect{Subjects: []Ref{c.workload}, Effects: []*Finding{c.effect}, Data: CantTell(err, c.evidence()...), Vars: map[string]string{
				"workload": short(c.workload), "pod": c.pod.Name, "podNamespace": c.pod.Namespace, "says": err.Error(),
			}})
		}
		return suspects
	},
	Tests: []Test{{
		Asks: "does something keep pod {pod} from every node that can't be recomputed from what is here?", Needs: []probes.Any{placements},
		Run: func(_ *probes.Facts, s Suspect) Answer { return s.Data.(Answer) },
	}},
}

// noNodes: there is no node at all that pods could go to; what became of them
// explains it.
var noNodes = placementRule("no-node-for-pods", "does the cluster have no node at all, and no NodePool, that could take pod {pod}?",
	byNoNodes, true, nil, func(c pendingCase) told {
		return told{[]Ref{c.workload}, map[string]string{"all": fmt.Sprint(len(c.x.cluster.Nodes))}, nil}
	})
