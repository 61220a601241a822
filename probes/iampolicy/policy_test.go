package iampolicy

import (
	"encoding/json"
	"net/url"
	"reflect"
	"strings"
	"testing"
)

const simple = `{"Version":"2012-10-17","Statement":{"Effect":"Allow","Action":"s3:GetObject","Resource":"arn:aws:s3:::b/a+b"}}`

func TestParseForms(t *testing.T) {
	quotedText, _ := json.Marshal(simple)
	quotedEncoded, _ := json.Marshal(url.PathEscape(simple))
	var want Policy
	for i, form := range []string{
		simple, string(quotedText), string(quotedEncoded), url.PathEscape(simple), " " + simple + "\n",
		`{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["s3:GetObject"],"Resource":["arn:aws:s3:::b/a+b"]}]}`,
	} {
		p, err := Parse("p", []byte(form))
		if err != nil {
			t.Errorf("%s: %v", form, err)
			continue
		}
		if i == 0 {
			want = p
		}
		if !reflect.DeepEqual(p, want) {
			t.Errorf("%s: got %+v, want %+v", form, p, want)
		}
	}
	if got := want.Statements[0].Resources[0]; got != "arn:aws:s3:::b/a+b" {
		t.Errorf("resource %q: a plus must stay a plus", got)
	}
}

func TestParseRefuses(t *testing.T) {
	for doc, says := range map[string]string{
		``:                   "unexpected end",
		`[]`:                 "cannot unmarshal",
		`{"Version":"2013"}`: `unknown version "2013"`,
		`{"Statement":[{"Effect":"allow","Action":"*","Resource":"*"}]}`:                                                `effect is "allow"`,
		`{"Statement":[{"Effect":"Allow","Resource":"*"}]}`:                                                             "needs either Action or NotAction",
		`{"Statement":[{"Effect":"Allow","Action":"*","NotAction":"*"}]}`:                                               "needs either Action or NotAction",
		`{"Statement":[{"Effect":"Allow","Action":"*","Resource":"*","NotResource":"*"}]}`:                              "both Resource and NotResource",
		`{"Statement":[{"Effect":"Allow","Action":"*","Resource":"*","Condition":{"StringIs":{"k":"v"}}}]}`:             `unknown condition operator "StringIs"`,
		`{"Statement":[{"Effect":"Allow","Action":"*","Resource":"*","Condition":{"ForSome:StringEquals":{"k":"v"}}}]}`: `unknown condition operator`,
		`{"Statement":[{"Effect":"Allow","Action":"*","Resource":"*","Condition":{"NullIfExists":{"k":"true"}}}]}`:      `unknown condition operator`,
		`{"Statement":[{"Effect":"Allow","Action":"*","Resource":"*","Condition":{"StringEquals":{"k":{"x":"y"}}}}]}`:   "where a text is needed",
		`{"Statement":[{"Effect":"Allow","Action":"sts:AssumeRole","Principal":"someone"}]}`:                            `principal "someone"`,
	} {
		if _, err := Parse("p", []byte(doc)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: error %v, want %q", doc, err, says)
		}
	}
}

