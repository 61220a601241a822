package diagnose

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/pposiraegi/ppodoctor/probes"
)

// faultFlag recognises names of flags whose purpose is to make a program fail:
// their last word is a fault. Source: open-telemetry/opentelemetry-demo
// src/flagd/demo.flagd.json.
var faultFlag = regexp.MustCompile(`(?i)[a-z](?:failures?|fail|unreachable|outage|crash(?:es)?|high_?-?cpu|manual_?-?gc|memory_?-?leak|queue_?-?problems?|slow_?-?load|flood_?-?\w*|rate_?-?limit_?-?error|inaccurate_?-?response)$`)

// A raisedFlag is a flag in a ConfigMap that is on and makes a program fail.
type raisedFlag struct {
	config  *corev1.ConfigMap
	key     string
	name    string
	variant string
	reader  Ref // the workload that serves or reads the flags
	hurts   Ref // the workload that the flag is named after, else the reader
}

// raisedFlags are the flags that are on, of ConfigMaps in the format of flagd
// that running pods mount. Source: flagd.dev/reference/flag-definitions.
func raisedFlags(facts *probes.Facts) []raisedFlag {
	maps, err := probes.ConfigMaps.Of(facts)
	workloads, err2 := probes.Workloads.Of(facts)
	if err != nil || err2 != nil {
		return nil
	}
	var raised []raisedFlag
	for _, owner := range workloads.All() {
		p := workloads.Pods(owner)[0]
		if probes.Finished(p) {
			continue
		}
		for _, v := range p.Spec.Volumes {
			if v.ConfigMap == nil {
				continue
			}
			m := maps.Get(p.Namespace, v.ConfigMap.Name)
			if m == nil || slices.ContainsFunc(raised, func(f raisedFlag) bool { return f.config == m }) {
				continue
			}
			for _, f := range flagsOn(m) {
				f.reader, f.hurts = owner, cmp.Or(namedAfter(workloads, m.Namespace, f.name), owner)
				raised = append(raised, f)
			}
		}
	}
	return raised
}

func flagsOn(m *corev1.ConfigMap) []raisedFlag {
	var list []raisedFlag
	for _, key := range sortedKeys(m.Data) {
		if !strings.Contains(m.Data[key], "defaultVariant") {
			continue
		}
		var file struct {
			Flags map[string]struct {
				State          string         `json:"state"`
				Variants       map[string]any `json:"variants"`
				DefaultVariant string         `json:"defaultVariant"`
			} `json:"flags"`
		}
		if yaml.Unmarshal([]byte(m.Data[key]), &file) != nil {
			continue
		}
		for _, name := range sortedKeys(file.Flags) {
			f := file.Flags[name]
			off := slices.ContainsFunc(sortedKeys(f.Variants), func(k string) bool { return nothing(f.Variants[k]) })
			if value, ok := f.Variants[f.DefaultVariant]; ok && off && !nothing(value) && f.State == "ENABLED" && faultFlag.MatchString(name) {
				list = append(list, raisedFlag{config: m, key: key, name: name, variant: f.DefaultVariant})
			}
		}
	}
	return list
}

// nothing reports whether a variant's value means that nothing happens.
func nothing(v any) bool { return v == false || v == 0.0 || v == "" || v == "off" || v == nil }

// namedAfter is the workload whose name begins a flag's name; the longest.
func namedAfter(workloads *probes.WorkloadIndex, namespace, flag string) Ref {
	plain := func(s string) string {
		return strings.ReplaceAll(strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(s)), "service", "")
	}
	var best Ref
	for _, owner := range workloads.All() {
		name := plain(owner.Name)
		if owner.Namespace == namespace && len(name) > 1 && strings.HasPrefix(plain(flag), name) && len(name) > len(plain(best.Name)) {
			best = owner
		}
	}
	return best
}

var flagFacts = []probes.Any{probes.ConfigMaps, probes.Workloads}

// toldToFail: a workload is told by a feature flag to fail.
var toldToFail = &Rule{
	ID: "told-to-fail", Needs: flagFacts,
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		var found []Suspect
		for _, f := range raisedFlags(facts) {
			says := SawObject("configmaps", f.config.Namespace, f.config.Name, "flag %s in key %s of ConfigMap %s is ENABLED, with defaultVariant %q", f.name, f.key, f.config.Name, f.variant)
			found = append(found, Suspect{Subjects: []Ref{f.hurts}, Data: f, Count: 1, Vars: map[string]string{"flag": f.name}, Found: []Evidence{says}})
		}
		return found
	},
}

// featureFlagOn: a flag that injects faults is on.
var featureFlagOn = &Rule{
	ID: "feature-flag-injects-failure", Explains: []*Rule{toldToFail}, Needs: flagFacts,
	Suspects: func(_ *probes.Facts, effects []*Finding) []Suspect {
		var found []Suspect
		for _, e := range effects {
			f := e.Data.(raisedFlag)
			ref := Ref{Kind: "ConfigMap", Namespace: f.config.Namespace, Name: f.config.Name}
			if i := slices.IndexFunc(found, func(s Suspect) bool { return s.Subjects[0] == ref }); i >= 0 {
				found[i].Effects = append(found[i].Effects, e)
				found[i].Vars["flag"] += ", " + f.name
				continue
			}
			found = append(found, Suspect{Subjects: []Ref{ref}, Effects: []*Finding{e}, Data: f, Vars: map[string]string{
				"flag": f.name, "variant": f.variant, "key": f.key, "reader": short(f.reader), "target": strings.ToLower(f.reader.Kind) + "/" + f.reader.Name,
			}})
		}
		return found
	},
	Tests: []Test{{
		Asks: "Is a feature flag on that makes programs fail ({flag})?",
		Run: func(_ *probes.Facts, s Suspect) Answer {
			f := s.Data.(raisedFlag)
			return Answered(true, Evidence{Says: fmt.Sprintf("%s mounts ConfigMap %s", short(f.reader), f.config.Name)})
		},
	}},
}

var flagRules = []*Rule{toldToFail, featureFlagOn}
