package diagnose

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pposiraegi/ppodoctor/probes"
)

// DifferenceSchema names the shape of [Difference] as JSON.
const DifferenceSchema = "ppodoctor/diff/v1"

// A Difference is what became of the faults of one diagnosis in a later one.
type Difference struct {
	Schema string    `json:"schema"`
	From   Glance    `json:"from"`
	To     Glance    `json:"to"`
	Fixed  []Outcome `json:"fixed"`      // gone, and what it hurt was seen to be well
	There  []Outcome `json:"stillThere"` // the same cause
	New    []Outcome `json:"new"`
	// Vanished are no longer seen, but only because nothing exercises them
	// any more: unproven, with the run that would prove a remedy.
	Vanished []Outcome `json:"vanished"`
	// Unsettled can't be told, because something could not be seen.
	Unsettled []Outcome `json:"unsettled"`
}

// A Glance is a diagnosis in a line.
type Glance struct {
	At      time.Time `json:"at"`
	Cluster string    `json:"cluster,omitempty"`
	Verdict string    `json:"verdict"`
}

// An Outcome is what became of one cause, or of a symptom without a cause.
type Outcome struct {
	Rule        string   `json:"rule"`
	Fingerprint string   `json:"fingerprint"`
	Title       string   `json:"title"`
	Subject     Ref      `json:"subject"`
	Was         string   `json:"was,omitempty"` // "cause", "suspected", "risk", "symptom"; empty for new
	Is          string   `json:"is,omitempty"`
	Evidence    []Fact   `json:"evidence,omitempty"` // why it counts as fixed, vanished or unsettled
	Verify      []Verify `json:"verify,omitempty"`
}

// Exercised tells whether anything in the later state would still run into a
// cause, with the fact that says so. The error is a gap.
type Exercised func(Cause) (bool, Fact, error)

// Compare tells what became of a's faults in b. Without exercised, as between
// two saved diagnoses, only what b itself ruled out counts as fixed.
func Compare(a, b *Diagnosis, exercised Exercised) *Difference {
	d := &Difference{
		Schema: DifferenceSchema, From: glance(a), To: glance(b),
		Fixed: []Outcome{}, There: []Outcome{}, New: []Outcome{}, Vanished: []Outcome{}, Unsettled: []Outcome{},
	}
	before, after := faults(a), faults(b)
	for _, f := range before {
		o := Outcome{Rule: f.Rule, Fingerprint: f.Fingerprint, Title: f.Title, Subject: f.Subject, Was: f.kind}
		i := slices.IndexFunc(after, func(g fault) bool {
			return g.Fingerprint == f.Fingerprint || g.Rule == f.Rule && g.Subject == f.Subject
		})
		if i >= 0 {
			o.Is = after[i].kind
			o.Verify = after[i].Verify
			switch {
			case o.Is == isRiskKind && o.Was != isRiskKind:
				o.Evidence = after[i].Evidence
				d.Vanished = append(d.Vanished, o)
			case o.Is == isSuspectedKind && o.Was == isCauseKind:
				for _, open := range after[i].Open {
					o.Evidence = append(o.Evidence, Fact{Says: open.Asked, Document: open.Lacks, Command: open.Command})
				}
				d.Unsettled = append(d.Unsettled, o)
			default:
				d.There = append(d.There, o)
			}
			continue
		}
		d.settle(o, f.Cause, b, exercised)
	}
	for _, f := range after {
		if !slices.ContainsFunc(before, func(g fault) bool {
			return g.Fingerprint == f.Fingerprint || g.Rule == f.Rule && g.Subject == f.Subject
		}) {
			d.New = append(d.New, Outcome{Rule: f.Rule, Fingerprint: f.Fingerprint, Title: f.Title, Subject: f.Subject, Is: f.kind, Evidence: f.Evidence})
		}
	}
	return d
}

// settle says what became of a cause that is no longer seen.
func (d *Difference) settle(o Outcome, c Cause, b *Diagnosis, exercised Exercised) {
	o.Verify = c.Verify
	for _, g := range b.Gaps {
		if slices.Contains(g.Settles, c.Rule) {
			o.Evidence = []Fact{{Says: g.Document + ": " + g.Reason, Document: g.Document}}
			d.Unsettled = append(d.Unsettled, o)
			return
		}
	}
	for _, s := range b.Symptoms {
		if o.Was == isSymptomKind && s.Fingerprint == o.Fingerprint {
			o.Is = isSymptomKind // by now it has a cause
			d.There = append(d.There, o)
			return
		}
		if slices.Contains(c.Effects, s.Subject) { // what it hurt still hurts
			o.Evidence = s.Evidence
			d.Unsettled = append(d.Unsettled, o)
			return
		}
	}
	for _, judged := range b.Considered {
		if judged.Rule == c.Rule && judged.Subject == c.Subject && judged.Truth == No && len(judged.Asked) > 0 {
			o.Evidence = judged.Asked[len(judged.Asked)-1].Evidence
			o.Verify = nil
			d.Fixed = append(d.Fixed, o)
			return
		}
	}
	if exercised == nil {
		d.Vanished = append(d.Vanished, o)
		return
	}
	yes, why, err := exercised(c)
	if why.Says != "" {
		o.Evidence = []Fact{why}
	}
	switch {
	case err != nil:
		o.Evidence = []Fact{{Says: err.Error()}}
		d.Unsettled = append(d.Unsettled, o)
	case yes:
		o.Verify = nil
		d.Fixed = append(d.Fixed, o)
	default:
		d.Vanished = append(d.Vanished, o)
	}
}

