package lint

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/yaml"

	"github.com/pposiraegi/ppodoctor/diagnose"
	"github.com/pposiraegi/ppodoctor/probes"
)

// values are those of a Helm release: a file of their own, or inside an Argo
// CD Application or a Flux HelmRelease, which also say the chart.
type values struct {
	*document
	object         map[string]any
	prefix         string // where they stand in the document: "spec.source.helm.valuesObject."
	chart, version string // empty: not known
}

func (v values) get(path ...string) any { return dig(v.object, path...) }

func (v values) has(keys ...string) bool {
	return slices.ContainsFunc(keys, func(k string) bool { _, ok := v.object[k]; return ok })
}

// inlineValues looks at the values in an Application or a HelmRelease.
func (l *linter) inlineValues(d *document) {
	add := func(prefix string, object any, chart, version any) {
		if text, ok := object.(string); ok {
			var parsed map[string]any
			if yaml.Unmarshal([]byte(text), &parsed) != nil {
				return
			}
			object = parsed
		}
		if m, ok := object.(map[string]any); ok {
			v := values{document: d, object: m, prefix: prefix}
			v.chart, _ = chart.(string)
			v.version, _ = version.(string)
			v.chart = v.chart[strings.LastIndexByte(v.chart, '/')+1:]
			l.values(v)
		}
	}
	switch d.text("kind") {
	case "Application":
		sources := map[string]any{"spec.source.": d.get("spec", "source")}
		if list, ok := d.get("spec", "sources").([]any); ok {
			for i, s := range list {
				sources[fmt.Sprintf("spec.sources[%d].", i)] = s
			}
		}
		for _, at := range sortedKeys(sources) {
			s := sources[at]
			add(at+"helm.values.", dig(s, "helm", "values"), dig(s, "chart"), dig(s, "targetRevision"))
			add(at+"helm.valuesObject.", dig(s, "helm", "valuesObject"), dig(s, "chart"), dig(s, "targetRevision"))
			if parameters, ok := dig(s, "helm", "parameters").([]any); ok {
				object := map[string]any{}
				for _, p := range parameters {
					name, _ := dig(p, "name").(string)
					put(object, strings.Split(name, "."), dig(p, "value"))
				}
				add(at+"helm.parameters.", object, dig(s, "chart"), dig(s, "targetRevision"))
			}
		}
	case "HelmRelease":
		add("spec.values.", d.get("spec", "values"), d.get("spec", "chart", "spec", "chart"), d.get("spec", "chart", "spec", "version"))
	}
}

