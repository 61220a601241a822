package diagnose

import (
	"fmt"
	"time"

	"github.com/pposiraegi/ppodoctor/probes"
)

// A Ref names an object of Kubernetes or AWS.
type Ref = probes.Ref

// A Rule is one thing that can be wrong. It is a symptom if it explains
// nothing, else a candidate cause of what it explains. Its texts are the
// knowledge entry of the same ID.
type Rule struct {
	ID       string  // kebab-case and permanent: a symptom names the state, a cause names the fault
	Explains []*Rule // the effects that this rule can be the cause of
	// Latent marks a fault that is worth naming before it has hurt anything:
	// without an effect it is a risk.
	Latent bool
	// Intermediate marks a state on the way that has several possible causes
	// ("names don't resolve"): it is never a cause. Where nothing deeper is
	// confirmed it stays suspected.
	Intermediate bool
	// LastResort marks a fault that is a cause only of effects that no other
	// confirmed cause explains: it knows less than the others.
	LastResort bool
	// Relay marks a fault that is only that its subject is in trouble ("the
	// database is not ready"): where a symptom of that subject has a cause, the
	// cause goes on through this. See also [Suspect.Through].
	Relay bool
	Needs []probes.Any // the facts that Suspects reads
	// Suspects says who may be at fault, for which of the effects. A symptom
	// gets no effects; a latent rule may be called without any. It only
	// proposes: what incriminates is the tests' business.
	Suspects func(*probes.Facts, []*Finding) []Suspect
	// Tests are asked in order; the first No ends them.
	Tests []Test
}

// symptom reports whether the rule is a symptom: it explains nothing, and is
// not a risk that stands for itself.
func (r *Rule) symptom() bool { return len(r.Explains) == 0 && !r.Latent }

// A Suspect is something that may be at fault.
type Suspect struct {
	Subjects []Ref // the first is the object that a person would change
	Effects  []*Finding
	// Vars fill the {placeholders} of the rule's texts. Answers add to them.
	Vars map[string]string
	// Count is how many objects a symptom stands for (pods of a workload);
	// Since is when it began, if known.
	Count int
	Since *time.Time
	// Through are other objects whose troubles are what the fault comes from:
	// the kube-proxy pod of a node on which no Service answers.
	Through []Ref
	// Found is evidence that Suspects already had in hand.
	Found []Evidence
	// Data is what a rule hands from Suspects to its Tests.
	Data any
}

// A Test is a question whose Yes incriminates: "does nothing let these in on
// port 53 from those?"
type Test struct {
	Asks  string // ends in "?"; may hold {placeholders}
	Needs []probes.Any
	Run   func(*probes.Facts, Suspect) Answer
}

// Truth is what is known of a question.
type Truth string

// The three truths.
const (
	Yes     Truth = "yes"
	No      Truth = "no"
	Unknown Truth = "unknown"
)

// An Answer is what a test found.
type Answer struct {
	Asked    string            `json:"asked"`
	Truth    Truth             `json:"truth"`
	Evidence []Evidence        `json:"evidence,omitempty"`
	Gaps     []*probes.Gap     `json:"-"` // of an Unknown: what was lacking
	Vars     map[string]string `json:"-"`
	Paths    []Path            `json:"-"` // traffic that the answer is about, for a map
}

// Answered is a plain yes or no with its evidence. A yes without evidence is
// a defect of the rule: no evidence, no conclusion.
func Answered(yes bool, evidence ...Evidence) Answer {
	if yes {
		return Answer{Truth: Yes, Evidence: evidence}
	}
	return Answer{Truth: No, Evidence: evidence}
}

// CantTell is the answer where a fact can't be had. The gaps in err, also
// those joined by [errors.Join], say what would settle the question.
func CantTell(err error, evidence ...Evidence) Answer {
	a := Answer{Truth: Unknown, Evidence: evidence, Gaps: probes.GapsIn(err)}
	if len(a.Gaps) == 0 && err != nil {
		a.Evidence = append(a.Evidence, Evidence{Says: err.Error()})
	}
	return a
}

// With adds a variable for the rule's texts.
func (a Answer) With(name, value string) Answer {
	vars := map[string]string{}
	for k, v := range a.Vars {
		vars[k] = v
	}
	vars[name] = value
	a.Vars = vars
	return a
}

// Evidence is one observed fact, and the document that shows it.
type Evidence struct {
	Says     string
	Document probes.Document
	At       *time.Time
}

// Saw is evidence from a document; only narrows the command that shows it.
func Saw(path string, only []string, format string, args ...any) Evidence {
	return Evidence{Says: fmt.Sprintf(format, args...), Document: probes.Document{Path: path, Only: only}}
}

// SawObject is evidence from one Kubernetes object.
func SawObject(resource, namespace, name, format string, args ...any) Evidence {
	only := name
	if namespace != "" {
		only = namespace + "/" + name
	}
	return Saw(resource, []string{only}, format, args...)
}

// A Finding is a rule's verdict on one suspect.
type Finding struct {
	Rule     *Rule
	Truth    Truth
	Subjects []Ref
	Answers  []Answer
	Effects  []*Finding
	Through  []Ref
	Vars     map[string]string
	Found    []Evidence
	Count    int
	Since    *time.Time
	Data     any
}

// Subject is the object that a person would change, or that shows the symptom.
func (f *Finding) Subject() Ref { return f.Subjects[0] }

// Evidence is all that the finding rests on, each fact once.
func (f *Finding) Evidence() []Evidence {
	var all []Evidence
	seen := map[string]bool{}
	add := func(list []Evidence) {
		for _, e := range list {
			if e.Says != "" && !seen[e.Says] {
				seen[e.Says] = true
				all = append(all, e)
			}
		}
	}
	add(f.Found)
	for _, a := range f.Answers {
		if a.Truth == f.Truth || a.Truth == Yes {
			add(a.Evidence)
		}
	}
	return all
}
