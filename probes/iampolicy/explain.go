package iampolicy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Why is the decision in a sentence: the statement, the resources it has, the
// condition with what it wants and what the request sends.
func (d Decision) Why() string {
	r := d.Request
	call := r.Action
	if r.Resource != "" && r.Resource != "*" {
		call += " on " + r.Resource
	}
	switch {
	case d.Effect == Allowed && len(d.Statements) > 0:
		return call + " is allowed by " + d.Statements[0].where()
	case d.Effect == Allowed:
		return call + " is allowed"
	case d.Effect == Undecided:
		return call + " hangs on context that isn't known here: " + strings.Join(d.Missing, ", ")
	case d.Reason == DenyStatement:
		return fmt.Sprintf("%s is denied by %s, a statement with Effect Deny in %s", call, d.Statements[0].where(), article(d.Kind))
	case d.Reason == NoStatement && len(d.Policies) == 0:
		return fmt.Sprintf("no %s allows %s: there is none", d.Kind, r.Action)
	case d.Reason == NoStatement:
		return fmt.Sprintf("no statement allows %s in %s (%s)", r.Action, plural(len(d.Policies), d.Kind), strings.Join(d.Policies, ", "))
	case d.Reason == NotThisCaller:
		var named []string
		for _, m := range d.Statements {
			for _, p := range m.Statement.Principals {
				named = append(named, p.Type+" "+p.Name)
			}
		}
		return fmt.Sprintf("%s is allowed to %s, not to %s %s", r.Action, some(named, 4), r.Principal.Type, r.Principal.Name)
	case d.Reason == NotThisResource:
		var parts []string
		for _, m := range d.Statements {
			st := m.Statement
			if len(st.NotResources) > 0 {
				parts = append(parts, fmt.Sprintf("%s allows %s on all but %s", m.where(), r.Action, some(st.NotResources, 6)))
				continue
			}
			parts = append(parts, fmt.Sprintf("%s allows %s on %s", m.where(), r.Action, some(st.Resources, 8)))
		}
		return fmt.Sprintf("%s; none covers %s", some(parts, 4), r.Resource)
	}
	var parts []string
	for _, m := range d.nearest() {
		var failed []string
		for _, f := range m.Failed {
			failed = append(failed, f.String())
		}
		parts = append(parts, fmt.Sprintf("%s allows %s only if %s", m.where(), call, strings.Join(failed, ", and ")))
	}
	return some(parts, 3)
}

// nearest are the statements that fail the fewest conditions.
func (d Decision) nearest() []Match {
	fewest := len(d.Statements[0].Failed)
	for _, m := range d.Statements {
		fewest = min(fewest, len(m.Failed))
	}
	return slices.DeleteFunc(slices.Clone(d.Statements), func(m Match) bool { return len(m.Failed) > fewest })
}

func (m Match) where() string {
	if m.Policy == "" {
		return "statement " + m.Statement.Label()
	}
	return "statement " + m.Statement.Label() + " of " + m.Policy
}

// String is what the condition wants, what it got, and what is odd about it.
func (f Failure) String() string {
	s := fmt.Sprintf("%s %s is %s", f.Operator, f.Key, quoted(f.Values))
	if f.Got == nil {
		return s + ", but " + f.absent()
	}
	s += ", but it is " + quoted(f.Got)
	switch {
	case f.literalWildcard():
		s += " (StringEquals compares with the literal text; only StringLike reads * and ? as wildcards)"
	case slices.ContainsFunc(f.Values, func(v string) bool { return v != f.Got[0] && strings.EqualFold(v, f.Got[0]) }):
		s += " (they differ in case)"
	}
	return s
}

func (f Failure) absent() string {
	kind, tag, _ := strings.Cut(f.Key, "/")
	switch strings.ToLower(kind) {
	case "aws:requesttag":
		return "the request sends no tag " + tag
	case "aws:resourcetag", "ec2:resourcetag":
		return "the resource has no tag " + tag
	}
	if strings.HasPrefix(f.Key, "arn:") && strings.Contains(f.Key, ":oidc-provider/") {
		return "there is no such key: it starts with the issuer's host, without the provider's ARN"
	}
	return "the request has no " + f.Key
}

