package diagnose

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/scheduling"
)

// noProvisioner is the provisioner of classes whose volumes are made by hand.
const noProvisioner = "kubernetes.io/no-provisioner"

// A claimCase is an unbound claim with what it could be bound to. class is nil
// where the claim names none, or one that doesn't exist.
type claimCase struct {
	pendingCase
	claim     *corev1.PersistentVolumeClaim
	className string
	class     *storagev1.StorageClass
	misfits   []volumeMisfit // by PersistentVolume, nearest first
}

type volumeMisfit struct {
	volume *corev1.PersistentVolume
	why    []scheduling.Misfit
}

// static reports whether only a volume that exists already can be bound.
func (c claimCase) static() bool {
	return c.class == nil || c.class.Provisioner == noProvisioner
}

// about are the claim and the workload that waits for it.
func (c claimCase) about() []Ref {
	return []Ref{{Kind: "PersistentVolumeClaim", Namespace: c.claim.Namespace, Name: c.claim.Name}, c.workload}
}

func (c claimCase) saw(format string, args ...any) Evidence {
	return SawObject("persistentvolumeclaims", c.claim.Namespace, c.claim.Name, format, args...)
}

// claimRule is a rule for unbound claims; suspect is called for each whose
// lists are complete.
func claimRule(id, asks string, needs []probes.Any, run func(*probes.Facts, claimCase, *Suspect) Answer) *Rule {
	r := &Rule{
		ID: id, Explains: []*Rule{claimNotBound}, Needs: slices.Concat([]probes.Any{placements}, needs),
		Tests: []Test{{Asks: asks, Needs: slices.Concat([]probes.Any{placements}, needs), Run: func(_ *probes.Facts, s Suspect) Answer { return s.Data.(Answer) }}},
	}
	r.Suspects = func(facts *probes.Facts, effects []*Finding) []Suspect {
		var suspects []Suspect
		for _, e := range effects {
			p, ok := e.Data.(pendingCase)
			if !ok || p.reason != byClaim || len(p.failures) == 0 || p.x.cluster.Claims == nil {
				continue
			}
			claim := p.x.cluster.Claims.Get(p.pod.Namespace, p.failures[0].Claim)
			if claim == nil {
				continue
			}
			c := newClaimCase(p, claim)
			s := Suspect{Subjects: c.about(), Effects: []*Finding{e}, Vars: map[string]string{
				"claim": claim.Name, "claimNamespace": claim.Namespace, "class": c.className, "workload": short(p.workload), "near": "",
			}}
			s.Data = run(facts, c, &s)
			suspects = append(suspects, s)
		}
		return suspects
	}
	return r
}

func newClaimCase(p pendingCase, claim *corev1.PersistentVolumeClaim) claimCase {
	c := claimCase{pendingCase: p, claim: claim, className: scheduling.ClassOfClaim(claim)}
	if p.x.cluster.Classes != nil && c.className != "" {
		c.class = p.x.cluster.Classes.Get("", c.className)
	}
	if p.x.cluster.Volumes != nil {
		for _, v := range p.x.cluster.Volumes.All() {
			c.misfits = append(c.misfits, volumeMisfit{v, scheduling.VolumeMisfits(claim, v)})
		}
	}
	slices.SortStableFunc(c.misfits, func(a, b volumeMisfit) int { return len(a.why) - len(b.why) })
	return c
}

// unread is why a list that decides can't be had, or nil.
func (c claimCase) unread() error {
	if c.x.cluster.Classes == nil || c.x.cluster.Volumes == nil {
		for _, err := range c.x.missing {
			return err
		}
		return fmt.Errorf("the storage classes or volumes are unknown")
	}
	return nil
}

// fits reports whether some volume of any class name could be bound.
func (c claimCase) fits() bool { return len(c.misfits) > 0 && len(c.misfits[0].why) == 0 }

