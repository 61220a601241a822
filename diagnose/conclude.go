package diagnose

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/knowledge"
	"github.com/pposiraegi/ppodoctor/probes"
)

// conclude turns the findings into a diagnosis.
func (w *walk) conclude(ctx context.Context) *Diagnosis {
	w.facts.Gather(ctx, probes.Nodes, probes.Pods, probes.Workloads)
	if len(w.findings) > 0 {
		w.facts.Gather(ctx, probes.Events, probes.ReplicaSets, probes.ControllerRevisions) // the timeline's, and leads
	}
	w.dateBack()
	g := newGraph(w.findings)
	w.compared = w.cohortView()
	d := &Diagnosis{Schema: Schema, At: w.facts.Source().Now(), Focus: w.opts.Focus}
	var confirmed, open, latent []*Finding
	for _, f := range w.findings {
		switch g.standing(f) {
		case isCause:
			confirmed = append(confirmed, f)
		case isSuspected:
			open = append(open, f)
		case isRisk:
			latent = append(latent, f)
		}
	}
	g.rank(confirmed)
	g.rank(open)
	g.rank(latent)
	d.Causes = w.causes(g, confirmed)
	d.Suspected = w.causes(g, open)
	d.Risks = w.causes(g, latent)
	d.Symptoms, d.Unexplained = w.symptoms(g, confirmed)
	d.Gaps = w.gaps(len(d.Unexplained) > 0)
	d.Next = w.next(open)
	for i, c := range d.Suspected {
		d.Suspected[i].Open = w.openQuestions(open[i])
		_ = c
	}
	d.Cluster = clusterOf(ctx, w.facts)
	if d.Cluster.Platform == notAWS {
		// A cluster outside AWS has no AWS side: nothing is missing there.
		d.Gaps = slices.DeleteFunc(d.Gaps, func(g Gap) bool { return strings.HasPrefix(g.Document, "aws/") })
		d.Next = slices.DeleteFunc(d.Next, func(n Next) bool { return strings.HasPrefix(n.Document, "aws/") })
	}
	d.Timeline = w.timeline(g, slices.Concat(confirmed, open, w.unexplained))
	if w.opts.Verbose || w.opts.Focus != nil {
		d.Considered = w.considered()
	}
	d.Stats = Stats{Rules: len(w.judged), Questions: w.asked, Facts: w.facts.Gathered()}
	if w.opts.Focus != nil || w.opts.Namespace != "" || w.opts.Selector != nil {
		w.focus(d)
	}
	d.Verdict = verdict(d)
	return d
}

// fingerprint names a rule and the object at fault in a few characters. Other
// subjects come and go with each re-scan (pods above all) and are left out.
func fingerprint(rule string, subject Ref) string {
	sum := sha256.Sum256([]byte(rule + "\n" + subject.String()))
	return hex.EncodeToString(sum[:6])
}

func (w *walk) entry(r *Rule) *knowledge.Entry {
	if e := w.knowledge.Rules[r.ID]; e != nil {
		return e
	}
	return &knowledge.Entry{ID: r.ID, Title: r.ID, Summary: "{subject}"}
}

// vars are what a finding's texts may name.
func vars(f *Finding, effects int) map[string]string {
	s := f.Subject()
	v := map[string]string{
		"subject": short(s), "name": s.Name, "namespace": s.Namespace, "kind": s.Kind, "count": fmt.Sprint(max(f.Count, 1)),
		"effects": fmt.Sprint(effects),
	}
	for name, value := range f.Vars {
		v[name] = value
	}
	return v
}

// short is how a text names an object: "Deployment api in shop".
func short(r Ref) string {
	if r.Namespace == "" {
		return r.Kind + " " + r.Name
	}
	return r.Kind + " " + r.Namespace + "/" + r.Name
}

func (w *walk) causes(g *graph, findings []*Finding) []Cause {
	causes := []Cause{}
	for _, f := range findings {
		c := w.cause(g, f)
		if i := slices.IndexFunc(causes, func(o Cause) bool { return o.Fingerprint == c.Fingerprint }); i >= 0 {
			continue
		}
		causes = append(causes, c)
	}
	return causes
}

