package report

import (
	"fmt"
	"strings"

	"github.com/charmbracelet/x/ansi"
	"github.com/pposiraegi/ppodoctor/diagnose"
)

// faults writes causes, suspects or risks.
func (t *textReport) faults(kind string, faults []diagnose.Cause) {
	for i, c := range faults {
		t.blank()
		head := kind
		if len(faults) > 1 {
			head = fmt.Sprintf("%s %d/%d", kind, i+1, len(faults))
		}
		style := t.bad
		if kind != t.Cause {
			style = t.warn.Bold(true)
		}
		t.line(style.Render(head)+in1, strings.Repeat(" ", ansi.StringWidth(head)+2), c.Title, t.bold)
		t.line(in1+t.dim.Render(t.Change)+" ", in2, c.Subject.String(), t.bold)
		t.line(in1, in1, c.Summary, t.plain)
		if t.opts.Quiet {
			continue
		}
		if c.Because != "" {
			t.blank()
			t.line(in1, in1, c.Because, t.plain)
		}
		t.steps(c)
		t.cohorts(in1, c.Cohorts, c.Paths)
		t.openQuestions(c.Open)
		t.ruled(c.RuledOut)
		t.mend(c.Remedies)
		t.verified(c.Verify)
		if t.opts.Verbose && len(c.Sources) > 0 {
			t.heading(in1, t.Sources)
			for _, s := range c.Sources {
				t.line(in2, in2, s, t.dim)
			}
		}
		t.line(in1, in1, c.Rule+" · "+c.Fingerprint, t.dim)
	}
}

func (t *textReport) heading(indent, title string) {
	t.blank()
	t.put(indent + t.bold.Render(title))
}

// facts writes pieces of evidence, each with the command that shows it; what
// one command shows stands together above it.
func (t *textReport) facts(lead, rest string, facts []diagnose.Fact) {
	for i, f := range facts {
		says := f.Says
		if f.At != nil {
			says = t.clock(*f.At) + " " + says
		}
		t.line(lead, rest, says, t.plain)
		if f.Command != "" && (i+1 == len(facts) || facts[i+1].Command != f.Command) {
			t.cmd(rest, f.Command)
		}
	}
}

// steps draws the chain as a tree from the cause down to the symptoms.
func (t *textReport) steps(c diagnose.Cause) {
	if len(c.Chain) == 0 {
		if len(c.Evidence) > 0 {
			t.heading(in1, t.Evidence)
			t.facts(in2+"• ", in2+in1, c.Evidence)
		}
		return
	}
	title := t.Chain
	if len(c.Chain) == 1 {
		title = t.Evidence
	}
	t.heading(in1, title)
	parents := make([]int, len(c.Chain))
	for _, s := range c.Chain {
		for _, child := range s.Explains {
			if child >= 0 && child < len(parents) {
				parents[child]++
			}
		}
	}
	seen := map[int]bool{}
	for i := range c.Chain {
		if parents[i] == 0 {
			t.step(c, i, in2, in2, seen)
		}
	}
}

func (t *textReport) step(c diagnose.Cause, i int, lead, rest string, seen map[int]bool) {
	s := c.Chain[i]
	name := named(s.Title, s.Subject)
	if seen[i] {
		t.line(lead, rest, "("+t.Other+" "+name+")", t.dim)
		return
	}
	seen[i] = true
	var children []int
	for _, child := range s.Explains {
		if child >= 0 && child < len(c.Chain) && child != i {
			children = append(children, child)
		}
	}
	guide := rest + in1
	if len(children) > 0 {
		guide = rest + t.dim.Render("│ ")
	}
	if s.Count > 1 {
		name += fmt.Sprintf(" ×%d", s.Count)
	}
	if s.Since != nil {
		name += fmt.Sprintf(" · %s %s (%s)", t.Since, t.clock(*s.Since), t.age(*s.Since))
	}
	t.line(lead, guide, name, t.bold)
	t.facts(guide+"• ", guide+in1, s.Evidence)
	shown := t.few(len(children), mostChildren)
	for n, child := range children[:shown] {
		if n == len(children)-1 {
			t.step(c, child, rest+t.dim.Render("└▶ "), rest+"   ", seen)
		} else {
			t.step(c, child, rest+t.dim.Render("├▶ "), rest+t.dim.Render("│")+in1, seen)
		}
	}
	t.more(rest+t.dim.Render("└▶ "), len(children)-shown)
}

