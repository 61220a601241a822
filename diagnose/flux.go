package diagnose

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

var fluxFacts = append([]probes.Any{
	probes.Kustomizations, probes.FluxReleases, probes.GitRepositories, probes.HelmRepositories, probes.OCIRepositories, probes.HelmCharts, probes.Buckets, probes.Secrets,
}, controllerFacts...)

// fluxSources are the kinds of Flux's sources.
var fluxSources = []struct {
	kind  string
	probe *probes.Probe[*probes.List[probes.FluxSource]]
}{
	{"GitRepository", probes.GitRepositories},
	{"HelmRepository", probes.HelmRepositories},
	{"OCIRepository", probes.OCIRepositories},
	{"HelmChart", probes.HelmCharts},
	{"Bucket", probes.Buckets},
}

func fluxResource(kind string) string {
	switch kind {
	case "Kustomization":
		return "kustomizations.kustomize.toolkit.fluxcd.io"
	case "HelmRelease":
		return "helmreleases.helm.toolkit.fluxcd.io"
	}
	return probes.ResourceOf("source.toolkit.fluxcd.io/v1", kind)
}

// A fluxObject is what Flux's kinds have in common.
type fluxObject struct {
	ref        Ref
	suspended  bool
	conditions []v1.Condition
	needs      []Ref // what it is to come after
	source     Ref   // where it comes from; zero for a source that reads a place outside
	secret     string
	words      string // what a source reads
}

func (o *fluxObject) says() string {
	c := unmet(o.conditions, "Ready")
	if c == nil || o.suspended || c.Status == v1.ConditionUnknown {
		return ""
	}
	return fmt.Sprintf("Ready=%s, %s: %s", c.Status, c.Reason, c.Message)
}

func in(namespace string, r probes.FluxReference, kind string) Ref {
	return Ref{Kind: cmp.Or(r.Kind, kind), Namespace: cmp.Or(r.Namespace, namespace), Name: r.Name}
}

// fluxObjects are all of Flux's objects, and the kinds that were read.
func fluxObjects(facts *probes.Facts) (all map[Ref]*fluxObject, read []string) {
	all = map[Ref]*fluxObject{}
	if list, err := probes.Kustomizations.Of(facts); err == nil {
		read = append(read, "Kustomization")
		for _, k := range list.All() {
			o := &fluxObject{ref: Ref{Kind: "Kustomization", Namespace: k.Namespace, Name: k.Name}, suspended: k.Spec.Suspend, conditions: k.Status.Conditions, source: in(k.Namespace, k.Spec.SourceRef, "GitRepository")}
			for _, d := range k.Spec.DependsOn {
				o.needs = append(o.needs, in(k.Namespace, d, "Kustomization"))
			}
			all[o.ref] = o
		}
	}
	if list, err := probes.FluxReleases.Of(facts); err == nil {
		read = append(read, "HelmRelease")
		for _, r := range list.All() {
			o := &fluxObject{ref: Ref{Kind: "HelmRelease", Namespace: r.Namespace, Name: r.Name}, suspended: r.Spec.Suspend, conditions: r.Status.Conditions}
			if c := r.Spec.Chart; c != nil {
				repository := in(r.Namespace, c.Spec.SourceRef, "HelmRepository")
				o.source = Ref{Kind: "HelmChart", Namespace: repository.Namespace, Name: r.Namespace + "-" + r.Name}
			}
			if c := r.Spec.ChartRef; c != nil {
				o.source = in(r.Namespace, *c, "OCIRepository")
			}
			for _, d := range r.Spec.DependsOn {
				o.needs = append(o.needs, in(r.Namespace, d, "HelmRelease"))
			}
			all[o.ref] = o
		}
	}
	for _, k := range fluxSources {
		list, err := k.probe.Of(facts)
		if err != nil {
			continue
		}
		read = append(read, k.kind)
		for _, s := range list.All() {
			o := &fluxObject{ref: Ref{Kind: k.kind, Namespace: s.Namespace, Name: s.Name}, suspended: s.Spec.Suspend, conditions: s.Status.Conditions, words: s.Spec.URL}
			if k.kind == "HelmChart" {
				o.source, o.words = in(s.Namespace, s.Spec.SourceRef, "HelmRepository"), strings.TrimSpace("chart "+s.Spec.Chart+" "+s.Spec.Version)
			}
			if r := s.Spec.Ref; r != nil {
				o.words = strings.TrimSpace(o.words + " " + cmp.Or(r.Commit, r.Tag, r.SemVer, r.Branch))
			}
			if s.Spec.SecretRef != nil {
				o.secret = s.Spec.SecretRef.Name
			}
			all[o.ref] = o
		}
	}
	return all, read
}

