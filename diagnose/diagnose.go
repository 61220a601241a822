// Package diagnose walks from symptoms to their causes. It is a pure function
// of facts and knowledge: no clock, no randomness, no I/O of its own, so the
// same input gives the same diagnosis.
package diagnose

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/pposiraegi/ppodoctor/knowledge"
	"github.com/pposiraegi/ppodoctor/probes"
)

// Options narrow a walk.
type Options struct {
	// Rules are the rules to judge; nil means [Rules].
	Rules []*Rule
	// Focus is the object that is asked about; nil means everything.
	Focus *Ref
	// Namespace and Selector keep only what is wrong in that namespace, and
	// with the pods that have those labels; empty and nil keep all.
	Namespace string
	Selector  labels.Selector
	// Verbose keeps every rule that was considered, with its answers.
	Verbose bool
}

// Walk judges the rules layer by layer: symptoms first, then what explains
// them, then what explains that. A rule's facts are gathered only when there
// is an effect to explain (or the rule is latent), so a healthy cluster costs
// a handful of lists.
func Walk(ctx context.Context, facts *probes.Facts, k *knowledge.Knowledge, opts Options) *Diagnosis {
	rules := opts.Rules
	if rules == nil {
		rules = Rules()
	}
	w := &walk{facts: facts, knowledge: k, opts: opts, judged: map[*Rule][]*Finding{}, read: map[*Rule][]probes.Any{}}
	for _, layer := range layers(rules) {
		w.judge(ctx, layer)
	}
	return w.conclude(ctx)
}

type walk struct {
	facts     *probes.Facts
	knowledge *knowledge.Knowledge
	opts      Options
	judged    map[*Rule][]*Finding
	findings  []*Finding             // in the order of judgement
	due       []*Rule                // the rules that were called
	read      map[*Rule][]probes.Any // the facts that each of them looked at to find suspects, or was called for
	asked     int
	compared  *cohortView // nil until the walk is over

	unexplained []*Finding // symptoms without a confirmed cause
}

// layers groups the rules by their distance from the symptoms; within a layer
// the order is that of the list.
func layers(rules []*Rule) [][]*Rule {
	depth := map[*Rule]int{}
	var measure func(*Rule) int
	measure = func(r *Rule) int {
		if d, ok := depth[r]; ok {
			return d
		}
		d := 0
		for _, e := range r.Explains {
			d = max(d, measure(e)+1)
		}
		depth[r] = d
		return d
	}
	var all [][]*Rule
	for _, r := range rules {
		d := measure(r)
		for len(all) <= d {
			all = append(all, nil)
		}
		all[d] = append(all[d], r)
	}
	return all
}

// judge decides the rules of one layer.
func (w *walk) judge(ctx context.Context, layer []*Rule) {
	type called struct {
		rule    *Rule
		effects []*Finding
	}
	var due []called
	var needs []probes.Any
	for _, r := range layer {
		var effects []*Finding
		for _, e := range r.Explains {
			for _, f := range w.judged[e] {
				if f.Truth != No {
					effects = append(effects, f)
				}
			}
		}
		if len(r.Explains) > 0 && len(effects) == 0 && !r.Latent {
			continue
		}
		due = append(due, called{r, effects})
		w.due = append(w.due, r)
		needs = append(needs, r.Needs...)
	}
	w.facts.Gather(ctx, needs...)
	for _, c := range due {
		if len(c.effects) > 0 {
			w.read[c.rule] = slices.Clone(c.rule.Needs) // there was something to explain: all that it lacks may count
		}
		facts := w.facts.Only(probes.Closure(c.rule.Needs...)...).Observed(func(p probes.Any) {
			if !slices.Contains(w.read[c.rule], p) {
				w.read[c.rule] = append(w.read[c.rule], p)
			}
		})
		for _, s := range c.rule.Suspects(facts, c.effects) {
			f := w.question(ctx, c.rule, s)
			if same := w.sameFault(f); same != nil {
				same.merge(f)
				continue
			}
			w.judged[c.rule] = append(w.judged[c.rule], f)
			w.findings = append(w.findings, f)
		}
	}
}

// sameFault is an earlier finding of the same fault in the same object: a node
// that is lost is one cause, whatever each of its pods suffers.
func (w *walk) sameFault(f *Finding) *Finding {
	if f.Rule.symptom() || f.Rule.Intermediate {
		return nil
	}
	for _, o := range w.judged[f.Rule] {
		if o.Subject() == f.Subject() && o.Truth == f.Truth {
			return o
		}
	}
	return nil
}

// merge takes over what another finding of the same fault found.
func (f *Finding) merge(o *Finding) {
	for _, e := range o.Effects {
		f.Effects = appendOnce(f.Effects, e)
	}
	for _, s := range o.Subjects {
		if !slices.Contains(f.Subjects, s) {
			f.Subjects = append(f.Subjects, s)
		}
	}
	for _, s := range o.Through {
		f.Through = appendNew(f.Through, s)
	}
	f.Found = append(f.Found, o.Found...)
	for i, a := range o.Answers {
		if i < len(f.Answers) {
			f.Answers[i].Evidence = append(f.Answers[i].Evidence, a.Evidence...)
			f.Answers[i].Gaps = append(f.Answers[i].Gaps, a.Gaps...)
		}
	}
	f.Count += o.Count
	if o.Since != nil && (f.Since == nil || o.Since.Before(*f.Since)) {
		f.Since = o.Since
	}
}

// question asks a rule's tests about one suspect. One No rules it out, else
// one Unknown leaves it open, else it is confirmed.
func (w *walk) question(ctx context.Context, r *Rule, s Suspect) *Finding {
	f := &Finding{
		Rule: r, Truth: Yes, Subjects: s.Subjects, Effects: s.Effects, Through: s.Through, Vars: map[string]string{},
		Found: s.Found, Count: s.Count, Since: s.Since, Data: s.Data,
	}
	for k, v := range s.Vars {
		f.Vars[k] = v
	}
	for _, t := range r.Tests {
		w.facts.Gather(ctx, t.Needs...)
		w.asked++
		known := slices.Concat(probes.Closure(r.Needs...), probes.Closure(t.Needs...))
		a := t.Run(w.facts.Only(known...), s)
		a.Asked = t.Asks
		for k, v := range a.Vars {
			f.Vars[k] = v
		}
		f.Answers = append(f.Answers, a)
		if a.Truth == No {
			f.Truth = No
			break
		}
		if a.Truth == Unknown {
			f.Truth = Unknown
		}
	}
	for i := range f.Answers {
		f.Answers[i].Asked = capital(knowledge.Fill(f.Answers[i].Asked, f.Vars))
	}
	return f
}
