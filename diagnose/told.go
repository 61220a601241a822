package diagnose

import (
	"cmp"

	"github.com/pposiraegi/ppodoctor/knowledge"
)

// Told is a fault that was found otherwise than by a walk (in files, before
// anything is installed), in the words of a rule and with the facts that show it.
func Told(k *knowledge.Knowledge, rule string, subjects []Ref, vars map[string]string, facts []Fact) Cause {
	f := &Finding{Rule: &Rule{ID: rule}, Truth: Yes, Subjects: subjects, Vars: vars}
	w := &walk{knowledge: k, findings: []*Finding{f}}
	c := w.cause(newGraph(w.findings), f)
	c.Evidence, c.Chain[0].Evidence = facts, facts
	return c
}

// Document is a diagnosis that nobody walked to: what was found in files.
func Document(faults []Cause, gaps []Gap) *Diagnosis {
	return &Diagnosis{
		Schema: Schema, Causes: append([]Cause{}, faults...), Suspected: []Cause{}, Risks: []Cause{}, Symptoms: []Symptom{}, Unexplained: []Symptom{},
		Gaps: append([]Gap{}, gaps...), Next: []Next{}, Timeline: []Moment{}, Stats: Stats{Facts: []string{}},
	}
}

// CompareCauses orders causes by the document of their first fact, then rule.
func CompareCauses(a, b Cause) int {
	first := func(c Cause) string {
		if len(c.Evidence) == 0 {
			return ""
		}
		return c.Evidence[0].Document
	}
	return cmp.Or(cmp.Compare(first(a), first(b)), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Subject.String(), b.Subject.String()))
}