// fluxWaits are the reasons of objects that wait for another one.
var fluxWaits = []string{"ArtifactFailed", "SourceNotReady", "DependencyNotReady"}

// fluxNotReady: Flux can't read a source, or does not apply something because
// of what it comes from or is to come after.
var fluxNotReady = &Rule{
	ID: "flux-not-ready", Needs: fluxFacts,
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		all, read := fluxObjects(facts)
		var found []Suspect
		for _, ref := range sortedRefs(all) {
			o := all[ref]
			says := o.says()
			if says == "" || facts.Source().Now().Sub(meta.FindStatusCondition(o.conditions, "Ready").LastTransitionTime.Time) < 2*patience {
				continue
			}
			applied := ref.Kind == "Kustomization" || ref.Kind == "HelmRelease"
			if applied && !slices.Contains(fluxWaits, meta.FindStatusCondition(o.conditions, "Ready").Reason) {
				continue // what was refused is for other rules
			}
			found = append(found, objectSymptom(ref, fluxResource(ref.Kind), says, &objectTrouble{fault: fluxFault(facts, all, read, o, nil)}))
		}
		return found
	},
}

var fluxNoArtifact = regexp.MustCompile(`(?i)not ready|no artifact|artifact not found`)

// fluxFault walks from an object to the one that is to be changed.
func fluxFault(facts *probes.Facts, all map[Ref]*fluxObject, read []string, o *fluxObject, seen []Ref) *objectFault {
	says := o.says()
	saw := SawObject(fluxResource(o.ref.Kind), o.ref.Namespace, o.ref.Name, "%s: %s", short(o.ref), clip(says, 420))
	if slices.Contains(seen, o.ref) {
		return &objectFault{rule: "flux-refers-to-nothing", subject: o.ref, vars: map[string]string{"field": "spec.dependsOn", "missing": "itself, in a circle", "says": says}, found: []Evidence{saw}}
	}
	refers := append(slices.Clone(o.needs), o.source)
	for i, r := range refers {
		if r.Name == "" || !slices.Contains(read, r.Kind) {
			continue
		}
		field := "spec.dependsOn"
		if i == len(o.needs) {
			field = "spec.sourceRef"
		}
		to := all[r]
		if to == nil {
			if field == "spec.sourceRef" && o.ref.Kind == "HelmRelease" {
				continue // its chart is made by Flux
			}
			var names []string
			for _, other := range sortedRefs(all) {
				if other.Kind == r.Kind && other.Namespace == r.Namespace {
					names = append(names, other.Name)
				}
			}
			return &objectFault{rule: "flux-refers-to-nothing", subject: o.ref, vars: map[string]string{"field": field, "missing": short(r), "says": says, "hint": isHint(r.Kind, r.Name, names)}, found: []Evidence{saw, Saw(fluxResource(r.Kind), nil, "there is no %s", short(r))}}
		}
		if to.says() != "" {
			f := fluxFault(facts, all, read, to, append(seen, o.ref))
			f.found = append([]Evidence{saw}, f.found...)
			return f
		}
		if to.suspended && fluxNoArtifact.MatchString(says) {
			return &objectFault{rule: "flux-suspended", subject: r, vars: map[string]string{"says": says, "object": short(o.ref)}, found: []Evidence{saw, SawObject(fluxResource(r.Kind), r.Namespace, r.Name, "%s is suspended (spec.suspend: true)", short(r))}}
		}
	}
	if o.source.Name == "" || o.ref.Kind == "HelmChart" {
		f := &objectFault{rule: "flux-source-refused", subject: o.ref, vars: map[string]string{"says": clip(says, 420), "reads": cmp.Or(o.words, "its place"), "advice": fluxAdvice(says)}, found: []Evidence{saw}}
		if secret, ok := missingSecret(says, o.ref.Namespace); ok {
			secretOf(facts, f, secret)
		} else if o.secret != "" && fluxDenied.MatchString(says) {
			f.vars["advice"] += fmt.Sprintf(" It signs in with Secret %s.", o.secret)
		}
		return f
	}
	return &objectFault{rule: "flux-apply-refused", subject: o.ref, vars: map[string]string{"says": clip(says, 420)}, found: []Evidence{saw}}
}

