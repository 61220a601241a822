package diagnose

import (
	"cmp"
	"slices"
	"strings"
)

// A graph is the findings joined by what explains what.
type graph struct {
	findings []*Finding
	causedBy map[*Finding][]*Finding // the findings that explain it and are not ruled out
	downward map[*Finding][]*Finding
	order    map[*Finding]int
}

func newGraph(findings []*Finding) *graph {
	g := &graph{findings: findings, causedBy: map[*Finding][]*Finding{}, downward: map[*Finding][]*Finding{}, order: map[*Finding]int{}}
	for i, f := range findings {
		g.order[f] = i
		if f.Truth == No {
			continue
		}
		for _, e := range f.Effects {
			g.causedBy[e] = append(g.causedBy[e], f)
		}
	}
	g.cascade()
	return g
}

// cascade lets what explains the troubles of a backend explain those of its
// clients: a finding about pods that are not ready has the causes of their
// symptoms, and so has one about a controller that is down. Workloads that wait for each other don't explain each other.
func (g *graph) cascade() {
	for _, f := range g.findings {
		through := f.Through
		if f.Rule.Relay {
			through = append(slices.Clone(through), f.Subject())
		}
		if len(through) == 0 || f.Truth == No {
			continue
		}
		for _, s := range g.findings {
			if !s.Rule.symptom() || !slices.ContainsFunc(through, func(r Ref) bool { return slices.Contains(s.Subjects, r) }) {
				continue
			}
			for _, c := range slices.Clone(g.causedBy[s]) {
				if c.Rule.LastResort && (!f.Rule.Relay || slices.Contains(f.Effects, s)) {
					continue // it knows less than f itself
				}
				if c != f && !slices.Contains(c.Effects, f) && !leadsTo(f, c, map[*Finding]bool{}) {
					c.Effects = append(slices.Clone(c.Effects), f)
					g.causedBy[f] = append(g.causedBy[f], c)
				}
			}
		}
	}
}

// relay marks a rule that says only that its subject is down.
func relay(r *Rule) *Rule {
	r.Relay = true
	return r
}

func lastResort(r *Rule) *Rule {
	r.LastResort = true
	return r
}

// leadsTo reports whether a finding is among the causes of what follows from
// another: from is an effect of to.
func leadsTo(from, to *Finding, seen map[*Finding]bool) bool {
	if from == to {
		return true
	}
	if seen[from] {
		return false
	}
	seen[from] = true
	return slices.ContainsFunc(from.Effects, func(e *Finding) bool { return leadsTo(e, to, seen) })
}

type standing int

const (
	isNothing standing = iota
	isCause
	isSuspected
	isRisk
)

// standing says in which list of the diagnosis a finding belongs.
func (g *graph) standing(f *Finding) standing {
	if f.Rule.symptom() || f.Truth == No {
		return isNothing
	}
	if len(f.Effects) == 0 {
		if f.Truth == Yes && f.Rule.Latent {
			return isRisk
		}
		return isNothing
	}
	switch {
	case g.explainedBy(f, Yes):
		return isNothing // a link of the chain of something deeper
	case f.Rule.LastResort && g.betterExplained(f):
		return isNothing
	case f.Rule.LastResort && g.betterSuspected(f):
		return isSuspected
	case f.Truth == Yes && !f.Rule.Intermediate && g.hasCertainEffect(f):
		return isCause
	case f.Rule.Intermediate && (f.Truth == Unknown || g.explainedBy(f, Unknown)):
		return isNothing // what may be behind it is suspected in its place
	case f.Rule.Intermediate && slices.ContainsFunc(g.causedBy[f], func(c *Finding) bool { return c.Truth == Yes }):
		return isNothing // the walk came further
	case f.Truth == Unknown && !g.hasCertainEffect(f):
		return isNothing // neither the fault nor what it would explain is certain
	case g.effectsExplained(f):
		return isNothing // all that it could explain has a confirmed cause
	}
	return isSuspected
}

// betterExplained reports whether each effect of a last resort has a cause
// that is none: such a cause knows more.
func (g *graph) betterExplained(f *Finding) bool {
	return !slices.ContainsFunc(f.Effects, func(e *Finding) bool { return !g.explainedWell(e) })
}

