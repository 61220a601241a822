package iampolicy

import (
	"slices"
	"strings"
)

// truth is yes, no, or maybe: the last where a condition tests a key whose
// value can't be known. The order lets min be "and", max be "or".
type truth int

const (
	no truth = iota
	maybe
	yes
)

func truthOf(b bool) truth {
	if b {
		return yes
	}
	return no
}

func (t truth) not() truth { return yes - t }

// scope is what a request brings to the evaluation of a policy.
type scope struct {
	values    map[string][]string // by key in lower case
	unknown   []string            // patterns of keys, in lower case
	absent    []string            // exceptions from them
	variables bool                // the policy's version has variables
	missed    *[]string           // unknown keys that were asked for
}

// get is the value of a context key. An empty list counts as an absent key.
func (s scope) get(key string) (values []string, is truth) {
	lower := strings.ToLower(key)
	if v := s.values[lower]; len(v) > 0 {
		return v, yes
	}
	fits := func(p string) bool { return wild(p, lower) }
	if _, set := s.values[lower]; !set && slices.ContainsFunc(s.unknown, fits) && !slices.ContainsFunc(s.absent, fits) {
		if s.missed != nil && !slices.Contains(*s.missed, key) {
			*s.missed = append(*s.missed, key)
		}
		return nil, maybe
	}
	return nil, no
}

// A pattern is text in which some runes are wildcards.
type pattern []glyph

type glyph struct {
	r    rune
	wild bool // '*' or '?' stands for other text
}

func (p pattern) String() string {
	var b strings.Builder
	for _, g := range p {
		b.WriteRune(g.r)
	}
	return b.String()
}

// expand replaces the variables of a policy's text; what comes from a variable
// holds no wildcards. A variable without a value makes the text match nothing
// (no), one of unknown value may (maybe).
func (s scope) expand(text string, wildcards bool) (pattern, truth) {
	var p pattern
	literal := func(t string) {
		for _, r := range t {
			p = append(p, glyph{r: r})
		}
	}
	plain := func(t string) {
		for _, r := range t {
			p = append(p, glyph{r, wildcards && (r == '*' || r == '?')})
		}
	}
	is := yes
	for s.variables {
		before, rest, found := strings.Cut(text, "${")
		name, after, closed := strings.Cut(rest, "}")
		if !found || !closed {
			break
		}
		plain(before)
		text = after
		if name == "*" || name == "?" || name == "$" {
			literal(name)
			continue
		}
		key, fallback, hasFallback := strings.Cut(name, ",")
		values, known := s.get(strings.TrimSpace(key))
		switch {
		case known == yes && len(values) == 1:
			literal(values[0])
		case known == no && hasFallback:
			literal(strings.Trim(strings.TrimSpace(fallback), "'"))
		case known == maybe:
			is = min(is, maybe)
		default:
			is = no
		}
	}
	plain(text)
	return p, is
}

// matches reports whether the whole text fits the pattern.
func (p pattern) matches(text string) bool {
	t := []rune(text)
	i, j, star, mark := 0, 0, -1, 0
	for j < len(t) {
		switch {
		case i < len(p) && p[i].wild && p[i].r == '*':
			star, mark = i, j
			i++
		case i < len(p) && (p[i].wild || p[i].r == t[j]):
			i++
			j++
		case star >= 0:
			mark++
			i, j = star+1, mark
		default:
			return false
		}
	}
	for i < len(p) && p[i].wild && p[i].r == '*' {
		i++
	}
	return i == len(p)
}

// wild matches text with a pattern of * and ? and no variables.
func wild(text, value string) bool {
	p, _ := scope{}.expand(text, true)
	return p.matches(value)
}

// segments splits an ARN's pattern at its first five colons.
func (p pattern) segments() []pattern {
	var all []pattern
	start := 0
	for i, g := range p {
		if g.r == ':' && len(all) < 5 {
			all = append(all, p[start:i])
			start = i + 1
		}
	}
	return append(all, p[start:])
}

// matchesARN compares segment by segment: a * stays within its segment, save
// in the last one, where it also stands for / and :.
func (p pattern) matchesARN(arn string) bool {
	want, got := p.segments(), strings.SplitN(arn, ":", 6)
	if len(want) != 6 || len(got) != 6 {
		return false
	}
	for i := range want {
		if !want[i].matches(got[i]) {
			return false
		}
	}
	return true
}

// matchesAction ignores case; a wildcard doesn't reach across the colon.
func matchesAction(want, action string) bool {
	if want == "*" {
		return true
	}
	wantService, wantName, ok := strings.Cut(strings.ToLower(want), ":")
	service, name, _ := strings.Cut(strings.ToLower(action), ":")
	return ok && wild(wantService, service) && wild(wantName, name)
}

// matchesResource is whether a resource of a policy covers the request's.
func (s scope) matchesResource(want, resource string) truth {
	if want == "*" {
		return yes
	}
	p, is := s.expand(want, true)
	if is != yes {
		return is
	}
	return truthOf(p.matchesARN(resource))
}

func (st Statement) coversAction(action string) bool {
	if len(st.NotActions) > 0 {
		return !slices.ContainsFunc(st.NotActions, func(a string) bool { return matchesAction(a, action) })
	}
	return slices.ContainsFunc(st.Actions, func(a string) bool { return matchesAction(a, action) })
}

func (st Statement) coversResource(s scope, resource string) truth {
	listed := func(patterns []string) truth {
		is := no
		for _, p := range patterns {
			is = max(is, s.matchesResource(p, resource))
		}
		return is
	}
	switch {
	case len(st.NotResources) > 0:
		return listed(st.NotResources).not()
	case len(st.Resources) > 0:
		return listed(st.Resources)
	}
	return yes // a trust policy is about the role that it hangs on
}

// A Principal is who may be named by a trust or resource policy, or who asks.
type Principal struct {
	Type string // AWS, Federated, Service, CanonicalUser
	Name string // an ARN, an account's number, a service's name, or *
}

// matches is whether a policy's principal p covers who asks. An account
// stands for everyone in it.
func (p Principal) matches(who Principal) bool {
	if !strings.EqualFold(p.Type, who.Type) {
		return false
	}
	if p.Name == "*" || p.Name == who.Name {
		return true
	}
	if who.Type != "AWS" {
		return false
	}
	account := p.Name
	if parts := strings.SplitN(p.Name, ":", 6); len(parts) == 6 && parts[5] == "root" {
		account = parts[4]
	}
	asked := strings.SplitN(who.Name, ":", 6)
	return len(asked) == 6 && asked[4] == account
}

func (st Statement) coversPrincipal(who Principal) bool {
	named := func(list []Principal) bool {
		return slices.ContainsFunc(list, func(p Principal) bool { return p.matches(who) })
	}
	switch {
	case len(st.NotPrincipals) > 0:
		return !named(st.NotPrincipals)
	case len(st.Principals) > 0:
		return named(st.Principals)
	}
	return true // an identity policy is about the identity that it hangs on
}
