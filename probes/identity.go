package probes

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes/iampolicy"
)

// The annotations of a service account that has a role by IRSA.
// Source: aws/amazon-eks-pod-identity-webhook README.
const (
	RoleAnnotation     = "eks.amazonaws.com/role-arn"
	AudienceAnnotation = "eks.amazonaws.com/audience"
	defaultAudience    = "sts.amazonaws.com"
)

// A Step is one link of the chain from a pod or node to its rights. Err says
// that it can't be told, else Holds whether the link holds.
type Step struct {
	Name     StepName
	Holds    bool
	Says     string // the particulars
	Document Document
	Err      error
}

// A StepName names a link.
type StepName string

// The links.
const (
	StepAnnotated    StepName = "annotated"      // the service account names a role
	StepRoleARN      StepName = "role-arn"       // what it names has the form of a role's ARN
	StepProvider     StepName = "provider"       // the account knows the cluster's OIDC issuer
	StepRole         StepName = "role"           // the role exists
	StepTrust        StepName = "trust"          // the role trusts who asks
	StepInjected     StepName = "injected"       // the pod has the credentials' environment
	StepAssociated   StepName = "associated"     // EKS associates a role with the service account
	StepMapped       StepName = "mapped"         // the node's role is let into the cluster
	StepMappedAsNode StepName = "mapped-as-node" // as a node
)

// Broken is the first link that doesn't hold, or nil.
func Broken(chain []Step) *Step {
	for i, s := range chain {
		if s.Err == nil && !s.Holds {
			return &chain[i]
		}
	}
	return nil
}

// Link is the chain's link of that name, or nil where the chain ended before.
func Link(chain []Step, name StepName) *Step {
	for i, s := range chain {
		if s.Name == name {
			return &chain[i]
		}
	}
	return nil
}

var roleARN = regexp.MustCompile(`^arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]+$`)

// Identity is what the chains are asked of; a field that can't be had has its
// error instead.
type Identity struct {
	Cluster      *Cluster
	ClusterErr   error
	Providers    *AWSList[OIDCProvider]
	ProvidersErr error
	Roles        *RoleList
	RolesErr     error
	Associations *AssociationList
	AssocErr     error
}

// IdentityNeeds are the probes that [IdentityOf] reads.
var IdentityNeeds = []Any{EKSCluster, OIDCProviders, Roles, PodIdentityAssociations}

// IdentityOf collects what the chains are asked of.
func IdentityOf(f *Facts) Identity {
	var id Identity
	id.Cluster, id.ClusterErr = EKSCluster.Of(f)
	id.Providers, id.ProvidersErr = OIDCProviders.Of(f)
	id.Roles, id.RolesErr = Roles.Of(f)
	id.Associations, id.AssocErr = PodIdentityAssociations.Of(f)
	return id
}

// IRSA walks from a service account to the role that it names: annotation,
// role, OIDC provider, trust policy. It ends at the first link without which
// the next ones make no sense.
func (id Identity) IRSA(sa *corev1.ServiceAccount) []Step {
	where := Document{Path: "serviceaccounts", Only: []string{sa.Namespace + "/" + sa.Name}}
	arn, ok := sa.Annotations[RoleAnnotation]
	if !ok || arn == "" {
		return []Step{{Name: StepAnnotated, Says: fmt.Sprintf("ServiceAccount %s/%s has no annotation %s", sa.Namespace, sa.Name, RoleAnnotation), Document: where}}
	}
	chain := []Step{{Name: StepAnnotated, Holds: true, Says: fmt.Sprintf("ServiceAccount %s/%s is annotated with %s", sa.Namespace, sa.Name, arn), Document: where}}
	if !roleARN.MatchString(arn) {
		return append(chain, Step{Name: StepRoleARN, Says: fmt.Sprintf("ServiceAccount %s/%s has %s=%q, which is not the ARN of a role (arn:aws:iam::ACCOUNT:role/NAME)", sa.Namespace, sa.Name, RoleAnnotation, arn), Document: where})
	}
	chain = append(chain, Step{Name: StepRoleARN, Holds: true, Says: arn + " has the form of a role's ARN", Document: where})
	role, step := id.role(arn)
	chain = append(chain, step, id.provider(account(arn)))
	if role == nil {
		return chain
	}
	return append(chain, id.irsaTrust(sa, role))
}

