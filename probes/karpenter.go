package probes

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Karpenter's own objects. Nothing is "not there" without its CRD: a source
// says so with an empty list where it knows, else with a gap.
var (
	NodePools       = listing[NodePool]("nodepools.karpenter.sh", "Karpenter's NodePools: what nodes may be made, and their conditions")
	NodeClaims      = listing[NodeClaim]("nodeclaims.karpenter.sh", "Karpenter's NodeClaims: each node it asked for, from launch to removal")
	EC2NodeClasses  = listing[EC2NodeClass]("ec2nodeclasses.karpenter.k8s.aws", "Karpenter's EC2NodeClasses: AMI, subnets, security groups and role of its nodes")
	AutoNodeClasses = listing[AutoNodeClass]("nodeclasses.eks.amazonaws.com", "the NodeClasses of EKS Auto Mode: subnets, security groups and role of its nodes")
)

// A NodePool is Karpenter's of karpenter.sh/v1 and v1beta1, as far as a
// diagnosis reads it. Source: the CRDs of kubernetes-sigs/karpenter v0.32..v1.15.
type NodePool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              NodePoolSpec   `json:"spec"`
	Status            NodePoolStatus `json:"status"`
}

// NodePoolSpec is what a NodePool asks for.
type NodePoolSpec struct {
	Template   NodeClaimTemplate   `json:"template"`
	Disruption Disruption          `json:"disruption"`
	Limits     corev1.ResourceList `json:"limits,omitempty"` // the key "nodes" counts nodes
	Weight     *int32              `json:"weight,omitempty"`
	Replicas   *int64              `json:"replicas,omitempty"` // v1.8+: a static pool, which ignores pods
}

// NodeClaimTemplate is what every node of a pool is made from.
type NodeClaimTemplate struct {
	Metadata struct {
		Labels      map[string]string `json:"labels,omitempty"`
		Annotations map[string]string `json:"annotations,omitempty"`
	} `json:"metadata"`
	Spec NodeClaimSpec `json:"spec"`
}

// NodeClaimSpec is what a node must be.
type NodeClaimSpec struct {
	NodeClassRef  NodeClassRef      `json:"nodeClassRef"`
	Requirements  []Requirement     `json:"requirements,omitempty"`
	Taints        []corev1.Taint    `json:"taints,omitempty"`
	StartupTaints []corev1.Taint    `json:"startupTaints,omitempty"` // expected to be removed by whoever put them there
	Kubelet       *KarpenterKubelet `json:"kubelet,omitempty"`       // v1beta1 only; v1 has it in the EC2NodeClass
	ExpireAfter   string            `json:"expireAfter,omitempty"`
	// TerminationGracePeriod bounds a drain; nil: unbounded.
	TerminationGracePeriod *metav1.Duration `json:"terminationGracePeriod,omitempty"`
	// Resources are what a NodeClaim was sized for.
	Resources struct {
		Requests corev1.ResourceList `json:"requests,omitempty"`
	} `json:"resources"`
}

// NodeClassRef names a node class: group and kind in v1, apiVersion in v1beta1.
type NodeClassRef struct {
	Group      string `json:"group,omitempty"`
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"`
	Name       string `json:"name"`
}

// A Requirement restricts a label of the nodes: In, NotIn, Exists,
// DoesNotExist, Gt, Lt, and from v1.13 Gte and Lte.
type Requirement struct {
	Key       string   `json:"key"`
	Operator  string   `json:"operator"`
	Values    []string `json:"values,omitempty"`
	MinValues *int     `json:"minValues,omitempty"`
}

// Disruption is when and how fast a pool's nodes may be replaced.
type Disruption struct {
	ConsolidationPolicy string             `json:"consolidationPolicy,omitempty"`
	ConsolidateAfter    string             `json:"consolidateAfter,omitempty"` // a duration or "Never"
	ExpireAfter         string             `json:"expireAfter,omitempty"`      // v1beta1; v1 has it in the template
	Budgets             []DisruptionBudget `json:"budgets,omitempty"`
}

// A DisruptionBudget limits how many nodes may go at once.
type DisruptionBudget struct {
	Nodes    string   `json:"nodes,omitempty"` // "10%" or "2"
	Schedule string   `json:"schedule,omitempty"`
	Duration string   `json:"duration,omitempty"`
	Reasons  []string `json:"reasons,omitempty"`
}

// NodePoolStatus is what Karpenter reports of a pool. Resources are the sum
// over its nodes, which Karpenter holds against the limits.
type NodePoolStatus struct {
	Conditions []metav1.Condition  `json:"conditions,omitempty"`
	Resources  corev1.ResourceList `json:"resources,omitempty"`
}

// A NodeClaim is one node that Karpenter asked for.
type NodeClaim struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              NodeClaimSpec   `json:"spec"`
	Status            NodeClaimStatus `json:"status"`
}

// NodeClaimStatus is how far a node came.
type NodeClaimStatus struct {
	NodeName         string              `json:"nodeName,omitempty"`   // empty until registered
	ProviderID       string              `json:"providerID,omitempty"` // empty until launched
	ImageID          string              `json:"imageID,omitempty"`
	Capacity         corev1.ResourceList `json:"capacity,omitempty"`
	Allocatable      corev1.ResourceList `json:"allocatable,omitempty"`
	Conditions       []metav1.Condition  `json:"conditions,omitempty"`
	LastPodEventTime metav1.Time         `json:"lastPodEventTime,omitzero"`
}

// An AutoNodeClass is the NodeClass of EKS Auto Mode (eks.amazonaws.com/v1), as
// far as a diagnosis reads it.
// Source: docs.aws.amazon.com/eks/latest/userguide/create-node-class.html.
type AutoNodeClass struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Role string `json:"role,omitempty"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions,omitempty"`
	} `json:"status"`
}

