// Package lint holds files against what a cluster would say of them: which
// objects the API server would refuse or silently cut down, and which values
// break a chart. It uses the rules' own knowledge, before anything is applied.
package lint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	serializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/pposiraegi/ppodoctor/diagnose"
	"github.com/pposiraegi/ppodoctor/knowledge"
	"github.com/pposiraegi/ppodoctor/probes"
)

// Files looks at files, folders or standard input ("-"). With a source it
// holds them against what that cluster serves and has, else against the
// schemas that come with the program.
func Files(ctx context.Context, names []string, stdin io.Reader, src probes.Source, k *knowledge.Knowledge) (*diagnose.Diagnosis, error) {
	schemas, err := Embedded()
	if err != nil {
		return nil, err
	}
	l := &linter{knowledge: k, schemas: schemas, namespaces: map[string]string{}}
	for _, name := range names {
		docs, gaps, err := read(name, stdin)
		if err != nil {
			return nil, err
		}
		for _, d := range docs {
			d.at = len(l.docs)
			l.docs = append(l.docs, d)
		}
		for _, g := range gaps {
			l.gap(g)
		}
	}
	if len(l.docs) == 0 && len(l.gaps) == 0 {
		return nil, errors.New("no YAML or JSON document in it")
	}
	if src != nil {
		l.cluster(ctx, src)
	}
	l.look(ctx)
	slices.SortStableFunc(l.faults, diagnose.CompareCauses)
	d := diagnose.Document(l.faults, l.gaps)
	if src != nil {
		d.At = src.Now()
	}
	d.Verdict = l.verdict()
	return d, nil
}

type linter struct {
	knowledge   *knowledge.Knowledge
	schemas     *Schemas
	docs        []*document
	namespaces  map[string]string // to where each comes from; empty where they aren't known
	knownSpaces bool
	sources     []defaultSource // default data sources of Grafana
	faults      []diagnose.Cause
	gaps        []diagnose.Gap
	objects     int
}

func (l *linter) gap(g *probes.Gap) {
	if slices.ContainsFunc(l.gaps, func(o diagnose.Gap) bool { return o.Document == g.Document.Path && o.Detail == g.Detail }) {
		return
	}
	l.gaps = append(l.gaps, diagnose.Gap{Document: g.Document.Path, Reason: string(g.Reason), Grant: g.Grant, Detail: g.Detail})
}

// cluster takes what a cluster serves and has.
func (l *linter) cluster(ctx context.Context, src probes.Source) {
	var gap *probes.Gap
	if err := l.schemas.Installed(ctx, src); errors.As(err, &gap) {
		l.gap(gap)
	}
	known := true
	for n, err := range probes.Items[corev1.Namespace](ctx, src, probes.Document{Path: "namespaces"}) {
		if errors.As(err, &gap) {
			l.gap(gap)
			known = false
			break
		}
		if err != nil {
			known = false
			break
		}
		l.namespaces[n.Name] = "the cluster"
	}
	l.knownSpaces = known
	l.grafanaOf(ctx, src)
}

func (l *linter) fault(d *document, path, rule string, subjects []probes.Ref, vars map[string]string, says string, more ...diagnose.Fact) {
	facts := append([]diagnose.Fact{{Says: d.line(path) + ": " + says, Document: d.line(path)}}, more...)
	l.faults = append(l.faults, diagnose.Told(l.knowledge, rule, subjects, vars, facts))
}

func (l *linter) look(ctx context.Context) {
	for _, d := range l.docs { // what the files themselves bring
		if d.text("kind") == "CustomResourceDefinition" {
			l.defined(d)
		}
	}
	for _, d := range l.docs {
		switch {
		case d.manifest():
			l.objects++
			l.manifest(ctx, d)
			l.namespace(d)
			l.inlineValues(d)
			l.grafanaMap(d)
		default:
			l.values(values{document: d, object: d.object})
		}
	}
	l.grafana()
}

