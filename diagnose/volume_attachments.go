package diagnose

import (
	"errors"
	"fmt"
	"regexp"

	"github.com/pposiraegi/ppodoctor/probes"
)

// What the EBS CSI driver says when the instance takes no further volume: EC2's
// own code, the driver's device names used up, or an attachment that never ends.
// Sources: aws-ebs-csi-driver pkg/cloud/cloud.go, pkg/cloud/devicemanager;
// EC2 API error codes; incidents ebs-attach-limit, ebs-limit-imds-fallback.
var (
	slotsGone  = regexp.MustCompile(`(?P<why>AttachmentLimitExceeded|attachment limit exceeded|maximum number of attachments|there are no (?:device|attachment) \S+ available)`)
	slotsMaybe = regexp.MustCompile(`(?P<why>expected device to be attached but was attaching)`)
)

// volumeSlotsGone: the scheduler gave the pod a node whose instance takes no
// further volume, since the driver announces more slots than are left: other
// disks, interfaces, or a start without the metadata service.
var volumeSlotsGone = &Rule{
	ID:       "node-volume-slots-used-up",
	Explains: []*Rule{volumeNotMounted},
	Needs:    []probes.Any{probes.Pods, probes.DaemonSets, probes.Events},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		sets, err := probes.DaemonSets.Of(facts)
		if err != nil {
			return nil
		}
		var list []Suspect
		for _, s := range suspectsOf(effects, waitsForPod) {
			if _, got, _ := said(facts, containers(s), mountReasons, slotsGone, slotsMaybe); got == nil {
				continue
			}
			s.Vars["waits"] = s.Subjects[0].Kind + " " + s.Subjects[0].Namespace + "/" + s.Subjects[0].Name
			node := Ref{Kind: "Node", Name: containers(s)[0].pod.Spec.NodeName}
			subjects := []Ref{node, s.Subjects[0]}
			for _, d := range sets.All() {
				if servesDriver(&d.Spec.Template.Spec, ebsDriver) || toldDriver(&d.Spec.Template.Spec, ebsDriver) {
					subjects = append([]Ref{daemonRef(d)}, subjects...)
					break
				}
			}
			s.Subjects = subjects
			list = append(list, s)
		}
		return list
	},
	Tests: []Test{{
		Asks: "does AWS attach no further volume to node {node}?", Needs: []probes.Any{probes.CSINodes, probes.VolumeAttachments},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			a := hears(facts, containers(s), mountReasons, slotsGone)
			clear := a.Truth == Yes
			if !clear {
				a = hears(facts, containers(s), mountReasons, slotsMaybe)
			}
			if a.Truth != Yes {
				return a
			}
			node := containers(s)[0].pod.Spec.NodeName
			nodes, err := probes.CSINodes.Of(facts)
			attachments, attachErr := probes.VolumeAttachments.Of(facts)
			if err = errors.Join(err, attachErr); err != nil {
				if clear {
					return a.With("slots", "an unknown number of").With("attached", "an unknown number")
				}
				return CantTell(err, a.Evidence...)
			}
			attached, slots := 0, int32(-1)
			for _, v := range attachments.All() {
				if v.Spec.NodeName == node && v.Spec.Attacher == ebsDriver && v.Status.Attached {
					attached++
				}
			}
			if n := nodes.Get("", node); n != nil {
				for _, d := range n.Spec.Drivers {
					if d.Name == ebsDriver && d.Allocatable != nil && d.Allocatable.Count != nil {
						slots = *d.Allocatable.Count
					}
				}
			}
			a.Evidence = append(a.Evidence, SawObject("csinodes.storage.k8s.io", "", node, "CSINode %s announces %s slots for volumes of %s; %d are attached there", node, slotWords(slots), ebsDriver, attached))
			// An attachment that does not end has other causes too; only where
			// the node is nearly full is the limit one.
			switch {
			case !clear && slots < 0:
				return CantTell(nil, a.Evidence...)
			case !clear && int32(attached)+2 < slots:
				return Answered(false, a.Evidence...)
			}
			return a.With("slots", slotWords(slots)).With("attached", fmt.Sprint(attached))
		},
	}},
}

const ebsDriver = "ebs.csi.aws.com"

func slotWords(n int32) string {
	if n < 0 {
		return "no limit of"
	}
	return fmt.Sprint(n)
}
