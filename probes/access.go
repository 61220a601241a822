package probes

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// An OIDCProvider is an identity provider of the account, by its ARN.
type OIDCProvider struct{ Arn string }

// OIDCProviders are the account's OIDC providers. The list is complete.
var OIDCProviders = described("iam/list-open-id-connect-providers", "OpenIDConnectProviderList",
	"the account's OIDC identity providers", func(p *OIDCProvider) string { return p.Arn })

// An AccessEntry lets a principal of IAM into the cluster.
type AccessEntry struct {
	PrincipalARN string    `json:"principalArn"`
	Type         string    `json:"type"` // STANDARD, EC2_LINUX, EC2_WINDOWS, FARGATE_LINUX, EC2, HYBRID_LINUX; empty: not described
	Username     string    `json:"username"`
	Groups       []string  `json:"kubernetesGroups"`
	CreatedAt    time.Time `json:"createdAt"`
}

// An AccessList is the access entries of a cluster. Listed is whether all of
// them are here, or only those that somebody asked for.
type AccessList struct {
	*AWSList[AccessEntry]
	Listed bool
}

// AccessEntries are the cluster's access entries.
var AccessEntries = &Probe[*AccessList]{
	Name:  "access-entries",
	About: "who of IAM is let into the cluster, by access entries",
	Reads: []Permission{{Action: "eks:ListAccessEntries"}, {Action: "eks:DescribeAccessEntry"}},
	Gather: func(ctx context.Context, src Source, _ *Facts) (*AccessList, error) {
		var all []AccessEntry
		err := eachAWS(ctx, src, Document{Path: "aws/eks/describe-access-entry"}, func(fields map[string]json.RawMessage) error {
			var e AccessEntry
			if err := json.Unmarshal(fields["accessEntry"], &e); err != nil {
				return err
			}
			all = append(all, e)
			return nil
		})
		listed, listErr := listedNames(ctx, src, "aws/eks/list-access-entries", "accessEntries", func(arn string) {
			all = append(all, AccessEntry{PrincipalARN: arn}) // sorted behind the described one of the same principal
		})
		if err != nil && listErr != nil {
			return nil, err
		}
		return &AccessList{newAWSList(all, func(e *AccessEntry) string { return e.PrincipalARN }), listed}, nil
	},
}

// listedNames reads a list of plain names; listed is whether it is whole.
func listedNames(ctx context.Context, src Source, path, key string, add func(string)) (listed bool, err error) {
	err = eachAWS(ctx, src, Document{Path: path}, func(fields map[string]json.RawMessage) error {
		var names []string
		if err := json.Unmarshal(fields[key], &names); err != nil {
			return err
		}
		for _, n := range names {
			add(n)
		}
		listed = listed || text(fields["nextToken"]) == ""
		return nil
	})
	return listed && err == nil, err
}

// A PodIdentityAssociation gives a service account a role by EKS Pod Identity.
type PodIdentityAssociation struct {
	ID             string    `json:"associationId"`
	Namespace      string    `json:"namespace"`
	ServiceAccount string    `json:"serviceAccount"`
	RoleARN        string    `json:"roleArn"` // empty: not described
	TargetRoleARN  string    `json:"targetRoleArn"`
	CreatedAt      time.Time `json:"createdAt"`
	ModifiedAt     time.Time `json:"modifiedAt"`
}

// An AssociationList is the Pod Identity associations of a cluster. Listed is
// whether all of them are here.
type AssociationList struct {
	*AWSList[PodIdentityAssociation]
	Listed bool
}

// Of is the association of a service account, or nil.
func (l *AssociationList) Of(namespace, serviceAccount string) *PodIdentityAssociation {
	for i, a := range l.All() {
		if a.Namespace == namespace && a.ServiceAccount == serviceAccount {
			return &l.All()[i]
		}
	}
	return nil
}

// PodIdentityAssociations are the cluster's EKS Pod Identity associations.
var PodIdentityAssociations = &Probe[*AssociationList]{
	Name:  "pod-identity-associations",
	About: "which service accounts have a role by EKS Pod Identity",
	Reads: []Permission{{Action: "eks:ListPodIdentityAssociations"}, {Action: "eks:DescribePodIdentityAssociation"}},
	Gather: func(ctx context.Context, src Source, _ *Facts) (*AssociationList, error) {
		var all []PodIdentityAssociation
		err := eachAWS(ctx, src, Document{Path: "aws/eks/describe-pod-identity-association"}, func(fields map[string]json.RawMessage) error {
			var a PodIdentityAssociation
			if err := json.Unmarshal(fields["association"], &a); err != nil {
				return err
			}
			all = append(all, a)
			return nil
		})
		listed := false
		listErr := eachAWS(ctx, src, Document{Path: "aws/eks/list-pod-identity-associations"}, func(fields map[string]json.RawMessage) error {
			var some []PodIdentityAssociation
			if err := json.Unmarshal(fields["associations"], &some); err != nil {
				return err
			}
			all = append(all, some...)
			listed = listed || text(fields["nextToken"]) == ""
			return nil
		})
		if err != nil && listErr != nil {
			return nil, err
		}
		return &AssociationList{newAWSList(all, func(a *PodIdentityAssociation) string { return a.ID }), listed}, nil
	},
}

// A MappedRole is an entry of mapRoles in the aws-auth ConfigMap.
type MappedRole struct {
	RoleARN  string   `json:"rolearn"`
	Username string   `json:"username"`
	Groups   []string `json:"groups"`
}

// ErrNoAWSAuth is that the cluster has no aws-auth ConfigMap.
var ErrNoAWSAuth = errors.New("there is no ConfigMap kube-system/aws-auth")

// MappedRoles reads mapRoles of the aws-auth ConfigMap. The error is
// [ErrNoAWSAuth] where there is none, another one where it can't be parsed: the
// authenticator then ignores it as a whole.
func MappedRoles(f *Facts) ([]MappedRole, error) {
	configs, err := ConfigMaps.Of(f)
	if err != nil {
		return nil, err
	}
	c := configs.Get("kube-system", "aws-auth")
	if c == nil {
		return nil, ErrNoAWSAuth
	}
	var roles []MappedRole
	if err := yaml.Unmarshal([]byte(c.Data["mapRoles"]), &roles); err != nil {
		return nil, gapf(Document{Path: "configmaps", Only: []string{"kube-system/aws-auth"}}, Unreadable, "mapRoles is not a list: %v", err)
	}
	return roles, nil
}

// nodeGroups are what a node's identity must be a member of.
// Source: EKS User Guide, "Grant IAM users access to Kubernetes with a ConfigMap".
var nodeGroups = []string{"system:bootstrappers", "system:nodes"}

// ForNodes is whether the mapping lets a node in, and if not, what it lacks.
func (m MappedRole) ForNodes() (ok bool, lacks string) {
	for _, g := range nodeGroups {
		if !slices.Contains(m.Groups, g) {
			return false, "group " + g
		}
	}
	if m.Username != "system:node:{{EC2PrivateDNSName}}" && m.Username != "system:node:{{SessionName}}" {
		return false, "username system:node:{{EC2PrivateDNSName}}"
	}
	return true, ""
}

// pathless is a role's ARN without its path, which is how aws-auth has it.
func pathless(arn string) string {
	i := strings.Index(arn, ":role/")
	if i < 0 {
		return arn
	}
	return arn[:i] + ":role/" + RoleName(arn)
}