// betterSuspected reports whether something that knows more than a last resort
// is still open for one of its effects.
func (g *graph) betterSuspected(f *Finding) bool {
	return slices.ContainsFunc(f.Effects, func(e *Finding) bool {
		return slices.ContainsFunc(g.causedBy[e], func(c *Finding) bool {
			return c.Truth == Unknown && !c.Rule.LastResort && !c.Rule.Intermediate && g.hasCertainEffect(c)
		})
	})
}

func (g *graph) explainedWell(e *Finding) bool {
	return slices.ContainsFunc(g.causedBy[e], func(c *Finding) bool {
		if c.Truth != Yes || c.Rule.LastResort {
			return false
		}
		return !c.Rule.Intermediate && g.hasCertainEffect(c) || g.explainedWell(c)
	})
}

// explainedBy reports whether something that can be a cause, and has the
// truth, explains the finding.
func (g *graph) explainedBy(f *Finding, truth Truth) bool {
	return slices.ContainsFunc(g.causedBy[f], func(c *Finding) bool {
		return c.Truth == truth && (!c.Rule.Intermediate || g.explainedBy(c, truth))
	})
}

// hasCertainEffect reports whether at least one effect is certain: a fault
// that is there, but of which nobody knows whether it hurts, is only suspected.
func (g *graph) hasCertainEffect(f *Finding) bool {
	return slices.ContainsFunc(f.Effects, func(e *Finding) bool { return e.Truth == Yes })
}

// effectsExplained reports whether each effect of an open finding has a
// confirmed cause already.
func (g *graph) effectsExplained(f *Finding) bool {
	return !slices.ContainsFunc(f.Effects, func(e *Finding) bool {
		return !g.explained(e)
	})
}

func (g *graph) explained(e *Finding) bool {
	if e.Truth == Unknown && len(e.Effects) > 0 {
		// An uncertain link matters only as far as what it leads to is open.
		return g.effectsExplained(e)
	}
	return slices.ContainsFunc(g.causedBy[e], func(c *Finding) bool {
		if c.Truth != Yes {
			return false
		}
		return !c.Rule.Intermediate && g.hasCertainEffect(c) || g.explained(c)
	})
}

// below are a finding and all that follows from it, the finding first, each once.
func (g *graph) below(f *Finding) []*Finding {
	if list, ok := g.downward[f]; ok {
		return list
	}
	list := []*Finding{f}
	seen := map[*Finding]bool{f: true}
	for i := 0; i < len(list); i++ {
		for _, e := range list[i].Effects {
			if !seen[e] && e.Truth != No {
				seen[e] = true
				list = append(list, e)
			}
		}
	}
	// Symptoms are last, and among equals the order is that of judgement.
	slices.SortStableFunc(list[1:], func(a, b *Finding) int {
		return cmp.Or(cmp.Compare(min(len(b.Effects), 1), min(len(a.Effects), 1)), cmp.Compare(g.order[b], g.order[a]))
	})
	g.downward[f] = list
	return list
}

// symptoms are the symptoms that follow from a finding, by subject.
func (g *graph) symptoms(f *Finding) []*Finding {
	var list []*Finding
	for _, b := range g.below(f) {
		if b.Rule.symptom() && b != f {
			list = append(list, b)
		}
	}
	slices.SortFunc(list, func(a, b *Finding) int { return strings.Compare(a.Subject().String(), b.Subject().String()) })
	return list
}

// rank puts the finding that explains most first: one cause that explains
// many workloads beats many separate ones. Then the one that was reached by
// the longest walk, then the order of judgement.
func (g *graph) rank(findings []*Finding) {
	reach := func(f *Finding) int {
		subjects := map[Ref]bool{}
		for _, s := range g.symptoms(f) {
			subjects[s.Subject()] = true
		}
		return len(subjects)
	}
	slices.SortStableFunc(findings, func(a, b *Finding) int {
		return cmp.Or(cmp.Compare(reach(b), reach(a)), cmp.Compare(len(g.below(b)), len(g.below(a))), cmp.Compare(g.order[a], g.order[b]))
	})
}

func (g *graph) confirmedRule(r *Rule) bool {
	return slices.ContainsFunc(g.findings, func(f *Finding) bool { return f.Rule == r && f.Truth == Yes && len(f.Effects) > 0 })
}
