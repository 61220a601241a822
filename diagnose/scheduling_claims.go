package diagnose

import (
	"fmt"

	"github.com/pposiraegi/ppodoctor/probes/scheduling"
)

// attachLimit: no node may attach another volume.
var attachLimit = placementRule("volume-attach-limit-reached", "has every node that is meant for pod {pod} attached as many volumes as it may?",
	byAttachLimit, false, []scheduling.Predicate{scheduling.VolumeLimit}, func(c pendingCase) told {
		return told{[]Ref{c.workload}, map[string]string{"driver": c.failures[0].Key, "says": c.failures[0].Says}, nil}
	})

// claimNotBound: the pods wait for a claim; why it isn't bound explains it.
var claimNotBound = placementRule("claim-not-bound", "does pod {pod} wait for a PersistentVolumeClaim that is not bound?",
	byClaim, true, nil, func(c pendingCase) told {
		return told{[]Ref{{Kind: "PersistentVolumeClaim", Namespace: c.pod.Namespace, Name: c.failures[0].Claim}}, map[string]string{"claim": c.failures[0].Claim}, nil}
	})

// claimMissing: the pods name a claim that doesn't exist.
var claimMissing = placementRule("claim-missing", "does pod {pod} use a PersistentVolumeClaim that doesn't exist?",
	byClaimMissing, false, nil, func(c pendingCase) told {
		f := c.failures[0]
		t := told{[]Ref{c.workload}, map[string]string{"claim": f.Claim, "near": "", "says": f.Says}, nil}
		if c.x.cluster.Claims != nil {
			var have []string
			for claim := range c.x.cluster.Claims.In(c.pod.Namespace) {
				have = append(have, claim.Name)
			}
			if near := nearest(f.Claim, have); near != "" {
				t.vars["near"] = fmt.Sprintf(" There is a claim named %s.", near)
			}
		}
		t.evidence = []Evidence{SawObject("persistentvolumeclaims", c.pod.Namespace, f.Claim, "%s", f.Says)}
		return t
	})

// claimExclusive: a ReadWriteOncePod claim is in use.
var claimExclusive = placementRule("claim-used-by-another-pod", "does another pod hold the ReadWriteOncePod claim of pod {pod}?",
	byExclusive, false, nil, func(c pendingCase) told {
		f := c.failures[0]
		holder := c.x.workloads.Of(f.Pods[0])
		t := told{[]Ref{c.workload}, map[string]string{"claim": f.Claim, "holder": short(holder)}, nil}
		if holder != c.workload {
			t.subjects = append(t.subjects, holder)
		}
		return t
	})
