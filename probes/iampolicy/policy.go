// Package iampolicy decides what an AWS request may do under the policies
// that bind it, and says why. It is a pure function of its arguments.
//
// The semantics are those of the IAM User Guide: "Policy evaluation logic",
// "IAM JSON policy elements" and "Grammar of the IAM JSON policy language".
package iampolicy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// A Policy is one policy document.
type Policy struct {
	Name       string // where a person finds it: a policy's ARN or an inline policy's name
	Version    string // "2012-10-17", "2008-10-17", or empty, which means the latter
	Statements []Statement
}

// A Statement is one statement of a policy. Exactly one of Actions and
// NotActions is set, at most one of Resources and NotResources; a trust
// policy has neither of these.
type Statement struct {
	Number                  int // from 1, its place in the policy
	Sid                     string
	Effect                  string // Allow or Deny
	Actions, NotActions     []string
	Resources, NotResources []string
	Principals              []Principal // of a trust or resource policy
	NotPrincipals           []Principal
	Conditions              []Condition // in the order of operator and key
}

// A Condition is one operator on one key, with the values that it takes.
type Condition struct {
	Operator string // as written: "StringEquals", "ForAllValues:StringLikeIfExists"
	Key      string
	Values   []string
}

// Label is how to find the statement: its Sid, else its number.
func (s Statement) Label() string {
	if s.Sid != "" {
		return s.Sid
	}
	return "#" + strconv.Itoa(s.Number)
}

// Parse reads a policy document: a JSON object as the AWS CLI prints it, or
// the same as text, plain or percent-encoded as the IAM API returns it, with
// or without JSON quotes around it. It refuses what IAM would refuse to store:
// unknown condition operators, a statement without an effect or an action.
func Parse(name string, data []byte) (Policy, error) {
	p, err := parse(data)
	if err != nil {
		return Policy{}, fmt.Errorf("policy %s: %w", name, err)
	}
	p.Name = name
	return p, nil
}

func parse(data []byte) (Policy, error) {
	data = bytes.TrimSpace(data)
	if len(data) > 0 && data[0] == '"' {
		var text string
		if err := json.Unmarshal(data, &text); err != nil {
			return Policy{}, err
		}
		data = []byte(strings.TrimSpace(text))
	}
	if len(data) > 0 && data[0] == '%' {
		text, err := url.PathUnescape(string(data)) // not QueryUnescape: a + is a plus
		if err != nil {
			return Policy{}, err
		}
		data = []byte(text)
	}
	var doc struct {
		Version   string
		Statement listOf[rawStatement]
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		return Policy{}, err
	}
	if !slices.Contains([]string{"", version2008, version2012}, doc.Version) {
		return Policy{}, fmt.Errorf("unknown version %q", doc.Version)
	}
	p := Policy{Version: doc.Version}
	for i, raw := range doc.Statement {
		s, err := raw.statement()
		if err != nil {
			return Policy{}, fmt.Errorf("statement %d: %w", i+1, err)
		}
		s.Number = i + 1
		p.Statements = append(p.Statements, s)
	}
	return p, nil
}

const (
	version2008 = "2008-10-17"
	version2012 = "2012-10-17"
)

type rawStatement struct {
	Sid                     string
	Effect                  string
	Action, NotAction       listOf[scalar]
	Resource, NotResource   listOf[scalar]
	Principal, NotPrincipal principals
	Condition               map[string]map[string]listOf[scalar]
}

func (r rawStatement) statement() (Statement, error) {
	s := Statement{
		Sid: r.Sid, Effect: r.Effect,
		Actions: texts(r.Action), NotActions: texts(r.NotAction),
		Resources: texts(r.Resource), NotResources: texts(r.NotResource),
		Principals: r.Principal, NotPrincipals: r.NotPrincipal,
	}
	switch {
	case s.Effect != Allow && s.Effect != Deny:
		return s, fmt.Errorf("effect is %q, not Allow or Deny", s.Effect)
	case (len(s.Actions) == 0) == (len(s.NotActions) == 0):
		return s, fmt.Errorf("needs either Action or NotAction")
	case len(s.Resources) > 0 && len(s.NotResources) > 0:
		return s, fmt.Errorf("has both Resource and NotResource")
	}
	for operator, keys := range r.Condition {
		if _, err := parseOperator(operator); err != nil {
			return s, err
		}
		for key, values := range keys {
			s.Conditions = append(s.Conditions, Condition{operator, key, texts(values)})
		}
	}
	slices.SortFunc(s.Conditions, func(a, b Condition) int {
		return strings.Compare(a.Operator+"\x00"+a.Key, b.Operator+"\x00"+b.Key)
	})
	return s, nil
}