func (id Identity) role(arn string) (*Role, Step) {
	step := Step{Name: StepRole, Document: Document{Path: "aws/iam/get-role", Only: []string{RoleName(arn)}}}
	if id.RolesErr != nil {
		step.Err = id.RolesErr
		return nil, step
	}
	role, err := id.Roles.Get(arn)
	switch {
	case err != nil:
		step.Err = err
	case role == nil:
		step.Says = fmt.Sprintf("there is no role %s", arn)
		if other := id.Roles.Named(arn); other != nil && other.ARN != "" {
			step.Says += fmt.Sprintf("; the role of that name is %s", other.ARN)
		}
	default:
		step.Holds, step.Says = true, fmt.Sprintf("role %s exists", role.Name)
	}
	return role, step
}

// issuer is the cluster's OIDC issuer as IAM has it, without https://.
func (id Identity) issuer() (string, error) {
	if id.ClusterErr != nil {
		return "", id.ClusterErr
	}
	if id.Cluster.Identity.OIDC.Issuer == "" {
		return "", gapf(Document{Path: "aws/eks/describe-cluster"}, NotCaptured, "it doesn't name the OIDC issuer")
	}
	return strings.TrimPrefix(id.Cluster.Identity.OIDC.Issuer, "https://"), nil
}

// Issuer is the cluster's OIDC issuer without https://, or empty where it
// isn't known.
func (id Identity) Issuer() string {
	issuer, _ := id.issuer()
	return issuer
}

// provider is whether IAM knows the cluster's issuer. Only the cluster's own
// account was listed.
func (id Identity) provider(in string) Step {
	step := Step{Name: StepProvider, Document: Document{Path: "aws/iam/list-open-id-connect-providers"}}
	issuer, err := id.issuer()
	switch {
	case err != nil:
		step.Err = err
	case id.ProvidersErr != nil:
		step.Err = id.ProvidersErr
	case account(id.Cluster.ARN) != "" && account(id.Cluster.ARN) != in:
		step.Err = gapf(step.Document, NotCaptured, "the providers of account %s were not captured", in)
	default:
		step.Says = fmt.Sprintf("the account has no OIDC provider for the cluster's issuer %s", issuer)
		for _, p := range id.Providers.All() {
			if strings.HasSuffix(p.Arn, ":oidc-provider/"+issuer) {
				step.Holds, step.Says = true, fmt.Sprintf("the account has the OIDC provider %s", p.Arn)
			}
		}
	}
	return step
}

func (id Identity) irsaTrust(sa *corev1.ServiceAccount, role *Role) Step {
	step := Step{Name: StepTrust, Document: Document{Path: "aws/iam/get-role", Only: []string{role.Name}}}
	trust, err := role.Trust()
	if err != nil {
		step.Err = err
		return step
	}
	issuer, err := id.issuer()
	if err != nil {
		step.Err = err
		return step
	}
	audience := sa.Annotations[AudienceAnnotation]
	if audience == "" {
		audience = defaultAudience
	}
	partition, _, _ := strings.Cut(strings.TrimPrefix(role.ARN, "arn:"), ":")
	d := iampolicy.Evaluate(iampolicy.Request{
		Action:    "sts:AssumeRoleWithWebIdentity",
		Principal: iampolicy.Principal{Type: "Federated", Name: "arn:" + partition + ":iam::" + account(role.ARN) + ":oidc-provider/" + issuer},
		Context: map[string][]string{
			issuer + ":sub": {"system:serviceaccount:" + sa.Namespace + ":" + sa.Name},
			issuer + ":aud": {audience},
		},
		Unknown: []string{"aws:*", "sts:*"},
	}, iampolicy.Policies{Resource: []iampolicy.Policy{trust}})
	step.decide(d, "the trust policy of role "+role.Name+" lets ServiceAccount "+sa.Namespace+"/"+sa.Name+" assume it")
	return step
}

// decide takes the step from a decision; what is undecided can't be told.
func (s *Step) decide(d iampolicy.Decision, holds string) {
	switch d.Effect {
	case iampolicy.Allowed:
		s.Holds, s.Says = true, holds
	case iampolicy.Undecided:
		s.Err = gapf(s.Document, NotCaptured, "the trust policy tests %s, which isn't known", strings.Join(d.Missing, ", "))
	default:
		s.Says = "trust policy: " + d.Why()
	}
}

