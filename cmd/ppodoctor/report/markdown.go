package report

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/pposiraegi/ppodoctor/diagnose"
)

// markdown is for a ticket or a postmortem: GitHub's flavour, with a Mermaid
// drawing of each chain.
func markdown(b *bytes.Buffer, dirty *diagnose.Diagnosis, opts Options) error {
	d, err := cleaned(dirty)
	if err != nil {
		return err
	}
	m := &markdownReport{b: b, clock: clockOf(d.At), labels: english, opts: opts}
	m.printf("# %s\n\n%s\n", prose(d.Verdict), prose(strings.Join(about(d), " · ")))
	m.faults(m.Cause, d.Causes)
	m.faults(m.Suspected, d.Suspected)
	if opts.Quiet {
		return nil
	}
	m.faults(m.Risk, d.Risks)
	for _, s := range d.Unexplained {
		m.printf("\n## %s: %s %s\n\n", m.Unexplained, prose(s.Title), span(s.Subject.String()))
		m.facts("", s.Evidence)
		m.facts("", s.Lead)
		m.cohorts(s.Cohorts)
	}
	if len(d.Timeline) > 0 {
		m.printf("\n## %s\n\n", m.Timeline)
		for _, moment := range d.Timeline {
			m.printf("- %s %s %s\n", m.clock(moment.At), span(moment.Subject.String()), prose(moment.What))
		}
	}
	m.notSeen(d)
	m.compared(d)
	return nil
}

type markdownReport struct {
	labels
	b     *bytes.Buffer
	clock func(time.Time) string
	opts  Options
}

func (m *markdownReport) printf(format string, args ...any) { fmt.Fprintf(m.b, format, args...) }

func (m *markdownReport) faults(kind string, faults []diagnose.Cause) {
	for _, c := range faults {
		m.printf("\n## %s: %s\n\n%s %s\n\n%s\n", kind, prose(c.Title), m.Change, span(c.Subject.String()), prose(c.Summary))
		if m.opts.Quiet {
			continue
		}
		if c.Because != "" {
			m.printf("\n%s\n", prose(c.Because))
		}
		if len(c.Chain) > 1 {
			m.printf("\n### %s\n\n```mermaid\n", m.Chain)
			flowchart(m.b, c)
			m.printf("```\n\n")
			for i, s := range c.Chain {
				m.printf("%d. **%s** %s %s\n", i+1, prose(s.Title), span(s.Subject.String()), stepMeta(s, m.labels, m.clock))
				m.facts("   ", s.Evidence)
			}
		} else if len(c.Evidence) > 0 {
			m.printf("\n### %s\n\n", m.Evidence)
			m.facts("", c.Evidence)
		}
		m.cohorts(c.Cohorts)
		if len(c.Open) > 0 {
			m.printf("\n### %s\n\n", m.Open)
			for _, o := range c.Open {
				m.printf("- %s %s %s\n", prose(o.Asked), m.Lacks, span(o.Lacks))
				m.fence("  ", "sh", o.Command)
			}
		}
		if len(c.RuledOut) > 0 {
			m.printf("\n### %s\n\n", m.RuledOut)
			for _, r := range c.RuledOut {
				why := r.Why
				if len(r.Evidence) > 0 {
					why = r.Evidence[0].Says
				}
				m.printf("- %s — %s\n", prose(r.Title), prose(why))
			}
		}
		m.remedies(c)
		m.printf("\n%s\n", span(c.Fingerprint))
	}
}

// compared is what became of earlier faults, and what is suppressed.
func (m *markdownReport) compared(d *diagnose.Diagnosis) {
	outcomes := func(indent string, list []diagnose.Outcome) {
		for _, o := range list {
			m.printf("%s- %s %s %s\n", indent, prose(o.Title), span(o.Subject.String()), span(o.Fingerprint))
		}
	}
	if b := d.Baseline; b != nil {
		m.printf("\n## %s %s\n", m.Baseline, m.clock(b.From.At))
		for _, group := range []headed{{m.Unsettled, b.Unsettled}, {m.Vanished, b.Vanished}, {m.Fixed, b.Fixed}, {m.There, b.There}} {
			if len(group.List) > 0 {
				m.printf("\n### %s\n\n", group.Head)
				outcomes("", group.List)
			}
		}
	}
	if len(d.Suppressed) > 0 {
		m.printf("\n## %s\n\n", m.labels.Suppressed)
	}
	for _, s := range d.Suppressed {
		state := m.Until
		if s.Expired {
			state = m.Expired
		}
		m.printf("- %s %s %s %s: %s\n", span(s.Rule), span(s.Subject), state, lastDay(s), prose(s.Reason))
		outcomes("  ", s.Hides)
	}
}

