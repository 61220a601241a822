package live

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientcmd "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pposiraegi/ppodoctor/diagnose"
	"github.com/pposiraegi/ppodoctor/knowledge"
	"github.com/pposiraegi/ppodoctor/probes"
)

// onWire is a snapshot whose AWS side is read through the SDK.
type onWire struct {
	*probes.Snapshot
	aws *AWS
}

func (s onWire) Open(ctx context.Context, doc probes.Document) (io.ReadCloser, error) {
	if doc.IsAWS() {
		if awsReads[strings.TrimPrefix(doc.Path, "aws/")] == nil {
			panic(doc.Path + " has no reader in awsReads")
		}
		return s.aws.Open(ctx, doc)
	}
	return s.Snapshot.Open(ctx, doc)
}

func openScenario(t *testing.T, name string) *probes.Snapshot {
	t.Helper()
	s, err := probes.OpenSnapshot(filepath.Join("../../testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// options are what a kubeconfig would tell of the snapshot's cluster.
func wireOptions(s *probes.Snapshot) AWSOptions {
	o := AWSOptions{OnAWS: true, Region: s.Meta.Region, Cluster: s.Meta.Cluster}
	if o.Region == "" {
		o.Region = "eu-west-1"
	}
	body, err := s.Open(context.Background(), probes.Document{Path: "aws/eks/describe-cluster"})
	if err != nil {
		return o
	}
	var d struct {
		Cluster struct{ Name string }
	}
	if json.NewDecoder(body).Decode(&d) == nil {
		o.Cluster = d.Cluster.Name
	}
	return o
}

func diagnosed(t *testing.T, src probes.Source) *diagnose.Diagnosis {
	t.Helper()
	k, err := knowledge.Load()
	if err != nil {
		t.Fatal(err)
	}
	return diagnose.Walk(context.Background(), probes.NewFacts(src), k, diagnose.Options{Verbose: true})
}

// roleDocuments are the reads that show a role: one of the account, or those of the
// single role.
var roleDocuments = regexp.MustCompile(`"(?:aws[ /])iam[ /](?:get-account-authorization-details|list-attached-role-policies|list-role-policies|get-role-policy|get-policy-version)[^"]*"`)

// sameFaults is a diagnosis as JSON, without the cluster's name, gaps and
// next (an account's listing is another read than its roles) and which read shows a role.
func sameFaults(t *testing.T, d *diagnose.Diagnosis) string {
	t.Helper()
	copied := *d
	copied.Cluster, copied.Gaps, copied.Next, copied.Verdict = diagnose.Cluster{}, nil, nil, "" // the verdict counts gaps
	text, err := json.MarshalIndent(&copied, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return roleDocuments.ReplaceAllString(string(text), `"a read of the role"`)
}

var everyScenario = flag.Bool("every-scenario", false, "read all scenarios over the wire, not only some of each kind")

// overTheWire are the scenarios that are read over the wire in each test run.
var overTheWire = []string{
	"dns-security-groups", "dns-security-groups-moved-away", "dns-network-acl", "iam-fleet-resource-missing", "iam-fleet-repaired", "iam-scp-denies",
	"irsa-role-missing", "irsa-trust-namespace", "irsa-annotation-missing", "irsa-iam-not-captured", "pod-identity-role-missing",
	"access-entry-standard", "node-role-not-mapped", "healthy-karpenter",
}

// TestOverTheWire reads the AWS side of scenarios through the real SDK, in
// small pages: the diagnosis is that of the files.
func TestOverTheWire(t *testing.T) {
	scenarios, err := filepath.Glob("../../testdata/*/aws")
	if err != nil || len(scenarios) < 20 {
		t.Fatalf("%d scenarios: %v", len(scenarios), err)
	}
	declared := map[string]bool{}
	for _, p := range diagnose.Probes(diagnose.Rules()) {
		for _, right := range p.Permissions() {
			declared[right.Action] = true
		}
	}
	for _, path := range scenarios {
		name := filepath.Base(filepath.Dir(path))
		if !*everyScenario && !slices.Contains(overTheWire, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			s := openScenario(t, name)
			w := startWire(t, s)
			w.pageSize = 2
			recorder := probes.NewRecorder(onWire{s, NewAWS(wireOptions(s))}, probes.NewRedactor([]byte("test")), t.TempDir())
			live := diagnosed(t, recorder)
			for action := range w.calls {
				if action != "sts:GetCallerIdentity" && !declared[action] { // nobody needs a right for that one
					t.Errorf("%s was called, but no probe declares it: the policy of `permissions --for iam` would not do", action)
				}
			}
			want := sameFaults(t, diagnosed(t, s))
			if got := sameFaults(t, live); got != want {
				t.Errorf("through the wire it is diagnosed differently (-files +wire):\n%s", cmp.Diff(want, got))
			}
			if strings.HasPrefix(name, "healthy-") {
				return // nothing of AWS was asked for
			}
			file := filepath.Join(t.TempDir(), "recorded.tar.gz")
			if err := recorder.Write(file, nil); err != nil {
				t.Fatal(err)
			}
			recorded, err := probes.OpenSnapshot(file)
			if err != nil {
				t.Fatal(err)
			}
			hidden := regexp.MustCompile(`REDACTED-[0-9a-f]{10}`)
			got, want := hidden.ReplaceAllString(sameFaults(t, diagnosed(t, recorded)), ""), hidden.ReplaceAllString(sameFaults(t, live), "")
			if got != want {
				t.Errorf("the recording is diagnosed differently (-wire +recording):\n%s", cmp.Diff(want, got))
			}
		})
	}
}

func readAll(t *testing.T, src probes.Source, doc probes.Document) (string, error) {
	t.Helper()
	body, err := src.Open(context.Background(), doc)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text), nil
}

func gapOf(t *testing.T, err error) *probes.Gap {
	t.Helper()
	var gap *probes.Gap
	if !errors.As(err, &gap) {
		t.Fatalf("no gap: %v", err)
	}
	return gap
}

// TestAsTheCLIPrints compares documents with what the snapshot's capture holds.
func TestAsTheCLIPrints(t *testing.T) {
	s := openScenario(t, "dns-security-groups")
	startWire(t, s).pageSize = 3
	aws := NewAWS(wireOptions(s))
	for path, key := range map[string]string{
		"ec2/describe-instances": "Reservations", "ec2/describe-security-groups": "SecurityGroups", "ec2/describe-subnets": "Subnets",
		"ec2/describe-network-interfaces": "NetworkInterfaces", "ec2/describe-network-acls": "NetworkAcls",
	} {
		want, got := merged(t, s, path, key), merged(t, aws, path, key)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-CLI +read):\n%s", path, diff)
		}
	}
}

