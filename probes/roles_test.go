package probes

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/fstest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pposiraegi/ppodoctor/knowledge"
	"github.com/pposiraegi/ppodoctor/probes/iampolicy"
)

const (
	issuer   = "oidc.eks.eu-west-1.amazonaws.com/id/ABC"
	irsaText = `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Federated":"arn:aws:iam::111122223333:oidc-provider/` + issuer + `"},"Action":"sts:AssumeRoleWithWebIdentity","Condition":{"StringEquals":{"` + issuer + `:sub":"system:serviceaccount:ns:sa","` + issuer + `:aud":"sts.amazonaws.com"}}}]}`
	getOnly  = `{"Version":"2012-10-17","Statement":[{"Sid":"Read","Effect":"Allow","Action":"s3:GetObject","Resource":"arn:aws:s3:::logs/*"}]}`
)

// gathered are facts of a snapshot with the given AWS documents.
func gathered(t *testing.T, files map[string]string, wanted ...Any) *Facts {
	t.Helper()
	fsys := fstest.MapFS{
		"ns.json":       {Data: []byte(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"ns"}}`)},
		"snapshot.yaml": {Data: []byte("capturedAt: 2026-05-02T03:14:00Z\n")},
	}
	for name, text := range files {
		fsys["aws/"+name+".json"] = &fstest.MapFile{Data: []byte(text)}
	}
	src, err := NewSnapshot(fsys)
	if err != nil {
		t.Fatal(err)
	}
	f := NewFacts(src)
	f.Gather(context.Background(), wanted...)
	return f
}

func quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

const roleHead = `"Path":"/","RoleName":"app","Arn":"arn:aws:iam::111122223333:role/app"`

// roleForms are the same role, captured in each way that people have.
var roleForms = map[string]map[string]string{
	"the account's listing": {
		"iam/all": `{"RoleDetailList":[{` + roleHead + `,"AssumeRolePolicyDocument":` + irsaText + `,"InstanceProfileList":[],"RolePolicyList":[{"PolicyName":"read","PolicyDocument":` + getOnly + `}],"AttachedManagedPolicies":[]}],"Policies":[]}`,
	},
	"the account's listing, as the API encodes documents": {
		"iam/all": `{"RoleDetailList":[{` + roleHead + `,"AssumeRolePolicyDocument":` + quote(irsaText) + `,"RolePolicyList":[],"AttachedManagedPolicies":[{"PolicyName":"read","PolicyArn":"arn:aws:iam::111122223333:policy/read"}]}],"Policies":[{"Arn":"arn:aws:iam::111122223333:policy/read","PolicyName":"read","DefaultVersionId":"v2","PolicyVersionList":[{"VersionId":"v1","IsDefaultVersion":false,"Document":{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"*","Resource":"*"}]}},{"VersionId":"v2","IsDefaultVersion":true,"Document":` + quote(getOnly) + `}]}]}`,
	},
	"single reads, inline": {
		"iam/app/get-role":      `{"Role":{` + roleHead + `,"AssumeRolePolicyDocument":` + irsaText + `}}`,
		"iam/app/attached":      `{"AttachedPolicies":[]}`,
		"iam/app/inline":        `{"PolicyNames":["read"]}`,
		"iam/app/get-role-read": `{"RoleName":"app","PolicyName":"read","PolicyDocument":` + getOnly + `}`,
	},
	"single reads, managed": {
		"iam/app/get-role": `{"Role":{` + roleHead + `,"AssumeRolePolicyDocument":` + irsaText + `}}`,
		"iam/app/attached": `{"AttachedPolicies":[{"PolicyName":"read","PolicyArn":"arn:aws:iam::111122223333:policy/read"}]}`,
		"iam/app/inline":   `{"PolicyNames":[]}`,
		"iam/app/version":  `{"PolicyVersion":{"Document":` + getOnly + `,"VersionId":"v3","IsDefaultVersion":true}}`,
	},
}

func TestRolesInEachForm(t *testing.T) {
	for about, files := range roleForms {
		f := gathered(t, files, Permissions)
		s, err := Permissions.Of(f)
		if err != nil {
			t.Fatal(err)
		}
		for resource, want := range map[string]iampolicy.Effect{"arn:aws:s3:::logs/a": iampolicy.Allowed, "arn:aws:s3:::other/a": iampolicy.ImplicitDeny} {
			r, err := s.May("app", "s3:GetObject", resource, map[string][]string{})
			if err != nil || r.Effect != want {
				t.Errorf("%s: %s is %s, %v; want %s: %s", about, resource, r.Effect, err, want, r.Why())
			}
		}
	}
}

// What was not captured is never "denied": each document of a role withheld.
func TestRoleWithDocumentsMissing(t *testing.T) {
	for about, files := range roleForms {
		for drop := range files {
			if len(files) == 1 {
				continue
			}
			less := map[string]string{}
			for name, text := range files {
				if name != drop {
					less[name] = text
				}
			}
			s, err := Permissions.Of(gathered(t, less, Permissions))
			if err != nil {
				t.Fatal(err)
			}
			r, err := s.May("app", "s3:PutObject", "arn:aws:s3:::logs/a", map[string][]string{})
			if !IsGap(err) {
				t.Errorf("%s without %s: %s, %v: want a gap", about, drop, r.Effect, err)
			}
		}
	}
}

func TestAbsentRoles(t *testing.T) {
	list := roleForms["the account's listing"]
	single := roleForms["single reads, inline"]
	truncated := map[string]string{"iam/all": strings.TrimSuffix(list["iam/all"], "}") + `,"IsTruncated":true,"Marker":"x"}`}
	none := map[string]string{"iam/all": `{"RoleDetailList":[],"Policies":[]}`}
	for _, c := range []struct {
		about, role string
		files       map[string]string
		exists, gap bool
	}{
		{"listed", "arn:aws:iam::111122223333:role/app", list, true, false},
		{"not in the listing", "arn:aws:iam::111122223333:role/gone", list, false, false},
		{"by name", "gone", list, false, false},
		{"with a path that it doesn't have", "arn:aws:iam::111122223333:role/team/app", list, false, false},
		{"of another account", "arn:aws:iam::999999999999:role/gone", list, false, true},
		{"of another account, with a name that is here", "arn:aws:iam::999999999999:role/app", list, false, true},
		{"from a listing that goes on", "arn:aws:iam::111122223333:role/gone", truncated, false, true},
		{"from a listing filtered for policies", "arn:aws:iam::111122223333:role/gone", none, false, true},
		{"from single reads", "arn:aws:iam::111122223333:role/gone", single, false, true},
	} {
		roles, err := Roles.Of(gathered(t, c.files, Roles))
		if err != nil {
			t.Fatal(err)
		}
		r, err := roles.Get(c.role)
		if (r != nil) != c.exists || IsGap(err) != c.gap {
			t.Errorf("a role %s: %v, %v", c.about, r, err)
		}
	}
	if _, err := Roles.Of(gathered(t, nil, Roles)); !IsGap(err) {
		t.Errorf("no IAM document at all: %v", err)
	}
}

func TestBoundaryAndSimulations(t *testing.T) {
	bounded := strings.Replace(roleForms["the account's listing"]["iam/all"], `"InstanceProfileList":[]`, `"PermissionsBoundary":{"PermissionsBoundaryType":"Policy","PermissionsBoundaryArn":"arn:aws:iam::111122223333:policy/limit"}`, 1)
	limit := `{"Arn":"arn:aws:iam::111122223333:policy/limit","PolicyName":"limit","DefaultVersionId":"v1","PolicyVersionList":[{"VersionId":"v1","IsDefaultVersion":true,"Document":{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"ec2:*","Resource":"*"}]}}]}`
	sim := func(body string) map[string]string {
		return map[string]string{"iam/app/simulate": `{"EvaluationResults":[` + body + `]}`, "iam/all": roleForms["the account's listing"]["iam/all"]}
	}
	for _, c := range []struct {
		about  string
		files  map[string]string
		effect iampolicy.Effect
		gap    bool
		says   string
	}{
		{"boundary that denies", map[string]string{"iam/all": strings.Replace(bounded, `"Policies":[]`, `"Policies":[`+limit+`]`, 1)}, iampolicy.ImplicitDeny, false, "permissions boundary (limit)"},
		{"boundary that wasn't captured", map[string]string{"iam/all": bounded}, "", true, ""},
		{"simulation, old form", sim(`{"EvalActionName":"s3:GetObject","EvalResourceName":"arn:aws:s3:::logs/a","EvalDecision":"explicitDeny","MatchedStatements":[{"SourcePolicyId":"p"}],"MissingContextValues":[]}`), iampolicy.ExplicitDeny, false, "simulator says explicitDeny"},
		{"simulation, new form", sim(`{"EvalActionName":"s3:GetObject","EvalResourceName":"arn:${Partition}:s3:::x","EvalDecision":"implicitDeny","ResourceSpecificResults":[{"EvalResourceName":"arn:aws:s3:::logs/a","EvalResourceDecision":"implicitDeny","MatchedStatements":[]}],"OrganizationsDecisionDetail":{"AllowedByOrganizations":false}}`), iampolicy.ImplicitDeny, false, "service control policy"},
		{"simulation that lacked context", sim(`{"EvalActionName":"s3:GetObject","EvalResourceName":"arn:aws:s3:::logs/a","EvalDecision":"implicitDeny","MissingContextValues":["aws:RequestTag/x"]}`), iampolicy.Allowed, false, "allowed by statement Read"},
		{"simulation of another resource", sim(`{"EvalActionName":"s3:GetObject","EvalResourceName":"*","EvalDecision":"implicitDeny"}`), iampolicy.Allowed, false, ""},
	} {
		s, err := Permissions.Of(gathered(t, c.files, Permissions))
		if err != nil {
			t.Fatal(err)
		}
		r, err := s.May("arn:aws:sts::111122223333:assumed-role/app/session", "s3:GetObject", "arn:aws:s3:::logs/a", map[string][]string{})
		if r.Effect != c.effect || IsGap(err) != c.gap || err == nil && !strings.Contains(r.Why(), c.says) {
			t.Errorf("%s: %q, %v: %s", c.about, r.Effect, err, r.Why())
		}
	}
}

func TestIRSAChain(t *testing.T) {
	account := roleForms["the account's listing"]["iam/all"]
	cluster := `{"cluster":{"name":"c","arn":"arn:aws:eks:eu-west-1:111122223333:cluster/c","identity":{"oidc":{"issuer":"https://` + issuer + `"}}}}`
	providers := `{"OpenIDConnectProviderList":[{"Arn":"arn:aws:iam::111122223333:oidc-provider/` + issuer + `"}]}`
	const arn = "arn:aws:iam::111122223333:role/app"
	for _, c := range []struct {
		about, annotation  string
		all                string
		cluster, providers string
		namespace          string
		broken             StepName
		says               string
		open               StepName // a link that can't be told
	}{
		{about: "whole", annotation: arn, all: account, cluster: cluster, providers: providers},
		{about: "no annotation", all: account, cluster: cluster, providers: providers, broken: StepAnnotated, says: "has no annotation"},
		{about: "a bare name", annotation: "app", all: account, cluster: cluster, providers: providers, broken: StepRoleARN, says: `role-arn="app"`},
		{about: "an instance profile", annotation: "arn:aws:iam::111122223333:instance-profile/app", all: account, cluster: cluster, providers: providers, broken: StepRoleARN},
		{about: "no such role", annotation: arn + "x", all: account, cluster: cluster, providers: providers, broken: StepRole, says: "there is no role"},
		{about: "path left out", annotation: arn, all: strings.ReplaceAll(account, ":role/app", ":role/team/app"), cluster: cluster, providers: providers, broken: StepRole, says: "the role of that name is arn:aws:iam::111122223333:role/team/app"},
		{about: "no provider", annotation: arn, all: account, cluster: cluster, providers: strings.Replace(providers, "/id/ABC", "/id/OLD", 1), broken: StepProvider, says: "no OIDC provider for the cluster's issuer " + issuer},
		{about: "another cluster's provider trusted", annotation: arn, all: strings.ReplaceAll(account, "/id/ABC", "/id/OLD"), cluster: cluster, providers: providers, broken: StepTrust, says: "/id/OLD, not to Federated"},
		{about: "another namespace", annotation: arn, namespace: "other", all: account, cluster: cluster, providers: providers, broken: StepTrust, says: `:sub is "system:serviceaccount:ns:sa", but it is "system:serviceaccount:other:sa"`},
		{about: "another audience", annotation: arn, all: strings.Replace(account, "sts.amazonaws.com\"}", "other\"}", 1), cluster: cluster, providers: providers, broken: StepTrust, says: ":aud is"},
		{about: "a star in StringEquals", annotation: arn, all: strings.Replace(account, "ns:sa", "ns:*", 1), cluster: cluster, providers: providers, broken: StepTrust, says: "only StringLike reads"},
		{about: "ARN in the key", annotation: arn, all: strings.Replace(account, `"`+issuer+`:sub`, `"arn:aws:iam::111122223333:oidc-provider/`+issuer+`:sub`, 1), cluster: cluster, providers: providers, broken: StepTrust, says: "without the provider's ARN"},
		{about: "a role without this action", annotation: arn, all: strings.Replace(account, "sts:AssumeRoleWithWebIdentity", "sts:AssumeRole", 1), cluster: cluster, providers: providers, broken: StepTrust, says: "no statement allows sts:AssumeRoleWithWebIdentity"},
		{about: "cluster not captured", annotation: arn, all: account, providers: providers, open: StepTrust},
		{about: "providers not captured", annotation: arn, all: account, cluster: cluster, open: StepProvider},
		{about: "role of another account", annotation: "arn:aws:iam::999999999999:role/app", all: account, cluster: cluster, providers: providers, open: StepRole},
	} {
		files := map[string]string{"iam/all": c.all}
		if c.cluster != "" {
			files["eks/cluster"] = c.cluster
		}
		if c.providers != "" {
			files["iam/providers"] = c.providers
		}
		ns := c.namespace
		if ns == "" {
			ns = "ns"
		}
		sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "sa"}}
		if c.annotation != "" {
			sa.Annotations = map[string]string{RoleAnnotation: c.annotation}
		}
		chain := IdentityOf(gathered(t, files, IdentityNeeds...)).IRSA(sa)
		broken := Broken(chain)
		switch {
		case c.broken == "" && broken != nil:
			t.Errorf("%s: broken at %s: %s", c.about, broken.Name, broken.Says)
		case c.broken != "" && (broken == nil || broken.Name != c.broken || !strings.Contains(broken.Says, c.says)):
			t.Errorf("%s: broken at %+v, want %s saying %q", c.about, broken, c.broken, c.says)
		}
		if c.open != "" {
			if l := Link(chain, c.open); l == nil || !IsGap(l.Err) {
				t.Errorf("%s: link %s is %+v, want a gap", c.about, c.open, l)
			}
		}
	}
}

func TestPodIdentityChain(t *testing.T) {
	trust := `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":"pods.eks.amazonaws.com"},"Action":["sts:AssumeRole","sts:TagSession"]}]}`
	account := strings.Replace(roleForms["the account's listing"]["iam/all"], irsaText, trust, 1)
	one := `{"association":{"associationId":"a-1","namespace":"ns","serviceAccount":"sa","roleArn":"arn:aws:iam::111122223333:role/app"}}`
	list := `{"associations":[{"associationId":"a-1","namespace":"ns","serviceAccount":"sa"}]}`
	for _, c := range []struct {
		about, sa, all, one, list string
		broken                    StepName
		says                      string
		open                      StepName
	}{
		{about: "whole", sa: "sa", all: account, one: one, list: list},
		{about: "described only", sa: "sa", all: account, one: one},
		{about: "another account, all listed", sa: "other", all: account, one: one, list: list, broken: StepAssociated, says: "no Pod Identity association is for ServiceAccount ns/other"},
		{about: "another account, not all listed", sa: "other", all: account, one: one, open: StepAssociated},
		{about: "nothing captured", sa: "sa", all: account, open: StepAssociated},
		{about: "not described", sa: "sa", all: account, list: list, open: StepRole},
		{about: "role gone", sa: "sa", all: account, one: strings.Replace(one, "role/app", "role/gone", 1), list: list, broken: StepRole, says: "there is no role"},
		{about: "IRSA trust", sa: "sa", all: roleForms["the account's listing"]["iam/all"], one: one, list: list, broken: StepTrust, says: "no statement allows sts:AssumeRole"},
		{about: "no TagSession", sa: "sa", all: strings.Replace(account, `["sts:AssumeRole","sts:TagSession"]`, `"sts:AssumeRole"`, 1), one: one, list: list, broken: StepTrust, says: "sts:TagSession"},
	} {
		files := map[string]string{"iam/all": c.all}
		if c.one != "" {
			files["eks/one"] = c.one
		}
		if c.list != "" {
			files["eks/list"] = c.list
		}
		chain := IdentityOf(gathered(t, files, IdentityNeeds...)).PodIdentity("ns", c.sa)
		broken := Broken(chain)
		if (broken != nil) != (c.broken != "") || broken != nil && (broken.Name != c.broken || !strings.Contains(broken.Says, c.says)) {
			t.Errorf("%s: broken at %+v, want %q saying %q", c.about, broken, c.broken, c.says)
		}
		if l := Link(chain, c.open); c.open != "" && (l == nil || !IsGap(l.Err)) {
			t.Errorf("%s: link %s is %+v, want a gap", c.about, c.open, l)
		}
	}
}

