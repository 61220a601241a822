package probes

import (
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NetworkPolicies say which pods may talk to which, where something enforces
// them: see [network.World].
var NetworkPolicies = listing[networkingv1.NetworkPolicy]("networkpolicies.networking.k8s.io", "which pods may talk to which")

// A SecurityGroupPolicy gives the pods that it selects security groups of
// their own, on a branch interface.
// Source: github.com/aws/amazon-vpc-resource-controller-k8s, apis/vpcresources/v1beta1.
type SecurityGroupPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		PodSelector            *metav1.LabelSelector `json:"podSelector,omitempty"`
		ServiceAccountSelector *metav1.LabelSelector `json:"serviceAccountSelector,omitempty"`
		SecurityGroups         struct {
			GroupIDs []string `json:"groupIds,omitempty"`
		} `json:"securityGroups"`
	} `json:"spec"`
}

// A CNINode is what a node's VPC CNI asks of the VPC resource controller.
// Source: github.com/aws/amazon-vpc-resource-controller-k8s, apis/vpcresources/v1alpha1.
type CNINode struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Features []struct {
			Name  string `json:"name"` // SecurityGroupsForPods, CustomNetworking
			Value string `json:"value,omitempty"`
		} `json:"features,omitempty"`
		Tags map[string]string `json:"tags,omitempty"`
	} `json:"spec"`
}

// An ENIConfig is the subnet and the security groups that the VPC CNI gives to
// pods of a zone with custom networking.
// Source: github.com/aws/amazon-vpc-cni-k8s, pkg/apis/crd/v1alpha1.
type ENIConfig struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Subnet         string   `json:"subnet"`
		SecurityGroups []string `json:"securityGroups,omitempty"`
	} `json:"spec"`
}

// The VPC CNI's own kinds.
var (
	SecurityGroupPolicies = listing[SecurityGroupPolicy]("securitygrouppolicies.vpcresources.k8s.aws", "which pods get security groups of their own")
	CNINodes              = listing[CNINode]("cninodes.vpcresources.k8s.aws", "what each node's VPC CNI uses")
	ENIConfigs            = listing[ENIConfig]("eniconfigs.crd.k8s.amazonaws.com", "the subnets and groups of pods with custom networking")
)
