// Package probes gathers facts from a cluster, or from a snapshot of one in
// files. Everything that reads the outside world is here and in probes/live;
// what the facts mean is decided in package diagnose.
package probes

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"
)

// A Document is one thing that a [Source] can be asked for.
//
// Path is its place in a snapshot:
//
//	pods                                     a Kubernetes resource of the core group
//	nodepools.karpenter.sh                   one of another group
//	logs/NAMESPACE/POD/CONTAINER.log         a container's log
//	logs/NAMESPACE/POD/CONTAINER.previous.log
//	aws/ec2/describe-security-groups         what that AWS CLI command prints
//
// Only narrows a live read (names, ids); a Source may ignore it and return more.
type Document struct {
	Path string
	Only []string
}

// Log is the document that holds a container's log; previous asks for the log
// of the container's last run that ended.
func Log(namespace, pod, container string, previous bool) Document {
	end := ".log"
	if previous {
		end = ".previous.log"
	}
	return Document{Path: "logs/" + namespace + "/" + pod + "/" + container + end}
}

// AsLog reports whose log a document is; ok is false where it is not a log.
func (d Document) AsLog() (namespace, pod, container string, previous, ok bool) {
	parts := strings.Split(d.Path, "/")
	if len(parts) != 4 || parts[0] != "logs" || !strings.HasSuffix(parts[3], ".log") {
		return "", "", "", false, false
	}
	container, previous = strings.CutSuffix(strings.TrimSuffix(parts[3], ".log"), ".previous")
	return parts[1], parts[2], container, previous, true
}

// IsAWS reports whether the document comes from AWS and not from Kubernetes.
func (d Document) IsAWS() bool { return strings.HasPrefix(d.Path, "aws/") }

// A Source is where documents come from: a live cluster, a folder, an archive,
// a recorder around another Source.
//
// Open returns a [*Gap] when the document can't be had, and may return more
// than was asked for. A Kubernetes resource is read as a stream of objects
// (see [Items]), an AWS document as one or more JSON values, a log as text.
// A resource that is known to have no object is an empty stream, not a Gap.
type Source interface {
	Open(context.Context, Document) (io.ReadCloser, error)
	// Now is the clock of everything in the source: the time of the capture
	// for a snapshot, the wall clock for a live cluster.
	Now() time.Time
}

// A Reason says why a document can't be had.
type Reason string

// The reasons for a [Gap].
const (
	Forbidden   Reason = "forbidden"    // the reader lacks a right
	NotCaptured Reason = "not-captured" // the snapshot doesn't hold it
	TimedOut    Reason = "timed-out"    // not answered within the deadline
	Unreadable  Reason = "unreadable"   // it is there, but is broken
)

// A Gap is a document that can't be had. It never means that the thing does
// not exist. It is an error, so that it travels up to the report by itself.
type Gap struct {
	Document Document
	Reason   Reason
	Grant    string // the right that would close it: "list pods", "ec2:DescribeInstances"
	Detail   string // what the server or the reader said
}

func (g *Gap) Error() string {
	s := g.Document.Path + ": " + string(g.Reason)
	if g.Detail != "" {
		s += ": " + g.Detail
	}
	return s
}

// gapf makes a Gap whose detail is formatted.
func gapf(doc Document, reason Reason, format string, args ...any) *Gap {
	return &Gap{Document: doc, Reason: reason, Grant: doc.Grant(), Detail: fmt.Sprintf(format, args...)}
}

// Grant is the right that a live read of the document takes, in the words of
// RBAC ("list pods") or IAM ("ec2:DescribeInstances").
func (d Document) Grant() string {
	if rest, ok := strings.CutPrefix(d.Path, "aws/"); ok {
		service, command, _ := strings.Cut(rest, "/")
		command, _, _ = strings.Cut(command, "/")
		if service == "" || command == "" {
			return rest
		}
		var action strings.Builder
		for word := range strings.SplitSeq(command, "-") {
			if word != "" {
				action.WriteString(strings.ToUpper(word[:1]) + word[1:])
			}
		}
		return service + ":" + strings.Replace(action.String(), "OpenIdConnect", "OpenIDConnect", 1) // the one that is irregular
	}
	if strings.HasPrefix(d.Path, "logs/") {
		return "get pods/log"
	}
	if d.Path == HelmReleases.Path && !d.IsHelmReleases() {
		return "" // no right brings it: a running cluster is never asked for Secrets
	}
	return "list " + d.Path
}