func (w *walk) cause(g *graph, f *Finding) Cause {
	symptoms := g.symptoms(f)
	e, v := w.entry(f.Rule), vars(f, len(symptoms))
	fill := func(s string) string { return strings.TrimSpace(knowledge.Fill(s, v)) }
	c := Cause{
		Rule: f.Rule.ID, Fingerprint: fingerprint(f.Rule.ID, f.Subject()),
		Title: fill(e.Title), Summary: fill(e.Summary), Because: fill(e.Because),
		Subject: f.Subject(), Subjects: f.Subjects, Effects: []Ref{},
		Evidence: factsOf(f.Evidence()), RuledOut: w.ruledOut(g, f), Remedies: []Remedy{}, Verify: []Verify{},
		Sources: e.Sources,
	}
	for _, s := range symptoms {
		c.Effects = append(c.Effects, s.Subject())
	}
	c.Chain = w.chain(g, f)
	if c.Cohorts = w.compared.cohorts(g.failingPods(f)); len(c.Cohorts) == 0 {
		c.Cohorts = w.compared.nodeCohorts(g.failingNodes(f))
	}
	if len(c.Cohorts) > 0 {
		c.Evidence = append(c.Evidence, c.Cohorts[0].fact())
	}
	c.Paths = pathsOf(f, c.Cohorts)
	// What the effects said is part of the proof: a few quotes stand with the
	// cause, all of them with their steps in the chain.
	quotes := 0
	for _, step := range c.Chain[1:] {
		for _, fact := range step.Evidence {
			if quotes < maxQuotes && !slices.ContainsFunc(c.Evidence, func(e Fact) bool { return e.Says == fact.Says }) {
				c.Evidence = append(c.Evidence, fact)
				quotes++
			}
		}
	}
	for _, r := range e.Remedies {
		remedy := Remedy{Do: fill(r.Do), Scope: r.Scope, Terraform: fill(r.Terraform), Manifest: fill(r.Manifest), Caution: fill(r.Caution)}
		for _, cmd := range r.Commands {
			remedy.Commands = append(remedy.Commands, fill(cmd))
		}
		c.Remedies = append(c.Remedies, remedy)
	}
	for _, r := range e.Verify {
		c.Verify = append(c.Verify, Verify{Run: fill(r.Run), Expect: fill(r.Expect), Beware: fill(r.Beware)})
	}
	return c
}

// pathsOf are the paths that the answers are about, where a cohort has both
// their ends.
func pathsOf(f *Finding, cohorts []Cohort) []Path {
	var paths []Path
	for _, a := range f.Answers {
		for _, p := range a.Paths {
			if slices.ContainsFunc(cohorts, func(c Cohort) bool { return c.Has(p) }) {
				paths = append(paths, p)
			}
		}
	}
	return paths
}

func (w *walk) title(f *Finding) string {
	v := vars(f, 0)
	title := w.entry(f.Rule).Title
	// What is ruled out was not looked into to the end: not all is known of it.
	for _, name := range knowledge.Placeholders(title) {
		if v[name] == "" {
			v[name] = "…"
		}
	}
	title = knowledge.Fill(title, v)
	return strings.TrimSpace(title)
}

// chain lists the findings from a cause to the symptoms, the cause first.
func (w *walk) chain(g *graph, f *Finding) []Step {
	below := g.below(f)
	index := map[*Finding]int{}
	for i, b := range below {
		index[b] = i
	}
	var steps []Step
	for _, b := range below {
		s := Step{
			Rule: b.Rule.ID, Title: w.title(b), Subject: b.Subject(), Count: b.Count, Since: b.Since,
			Evidence: factsOf(b.Evidence()),
		}
		for _, e := range b.Effects {
			if i, ok := index[e]; ok {
				s.Explains = append(s.Explains, i)
			}
		}
		steps = append(steps, s)
	}
	return steps
}

