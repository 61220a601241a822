package iampolicy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A call is one that Karpenter makes, in testdata/karpenter-calls.jsonl.
// Source: karpenter-provider-aws from v0.32 to v1.14, checked with an
// independent simulator (@cloud-copilot/iam-simulate 0.1.173).
type call struct {
	ID, Action, Resource string
	Context              map[string][]string
	Since, Until         string   // release lines, inclusive; Until is empty for the latest
	Except               []string // lines whose official policy doesn't allow it
	Needs                []string // keys that the official policy tests
}

func (c call) request() Request {
	return Request{Action: c.Action, Resource: c.Resource, Context: c.Context}
}

func (c call) in(line string) bool {
	return minor(c.Since) <= minor(line) && (c.Until == "" || c.Until == "latest" || minor(line) <= minor(c.Until)) && !slices.Contains(c.Except, line)
}

func minor(line string) int {
	major, rest, _ := strings.Cut(strings.TrimPrefix(line, "v"), ".")
	a, _ := strconv.Atoi(major)
	b, _ := strconv.Atoi(rest)
	return a*1000 + b
}

func readLines[T any](t *testing.T, file string) []T {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	var all []T
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var one T
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, one)
	}
	return all
}

// officialPolicies are Karpenter's, by release line.
// Source: getting-started cloudformation.yaml of each line.
func officialPolicies(t *testing.T) map[string]Policy {
	t.Helper()
	data, err := os.ReadFile("testdata/karpenter-policies.json")
	if err != nil {
		t.Fatal(err)
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		t.Fatal(err)
	}
	all := map[string]Policy{}
	for lines, doc := range raw {
		p, err := Parse("KarpenterControllerPolicy", doc)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.FieldsSeq(lines) {
			all[line] = p
		}
	}
	return all
}

func allows(p Policy, c call) bool {
	return Evaluate(c.request(), Policies{Identity: []Policy{p}}).Effect == Allowed
}

func TestOfficialKarpenterPolicies(t *testing.T) {
	calls := readLines[call](t, "karpenter-calls.jsonl")
	checked := 0
	for line, p := range officialPolicies(t) {
		for _, c := range calls {
			if c.in(line) && line != "v0.31" {
				checked++
				if d := Evaluate(c.request(), Policies{Identity: []Policy{p}}); d.Effect != Allowed && c.ID != "ListInstanceProfiles.path@v1" {
					t.Errorf("%s: %s: %s", line, c.ID, d.Why())
				}
			}
		}
	}
	t.Logf("%d calls allowed", checked)
	if checked < 800 {
		t.Errorf("only %d calls were evaluated", checked)
	}
}

// Removing a key that the policy tests denies the call, and no other key does.
func TestKarpenterPolicyNeedsEachKey(t *testing.T) {
	official := officialPolicies(t)
	for _, c := range readLines[call](t, "karpenter-calls.jsonl") {
		line := "v1.14"
		if c.Until != "" && c.Until != "latest" {
			line = c.Until
		}
		if !c.in(line) || c.ID == "RebootInstances@v1" {
			continue
		}
		for key := range c.Context {
			less := c
			less.Context = map[string][]string{}
			for k, v := range c.Context {
				if k != key {
					less.Context[k] = v
				}
			}
			if got, want := allows(official[line], less), !slices.Contains(c.Needs, key); got != want {
				t.Errorf("%s without %s: allowed %v, want %v", c.ID, key, got, want)
			}
		}
	}
}

// Each statement removed in turn denies exactly what it alone granted.
func TestEachStatementGrantsItsOwn(t *testing.T) {
	calls := readLines[call](t, "karpenter-calls.jsonl")
	for line, p := range officialPolicies(t) {
		used := make([]bool, len(p.Statements))
		for i := range p.Statements {
			without := p
			without.Statements = slices.Delete(slices.Clone(p.Statements), i, i+1)
			for _, c := range calls {
				if !c.in(line) || line == "v0.31" {
					continue
				}
				var by []int
				for j, s := range p.Statements {
					if allows(Policy{Version: p.Version, Statements: []Statement{s}}, c) {
						by = append(by, j)
					}
				}
				used[i] = used[i] || slices.Contains(by, i)
				d := Evaluate(c.request(), Policies{Identity: []Policy{without}})
				lost := len(by) == 1 && by[0] == i
				if (d.Effect != Allowed) != (lost || len(by) == 0) {
					t.Errorf("%s without %s: %s is %s", line, p.Statements[i].Label(), c.ID, d.Effect)
				}
				if lost {
					add, ok := d.StatementToAdd()
					mended := without
					mended.Statements = append(slices.Clone(without.Statements), add)
					if !ok || !allows(mended, c) {
						t.Errorf("%s without %s: adding %s doesn't mend %s", line, p.Statements[i].Label(), add.JSON(), c.ID)
					}
				}
			}
		}
		for i, u := range used {
			if !u && line != "v0.31" {
				t.Errorf("%s: no call needs %s", line, p.Statements[i].Label())
			}
		}
	}
}

