package probes

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// A podReducer strips pods while they are read, so that memory grows with
// trouble and not with pods. A pod that is not well stays whole. A pod that is
// well keeps what places it: its names, labels, owner, node and addresses, its
// containers with their states, and that it is ready. It shares with the other
// well pods of its workload's revision what they have in common, and loses
// what only tells how it got there: the other conditions, the init containers'
// ends, who wrote which field, and most annotations.
type podReducer struct {
	revisions map[string]*corev1.Pod // a well pod by the revision that it belongs to
	words     map[string]string
	slab      []corev1.Pod
}

func newPodReducer() *podReducer {
	return &podReducer{revisions: map[string]*corev1.Pod{}, words: map[string]string{}}
}

// one is the same text for all that say the same.
func (r *podReducer) one(s string) string {
	if kept, ok := r.words[s]; ok {
		return kept
	}
	s = strings.Clone(s)
	r.words[s] = s
	return s
}

// reduce gives the pod as it is kept. The pod that was read may be dropped.
func (r *podReducer) reduce(p *corev1.Pod) *corev1.Pod {
	for i := range p.Status.ContainerStatuses {
		p.Status.ContainerStatuses[i].ContainerID = ""
	}
	if !well(p) {
		return p
	}
	if len(r.slab) == 0 {
		r.slab = make([]corev1.Pod, 64)
	}
	kept := &r.slab[0]
	r.slab = r.slab[1:]
	*kept = *p
	r.slimMeta(kept)
	r.slimStatus(kept)
	owner := Controller(kept)
	if owner == nil {
		return kept
	}
	revision := string(owner.UID) + " " + kept.Labels["pod-template-hash"] + kept.Labels["controller-revision-hash"]
	other := r.revisions[revision]
	if other == nil {
		r.revisions[revision] = kept
		return kept
	}
	if likeContainers(kept.Spec.Containers, other.Spec.Containers) && likeContainers(kept.Spec.InitContainers, other.Spec.InitContainers) {
		r.share(kept, other)
	}
	return kept
}

// well reports whether nothing at all is wrong with a pod, nor was lately.
func well(p *corev1.Pod) bool {
	if p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil || p.Spec.NodeName == "" || !Ready(p) ||
		len(p.Spec.EphemeralContainers) > 0 || len(p.Spec.ReadinessGates) > 0 || p.Status.Reason != "" || p.Status.Message != "" {
		return false
	}
	for _, s := range p.Status.ContainerStatuses {
		if !s.Ready || s.RestartCount > 0 || s.State.Running == nil {
			return false
		}
	}
	return !slices.ContainsFunc(p.Status.InitContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.RestartCount > 0 || s.State.Terminated == nil || s.State.Terminated.ExitCode != 0
	}) && len(p.Status.ContainerStatuses) == len(p.Spec.Containers)
}

func (r *podReducer) slimMeta(p *corev1.Pod) {
	p.Namespace, p.GenerateName, p.ResourceVersion = r.one(p.Namespace), r.one(p.GenerateName), ""
	p.Kind, p.APIVersion = r.one(p.Kind), r.one(p.APIVersion)
	p.ManagedFields = nil
	maps.DeleteFunc(p.Annotations, func(k, _ string) bool { return !tellingAnnotation(k) })
	if len(p.Annotations) == 0 {
		p.Annotations = nil
	}
}

// tellingAnnotation reports whether an annotation of a well pod matters to
// others: what AWS, Karpenter and the cluster autoscaler do with it, that it is
// a mirror of a static pod, and whether it is in a mesh.
func tellingAnnotation(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return strings.HasSuffix(domain, "amazonaws.com") || strings.HasSuffix(domain, "k8s.aws") || domain == "karpenter.sh" ||
		domain == "cluster-autoscaler.kubernetes.io" || key == corev1.MirrorPodAnnotationKey ||
		domain == "ambient.istio.io" || key == "sidecar.istio.io/inject" || key == "linkerd.io/inject" || key == "proxy.istio.io/config"
}

