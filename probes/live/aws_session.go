package live

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/eks"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"
	corev1 "k8s.io/api/core/v1"
	clientcmd "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pposiraegi/ppodoctor/probes"
)

// Hints are what a kubeconfig tells of where its cluster is in AWS: the ARN
// that it calls the cluster by, the server's name, and the arguments and
// environment of the program that gets the token (`aws eks get-token`,
// `aws-iam-authenticator token`).
func Hints(name, server string, exec *clientcmd.ExecConfig) AWSOptions {
	var o AWSOptions
	// arn:aws:eks:REGION:ACCOUNT:cluster/NAME, as `aws eks update-kubeconfig`
	// writes it; NAME.REGION.eksctl.io, as eksctl does.
	if parts := strings.SplitN(name, ":", 6); len(parts) == 6 && parts[2] == "eks" {
		o.OnAWS, o.Region, o.Account, o.Cluster = true, parts[3], parts[4], strings.TrimPrefix(parts[5], "cluster/")
	} else if short, ok := strings.CutSuffix(name, ".eksctl.io"); ok {
		o.OnAWS = true
		o.Cluster, o.Region, _ = strings.Cut(short, ".")
	}
	// https://ID.gr7.REGION.eks.amazonaws.com
	host := strings.TrimSuffix(strings.TrimPrefix(server, "https://"), "/")
	if labels := strings.Split(host, "."); len(labels) >= 6 && labels[3] == "eks" && labels[4] == "amazonaws" {
		o.OnAWS, o.Region = true, cmp.Or(o.Region, labels[2])
	}
	if exec == nil {
		return o
	}
	program := strings.TrimSuffix(path.Base(strings.ReplaceAll(exec.Command, `\`, "/")), ".exe")
	if program != "aws" && program != "aws-iam-authenticator" {
		return o
	}
	o.OnAWS = true
	value := func(flags ...string) string {
		for i, arg := range exec.Args {
			flag, v, joined := strings.Cut(arg, "=")
			switch {
			case !slices.Contains(flags, flag):
			case joined:
				return v
			case i+1 < len(exec.Args):
				return exec.Args[i+1]
			}
		}
		return ""
	}
	env := map[string]string{}
	for _, e := range exec.Env {
		env[e.Name] = e.Value
	}
	names := []string{"--cluster-name", "--cluster-id"}
	if program == "aws-iam-authenticator" {
		names = append(names, "-i")
	}
	o.Cluster = cmp.Or(value(names...), o.Cluster)
	o.Region = cmp.Or(o.Region, value("--region"), env["AWS_REGION"], env["AWS_DEFAULT_REGION"])
	o.Profile = cmp.Or(value("--profile"), env["AWS_PROFILE"])
	return o
}

// Or fills what is empty from other options.
func (o AWSOptions) Or(other AWSOptions) AWSOptions {
	o.Profile, o.Region = cmp.Or(o.Profile, other.Profile), cmp.Or(o.Region, other.Region)
	o.Cluster, o.Account = cmp.Or(o.Cluster, other.Cluster), cmp.Or(o.Account, other.Account)
	o.OnAWS = o.OnAWS || other.OnAWS
	return o
}

// awsAttempts is how often a request is sent that AWS throttles or fails to
// answer, as long as the deadline allows. The SDK's adaptive mode slows down
// all requests to a service that throttles one.
const awsAttempts = 10

// newSession finds credentials, region and cluster, and asks who it is.
func newSession(ctx context.Context, o AWSOptions) (*awsSession, error) {
	s := &awsSession{AWSOptions: o}
	if err := s.askNode(ctx); err != nil {
		return nil, err
	}
	loads := []func(*config.LoadOptions) error{
		config.WithRetryMode(aws.RetryModeAdaptive), config.WithRetryMaxAttempts(awsAttempts), config.WithAppID("ppodoctor"),
	}
	if s.Profile != "" {
		loads = append(loads, config.WithSharedConfigProfile(s.Profile))
	}
	if s.Region != "" {
		loads = append(loads, config.WithRegion(s.Region))
	}
	c, err := config.LoadDefaultConfig(ctx, loads...)
	if err != nil {
		return nil, &noAWS{reason: probes.NotCaptured, detail: "the AWS configuration can't be used: " + oneLine(err)}
	}
	if s.Region = c.Region; s.Region == "" {
		return nil, &noAWS{reason: probes.NotCaptured, detail: "the AWS region of the cluster isn't known; give --region"}
	}
	if _, err := c.Credentials.Retrieve(ctx); err != nil {
		return nil, &noAWS{reason: probes.NotCaptured, detail: "no AWS credentials (give --profile, run `aws sso login` or `aws configure`, or say --no-aws): " + lastCause(err)}
	}
	who, err := sts.NewFromConfig(c).GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{})
	var api smithy.APIError
	switch {
	case err == nil:
		s.identity = str(who.Arn)
		if s.Account != "" && s.Account != str(who.Account) {
			return nil, &noAWS{reason: probes.Forbidden, detail: fmt.Sprintf("the AWS credentials (%s) are of account %s, but the cluster is in account %s; give --profile", s.identity, str(who.Account), s.Account)}
		}
		s.Account = str(who.Account)
	case errors.As(err, &api): // nobody needs a right for this call
		return nil, &noAWS{reason: probes.Forbidden, detail: fmt.Sprintf("AWS doesn't accept the credentials (log in anew with `aws sso login` or `aws configure`, or give --profile): %s: %s", api.ErrorCode(), api.ErrorMessage())}
	case ctx.Err() != nil:
		return nil, err
	}
	s.ec2, s.eks, s.iam = ec2.NewFromConfig(c), eks.NewFromConfig(c), iam.NewFromConfig(c)
	s.places.askTags(ctx, s)
	return s, nil
}

func lastCause(err error) string {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return oneLine(err)
		}
		err = next
	}
}

// askNode finds out by a node whether the cluster is on AWS, and where.
func (s *awsSession) askNode(ctx context.Context) error {
	if s.Nodes == nil || s.OnAWS && s.Region != "" && s.Cluster != "" {
		return nil
	}
	for node, err := range probes.Items[corev1.Node](ctx, s.Nodes, probes.Document{Path: "nodes"}) {
		if err != nil {
			break
		}
		if !strings.HasPrefix(node.Spec.ProviderID, "aws://") {
			continue
		}
		s.OnAWS = true
		s.Region = cmp.Or(s.Region, node.Labels[corev1.LabelTopologyRegion])
		s.Cluster = cmp.Or(s.Cluster, node.Labels["alpha.eksctl.io/cluster-name"])
		s.places.node = path.Base(node.Spec.ProviderID)
		break
	}
	if !s.OnAWS {
		return &noAWS{reason: probes.NotCaptured, detail: "neither the kubeconfig nor the nodes tell that the cluster is on AWS"}
	}
	return nil
}
