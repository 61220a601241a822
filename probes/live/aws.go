package live

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/eks"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/smithy-go"

	"github.com/pposiraegi/ppodoctor/probes"
)

// AWSOptions say where in AWS a cluster is and who reads it. What is empty is
// looked for: see [NewAWS].
type AWSOptions struct {
	Profile string // of the AWS CLI's configuration
	Region  string
	Cluster string // the name of the EKS cluster
	Account string // 12 digits
	OnAWS   bool   // the kubeconfig shows that the cluster is one of EKS
	// Nodes is where nodes are read if nothing else tells where the cluster is.
	Nodes probes.Source
}

// AWS is the cloud side of a running cluster as a Source. It sends only reads:
// describe, get, list and the policy simulator. What it returns is what the
// AWS CLI prints, kept to the cluster's VPC and to the roles in question.
type AWS struct {
	options AWSOptions
	mu      sync.Mutex
	asked   bool
	session *awsSession
	err     error // why nothing can be read
}

// NewAWS is the cloud side of a cluster. Nothing is read until a document is
// asked for. Credentials and region are those that the AWS CLI would use,
// after what the options say.
func NewAWS(options AWSOptions) *AWS { return &AWS{options: options} }

// An awsSession is a connection to AWS that works.
type awsSession struct {
	AWSOptions
	identity string // the ARN of who reads; empty: not known
	ec2      *ec2.Client
	eks      *eks.Client
	iam      *iam.Client
	roles    roleCache
	places   placeCache
}

// An awsRead reads one document; emit takes what a page of it holds.
type awsRead func(ctx context.Context, s *awsSession, only []string, emit func(any)) error