func (r *podReducer) slimStatus(p *corev1.Pod) {
	s := &p.Status
	ready := *PodCondition(p, corev1.PodReady)
	s.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: ready.LastTransitionTime}}
	s.Phase, s.QOSClass = corev1.PodRunning, corev1.PodQOSClass(r.one(string(s.QOSClass)))
	s.HostIP, s.HostIPs = r.one(s.HostIP), nil
	s.InitContainerStatuses, s.ResourceClaimStatuses, s.Resize = nil, nil, ""
	if len(s.PodIPs) == 1 && s.PodIPs[0].IP == s.PodIP {
		s.PodIPs[0].IP = s.PodIP // one text for both
	}
	p.Spec.NodeName = r.one(p.Spec.NodeName)
	s.ContainerStatuses = slices.Clip(s.ContainerStatuses)
	for i := range s.ContainerStatuses {
		c := &s.ContainerStatuses[i]
		c.Name, c.Image, c.ImageID = r.one(c.Name), r.one(c.Image), r.one(c.ImageID)
		c.AllocatedResources, c.Resources, c.VolumeMounts, c.User, c.AllocatedResourcesStatus = nil, nil, nil, nil, nil
		c.Started = &started
	}
}

var started = true

// likeContainers reports whether containers of one revision are still alike:
// image and resources may be changed in a running pod, and webhooks may have
// added containers or variables.
func likeContainers(a, b []corev1.Container) bool {
	return slices.EqualFunc(a, b, func(a, b corev1.Container) bool {
		return a.Name == b.Name && a.Image == b.Image && len(a.Env) == len(b.Env) && len(a.VolumeMounts) == len(b.VolumeMounts) &&
			len(a.Ports) == len(b.Ports) && slices.Equal(a.Args, b.Args) && slices.Equal(a.Command, b.Command) &&
			sameList(a.Resources.Requests, b.Resources.Requests) && sameList(a.Resources.Limits, b.Resources.Limits)
	})
}

func sameList(a, b corev1.ResourceList) bool {
	return maps.EqualFunc(a, b, func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })
}

// share lets a pod have its parts from another one of the same revision.
func (r *podReducer) share(p, other *corev1.Pod) {
	if maps.Equal(p.Labels, other.Labels) {
		p.Labels = other.Labels
	}
	if maps.Equal(p.Annotations, other.Annotations) {
		p.Annotations = other.Annotations
	}
	if len(p.OwnerReferences) == 1 && len(other.OwnerReferences) == 1 {
		p.OwnerReferences = other.OwnerReferences
	}
	own := p.Spec
	p.Spec = other.Spec
	p.Spec.NodeName, p.Spec.Hostname, p.Spec.Subdomain = own.NodeName, own.Hostname, r.one(own.Subdomain)
	p.Spec.Volumes = shareVolumes(own.Volumes, other.Spec.Volumes)
	if !pinned(own.Affinity) {
		return
	}
	p.Spec.Affinity = nil
}

// pinned reports whether an affinity is the one by which a DaemonSet names the
// node of each pod; where the pod is, it says nothing more.
func pinned(a *corev1.Affinity) bool {
	return a != nil && a.NodeAffinity != nil && a.PodAffinity == nil && a.PodAntiAffinity == nil &&
		a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil &&
		slices.ContainsFunc(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
			return len(t.MatchFields) > 0
		})
}

// shareVolumes gives the other pod's volumes if they are alike but for the
// random name of the token's volume; else the own ones, with that name.
func shareVolumes(own, other []corev1.Volume) []corev1.Volume {
	if len(own) != len(other) {
		return own
	}
	alike := true
	for i := range own {
		if strings.HasPrefix(own[i].Name, tokenVolume) && strings.HasPrefix(other[i].Name, tokenVolume) {
			own[i] = other[i]
		}
		alike = alike && own[i].Name == other[i].Name && claimOf(own[i]) == claimOf(other[i])
	}
	if alike {
		return other
	}
	return own
}

// tokenVolume begins the name of the volume that the API server adds for the
// service account's token. Source: k8s.io/kubernetes
// plugin/pkg/admission/serviceaccount/admission.go.
const tokenVolume = "kube-api-access-"

func claimOf(v corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return "ephemeral"
	}
	return ""
}
