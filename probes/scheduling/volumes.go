package scheduling

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// ClaimNames are the PersistentVolumeClaims that a pod uses, its generic
// ephemeral volumes' included.
func ClaimNames(pod *corev1.Pod) []string {
	var names []string
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.PersistentVolumeClaim != nil:
			names = append(names, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			names = append(names, pod.Name+"-"+v.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// blocked is what keeps the pod from every node.
func (c *Cluster) blocked(pod *corev1.Pod) []Failure {
	var failures []Failure
	for _, gate := range pod.Spec.SchedulingGates {
		failures = append(failures, Failure{Predicate: Gated, Key: gate.Name, Change: "remove the scheduling gate " + gate.Name, Says: "the pod has the scheduling gate " + gate.Name})
	}
	if len(pod.Spec.ResourceClaims) > 0 {
		failures = append(failures, Failure{Predicate: DeviceClaims, Unknown: true, Says: "the pod has resource claims, which are not recomputed"})
	}
	names := ClaimNames(pod)
	if len(names) > 0 && c.Claims == nil {
		return append(failures, Failure{Predicate: ClaimUnbound, Unknown: true, Says: "the PersistentVolumeClaims are unknown"})
	}
	for _, name := range names {
		claim := c.Claims.Get(pod.Namespace, name)
		f := Failure{Claim: name, Change: "have PersistentVolumeClaim " + name + " bound"}
		switch {
		case claim == nil:
			f.Predicate, f.Change, f.Says = ClaimMissing, "create PersistentVolumeClaim "+name, fmt.Sprintf("PersistentVolumeClaim %s/%s doesn't exist", pod.Namespace, name)
		case claim.DeletionTimestamp != nil:
			f.Predicate, f.Says = ClaimMissing, fmt.Sprintf("PersistentVolumeClaim %s/%s is being deleted", pod.Namespace, name)
		case claim.Status.Phase == corev1.ClaimLost:
			f.Predicate, f.Says = ClaimUnbound, fmt.Sprintf("PersistentVolumeClaim %s/%s has lost its volume %s", pod.Namespace, name, claim.Spec.VolumeName)
		case !bound(claim):
			mode, unknown := c.bindingMode(claim)
			if mode == storagev1.VolumeBindingWaitForFirstConsumer {
				continue
			}
			f.Predicate, f.Unknown = ClaimUnbound, unknown
			f.Says = fmt.Sprintf("PersistentVolumeClaim %s/%s is not bound, and its class doesn't wait for a pod", pod.Namespace, name)
			if unknown {
				f.Says = fmt.Sprintf("PersistentVolumeClaim %s/%s is not bound; whether its class waits for a pod is unknown", pod.Namespace, name)
			}
		case slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteOncePod):
			user := c.userOf(pod, name)
			if user == nil {
				continue
			}
			f.Predicate, f.Pods, f.Change = ClaimExclusive, []*corev1.Pod{user}, "free PersistentVolumeClaim "+name
			f.Says = fmt.Sprintf("PersistentVolumeClaim %s/%s is ReadWriteOncePod and pod %s uses it", pod.Namespace, name, user.Name)
		default:
			continue
		}
		failures = append(failures, f)
	}
	return failures
}

func bound(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeName != "" && claim.Status.Phase != corev1.ClaimPending
}

// bindingMode is that of the claim's class; a claim without one, or with one
// that doesn't exist, is bound at once or never.
func (c *Cluster) bindingMode(claim *corev1.PersistentVolumeClaim) (mode storagev1.VolumeBindingMode, unknown bool) {
	name := ClassOfClaim(claim)
	if name == "" {
		return storagev1.VolumeBindingImmediate, false
	}
	if c.Classes == nil {
		return storagev1.VolumeBindingImmediate, true
	}
	class := c.Classes.Get("", name)
	if class == nil || class.VolumeBindingMode == nil {
		return storagev1.VolumeBindingImmediate, false
	}
	return *class.VolumeBindingMode, false
}

// userOf is another unfinished pod on a node that uses the claim.
func (c *Cluster) userOf(pod *corev1.Pod, claim string) *corev1.Pod {
	for _, name := range c.nodeNames() {
		for _, other := range c.onNode[name] {
			if other.Namespace == pod.Namespace && other.Name != pod.Name && slices.Contains(ClaimNames(other), claim) {
				return other
			}
		}
	}
	return nil
}

// volumes are the pod's claims whose volume can't be had on the node.
func (c *Cluster) volumes(pod *corev1.Pod, node *corev1.Node) []Failure {
	if c.Claims == nil {
		return nil // blocked says so once
	}
	var failures []Failure
	for _, name := range ClaimNames(pod) {
		claim := c.Claims.Get(pod.Namespace, name)
		if claim == nil {
			continue
		}
		f := Failure{Predicate: VolumeNode, Claim: name}
		switch {
		case bound(claim):
			f.Change = fmt.Sprintf("have the volume %s of PersistentVolumeClaim %s elsewhere", claim.Spec.VolumeName, name)
			if c.Volumes == nil {
				f.Unknown, f.Says = true, "the PersistentVolumes are unknown"
				break
			}
			volume := c.Volumes.Get("", claim.Spec.VolumeName)
			if volume == nil {
				f.Says = fmt.Sprintf("PersistentVolume %s of claim %s doesn't exist", claim.Spec.VolumeName, name)
				f.Never = true
				break
			}
			key, want, ok := VolumeMatches(volume, node)
			if ok {
				continue
			}
			f.Key, f.Want, f.Have = key, want, node.Labels[key]
			f.Says = fmt.Sprintf("PersistentVolume %s of claim %s wants %s=%s, the node has %s", volume.Name, name, key, want, cmp.Or(f.Have, "no such label"))
		default:
			f.Change = "have a volume for PersistentVolumeClaim " + name + " here"
			mode, _ := c.bindingMode(claim)
			if mode != storagev1.VolumeBindingWaitForFirstConsumer {
				continue // blocked
			}
			says, unknown, ok := c.provisionable(claim, node)
			if ok {
				continue
			}
			f.Says, f.Unknown = says, unknown
		}
		failures = append(failures, f)
	}
	return append(failures, c.volumeLimits(pod, node)...)
}

// Zone labels of volumes that predate node affinity. Source: the VolumeZone plug-in of kube-scheduler.
var volumeZoneLabels = []string{
	corev1.LabelTopologyZone, corev1.LabelTopologyRegion,
	corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion,
}

// VolumeMatches reports whether a node can reach a volume, by the volume's
// node affinity and zone labels; if not, which label with which values it wants.
func VolumeMatches(volume *corev1.PersistentVolume, node *corev1.Node) (key, want string, ok bool) {
	if a := volume.Spec.NodeAffinity; a != nil && a.Required != nil && !selects(a.Required, node) {
		key, want := volumeWants(volume, node)
		return key, want, false
	}
	for _, key := range volumeZoneLabels {
		value, labelled := volume.Labels[key]
		if !labelled {
			continue
		}
		have, has := node.Labels[key]
		if !has {
			// The beta and the stable names stand for each other.
			have = node.Labels[otherName[key]]
		}
		if have != "" && !slices.Contains(strings.Split(value, "__"), have) {
			return key, value, false
		}
	}
	return "", "", true
}

var otherName = map[string]string{
	corev1.LabelTopologyZone: corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaZone: corev1.LabelTopologyZone,
	corev1.LabelTopologyRegion: corev1.LabelFailureDomainBetaRegion, corev1.LabelFailureDomainBetaRegion: corev1.LabelTopologyRegion,
}

func volumeWants(volume *corev1.PersistentVolume, node *corev1.Node) (key, want string) {
	for _, term := range volume.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			if e.Operator == corev1.NodeSelectorOpIn && !slices.Contains(e.Values, node.Labels[e.Key]) {
				return e.Key, strings.Join(e.Values, " or ")
			}
		}
	}
	return "node affinity", fmt.Sprint(volume.Spec.NodeAffinity.Required.NodeSelectorTerms)
}