func factsOf(evidence []Evidence) []Fact {
	list := []Fact{}
	for _, e := range evidence {
		fact := Fact{Says: e.Says, Document: e.Document.Path, At: e.At}
		if e.Document.Path != "" {
			fact.Command = e.Document.Command()
		}
		list = append(list, fact)
	}
	return list
}

// ruledOut lists the rivals: what could explain the same effects, but was
// answered no. Those that would explain the most come first: they are what a
// reader would have thought of.
func (w *walk) ruledOut(g *graph, f *Finding) []Ruled {
	explained := map[*Finding]bool{}
	for _, b := range g.below(f)[1:] {
		explained[b] = true
	}
	list := []Ruled{}
	rank := map[string]int{} // how many of the effects each rule's rivals would explain
	seen := map[string]bool{f.Rule.ID: true}
	for _, rival := range w.findings {
		if rival.Truth != No || g.confirmedRule(rival.Rule) {
			continue
		}
		for _, e := range rival.Effects {
			if explained[e] {
				rank[rival.Rule.ID]++
			}
		}
		last := rival.Answers[len(rival.Answers)-1]
		if seen[rival.Rule.ID] || rank[rival.Rule.ID] == 0 || len(last.Evidence) == 0 {
			continue // without a fact it was never thinkable
		}
		seen[rival.Rule.ID] = true
		subject := rival.Subject()
		list = append(list, Ruled{
			Rule: rival.Rule.ID, Title: w.title(rival), Subject: &subject,
			Why: last.Asked + " No.", Evidence: factsOf(last.Evidence),
		})
	}
	slices.SortStableFunc(list, func(a, b Ruled) int { return rank[b.Rule] - rank[a.Rule] })
	return list
}

const (
	maxExamples = 3 // pods named of a workload
	maxQuotes   = 6 // facts of the effects that stand with the cause
)

func (w *walk) symptoms(g *graph, confirmed []*Finding) (all, unexplained []Symptom) {
	all, unexplained = []Symptom{}, []Symptom{}
	for _, f := range w.findings {
		if !f.Rule.symptom() || f.Truth != Yes {
			continue
		}
		e, v := w.entry(f.Rule), vars(f, 0)
		s := Symptom{
			Rule: f.Rule.ID, Fingerprint: fingerprint(f.Rule.ID, f.Subject()),
			Title: strings.TrimSpace(knowledge.Fill(e.Title, v)), Summary: strings.TrimSpace(knowledge.Fill(e.Summary, v)),
			Subject: f.Subject(), Count: max(f.Count, 1), Since: f.Since, ExplainedBy: []string{}, Evidence: factsOf(f.Evidence()),
		}
		if len(f.Subjects) > 1 {
			s.Examples = f.Subjects[1:min(len(f.Subjects), 1+maxExamples)]
		}
		for _, c := range confirmed {
			if slices.Contains(g.below(c), f) {
				s.ExplainedBy = append(s.ExplainedBy, fingerprint(c.Rule.ID, c.Subject()))
			}
		}
		if len(s.ExplainedBy) == 0 {
			s.Lead = factsOf(w.lead(f))
			w.unexplained = append(w.unexplained, f)
			unexplained = append(unexplained, s)
		}
		all = append(all, s)
	}
	// What fails for no known reason may fail for the same one: the unexplained
	// are compared with the healthy together.
	var failing []*corev1.Pod
	var nodes []string
	for _, f := range w.unexplained {
		failing, nodes = append(failing, troubled(f)...), append(nodes, subjectNodes(f)...)
	}
	leads := func(cohorts []Cohort, concerns func(*Finding) bool) {
		for i, f := range w.unexplained {
			if len(cohorts) > 0 && concerns(f) {
				unexplained[i].Cohorts = cohorts
				unexplained[i].Lead = append([]Fact{cohorts[0].fact()}, unexplained[i].Lead...)
			}
		}
	}
	leads(w.compared.cohorts(failing), func(f *Finding) bool { return len(troubled(f)) > 0 })
	leads(w.compared.nodeCohorts(nodes), func(f *Finding) bool { return len(subjectNodes(f)) > 0 })
	return all, unexplained
}

