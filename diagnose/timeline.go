package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// before is how far ahead of the first failure a change may lie to be worth
// telling. Tokens, add-ons and access entries take minutes to hours to hurt.
// Source: knowledge/tree-nodes-and-cloud.md, rules of evidence 5.
const before = 6 * time.Hour

// timeline is what happened to the objects of the chains, from some hours
// before the first failure on: who was scheduled, made, replaced, written.
func (w *walk) timeline(g *graph, told []*Finding) []Moment {
	t := &teller{facts: w.facts, seen: map[string]bool{}, nodes: map[string]bool{}}
	for _, f := range told {
		for _, b := range g.below(f) {
			t.touched = append(t.touched, b.Subjects...)
			if b.Rule.symptom() {
				t.symptom(w.title(b), b)
			}
		}
	}
	if t.onset.IsZero() {
		return []Moment{}
	}
	t.pods()
	t.machines()
	t.rollouts()
	t.revisions()
	t.writes()
	t.releases()
	t.certificates()
	t.addons()
	t.nothing(told[0].Subject())
	slices.SortStableFunc(t.moments, func(a, b Moment) int {
		return cmp.Or(a.At.Compare(b.At), strings.Compare(a.Subject.String(), b.Subject.String()), strings.Compare(a.What, b.What))
	})
	return t.moments
}

// A teller gathers moments about the objects that the chains touch.
type teller struct {
	facts   *probes.Facts
	touched []Ref
	failing []*corev1.Pod
	nodes   map[string]bool // that failing pods run on
	onset   time.Time       // the first failure
	moments []Moment
	seen    map[string]bool
}

func (t *teller) tell(at time.Time, kind string, subject Ref, format string, args ...any) {
	m := Moment{At: at.UTC(), What: fmt.Sprintf(format, args...), Subject: subject, Kind: kind}
	key := m.At.String() + m.What + subject.String()
	if at.IsZero() || at.Before(t.onset.Add(-before)) || at.After(t.facts.Source().Now()) || t.seen[key] {
		return
	}
	t.seen[key] = true
	t.moments = append(t.moments, m)
}

// dateBack dates symptoms by the first failure that anything still remembers,
// not the last event, and what lies between them and a cause no later.
func (w *walk) dateBack() {
	for _, f := range w.findings {
		first := f.Since
		if f.Rule.symptom() {
			first = firstFailure(w.facts, f)
		} else if first != nil {
			for _, e := range f.Effects {
				if e.Since != nil && e.Since.Before(*first) {
					first = e.Since
				}
			}
		}
		f.Since = first
	}
}

// firstFailure is when a symptom began, nil if nothing says it.
func firstFailure(facts *probes.Facts, f *Finding) *time.Time {
	first := f.Since
	events, err := probes.Events.Of(facts)
	if err != nil {
		return first
	}
	for _, p := range troubled(f) {
		for _, e := range events.About(podRef(p)) {
			waiting := e.Reason == "FailedScheduling" && p.Spec.NodeName == ""
			if e.Type != corev1.EventTypeWarning || !waiting && e.Reason != "BackOff" && e.Reason != "Unhealthy" && e.Reason != "Failed" || e.FirstTimestamp.IsZero() {
				continue
			}
			if at := e.FirstTimestamp.UTC(); first == nil || at.Before(*first) {
				first = &at
			}
		}
	}
	return first
}

func (t *teller) symptom(title string, f *Finding) {
	if f.Since == nil {
		return
	}
	first := *f.Since
	if t.onset.IsZero() || first.Before(t.onset) {
		t.onset = first
	}
	pods := troubled(f)
	t.failing = append(t.failing, pods...)
	for _, p := range pods {
		if p.Spec.NodeName != "" {
			t.nodes[p.Spec.NodeName] = true
		}
	}
	t.moments = append(t.moments, Moment{At: first.UTC(), What: "first failure: " + title, Subject: f.Subject(), Kind: "symptom"})
}

