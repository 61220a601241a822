package probes

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/pposiraegi/ppodoctor/probes/network"
)

func awsSnapshot(t *testing.T, files map[string]string) Source {
	t.Helper()
	fsys := fstest.MapFS{"nodes.json": {Data: []byte(`{"apiVersion":"v1","kind":"NodeList","items":[{"metadata":{"name":"n"},"spec":{"providerID":"aws:///z/i-1"}}]}`)}}
	for name, data := range files {
		fsys[name] = &fstest.MapFile{Data: []byte(data)}
	}
	src, err := NewSnapshot(fsys)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// TestDescribed: several documents of one command are one list, each resource
// once, in the order of ids, with the CLI's timestamps and unknown fields.
func TestDescribed(t *testing.T) {
	src := awsSnapshot(t, map[string]string{
		"aws/a.json": `{"Reservations":[{"Instances":[{"InstanceId":"i-2","LaunchTime":"2026-08-23T23:39:38+00:00","NewField":{"x":1}},{"InstanceId":"i-1"}]}]}`,
		"aws/b.json": `{"Reservations":[{"Instances":[{"InstanceId":"i-2","LaunchTime":"2026-08-23T23:39:38.000Z"}]}],"NextToken":"x"}`,
		"aws/c.json": `{"SecurityGroups":[{"GroupId":"sg-1","IpPermissions":[{"IpProtocol":"tcp","FromPort":53,"ToPort":53,"UserIdGroupPairs":[{"GroupId":"sg-2"}]}]}]}`,
		"aws/d.json": `{"NetworkAcls":[{"NetworkAclId":"acl-1","Entries":[{"Protocol":"6","RuleAction":"allow","RuleNumber":"many"}]}]}`,
		"aws/e.json": `{"PrefixLists":[{"PrefixListId":"pl-1","PrefixListName":"com.amazonaws.x.s3","Cidrs":["3.5.0.0/19"]},{"PrefixListId":"pl-2"}]}`,
	})
	facts := NewFacts(src)
	facts.Gather(context.Background(), Network, Instances, SecurityGroups, NetworkACLs, Subnets, PrefixLists)
	instances, err := Instances.Of(facts)
	if err != nil || instances.Len() != 2 || *instances.All()[0].InstanceId != "i-1" || instances.Get("i-2").LaunchTime == nil {
		t.Errorf("instances: %v, %v", instances, err)
	}
	groups, err := SecurityGroups.Of(facts)
	if err != nil || *groups.Get("sg-1").IpPermissions[0].UserIdGroupPairs[0].GroupId != "sg-2" {
		t.Errorf("groups: %v, %v", groups, err)
	}
	lists, err := PrefixLists.Of(facts)
	if err != nil || lists.Len() != 1 || !slices.Equal(lists.Get("pl-1").CIDRs, []string{"3.5.0.0/19"}) {
		t.Errorf("prefix lists: %v, %v", lists, err)
	}
	var gap *Gap
	if _, err := NetworkACLs.Of(facts); !errors.As(err, &gap) || gap.Reason != Unreadable {
		t.Errorf("broken document: %v", err)
	}
	if _, err := Subnets.Of(facts); !errors.As(err, &gap) || gap.Reason != NotCaptured {
		t.Errorf("missing document: %v", err)
	}
	w, err := Network.Of(facts)
	if err != nil {
		t.Fatal(err)
	}
	a := w.Path(network.Node("n"), network.Node("m"), network.TCP, 1)
	if !errors.As(a.Err(), &gap) || gap.Grant == "" {
		t.Errorf("an answer without a gap: %v", a.Err())
	}
}

func TestEKSCluster(t *testing.T) {
	one := `{"cluster":{"name":"a","arn":"arn:a","resourcesVpcConfig":{"clusterSecurityGroupId":"sg-1","endpointPrivateAccess":true},"createdAt":"2026-01-27T00:32:06+00:00"}}`
	two := `{"cluster":{"name":"b","arn":"arn:b"}}`
	for name, test := range map[string]struct {
		files map[string]string
		want  string
	}{
		"one":              {map[string]string{"a.json": one, "again.json": one}, "a"},
		"two":              {map[string]string{"a.json": one, "b.json": two}, ""},
		"two, one is ours": {map[string]string{"a.json": one, "b.json": two, "snapshot.yaml": "cluster: b\n"}, "b"},
	} {
		facts := NewFacts(awsSnapshot(t, test.files))
		facts.Gather(context.Background(), EKSCluster)
		c, err := EKSCluster.Of(facts)
		if (err != nil) != (test.want == "") || err == nil && c.Name != test.want {
			t.Errorf("%s: %v, %v", name, c, err)
		}
	}
}

// TestEnforcement: whether the VPC CNI enforces NetworkPolicies is its node
// agent's flag.
func TestEnforcement(t *testing.T) {
	daemon := func(name, args, env string) string {
		return `{"apiVersion":"apps/v1","kind":"DaemonSetList","items":[{"metadata":{"namespace":"kube-system","name":"` + name + `"},"status":{"desiredNumberScheduled":1},
			"spec":{"template":{"spec":{"containers":[{"name":"c","args":[` + args + `],"env":[` + env + `]}]}}}}]}`
	}
	for name, test := range map[string]struct {
		files              map[string]string
		enforced, standard network.Truth
	}{
		"agent on":      {map[string]string{"ds.json": daemon("aws-node", `"--enable-network-policy=true"`, "")}, network.Yes, network.No},
		"agent off":     {map[string]string{"ds.json": daemon("aws-node", `"--enable-network-policy=false"`, "")}, network.No, network.No},
		"standard mode": {map[string]string{"ds.json": daemon("aws-node", "", `{"name":"POD_SECURITY_GROUP_ENFORCING_MODE","value":"standard"}`)}, network.No, network.Yes},
		"another CNI":   {map[string]string{"ds.json": daemon("calico-node", "", "")}, network.Yes, network.Unknown},
		"unknown":       {nil, network.Unknown, network.Unknown},
		"by its pods": {map[string]string{"pods.json": `{"apiVersion":"v1","kind":"PodList","items":[{"metadata":{"namespace":"kube-system","name":"aws-node-x",
			"ownerReferences":[{"kind":"DaemonSet","name":"aws-node","controller":true}]},"spec":{"containers":[{"name":"c","args":["--enable-network-policy=true"]}]}}]}`}, network.Yes, network.No},
	} {
		w := worldOf(t, awsSnapshot(t, test.files))
		if w.Enforced != test.enforced || w.PodENIStandard != test.standard {
			t.Errorf("%s: enforced %s, standard %s", name, w.Enforced, w.PodENIStandard)
		}
	}
}
