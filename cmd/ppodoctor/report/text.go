package report

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pposiraegi/ppodoctor/diagnose"
)

const (
	in1 = "  "
	in2 = "    "
)

// text is the report for a terminal: the answer first, then its proof.
func text(b *bytes.Buffer, d *diagnose.Diagnosis, opts Options) error {
	t := newText(opts, d.At)
	t.d = d
	t.verdict()
	t.faults(t.Cause, d.Causes)
	t.faults(t.Suspected, d.Suspected)
	if !opts.Quiet {
		t.faults(t.Risk, d.Risks)
		t.unexplainedSymptoms()
		t.moments()
		t.notSeen()
		if d.Baseline != nil {
			t.heading("", t.Baseline+" "+t.clock(d.Baseline.From.At))
			t.outcomes(t.warn.Bold(true), t.Unsettled, d.Baseline.Unsettled)
			t.outcomes(t.warn.Bold(true), t.Vanished, d.Baseline.Vanished)
			t.outcomes(t.good.Bold(true), t.Fixed, d.Baseline.Fixed)
			t.outcomes(t.dim, t.There, d.Baseline.There)
		}
		t.suppressed(d.Suppressed)
		if opts.Verbose {
			t.considered()
		}
	}
	b.WriteString(t.b.String())
	return nil
}

type textReport struct {
	page
	labels
	d     *diagnose.Diagnosis
	opts  Options
	clock func(time.Time) string
	now   time.Time
}

func newText(opts Options, now time.Time) *textReport {
	width := opts.Width
	if width == 0 {
		width = 80
	}
	return &textReport{page: page{width: min(max(width, 60), 200), styles: newStyles(opts)}, opts: opts, labels: english, clock: clockOf(now), now: now}
}

func (t *textReport) verdict() {
	mark, style := t.good.Render("✓ "), t.good.Bold(true)
	switch state(t.d) {
	case "bad":
		mark, style = t.bad.Render("✗ "), t.bad
	case "warn":
		mark, style = t.warn.Render("! "), t.warn.Bold(true)
	}
	t.line(mark, in1, t.d.Verdict, style)
	if !t.opts.Quiet {
		t.line(in1, in1, strings.Join(about(t.d), " · "), t.dim)
		t.contents()
	}
}

// contents lists the causes where there are several, a line each: the first
// screen tells all that is wrong.
func (t *textReport) contents() {
	if len(t.d.Causes) < 2 {
		return
	}
	t.blank()
	for i, c := range t.d.Causes {
		n := fmt.Sprintf("%s%*d ", in1, len(fmt.Sprint(len(t.d.Causes))), i+1)
		line := fmt.Sprintf("%s — %s", c.Title, c.Subject)
		if len(c.Effects) > 0 {
			line += fmt.Sprintf(" (%s: %d)", strings.ToLower(t.Symptoms), len(c.Effects))
		}
		t.line(n, strings.Repeat(" ", len(n)), line, t.plain)
	}
}

// How many of a kind are shown unless --verbose asks for all: in a large
// cluster a report must stay one that a person reads.
const (
	mostChildren    = 8
	mostUnexplained = 8
	mostMoments     = 24
	mostGaps        = 12
	mostRivals      = 8
)

// few is how many of n to show.
func (t *textReport) few(n, most int) int {
	if t.opts.Verbose || n <= most+1 {
		return n
	}
	return most
}

// more says how many were not shown, and how to see them.
func (t *textReport) more(lead string, n int) {
	if n > 0 {
		t.line(lead, lead, fmt.Sprintf("%d %s (--verbose)", n, t.More), t.dim)
	}
}

func (t *textReport) unexplainedSymptoms() {
	shown := t.few(len(t.d.Unexplained), mostUnexplained)
	for _, s := range t.d.Unexplained[:shown] {
		t.blank()
		name := named(s.Title, s.Subject)
		if s.Count > 1 {
			name += fmt.Sprintf(" ×%d", s.Count)
		}
		if s.Since != nil {
			name += fmt.Sprintf(" · %s %s (%s)", t.Since, t.clock(*s.Since), t.age(*s.Since))
		}
		t.line(t.warn.Bold(true).Render(t.Unexplained)+in1, in2, name, t.bold)
		t.facts(in1+"• ", in2, s.Evidence)
		t.facts(in1+t.dim.Render(t.Lead+" "), in2, slices.DeleteFunc(slices.Clone(s.Lead), func(f diagnose.Fact) bool {
			return slices.ContainsFunc(s.Evidence, func(e diagnose.Fact) bool { return e.Says == f.Says })
		}))
		t.cohorts(in1, s.Cohorts, nil)
	}
	if shown < len(t.d.Unexplained) {
		t.blank()
		t.more(in1, len(t.d.Unexplained)-shown)
	}
}