// merged are the items of all pages of a document. Empty lists and texts that
// the CLI prints or leaves out as it likes don't count, nor how a time is written.
func merged(t *testing.T, src probes.Source, path, key string) []any {
	t.Helper()
	text, err := readAll(t, src, probes.Document{Path: "aws/" + path})
	if err != nil {
		t.Fatal(err)
	}
	var all []any
	for decoder := json.NewDecoder(strings.NewReader(text)); ; {
		var v map[string][]any
		if err := decoder.Decode(&v); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, v[key]...)
	}
	var trim func(any) any
	trim = func(v any) any {
		switch v := v.(type) {
		case map[string]any:
			for k, each := range v {
				if l, ok := each.([]any); ok && len(l) == 0 {
					delete(v, k)
				} else {
					v[k] = trim(each)
				}
			}
		case []any:
			for i := range v {
				v[i] = trim(v[i])
			}
		case string:
			if at, err := time.Parse(time.RFC3339, v); err == nil {
				return at.UTC()
			}
		}
		return v
	}
	trim(all)
	return all
}

func TestRefusedIsAGapThatNamesTheAction(t *testing.T) {
	s := openScenario(t, "access-entry-standard")
	for action, doc := range map[string]probes.Document{
		"eks:DescribeCluster":          {Path: "aws/eks/describe-cluster"},
		"ec2:DescribeInstances":        {Path: "aws/ec2/describe-instances"},
		"eks:DescribeAccessEntry":      {Path: "aws/eks/describe-access-entry"},
		"eks:ListAccessEntries":        {Path: "aws/eks/list-access-entries"},
		"iam:GetRole":                  {Path: "aws/iam/get-role", Only: []string{"x", "y"}},
		"iam:ListAttachedRolePolicies": {Path: "aws/iam/list-attached-role-policies", Only: []string{"x"}},
	} {
		w := startWire(t, s)
		w.deny[action] = true
		_, err := readAll(t, NewAWS(wireOptions(s)), doc)
		if g := gapOf(t, err); g.Reason != probes.Forbidden || g.Grant != action || !strings.Contains(g.Detail, action) {
			t.Errorf("%s: %s, grant %s: %s", action, g.Reason, g.Grant, g.Detail)
		}
	}
}