// ofClass are the volumes with the claim's class name that somebody put there
// to be claimed.
func (c claimCase) ofClass() []volumeMisfit {
	return slices.DeleteFunc(slices.Clone(c.misfits), func(m volumeMisfit) bool {
		return scheduling.ClassOfVolume(m.volume) != c.className || c.madeForAnother(m.volume)
	})
}

// madeForAnother reports whether a provisioner made the volume for another
// claim, which has it: it was never to be had.
func (c claimCase) madeForAnother(v *corev1.PersistentVolume) bool {
	owner := v.Spec.ClaimRef
	if v.Annotations["pv.kubernetes.io/provisioned-by"] == "" || owner == nil || owner.Namespace == c.claim.Namespace && owner.Name == c.claim.Name {
		return false
	}
	return c.x.cluster.Claims.Get(owner.Namespace, owner.Name) != nil
}

// storageClassMissing: the claim names a class that doesn't exist.
var storageClassMissing = claimRule("storage-class-missing", "does claim {claim} name a StorageClass that doesn't exist, with no volume of that class either?", nil,
	func(_ *probes.Facts, c claimCase, s *Suspect) Answer {
		if c.className == "" {
			return Answered(false, c.saw("claim %s names no StorageClass", c.claim.Name))
		}
		if err := c.unread(); err != nil {
			return CantTell(err)
		}
		if c.class != nil {
			return Answered(false, SawObject("storageclasses.storage.k8s.io", "", c.className, "StorageClass %s exists", c.className))
		}
		if len(c.ofClass()) > 0 {
			return Answered(false, Saw("persistentvolumes", nil, "%d volumes have the class name %s", len(c.ofClass()), c.className))
		}
		have := classNames(c)
		near := "There is no StorageClass at all."
		if len(have) > 0 {
			near = "There are " + strings.Join(have, ", ") + "."
		}
		if n := nearest(c.className, have); n != "" {
			near += " The nearest is " + n + "."
		}
		s.Vars["near"] = " " + near
		return Answered(true, c.saw("claim %s/%s has storageClassName: %s", c.claim.Namespace, c.claim.Name, c.className), Saw("storageclasses.storage.k8s.io", nil, "there is no StorageClass %s. %s", c.className, near))
	})

func classNames(c claimCase) []string {
	var have []string
	for _, class := range c.x.cluster.Classes.All() {
		have = append(have, class.Name)
	}
	return have
}

// noDefaultStorageClass: the claim names no class and no class is the default.
var noDefaultStorageClass = claimRule("no-default-storage-class", "does claim {claim} name no StorageClass, while none is the default and no volume fits?", nil,
	func(_ *probes.Facts, c claimCase, s *Suspect) Answer {
		if c.className != "" || c.claim.Spec.StorageClassName != nil {
			return Answered(false, c.saw("claim %s sets storageClassName: %q itself", c.claim.Name, c.className))
		}
		if err := c.unread(); err != nil {
			return CantTell(err)
		}
		for _, class := range c.x.cluster.Classes.All() {
			if class.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" || class.Annotations["storageclass.beta.kubernetes.io/is-default-class"] == "true" {
				return Answered(false, SawObject("storageclasses.storage.k8s.io", "", class.Name, "StorageClass %s is the default", class.Name))
			}
		}
		if c.fits() {
			return Answered(false, SawObject("persistentvolumes", "", c.misfits[0].volume.Name, "volume %s fits", c.misfits[0].volume.Name))
		}
		have := classNames(c)
		s.Vars["near"] = " There is no StorageClass at all."
		if len(have) > 0 {
			s.Vars["near"] = " There are " + strings.Join(have, ", ") + ", none of them the default."
		}
		return Answered(true, c.saw("claim %s/%s has no storageClassName", c.claim.Namespace, c.claim.Name), Saw("storageclasses.storage.k8s.io", nil, "no StorageClass has the annotation storageclass.kubernetes.io/is-default-class: \"true\".%s", s.Vars["near"]))
	})

