package probes

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"

	ec2 "github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// An EKSIssue is what EKS itself says is wrong with a node group or an add-on.
type EKSIssue struct {
	Code        string   `json:"code"`
	Message     string   `json:"message"`
	ResourceIDs []string `json:"resourceIds"`
}

// A NodeGroup is a managed node group.
type NodeGroup struct {
	Name          string            `json:"nodegroupName"`
	ARN           string            `json:"nodegroupArn"`
	Version       string            `json:"version"`
	Release       string            `json:"releaseVersion"`
	Status        string            `json:"status"` // ACTIVE, CREATING, DEGRADED, CREATE_FAILED, …
	CreatedAt     time.Time         `json:"createdAt"`
	ModifiedAt    time.Time         `json:"modifiedAt"`
	InstanceTypes []string          `json:"instanceTypes"`
	CapacityType  string            `json:"capacityType"`
	AMIType       string            `json:"amiType"` // AL2023_x86_64_STANDARD, BOTTLEROCKET_ARM_64, CUSTOM, …
	NodeRole      string            `json:"nodeRole"`
	Subnets       []string          `json:"subnets"`
	Labels        map[string]string `json:"labels"`
	Taints        []struct {
		Key    string `json:"key"`
		Value  string `json:"value"`
		Effect string `json:"effect"`
	} `json:"taints"`
	Scaling struct {
		Min     int `json:"minSize"`
		Max     int `json:"maxSize"`
		Desired int `json:"desiredSize"`
	} `json:"scalingConfig"`
	LaunchTemplate *struct {
		Name    string `json:"name"`
		ID      string `json:"id"`
		Version string `json:"version"`
	} `json:"launchTemplate"`
	Resources struct {
		AutoScalingGroups []struct {
			Name string `json:"name"`
		} `json:"autoScalingGroups"`
	} `json:"resources"`
	Health struct {
		Issues []EKSIssue `json:"issues"`
	} `json:"health"`
}

// NodeGroups are the managed node groups that were described.
var NodeGroups = describedOne("eks/describe-nodegroup", "nodegroup", "node-groups", "managed node groups with their role, launch template and what EKS says is wrong",
	func(g *NodeGroup) string { return g.Name })

// An Addon is an EKS add-on.
type Addon struct {
	Name       string    `json:"addonName"`
	Version    string    `json:"addonVersion"`
	Status     string    `json:"status"` // ACTIVE, DEGRADED, CREATE_FAILED, UPDATE_FAILED, …
	RoleARN    string    `json:"serviceAccountRoleArn"`
	CreatedAt  time.Time `json:"createdAt"`
	ModifiedAt time.Time `json:"modifiedAt"`
	Health     struct {
		Issues []EKSIssue `json:"issues"`
	} `json:"health"`
}

// Addons are the EKS add-ons that were described.
var Addons = describedOne("eks/describe-addon", "addon", "addons", "EKS add-ons with what EKS says is wrong with them",
	func(a *Addon) string { return a.Name })

// describedOne is a probe for resources that an AWS CLI command prints one at
// a time, each under the same key.
func describedOne[T any](path, key, name, about string, id func(*T) string) *Probe[*AWSList[T]] {
	doc := Document{Path: "aws/" + path}
	return &Probe[*AWSList[T]]{
		Name:  name,
		About: about,
		Reads: []Permission{{Action: strings.Replace(doc.Grant(), "Describe", "List", 1) + "s"}, {Action: doc.Grant()}}, // their names first
		Gather: func(ctx context.Context, src Source, _ *Facts) (*AWSList[T], error) {
			var all []T
			err := eachAWS(ctx, src, doc, func(fields map[string]json.RawMessage) error {
				raw := fields[key]
				if raw == nil {
					return nil
				}
				var one T
				if err := json.Unmarshal(raw, &one); err != nil {
					return err
				}
				all = append(all, one)
				return nil
			})
			if err != nil {
				return nil, err
			}
			return newAWSList(all, id), nil
		},
	}
}

// LaunchTemplateVersions are versions of launch templates, by "id/number".
var LaunchTemplateVersions = described("ec2/describe-launch-template-versions", "LaunchTemplateVersions", "launch templates with their user data, image and security groups",
	func(v *ec2.LaunchTemplateVersion) string {
		n := int64(0)
		if v.VersionNumber != nil {
			n = *v.VersionNumber
		}
		return deref(v.LaunchTemplateId) + "/" + jsonNumber(n)
	})

// Images are machine images.
var Images = described("ec2/describe-images", "Images", "machine images with their names and tags",
	func(i *ec2.Image) string { return deref(i.ImageId) })

func jsonNumber(n int64) string {
	b, _ := json.Marshal(n)
	return string(b)
}

// A Console is what an instance printed while it booted, the only witness of a
// kubelet that never reached the cluster.
type Console struct {
	Instance string
	Text     string
}

// Consoles are the console outputs that were captured, by instance.
var Consoles = &Probe[*AWSList[Console]]{
	Name:  "console-outputs",
	About: "what instances printed while they booted",
	Reads: []Permission{{Action: "ec2:GetConsoleOutput"}},
	Gather: func(ctx context.Context, src Source, _ *Facts) (*AWSList[Console], error) {
		var all []Console
		err := eachAWS(ctx, src, Document{Path: "aws/ec2/get-console-output"}, func(fields map[string]json.RawMessage) error {
			c := Console{Instance: text(fields["InstanceId"]), Text: text(fields["Output"])}
			// The API has it in base64, the CLI decodes it.
			if decoded, err := base64.StdEncoding.DecodeString(strings.TrimSpace(c.Text)); err == nil && len(c.Text) > 0 {
				c.Text = string(decoded)
			}
			all = append(all, c)
			return nil
		})
		if err != nil {
			return nil, err
		}
		return newAWSList(all, func(c *Console) string { return c.Instance }), nil
	},
}