var (
	fluxDenied  = regexp.MustCompile(`(?i)unable to authenticate|authentication|authorization|unauthorized|401|403|handshake failed|permission denied|denied`)
	fluxUnknown = regexp.MustCompile(`(?i)couldn't find remote ref|reference not found|no '.*' chart with version matching|not found|404|unknown revision|unable to find`)
)

func fluxAdvice(says string) string {
	switch {
	case fluxDenied.MatchString(says):
		return " The server does not take its credentials."
	case fluxUnknown.MatchString(says):
		return " The branch, tag, chart or version that it names is not there."
	}
	return ""
}

// fluxKustomizationFailed: Flux could not build or apply a Kustomization.
var fluxKustomizationFailed = &Rule{
	ID: "flux-kustomization-failed", Needs: []probes.Any{probes.Kustomizations},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		list, err := probes.Kustomizations.Of(facts)
		if err != nil {
			return nil
		}
		var found []Suspect
		for _, k := range list.All() {
			c := meta.FindStatusCondition(k.Status.Conditions, "Ready")
			if k.Spec.Suspend || c == nil || c.Status != v1.ConditionFalse || slices.Contains(fluxWaits, c.Reason) || c.Reason == "HealthCheckFailed" || helmWaited.MatchString(c.Message) {
				continue
			}
			ref := Ref{Kind: "Kustomization", Namespace: k.Namespace, Name: k.Name}
			s := objectSymptom(ref, fluxResource("Kustomization"), fmt.Sprintf("Ready=False, %s: %s", c.Reason, c.Message), nil)
			s.Data, s.Since = []setback{{text: c.Message, from: s.Found[0]}}, &c.LastTransitionTime.Time
			s.Vars["path"] = k.Spec.Path
			found = append(found, s)
		}
		return found
	},
}

var (
	fluxSourceRefused   = ofObject("flux-source-refused", "does Flux fail to read {reads}?", fluxNotReady)
	fluxRefersToNothing = ofObject("flux-refers-to-nothing", "does {field} name something that is not there?", fluxNotReady)
	fluxSuspended       = ofObject("flux-suspended", "is what it comes from suspended?", fluxNotReady)
	fluxApplyRefused    = ofObject("flux-apply-refused", "does Flux fail to apply it?", fluxNotReady)
)

// manifestsRefused: what an installer was given can't be built or applied, and
// no other rule knows why.
var manifestsRefused = func() *Rule {
	r := refusedBy("manifests-refused", "does the installer say why it can't build or apply them?", regexp.MustCompile(`(?s)^(?P<reason>.+)$`), nil, nil, func(_ *probes.Facts, s Suspect) Answer {
		if notItsFault.MatchString(s.Vars["reason"]) {
			return Answered(false, s.Found...)
		}
		return Answered(true, s.Found...)
	})
	r.LastResort = true
	return r
}()

// notItsFault recognises errors that are not the manifests'.
var notItsFault = regexp.MustCompile(`(?i)unavailable|connection refused|i/o timeout|deadline exceeded|no such host|failed calling webhook|timed out|too many requests|EOF|server is currently unable|operation completed|in progress|dependencies? not ready`)

var fluxRules = []*Rule{fluxNotReady, fluxKustomizationFailed, fluxSourceRefused, fluxRefersToNothing, fluxSuspended, fluxApplyRefused, manifestsRefused}