// An EC2NodeClass is Karpenter's of karpenter.k8s.aws/v1 and v1beta1.
type EC2NodeClass struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              EC2NodeClassSpec   `json:"spec"`
	Status            EC2NodeClassStatus `json:"status"`
}

// EC2NodeClassSpec is what EC2 is asked for.
type EC2NodeClassSpec struct {
	AMIFamily                        string               `json:"amiFamily,omitempty"`
	AMISelectorTerms                 []SelectorTerm       `json:"amiSelectorTerms,omitempty"`
	SubnetSelectorTerms              []SelectorTerm       `json:"subnetSelectorTerms,omitempty"`
	SecurityGroupSelectorTerms       []SelectorTerm       `json:"securityGroupSelectorTerms,omitempty"`
	CapacityReservationSelectorTerms []SelectorTerm       `json:"capacityReservationSelectorTerms,omitempty"`
	Role                             string               `json:"role,omitempty"`            // a name; an ARN is a mistake
	InstanceProfile                  string               `json:"instanceProfile,omitempty"` // instead of Role; a name
	UserData                         string               `json:"userData,omitempty"`
	Tags                             map[string]string    `json:"tags,omitempty"`
	Kubelet                          *KarpenterKubelet    `json:"kubelet,omitempty"`
	MetadataOptions                  *MetadataOptions     `json:"metadataOptions,omitempty"`
	BlockDeviceMappings              []BlockDeviceMapping `json:"blockDeviceMappings,omitempty"`
	InstanceStorePolicy              string               `json:"instanceStorePolicy,omitempty"`
	AssociatePublicIPAddress         *bool                `json:"associatePublicIPAddress,omitempty"`
	DetailedMonitoring               *bool                `json:"detailedMonitoring,omitempty"`
	Context                          string               `json:"context,omitempty"`
}

// A SelectorTerm finds things of AWS. Terms are ORed, what is inside one is
// ANDed; a tag value "*" asks for the key only. Name of a security group is
// its GroupName and not its Name tag.
type SelectorTerm struct {
	Tags         map[string]string `json:"tags,omitempty"`
	ID           string            `json:"id,omitempty"`
	Name         string            `json:"name,omitempty"`
	Owner        string            `json:"owner,omitempty"`
	Alias        string            `json:"alias,omitempty"` // "al2023@latest"
	SSMParameter string            `json:"ssmParameter,omitempty"`
	OwnerID      string            `json:"ownerID,omitempty"`
}

// KarpenterKubelet are the kubelet settings that Karpenter passes on.
type KarpenterKubelet struct {
	ClusterDNS                  []string          `json:"clusterDNS,omitempty"`
	MaxPods                     *int32            `json:"maxPods,omitempty"`
	PodsPerCore                 *int32            `json:"podsPerCore,omitempty"`
	SystemReserved              map[string]string `json:"systemReserved,omitempty"`
	KubeReserved                map[string]string `json:"kubeReserved,omitempty"`
	EvictionHard                map[string]string `json:"evictionHard,omitempty"`
	EvictionSoft                map[string]string `json:"evictionSoft,omitempty"`
	ImageGCHighThresholdPercent *int32            `json:"imageGCHighThresholdPercent,omitempty"`
	ImageGCLowThresholdPercent  *int32            `json:"imageGCLowThresholdPercent,omitempty"`
	CPUCFSQuota                 *bool             `json:"cpuCFSQuota,omitempty"`
}

// MetadataOptions are the instance metadata settings.
type MetadataOptions struct {
	HTTPEndpoint            string `json:"httpEndpoint,omitempty"`
	HTTPProtocolIPv6        string `json:"httpProtocolIPv6,omitempty"`
	HTTPPutResponseHopLimit *int64 `json:"httpPutResponseHopLimit,omitempty"` // default 2 in v1beta1, 1 in v1
	HTTPTokens              string `json:"httpTokens,omitempty"`
}

// A BlockDeviceMapping is one disk of an instance.
type BlockDeviceMapping struct {
	DeviceName string `json:"deviceName,omitempty"`
	RootVolume bool   `json:"rootVolume,omitempty"`
	EBS        *struct {
		DeleteOnTermination *bool  `json:"deleteOnTermination,omitempty"`
		Encrypted           *bool  `json:"encrypted,omitempty"`
		KMSKeyID            string `json:"kmsKeyID,omitempty"`
		SnapshotID          string `json:"snapshotID,omitempty"`
		VolumeSize          string `json:"volumeSize,omitempty"`
		VolumeType          string `json:"volumeType,omitempty"`
	} `json:"ebs,omitempty"`
}

// EC2NodeClassStatus is what the selectors found. SecurityGroups are what the
// next node gets, not what the existing ones have.
type EC2NodeClassStatus struct {
	Subnets []struct {
		ID     string `json:"id"`
		Zone   string `json:"zone"`
		ZoneID string `json:"zoneID,omitempty"`
	} `json:"subnets,omitempty"`
	SecurityGroups []struct {
		ID   string `json:"id"`
		Name string `json:"name,omitempty"`
	} `json:"securityGroups,omitempty"`
	AMIs []struct {
		ID           string        `json:"id"`
		Name         string        `json:"name,omitempty"`
		Deprecated   bool          `json:"deprecated,omitempty"`
		Requirements []Requirement `json:"requirements,omitempty"`
	} `json:"amis,omitempty"`
	InstanceProfile      string             `json:"instanceProfile,omitempty"`
	CapacityReservations []json.RawMessage  `json:"capacityReservations,omitempty"`
	Conditions           []metav1.Condition `json:"conditions,omitempty"`
}