// gaps are the documents that could not be had, with the rules that wait for
// them.
func (w *walk) gaps(unexplained bool) []Gap {
	byPath := map[string]*Gap{}
	var order []string
	add := func(g *probes.Gap, rule string) {
		have := byPath[g.Document.Path]
		if have == nil {
			have = &Gap{Document: g.Document.Path, Reason: string(g.Reason), Grant: g.Grant, Detail: g.Detail}
			byPath[g.Document.Path] = have
			order = append(order, g.Document.Path)
		}
		if rule != "" && !slices.Contains(have.Settles, rule) {
			have.Settles = append(have.Settles, rule)
		}
	}
	if src, ok := w.facts.Source().(interface{ Gaps() []*probes.Gap }); ok {
		for _, g := range src.Gaps() {
			add(g, "")
		}
	}
	for _, r := range w.due {
		if r.Latent && len(r.Explains) == 0 {
			continue // what hurts nothing yet is asked of preflight
		}
		// What a rule never came to look at it did not miss.
		for _, p := range w.read[r] {
			for _, g := range probes.GapsIn(w.facts.Err(p)) {
				add(g, r.ID)
			}
		}
		if !unexplained {
			continue
		}
		// A log that is not there may be the one that says it.
		for _, p := range probes.Closure(r.Needs...) {
			for _, g := range w.facts.ItemGaps(p) {
				add(g, r.ID)
			}
		}
	}
	for _, f := range w.findings {
		for _, a := range f.Answers {
			for _, g := range a.Gaps {
				if f.Truth == Unknown && (len(f.Effects) > 0 || !f.Rule.Latent) {
					add(g, f.Rule.ID)
				}
			}
		}
	}
	slices.Sort(order)
	gaps := []Gap{}
	for _, path := range order {
		gaps = append(gaps, *byPath[path])
	}
	return gaps
}

// next ranks the reads that would settle what is open.
func (w *walk) next(open []*Finding) []Next {
	byPath := map[string]*Next{}
	list := []*Next{}
	for _, f := range open {
		for _, a := range f.Answers {
			for _, g := range a.Gaps {
				n := byPath[g.Document.Path]
				if n == nil {
					n = &Next{Document: g.Document.Path, Grant: g.Grant, Command: g.Document.Command()}
					byPath[n.Document] = n
					list = append(list, n)
				}
				n.Settles++
				if t := w.title(f); !slices.Contains(n.Between, t) {
					n.Between = append(n.Between, t)
				}
			}
		}
	}
	slices.SortStableFunc(list, func(a, b *Next) int {
		return cmp.Or(cmp.Compare(b.Settles, a.Settles), strings.Compare(a.Document, b.Document))
	})
	out := []Next{}
	for _, n := range list {
		out = append(out, *n)
	}
	return out
}

func (w *walk) openQuestions(f *Finding) []Open {
	list := []Open{}
	for _, a := range f.Answers {
		if a.Truth != Unknown {
			continue
		}
		o := Open{Asked: a.Asked}
		if len(a.Gaps) > 0 {
			o.Lacks, o.Command = a.Gaps[0].Document.Path, a.Gaps[0].Document.Command()
		}
		list = append(list, o)
	}
	return list
}

func (w *walk) considered() []Considered {
	var list []Considered
	for _, f := range w.findings {
		c := Considered{Rule: f.Rule.ID, Title: w.title(f), Subject: f.Subject(), Truth: f.Truth}
		for _, a := range f.Answers {
			q := Asked{Question: a.Asked, Truth: a.Truth, Evidence: factsOf(a.Evidence)}
			if len(a.Gaps) > 0 {
				q.Lacks = a.Gaps[0].Document.Path
			}
			c.Asked = append(c.Asked, q)
		}
		list = append(list, c)
	}
	return list
}
