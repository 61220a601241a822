package report

import (
	"io"
	"slices"
	"strings"
	"time"

	"github.com/pposiraegi/ppodoctor/diagnose"
	"github.com/pposiraegi/ppodoctor/knowledge"
	"github.com/pposiraegi/ppodoctor/probes"
)

// WriteRules shows what can be found: a list, a tree from the symptoms down,
// or one rule in full.
func WriteRules(w io.Writer, rules []*diagnose.Rule, k *knowledge.Knowledge, id string, tree bool, opts Options) error {
	t := newText(opts, time.Time{})
	r := &ruleBook{textReport: t, rules: rules, knowledge: k}
	switch {
	case tree:
		r.tree(id)
	case id != "":
		r.one(id)
	default:
		r.list()
	}
	_, err := io.WriteString(w, t.b.String())
	return err
}

// WriteConsidered shows how the questions answered; an id keeps one rule.
func WriteConsidered(w io.Writer, d *diagnose.Diagnosis, id string, opts Options) error {
	t := newText(opts, d.At)
	t.d = d
	kept := *d
	kept.Considered = slices.DeleteFunc(slices.Clone(d.Considered), func(c diagnose.Considered) bool { return id != "" && c.Rule != id })
	t.d = &kept
	t.considered()
	if len(kept.Considered) == 0 {
		t.line("", "", t.NoSuspect, t.dim)
	}
	_, err := io.WriteString(w, strings.TrimPrefix(t.b.String(), "\n"))
	return err
}

type ruleBook struct {
	*textReport
	rules     []*diagnose.Rule
	knowledge *knowledge.Knowledge
}

func (r *ruleBook) entry(rule *diagnose.Rule) *knowledge.Entry {
	if e := r.knowledge.Rules[rule.ID]; e != nil {
		return e
	}
	return &knowledge.Entry{ID: rule.ID}
}

// kind is what a rule finds.
func (r *ruleBook) kind(rule *diagnose.Rule) string {
	switch {
	case len(rule.Explains) == 0:
		return r.Standings["symptom"]
	case rule.Intermediate:
		return r.Standings["state"]
	case rule.Latent:
		return r.Standings["cause"] + ", " + r.Standings["risk"]
	}
	return r.Standings["cause"]
}

func (r *ruleBook) list() {
	for _, rule := range r.rules {
		r.line(r.bold.Render(rule.ID)+" ", in2, r.kind(rule), r.dim)
		if title := r.entry(rule).Title; title != "" {
			r.line(in2, in2, title, r.plain)
		}
	}
}

// explaining are the rules that can be the cause of one.
func (r *ruleBook) explaining(rule *diagnose.Rule) []*diagnose.Rule {
	var list []*diagnose.Rule
	for _, other := range r.rules {
		if slices.Contains(other.Explains, rule) {
			list = append(list, other)
		}
	}
	return list
}

func (r *ruleBook) tree(id string) {
	shown := map[*diagnose.Rule]bool{}
	var draw func(rule *diagnose.Rule, lead, rest string)
	draw = func(rule *diagnose.Rule, lead, rest string) {
		causes := r.explaining(rule)
		name := rule.ID
		if shown[rule] && len(causes) > 0 {
			r.put(lead + name + r.dim.Render(" …"))
			return
		}
		shown[rule] = true
		r.put(lead + name)
		for i, c := range causes {
			if i == len(causes)-1 {
				draw(c, rest+r.dim.Render("└─ "), rest+"   ")
			} else {
				draw(c, rest+r.dim.Render("├─ "), rest+r.dim.Render("│  "))
			}
		}
	}
	for _, rule := range r.rules {
		if rule.ID == id || id == "" && len(rule.Explains) == 0 {
			draw(rule, "", "")
		}
	}
}

func (r *ruleBook) one(id string) {
	rule := r.rules[slices.IndexFunc(r.rules, func(rule *diagnose.Rule) bool { return rule.ID == id })]
	e := r.entry(rule)
	r.line(r.bold.Render(rule.ID)+" ", in1, r.kind(rule), r.dim)
	for _, text := range []string{e.Title, e.Summary, e.Because, e.Versions, e.Undecidable} {
		if text != "" {
			r.line(in1, in1, text, r.plain)
		}
	}
	names := func(head string, rules []*diagnose.Rule) {
		if len(rules) == 0 {
			return
		}
		r.heading(in1, head)
		for _, other := range rules {
			r.line(in2, in2+in1, other.ID+" — "+r.entry(other).Title, r.plain)
		}
	}
	names(r.Explains, rule.Explains)
	names(r.Explained, r.explaining(rule))
	if len(rule.Tests) > 0 {
		r.heading(in1, r.Questions)
		for _, test := range rule.Tests {
			r.line(in2+"? ", in2+in1, test.Asks, r.plain)
		}
	}
	needs := slices.Clone(rule.Needs)
	for _, test := range rule.Tests {
		needs = append(needs, test.Needs...)
	}
	var reads []string
	for _, p := range probes.Closure(needs...) {
		for _, permission := range p.Permissions() {
			reads = append(reads, permission.String())
		}
	}
	slices.Sort(reads)
	if reads = slices.Compact(reads); len(reads) > 0 {
		r.heading(in1, r.Reads)
		r.line(in2, in2, strings.Join(reads, ", "), r.plain)
	}
	var remedies []diagnose.Remedy
	for _, remedy := range e.Remedies {
		remedies = append(remedies, diagnose.Remedy(remedy))
	}
	r.mend(remedies)
	var verify []diagnose.Verify
	for _, v := range e.Verify {
		verify = append(verify, diagnose.Verify(v))
	}
	r.verified(verify)
	if len(e.Sources) > 0 {
		r.heading(in1, r.Sources)
		for _, s := range e.Sources {
			r.line(in2, in2, s, r.dim)
		}
	}
}
