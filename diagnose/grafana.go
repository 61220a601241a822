package diagnose

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/pposiraegi/ppodoctor/probes"
)

// grafanaTwoDefaults: Grafana is given more than one default data source and
// ends at once. The chart's own counts too.
// Source: grafana pkg/services/provisioning/datasources/config_reader.go;
// kube-prometheus-stack values grafana.sidecar.datasources.isDefaultDatasource.
var grafanaTwoDefaults = &Rule{
	ID: "grafana-two-default-datasources", Explains: []*Rule{podCrashLooping, podNotReady, configInvalid},
	Needs: []probes.Any{probes.Logs, probes.ConfigMaps},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		logs, err := probes.Logs.Of(facts)
		if err != nil {
			return nil
		}
		var list []Suspect
		for _, e := range effects {
			for _, p := range troubled(e) {
				for _, l := range failures(logs, p) {
					if l.meaning != "datasource-conflict" {
						continue
					}
					defaults := defaultSources(facts, p)
					s := Suspect{Subjects: []Ref{e.Subject()}, Effects: []*Finding{e}, Data: p, Found: []Evidence{{Says: l.quote(), Document: l.document, At: l.at}}, Vars: map[string]string{
						"workload": short(e.Subject()), "defaults": "which could not be read", "keep": "the chart's own", "place": short(e.Subject()), "source": "", "count": "more than one",
					}}
					if len(defaults) > 1 {
						theirs := defaults[0]
						s.Subjects = appendRef([]Ref{theirs.from}, e.Subject())
						s.Vars["place"], s.Vars["source"], s.Vars["count"] = short(theirs.from), theirs.name, fmt.Sprint(len(defaults))
						var words []string
						for _, d := range defaults {
							words = append(words, fmt.Sprintf("%s in %s", d.name, short(d.from)))
						}
						s.Vars["defaults"] = strings.Join(words, " and ")
						s.Vars["keep"] = defaults[len(defaults)-1].name
					}
					list = addSuspect(list, s)
				}
			}
		}
		return list
	},
	Tests: []Test{{
		Asks: "do its provisioning files mark more than one data source as default?", Needs: []probes.Any{probes.ConfigMaps, probes.Logs},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			if _, err := probes.ConfigMaps.Of(facts); err != nil {
				return CantTell(err, s.Found...)
			}
			defaults := defaultSources(facts, s.Data.(*corev1.Pod))
			says := slices.Clone(s.Found)
			for _, d := range defaults {
				says = append(says, SawObject("configmaps", d.from.Namespace, d.from.Name, "ConfigMap %s, %s: data source %s (%s) has isDefault: true", d.from.Name, d.key, d.name, d.kind))
			}
			// Where fewer are seen, others are in Secrets or in the program's own
			// configuration: the log decides.
			return Answered(true, says...)
		},
	}},
}

// A defaultSource is a data source that a provisioning file marks as default.
type defaultSource struct {
	from            Ref
	key, name, kind string
	charts          bool // of the chart's own file
}

// defaultSources are the default data sources in the ConfigMaps that a Grafana
// reads: those that it mounts, and those that its sidecar collects by label
// in its namespace or, labelled alike, anywhere. The chart's own comes last.
func defaultSources(facts *probes.Facts, p *corev1.Pod) []defaultSource {
	maps_, err := probes.ConfigMaps.Of(facts)
	if err != nil {
		return nil
	}
	mounted := map[string]bool{}
	for _, v := range p.Spec.Volumes {
		if v.ConfigMap != nil {
			mounted[v.ConfigMap.Name] = true
		}
	}
	label := "grafana_datasource"
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		for _, e := range c.Env {
			if e.Name == "LABEL" && strings.Contains(c.Name, "datasource") && e.Value != "" {
				label = e.Value
			}
		}
	}
	var list []defaultSource
	for _, m := range maps_.All() {
		if _, labelled := m.Labels[label]; !labelled && (m.Namespace != p.Namespace || !mounted[m.Name]) {
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(m.Data)) {
			var file struct {
				Datasources []struct {
					Name      string `json:"name"`
					Type      string `json:"type"`
					OrgID     int    `json:"orgId"`
					IsDefault bool   `json:"isDefault"`
				} `json:"datasources"`
			}
			if yaml.Unmarshal([]byte(m.Data[key]), &file) != nil {
				continue
			}
			for _, d := range file.Datasources {
				if d.IsDefault {
					list = append(list, defaultSource{
						from: Ref{Kind: "ConfigMap", Namespace: m.Namespace, Name: m.Name}, key: key, name: d.Name, kind: d.Type,
						charts: m.Labels["app.kubernetes.io/managed-by"] == "Helm" && strings.HasPrefix(m.Labels["chart"], "kube-prometheus-stack") || strings.HasSuffix(m.Name, "-grafana-datasource"),
					})
				}
			}
		}
	}
	slices.SortStableFunc(list, func(a, b defaultSource) int {
		if a.charts == b.charts {
			return 0
		}
		if a.charts {
			return 1
		}
		return -1
	})
	return list
}

var grafanaRules = []*Rule{grafanaTwoDefaults}