// noVolumeFits: the claim can only have a volume that exists, and none fits.
var noVolumeFits = claimRule("no-volume-fits-claim", "can claim {claim} be bound only to a volume that exists already, and does none fit?", nil,
	func(_ *probes.Facts, c claimCase, s *Suspect) Answer {
		if err := c.unread(); err != nil {
			return CantTell(err)
		}
		if !c.static() && c.claim.Spec.Selector == nil && c.claim.Spec.VolumeName == "" {
			return Answered(false, SawObject("storageclasses.storage.k8s.io", "", c.className, "StorageClass %s has volumes made by %s", c.className, c.class.Provisioner))
		}
		if c.class == nil && c.className != "" && len(c.ofClass()) == 0 || c.className == "" && c.claim.Spec.StorageClassName == nil && len(c.ofClass()) == 0 {
			return Answered(false, c.saw("the class of claim %s is the matter, not the volumes", c.claim.Name))
		}
		if c.fits() {
			return Answered(false, SawObject("persistentvolumes", "", c.misfits[0].volume.Name, "volume %s fits", c.misfits[0].volume.Name))
		}
		if v, _ := c.takenVolume(); v != nil {
			return Answered(false, SawObject("persistentvolumes", "", v.Name, "volume %s would fit if it weren't claimed", v.Name))
		}
		s.Vars["misfits"] = "there is no PersistentVolume at all"
		evidence := []Evidence{c.saw("claim %s/%s asks for %s", c.claim.Namespace, c.claim.Name, claimWants(c.claim))}
		for i, m := range c.misfits[:min(3, len(c.misfits))] {
			var why []string
			for _, w := range m.why {
				why = append(why, w.Says)
			}
			says := fmt.Sprintf("PersistentVolume %s doesn't fit: %s", m.volume.Name, strings.Join(why, "; "))
			if i == 0 {
				s.Vars["misfits"] = says
				s.Subjects = append(s.Subjects, Ref{Kind: "PersistentVolume", Name: m.volume.Name})
			}
			evidence = append(evidence, SawObject("persistentvolumes", "", m.volume.Name, "%s", says))
		}
		if !c.static() && c.claim.Spec.Selector != nil {
			s.Vars["misfits"] += fmt.Sprintf("; and %s makes no volumes for claims with a selector", c.class.Provisioner)
		}
		return Answered(true, evidence...)
	})

func claimWants(claim *corev1.PersistentVolumeClaim) string {
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	var modes []string
	for _, m := range claim.Spec.AccessModes {
		modes = append(modes, string(m))
	}
	s := fmt.Sprintf("%s, %s, class %q", scheduling.Show(corev1.ResourceStorage, size), strings.Join(modes, "+"), scheduling.ClassOfClaim(claim))
	if claim.Spec.Selector != nil {
		s += fmt.Sprintf(", selector %v", claim.Spec.Selector.MatchLabels)
	}
	if claim.Spec.VolumeName != "" {
		s += ", volumeName " + claim.Spec.VolumeName
	}
	return s
}

// takenVolume is a volume that fits in all but that another claim has it.
func (c claimCase) takenVolume() (*corev1.PersistentVolume, string) {
	for _, m := range c.misfits {
		if len(m.why) == 1 && m.why[0].Field == "claimed" && !c.madeForAnother(m.volume) {
			return m.volume, m.why[0].Says
		}
	}
	return nil, ""
}