// ExitCode is 1 where something is wrong in the later state, 3 where a remedy
// isn't proven, else 0.
func (d *Difference) ExitCode() int {
	wrong := func(o Outcome) bool { return o.Is != isRiskKind }
	switch {
	case slices.ContainsFunc(d.There, wrong), slices.ContainsFunc(d.New, wrong):
		return 1
	case len(d.Vanished)+len(d.Unsettled) > 0:
		return 3
	}
	return 0
}

const (
	isCauseKind     = "cause"
	isSuspectedKind = "suspected"
	isRiskKind      = "risk"
	isSymptomKind   = "symptom"
)

// A fault is a cause of any standing, or a symptom that has none.
type fault struct {
	Cause
	kind string
}

func faults(d *Diagnosis) []fault {
	var all []fault
	for _, c := range d.Causes {
		all = append(all, fault{c, isCauseKind})
	}
	for _, c := range d.Suspected {
		all = append(all, fault{c, isSuspectedKind})
	}
	for _, c := range d.Risks {
		all = append(all, fault{c, isRiskKind})
	}
	for _, s := range d.Unexplained {
		all = append(all, fault{Cause{
			Rule: s.Rule, Fingerprint: s.Fingerprint, Title: s.Title, Subject: s.Subject,
			Subjects: []Ref{s.Subject}, Effects: []Ref{s.Subject}, Evidence: s.Evidence,
		}, isSymptomKind})
	}
	return all
}

func glance(d *Diagnosis) Glance {
	return Glance{At: d.At, Cluster: d.Cluster.Name, Verdict: d.Verdict}
}

// ExercisedIn looks in the facts whether the workloads that a cause hurt have
// pods, and whether the nodes that it is about exist.
func ExercisedIn(ctx context.Context, facts *probes.Facts) Exercised {
	return func(c Cause) (bool, Fact, error) {
		facts.Gather(ctx, probes.Pods, probes.Workloads, probes.Nodes, probes.NodePools)
		index, err := probes.Workloads.Of(facts)
		if err != nil {
			return false, Fact{}, err
		}
		pods := 0
		for _, r := range c.Effects {
			n := len(index.Pods(r))
			if r.Kind == "Pod" {
				all, err := probes.Pods.Of(facts)
				if err != nil {
					return false, Fact{}, err
				}
				if all.Get(r.Namespace, r.Name) != nil {
					n = 1
				}
			}
			pods += n
		}
		if pods == 0 && len(c.Effects) > 0 {
			return false, Fact{Says: fmt.Sprintf("%s has no pod", short(c.Effects[0])), Document: "pods", Command: "kubectl get pods -A"}, nil
		}
		subjects := slices.Clone(c.Subjects)
		for _, step := range c.Chain {
			subjects = append(subjects, step.Subject)
		}
		for _, r := range subjects {
			n, about, err := nodesOf(facts, r)
			if err != nil {
				return false, Fact{}, err
			}
			if about && n == 0 {
				return false, Fact{Says: short(r) + " has no node", Document: "nodes", Command: "kubectl get nodes"}, nil
			}
		}
		return true, Fact{Says: fmt.Sprintf("what it hurt has %d pods, and none shows a symptom", pods), Document: "pods", Command: "kubectl get pods -A"}, nil
	}
}

// nodesOf counts the nodes that an object makes or is; about is false for
// objects that have none.
func nodesOf(facts *probes.Facts, r Ref) (n int, about bool, err error) {
	var belongs func(labels map[string]string) bool
	switch r.Kind {
	case "Node":
		nodes, err := probes.Nodes.Of(facts)
		if err != nil {
			return 0, true, err
		}
		if nodes.Get("", r.Name) != nil {
			n = 1
		}
		return n, true, nil
	case "NodePool":
		belongs = func(labels map[string]string) bool { return labels["karpenter.sh/nodepool"] == r.Name }
	case "Nodegroup":
		belongs = func(labels map[string]string) bool { return labels["eks.amazonaws.com/nodegroup"] == r.Name }
	case "EC2NodeClass":
		pools, err := probes.NodePools.Of(facts)
		if err != nil {
			return 0, true, err
		}
		belongs = func(labels map[string]string) bool {
			pool := pools.Get("", labels["karpenter.sh/nodepool"])
			return pool != nil && pool.Spec.Template.Spec.NodeClassRef.Name == r.Name
		}
	default:
		return 0, false, nil
	}
	nodes, err := probes.Nodes.Of(facts)
	if err != nil {
		return 0, true, err
	}
	for _, node := range nodes.All() {
		if belongs(node.Labels) {
			n++
		}
	}
	return n, true, nil
}