// PodIdentity walks from a service account to the role that EKS associates
// with it: association, role, trust policy.
func (id Identity) PodIdentity(namespace, serviceAccount string) []Step {
	step := Step{Name: StepAssociated, Document: Document{Path: "aws/eks/list-pod-identity-associations"}}
	if id.AssocErr != nil {
		step.Err = id.AssocErr
		return []Step{step}
	}
	a := id.Associations.Of(namespace, serviceAccount)
	switch {
	case a == nil && !id.Associations.Listed:
		step.Err = gapf(step.Document, NotCaptured, "not all associations were captured")
		return []Step{step}
	case a == nil:
		step.Says = fmt.Sprintf("no Pod Identity association is for ServiceAccount %s/%s", namespace, serviceAccount)
		return []Step{step}
	}
	step.Holds, step.Says = true, fmt.Sprintf("Pod Identity associates ServiceAccount %s/%s with %s", namespace, serviceAccount, a.RoleARN)
	if a.RoleARN == "" {
		err := gapf(Document{Path: "aws/eks/describe-pod-identity-association", Only: []string{a.ID}}, NotCaptured, "association %s was not described", a.ID)
		return []Step{step, {Name: StepRole, Document: err.Document, Err: err}}
	}
	role, exists := id.role(a.RoleARN)
	chain := []Step{step, exists}
	if role == nil {
		return chain
	}
	last := Step{Name: StepTrust, Document: exists.Document}
	trust, err := role.Trust()
	if err != nil {
		last.Err = err
		return append(chain, last)
	}
	for _, action := range []string{"sts:AssumeRole", "sts:TagSession"} {
		d := iampolicy.Evaluate(iampolicy.Request{
			Action: action, Principal: iampolicy.Principal{Type: "Service", Name: "pods.eks.amazonaws.com"},
			Context: map[string][]string{
				"aws:RequestTag/kubernetes-namespace":       {namespace},
				"aws:RequestTag/kubernetes-service-account": {serviceAccount},
			},
			Unknown: []string{"*"},
		}, iampolicy.Policies{Resource: []iampolicy.Policy{trust}})
		last.Holds, last.Says, last.Err = false, "", nil
		last.decide(d, "the trust policy of role "+role.Name+" lets pods.eks.amazonaws.com assume it and tag the session")
		if last.Err != nil || !last.Holds {
			break
		}
	}
	return append(chain, last)
}

// Role is the ARN of the role that a service account gets, and the chain that
// leads to it; empty where there is none or where it can't be told. An
// association of EKS Pod Identity goes before an annotation: the webhook looks
// for it first (aws/amazon-eks-pod-identity-webhook pkg/handler). The error says
// that there is no such service account, or that it can't be told.
func (id Identity) Role(f *Facts, namespace, name string) (string, []Step, error) {
	accounts, err := ServiceAccounts.Of(f)
	if err != nil {
		return "", nil, err
	}
	sa := accounts.Get(namespace, name)
	if sa == nil {
		return "", nil, fmt.Errorf("there is no service account %s in namespace %s", name, namespace)
	}
	annotated := sa.Annotations[RoleAnnotation]
	if id.AssocErr == nil {
		if a := id.Associations.Of(namespace, name); a != nil {
			return a.RoleARN, id.PodIdentity(namespace, name), nil
		}
	}
	chain := id.PodIdentity(namespace, name)
	if annotated != "" {
		return annotated, id.IRSA(sa), nil
	}
	if Broken(chain) != nil {
		chain[0].Says += ", and it has no annotation " + RoleAnnotation
	}
	return "", chain, nil
}

// TrustStatement is the statement that lets a service account assume a role by
// IRSA.
func (id Identity) TrustStatement(sa *corev1.ServiceAccount, roleARN string) string {
	issuer := id.Issuer()
	if issuer == "" {
		issuer = "OIDC-ISSUER"
	}
	partition, _, _ := strings.Cut(strings.TrimPrefix(roleARN, "arn:"), ":")
	return iampolicy.Statement{
		Effect: iampolicy.Allow, Actions: []string{"sts:AssumeRoleWithWebIdentity"},
		Principals: []iampolicy.Principal{{Type: "Federated", Name: "arn:" + partition + ":iam::" + account(roleARN) + ":oidc-provider/" + issuer}},
		Conditions: []iampolicy.Condition{
			{Operator: "StringEquals", Key: issuer + ":aud", Values: []string{defaultAudience}},
			{Operator: "StringEquals", Key: issuer + ":sub", Values: []string{"system:serviceaccount:" + sa.Namespace + ":" + sa.Name}},
		},
	}.JSON()
}