// provisionable reports whether a claim that waits for a pod can get its
// volume on the node: from its class's provisioner, or one that is there already.
func (c *Cluster) provisionable(claim *corev1.PersistentVolumeClaim, node *corev1.Node) (says string, unknown, ok bool) {
	class := c.Classes.Get("", ClassOfClaim(claim))
	if class.Provisioner != "kubernetes.io/no-provisioner" {
		if len(class.AllowedTopologies) == 0 {
			return "", false, true
		}
		for _, term := range class.AllowedTopologies {
			match := true
			for _, e := range term.MatchLabelExpressions {
				if !slices.Contains(e.Values, node.Labels[e.Key]) {
					match = false
					says = fmt.Sprintf("StorageClass %s of claim %s allows only %s in [%s], the node has %s", class.Name, claim.Name, e.Key, strings.Join(e.Values, " "), cmp.Or(node.Labels[e.Key], "no such label"))
				}
			}
			if match {
				return "", false, true
			}
		}
		return says, false, false
	}
	if c.Volumes == nil {
		return "the PersistentVolumes are unknown", true, false
	}
	for _, volume := range c.Volumes.All() {
		if len(VolumeMisfits(claim, volume)) > 0 {
			continue
		}
		if _, _, here := VolumeMatches(volume, node); here {
			return "", false, true
		}
	}
	return fmt.Sprintf("no available PersistentVolume of class %s for claim %s can be reached from here", class.Name, claim.Name), false, false
}

