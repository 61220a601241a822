package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/scheduling"
)

// hostPortTaken: another pod on each node holds the host port.
var hostPortTaken = placementRule("host-port-taken", "is the host port that pod {pod} asks for taken on every node that is meant for it?",
	byHostPort, false, []scheduling.Predicate{scheduling.HostPort}, func(c pendingCase) told {
		t := told{[]Ref{c.workload}, map[string]string{"port": c.failures[0].Key, "holder": ""}, nil}
		var holders []string
		for _, f := range c.failures {
			for _, p := range f.Pods {
				holder := c.x.workloads.Of(p)
				if holder != c.workload && !slices.Contains(t.subjects, holder) {
					t.subjects = append(t.subjects, holder)
				}
				if !slices.Contains(holders, short(holder)) {
					holders = append(holders, short(holder))
				}
			}
		}
		t.vars["holder"] = strings.Join(holders, ", ")
		return t
	})

// antiAffinity: each place already has a pod that this one must not be with.
var antiAffinity = placementRule("anti-affinity-leaves-no-node", "does a pod anti-affinity keep pod {pod} from every node that is meant for it?",
	byAntiAffinity, false, []scheduling.Predicate{scheduling.AntiAffinity, scheduling.AntiAffinityOfOthers}, func(c pendingCase) told {
		live := slices.DeleteFunc(slices.Clone(c.x.workloads.Pods(c.workload)), probes.Finished)
		domains := map[string]bool{}
		for _, f := range c.failures {
			domains[f.Have] = true
		}
		f := c.failures[0]
		t := told{[]Ref{c.workload}, map[string]string{
			"term": f.Want, "key": f.Key, "domains": fmt.Sprint(len(domains)), "replicas": fmt.Sprint(len(live)), "nodes": names(c.refs()), "kindLower": strings.ToLower(c.workload.Kind),
		}, nil}
		if f.Predicate == scheduling.AntiAffinityOfOthers && len(f.Pods) > 0 {
			if other := c.x.workloads.Of(f.Pods[0]); other != c.workload {
				t.subjects = append(t.subjects, other)
			}
		}
		return t
	})

// affinityToNobody: the pods must run beside pods that run nowhere suitable.
var affinityToNobody = placementRule("pod-affinity-unmet", "must pod {pod} run beside pods that run on no node that is meant for it?",
	byAffinity, false, []scheduling.Predicate{scheduling.Affinity}, func(c pendingCase) told {
		return told{[]Ref{c.workload}, map[string]string{"term": c.failures[0].Want, "says": c.failures[0].Says}, nil}
	})

// spreadUnsatisfiable: a hard topology spread constraint refuses each node.
var spreadUnsatisfiable = placementRule("topology-spread-unsatisfiable", "does a topology spread constraint (DoNotSchedule) refuse every node that is meant for pod {pod}?",
	bySpread, false, []scheduling.Predicate{scheduling.Spread}, func(c pendingCase) told {
		return told{[]Ref{c.workload}, map[string]string{"key": c.failures[0].Key, "says": c.failures[0].Says}, nil}
	})