func TestWhy(t *testing.T) {
	parse := func(statements string) []Policy {
		p, err := Parse("Karpenter", []byte(`{"Version":"2012-10-17","Statement":[`+statements+`]}`))
		if err != nil {
			t.Fatal(err)
		}
		return []Policy{p}
	}
	fleet := Request{
		Action: "ec2:CreateFleet", Resource: "arn:aws:ec2:eu-west-1:1:fleet/*",
		Context: map[string][]string{"aws:RequestTag/karpenter.sh/nodepool": {"default"}},
	}
	launch := `{"Sid":"Launch","Effect":"Allow","Action":["ec2:CreateFleet","ec2:RunInstances"],"Resource":["arn:aws:ec2:*:*:instance/*","arn:aws:ec2:*:*:volume/*"],"Condition":{"StringLike":{"aws:RequestTag/karpenter.sh/nodepool":"*"}}}`
	for _, c := range []struct {
		about    string
		request  Request
		policies Policies
		reason   Reason
		says     []string
		add      []string // in the statement to add; none: there is no such statement
	}{
		{
			"no statement",
			Request{Action: "iam:GetInstanceProfile", Resource: "arn:aws:iam::1:instance-profile/demo_1"},
			Policies{Identity: parse(launch)},
			NoStatement,
			[]string{"no statement allows iam:GetInstanceProfile in the identity policy (Karpenter)"},
			[]string{`"Action": "iam:GetInstanceProfile"`, `"Resource": "arn:aws:iam::1:instance-profile/*"`},
		},
		{"no policy", fleet, Policies{}, NoStatement, []string{"there is none"}, []string{"fleet/*"}},
		{
			"other resources", fleet,
			Policies{Identity: parse(launch)},
			NotThisResource,
			[]string{"statement Launch of Karpenter allows ec2:CreateFleet on arn:aws:ec2:*:*:instance/*, arn:aws:ec2:*:*:volume/*", "none covers arn:aws:ec2:eu-west-1:1:fleet/*"},
			[]string{`"Resource": "arn:aws:ec2:eu-west-1:1:fleet/*"`, `"StringLike"`, `"aws:RequestTag/karpenter.sh/nodepool": "*"`},
		},
		{
			"literal star", fleet,
			Policies{Identity: parse(strings.ReplaceAll(strings.ReplaceAll(launch, "StringLike", "StringEquals"), "instance/*", "fleet/*"))},
			ConditionFails,
			[]string{`StringEquals aws:RequestTag/karpenter.sh/nodepool is "*", but it is "default"`, "only StringLike reads"},
			[]string{`"StringLike"`, `"*"`},
		},
		{
			"tag that isn't sent", fleet,
			Policies{Identity: parse(`{"Effect":"Allow","Action":"ec2:*","Resource":"*","Condition":{"StringEquals":{"aws:RequestTag/eks:eks-cluster-name":"demo"}}}`)},
			ConditionFails,
			[]string{"statement #1 of Karpenter", "the request sends no tag eks:eks-cluster-name"},
			[]string{"ec2:CreateFleet"},
		},
		{
			"untagged resource", fleet,
			Policies{Identity: parse(`{"Effect":"Allow","Action":"ec2:*","Resource":"*","Condition":{"StringEquals":{"aws:ResourceTag/team":"a"}}}`)},
			ConditionFails,
			[]string{"the resource has no tag team"},
			[]string{"ec2:CreateFleet"},
		},
		{
			"explicit deny", fleet,
			Policies{Identity: parse(`{"Sid":"No","Effect":"Deny","Action":"ec2:*","Resource":"*"}`)},
			DenyStatement,
			[]string{"denied by statement No of Karpenter", "Effect Deny in an identity policy"},
			nil,
		},
		{
			"boundary", fleet,
			Policies{Identity: parse(`{"Effect":"Allow","Action":"*","Resource":"*"}`), Boundary: &parse(`{"Effect":"Allow","Action":"s3:*","Resource":"*"}`)[0]},
			NoStatement,
			[]string{"no statement allows ec2:CreateFleet in the permissions boundary"},
			[]string{"ec2:CreateFleet"},
		},
		{
			"organization", fleet,
			Policies{Identity: parse(`{"Effect":"Allow","Action":"*","Resource":"*"}`), Organization: [][]Policy{parse(`{"Effect":"Allow","Action":"s3:*","Resource":"*"}`)}},
			NoStatement,
			[]string{"no statement allows ec2:CreateFleet in the service control policy"},
			[]string{"ec2:CreateFleet"},
		},
		{
			"trust for another provider",
			Request{Action: "sts:AssumeRoleWithWebIdentity", Principal: Principal{"Federated", "arn:aws:iam::1:oidc-provider/B"}},
			Policies{Resource: parse(`{"Effect":"Allow","Action":"sts:AssumeRoleWithWebIdentity","Principal":{"Federated":"arn:aws:iam::1:oidc-provider/A"}}`)},
			NotThisCaller,
			[]string{"allowed to Federated arn:aws:iam::1:oidc-provider/A, not to Federated arn:aws:iam::1:oidc-provider/B"},
			[]string{`"Federated": "arn:aws:iam::1:oidc-provider/B"`},
		},
		{
			"trust with the provider's ARN in the key",
			Request{Action: "sts:AssumeRoleWithWebIdentity", Principal: Principal{"Federated", "P"}, Context: map[string][]string{"i:sub": {"x"}}},
			Policies{Resource: parse(`{"Effect":"Allow","Action":"sts:AssumeRoleWithWebIdentity","Principal":{"Federated":"P"},"Condition":{"StringEquals":{"arn:aws:iam::1:oidc-provider/i:sub":"x"}}}`)},
			ConditionFails,
			[]string{"without the provider's ARN"},
			[]string{`"i:sub": "x"`},
		},
	} {
		d := Evaluate(c.request, c.policies)
		if d.Reason != c.reason {
			t.Errorf("%s: reason %q, want %q", c.about, d.Reason, c.reason)
		}
		for _, want := range c.says {
			if !strings.Contains(d.Why(), want) {
				t.Errorf("%s: %q doesn't say %q", c.about, d.Why(), want)
			}
		}
		add, ok := d.StatementToAdd()
		if ok != (c.add != nil) {
			t.Errorf("%s: statement to add: %v", c.about, ok)
		}
		for _, want := range c.add {
			if !strings.Contains(add.JSON(), want) {
				t.Errorf("%s: %s doesn't have %s", c.about, add.JSON(), want)
			}
		}
	}
}

// FuzzParse: nothing panics, and a statement written out reads as itself.
func FuzzParse(f *testing.F) {
	f.Add([]byte(simple))
	f.Add([]byte(`"%7B%22Statement%22%3A%5B%5D%7D"`))
	f.Add([]byte(`{"Version":"2008-10-17","Statement":[{"Effect":"Deny","NotAction":["a:*"],"NotResource":"x","Condition":{"ForAnyValue:NumericLessThanIfExists":{"k":[1,true,"${a,'b'}"]}}}]}`))
	f.Add([]byte(`{"Statement":{"Effect":"Allow","Action":"sts:AssumeRole","Principal":{"AWS":["1","*"],"Service":"s"}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Parse("p", data)
		if err != nil {
			return
		}
		r := Request{Action: "a:B", Resource: "arn:aws:a:r:1:x/y", Context: map[string][]string{"k": {"1", "v"}}, Unknown: []string{"u*"}, Principal: Principal{"AWS", "arn:aws:iam::1:role/r"}}
		d := Evaluate(r, Policies{Identity: []Policy{p}, Resource: []Policy{p}, Boundary: &p})
		_ = d.Why()
		d.StatementToAdd()
		for _, s := range p.Statements {
			if len(s.NotPrincipals) > 0 {
				continue // JSON leaves them out
			}
			again, err := Parse("p", []byte(`{"Version":"`+p.Version+`","Statement":`+s.JSON()+`}`))
			if err != nil {
				t.Fatalf("%s: %v", s.JSON(), err)
			}
			again.Statements[0].Number = s.Number
			if again.Statements[0].JSON() != s.JSON() {
				t.Fatalf("%s reads as %s", s.JSON(), again.Statements[0].JSON())
			}
		}
	})
}