func (t *textReport) moments() {
	if len(t.d.Timeline) == 0 {
		return
	}
	t.heading("", t.Timeline)
	layout := "15:04:05"
	if first, last := t.d.Timeline[0].At, t.d.Timeline[len(t.d.Timeline)-1].At; first.UTC().YearDay() != last.UTC().YearDay() || first.Year() != last.Year() {
		layout = "01-02 15:04:05"
	}
	// The last moments are nearest to what is wrong now.
	hidden := len(t.d.Timeline) - t.few(len(t.d.Timeline), mostMoments)
	t.more(in1, hidden)
	for _, m := range t.d.Timeline[hidden:] {
		mark := "  "
		switch m.Kind {
		case "symptom":
			mark = t.bad.Render("✗ ")
		case "change":
			mark = t.warn.Render("Δ ")
		}
		at := m.At.UTC().Format(layout)
		t.line(in1+t.dim.Render(at)+" "+mark, strings.Repeat(" ", len(at)+5), named(m.What, m.Subject), t.plain)
	}
}

// alike folds gaps that say the same of several documents into one, which
// names the first of them: the others, and the right that each document takes,
// are shown with --verbose.
func alike(gaps []diagnose.Gap) []diagnose.Gap {
	var folded []diagnose.Gap
	of := map[int][]string{}
	for _, g := range gaps {
		i := slices.IndexFunc(folded, func(o diagnose.Gap) bool { return o.Reason == g.Reason && o.Detail == g.Detail })
		if i < 0 {
			i, folded = len(folded), append(folded, g)
		}
		if !slices.Contains(of[i], g.Document) {
			of[i] = append(of[i], g.Document)
		}
	}
	for i := range folded {
		names := of[i]
		if len(names) > 1 {
			folded[i].Grant = ""
		}
		rest := len(names) - mostGaps
		folded[i].Document = strings.Join(names[:min(len(names), mostGaps)], ", ")
		if rest > 0 {
			folded[i].Document += fmt.Sprintf(" +%d", rest)
		}
	}
	return folded
}

func (t *textReport) notSeen() {
	if len(t.d.Gaps) > 0 {
		t.blank()
		t.put(t.warn.Bold(true).Render(t.Gaps))
		gaps := t.d.Gaps
		if !t.opts.Verbose {
			gaps = alike(gaps)
		}
		shown := t.few(len(gaps), mostGaps)
		for _, g := range gaps[:shown] {
			s := g.Document + " " + word(t.Reasons, g.Reason)
			if g.Grant != "" {
				s += " (" + g.Grant + ")"
			}
			if g.Detail != "" {
				s += ": " + g.Detail
			}
			t.line(in1+"? ", in2, s, t.plain)
			if t.opts.Verbose && len(g.Settles) > 0 {
				t.line(in2+t.dim.Render(t.Settles+" "), in2+in1, strings.Join(g.Settles, ", "), t.dim)
			}
		}
		t.more(in1, len(gaps)-shown)
	}
	next := t.d.Next
	if !t.opts.Verbose && len(next) > 1 {
		next = next[:1]
	}
	if len(next) > 0 {
		t.heading("", t.Next)
	}
	for _, n := range next {
		what := n.Grant
		if what == "" {
			what = n.Document
		}
		what += fmt.Sprintf(" — %s %d", t.Settles, n.Settles)
		if len(n.Between) > 0 {
			what += ": " + strings.Join(n.Between, " / ")
		}
		t.line(in1+t.bold.Render("→ "), in2, what, t.plain)
		if n.Command != "" {
			t.cmd(in2, n.Command)
		}
	}
}

func (t *textReport) considered() {
	if len(t.d.Considered) == 0 {
		return
	}
	t.heading("", t.Questions)
	for _, c := range t.d.Considered {
		t.line(in1+t.truth(c.Truth)+" ", in2, c.Rule+" · "+c.Subject.String(), t.bold)
		for _, a := range c.Asked {
			t.line(in2+t.truth(a.Truth)+" ", in2+in1, a.Question, t.plain)
			t.facts(in2+in1+"• ", in2+in2, a.Evidence)
			if a.Lacks != "" {
				t.line(in2+in1+t.dim.Render(t.Lacks+" "), in2+in2, a.Lacks, t.plain)
			}
		}
	}
}

func (t *textReport) truth(truth diagnose.Truth) string {
	switch truth {
	case diagnose.Yes:
		return t.bad.Render("●")
	case diagnose.No:
		return t.good.Render("○")
	}
	return t.warn.Render("?")
}

// age is how long before the diagnosis something was.
func (t *textReport) age(at time.Time) string { return age(t.now.Sub(at)) + " " + t.Ago }
