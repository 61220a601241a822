package iampolicy

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// An operator is a parsed condition operator.
type operator struct {
	set      string // "", "forallvalues" or "foranyvalue"
	family   string // in lower case, without a Not: "stringequals", "ipaddress"
	negated  bool
	ifExists bool
}

// positive are the operator families, by the spelling of the policy in lower
// case. Source: IAM User Guide, "IAM JSON policy elements: Condition operators".
var positive = map[string]operator{
	"stringequals":              {family: "stringequals"},
	"stringnotequals":           {family: "stringequals", negated: true},
	"stringequalsignorecase":    {family: "stringequalsignorecase"},
	"stringnotequalsignorecase": {family: "stringequalsignorecase", negated: true},
	"stringlike":                {family: "stringlike"},
	"stringnotlike":             {family: "stringlike", negated: true},
	"numericequals":             {family: "numericequals"},
	"numericnotequals":          {family: "numericequals", negated: true},
	"numericlessthan":           {family: "numericlessthan"},
	"numericlessthanequals":     {family: "numericlessthanequals"},
	"numericgreaterthan":        {family: "numericgreaterthan"},
	"numericgreaterthanequals":  {family: "numericgreaterthanequals"},
	"dateequals":                {family: "dateequals"},
	"datenotequals":             {family: "dateequals", negated: true},
	"datelessthan":              {family: "datelessthan"},
	"datelessthanequals":        {family: "datelessthanequals"},
	"dategreaterthan":           {family: "dategreaterthan"},
	"dategreaterthanequals":     {family: "dategreaterthanequals"},
	"bool":                      {family: "bool"},
	"binaryequals":              {family: "binaryequals"},
	"ipaddress":                 {family: "ipaddress"},
	"notipaddress":              {family: "ipaddress", negated: true},
	"arnequals":                 {family: "arnlike"},
	"arnlike":                   {family: "arnlike"},
	"arnnotequals":              {family: "arnlike", negated: true},
	"arnnotlike":                {family: "arnlike", negated: true},
	"null":                      {family: "null"},
}

func parseOperator(text string) (operator, error) {
	name := strings.ToLower(text)
	set := ""
	if before, after, ok := strings.Cut(name, ":"); ok {
		if before != "forallvalues" && before != "foranyvalue" {
			return operator{}, fmt.Errorf("unknown condition operator %q", text)
		}
		set, name = before, after
	}
	name, ifExists := strings.CutSuffix(name, "ifexists")
	op, ok := positive[name]
	if !ok || op.family == "null" && ifExists {
		return operator{}, fmt.Errorf("unknown condition operator %q", text)
	}
	op.set, op.ifExists = set, ifExists
	return op, nil
}

// holds is whether the condition is met.
func (c Condition) holds(s scope) truth {
	op, err := parseOperator(c.Operator)
	if err != nil {
		return no // Parse lets none through
	}
	values, present := s.get(c.Key)
	if op.family == "null" {
		is := no
		for _, want := range c.Values {
			absent := present.not()
			if strings.EqualFold(want, "true") {
				is = max(is, absent)
			} else {
				is = max(is, absent.not())
			}
		}
		return is
	}
	switch present {
	case maybe:
		return maybe
	case no:
		switch {
		case op.ifExists, op.set == "forallvalues":
			return yes
		case op.set == "foranyvalue":
			return no
		}
		return truthOf(op.negated)
	}
	each := func(got string) truth {
		is, readable := no, false
		for _, want := range c.Values {
			t, ok := op.compare(s, want, got)
			readable = readable || ok
			is = max(is, t)
		}
		if op.negated {
			if !readable {
				return no
			}
			return is.not()
		}
		return is
	}
	all, anyOf := yes, no
	for _, got := range values {
		t := each(got)
		all, anyOf = min(all, t), max(anyOf, t)
	}
	if op.set == "forallvalues" || op.set == "" && op.negated {
		return all
	}
	return anyOf
}

// compare is the operator without its Not; ok is false where the values can't
// be read as what the operator compares.
func (op operator) compare(s scope, want, got string) (is truth, ok bool) {
	p, expanded := s.expand(want, op.family == "stringlike" || op.family == "arnlike")
	if expanded != yes {
		return expanded, true
	}
	want = p.String()
	switch kind := op.family; {
	case kind == "stringequals":
		return truthOf(want == got), true
	case kind == "stringequalsignorecase":
		return truthOf(strings.EqualFold(want, got)), true
	case kind == "stringlike":
		return truthOf(p.matches(got)), true
	case kind == "arnlike":
		return truthOf(p.matchesARN(got)), true
	case kind == "bool":
		a, ok1 := parseBool(want)
		b, ok2 := parseBool(got)
		return truthOf(a == b && ok1 && ok2), ok1 && ok2
	case kind == "binaryequals":
		a, err1 := base64.StdEncoding.DecodeString(want)
		b, err2 := base64.StdEncoding.DecodeString(got)
		return truthOf(err1 == nil && err2 == nil && bytes.Equal(a, b)), err1 == nil && err2 == nil
	case kind == "ipaddress":
		network, ok1 := parseNetwork(want)
		addr, err := netip.ParseAddr(got)
		return truthOf(ok1 && err == nil && network.Contains(addr)), ok1 && err == nil
	case strings.HasPrefix(kind, "numeric"):
		a, ok1 := parseNumber(got)
		b, ok2 := parseNumber(want)
		if !ok1 || !ok2 {
			return no, false
		}
		return truthOf(ordered(strings.TrimPrefix(kind, "numeric"), cmp.Compare(a, b))), true
	default: // dates
		a, ok1 := parseDate(got)
		b, ok2 := parseDate(want)
		if !ok1 || !ok2 {
			return no, false
		}
		return truthOf(ordered(strings.TrimPrefix(kind, "date"), a.Compare(b))), true
	}
}

func ordered(relation string, c int) bool {
	switch relation {
	case "equals":
		return c == 0
	case "lessthan":
		return c < 0
	case "lessthanequals":
		return c <= 0
	case "greaterthan":
		return c > 0
	}
	return c >= 0
}

// parseNumber reads a decimal number; Go's hexadecimal, NaN and Inf are none.
func parseNumber(s string) (float64, bool) {
	if strings.Trim(s, "0123456789.+-eE") != "" {
		return 0, false
	}
	n, err := strconv.ParseFloat(s, 64)
	return n, err == nil
}

func parseBool(s string) (value, ok bool) {
	value = strings.EqualFold(s, "true")
	return value, value || strings.EqualFold(s, "false")
}

func parseNetwork(s string) (netip.Prefix, bool) {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p.Masked(), true
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(a, a.BitLen()), true
}

// dateForms are the W3C profile of ISO 8601 that IAM takes beside epoch time.
var dateForms = []string{time.RFC3339Nano, "2006-01-02T15:04Z07:00", "2006-01-02T15:04:05Z0700", "2006-01-02", "2006-01"}

func parseDate(s string) (time.Time, bool) {
	for _, form := range dateForms {
		if t, err := time.Parse(form, s); err == nil {
			return t, true
		}
	}
	if len(s) == 4 {
		t, err := time.Parse("2006", s)
		return t, err == nil
	}
	if seconds, ok := parseNumber(s); ok && seconds > -1e12 && seconds < 1e12 {
		return time.Unix(int64(seconds), 0), true
	}
	return time.Time{}, false
}
