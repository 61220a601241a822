package probes

import (
	"bufio"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pposiraegi/ppodoctor/knowledge"
	"github.com/pposiraegi/ppodoctor/probes/iampolicy"
)

// demo fills the ARN templates as in iampolicy/testdata/karpenter-calls.jsonl.
var demo = map[string]string{
	"partition": "aws", "region": "ap-northeast-2", "account": "123456789012", "cluster": "demo",
	"nodepool": "default", "nodeclass": "default", "nodeRole": "arn:aws:iam::123456789012:role/KarpenterNodeRole-demo",
	"queue": "demo", "uid": "0b1c2d3e-1111-2222-3333-444455556666", "id": "0123456789abcdef0",
}

// The calls that permissions.yaml says Karpenter makes are those that were
// put to an independent simulator, key by key.
func TestKarpenterCallsAreThoseOfTheOracle(t *testing.T) {
	k, err := knowledge.Load()
	if err != nil {
		t.Fatal(err)
	}
	karpenter := k.Component("karpenter")
	file, err := os.Open("iampolicy/testdata/karpenter-calls.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	oracle := map[string]bool{}
	for lines.Scan() {
		var want struct {
			ID, Action, Resource, Since string
			Context                     map[string][]string
		}
		if err := json.Unmarshal(lines.Bytes(), &want); err != nil {
			t.Fatal(err)
		}
		if want.ID == "ListInstanceProfiles.path@v1" {
			continue // how AWS names the resource of a denial, not another call
		}
		oracle[want.Action] = true
		var near []string
		found := false
		for _, c := range karpenter.CallsOf(want.Action, want.Since) {
			for _, r := range c.Resources {
				r = strings.Replace(knowledge.Fill(r, demo), "pg-0123456789abcdef0", "pg-1", 1)
				if r != want.Resource {
					continue
				}
				diff := cmp.Diff(want.Context, karpenter.Context(c, want.Since, demo))
				found = found || strings.ReplaceAll(diff, "default-abcde", "") == ""
				near = append(near, diff)
			}
		}
		if !found {
			t.Errorf("%s: no such call of %s in permissions.yaml; near: %s", want.ID, want.Since, strings.Join(near, "\n"))
		}
	}
	for _, c := range karpenter.Calls {
		for _, a := range c.Actions {
			if !oracle[a] {
				t.Errorf("%s is no call of the oracle's", a)
			}
		}
	}
}

// The documented policies allow what permissions.yaml says is called.
func TestDocumentedPoliciesAllowTheCalls(t *testing.T) {
	k, err := knowledge.Load()
	if err != nil {
		t.Fatal(err)
	}
	vars := maps.Clone(demo)
	for name, value := range map[string]string{"bucket": "logs", "zone": "Z1", "secret": "a/b-123456", "repository": "app"} {
		vars[name] = value
	}
	data, err := os.ReadFile("testdata/documented-policies.json")
	if err != nil {
		t.Fatal(err)
	}
	var policies map[string]json.RawMessage
	if err := json.Unmarshal(data, &policies); err != nil {
		t.Fatal(err)
	}
	for _, id := range slices.Sorted(maps.Keys(policies)) {
		p, err := iampolicy.Parse(id, policies[id])
		if err != nil {
			t.Fatal(err)
		}
		component := k.Component(id)
		for _, c := range component.Calls {
			for _, action := range c.Actions {
				if strings.HasPrefix(action, "kms:") {
					continue // granted by a policy of its own
				}
				for _, r := range c.Resources {
					request := iampolicy.Request{Action: action, Resource: knowledge.Fill(r, vars), Context: component.Context(c, "", vars)}
					if d := iampolicy.Evaluate(request, iampolicy.Policies{Identity: []iampolicy.Policy{p}}); d.Effect != iampolicy.Allowed {
						t.Errorf("%s: %s", id, d.Why())
					}
					if strings.Contains(request.Resource, "{") {
						t.Errorf("%s: %s is not filled", id, request.Resource)
					}
				}
			}
		}
	}
}
