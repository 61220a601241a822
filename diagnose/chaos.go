package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/pposiraegi/ppodoctor/probes"
)

var chaosFacts = func() []probes.Any {
	needs := []probes.Any{probes.Pods}
	for _, k := range probes.ChaosKinds {
		needs = append(needs, k.Objects)
	}
	return needs
}()

// An experiment is one that runs now, with the pods that it is injected into.
type experiment struct {
	ref            Ref
	resource, does string
	pods           []*corev1.Pod
	seen           Evidence
}

// hits reports whether the experiment is injected into pods that an effect is
// about, or into either end of a call that fails.
func (x experiment) hits(e *Finding) bool {
	concerned := troubled(e)
	if call, ok := e.Data.(*unreached); ok {
		concerned = slices.Concat(call.pods, call.target.Pods)
	}
	return slices.ContainsFunc(e.Effects, x.hits) || slices.ContainsFunc(x.pods, func(p *corev1.Pod) bool {
		return slices.Contains(concerned, p) || slices.Contains(e.Subjects, podRef(p))
	})
}

// running are the experiments whose fault is injected now.
func running(facts *probes.Facts) []experiment {
	pods, err := probes.Pods.Of(facts)
	if err != nil {
		return nil
	}
	var list []experiment
	for _, k := range probes.ChaosKinds {
		objects, err := k.Objects.Of(facts)
		if err != nil {
			continue
		}
		for _, o := range objects.All() {
			x := experiment{ref: Ref{Kind: k.Kind, Namespace: o.Namespace, Name: o.Name}, resource: k.Resource, does: cmp.Or(o.Spec.Action, strings.ToLower(strings.TrimSuffix(k.Kind, "Chaos")))}
			var hit func(*corev1.Pod) bool
			says := ""
			if k.Kind == "ChaosEngine" {
				if o.Spec.EngineState != "active" || o.Status.EngineStatus == "completed" || o.Status.EngineStatus == "stopped" {
					continue
				}
				sel, err := labels.Parse(o.Spec.AppInfo.Label)
				if err != nil || sel.Empty() {
					continue
				}
				var names []string
				for _, e := range o.Spec.Experiments {
					names = append(names, e.Name)
				}
				x.does = listed(names)
				hit = func(p *corev1.Pod) bool {
					return p.Namespace == o.Spec.AppInfo.Namespace && sel.Matches(labels.Set(p.Labels))
				}
				says = fmt.Sprintf("engineState %s, engineStatus %s, for pods %s of namespace %s", o.Spec.EngineState, orDefault(o.Status.EngineStatus, "not set"), sel, o.Spec.AppInfo.Namespace)
			} else {
				var injected []string
				for _, r := range o.Status.Experiment.Records {
					if r.Phase == "Injected" {
						injected = append(injected, r.ID)
					}
				}
				if o.Status.Experiment.DesiredPhase == "Stop" || len(injected) == 0 {
					continue
				}
				hit = func(p *corev1.Pod) bool {
					id := p.Namespace + "/" + p.Name
					return slices.ContainsFunc(injected, func(r string) bool { return r == id || strings.HasPrefix(r, id+"/") }) || x.does == "pod-kill" && selectedByChaos(o, p)
				}
				says = fmt.Sprintf("phase Injected for %s", listed(injected))
			}
			for _, p := range pods.All() {
				if hit(p) {
					x.pods = append(x.pods, p)
				}
			}
			x.seen = SawObject(k.Resource, o.Namespace, o.Name, "%s (%s): %s", short(x.ref), x.does, clip(says, 300))
			list = append(list, x)
		}
	}
	return list
}

// selectedByChaos reports whether an experiment's selector takes a pod: one
// that is killed comes back under another name.
func selectedByChaos(o *probes.ChaosExperiment, p *corev1.Pod) bool {
	s := o.Spec.Selector
	namespaces := s.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{o.Namespace}
	}
	return len(s.LabelSelectors) > 0 && slices.Contains(namespaces, p.Namespace) && labels.SelectorFromSet(s.LabelSelectors).Matches(labels.Set(p.Labels))
}

// chaosInjected: a fault is injected on purpose into the pods that fail, or
// into those that they call.
var chaosInjected = &Rule{
	ID: "chaos-experiment-injected", Latent: true, Needs: chaosFacts,
	Explains: append([]*Rule{clientsFailing, clientsRefused, targetUnreachable, nameLookupsFail, podRestarting, memoryLimitTooLow}, ailing...),
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		var list []Suspect
		for _, x := range running(facts) {
			s := Suspect{Subjects: []Ref{x.ref}, Found: []Evidence{x.seen}, Vars: map[string]string{"does": x.does, "resource": x.resource, "pods": fmt.Sprint(len(x.pods))}}
			for _, e := range effects {
				if x.hits(e) {
					s.Effects = append(s.Effects, e)
				}
			}
			for _, p := range x.pods[:min(len(x.pods), maxExamples)] {
				s.Subjects = append(s.Subjects, podRef(p))
			}
			list = append(list, s)
		}
		return list
	},
	Tests: []Test{{Asks: "Is {subject} injected now?", Run: func(_ *probes.Facts, s Suspect) Answer { return Answered(true, s.Found...) }}},
}

var chaosRules = []*Rule{chaosInjected}