// Injection is how a pod gets credentials for AWS, by its environment: "irsa",
// "pod-identity" or "" for neither, and the role that IRSA names.
// Source: aws/amazon-eks-pod-identity-webhook pkg/handler.
func Injection(p *corev1.Pod, container string) (by, role string) {
	for _, c := range slices.Concat(p.Spec.Containers, p.Spec.InitContainers) {
		if container != "" && c.Name != container {
			continue
		}
		for _, e := range c.Env {
			switch e.Name {
			case "AWS_ROLE_ARN":
				by, role = "irsa", e.Value
				if !strings.Contains(role, ":") && strings.Contains(role, "REDACTED") {
					role = "" // a captured snapshot hides it
				}
			case "AWS_CONTAINER_CREDENTIALS_FULL_URI":
				if by == "" && strings.Contains(e.Value, "169.254.170.23") || strings.Contains(e.Value, "fd00:ec2::23") {
					by = "pod-identity"
				}
			}
		}
	}
	return by, role
}

// NodeMapping is whether a node's role is let into the cluster as a node, by an
// access entry or by aws-auth, whichever the cluster looks at.
// Source: EKS User Guide, "Grant IAM users and roles access to Kubernetes APIs".
func NodeMapping(cluster *Cluster, entries *AccessList, entriesErr error, mapped []MappedRole, mappedErr error, arn string) []Step {
	mode := ""
	if cluster != nil {
		mode = cluster.Access.AuthenticationMode
	}
	var unknown error
	if mode != "CONFIG_MAP" {
		doc := Document{Path: "aws/eks/describe-access-entry", Only: []string{arn}}
		switch {
		case entriesErr != nil:
			unknown = entriesErr
		default:
			if e := entries.Get(arn); e != nil {
				return entrySteps(e, doc)
			}
			if !entries.Listed {
				unknown = gapf(doc, NotCaptured, "not all access entries were captured")
			}
		}
	}
	if mode != "API" {
		doc := Document{Path: "configmaps", Only: []string{"kube-system/aws-auth"}}
		switch {
		case mappedErr != nil && mappedErr != ErrNoAWSAuth: //nolint:errorlint // the sentinel itself
			unknown = mappedErr
		default:
			for _, m := range mapped {
				if m.RoleARN == pathless(arn) {
					return m.steps(doc)
				}
			}
			for _, m := range mapped {
				if m.RoleARN == arn {
					return []Step{{Name: StepMapped, Says: fmt.Sprintf("aws-auth maps %s, but it matches roles without their path only: it must say %s", arn, pathless(arn)), Document: doc}}
				}
			}
		}
	}
	if unknown != nil {
		return []Step{{Name: StepMapped, Err: unknown}}
	}
	says := map[string]string{
		"API":        fmt.Sprintf("no access entry is for %s", arn),
		"CONFIG_MAP": fmt.Sprintf("aws-auth doesn't map %s", arn),
	}[mode]
	if says == "" {
		says = fmt.Sprintf("neither an access entry nor aws-auth is for %s", arn)
	}
	doc := Document{Path: "aws/eks/list-access-entries"}
	if mode == "CONFIG_MAP" {
		doc = Document{Path: "configmaps", Only: []string{"kube-system/aws-auth"}}
	}
	return []Step{{Name: StepMapped, Says: says, Document: doc}}
}

func (m MappedRole) steps(doc Document) []Step {
	ok, lacks := m.ForNodes()
	says := fmt.Sprintf("aws-auth maps %s to %s in %s", m.RoleARN, m.Username, strings.Join(m.Groups, ", "))
	if !ok {
		says += "; it lacks " + lacks
	}
	return []Step{{Name: StepMapped, Holds: true, Says: says, Document: doc}, {Name: StepMappedAsNode, Holds: ok, Says: says, Document: doc}}
}

// nodeEntryTypes let kubelets in; STANDARD doesn't.
var nodeEntryTypes = []string{"EC2_LINUX", "EC2_WINDOWS", "EC2", "FARGATE_LINUX", "HYBRID_LINUX", "HYPERPOD_LINUX"}

func entrySteps(e *AccessEntry, doc Document) []Step {
	mapped := Step{Name: StepMapped, Holds: true, Says: fmt.Sprintf("an access entry is for %s", e.PrincipalARN), Document: doc}
	as := Step{Name: StepMappedAsNode, Document: doc}
	switch {
	case e.Type == "":
		as.Err = gapf(doc, NotCaptured, "the access entry of %s was not described", e.PrincipalARN)
	case slices.Contains(nodeEntryTypes, e.Type):
		as.Holds, as.Says = true, fmt.Sprintf("the access entry of %s is of type %s", e.PrincipalARN, e.Type)
	default:
		as.Says = fmt.Sprintf("the access entry of %s is of type %s, which lets no node in; a node's must be EC2_LINUX", e.PrincipalARN, e.Type)
	}
	return []Step{mapped, as}
}
