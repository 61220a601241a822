package diagnose

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// leaving is the node that an effect is about, and the pods that must leave it.
func leaving(pods *probes.PodList, e *Finding) (node string, list []*corev1.Pod) {
	switch object := e.Data.(type) {
	case *corev1.Node:
		node = object.Name
	case *probes.NodeClaim:
		node = object.Status.NodeName
	}
	if node == "" {
		return "", nil
	}
	for _, p := range pods.On(node) {
		owner := probes.Controller(p)
		if probes.Finished(p) || owner != nil && (owner.Kind == "DaemonSet" || owner.Kind == "Node") {
			continue
		}
		list = append(list, p)
	}
	return node, list
}

// doNotDisrupt: a pod on the node asks not to be disrupted, and nothing bounds
// how long Karpenter waits for it.
var doNotDisrupt = &Rule{
	ID: "do-not-disrupt-blocks-removal", Explains: []*Rule{nodeNotRemoved}, Needs: []probes.Any{probes.Pods, probes.Workloads, claims},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		pods, err := probes.Pods.Of(facts)
		workloads, workloadsErr := probes.Workloads.Of(facts)
		if err != nil || workloadsErr != nil {
			return nil
		}
		var found []Suspect
		for _, e := range effects {
			node, list := leaving(pods, e)
			for _, p := range list {
				if p.Annotations["karpenter.sh/do-not-disrupt"] != "true" && p.Annotations["karpenter.sh/do-not-evict"] != "true" {
					continue
				}
				owner := workloads.Of(p)
				i := slices.IndexFunc(found, func(s Suspect) bool { return s.Subjects[0] == owner })
				if i < 0 {
					found = append(found, Suspect{Subjects: appendNew([]Ref{owner}, podRef(p)), Vars: map[string]string{"pod": p.Namespace + "/" + p.Name, "node": node}})
					i = len(found) - 1
				}
				found[i].Effects = appendNew(found[i].Effects, e)
				found[i].Found = append(found[i].Found, SawObject("pods", p.Namespace, p.Name, "pod %s/%s on node %s is annotated karpenter.sh/do-not-disrupt: \"true\"", p.Namespace, p.Name, node))
			}
		}
		return found
	},
	Tests: []Test{{Asks: "does Karpenter wait for pod {pod}, which is not to be disrupted, without a limit?", Needs: []probes.Any{claims}, Run: func(facts *probes.Facts, s Suspect) Answer {
		list, err := claims.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		for _, c := range list.All() {
			if c.Status.NodeName == s.Vars["node"] && c.Spec.TerminationGracePeriod != nil {
				return Answered(false, SawObject("nodeclaims.karpenter.sh", "", c.Name, "NodeClaim %s ends its drain after terminationGracePeriod %s", c.Name, c.Spec.TerminationGracePeriod.Duration))
			}
		}
		return Answered(true, s.Found...)
	}}},
}

// attachmentStays: all pods have left, and a volume is still attached to the
// node; Karpenter waits for it. Source: incident va-leak-termination.
var attachmentStays = &Rule{
	ID: "volume-attachment-blocks-removal", Explains: []*Rule{nodeNotRemoved}, Needs: []probes.Any{probes.Pods, probes.VolumeAttachments, probes.Volumes},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		pods, err := probes.Pods.Of(facts)
		attachments, attachmentsErr := probes.VolumeAttachments.Of(facts)
		if err != nil || attachmentsErr != nil {
			return nil
		}
		volumes, _ := probes.Volumes.Of(facts)
		var found []Suspect
		for _, e := range effects {
			node, list := leaving(pods, e)
			for _, va := range attachments.All() {
				if node == "" || va.Spec.NodeName != node {
					continue
				}
				volume := ""
				if va.Spec.Source.PersistentVolumeName != nil {
					volume = *va.Spec.Source.PersistentVolumeName
				}
				s := Suspect{Subjects: []Ref{{Kind: "VolumeAttachment", Name: va.Name}}, Effects: []*Finding{e}, Data: list, Vars: map[string]string{"volume": volume, "node": node, "claim": "no claim"}}
				s.Found = []Evidence{SawObject("volumeattachments.storage.k8s.io", "", va.Name, "VolumeAttachment %s holds volume %s on node %s (attached: %t)", va.Name, volume, node, va.Status.Attached)}
				if volumes != nil {
					if pv := volumes.Get("", volume); pv != nil {
						s.Found = append(s.Found, SawObject("persistentvolumes", "", pv.Name, "volume %s is %s", pv.Name, pv.Status.Phase))
						if pv.Spec.ClaimRef != nil {
							s.Vars["claim"] = pv.Spec.ClaimRef.Namespace + "/" + pv.Spec.ClaimRef.Name
							s.Subjects = append(s.Subjects, Ref{Kind: "PersistentVolumeClaim", Namespace: pv.Spec.ClaimRef.Namespace, Name: pv.Spec.ClaimRef.Name})
						}
					}
				}
				found = append(found, s)
			}
		}
		return found
	},
	Tests: []Test{{Asks: "have all pods left node {node}, but for those of DaemonSets?", Run: func(_ *probes.Facts, s Suspect) Answer {
		var names []string
		for _, p := range s.Data.([]*corev1.Pod) {
			names = append(names, p.Namespace+"/"+p.Name)
		}
		return Answered(len(names) == 0, Saw("pods", nil, "pods on node %s that are to leave: %s", s.Vars["node"], orDefault(strings.Join(names, ", "), "none")))
	}}},
}

// finalizerOrphaned: who would take the finalizer away is not installed.
var finalizerOrphaned = &Rule{
	ID: "karpenter-finalizer-orphaned", Explains: []*Rule{nodeNotRemoved}, Needs: controllerNeeds,
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		var found []Suspect
		for _, e := range effects {
			object, ok := e.Data.(metav1.Object)
			if ok && slices.Contains(object.GetFinalizers(), "karpenter.sh/termination") {
				found = append(found, Suspect{Subjects: []Ref{e.Subject()}, Effects: []*Finding{e}, Vars: map[string]string{"object": short(e.Subject())}})
			}
		}
		return found
	},
	Tests: []Test{{Asks: "is Karpenter, which is to take its finalizer off {object}, not installed?", Needs: append([]probes.Any{probes.EKSCluster}, controllerNeeds...), Run: func(facts *probes.Facts, s Suspect) Answer {
		if c := karpenterController(facts); c != nil {
			return Answered(false, c.saw("%s is there", short(c.ref)))
		}
		if _, err := probes.Deployments.Of(facts); err != nil {
			return CantTell(err)
		}
		if c, err := probes.EKSCluster.Of(facts); err == nil && c.Compute.Enabled {
			return Answered(false, Saw("aws/eks/describe-cluster", nil, "EKS Auto Mode runs Karpenter outside the cluster"))
		}
		return Answered(true, Saw("deployments.apps", nil, "no Deployment and no pod of the cluster is Karpenter's controller"))
	}}},
}

var removalRules = []*Rule{doNotDisrupt, attachmentStays, finalizerOrphaned}
