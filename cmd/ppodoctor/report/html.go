package report

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"slices"
	"strings"
	"time"

	"github.com/pposiraegi/ppodoctor/diagnose"
)

//go:embed html/report.html.tmpl
var htmlTemplate string

//go:embed html/style.css
var htmlStyle string

//go:embed html/script.js
var htmlScript string

// htmlReport is what the template reads.
type htmlReport struct {
	*diagnose.Diagnosis
	L      labels
	Style  template.CSS
	Script template.JS
	Policy string // only this style and this script may act
	State  string // "bad", "warn", "good"
	About  string
	Kinds  []htmlKind
	Plots  []*plot // for a wide and for a narrow screen
}

type htmlKind struct {
	Word, State string
	Faults      []htmlFault
}

type htmlFault struct {
	diagnose.Cause
	ID     string
	Graphs []*drawing
	Map    *clusterMap
}

// A clusterMap is the best cohort as islands: the failing left, what they
// try to reach right.
type clusterMap struct {
	By          string
	Left, Right []diagnose.Group
	Paths       []diagnose.Path
}

// Bounds of what is drawn, so that a cluster of thousands of nodes still makes
// a page that a person can read.
const (
	mostSteps = 40
	mostNodes = 12
)

// html is one file that needs no network.
func html(b *bytes.Buffer, dirty *diagnose.Diagnosis, _ Options) error {
	d, err := cleaned(dirty)
	if err != nil {
		return err
	}
	clock := clockOf(d.At)
	r := &htmlReport{
		Diagnosis: d, L: english, Style: template.CSS(htmlStyle), Script: template.JS(htmlScript),
		Policy: fmt.Sprintf("default-src 'none'; base-uri 'none'; form-action 'none'; style-src '%s'; script-src '%s'", hash(htmlStyle), hash(htmlScript)),
		State:  state(d), About: strings.Join(about(d), " · "),
	}
	layout, err := newLayouter()
	if err != nil {
		return err
	}
	for _, kind := range []struct {
		word, state string
		faults      []diagnose.Cause
	}{{r.L.Cause, "bad", d.Causes}, {r.L.Suspected, "warn", d.Suspected}, {r.L.Risk, "warn", d.Risks}} {
		k := htmlKind{Word: kind.word, State: kind.state}
		for i, c := range kind.faults {
			f := htmlFault{Cause: c, ID: fmt.Sprintf("%s-%d", strings.ToLower(kind.word), i+1), Map: mapOf(c)}
			drawn := c
			drawn.Chain = c.Chain[:min(len(c.Chain), mostSteps)]
			if len(drawn.Chain) > 1 {
				for _, dir := range []string{"LR", "TB"} {
					g, err := layout.draw(dir, drawn, func(s diagnose.Step) string { return stepMeta(s, r.L, clock) })
					if err != nil {
						return err
					}
					f.Graphs = append(f.Graphs, g)
				}
			}
			k.Faults = append(k.Faults, f)
		}
		r.Kinds = append(r.Kinds, k)
	}
	if len(d.Timeline) > 0 {
		r.Plots = []*plot{newPlot(d.Timeline, 960, clock), newPlot(d.Timeline, 340, clock)}
	}
	t, err := template.New("report").Funcs(template.FuncMap{
		"clock":   clock,
		"l":       func() labels { return r.L },
		"number":  func(i int) int { return i + 1 },
		"bar":     func(g diagnose.Group) float64 { return 100 * float64(g.Failing) / float64(max(g.Failing+g.Healthy, 1)) },
		"word":    func(words map[string]string, key any) string { return word(words, fmt.Sprint(key)) },
		"meta":    func(s diagnose.Step) string { return stepMeta(s, r.L, clock) },
		"nodes":   func(g diagnose.Group) []diagnose.Place { return g.Nodes[:min(len(g.Nodes), mostNodes)] },
		"rest":    func(g diagnose.Group) int { return len(g.Nodes) - min(len(g.Nodes), mostNodes) },
		"join":    strings.Join,
		"lastDay": lastDay,
		"heads":   func(head string, list []diagnose.Outcome) headed { return headed{head, list} },
	}).Parse(htmlTemplate)
	if err != nil {
		return err
	}
	return t.Execute(b, r)
}

// headed is a list under a heading.
type headed struct {
	Head string
	List []diagnose.Outcome
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// stepMeta is how many and since when.
func stepMeta(s diagnose.Step, l labels, clock func(time.Time) string) string {
	var meta []string
	if s.Count > 1 {
		meta = append(meta, fmt.Sprintf("×%d", s.Count))
	}
	if s.Since != nil {
		meta = append(meta, l.Since+" "+clock(*s.Since))
	}
	return strings.Join(meta, " · ")
}

// mapOf is the map of the cohort that a path runs through, else of the best
// whose nodes are known.
func mapOf(c diagnose.Cause) *clusterMap {
	placed := func(co diagnose.Cohort) bool {
		return slices.ContainsFunc(co.Groups, func(g diagnose.Group) bool { return len(g.Nodes) > 0 })
	}
	i := slices.IndexFunc(c.Cohorts, func(co diagnose.Cohort) bool {
		return placed(co) && slices.ContainsFunc(c.Paths, co.Has)
	})
	if i < 0 {
		i = slices.IndexFunc(c.Cohorts, placed)
	}
	if i < 0 {
		return nil
	}
	m := &clusterMap{By: c.Cohorts[i].By}
	for _, p := range c.Paths {
		if c.Cohorts[i].Has(p) {
			m.Paths = append(m.Paths, p)
		}
	}
	for _, g := range c.Cohorts[i].Groups {
		if g.Failing > 0 {
			m.Left = append(m.Left, g)
		} else {
			m.Right = append(m.Right, g)
		}
	}
	return m
}
