package probes

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// A Cluster is what `aws eks describe-cluster` says of the control plane.
type Cluster struct {
	Name            string    `json:"name"`
	ARN             string    `json:"arn"`
	Version         string    `json:"version"` // "1.33"
	PlatformVersion string    `json:"platformVersion"`
	Status          string    `json:"status"`
	Endpoint        string    `json:"endpoint"`
	RoleARN         string    `json:"roleArn"`
	CreatedAt       time.Time `json:"createdAt"`
	VPC             struct {
		SubnetIDs            []string `json:"subnetIds"`
		SecurityGroupIDs     []string `json:"securityGroupIds"`
		ClusterSecurityGroup string   `json:"clusterSecurityGroupId"`
		ID                   string   `json:"vpcId"`
		PublicAccess         bool     `json:"endpointPublicAccess"`
		PrivateAccess        bool     `json:"endpointPrivateAccess"`
		PublicAccessCIDRs    []string `json:"publicAccessCidrs"`
	} `json:"resourcesVpcConfig"`
	Network struct {
		ServiceIPv4CIDR string `json:"serviceIpv4Cidr"`
		ServiceIPv6CIDR string `json:"serviceIpv6Cidr"`
		IPFamily        string `json:"ipFamily"` // ipv4, ipv6
	} `json:"kubernetesNetworkConfig"`
	Identity struct {
		OIDC struct {
			Issuer string `json:"issuer"`
		} `json:"oidc"`
	} `json:"identity"`
	Access struct {
		AuthenticationMode string `json:"authenticationMode"` // API, API_AND_CONFIG_MAP, CONFIG_MAP
	} `json:"accessConfig"`
	Health struct {
		Issues []struct {
			Code        string   `json:"code"`
			Message     string   `json:"message"`
			ResourceIDs []string `json:"resourceIds"`
		} `json:"issues"`
	} `json:"health"`
	Encryption []struct {
		Resources []string `json:"resources"`
		Provider  struct {
			KeyARN string `json:"keyArn"`
		} `json:"provider"`
	} `json:"encryptionConfig"`
	Compute struct {
		Enabled   bool     `json:"enabled"` // EKS Auto Mode
		NodePools []string `json:"nodePools"`
	} `json:"computeConfig"`
	UpgradePolicy struct {
		SupportType string `json:"supportType"` // STANDARD, EXTENDED
	} `json:"upgradePolicy"`
	Tags map[string]string `json:"tags"`
}

// EKSCluster is the control plane, as EKS describes it.
var EKSCluster = &Probe[*Cluster]{
	Name:  "eks-cluster",
	About: "the EKS cluster: version, endpoint access, security groups, subnets, OIDC issuer",
	Reads: []Permission{{Action: "eks:DescribeCluster"}},
	Gather: func(ctx context.Context, src Source, _ *Facts) (*Cluster, error) {
		doc := Document{Path: "aws/eks/describe-cluster"}
		var all []*Cluster
		err := eachAWS(ctx, src, doc, func(fields map[string]json.RawMessage) error {
			raw := fields["cluster"]
			if raw == nil {
				return nil
			}
			c := &Cluster{}
			if err := json.Unmarshal(raw, c); err != nil {
				return err
			}
			if !slices.ContainsFunc(all, func(o *Cluster) bool { return o.ARN == c.ARN && o.Name == c.Name }) {
				all = append(all, c)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		switch len(all) {
		case 0:
			return nil, gapf(doc, Unreadable, "no cluster in it")
		case 1:
			return all[0], nil
		}
		if named, ok := src.(interface{ ClusterMeta() SnapshotMeta }); ok {
			for _, c := range all {
				if c.Name == named.ClusterMeta().Cluster {
					return c, nil
				}
			}
		}
		var names []string
		for _, c := range all {
			names = append(names, c.Name)
		}
		slices.Sort(names)
		return nil, gapf(doc, Unreadable, "it describes several clusters: %s", strings.Join(names, ", "))
	},
}
