package diagnose

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// An objectFault is what is wrong with an object of a custom kind. Each is in
// the words of one rule, so an object has one fault.
type objectFault struct {
	rule    string // the ID of the rule
	subject Ref    // what a person would change
	vars    map[string]string
	found   []Evidence
	err     error // what could not be read, where that leaves it open
}

// An objectTrouble is the Data of the symptoms about objects of custom kinds.
type objectTrouble struct {
	fault *objectFault // nil where nothing says why
	makes Ref          // the object that is not made, or not renewed, because of it; zero if none
}

// objectSymptom is a suspect of a symptom about an object.
func objectSymptom(ref Ref, resource, says string, t *objectTrouble) Suspect {
	return Suspect{
		Subjects: []Ref{ref}, Data: t, Count: 1, Vars: map[string]string{"says": clip(says, 420)},
		Found: []Evidence{SawObject(resource, ref.Namespace, ref.Name, "%s: %s", short(ref), clip(says, 420))},
	}
}

// ofObject makes the rule of one kind of fault. Of the effects those without
// an objectTrouble hang on it if they are about what the object makes.
func ofObject(id, asks string, explains ...*Rule) *Rule {
	return &Rule{
		ID: id, Explains: explains,
		Suspects: func(_ *probes.Facts, effects []*Finding) []Suspect {
			var list []Suspect
			for _, e := range effects {
				t, ok := e.Data.(*objectTrouble)
				if !ok || t.fault == nil || t.fault.rule != id {
					continue
				}
				f := t.fault
				s := Suspect{Subjects: appendRef([]Ref{f.subject}, e.Subject()), Effects: []*Finding{e}, Vars: maps.Clone(f.vars), Data: f, Found: e.Found}
				s.Vars["object"], s.Vars["hint"] = short(e.Subject()), f.vars["hint"]
				if t.makes.Name != "" {
					for _, o := range effects {
						_, same := o.Data.(*objectTrouble)
						call, calls := o.Data.(*unreached)
						if !same && slices.Contains(o.Subjects, t.makes) || calls && call.target.Ref == t.makes {
							s.Effects = appendOnce(s.Effects, o)
						}
					}
				}
				list = append(list, s)
			}
			return list
		},
		Tests: []Test{{Asks: asks, Run: func(_ *probes.Facts, s Suspect) Answer {
			f := s.Data.(*objectFault)
			if f.err != nil {
				return CantTell(f.err, f.found...)
			}
			return Answered(true, f.found...)
		}}},
	}
}

// unmet is the condition of that type if it is not True, or nil.
func unmet(list []metav1.Condition, kind string) *metav1.Condition {
	if c := meta.FindStatusCondition(list, kind); c != nil && c.Status != metav1.ConditionTrue {
		return c
	}
	return nil
}

// namesOf are the names of the objects of a kind in a namespace ("" for
// cluster-scoped ones); nil where they can't be had.
func namesOf[T any](p *probes.Probe[*probes.List[T]], facts *probes.Facts, namespace string) []string {
	names, _ := namesIn(p, facts, namespace)
	return names
}

// isHint says which object was evidently meant by one that is not there.
func isHint(kind, name string, names []string) string {
	if near := nearest(name, names); near != "" {
		return fmt.Sprintf(" There is %s %s.", kind, near)
	}
	if len(names) > 0 {
		return fmt.Sprintf(" Those that are there: %s.", listed(names))
	}
	return ""
}

var controllerFacts = []probes.Any{probes.Deployments, probes.DaemonSets, probes.StatefulSets}

// A program is a workload found by its image, and how many of its pods serve.
type program struct {
	ref         Ref
	want, ready int32
}

func (p program) seen() Evidence {
	return SawObject(probes.ResourceOf("apps/v1", p.ref.Kind), p.ref.Namespace, p.ref.Name, "%s wants %d pods, and %d are ready", short(p.ref), p.want, p.ready)
}

// programsOf are the workloads with a container whose image has one of the
// parts in its name.
func programsOf(facts *probes.Facts, parts ...string) []program {
	var list []program
	has := func(t corev1.PodTemplateSpec) bool {
		return slices.ContainsFunc(t.Spec.Containers, func(c corev1.Container) bool {
			return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(probes.Repository(c.Image), part) })
		})
	}
	if deployments, err := probes.Deployments.Of(facts); err == nil {
		for _, d := range deployments.All() {
			if has(d.Spec.Template) {
				list = append(list, program{Ref{Kind: "Deployment", Namespace: d.Namespace, Name: d.Name}, replicas(d.Spec.Replicas), d.Status.ReadyReplicas})
			}
		}
	}
	if sets, err := probes.DaemonSets.Of(facts); err == nil {
		for _, d := range sets.All() {
			if has(d.Spec.Template) {
				list = append(list, program{daemonRef(d), d.Status.DesiredNumberScheduled, d.Status.NumberReady})
			}
		}
	}
	if sets, err := probes.StatefulSets.Of(facts); err == nil {
		for _, d := range sets.All() {
			if has(d.Spec.Template) {
				list = append(list, program{Ref{Kind: "StatefulSet", Namespace: d.Namespace, Name: d.Name}, replicas(d.Spec.Replicas), d.Status.ReadyReplicas})
			}
		}
	}
	return list
}

func daemonRef(d *appsv1.DaemonSet) Ref {
	return Ref{Kind: "DaemonSet", Namespace: d.Namespace, Name: d.Name}
}

// allDown is the program that does not run at all, if none of its kind does.
func allDown(facts *probes.Facts, parts ...string) *program {
	list := programsOf(facts, parts...)
	if len(list) == 0 || slices.ContainsFunc(list, func(p program) bool { return p.ready > 0 }) {
		return nil
	}
	return &list[0]
}

// controllerDown is the fault of an object whose controller does not run; nil
// where it runs, or where it can't be found.
func controllerDown(facts *probes.Facts, acts string, parts ...string) *objectFault {
	p := allDown(facts, parts...)
	if p == nil {
		return nil
	}
	how := "none of its pods is ready"
	if p.want == 0 {
		how = "it is scaled to zero"
	}
	return &objectFault{rule: "controller-not-running", subject: p.ref, vars: map[string]string{"acts": acts, "how": how}, found: []Evidence{p.seen()}}
}

// controllerNotRunning: nothing acts on objects, as their controller is down.
var controllerNotRunning = func() *Rule {
	r := ofObject("controller-not-running", "does no pod of the controller that acts on {object} run?", gatewayIgnored, gatewayNotProgrammed, routeNotServed, certificateNotReady, scaledObjectNotReady, fluxNotReady, ingressNotServed, operatedNotReady)
	r.Relay = true
	return r
}()