func sortedKeys(m map[string]any) []string {
	keys := []string{}
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func put(object map[string]any, path []string, value any) {
	for _, p := range path[:len(path)-1] {
		next, ok := object[p].(map[string]any)
		if !ok {
			next = map[string]any{}
			object[p] = next
		}
		object = next
	}
	object[path[len(path)-1]] = value
}

// atLeast reports whether the chart's version is known to be one or later.
func (v values) atLeast(least string) (is, known bool) {
	have, err := version.ParseGeneric(v.version)
	if err != nil {
		return false, false
	}
	return have.AtLeast(version.MustParseGeneric(least)), true
}

func (l *linter) values(v values) {
	l.istioValues(v)
	l.lokiValues(v)
	l.grafanaValues(v)
}

// subject is what holds the values: the object, or the file.
func (v values) subject() probes.Ref {
	if v.manifest() {
		return v.ref()
	}
	return probes.Ref{Kind: "File", Name: v.file}
}

// istioPlatforms are those that Istio's charts have a profile for.
// Source: istio manifests/helm-profiles 1.24..HEAD.
var istioPlatforms = []string{"", "gke", "k3d", "k3s", "microk8s", "minikube", "openshift"}

func (l *linter) istioValues(v values) {
	istio := slices.Contains([]string{"istiod", "cni", "ztunnel", "base", "gateway", "ambient", "istio-cni"}, v.chart) ||
		v.chart == "" && (v.get("profile") == "ambient" || v.has("pilot", "meshConfig", "ztunnel", "istio_cni") || strings.Contains(v.file, "istio") || strings.Contains(v.file, "ztunnel"))
	if is, known := v.atLeast("1.24.0"); !istio || known && !is {
		return
	}
	for _, at := range [][]string{{"platform"}, {"global", "platform"}, {"defaults", "platform"}} {
		platform, ok := v.get(at...).(string)
		if !ok || slices.Contains(istioPlatforms, platform) {
			continue
		}
		field := v.prefix + strings.Join(at, ".")
		l.fault(v.document, field, "istio-platform-refused", []probes.Ref{v.subject()}, map[string]string{
			"platform": platform, "installer": short(v.subject()), "says": "unknown platform " + platform,
		}, fmt.Sprintf("%s: %s is no platform of Istio's charts: from 1.24 on they fail with \"unknown platform %s\"", field, platform, platform))
	}
}

func (l *linter) lokiValues(v values) {
	loki, ok := v.get("loki").(map[string]any)
	if !ok || v.chart != "" && v.chart != "loki" {
		return
	}
	if v.chart == "" && dig(loki, "storage") == nil && dig(loki, "schemaConfig") == nil && !v.has("deploymentMode", "singleBinary") {
		return // another chart that has a part called loki
	}
	if is6, known := v.atLeast("6.0.0"); known {
		is61, _ := v.atLeast("6.1.0")
		is548, _ := v.atLeast("5.48.0")
		if is6 && !is61 || !is548 {
			return // these have a default
		}
	}
	kind, _ := dig(loki, "storage", "type").(string)
	if kind == "filesystem" || dig(v.object, "minio", "enabled") == true {
		return
	}
	for _, name := range []string{"chunks", "ruler", "admin"} {
		if s, _ := dig(loki, "storage", "bucketNames", name).(string); s != "" || name == "admin" {
			continue // admin is for the enterprise edition
		}
		l.fault(v.document, v.prefix+"loki.storage", "loki-bucket-names-missing", []probes.Ref{v.subject()}, map[string]string{
			"bucket": name, "installer": short(v.subject()), "says": "nil pointer evaluating interface {}." + name,
		}, fmt.Sprintf("%sloki.storage has no bucketNames.%s: charts from 5.48.0 and from 6.1.0 on have no default for it and can't be rendered", v.prefix, name))
		return
	}
}

// A defaultSource is a data source of Grafana that is marked as default.
type defaultSource struct {
	document *document // nil: of the cluster
	path     string
	name     string
	where    probes.Ref
	charts   bool // that kube-prometheus-stack brings by itself
}

func (l *linter) defaultsIn(d *document, path string, where probes.Ref, list any) {
	items, _ := list.([]any)
	for i, item := range items {
		if dig(item, "isDefault") == true {
			name, _ := dig(item, "name").(string)
			l.sources = append(l.sources, defaultSource{document: d, path: fmt.Sprintf("%s[%d].isDefault", path, i), name: name, where: where})
		}
	}
}

func (l *linter) grafanaValues(v values) {
	grafana, prefix := v.object, v.prefix
	stack := v.chart == "kube-prometheus-stack" || v.chart == "" && v.has("grafana") && v.has("prometheus", "alertmanager", "prometheusOperator", "kube-state-metrics", "kubeStateMetrics", "defaultRules") ||
		v.chart == "" && v.get("grafana", "additionalDataSources") != nil // a key of this chart alone
	if inner, ok := v.get("grafana").(map[string]any); ok && stack {
		grafana, prefix = inner, prefix+"grafana."
	} else if v.chart != "grafana" && !(v.chart == "" && v.has("datasources", "grafana.ini")) {
		return
	}
	if stack && dig(grafana, "enabled") == false {
		return
	}
	before := len(l.sources)
	l.defaultsIn(v.document, prefix+"additionalDataSources", v.subject(), dig(grafana, "additionalDataSources"))
	if files, ok := dig(grafana, "datasources").(map[string]any); ok {
		for _, file := range sortedKeys(files) {
			l.defaultsIn(v.document, prefix+"datasources", v.subject(), dig(files[file], "datasources"))
		}
	}
	if stack && dig(grafana, "sidecar", "datasources", "isDefaultDatasource") != false && dig(grafana, "sidecar", "datasources", "defaultDatasourceEnabled") != false {
		own := defaultSource{document: v.document, path: prefix, name: "Prometheus", where: v.subject(), charts: true}
		if len(l.sources) > before || v.chart != "" || v.has("grafana") {
			l.sources = append(l.sources, own)
		}
	}
}

// grafanaMap takes the data sources of a ConfigMap that Grafana's sidecar reads.
func (l *linter) grafanaMap(d *document) {
	if d.text("kind") != "ConfigMap" || d.get("metadata", "labels", "grafana_datasource") == nil {
		return
	}
	data, _ := d.get("data").(map[string]any)
	for _, key := range sortedKeys(data) {
		text, _ := data[key].(string)
		var file map[string]any
		if yaml.Unmarshal([]byte(text), &file) == nil {
			before := len(l.sources)
			l.defaultsIn(d, "data", d.ref(), file["datasources"])
			for i := range l.sources[before:] {
				l.sources[before+i].path = "data"
			}
		}
	}
}

// grafanaOf takes the default data sources that the cluster has already.
func (l *linter) grafanaOf(ctx context.Context, src probes.Source) {
	for m, err := range probes.Items[corev1.ConfigMap](ctx, src, probes.Document{Path: "configmaps"}) {
		if err != nil {
			return // only more would be found with it
		}
		if _, ok := m.Labels["grafana_datasource"]; !ok {
			continue
		}
		where := probes.Ref{Kind: "ConfigMap", Namespace: m.Namespace, Name: m.Name}
		if slices.ContainsFunc(l.docs, func(d *document) bool { return d.manifest() && d.ref() == where }) {
			continue // the files bring it anew
		}
		for _, key := range slices.Sorted(maps.Keys(m.Data)) {
			text := m.Data[key]
			var file map[string]any
			if yaml.Unmarshal([]byte(text), &file) == nil {
				l.defaultsIn(nil, "", where, file["datasources"])
			}
		}
	}
}

// grafana tells of two defaults, once.
func (l *linter) grafana() {
	var ours []defaultSource
	var words []string
	keep := ""
	seen := map[string]bool{}
	for _, s := range l.sources {
		if s.name == "Prometheus" && (s.charts || s.document == nil) {
			if seen["chart"] {
				continue // the chart's own, as values and as what the cluster has
			}
			seen["chart"] = true
		}
		where := short(s.where)
		if s.charts {
			where = "the chart kube-prometheus-stack itself"
		}
		words = append(words, s.name+" in "+where)
		if s.document != nil && !s.charts {
			ours = append(ours, s)
		} else {
			keep = s.name
		}
	}
	if len(words) < 2 || len(ours) == 0 {
		return
	}
	first := ours[0]
	if keep == "" {
		keep = ours[len(ours)-1].name
	}
	l.fault(first.document, first.path, "grafana-two-default-datasources", []probes.Ref{first.where}, map[string]string{
		"count": fmt.Sprint(len(words)), "defaults": strings.Join(words, " and "), "source": first.name, "place": short(first.where), "keep": keep, "workload": "Grafana",
	}, fmt.Sprintf("data source %s is marked as default, and so is another one: %s", first.name, strings.Join(words, " and ")), []diagnose.Fact{}...)
}
