package diagnose

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// A reference is a place where a pod's spec names a ConfigMap or a Secret, or
// a key in one, without which a container can't start.
type reference struct {
	kind, name, key string
	where           string // "env DB_PASSWORD of container api"
	container       string // empty for a volume
}

// references are what a pod can't start without.
func references(p *corev1.Pod) []reference {
	var list []reference
	must := func(optional *bool) bool { return optional == nil || !*optional }
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		for _, e := range c.EnvFrom {
			if r := e.ConfigMapRef; r != nil && must(r.Optional) {
				list = append(list, reference{"ConfigMap", r.Name, "", "envFrom of container " + c.Name, c.Name})
			}
			if r := e.SecretRef; r != nil && must(r.Optional) {
				list = append(list, reference{"Secret", r.Name, "", "envFrom of container " + c.Name, c.Name})
			}
		}
		for _, e := range c.Env {
			if e.ValueFrom == nil {
				continue
			}
			where := fmt.Sprintf("env %s of container %s", e.Name, c.Name)
			if r := e.ValueFrom.ConfigMapKeyRef; r != nil && must(r.Optional) {
				list = append(list, reference{"ConfigMap", r.Name, r.Key, where, c.Name})
			}
			if r := e.ValueFrom.SecretKeyRef; r != nil && must(r.Optional) {
				list = append(list, reference{"Secret", r.Name, r.Key, where, c.Name})
			}
		}
	}
	for _, v := range p.Spec.Volumes {
		items := func(kind, name string, optional *bool, keys []corev1.KeyToPath) {
			if !must(optional) {
				return
			}
			list = append(list, reference{kind, name, "", "volume " + v.Name, ""})
			for _, k := range keys {
				list = append(list, reference{kind, name, k.Key, "volume " + v.Name, ""})
			}
		}
		if s := v.ConfigMap; s != nil {
			items("ConfigMap", s.Name, s.Optional, s.Items)
		}
		if s := v.Secret; s != nil {
			items("Secret", s.SecretName, s.Optional, s.Items)
		}
		if v.Projected == nil {
			continue
		}
		for _, s := range v.Projected.Sources {
			if s.ConfigMap != nil {
				items("ConfigMap", s.ConfigMap.Name, s.ConfigMap.Optional, s.ConfigMap.Items)
			}
			if s.Secret != nil {
				items("Secret", s.Secret.Name, s.Secret.Optional, s.Secret.Items)
			}
		}
	}
	return list
}

