package probes

import (
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The kinds of Kubernetes itself. Each is the list of all objects; what a
// caller may know of an empty list is said at [Source].
var (
	Nodes           = listing[corev1.Node]("nodes", "nodes with their conditions, taints and what they can allocate", reduceNode)
	Namespaces      = listing[corev1.Namespace]("namespaces", "namespaces with their labels and deletion state")
	Services        = listing[corev1.Service]("services", "services with their selectors and ports")
	EndpointSlices  = listing[discoveryv1.EndpointSlice]("endpointslices.discovery.k8s.io", "the addresses behind each service")
	ConfigMaps      = listing[corev1.ConfigMap]("configmaps", "configuration of applications and add-ons")
	ServiceAccounts = listing[corev1.ServiceAccount]("serviceaccounts", "service accounts with their annotations")
	ResourceQuotas  = listing[corev1.ResourceQuota]("resourcequotas", "quotas with what is used and allowed")
	LimitRanges     = listing[corev1.LimitRange]("limitranges", "limits on single pods and containers")
	Claims          = listing[corev1.PersistentVolumeClaim]("persistentvolumeclaims", "claims for volumes")
	Volumes         = listing[corev1.PersistentVolume]("persistentvolumes", "volumes with their zones and claims")

	Deployments         = listing[appsv1.Deployment]("deployments.apps", "deployments with their roll-out state")
	ReplicaSets         = listing[appsv1.ReplicaSet]("replicasets.apps", "the revisions of deployments")
	StatefulSets        = listing[appsv1.StatefulSet]("statefulsets.apps", "stateful sets")
	DaemonSets          = listing[appsv1.DaemonSet]("daemonsets.apps", "daemon sets with how many nodes they lack")
	ControllerRevisions = listing[appsv1.ControllerRevision]("controllerrevisions.apps", "the revisions of stateful and daemon sets")
	Jobs                = listing[batchv1.Job]("jobs.batch", "jobs")
	CronJobs            = listing[batchv1.CronJob]("cronjobs.batch", "jobs that run by the clock")
	Autoscalers         = listing[autoscalingv2.HorizontalPodAutoscaler]("horizontalpodautoscalers.autoscaling", "autoscalers with the metrics that they see")
	DisruptionBudgets   = listing[policyv1.PodDisruptionBudget]("poddisruptionbudgets.policy", "how many pods may be disrupted at once")

	Ingresses      = listing[networkingv1.Ingress]("ingresses.networking.k8s.io", "ingresses with their backends")
	IngressClasses = listing[networkingv1.IngressClass]("ingressclasses.networking.k8s.io", "ingress classes and their controllers")

	StorageClasses    = listing[storagev1.StorageClass]("storageclasses.storage.k8s.io", "storage classes and their provisioners")
	CSIDrivers        = listing[storagev1.CSIDriver]("csidrivers.storage.k8s.io", "installed storage drivers")
	CSINodes          = listing[storagev1.CSINode]("csinodes.storage.k8s.io", "the storage drivers on each node, with their attach limits")
	VolumeAttachments = listing[storagev1.VolumeAttachment]("volumeattachments.storage.k8s.io", "which volume is attached to which node")

	PriorityClasses     = listing[schedulingv1.PriorityClass]("priorityclasses.scheduling.k8s.io", "priorities of pods")
	RuntimeClasses      = listing[nodev1.RuntimeClass]("runtimeclasses.node.k8s.io", "the kinds of container runtime that pods may ask for")
	Leases              = listing[Lease]("leases.coordination.k8s.io", "heartbeats of nodes and leaders")
	KubeRoles           = listing[rbacv1.Role]("roles.rbac.authorization.k8s.io", "rights within a namespace")
	RoleBindings        = listing[rbacv1.RoleBinding]("rolebindings.rbac.authorization.k8s.io", "who has the rights within a namespace")
	ClusterRoles        = listing[rbacv1.ClusterRole]("clusterroles.rbac.authorization.k8s.io", "rights in the whole cluster")
	ClusterRoleBindings = listing[rbacv1.ClusterRoleBinding]("clusterrolebindings.rbac.authorization.k8s.io", "who has rights in the whole cluster")
)

// A Lease is a heartbeat. Its times are read with or without fractions of a
// second, for people write them both ways.
type Lease struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		HolderIdentity *string      `json:"holderIdentity"`
		RenewTime      *metav1.Time `json:"renewTime"`
	} `json:"spec"`
}

// reduceNode drops the list of cached images, which is most of a node.
func reduceNode(n *corev1.Node) { n.Status.Images = nil }