// TestDeniedEverywhere: without any right in AWS the walk goes on, and what
// Kubernetes shows is reported all the same.
func TestDeniedEverywhere(t *testing.T) {
	s := openScenario(t, "dns-security-groups")
	w := startWire(t, s)
	for action := range ec2Lists {
		w.deny["ec2:"+action] = true
	}
	w.deny["eks:DescribeCluster"] = true
	d := diagnosed(t, onWire{s, NewAWS(wireOptions(s))})
	if len(d.Causes) > 0 || len(d.Symptoms) == 0 || len(d.Suspected) == 0 || len(d.Next) == 0 {
		t.Fatalf("%d causes, %d suspected, %d symptoms, %d next", len(d.Causes), len(d.Suspected), len(d.Symptoms), len(d.Next))
	}
	if !slices.ContainsFunc(d.Gaps, func(g diagnose.Gap) bool { return g.Grant == "ec2:DescribeInstances" && g.Reason == "forbidden" }) {
		t.Errorf("gaps: %v", d.Gaps)
	}
}

func TestThrottledIsAskedAgain(t *testing.T) {
	s := openScenario(t, "dns-security-groups")
	w := startWire(t, s)
	w.throttle["ec2:DescribeSubnets"] = 2
	if _, err := readAll(t, NewAWS(wireOptions(s)), probes.Document{Path: "aws/ec2/describe-subnets"}); err != nil {
		t.Fatal(err)
	}
	w.throttle["ec2:DescribeSubnets"] = 1000
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	_, err := NewAWS(wireOptions(s)).Open(ctx, probes.Document{Path: "aws/ec2/describe-subnets"})
	if g := gapOf(t, err); g.Reason != probes.TimedOut {
		t.Errorf("%s: %s", g.Reason, g.Detail)
	}
}

func TestNoCredentials(t *testing.T) {
	s := openScenario(t, "dns-security-groups")
	w := startWire(t, s)
	os.Unsetenv("AWS_ACCESS_KEY_ID") // t.Setenv restores it
	os.Unsetenv("AWS_SECRET_ACCESS_KEY")
	_, err := readAll(t, NewAWS(wireOptions(s)), probes.Document{Path: "aws/ec2/describe-subnets"})
	if g := gapOf(t, err); g.Reason != probes.NotCaptured || !strings.Contains(g.Detail, "no AWS credentials") {
		t.Errorf("%s: %s", g.Reason, g.Detail)
	}
	if len(w.calls) > 0 {
		t.Errorf("asked for %v without credentials", w.calls)
	}
}

func TestCredentialsOfAnotherAccount(t *testing.T) {
	s := openScenario(t, "dns-security-groups")
	startWire(t, s)
	o := wireOptions(s)
	o.Account = "999900001111"
	_, err := readAll(t, NewAWS(o), probes.Document{Path: "aws/ec2/describe-subnets"})
	if g := gapOf(t, err); !strings.Contains(g.Detail, "the cluster is in account 999900001111") {
		t.Error(g)
	}
}

// TestOneRoleOfMany: what IAM says of one role doesn't hide the others, and a
// role that doesn't exist is known not to, in the account that was asked only.
func TestOneRoleOfMany(t *testing.T) {
	s := openScenario(t, "iam-fleet-resource-missing")
	w := startWire(t, s)
	facts := probes.NewFacts(onWire{s, NewAWS(wireOptions(s))}).Asking(probes.Call{Role: "nobody", Action: "s3:GetObject"}, probes.Call{Role: "atlas-karpenter", Action: "ec2:CreateFleet"})
	facts.Gather(context.Background(), probes.Roles)
	roles, err := probes.Roles.Of(facts)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"atlas-karpenter": "there", "nobody": "absent", "arn:aws:iam::" + w.account + ":role/nobody": "absent",
		"arn:aws:iam::999900001111:role/nobody": "gap", "never-asked-for": "gap",
	} {
		r, err := roles.Get(name)
		got := "gap"
		if err == nil {
			got = map[bool]string{true: "absent", false: "there"}[r == nil]
		}
		if got != want {
			t.Errorf("%s: %s, not %s (%v)", name, got, want, err)
		}
	}
	if r, _ := roles.Get("atlas-karpenter"); r != nil {
		if _, err := r.Policies(); err != nil {
			t.Error(err)
		}
	}
}

// TestSimulated: a running cluster's calls are put to IAM's simulator, which
// knows what no policy of the role shows.
func TestSimulated(t *testing.T) {
	s := openScenario(t, "iam-fleet-repaired")
	startWire(t, s).scp = true
	call := probes.Call{Role: "atlas-karpenter", Action: "ec2:DescribeInstances", Resource: "*"}
	facts := probes.NewFacts(onWire{s, NewAWS(wireOptions(s))}).Asking(call)
	facts.Gather(context.Background(), probes.Permissions)
	solver, err := probes.Permissions.Of(facts)
	if err != nil {
		t.Fatal(err)
	}
	ruling, err := solver.May(call.Role, call.Action, call.Resource, nil)
	if err != nil || ruling.By != "simulation" || !strings.Contains(ruling.Why(), "service control policy") {
		t.Errorf("%v %s: %s", err, ruling.By, ruling.Why())
	}
}