// keysOf are the keys of all objects of a kind that can hold configuration.
func keysOf(kind string, facts *probes.Facts) (map[Ref][]string, error) {
	known := map[Ref][]string{}
	if kind == "ConfigMap" {
		list, err := probes.ConfigMaps.Of(facts)
		if err != nil {
			return nil, err
		}
		for _, o := range list.All() {
			keys := []string{}
			for k := range o.Data {
				keys = append(keys, k)
			}
			for k := range o.BinaryData {
				keys = append(keys, k)
			}
			slices.Sort(keys)
			known[Ref{Kind: kind, Namespace: o.Namespace, Name: o.Name}] = keys
		}
		return known, nil
	}
	list, err := probes.Secrets.Of(facts)
	if err != nil {
		return nil, err
	}
	for _, o := range list.All() {
		if o.Type == probes.HelmReleaseType || o.Type == string(corev1.SecretTypeServiceAccountToken) {
			continue
		}
		keys := []string{}
		for k := range o.Keys {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		known[Ref{Kind: kind, Namespace: o.Namespace, Name: o.Name}] = keys
	}
	return known, nil
}

func resourceOfKind(kind string) string { return strings.ToLower(kind) + "s" }

// waitsForConfig takes the containers of a pod that may wait for a ConfigMap
// or a Secret: those that were never created.
func waitsForConfig(c container) bool {
	w := c.status.State.Waiting
	if w == nil || c.status.LastTerminationState.Terminated != nil {
		return false
	}
	return slices.Contains([]string{"CreateContainerConfigError", "ContainerCreating", "PodInitializing", ""}, w.Reason)
}

// A needed is a reference of troubled containers: the Data of the rules about
// missing configuration.
type needed struct {
	reference
	containers []container
}

// perReference proposes what the troubled containers refer to; keyed says
// whether references to keys or to whole objects are meant.
func perReference(kind string, keyed bool, subject func(owner, object Ref) []Ref) func(*probes.Facts, []*Finding) []Suspect {
	return func(_ *probes.Facts, effects []*Finding) []Suspect {
		var list []Suspect
		type place struct {
			owner     Ref
			name, key string
		}
		done := map[place]bool{}
		for _, s := range suspectsOf(effects, waitsForConfig) {
			for _, c := range containers(s) {
				for _, r := range references(c.pod) {
					if r.kind != kind || keyed && r.key == "" || r.container != "" && r.container != c.spec.Name {
						continue
					}
					if !keyed {
						r.key = ""
					}
					at := place{s.Subjects[0], r.name, r.key}
					if done[at] {
						continue
					}
					done[at] = true
					object := Ref{Kind: kind, Namespace: c.pod.Namespace, Name: r.name}
					one := s
					one.Subjects = subject(s.Subjects[0], object)
					one.Data = needed{r, containers(s)}
					one.Vars = map[string]string{"object": kind + " " + r.name, "objectName": r.name, "key": r.key, "where": r.where, "workload": short(s.Subjects[0]), "elsewhere": ""}
					for k, v := range s.Vars {
						if one.Vars[k] == "" {
							one.Vars[k] = v
						}
					}
					list = append(list, one)
				}
			}
		}
		return list
	}
}

func theObject(owner, object Ref) []Ref { return []Ref{object, owner} }

// missing recognises what the kubelet says of objects that it can't find.
// Source: kubernetes pkg/kubelet/kubelet_pods.go, pkg/volume/{configmap,secret,projected}.
func missing(kind, name string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b` + kind + `s? "` + regexp.QuoteMeta(name) + `" not found|references non-existent ` + kind + `: ` + regexp.QuoteMeta(name) + `\b`)
}

// objectMissing asks whether a needed object does not exist.
func objectMissing(kind string, list probes.Any) Test {
	return Test{
		Asks: "does {object}, which {where} needs, not exist?", Needs: []probes.Any{list, probes.Events},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			n := s.Data.(needed)
			p := n.containers[0].pod
			object := Ref{Kind: kind, Namespace: p.Namespace, Name: n.name}
			known, err := keysOf(kind, facts)
			if err == nil {
				if _, ok := known[object]; ok {
					return Answered(false, SawObject(resourceOfKind(kind), p.Namespace, n.name, "%s %s exists", kind, n.name))
				}
			}
			r, got, unread := said(facts, n.containers, nil, missing(kind, n.name))
			if kind == "ConfigMap" && n.name == "kube-root-ca.crt" && got == nil {
				return Answered(false) // a controller puts it into each namespace: a list that lacks it was cut
			}
			says := []Evidence{SawObject("pods", p.Namespace, p.Name, "pod %s: %s needs %s %s", p.Name, n.where, kind, n.name)}
			switch {
			case got != nil:
				says = append(says, r.from)
			case err != nil && unread != nil:
				return CantTell(unread)
			case err != nil:
				return Answered(false) // nobody says that it is missing
			}
			if err == nil {
				says = append(says, SawObject(resourceOfKind(kind), p.Namespace, n.name, "namespace %s has no %s %s", p.Namespace, kind, n.name))
			}
			a := Answered(true, says...)
			for _, r := range sortedRefs(known) {
				if r.Name == n.name {
					a = a.With("elsewhere", fmt.Sprintf(" Namespace %s has one of that name, but a pod can only use those of its own namespace.", r.Namespace))
				}
			}
			return a
		},
	}
}

// configMapMissing and secretMissing: a container can't start without an
// object that does not exist.
var (
	configMapMissing = &Rule{
		ID:       "configmap-missing",
		Explains: []*Rule{podNotStarting},
		Needs:    []probes.Any{probes.Pods},
		Suspects: perReference("ConfigMap", false, theObject),
		Tests:    []Test{objectMissing("ConfigMap", probes.ConfigMaps)},
	}
	secretMissing = &Rule{
		ID:       "secret-missing",
		Explains: []*Rule{podNotStarting},
		Needs:    []probes.Any{probes.Pods},
		Suspects: perReference("Secret", false, theObject),
		Tests:    []Test{objectMissing("Secret", probes.Secrets)},
	}
)

// configReferenceMisspelt: the missing object exists under a similar name, so
// it is the workload's reference that is wrong.
var configReferenceMisspelt = &Rule{
	ID:       "config-reference-misspelt",
	Explains: []*Rule{configMapMissing, secretMissing},
	Suspects: func(_ *probes.Facts, effects []*Finding) []Suspect {
		var list []Suspect
		for _, e := range effects {
			n := e.Data.(needed)
			owner := e.Subjects[1]
			vars := map[string]string{}
			maps.Copy(vars, e.Vars)
			vars["near"] = "(not known)"
			list = append(list, Suspect{Subjects: []Ref{owner, e.Subject()}, Effects: []*Finding{e}, Data: n, Vars: vars})
		}
		return list
	},
	Tests: []Test{{
		Asks:  "is there an object of a similar name that the pod doesn't use yet?",
		Needs: []probes.Any{probes.ConfigMaps, probes.Secrets},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			n := s.Data.(needed)
			p := n.containers[0].pod
			known, err := keysOf(n.kind, facts)
			if err != nil {
				return CantTell(err)
			}
			used := references(p)
			var names []string
			for _, r := range sortedRefs(known) {
				if r.Namespace != p.Namespace || slices.ContainsFunc(used, func(u reference) bool { return u.kind == n.kind && u.name == r.Name }) {
					continue
				}
				// A key that is asked for must be there under the other name.
				if slices.ContainsFunc(used, func(u reference) bool {
					return u.kind == n.kind && u.name == n.name && u.key != "" && !slices.Contains(known[r], u.key)
				}) {
					continue
				}
				names = append(names, r.Name)
			}
			near := nearest(n.name, names)
			if near == "" {
				return Answered(false)
			}
			return Answered(true, SawObject(resourceOfKind(n.kind), p.Namespace, near, "namespace %s has %s %s with keys %s", p.Namespace, n.kind, near,
				strings.Join(known[Ref{Kind: n.kind, Namespace: p.Namespace, Name: near}], ", "))).With("near", near)
		},
	}},
}

// keyMissing asks whether a needed object lacks the key.
func keyMissing(kind string, list probes.Any) Test {
	return Test{
		Asks: "does {object} have no key {key}, which {where} needs?", Needs: []probes.Any{list, probes.Events},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			n := s.Data.(needed)
			p := n.containers[0].pod
			known, err := keysOf(kind, facts)
			if err != nil {
				// Source: kubernetes pkg/kubelet/kubelet_pods.go, pkg/volume/util/atomic_writer.
				re := regexp.MustCompile(`(?i)couldn't find key ` + regexp.QuoteMeta(n.key) + ` in ` + kind + ` ` + regexp.QuoteMeta(p.Namespace+"/"+n.name) + `|references non-existent (?:config|secret) key: ` + regexp.QuoteMeta(n.key) + `\b`)
				r, got, unread := said(facts, n.containers, nil, re)
				switch {
				case got != nil:
					return Answered(true, r.from).With("keys", "").With("near", "")
				case unread != nil:
					return CantTell(unread)
				}
				return CantTell(err)
			}
			keys, ok := known[Ref{Kind: kind, Namespace: p.Namespace, Name: n.name}]
			if !ok || slices.Contains(keys, n.key) {
				return Answered(false)
			}
			a := Answered(true,
				SawObject("pods", p.Namespace, p.Name, "pod %s: %s needs key %s of %s %s", p.Name, n.where, n.key, kind, n.name),
				SawObject(resourceOfKind(kind), p.Namespace, n.name, "%s %s has the keys %s", kind, n.name, listed(keys)))
			a = a.With("keys", listed(keys)).With("near", "")
			if near := nearest(n.key, keys); near != "" {
				a = a.With("near", fmt.Sprintf(" The nearest is %s.", near))
			}
			return a
		},
	}
}