func (t *teller) pods() {
	for _, p := range t.failing {
		if c := probes.PodCondition(p, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionTrue {
			t.tell(c.LastTransitionTime.Time, "change", podRef(p), "pod %s/%s was placed on node %s", p.Namespace, p.Name, p.Spec.NodeName)
		}
	}
}

// machines tells of nodes: all that came in the window, and what the events
// say of those that went.
func (t *teller) machines() {
	nodes, err := probes.Nodes.Of(t.facts)
	if err != nil {
		return
	}
	for _, n := range nodes.All() {
		made := "joined"
		if pool := n.Labels["karpenter.sh/nodepool"]; pool != "" {
			made = "joined (made by Karpenter for NodePool " + pool + ")"
		} else if group := n.Labels["eks.amazonaws.com/nodegroup"]; group != "" {
			made = "joined (node group " + group + ")"
		}
		t.tell(n.CreationTimestamp.Time, "change", Ref{Kind: "Node", Name: n.Name}, "node %s %s", n.Name, made)
		if n.DeletionTimestamp != nil {
			t.tell(n.DeletionTimestamp.Time, "change", Ref{Kind: "Node", Name: n.Name}, "node %s is being deleted", n.Name)
		}
	}
	if !t.facts.Has(probes.Events) {
		return
	}
	events, err := probes.Events.Of(t.facts)
	if err != nil {
		return
	}
	for _, e := range events.All() {
		ref := probes.EventRef(e)
		if !slices.Contains(machineEvents, e.Reason) || ref.Kind != "Node" && ref.Kind != "NodeClaim" {
			continue
		}
		ref.Namespace = ""
		t.tell(probes.EventTime(e), "change", ref, "%s: %s", e.Reason, strings.TrimSpace(e.Message))
	}
}

// machineEvents are the reasons of events that say that a node is going or
// was replaced. Sources: kubernetes pkg/controller/nodelifecycle and
// cloud-provider node lifecycle; kubernetes-sigs/karpenter
// pkg/controllers/disruption/events, interruption/events; aws-node-termination-handler.
var machineEvents = []string{
	"RemovingNode", "DeletingNode", "NodeNotReady", "SpotInterrupted", "SpotRebalanceRecommendation", "SpotInterruption",
	"InstanceTerminating", "InstanceStopping", "InstanceUnhealthy", "TerminatingOnInterruption", "DisruptionTerminating",
	"DisruptionLaunching", "RebalanceRecommendation", "ScheduledChange", "Drifted", "Empty", "Expired", "Underutilized",
	"SpotInterruptionWarning", "NodeRepair",
}

// rollouts tells of the revisions of workloads in the chains, with what each
// changed.
func (t *teller) rollouts() {
	if !t.facts.Has(probes.ReplicaSets) {
		return
	}
	sets, err := probes.ReplicaSets.Of(t.facts)
	if err != nil {
		return
	}
	byOwner := map[Ref][]*appsv1.ReplicaSet{}
	for _, rs := range sets.All() {
		if owner := probes.Controller(rs); owner != nil {
			ref := Ref{Kind: owner.Kind, Namespace: rs.Namespace, Name: owner.Name}
			byOwner[ref] = append(byOwner[ref], rs)
		}
	}
	for _, ref := range sortedRefs(byOwner) {
		if !slices.Contains(t.touched, ref) {
			continue
		}
		list := byOwner[ref]
		slices.SortStableFunc(list, func(a, b *appsv1.ReplicaSet) int {
			return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
		})
		for i, rs := range list {
			says := "rolled out revision " + cmp.Or(rs.Annotations["deployment.kubernetes.io/revision"], rs.Name)
			if i > 0 {
				if changed := templateChanges(&list[i-1].Spec.Template.Spec, &rs.Spec.Template.Spec); len(changed) > 0 {
					says += ": " + strings.Join(changed, "; ")
				}
			}
			t.tell(rs.CreationTimestamp.Time, "change", ref, "%s %s", ref.Name, says)
		}
	}
}

// writes tells when the objects of the chains were made, and who wrote which
// of their fields.
func (t *teller) writes() {
	for _, k := range slices.Concat(findable, written) {
		if !t.facts.Has(k.probe) {
			continue
		}
		objects, err := k.list(t.facts)
		if err != nil {
			continue
		}
		for _, o := range objects {
			ref := Ref{Kind: k.kind, Namespace: o.GetNamespace(), Name: o.GetName()}
			if k.kind == "Pod" || k.kind == "Node" || k.kind == "ReplicaSet" || !slices.Contains(t.touched, ref) {
				continue
			}
			t.tell(o.GetCreationTimestamp().Time, "change", ref, "%s was made", ref)
			for _, e := range o.GetManagedFields() {
				if e.Time != nil && e.Subresource == "" && e.Time.Sub(o.GetCreationTimestamp().Time) > time.Minute {
					t.tell(e.Time.Time, "change", ref, "%s wrote %s%s", e.Manager, ref, fieldsOf(e))
				}
			}
		}
	}
}

// fieldsOf are the fields that a managedFields entry lists, at most three.
func fieldsOf(e metav1.ManagedFieldsEntry) string {
	if e.FieldsV1 == nil {
		return ""
	}
	paths := leafFields(e.FieldsV1.GetRawBytes())
	switch {
	case len(paths) == 0:
		return ""
	case len(paths) > 3:
		return fmt.Sprintf(" (%s and %d more fields)", strings.Join(paths[:3], ", "), len(paths)-3)
	}
	return " (" + strings.Join(paths, ", ") + ")"
}

// releases tells of Helm revisions whose release has a workload in the chains.
func (t *teller) releases() {
	if !t.facts.Has(probes.Secrets) {
		return
	}
	secrets, err := probes.Secrets.Of(t.facts)
	if err != nil {
		return
	}
	for _, s := range secrets.All() {
		r := s.Release
		if r == nil || !slices.ContainsFunc(t.touched, func(ref Ref) bool {
			return ref.Namespace == r.Namespace && strings.Contains(ref.Name, r.Name)
		}) {
			continue
		}
		t.tell(r.LastDeployed, "change", Ref{Kind: "Release", Namespace: r.Namespace, Name: r.Name}, "Helm release %s revision %d of chart %s %s: %s", r.Name, r.Revision, r.Chart, r.ChartVersion, r.Status)
	}
}