// volumeLimits are the drivers that can attach no more volumes to the node.
func (c *Cluster) volumeLimits(pod *corev1.Pod, node *corev1.Node) []Failure {
	if c.CSINodes == nil || c.Volumes == nil {
		return nil // a limit is rare: its absence isn't worth an Unknown for each pod with a claim
	}
	csi := c.CSINodes.Get("", node.Name)
	if csi == nil {
		return nil
	}
	var failures []Failure
	wanted := c.attachments(pod)
	for _, driver := range csi.Spec.Drivers {
		if driver.Allocatable == nil || driver.Allocatable.Count == nil {
			continue
		}
		attached := map[string]bool{}
		for _, other := range c.onNode[node.Name] {
			for volume, of := range c.attachments(other) {
				if of == driver.Name {
					attached[volume] = true
				}
			}
		}
		added := 0
		for volume, of := range wanted {
			if of == driver.Name && !attached[volume] {
				added++
			}
		}
		limit := int(*driver.Allocatable.Count)
		if added > 0 && len(attached)+added > limit {
			failures = append(failures, Failure{
				Predicate: VolumeLimit, Key: driver.Name, Change: "attach fewer volumes of " + driver.Name, Never: added > limit,
				Says: fmt.Sprintf("%d volumes of %s are attached, %d more are asked for, the limit is %d", len(attached), driver.Name, added, limit),
			})
		}
	}
	return failures
}

// attachments are the pod's volumes that a driver attaches, with the driver.
func (c *Cluster) attachments(pod *corev1.Pod) map[string]string {
	drivers := map[string]string{}
	for _, name := range ClaimNames(pod) {
		claim := c.Claims.Get(pod.Namespace, name)
		if claim == nil {
			continue
		}
		if volume := c.Volumes.Get("", claim.Spec.VolumeName); volume != nil {
			switch {
			case volume.Spec.CSI != nil:
				drivers[volume.Name] = volume.Spec.CSI.Driver
			case volume.Spec.AWSElasticBlockStore != nil:
				drivers[volume.Name] = "ebs.csi.aws.com"
			}
			continue
		}
		if c.Classes == nil {
			continue
		}
		if class := c.Classes.Get("", ClassOfClaim(claim)); class != nil {
			driver := class.Provisioner
			if driver == "kubernetes.io/aws-ebs" {
				driver = "ebs.csi.aws.com"
			}
			drivers[claim.Namespace+"/"+claim.Name] = driver
		}
	}
	return drivers
}

// A Misfit is why a volume can't be bound to a claim.
type Misfit struct {
	Field string // "capacity", "access-modes", "class", "selector", "volume-mode", "claimed", "phase", "name"
	Says  string
}