// volumeClaimed: the one volume that fits belongs to another claim.
var volumeClaimed = claimRule("volume-already-claimed", "does the only volume that fits claim {claim} belong to another claim, or to one that is gone?", nil,
	func(_ *probes.Facts, c claimCase, s *Suspect) Answer {
		if err := c.unread(); err != nil {
			return CantTell(err)
		}
		v, says := c.takenVolume()
		if v == nil || !c.static() || c.fits() {
			return Answered(false, c.saw("no volume fits claim %s in all but its owner", c.claim.Name))
		}
		s.Subjects = append([]Ref{{Kind: "PersistentVolume", Name: v.Name}}, s.Subjects...)
		s.Vars["volume"], s.Vars["says"] = v.Name, says
		s.Vars["owner"] = v.Spec.ClaimRef.Namespace + "/" + v.Spec.ClaimRef.Name
		s.Vars["phase"] = string(v.Status.Phase)
		if c.x.cluster.Claims.Get(v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name) != nil && (v.Spec.ClaimRef.Namespace != c.claim.Namespace || v.Spec.ClaimRef.Name != c.claim.Name) {
			// The owner is alive: it is this claim that must look elsewhere.
			s.Subjects = append(c.about(), s.Subjects[0])
		}
		return Answered(true, SawObject("persistentvolumes", "", v.Name, "PersistentVolume %s would fit claim %s, but %s", v.Name, c.claim.Name, says))
	})

// provisionerMissing: nothing in the cluster makes volumes of the class.
var provisionerMissing = relay(claimRule("provisioner-missing", "does nothing in the cluster make the volumes of StorageClass {class}: no CSI driver, no pod of a provisioner?",
	[]probes.Any{probes.CSIDrivers, probes.Pods, probes.Deployments, probes.Events},
	func(facts *probes.Facts, c claimCase, s *Suspect) Answer {
		if err := c.unread(); err != nil {
			return CantTell(err)
		}
		if c.static() {
			return Answered(false, c.saw("claim %s has no class with a provisioner", c.claim.Name))
		}
		if c.claim.Status.Phase == corev1.ClaimLost {
			return Answered(false, c.saw("claim %s had a volume, which is gone: nobody makes it a second one", c.claim.Name))
		}
		name := migrated(c.class.Provisioner)
		s.Vars["provisioner"] = c.class.Provisioner
		if events, err := probes.Events.Of(facts); err == nil {
			for _, e := range events.About(c.about()[0]) {
				if e.Reason == "ProvisioningFailed" && strings.HasPrefix(orDefault(e.Source.Component, e.ReportingController), name) {
					return Answered(false, SawObject("events", e.Namespace, e.Name, "the provisioner is there: it says %s", e.Message))
				}
			}
		}
		class := Ref{Kind: "StorageClass", Name: c.className}
		pods, err := probes.Pods.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		for _, p := range pods.All() {
			if !probes.Finished(p) && provisions(p.Spec, p.Name, name) && probes.Ready(p) {
				return Answered(false, SawObject("pods", p.Namespace, p.Name, "pod %s/%s provisions for %s", p.Namespace, p.Name, name))
			}
		}
		deployments, err := probes.Deployments.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		for _, d := range deployments.All() {
			if !provisions(d.Spec.Template.Spec, d.Name, name) {
				continue
			}
			owner := Ref{Kind: "Deployment", Namespace: d.Namespace, Name: d.Name}
			says := fmt.Sprintf("Deployment %s/%s, which provisions for %s, has %d of %d pods ready", d.Namespace, d.Name, name, d.Status.ReadyReplicas, replicas(d.Spec.Replicas))
			s.Subjects = append([]Ref{owner}, s.Subjects...)
			s.Vars["near"] = " " + says + "."
			return Answered(d.Status.ReadyReplicas == 0, SawObject("deployments.apps", d.Namespace, d.Name, "%s", says))
		}
		drivers, err := probes.CSIDrivers.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		s.Subjects = append([]Ref{class}, s.Subjects...)
		if drivers.Get("", name) != nil {
			return CantTell(fmt.Errorf("CSI driver %s is installed; no pod of its controller is to be seen", name))
		}
		var have []string
		for _, d := range drivers.All() {
			have = append(have, d.Name)
		}
		if len(have) > 0 {
			s.Vars["near"] = " Installed are " + strings.Join(have, ", ") + "."
		}
		if n := nearest(name, have); n != "" {
			s.Vars["near"] += " The nearest is " + n + "."
		}
		return Answered(true, SawObject("storageclasses.storage.k8s.io", "", c.className, "StorageClass %s has provisioner: %s", c.className, c.class.Provisioner),
			Saw("csidrivers.storage.k8s.io", nil, "there is no CSIDriver %s, and no pod that provisions for it", name))
	}))