func (m *markdownReport) remedies(c diagnose.Cause) {
	if len(c.Remedies) > 0 {
		m.printf("\n### %s\n\n", m.Remedies)
	}
	for i, r := range c.Remedies {
		m.printf("%d. **[%s]** %s\n", i+1, prose(word(m.Scopes, r.Scope)), prose(r.Do))
		if r.Caution != "" {
			m.printf("\n   **%s:** %s\n", m.Caution, prose(r.Caution))
		}
		m.fence("   ", "sh", strings.Join(r.Commands, "\n"))
		m.fence("   ", "hcl", r.Terraform)
		m.fence("   ", "yaml", r.Manifest)
	}
	if len(c.Verify) > 0 {
		m.printf("\n### %s\n", m.Verify)
	}
	for _, v := range c.Verify {
		m.fence("", "sh", v.Run)
		m.printf("\n**%s** %s\n", m.Expect, prose(v.Expect))
		if v.Beware != "" {
			m.printf("\n**%s** %s\n", m.Beware, prose(v.Beware))
		}
	}
}

func (m *markdownReport) facts(indent string, facts []diagnose.Fact) {
	for _, f := range facts {
		m.printf("%s- %s\n", indent, prose(f.Says))
		m.fence(indent+"  ", "sh", f.Command)
	}
}

// fence writes a block of code whose fence is longer than any in the text.
func (m *markdownReport) fence(indent, language, text string) {
	if text == "" {
		return
	}
	fence := strings.Repeat("`", max(3, longestRun(text)+1))
	m.printf("\n%s%s%s\n", indent, fence, language)
	for line := range strings.SplitSeq(text, "\n") {
		m.printf("%s%s\n", indent, line)
	}
	m.printf("%s%s\n", indent, fence)
}

func (m *markdownReport) cohorts(cohorts []diagnose.Cohort) {
	if len(cohorts) > 0 {
		m.printf("\n### %s\n", m.Common)
	}
	for _, c := range cohorts {
		m.printf("\n| %s | %s | %s |\n| --- | ---: | ---: |\n", prose(c.By), m.Failing, m.Healthy)
		for _, g := range c.Groups {
			m.printf("| %s | %d | %d |\n", prose(g.Value), g.Failing, g.Healthy)
		}
		if len(c.Same) > 0 {
			m.printf("\n%s: %s\n", m.Same, prose(strings.Join(c.Same, ", ")))
		}
	}
}

func (m *markdownReport) notSeen(d *diagnose.Diagnosis) {
	if len(d.Gaps) > 0 {
		m.printf("\n## %s\n\n", m.Gaps)
		for _, g := range d.Gaps {
			m.printf("- %s %s %s %s\n", span(g.Document), prose(word(m.Reasons, g.Reason)), span(g.Grant), prose(g.Detail))
		}
	}
	if len(d.Next) > 0 {
		m.printf("\n## %s\n\n", m.Next)
		for _, n := range d.Next {
			what := n.Grant
			if what == "" {
				what = n.Document
			}
			m.printf("- %s — %s %d %s\n", span(what), m.Settles, n.Settles, prose(strings.Join(n.Between, " / ")))
			m.fence("  ", "sh", n.Command)
		}
	}
}

var (
	active  = regexp.MustCompile("[\\\\`*_\\[\\]|#~$]|^[-+]|^[0-9]+[.)]")
	mention = regexp.MustCompile(`@(\w)`)
)

// prose is text in which nothing is markup, nor notifies anybody.
func prose(s string) string {
	s = active.ReplaceAllStringFunc(s, func(m string) string { return m[:len(m)-1] + `\` + m[len(m)-1:] })
	s = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(s)
	return mention.ReplaceAllString(s, "@<!-- -->$1")
}

// span is text as code; empty stays empty.
func span(s string) string {
	if s == "" {
		return ""
	}
	ticks := strings.Repeat("`", longestRun(s)+1)
	if strings.HasPrefix(s, "`") || strings.HasSuffix(s, "`") {
		s = " " + s + " "
	}
	return ticks + s + ticks
}

func longestRun(s string) int {
	longest, run := 0, 0
	for _, r := range s {
		if r != '`' {
			run = 0
			continue
		}
		run++
		longest = max(longest, run)
	}
	return longest
}
