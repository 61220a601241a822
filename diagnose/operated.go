package diagnose

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

var operatedFacts = func() []probes.Any {
	needs := append([]probes.Any{probes.Pods}, controllerFacts...)
	for _, k := range probes.OperatedKinds {
		needs = append(needs, k.Objects)
	}
	return needs
}()

// operatedNotReady: an operator says that it can't do what an object asks for,
// and no pod of the object says more.
var operatedNotReady = &Rule{
	ID: "operated-object-not-ready", Needs: operatedFacts,
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		now := facts.Source().Now()
		var found []Suspect
		for _, k := range probes.OperatedKinds {
			list, err := k.Objects.Of(facts)
			if err != nil {
				continue
			}
			for _, o := range list.All() {
				says, bad := setbackOf(k, o)
				if !bad || o.DeletionTimestamp != nil || now.Sub(changedAt(o)) < 2*patience || podsTellMore(facts, o) {
					continue
				}
				ref := Ref{Kind: k.Kind, Namespace: o.Namespace, Name: o.Name}
				found = append(found, objectSymptom(ref, k.Resource, says, &objectTrouble{fault: operatedFault(facts, k, o, ref, says)}))
			}
		}
		return found
	},
}

// setbackOf is what the operator says of an object that it can't bring about.
func setbackOf(k probes.OperatedKind, o *probes.Operated) (string, bool) {
	for _, c := range o.Status.Conditions {
		if slices.Contains(k.Bad, c.Type+"="+string(c.Status)) {
			return conditionWords(&c), true
		}
	}
	if slices.Contains(k.Phases, o.Status.Phase) {
		return strings.TrimSuffix("phase "+o.Status.Phase+": "+o.Status.Message, ": "), true
	}
	return "", false
}

// podsTellMore reports whether a pod of the object, or of the cluster that the
// object belongs to, is not well: that is a symptom of its own, and the
// object's state follows from it. Operators label what they make by names.
func podsTellMore(facts *probes.Facts, o *probes.Operated) bool {
	pods, err := probes.Pods.Of(facts)
	if err != nil {
		return false
	}
	owner := cmp.Or(o.Labels["strimzi.io/cluster"], o.Name)
	return slices.ContainsFunc(pods.All(), func(p *corev1.Pod) bool {
		if p.Namespace != o.Namespace || probes.Finished(p) || probes.Ready(p) {
			return false
		}
		for _, v := range p.Labels {
			if v == o.Name || v == owner {
				return true
			}
		}
		return false
	})
}

// refusesSpec recognises what operators say of an object that asks for what
// can't be, as against what they could not reach or wait for.
var (
	refusesSpec  = regexp.MustCompile(`(?i)\binvalid|must (?:not )?(?:be|have|match|contain)|not (?:supported|allowed|permitted|valid)|unsupported|unknown (?:field|propert)|is required|(?:can ?not|can't) be (?:changed|decreased|used|set|shrunk)|should (?:be|have)|larger than|greater than|less than|exceeds|already exists|no such (?:class|plugin)|failed to find any class|does not exist|not found|immutable`)
	failsToReach = regexp.MustCompile(`(?i)time(?:d )?[- ]?out|connection|connect to|unreachable|unavailable|waiting for`)
)

func operatedFault(facts *probes.Facts, k probes.OperatedKind, o *probes.Operated, ref Ref, says string) *objectFault {
	if f := controllerDown(facts, k.Kind+"s", k.Image); f != nil {
		return f
	}
	if !refusesSpec.MatchString(says) || failsToReach.MatchString(says) {
		return nil
	}
	return &objectFault{
		rule: "operator-refuses-object", subject: ref,
		vars:  map[string]string{"operator": k.Title, "says": clip(says, 420), "resource": k.Resource},
		found: []Evidence{SawObject(k.Resource, o.Namespace, o.Name, "%s says of %s: %s", k.Title, short(ref), clip(says, 420))},
	}
}

var operatorRefuses = ofObject("operator-refuses-object", "does {operator} say that it can't do what {object} asks for?", operatedNotReady)

var operatedRules = []*Rule{operatedNotReady, operatorRefuses}