// migrated is the CSI driver that stands for an in-tree provisioner.
// Source: kubernetes staging/src/k8s.io/csi-translation-lib.
func migrated(provisioner string) string {
	switch provisioner {
	case "kubernetes.io/aws-ebs":
		return "ebs.csi.aws.com"
	case "kubernetes.io/gce-pd":
		return "pd.csi.storage.gke.io"
	case "kubernetes.io/azure-disk":
		return "disk.csi.azure.com"
	case "kubernetes.io/azure-file":
		return "file.csi.azure.com"
	case "kubernetes.io/cinder":
		return "cinder.csi.openstack.org"
	case "kubernetes.io/vsphere-volume":
		return "csi.vsphere.vmware.com"
	}
	return provisioner
}

// provisions reports whether pods of this spec look like the provisioner: it
// is named in their command or environment, or they are named after it.
func provisions(spec corev1.PodSpec, podName, provisioner string) bool {
	word := provisioner
	if head, tail, ok := strings.Cut(provisioner, "/"); ok && len(tail) > 3 {
		_, word = head, tail // rancher.io/local-path
	} else if strings.Contains(provisioner, ".csi.") {
		head, _, _ := strings.Cut(provisioner, ".csi.")
		word = head + "-csi" // ebs.csi.aws.com: ebs-csi-controller
	}
	sidecar := false
	for _, c := range spec.Containers {
		for _, arg := range slices.Concat(c.Command, c.Args) {
			// The driver's pods on the nodes name their socket's place after it.
			if strings.Contains(arg, provisioner) && !strings.Contains(arg, "/plugins") {
				return true
			}
		}
		for _, env := range c.Env {
			if env.Value == provisioner {
				return true
			}
		}
		sidecar = sidecar || strings.Contains(c.Image, "csi-provisioner") || strings.Contains(c.Image, "provisioner")
	}
	return strings.Contains(podName, word) && (sidecar || strings.Contains(podName, "controller") || strings.Contains(podName, "provisioner"))
}

func replicas(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}

// provisioningFails: the provisioner tries and fails; why explains it.
var provisioningFails = &Rule{
	ID: "volume-provisioning-fails", Explains: []*Rule{claimNotBound}, Intermediate: true,
	Needs: []probes.Any{placements, probes.Events},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		events, err := probes.Events.Of(facts)
		if err != nil {
			return nil
		}
		var suspects []Suspect
		for _, e := range effects {
			about := events.About(e.Subject())
			for _, event := range slices.Backward(about) {
				if event.Reason == "ProvisioningFailed" {
					at := probes.EventTime(event)
					suspects = append(suspects, Suspect{
						Subjects: []Ref{e.Subject()}, Effects: []*Finding{e}, Vars: map[string]string{"claim": e.Subject().Name, "says": event.Message},
						Data: Evidence{Says: "ProvisioningFailed: " + event.Message, Document: probes.Document{Path: "events"}, At: &at},
					})
					break
				}
			}
		}
		return suspects
	},
	Tests: []Test{{Asks: "does the provisioner report that it can't make the volume of {claim}?", Needs: []probes.Any{probes.Events}, Run: func(_ *probes.Facts, s Suspect) Answer {
		return Answered(true, s.Data.(Evidence))
	}}},
}

var claimRules = []*Rule{storageClassMissing, noDefaultStorageClass, noVolumeFits, volumeClaimed, provisionerMissing, provisioningFails}