// TestScanSimulates: what AWS refused is put to the simulator, with what the
// request carries; that it and the policies disagree is told.
func TestScanSimulates(t *testing.T) {
	s := openScenario(t, "iam-fleet-resource-missing")
	w := startWire(t, s)
	w.scp = true
	d := diagnosed(t, onWire{s, NewAWS(wireOptions(s))})
	if w.calls["iam:SimulatePrincipalPolicy"] == 0 {
		t.Fatal("the simulator was not asked")
	}
	if !slices.ContainsFunc(d.Causes, func(c diagnose.Cause) bool {
		return c.Rule == "iam-action-denied" && strings.Contains(c.Summary, "service control policy does not allow it")
	}) {
		t.Errorf("causes: %v", d.Causes)
	}
}

// TestExpiredToken: a login that has run out is one gap that says so.
func TestExpiredToken(t *testing.T) {
	s := openScenario(t, "dns-security-groups")
	w := startWire(t, s)
	w.expired = true
	for _, path := range []string{"aws/ec2/describe-subnets", "aws/eks/describe-cluster", "aws/iam/list-open-id-connect-providers"} {
		_, err := readAll(t, NewAWS(wireOptions(s)), probes.Document{Path: path})
		if g := gapOf(t, err); g.Reason != probes.Forbidden || !strings.Contains(g.Detail, "expired") || !strings.Contains(g.Detail, "aws sso login") {
			t.Errorf("%s: %s: %s", path, g.Reason, g.Detail)
		}
	}
	if d := diagnosed(t, onWire{s, NewAWS(wireOptions(s))}); len(d.Symptoms) == 0 || len(d.Suspected) == 0 {
		t.Errorf("%d symptoms, %d suspected", len(d.Symptoms), len(d.Suspected))
	}
}

func TestHints(t *testing.T) {
	exec := func(command string, args ...string) *clientcmd.ExecConfig {
		return &clientcmd.ExecConfig{Command: command, Args: args, Env: []clientcmd.ExecEnvVar{{Name: "AWS_PROFILE", Value: "prod"}}}
	}
	for _, test := range []struct {
		about, name, server string
		exec                *clientcmd.ExecConfig
		want                AWSOptions
	}{
		{
			"update-kubeconfig", "arn:aws:eks:eu-west-1:111122223333:cluster/main", "https://ABC.gr7.eu-west-1.eks.amazonaws.com",
			exec("aws", "--region", "eu-west-1", "eks", "get-token", "--cluster-name", "main", "--output", "json"),
			AWSOptions{OnAWS: true, Region: "eu-west-1", Account: "111122223333", Cluster: "main", Profile: "prod"},
		},
		{
			"renamed, China", "prod", "https://ABC.sk1.cn-north-1.eks.amazonaws.com.cn", exec("/usr/local/bin/aws", "eks", "get-token", "--cluster-name=main", "--profile=x"),
			AWSOptions{OnAWS: true, Region: "cn-north-1", Cluster: "main", Profile: "x"},
		},
		{
			"eksctl", "main.us-east-2.eksctl.io", "", exec(`C:\bin\aws-iam-authenticator.exe`, "token", "-i", "main"),
			AWSOptions{OnAWS: true, Region: "us-east-2", Cluster: "main", Profile: "prod"},
		},
		{"other cloud", "gke_x", "https://10.0.0.1", exec("gke-gcloud-auth-plugin", "--region", "x"), AWSOptions{}},
		{"kind", "kind-kind", "https://127.0.0.1:4000", nil, AWSOptions{}},
	} {
		if diff := cmp.Diff(test.want, Hints(test.name, test.server, test.exec)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.about, diff)
		}
	}
}

// TestNoAWSCluster: a cluster elsewhere makes no request to AWS.
func TestNoAWSCluster(t *testing.T) {
	s := openScenario(t, "healthy-kind")
	w := startWire(t, s)
	_, err := readAll(t, NewAWS(AWSOptions{Nodes: s}), probes.Document{Path: "aws/ec2/describe-subnets"})
	if g := gapOf(t, err); g.Reason != probes.NotCaptured || len(w.calls) > 0 {
		t.Errorf("%v; calls %v", g, w.calls)
	}
}