func listed(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}

// configMapKeyMissing and secretKeyMissing: the object is there, its key isn't.
var (
	configMapKeyMissing = &Rule{
		ID:       "configmap-key-missing",
		Explains: []*Rule{podNotStarting},
		Needs:    []probes.Any{probes.Pods},
		Suspects: perReference("ConfigMap", true, theObject),
		Tests:    []Test{keyMissing("ConfigMap", probes.ConfigMaps)},
	}
	secretKeyMissing = &Rule{
		ID:       "secret-key-missing",
		Explains: []*Rule{podNotStarting},
		Needs:    []probes.Any{probes.Pods},
		Suspects: perReference("Secret", true, theObject),
		Tests:    []Test{keyMissing("Secret", probes.Secrets)},
	}
)

// configKeyMisspelt: the object has a key of a similar name, so it is the
// workload's reference that is wrong.
var configKeyMisspelt = &Rule{
	ID:       "config-key-misspelt",
	Explains: []*Rule{configMapKeyMissing, secretKeyMissing},
	Suspects: configReferenceMisspelt.Suspects,
	Tests: []Test{{
		Asks:  "has {object} a key of a similar name that the pod doesn't use yet?",
		Needs: []probes.Any{probes.ConfigMaps, probes.Secrets},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			n := s.Data.(needed)
			p := n.containers[0].pod
			known, err := keysOf(n.kind, facts)
			if err != nil {
				return CantTell(err)
			}
			used := references(p)
			keys := slices.DeleteFunc(slices.Clone(known[Ref{Kind: n.kind, Namespace: p.Namespace, Name: n.name}]), func(k string) bool {
				return slices.ContainsFunc(used, func(u reference) bool { return u.kind == n.kind && u.name == n.name && u.key == k })
			})
			near := nearest(n.key, keys)
			if near == "" {
				return Answered(false)
			}
			saw := SawObject(resourceOfKind(n.kind), p.Namespace, n.name, "%s %s has a key %s", n.kind, n.name, near)
			if owners := askers(s); len(owners) > 1 {
				// What several workloads ask for in the same way is the right name.
				return Answered(false, saw, Evidence{Says: fmt.Sprintf("%d workloads ask for %s: %s", len(owners), n.key, refNames(owners))})
			}
			return Answered(true, saw).With("near", near)
		},
	}},
}

// askers are the workloads that ask for the key of a misspelt reference.
func askers(s Suspect) []Ref {
	var owners []Ref
	for _, e := range s.Effects {
		for _, below := range e.Effects {
			owners = appendNew(owners, below.Subject())
		}
	}
	return owners
}

var configRules = []*Rule{configMapMissing, secretMissing, configReferenceMisspelt, configMapKeyMissing, secretKeyMissing, configKeyMisspelt}