// cohorts draws a bar a group: failing of all that have the value.
func (t *textReport) cohorts(indent string, cohorts []diagnose.Cohort, paths []diagnose.Path) {
	if len(cohorts) == 0 {
		return
	}
	t.heading(indent, t.Common)
	indent += in1
	const bar = 12
	for _, c := range cohorts {
		by := c.By
		if c.Of != "" {
			by += " (" + c.Of + ")"
		}
		t.line(indent, indent, by, t.dim)
		widest := 0
		for _, g := range c.Groups {
			widest = max(widest, ansi.StringWidth(clean(g.Value)))
		}
		widest = min(widest, t.width-ansi.StringWidth(indent)-bar-24)
		for _, g := range c.Groups {
			all := max(g.Failing+g.Healthy, 1)
			full := (g.Failing*bar + all - 1) / all
			t.put(indent + in1 + pad(clean(g.Value), widest) + in1 +
				t.bad.Render(strings.Repeat("█", full)) + t.dim.Render(strings.Repeat("░", bar-full)) +
				fmt.Sprintf("  %d/%d %s", g.Failing, g.Failing+g.Healthy, t.Failing))
		}
		if len(c.Same) > 0 {
			t.line(indent+in1+t.dim.Render(t.Same+": "), indent+in2, strings.Join(c.Same, ", "), t.dim)
		}
	}
	for _, p := range paths {
		verb, style := t.Reaches, t.good
		if p.Blocked {
			verb, style = t.Blocked, t.bad
		}
		t.line(indent, indent+in1, fmt.Sprintf("%s → %s: %s %s", p.From, p.To, p.What, verb), style)
	}
}

func (t *textReport) openQuestions(open []diagnose.Open) {
	if len(open) == 0 {
		return
	}
	t.heading(in1, t.Open)
	for _, o := range open {
		t.line(in2+"? ", in2+in1, o.Asked, t.plain)
		if o.Lacks != "" {
			t.line(in2+in1+t.dim.Render(t.Lacks+" "), in2+in2, o.Lacks, t.plain)
		}
		if o.Command != "" {
			t.cmd(in2+in1, o.Command)
		}
	}
}

// ruled is a line a rival: its title and the fact that ruled it out.
func (t *textReport) ruled(rivals []diagnose.Ruled) {
	if len(rivals) == 0 {
		return
	}
	t.heading(in1, t.RuledOut)
	shown := t.few(len(rivals), mostRivals)
	for _, r := range rivals[:shown] {
		why := r.Why
		if len(r.Evidence) > 0 {
			why = r.Evidence[0].Says
		}
		title := r.Title
		if strings.Contains(title, "…") { // not all that the title names was looked into
			title = strings.TrimSuffix(r.Why, " No.")
		}
		if t.opts.Verbose && r.Subject != nil {
			title += " (" + r.Subject.String() + ")"
		}
		t.line(in2+t.dim.Render("○ "), in2+in1, title+" — "+why, t.plain)
		if t.opts.Verbose {
			t.line(in2+in1, in2+in1, r.Why, t.dim)
			for _, f := range r.Evidence {
				if f.Command != "" {
					t.cmd(in2+in1, f.Command)
				}
			}
		}
	}
	t.more(in2, len(rivals)-shown)
}

func (t *textReport) mend(remedies []diagnose.Remedy) {
	if len(remedies) == 0 {
		return
	}
	t.heading(in1, t.Remedies)
	for i, r := range remedies {
		lead := fmt.Sprintf("%s%d ", in2, i+1)
		rest := in2 + in1
		t.line(lead, rest, "["+word(t.Scopes, r.Scope)+"] "+r.Do, t.plain)
		if r.Caution != "" {
			t.line(rest+t.warn.Render(t.Caution+" "), rest+in1, r.Caution, t.warn)
		}
		for _, c := range r.Commands {
			t.cmd(rest, c)
		}
		t.code(rest, t.Terraform, r.Terraform)
		t.code(rest, t.Manifest, r.Manifest)
	}
}

func (t *textReport) code(indent, label, text string) {
	if text != "" {
		t.put(indent + t.dim.Render(label))
		t.block(indent, text)
	}
}

func (t *textReport) verified(list []diagnose.Verify) {
	if len(list) == 0 {
		return
	}
	t.heading(in1, t.Verify)
	for _, v := range list {
		t.cmd(in2, v.Run)
		t.line(in2+t.good.Render(t.Expect+" "), in2+in1, v.Expect, t.plain)
		if v.Beware != "" {
			t.line(in2+t.warn.Render(t.Beware+" "), in2+in1, v.Beware, t.warn)
		}
	}
}