// listOf is a JSON list, or one element without the brackets.
type listOf[T any] []T

func (l *listOf[T]) UnmarshalJSON(data []byte) error {
	if data[0] == '[' {
		return json.Unmarshal(data, (*[]T)(l))
	}
	one := make([]T, 1)
	if err := json.Unmarshal(data, &one[0]); err != nil {
		return err
	}
	*l = one
	return nil
}

// scalar is a JSON string, or a number or boolean that stands unquoted.
type scalar string

func (s *scalar) UnmarshalJSON(data []byte) error {
	switch data[0] {
	case '"':
		return json.Unmarshal(data, (*string)(s))
	case '{', '[', 'n':
		return fmt.Errorf("%.20s where a text is needed", data)
	}
	*s = scalar(data)
	return nil
}

func texts(list []scalar) []string {
	var all []string
	for _, s := range list {
		all = append(all, string(s))
	}
	return all
}

type principals []Principal

func (p *principals) UnmarshalJSON(data []byte) error {
	if data[0] == '"' {
		var any string
		if err := json.Unmarshal(data, &any); err != nil {
			return err
		}
		if any != "*" {
			return fmt.Errorf("principal %q", any)
		}
		*p = principals{{Type: "AWS", Name: "*"}}
		return nil
	}
	var byType map[string]listOf[scalar]
	if err := json.Unmarshal(data, &byType); err != nil {
		return err
	}
	for kind, names := range byType {
		for _, n := range texts(names) {
			*p = append(*p, Principal{kind, n})
		}
	}
	slices.SortStableFunc(*p, func(a, b Principal) int { return strings.Compare(a.Type, b.Type) })
	return nil
}

// JSON is the statement as it is written in a policy. Its form is stable.
func (s Statement) JSON() string {
	type form struct {
		Sid         string                    `json:",omitempty"`
		Effect      string                    `json:",omitempty"`
		Principal   map[string]any            `json:",omitempty"`
		Action      any                       `json:",omitempty"`
		NotAction   any                       `json:",omitempty"`
		Resource    any                       `json:",omitempty"`
		NotResource any                       `json:",omitempty"`
		Condition   map[string]map[string]any `json:",omitempty"`
	}
	out := form{
		Sid: s.Sid, Effect: s.Effect, Action: oneOrMany(s.Actions), NotAction: oneOrMany(s.NotActions),
		Resource: oneOrMany(s.Resources), NotResource: oneOrMany(s.NotResources),
	}
	for _, p := range s.Principals {
		if out.Principal == nil {
			out.Principal = map[string]any{}
		}
		named, _ := out.Principal[p.Type].([]string)
		out.Principal[p.Type] = append(named, p.Name)
	}
	for kind, named := range out.Principal {
		out.Principal[kind] = oneOrMany(named.([]string))
	}
	for _, c := range s.Conditions {
		if out.Condition == nil {
			out.Condition = map[string]map[string]any{}
		}
		if out.Condition[c.Operator] == nil {
			out.Condition[c.Operator] = map[string]any{}
		}
		out.Condition[c.Operator][c.Key] = append([]string{}, c.Values...)
		if len(c.Values) == 1 {
			out.Condition[c.Operator][c.Key] = c.Values[0]
		}
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(out); err != nil {
		return "" // can't be: it is made of strings
	}
	return strings.TrimSpace(b.String())
}

func oneOrMany(list []string) any {
	switch len(list) {
	case 0:
		return nil
	case 1:
		return list[0]
	}
	return list
}
