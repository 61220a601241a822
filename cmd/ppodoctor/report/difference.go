package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/pposiraegi/ppodoctor/diagnose"
)

// WriteDifference writes what became of each fault, as text, json or yaml.
func WriteDifference(w io.Writer, d *diagnose.Difference, format string, opts Options) error {
	var data []byte
	var err error
	switch format {
	case "json":
		data, err = marshal(d)
	case "yaml":
		data, err = marshalYAML(d)
	case "text":
		t := newText(opts, d.To.At)
		t.difference(d)
		data = []byte(t.b.String())
	default:
		return fmt.Errorf("unknown format %q: use one of text, json, yaml", format)
	}
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}

// difference is the text of a comparison: what is wrong now first.
func (t *textReport) difference(d *diagnose.Difference) {
	glance := func(g diagnose.Glance) string {
		s := g.At.UTC().Format("2006-01-02 15:04:05 MST")
		if g.Cluster != "" {
			s += " " + g.Cluster
		}
		return s + ": " + g.Verdict
	}
	t.line(t.dim.Render("A "), in1, glance(d.From), t.plain)
	t.line(t.dim.Render("B "), in1, glance(d.To), t.bold)
	t.outcomes(t.bad, t.New, d.New)
	t.outcomes(t.bad, t.There, d.There)
	t.outcomes(t.warn.Bold(true), t.Unsettled, d.Unsettled)
	t.outcomes(t.warn.Bold(true), t.Vanished, d.Vanished)
	t.outcomes(t.good.Bold(true), t.Fixed, d.Fixed)
}

func (t *textReport) outcomes(style interface{ Render(...string) string }, head string, list []diagnose.Outcome) {
	if len(list) == 0 {
		return
	}
	t.blank()
	t.put(style.Render(head))
	for _, o := range list {
		t.line(in1+"• ", in2, named(o.Title, o.Subject), t.bold)
		var standing []string
		for _, kind := range []string{o.Was, o.Is} {
			if kind != "" {
				standing = append(standing, word(t.Standings, kind))
			}
		}
		t.line(in2, in2, o.Rule+" · "+o.Fingerprint+" · "+strings.Join(standing, " → "), t.dim)
		t.facts(in2+"• ", in2+in1, o.Evidence)
		for _, v := range o.Verify {
			t.put(in2 + t.dim.Render(t.Verify))
			t.cmd(in2+in1, v.Run)
			t.line(in2+in1+t.good.Render(t.Expect+" "), in2+in2, v.Expect, t.plain)
			if v.Beware != "" {
				t.line(in2+in1+t.warn.Render(t.Beware+" "), in2+in2, v.Beware, t.warn)
			}
		}
	}
}

// suppressed tells what somebody chose not to see, and what nobody may any more.
func (t *textReport) suppressed(list []diagnose.Suppression) {
	for i, s := range list {
		if i == 0 {
			t.heading("", t.Suppressed)
		}
		day := lastDay(s)
		if s.Expired {
			t.line(in1+t.warn.Render("! "), in2, fmt.Sprintf("%s %s: %s %s: %s", s.Rule, s.Subject, t.Expired, day, s.Reason), t.warn)
			continue
		}
		t.line(in1+"· ", in2, fmt.Sprintf("%s %s: %s %s: %s", s.Rule, s.Subject, t.Until, day, s.Reason), t.plain)
		for _, o := range s.Hides {
			t.line(in2+t.dim.Render("· "), in2+in1, named(o.Title, o.Subject), t.dim)
		}
	}
}