func TestNodeMapping(t *testing.T) {
	const arn = "arn:aws:iam::1:role/team/node"
	entry := func(kind string) *AccessList {
		return &AccessList{newAWSList([]AccessEntry{{PrincipalARN: arn, Type: kind}}, func(e *AccessEntry) string { return e.PrincipalARN }), true}
	}
	none := &AccessList{newAWSList([]AccessEntry{{PrincipalARN: "arn:aws:iam::1:role/x", Type: "EC2_LINUX"}}, func(e *AccessEntry) string { return e.PrincipalARN }), true}
	some := &AccessList{none.AWSList, false}
	groups := []string{"system:bootstrappers", "system:nodes"}
	mapped := []MappedRole{{RoleARN: "arn:aws:iam::1:role/node", Username: "system:node:{{EC2PrivateDNSName}}", Groups: groups}}
	withPath := []MappedRole{{RoleARN: arn, Username: "system:node:{{EC2PrivateDNSName}}", Groups: groups}}
	for _, c := range []struct {
		about, mode string
		entries     *AccessList
		mapped      []MappedRole
		mappedErr   error
		mapped1     string // yes, no, unknown: let in; and as a node
		says        string
	}{
		{"entry", "API", entry("EC2_LINUX"), nil, ErrNoAWSAuth, "yes yes", ""},
		{"standard entry", "API", entry("STANDARD"), nil, ErrNoAWSAuth, "yes no", "type STANDARD"},
		{"no entry", "API", none, mapped, nil, "no", "no access entry"},
		{"not all entries", "API", some, nil, ErrNoAWSAuth, "unknown", ""},
		{"aws-auth", "CONFIG_MAP", none, mapped, nil, "yes yes", ""},
		{"aws-auth, either", "API_AND_CONFIG_MAP", some, mapped, nil, "yes yes", ""},
		{"aws-auth with path", "CONFIG_MAP", none, withPath, nil, "no", "must say arn:aws:iam::1:role/node"},
		{"aws-auth without group", "CONFIG_MAP", none, []MappedRole{{RoleARN: "arn:aws:iam::1:role/node", Username: "system:node:{{EC2PrivateDNSName}}", Groups: groups[:1]}}, nil, "yes no", "lacks group system:nodes"},
		{"neither", "API_AND_CONFIG_MAP", none, nil, nil, "no", "neither"},
		{"no aws-auth", "CONFIG_MAP", none, nil, ErrNoAWSAuth, "no", "doesn't map"},
	} {
		cluster := &Cluster{}
		cluster.Access.AuthenticationMode = c.mode
		var got []string
		var says string
		for _, s := range NodeMapping(cluster, c.entries, nil, c.mapped, c.mappedErr, arn) {
			says += s.Says
			switch {
			case s.Err != nil:
				got = append(got, "unknown")
			case s.Holds:
				got = append(got, "yes")
			default:
				got = append(got, "no")
			}
		}
		if g := strings.Join(got, " "); g != c.mapped1 || !strings.Contains(says, c.says) {
			t.Errorf("%s: %s (%s), want %s", c.about, g, says, c.mapped1)
		}
	}
}