// literalWildcard is whether a StringEquals was written as if it were a
// StringLike, which the request would pass.
func (f Failure) literalWildcard() bool {
	op, err := parseOperator(f.Operator)
	return err == nil && op.family == "stringequals" && !op.negated && len(f.Got) > 0 &&
		slices.ContainsFunc(f.Values, func(v string) bool {
			return strings.ContainsAny(v, "*?") && wild(v, f.Got[0])
		})
}

func quoted(list []string) string {
	var q []string
	for _, v := range list {
		q = append(q, `"`+v+`"`)
	}
	return some(q, 6)
}

func some(list []string, most int) string {
	if len(list) > most {
		return strings.Join(list[:most], ", ") + fmt.Sprintf(" and %d more", len(list)-most)
	}
	return strings.Join(list, ", ")
}

func article(kind string) string {
	if kind == ByIdentity {
		return "an " + kind
	}
	return "a " + kind
}

func plural(n int, kind string) string {
	if n == 1 {
		return "the " + kind
	}
	if stem, ok := strings.CutSuffix(kind, "y"); ok && !strings.HasSuffix(kind, "ary") {
		return fmt.Sprintf("the %d %sies", n, stem)
	}
	return fmt.Sprintf("the %d %ss", n, kind)
}

// StatementToAdd is the statement that would let the request through, for the
// kind of policy that denies it. It keeps the conditions that the request
// meets, mends those that it fails, and is as wide as a policy that grants
// this to a controller usually is: instance/* and not one instance. ok is
// false where nothing that is added helps, because a statement denies it.
func (d Decision) StatementToAdd() (st Statement, ok bool) {
	if d.Effect != ImplicitDeny {
		return Statement{}, false
	}
	service, name, _ := strings.Cut(d.Request.Action, ":")
	st = Statement{
		Sid:       "Allow" + strings.ToUpper(service[:min(1, len(service))]) + strings.ReplaceAll(service[min(1, len(service)):], "-", "") + name,
		Effect:    Allow,
		Actions:   []string{d.Request.Action},
		Resources: []string{widen(d.Request.Resource)},
	}
	if d.Kind == ByResource {
		return d.trust(st), true
	}
	switch d.Reason {
	case NotThisResource:
		// Of the statements that allow it elsewhere, the strictest whose
		// conditions the request meets is the model.
		scope := d.Request.scope(Policy{Version: version2012}, nil)
		for _, m := range d.Statements {
			met := !slices.ContainsFunc(m.Statement.Conditions, func(c Condition) bool { return c.holds(scope) != yes })
			if met && len(m.Statement.Conditions) > len(st.Conditions) {
				st.Conditions = m.Statement.Conditions
			}
		}
	case ConditionFails:
		near := d.nearest()[0]
		for _, c := range near.Statement.Conditions {
			i := slices.IndexFunc(near.Failed, func(f Failure) bool { return f.Operator == c.Operator && f.Key == c.Key })
			switch {
			case i < 0:
				st.Conditions = append(st.Conditions, c)
			case near.Failed[i].literalWildcard():
				c.Operator = strings.Replace(c.Operator, "StringEquals", "StringLike", 1)
				st.Conditions = append(st.Conditions, c)
			default: // what the request sends, or without the condition where it must be absent or different
				c.Values = near.Failed[i].Got
				if c.holds(d.Request.scope(Policy{}, nil)) == yes {
					st.Conditions = append(st.Conditions, c)
				}
			}
		}
	}
	return st, true
}

// trust makes st a statement of a trust policy for who asks. It demands all
// that is known of the caller: a role that trusts a whole provider is open to
// every service account of the cluster.
func (d Decision) trust(st Statement) Statement {
	st.Resources = nil
	st.Principals = []Principal{d.Request.Principal}
	for _, key := range slices.Sorted(maps.Keys(d.Request.Context)) {
		st.Conditions = append(st.Conditions, Condition{"StringEquals", key, d.Request.Context[key]})
	}
	return st
}

// widen turns the ARN of one short-lived thing into that of all of its kind.
func widen(arn string) string {
	if arn == "" {
		return "*"
	}
	parts := strings.SplitN(arn, ":", 6)
	if len(parts) != 6 {
		return arn
	}
	before, _, nested := strings.Cut(parts[5], "/")
	switch {
	case parts[2] == "ec2" && nested, parts[2] == "s3" && nested:
		parts[5] = before + "/*"
	case parts[2] == "iam" && nested && before == "instance-profile":
		parts[5] = before + "/*"
	}
	return strings.Join(parts, ":")
}