// The faults of testdata/faults.json, each the list of calls that it denies.
func TestKarpenterFaults(t *testing.T) {
	official := officialPolicies(t)
	edit := func(line string, change func(*Statement) bool) Policy {
		p := official[line]
		p.Statements = slices.Clone(p.Statements)
		var kept []Statement
		for _, s := range p.Statements {
			s.Actions, s.Resources, s.Conditions = slices.Clone(s.Actions), slices.Clone(s.Resources), slices.Clone(s.Conditions)
			if change(&s) {
				kept = append(kept, s)
			}
		}
		p.Statements = kept
		return p
	}
	replace := func(line, from, to string) Policy {
		return edit(line, func(s *Statement) bool {
			for i, r := range s.Resources {
				s.Resources[i] = strings.ReplaceAll(r, from, to)
			}
			for i, c := range s.Conditions {
				c.Key = strings.ReplaceAll(c.Key, from, to)
				c.Values = slices.Clone(c.Values)
				for j, v := range c.Values {
					c.Values[j] = strings.ReplaceAll(v, from, to)
				}
				s.Conditions[i] = c
			}
			return true
		})
	}
	policies := map[string]Policy{
		"string-equals-star (seed 2-11)": edit("v1.14", func(s *Statement) bool {
			for i, c := range s.Conditions {
				s.Conditions[i].Operator = strings.ReplaceAll(c.Operator, "StringLike", "StringEquals")
			}
			return true
		}),
		"no fleet/* resource (seed 2-10)": edit("v1.14", func(s *Statement) bool {
			s.Resources = slices.DeleteFunc(s.Resources, func(r string) bool { return strings.HasSuffix(r, ":fleet/*") })
			return true
		}),
		"no iam instance-profile actions (seed 2-9)": edit("v1.14", func(s *Statement) bool {
			s.Actions = slices.DeleteFunc(s.Actions, func(a string) bool { return strings.Contains(a, "InstanceProfile") })
			return len(s.Actions) > 0
		}),
		"no pricing:GetProducts (seed 2-12)":                                       edit("v1.14", func(s *Statement) bool { return s.Actions[0] != "pricing:GetProducts" }),
		"v0.37 policy used with Karpenter v1.14":                                   official["v0.37"],
		"v1.0 policy used with Karpenter v1.14":                                    official["v1.0"],
		"v1.14 policy used with Karpenter v0.37 (tags lack eks:eks-cluster-name)":  official["v1.14"],
		"v0.31 policy used with Karpenter v0.32":                                   official["v0.31"],
		"policy written for another cluster name":                                  edit("v1.14", otherCluster),
		"policy written for another region":                                        replace("v1.14", "ap-northeast-2", "us-east-1"),
		"PassRole scoped to another node role":                                     replace("v1.14", "role/KarpenterNodeRole-demo", "role/AnotherNodeRole"),
		"instance-profile scoped to demo_* (valid <=v1.6, breaks from v1.7 paths)": replace("v1.14", "instance-profile/*", "instance-profile/demo_*"),
	}
	data, err := os.ReadFile("testdata/faults.json")
	if err != nil {
		t.Fatal(err)
	}
	var faults map[string]struct {
		Line   string `json:"karpenter_line"`
		Denied []string
	}
	if err := json.Unmarshal(data, &faults); err != nil {
		t.Fatal(err)
	}
	calls := readLines[call](t, "karpenter-calls.jsonl")
	for name, fault := range faults {
		p, ok := policies[name]
		if !ok {
			t.Errorf("no policy for %q", name)
			continue
		}
		var denied []string
		for _, c := range calls {
			// The oracle can't evaluate these two; see simulate.md.
			if strings.HasPrefix(c.ID, "ssm.") || c.ID == "ListInstanceProfiles.path@v1" {
				continue
			}
			if c.in(fault.Line) && !allows(p, c) {
				denied = append(denied, c.ID)
			}
		}
		slices.Sort(denied)
		slices.Sort(fault.Denied)
		for _, id := range denied {
			if !slices.Contains(fault.Denied, id) {
				t.Errorf("%s: denies %s, which the oracle allows", name, id)
			}
		}
		for _, id := range fault.Denied {
			if !slices.Contains(denied, id) {
				t.Errorf("%s: allows %s, which the oracle denies", name, id)
			}
		}
	}
}

// otherCluster rewrites what names the cluster demo, but not the queue and the node role.
func otherCluster(s *Statement) bool {
	for i, r := range s.Resources {
		s.Resources[i] = strings.ReplaceAll(r, ":cluster/demo", ":cluster/other")
	}
	for i, c := range s.Conditions {
		c.Key = strings.ReplaceAll(c.Key, "cluster/demo", "cluster/other")
		c.Values = slices.Clone(c.Values)
		for j, v := range c.Values {
			if v = strings.ReplaceAll(v, "cluster/demo", "cluster/other"); v == "demo" {
				v = "other"
			}
			c.Values[j] = v
		}
		s.Conditions[i] = c
	}
	return true
}

func TestSemanticsVectors(t *testing.T) {
	type vector struct {
		ID       string
		Policy   json.RawMessage
		Action   string
		Resource string
		Context  map[string]listOf[scalar]
		Expect   Effect
	}
	all := readLines[vector](t, "semantics.jsonl")
	for _, v := range all {
		p, err := Parse(v.ID, v.Policy)
		if err != nil {
			t.Fatal(err)
		}
		context := map[string][]string{}
		for k, values := range v.Context {
			context[k] = texts(values)
		}
		d := Evaluate(Request{Action: v.Action, Resource: v.Resource, Context: context}, Policies{Identity: []Policy{p}})
		if d.Effect != v.Expect {
			t.Errorf("%s: %s, want %s: %s", v.ID, d.Effect, v.Expect, d.Why())
		}
	}
	if len(all) != 41 {
		t.Errorf("%d vectors, want 41", len(all))
	}
}