func TestMappedRoles(t *testing.T) {
	f := gathered(t, map[string]string{"cm": `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"kube-system","name":"aws-auth"},"data":{"mapRoles":"- rolearn: arn:aws:iam::1:role/n\n  username: system:node:{{EC2PrivateDNSName}}\n  groups: [system:bootstrappers, system:nodes]\n"}}`}, ConfigMaps)
	roles, err := MappedRoles(f)
	if err != nil || len(roles) != 1 {
		t.Fatalf("%v, %v", roles, err)
	}
	if ok, lacks := roles[0].ForNodes(); !ok {
		t.Error(lacks)
	}
}

// In whole clusters in which nothing is wrong, each chain holds and Karpenter
// may do what it does.
func TestHealthyIdentities(t *testing.T) {
	k, err := knowledge.Load()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"managed-and-karpenter", "mesh-kafka-monitoring"} {
		src, err := OpenSnapshot("../testdata/" + file + ".tar.gz")
		if err != nil {
			t.Fatal(err)
		}
		f := NewFacts(src)
		f.Gather(context.Background(), append([]Any{ServiceAccounts, AccessEntries, ConfigMaps, EC2NodeClasses, Permissions}, IdentityNeeds...)...)
		accounts, err := ServiceAccounts.Of(f)
		if err != nil {
			t.Fatal(err)
		}
		id, chains := IdentityOf(f), 0
		for _, sa := range accounts.All() {
			if sa.Annotations[RoleAnnotation] == "" {
				continue
			}
			chains++
			for _, s := range id.IRSA(sa) {
				if !s.Holds || s.Err != nil {
					t.Errorf("%s: %s/%s: %s: %s %v", file, sa.Namespace, sa.Name, s.Name, s.Says, s.Err)
				}
			}
		}
		entries, err := AccessEntries.Of(f)
		if err != nil {
			t.Fatal(err)
		}
		classes, err := EC2NodeClasses.Of(f)
		if err != nil {
			t.Fatal(err)
		}
		vars := map[string]string{"partition": "aws", "region": src.Meta.Region, "account": src.Meta.Account, "cluster": src.Meta.Cluster, "nodepool": "p", "nodeclass": "c", "queue": src.Meta.Cluster, "uid": "u", "id": "0"}
		for _, c := range classes.All() {
			r, err := id.Roles.Get(c.Spec.Role)
			if err != nil || r == nil {
				t.Fatalf("%s: role %s: %v", file, c.Spec.Role, err)
			}
			vars["nodeRole"] = r.ARN
			for _, s := range NodeMapping(id.Cluster, entries, nil, nil, ErrNoAWSAuth, r.ARN) {
				if !s.Holds {
					t.Errorf("%s: %s: %s %v", file, r.Name, s.Says, s.Err)
				}
			}
		}
		solver, err := Permissions.Of(f)
		if err != nil {
			t.Fatal(err)
		}
		karpenter, asked := k.Component("karpenter"), 0
		for _, c := range karpenter.Calls {
			for _, action := range c.Actions {
				for _, resource := range c.Resources {
					if !c.In("v1.6") || c.When == "INTERRUPTION_QUEUE" {
						continue
					}
					asked++
					r, err := solver.May(src.Meta.Cluster+"-karpenter", action, knowledge.Fill(resource, vars), karpenter.Context(c, "v1.6", vars))
					if err != nil || r.Effect != iampolicy.Allowed {
						t.Errorf("%s: %v %s", file, err, r.Why())
					}
				}
			}
		}
		t.Logf("%s: %d chains, %d calls", file, chains, asked)
		if chains < 5 || asked < 45 {
			t.Errorf("%s: only %d chains and %d calls", file, chains, asked)
		}
	}
}
