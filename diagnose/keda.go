package diagnose

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

var kedaFacts = append([]probes.Any{probes.ScaledObjects, probes.TriggerAuths, probes.ClusterTriggerAuth, probes.Autoscalers, probes.Secrets, probes.Events}, controllerFacts...)

const scaledObjectsResource = "scaledobjects.keda.sh"

// scaledObjectNotReady: KEDA can't scale what a ScaledObject names.
var scaledObjectNotReady = &Rule{
	ID: "scaled-object-not-ready", Needs: kedaFacts,
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		list, err := probes.ScaledObjects.Of(facts)
		if err != nil {
			return nil
		}
		var found []Suspect
		for _, o := range list.All() {
			c := meta.FindStatusCondition(o.Status.Conditions, "Ready")
			waited := facts.Source().Now().Sub(changedAt(o)) > 2*patience
			if o.DeletionTimestamp != nil || !waited || c != nil && c.Status != metav1.ConditionFalse {
				continue
			}
			says := conditionWords(c)
			found = append(found, objectSymptom(Ref{Kind: "ScaledObject", Namespace: o.Namespace, Name: o.Name}, scaledObjectsResource, says, &objectTrouble{fault: scaledObjectFault(facts, o, says)}))
		}
		return found
	},
}

var alreadyManaged = regexp.MustCompile(`already managed by the hpa '?(?P<hpa>[a-z0-9.-]+)'?`)

func scaledObjectFault(facts *probes.Facts, o *probes.ScaledObject, says string) *objectFault {
	if f := controllerDown(facts, "ScaledObjects", "kedacore/keda"); f != nil {
		return f
	}
	ref := Ref{Kind: "ScaledObject", Namespace: o.Namespace, Name: o.Name}
	target := Ref{Kind: cmp.Or(o.Spec.ScaleTargetRef.Kind, "Deployment"), Namespace: o.Namespace, Name: o.Spec.ScaleTargetRef.Name}
	saw := SawObject(scaledObjectsResource, o.Namespace, o.Name, "ScaledObject %s scales %s: %s", o.Name, short(target), clip(says, 420))
	f := &objectFault{rule: "scaled-object-refused", subject: ref, vars: map[string]string{"says": clip(says, 420), "target": short(target), "types": ""}, found: []Evidence{saw}}
	var names []string
	read := false
	switch target.Kind {
	case "Deployment":
		names, read = namesOf(probes.Deployments, facts, o.Namespace), facts.Err(probes.Deployments) == nil
	case "StatefulSet":
		names, read = namesOf(probes.StatefulSets, facts, o.Namespace), facts.Err(probes.StatefulSets) == nil
	}
	if read && !slices.Contains(names, target.Name) {
		f.rule, f.vars["hint"] = "scaled-object-target-missing", isHint(target.Kind, target.Name, names)
		f.found = append(f.found, Saw(probes.ResourceOf("apps/v1", target.Kind), nil, "there is no %s", short(target)))
		return f
	}
	if got := groups(alreadyManaged, says); got != nil {
		f.rule, f.subject, f.vars["hpa"] = "scaled-object-second-autoscaler", Ref{Kind: "HorizontalPodAutoscaler", Namespace: o.Namespace, Name: got["hpa"]}, got["hpa"]
		return f
	}
	reported := says + " " + kedaEvents(facts, ref)
	var types []string
	for _, t := range o.Spec.Triggers {
		types = append(types, t.Type)
		if t.AuthenticationRef == nil {
			continue
		}
		kind, namespace, probe := "TriggerAuthentication", o.Namespace, probes.TriggerAuths
		if t.AuthenticationRef.Kind == "ClusterTriggerAuthentication" {
			kind, namespace, probe = t.AuthenticationRef.Kind, "", probes.ClusterTriggerAuth
		}
		list, err := probe.Of(facts)
		if err != nil {
			continue
		}
		name := t.AuthenticationRef.Name
		auth := list.Get(namespace, name)
		if auth == nil {
			f.rule, f.vars["auth"], f.vars["hint"] = "scaled-object-auth-missing", kind+" "+name, isHint(kind, name, namesOf(probe, facts, namespace))
			f.found = append(f.found, Saw(probes.ResourceOf("keda.sh/v1alpha1", kind), nil, "there is no %s %s", kind, name))
			return f
		}
		secrets, err := probes.Secrets.Of(facts)
		if err != nil {
			continue
		}
		for _, s := range auth.Spec.SecretTargetRef {
			secret := secrets.Get(o.Namespace, s.Name)
			seen := SawObject(probes.ResourceOf("keda.sh/v1alpha1", kind), namespace, name, "%s %s takes %s from key %s of Secret %s", kind, name, s.Parameter, s.Key, s.Name)
			if secret == nil {
				f.subject = ref
				f.found = append(f.found, seen)
				secretOf(facts, f, Ref{Kind: "Secret", Namespace: o.Namespace, Name: s.Name})
				return f
			}
			if _, ok := secret.Keys[s.Key]; !ok {
				f.subject, f.vars["says"] = Ref{Kind: kind, Namespace: namespace, Name: name}, fmt.Sprintf("%s; Secret %s has no key %s", f.vars["says"], s.Name, s.Key)
				f.found = append(f.found, seen, SawObject("secrets", o.Namespace, s.Name, "Secret %s has no key %s", s.Name, s.Key))
				return f
			}
		}
	}
	if notItsFault.MatchString(reported) {
		return nil // what it asks does not answer
	}
	f.vars["types"] = fmt.Sprintf(" Its triggers are of type %s.", strings.Join(types, ", "))
	return f
}

// kedaEvents is what KEDA's events say of a ScaledObject.
func kedaEvents(facts *probes.Facts, ref Ref) string {
	list, err := probes.Events.Of(facts)
	if err != nil {
		return ""
	}
	for _, e := range list.About(ref) {
		if e.Type == "Warning" {
			return e.Message
		}
	}
	return ""
}

var (
	scaledObjectTargetMissing    = ofObject("scaled-object-target-missing", "is {target}, which it scales, not there?", scaledObjectNotReady)
	scaledObjectSecondAutoscaler = ofObject("scaled-object-second-autoscaler", "does another autoscaler scale {target}?", scaledObjectNotReady)
	scaledObjectAuthMissing      = ofObject("scaled-object-auth-missing", "is {auth}, which a trigger names, not there?", scaledObjectNotReady)
	scaledObjectRefused          = ofObject("scaled-object-refused", "does KEDA refuse a trigger?", scaledObjectNotReady)
)

var kedaRules = []*Rule{scaledObjectNotReady, scaledObjectTargetMissing, scaledObjectSecondAutoscaler, scaledObjectAuthMissing, scaledObjectRefused}