// defined takes a CustomResourceDefinition of the files for the cluster's own.
func (l *linter) defined(d *document) {
	raw, err := json.Marshal(d.object)
	if err != nil {
		return
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if json.Unmarshal(raw, crd) == nil && crd.Spec.Group != "" {
		l.schemas.add(crd, d.line("")+" ("+crd.Name+")")
	}
}

func short(r probes.Ref) string {
	if r.Namespace == "" {
		return r.Kind + " " + r.Name
	}
	return r.Kind + " " + r.Namespace + "/" + r.Name
}

// manifest holds an object against the schema of its kind.
func (l *linter) manifest(ctx context.Context, d *document) {
	apiVersion, kind := d.text("apiVersion"), d.text("kind")
	group, version, ok := strings.Cut(apiVersion, "/")
	if !ok {
		group, version = "", apiVersion
	}
	if diagnose.BuiltInGroup(group) {
		l.builtIn(d)
		return
	}
	crd := l.schemas.byKind[group+"/"+kind]
	if crd == nil {
		if l.schemas.cluster {
			l.fault(d, "kind", "crd-missing", []probes.Ref{{Kind: "CustomResourceDefinition", Name: probes.ResourceOf(apiVersion, kind)}, d.ref()}, map[string]string{
				"wanted": kind, "apiVersion": apiVersion, "crd": probes.ResourceOf(apiVersion, kind), "installer": short(d.ref()), "install": diagnose.WhoInstalls(group),
				"says": fmt.Sprintf("no matches for kind %q in version %q", kind, apiVersion),
			}, fmt.Sprintf("%s is of %s, which the cluster does not serve: refused", short(d.ref()), apiVersion))
			return
		}
		l.gap(&probes.Gap{Document: probes.Document{Path: probes.ResourceOf(apiVersion, kind)}, Reason: probes.NotCaptured, Detail: "the schema of " + kind + " does not come with the program: give --snapshot or --live"})
		return
	}
	if !slices.Contains(versions(crd), version) {
		l.fault(d, "apiVersion", "api-version-not-served", []probes.Ref{d.ref()}, map[string]string{
			"wanted": kind, "apiVersion": apiVersion, "served": group + "/" + strings.Join(versions(crd), ", "),
		}, fmt.Sprintf("%s is of %s; %s serves %s: refused", short(d.ref()), apiVersion, l.schemas.from[group+"/"+kind], strings.Join(versions(crd), ", ")))
		return
	}
	flaws, err := against(ctx, crd, version, d.object)
	if err != nil {
		l.gap(&probes.Gap{Document: probes.Document{Path: crd.Name}, Reason: probes.Unreadable, Detail: err.Error()})
		return
	}
	l.flaws(d, flaws, l.schemas.from[group+"/"+kind])
}

// flaws tells what a schema has against an object, a fault for each field.
func (l *linter) flaws(d *document, flaws []flaw, by string) {
	for _, f := range byField(flaws) {
		vars := map[string]string{"where": short(d.ref()), "field": f.path, "explain": diagnose.ExplainPath(d.text("kind"), f.path)}
		if f.unknown {
			vars["advice"] = diagnose.FieldAdvice(f.path, d.text("kind"))
			l.fault(d, f.path, "object-field-unknown", []probes.Ref{d.ref()}, vars,
				fmt.Sprintf("unknown field %q of %s, by %s: refused by kubectl and by all that validate strictly, else dropped without a word", f.path, short(d.ref()), by))
			continue
		}
		vars["reason"] = f.says
		l.fault(d, f.path, "object-invalid", []probes.Ref{d.ref()}, vars, fmt.Sprintf("%s: %s, by %s: refused", f.path, f.says, by))
	}
}

// byField joins what is said of one field.
func byField(flaws []flaw) []flaw {
	var list []flaw
	for _, f := range flaws {
		i := slices.IndexFunc(list, func(o flaw) bool { return o.path == f.path && o.unknown == f.unknown })
		if i < 0 {
			list = append(list, f)
		} else if !strings.Contains(list[i].says, f.says) {
			list[i].says += "; " + f.says
		}
	}
	return list
}

var (
	strictly = serializer.NewSerializerWithOptions(serializer.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, serializer.SerializerOptions{Strict: true})
	// Sources: sigs.k8s.io/json strict errors; encoding/json UnmarshalTypeError.
	strictField = regexp.MustCompile(`(unknown|duplicate) field "([^"]+)"`)
	typedField  = regexp.MustCompile(`cannot unmarshal (\w+) into Go struct field \w+\.([\w.]+) of type (\S+)`)
)

// builtIn decodes an object of Kubernetes' own strictly.
func (l *linter) builtIn(d *document) {
	raw, err := json.Marshal(d.object)
	if err != nil {
		return
	}
	by := "the types of Kubernetes"
	if as, since := diagnose.RemovedVersion(d.text("apiVersion"), d.text("kind")); as != "" {
		l.fault(d, "apiVersion", "api-version-not-served", []probes.Ref{d.ref()}, map[string]string{"wanted": d.text("kind"), "apiVersion": d.text("apiVersion"), "served": as},
			fmt.Sprintf("%s is of %s, which Kubernetes %s and later do not serve: refused", short(d.ref()), d.text("apiVersion"), since))
		return
	}
	object, _, err := strictly.Decode(raw, nil, nil)
	strict, _ := runtime.AsStrictDecodingError(err)
	if object != nil {
		l.flaws(d, selectorFlaws(object), by)
	}
	switch {
	case err == nil:
	case strict != nil:
		var flaws []flaw
		for _, e := range strict.Errors() {
			if m := strictField.FindStringSubmatch(e.Error()); m != nil {
				flaws = append(flaws, flaw{path: m[2], unknown: m[1] == "unknown", says: "the field is there twice"})
			}
		}
		l.flaws(d, flaws, by)
	case runtime.IsNotRegisteredError(err):
		l.gap(&probes.Gap{Document: probes.Document{Path: probes.ResourceOf(d.text("apiVersion"), d.text("kind"))}, Reason: probes.NotCaptured, Detail: fmt.Sprintf("%s of %s is not a kind that the program knows", d.text("kind"), d.text("apiVersion"))})
	default:
		f := flaw{path: "", says: err.Error()}
		if m := typedField.FindStringSubmatch(err.Error()); m != nil {
			f = flaw{path: m[2], says: fmt.Sprintf("a %s stands where %s belongs", m[1], m[3])}
		}
		l.flaws(d, []flaw{f}, by)
	}
}

// selectorFlaws is what the API server has against a workload whose selector
// does not take its own pods.
// Source: kubernetes pkg/apis/apps/validation/validation.go.
func selectorFlaws(object runtime.Object) []flaw {
	var selector *metav1.LabelSelector
	var template corev1.PodTemplateSpec
	switch o := object.(type) {
	case *appsv1.Deployment:
		selector, template = o.Spec.Selector, o.Spec.Template
	case *appsv1.StatefulSet:
		selector, template = o.Spec.Selector, o.Spec.Template
	case *appsv1.DaemonSet:
		selector, template = o.Spec.Selector, o.Spec.Template
	case *appsv1.ReplicaSet:
		selector, template = o.Spec.Selector, o.Spec.Template
	default:
		return nil
	}
	if selector == nil {
		return []flaw{{path: "spec.selector", says: "Required value"}}
	}
	if s, err := metav1.LabelSelectorAsSelector(selector); err != nil || !s.Matches(labels.Set(template.Labels)) {
		return []flaw{{path: "spec.template.metadata.labels", says: fmt.Sprintf("`selector` (%s) does not match template `labels` (%s)", metav1.FormatLabelSelector(selector), labels.Set(template.Labels))}}
	}
	return nil
}

// namespace asks whether an object's namespace is there before it: in the
// cluster, or earlier in the files.
func (l *linter) namespace(d *document) {
	ns := d.text("metadata", "namespace")
	if ns == "" || ns == "default" || strings.HasPrefix(ns, "kube-") || l.namespaces[ns] != "" {
		return
	}
	for _, o := range l.docs {
		if o.text("kind") != "Namespace" || o.text("metadata", "name") != ns {
			continue
		}
		if o.at > d.at {
			l.namespaces[ns] = o.line("") // said once
			l.missing(d, ns, fmt.Sprintf("namespace %s is made only at %s, after %s: kubectl applies in the order of the files", ns, o.line(""), short(d.ref())))
		}
		return
	}
	if l.knownSpaces {
		l.namespaces[ns] = "nowhere"
		l.missing(d, ns, fmt.Sprintf("namespaces %q not found: neither the cluster nor the files have it: refused", ns))
	}
}

func (l *linter) missing(d *document, ns, says string) {
	l.fault(d, "metadata.namespace", "namespace-missing", []probes.Ref{{Kind: "Namespace", Name: ns}, d.ref()}, map[string]string{
		"missing": ns, "installer": d.file, "object": short(d.ref()), "says": says,
	}, says)
}

func (l *linter) verdict() string {
	switch n := len(l.faults); {
	case n == 0 && len(l.gaps) > 0:
		return fmt.Sprintf("Nothing wrong was found in %d objects, but not all of them could be judged.", l.objects)
	case n == 0:
		return fmt.Sprintf("Nothing wrong was found in %d documents.", len(l.docs))
	case n == 1:
		return l.faults[0].Evidence[0].Document + ": " + l.faults[0].Title + "."
	default:
		return fmt.Sprintf("%d faults in %d documents; first %s: %s.", n, len(l.docs), l.faults[0].Evidence[0].Document, l.faults[0].Title)
	}
}