// VolumeMisfits are all the reasons why a volume can't be bound to a claim;
// none means that it can. Source: FindMatchingVolume in
// k8s.io/component-helpers/storage/volume, which isn't imported because it
// brings client-go along.
func VolumeMisfits(claim *corev1.PersistentVolumeClaim, volume *corev1.PersistentVolume) []Misfit {
	var misfits []Misfit
	add := func(field, format string, args ...any) {
		misfits = append(misfits, Misfit{field, fmt.Sprintf(format, args...)})
	}
	if claim.Spec.VolumeName != "" && claim.Spec.VolumeName != volume.Name {
		add("name", "the claim asks for the volume %s by name", claim.Spec.VolumeName)
	}
	if ref := volume.Spec.ClaimRef; ref != nil && (ref.Namespace != claim.Namespace || ref.Name != claim.Name || ref.UID != "" && claim.UID != "" && ref.UID != claim.UID) {
		if ref.Namespace == claim.Namespace && ref.Name == claim.Name {
			add("claimed", "its claimRef holds the UID of an earlier %s/%s (phase %s)", ref.Namespace, ref.Name, volume.Status.Phase)
		} else {
			add("claimed", "it belongs to the claim %s/%s (phase %s)", ref.Namespace, ref.Name, volume.Status.Phase)
		}
	}
	if want, have := ClassOfClaim(claim), ClassOfVolume(volume); want != have {
		add("class", "its storageClassName is %q, the claim's is %q", have, want)
	}
	want, have := claim.Spec.Resources.Requests[corev1.ResourceStorage], volume.Spec.Capacity[corev1.ResourceStorage]
	if want.Cmp(have) > 0 {
		add("capacity", "it holds %s, the claim asks for %s", Show(corev1.ResourceStorage, have), Show(corev1.ResourceStorage, want))
	}
	if slices.ContainsFunc(claim.Spec.AccessModes, func(m corev1.PersistentVolumeAccessMode) bool { return !slices.Contains(volume.Spec.AccessModes, m) }) {
		add("access-modes", "it offers %s, the claim asks for %s", modes(volume.Spec.AccessModes), modes(claim.Spec.AccessModes))
	}
	if mode(claim.Spec.VolumeMode) != mode(volume.Spec.VolumeMode) {
		add("volume-mode", "its volumeMode is %s, the claim's is %s", mode(volume.Spec.VolumeMode), mode(claim.Spec.VolumeMode))
	}
	if says := selectorMisfit(claim, volume); says != "" {
		add("selector", "%s", says)
	}
	if volume.DeletionTimestamp != nil {
		add("phase", "it is being deleted")
	} else if volume.Status.Phase != "" && volume.Status.Phase != corev1.VolumeAvailable && volume.Spec.ClaimRef == nil {
		add("phase", "its phase is %s", volume.Status.Phase)
	}
	return misfits
}

// ClassOfClaim is the claim's StorageClass, by field or by the old annotation; empty: none.
func ClassOfClaim(claim *corev1.PersistentVolumeClaim) string {
	if class, ok := claim.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		return class
	}
	if claim.Spec.StorageClassName != nil {
		return *claim.Spec.StorageClassName
	}
	return ""
}

// ClassOfVolume is the volume's StorageClass, by field or by the old annotation; empty: none.
func ClassOfVolume(volume *corev1.PersistentVolume) string {
	if class, ok := volume.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		return class
	}
	return volume.Spec.StorageClassName
}

func mode(m *corev1.PersistentVolumeMode) corev1.PersistentVolumeMode {
	if m == nil {
		return corev1.PersistentVolumeFilesystem
	}
	return *m
}

func selects(selector *corev1.NodeSelector, node *corev1.Node) bool {
	ok, err := nodeaffinity.NewLazyErrorNodeSelector(selector).Match(node)
	return err == nil && ok
}

func modes(list []corev1.PersistentVolumeAccessMode) string {
	var names []string
	for _, m := range list {
		names = append(names, string(m))
	}
	return strings.Join(names, ", ")
}

// selectorMisfit says which part of the claim's selector the volume lacks.
func selectorMisfit(claim *corev1.PersistentVolumeClaim, volume *corev1.PersistentVolume) string {
	if claim.Spec.Selector == nil {
		return ""
	}
	selector, err := metav1.LabelSelectorAsSelector(claim.Spec.Selector)
	if err != nil {
		return "the claim's selector is invalid: " + err.Error()
	}
	if selector.Matches(labels.Set(volume.Labels)) {
		return ""
	}
	return fmt.Sprintf("the claim selects %s, its labels are %s", selector, labels.Set(volume.Labels))
}
