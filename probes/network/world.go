// Package network decides whether a packet can pass between two ends of an EKS
// cluster: pods, nodes, the API server, Services, VPC endpoints, addresses. It
// looks at what security groups, network ACLs, route tables and NetworkPolicies
// say, both ways, and names the rule that lets the packet pass or the absence
// that stops it. It does no I/O: the facts are put into a [World].
//
// NetworkPolicies are objects that something must enforce. The VPC CNI does so
// only with its network policy agent switched on; without it (and without
// Calico, Cilium …) they mean nothing. World.Enforced says which is the case:
// a denial by a policy is a No where it is Yes, no obstacle where it is No, and
// Unknown where it is Unknown.
package network

import (
	"errors"
	"fmt"
	"sync"

	ec2 "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

var errNothingKnown = errors.New("nothing is known of the path")

// Known is one kind of thing: all of it that was captured, or why it can't be
// had. A thing that is not among All may still exist, unless its kind is listed
// as a whole (Kubernetes objects are, AWS documents may be narrowed).
type Known[T any] struct {
	All      []T
	Document Document
	Err      error // wraps a *probes.Gap
}

// A Cluster is what the EKS control plane says of its network.
type Cluster struct {
	Name             string
	VPC              string
	PrimaryGroup     string   // clusterSecurityGroupId
	AdditionalGroups []string // securityGroupIds: on the control plane's interfaces only
	Subnets          []string
	PublicAccess     bool
	PrivateAccess    bool
	PublicCIDRs      []string
	IPv6             bool
}

// A PrefixList is a managed prefix list with its entries.
type PrefixList struct {
	ID    string
	CIDRs []string
}

// A World is all that is known. It must not change after the first question.
type World struct {
	Instances  Known[ec2.Instance]
	Interfaces Known[ec2.NetworkInterface]
	Groups     Known[ec2.SecurityGroup]
	// GroupRules replace the rules of Groups where only
	// describe-security-group-rules was captured.
	GroupRules   Known[ec2.SecurityGroupRule]
	Subnets      Known[ec2.Subnet]
	ACLs         Known[ec2.NetworkAcl]
	RouteTables  Known[ec2.RouteTable]
	VPCEndpoints Known[ec2.VpcEndpoint]
	PrefixLists  Known[PrefixList]
	Cluster      Known[Cluster] // at most one

	Pods       Known[*corev1.Pod]
	Nodes      Known[*corev1.Node]
	Namespaces Known[*corev1.Namespace]
	Services   Known[*corev1.Service]
	Slices     Known[*discoveryv1.EndpointSlice]
	Policies   Known[*networkingv1.NetworkPolicy]

	// Enforced says whether something enforces NetworkPolicies; the zero value
	// means Unknown.
	Enforced    Truth
	EnforcedErr error // why it is Unknown
	// PodENIStandard says whether Security Groups for Pods run in standard
	// mode (POD_SECURITY_GROUP_ENFORCING_MODE=standard on aws-node), where
	// traffic inside a node is not filtered; No is the default, strict. The zero
	// value means Unknown.
	PodENIStandard Truth

	// Lacks turns a Missing into the error that answers carry, so that it can
	// be a *probes.Gap; nil keeps it.
	Lacks func(*Missing) error

	once  sync.Once
	index index
}

func (w *World) enforced() Truth {
	if w.Enforced == "" {
		return Unknown
	}
	return w.Enforced
}

// absent is the error for a thing that is not in a document that should have it.
func absent[T any](w *World, k Known[T], what, name string) error {
	if k.Err != nil {
		return fmt.Errorf("%s %s: %w", what, name, k.Err)
	}
	missing := &Missing{Document: k.doc(name), Detail: fmt.Sprintf("%s %s is not in it", what, name)}
	if w.Lacks != nil {
		return w.Lacks(missing)
	}
	return missing
}

// Missing says that a document was captured but does not hold a thing that
// something else refers to: it was narrowed, or taken at another time.
type Missing struct {
	Document Document
	Detail   string
}

func (m *Missing) Error() string { return m.Document.Path + ": " + m.Detail }

func (k Known[T]) doc(names ...string) Document {
	return Document{Path: k.Document.Path, Only: names}
}