// Command is what a person runs to see the document.
func (d Document) Command() string {
	if rest, ok := strings.CutPrefix(d.Path, "aws/"); ok {
		service, command, _ := strings.Cut(rest, "/")
		s := "aws " + service + " " + command
		if flag := awsOnlyFlag[rest]; flag != "" && len(d.Only) > 0 {
			s += " " + flag + " " + strings.Join(d.Only, " ")
		}
		return s
	}
	if ns, pod, container, previous, ok := d.AsLog(); ok {
		s := "kubectl logs -n " + ns + " " + pod + " -c " + container
		if previous {
			s += " --previous"
		}
		return s
	}
	if len(d.Only) == 1 {
		if ns, name, ok := strings.Cut(d.Only[0], "/"); ok {
			return "kubectl get " + d.Path + " -n " + ns + " " + name + " -o yaml"
		}
		return "kubectl get " + d.Path + " " + d.Only[0] + " -o yaml"
	}
	return "kubectl get " + d.Path + " -A"
}

// awsOnlyFlag is the flag that narrows an AWS CLI command to [Document.Only].
// Source: the AWS CLI v2 command reference.
var awsOnlyFlag = map[string]string{
	"ec2/describe-instances":                   "--instance-ids",
	"ec2/describe-security-groups":             "--group-ids",
	"ec2/describe-network-interfaces":          "--network-interface-ids",
	"ec2/describe-subnets":                     "--subnet-ids",
	"ec2/describe-network-acls":                "--network-acl-ids",
	"ec2/describe-route-tables":                "--route-table-ids",
	"ec2/describe-vpc-endpoints":               "--vpc-endpoint-ids",
	"ec2/describe-launch-template-versions":    "--launch-template-id",
	"ec2/describe-volumes":                     "--volume-ids",
	"ec2/describe-images":                      "--image-ids",
	"eks/describe-cluster":                     "--name",
	"iam/get-role":                             "--role-name",
	"iam/get-instance-profile":                 "--instance-profile-name",
	"iam/list-attached-role-policies":          "--role-name",
	"iam/list-role-policies":                   "--role-name",
	"iam/get-account-authorization-details":    "",
	"iam/list-open-id-connect-providers":       "",
	"elbv2/describe-target-health":             "--target-group-arn",
	"elbv2/describe-load-balancers":            "--load-balancer-arns",
	"iam/simulate-principal-policy":            "--policy-source-arn",
	"ec2/describe-security-group-rules":        "--security-group-rule-ids",
	"ec2/describe-spot-instance-requests":      "--spot-instance-request-ids",
	"eks/describe-nodegroup":                   "--nodegroup-name",
	"eks/describe-addon":                       "--addon-name",
	"eks/describe-access-entry":                "--principal-arn",
	"eks/describe-pod-identity-association":    "--association-id",
	"service-quotas/get-service-quota":         "--quota-code",
	"ec2/describe-instance-types":              "--instance-types",
	"ec2/describe-instance-type-offerings":     "",
	"ec2/describe-dhcp-options":                "--dhcp-options-ids",
	"ec2/describe-vpcs":                        "--vpc-ids",
	"ec2/describe-vpc-attribute":               "--vpc-id",
	"ec2/describe-prefix-lists":                "--prefix-list-ids",
	"ec2/get-managed-prefix-list-entries":      "--prefix-list-id",
	"ec2/describe-capacity-reservations":       "--capacity-reservation-ids",
	"ec2/describe-placement-groups":            "--group-ids",
	"sqs/get-queue-attributes":                 "--queue-url",
	"sts/get-caller-identity":                  "",
	"kms/describe-key":                         "--key-id",
	"ecr/describe-repositories":                "--repository-names",
	"elbv2/describe-target-groups":             "--target-group-arns",
	"autoscaling/describe-auto-scaling-groups": "--auto-scaling-group-names",
}

// A Permission is one right that a probe uses: an RBAC verb on a resource, or
// an IAM action.
type Permission struct {
	Verb     string // "list", "get"; empty for IAM
	Resource string // "pods", "nodepools.karpenter.sh"; empty for IAM
	Action   string // "ec2:DescribeInstances"; empty for RBAC
}

func (p Permission) String() string {
	if p.Action != "" {
		return p.Action
	}
	return p.Verb + " " + p.Resource
}

// A Ref names an object: a Kubernetes kind, or an AWS thing such as
// SecurityGroup, IAMRole, Subnet, Instance, EKSCluster.
type Ref struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// String is Kind/name, or Kind/namespace/name.
func (r Ref) String() string {
	if r.Namespace == "" {
		return r.Kind + "/" + r.Name
	}
	return r.Kind + "/" + r.Namespace + "/" + r.Name
}

// CompareRefs orders by namespace, kind and name.
func CompareRefs(a, b Ref) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name))
}