// Open reads a document.
func (a *AWS) Open(ctx context.Context, doc probes.Document) (io.ReadCloser, error) {
	path := strings.TrimPrefix(doc.Path, "aws/")
	read, ok := awsReads[path]
	if !ok {
		return nil, &probes.Gap{Document: doc, Reason: probes.NotCaptured, Grant: doc.Grant(), Detail: "it is not read from a running cluster"}
	}
	s, err := a.connect(ctx)
	if err != nil {
		return nil, awsGap(ctx, doc, err)
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	var failed error
	err = read(ctx, s, doc.Only, func(page any) {
		if failed == nil {
			failed = encoder.Encode(page)
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return nil, awsGap(ctx, doc, err)
	}
	if out.Len() == 0 {
		out.WriteString("{}\n") // nothing was asked for, and nothing is said
	}
	return io.NopCloser(&out), nil
}

// connect makes the session, once.
func (a *AWS) connect(ctx context.Context) (*awsSession, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.asked {
		a.asked = true
		a.session, a.err = newSession(ctx, a.options)
	}
	return a.session, a.err
}

// Now is the wall clock.
func (a *AWS) Now() time.Time { return time.Now() }

// ClusterMeta is what is known of the cluster's place, and who reads it once
// something was asked for.
func (a *AWS) ClusterMeta() probes.SnapshotMeta {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, identity := a.options, ""
	if a.session != nil {
		at, identity = a.session.AWSOptions, a.session.identity
	}
	return probes.SnapshotMeta{Cluster: at.Cluster, Region: at.Region, Account: at.Account, Identity: identity}
}

// A noAWS error says why nothing at all can be read from AWS.
type noAWS struct {
	detail string
	reason probes.Reason
}

func (e *noAWS) Error() string { return e.detail }

// refused are the codes by which AWS says that the caller lacks the right.
var refused = map[string]bool{
	"UnauthorizedOperation": true, "AccessDenied": true, "AccessDeniedException": true, "UnauthorizedException": true,
	"Client.UnauthorizedOperation": true,
}

// encoded is the part of a refusal that only `aws sts decode-authorization-message` reads.
var encoded = regexp.MustCompile(`(?s)\s*Encoded authorization failure message:.*$`)

// awsGap is the Gap for a document that AWS didn't give.
func awsGap(ctx context.Context, doc probes.Document, err error) error {
	g := &probes.Gap{Document: doc, Reason: probes.Unreadable, Grant: doc.Grant(), Detail: err.Error()}
	var none *noAWS
	var operation *smithy.OperationError
	var api smithy.APIError
	var known *probes.Gap
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &none):
		g.Reason, g.Detail = none.reason, none.detail
	case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		g.Reason, g.Detail = probes.TimedOut, "not read before the deadline"
	case ctx.Err() != nil:
		g.Reason, g.Detail = probes.TimedOut, "interrupted before it was read"
	case errors.As(err, &api):
		g.Detail = api.ErrorCode() + ": " + encoded.ReplaceAllString(api.ErrorMessage(), "")
		if refused[api.ErrorCode()] {
			g.Reason = probes.Forbidden
		}
		if errors.As(err, &operation) {
			g.Grant = strings.ToLower(operation.Service()) + ":" + operation.Operation()
		}
	}
	return g
}

func isRefusal(err error) bool {
	var api smithy.APIError
	return errors.As(err, &api) && refused[api.ErrorCode()]
}

// isCode is whether AWS answered with that error code.
func isCode(err error, code string) bool {
	var api smithy.APIError
	return errors.As(err, &api) && api.ErrorCode() == code
}

// failure is an error in the words of the AWS CLI.
func failure(err error) string {
	var operation *smithy.OperationError
	var api smithy.APIError
	if errors.As(err, &operation) && errors.As(err, &api) {
		return fmt.Sprintf("An error occurred (%s) when calling the %s operation: %s", api.ErrorCode(), operation.Operation(), encoded.ReplaceAllString(api.ErrorMessage(), ""))
	}
	return err.Error()
}

// A paginator is what the SDK has for each operation that answers in pages.
type paginator[Page, Options any] interface {
	HasMorePages() bool
	NextPage(context.Context, ...func(*Options)) (Page, error)
}

// eachPage calls take with each page.
func eachPage[Page, Options any](ctx context.Context, p paginator[Page, Options], take func(Page)) error {
	for p.HasMorePages() {
		page, err := p.NextPage(ctx)
		if err != nil {
			return err
		}
		take(page)
	}
	return nil
}

// awsReads are the documents that can be read, each by what its path has after
// "aws/".
var awsReads = map[string]awsRead{
	"ec2/describe-instances":                readInstances,
	"ec2/describe-network-interfaces":       readNetworkInterfaces,
	"ec2/describe-security-groups":          readSecurityGroups,
	"ec2/describe-security-group-rules":     readSecurityGroupRules,
	"ec2/describe-subnets":                  readSubnets,
	"ec2/describe-network-acls":             readNetworkACLs,
	"ec2/describe-route-tables":             readRouteTables,
	"ec2/describe-vpc-endpoints":            readVPCEndpoints,
	"ec2/describe-prefix-lists":             readPrefixLists,
	"ec2/describe-managed-prefix-lists":     readManagedPrefixLists,
	"ec2/describe-launch-template-versions": readLaunchTemplateVersions,
	"ec2/describe-images":                   readImages,
	"ec2/get-console-output":                readConsoleOutput,
	"eks/describe-cluster":                  readCluster,
	"eks/describe-nodegroup":                readNodeGroups,
	"eks/describe-addon":                    readAddons,
	"eks/list-access-entries":               readAccessEntryNames,
	"eks/describe-access-entry":             readAccessEntries,
	"eks/list-pod-identity-associations":    readAssociationNames,
	"eks/describe-pod-identity-association": readAssociations,
	"iam/get-role":                          readRoles,
	"iam/list-attached-role-policies":       readAttachedPolicies,
	"iam/list-role-policies":                readInlinePolicyNames,
	"iam/get-role-policy":                   readInlinePolicies,
	"iam/get-policy":                        readNothing,
	"iam/get-policy-version":                readManagedPolicies,
	"iam/get-instance-profile":              readNothing,
	"iam/list-instance-profiles":            readNothing,
	"iam/list-roles":                        readTrusts,
	"iam/get-account-authorization-details": readNothing,
	"iam/list-open-id-connect-providers":    readOIDCProviders,
	"iam/simulate-principal-policy":         readSimulation,
}

// readNothing is for documents of a whole account, and those that another one
// includes: a capture may have them, but a scan reads the roles in question.
func readNothing(context.Context, *awsSession, []string, func(any)) error { return nil }

func str(s *string) string { return aws.ToString(s) }
