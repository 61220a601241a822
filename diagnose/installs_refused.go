package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// installing are the symptoms that carry refusals.
var installing = []*Rule{helmReleaseFailed, argocdSyncError, fluxKustomizationFailed}

// refusedBy makes a rule about refusals whose text matches: the named groups
// are variables, and of says which object is at fault. An empty Ref is the
// installer's own object, whose values or manifests a person would change.
func refusedBy(id, asks string, text *regexp.Regexp, of func(setback, map[string]string) Ref, needs []probes.Any, proof func(*probes.Facts, Suspect) Answer) *Rule {
	return &Rule{
		ID: id, Explains: installing,
		Suspects: func(_ *probes.Facts, effects []*Finding) []Suspect {
			var list []Suspect
			for _, e := range effects {
				for _, r := range e.Data.([]setback) {
					for _, m := range text.FindAllStringSubmatch(r.text, -1) {
						vars := map[string]string{"says": clip(r.text, 420), "installer": short(e.Subject()), "object": ""}
						maps.Copy(vars, named(text, m))
						if r.of.Kind != "" {
							vars["object"] = short(r.of)
						}
						subject := e.Subject()
						if of != nil {
							if got := of(r, vars); got.Kind != "" {
								subject = got
							}
						}
						list = addSuspect(list, Suspect{Subjects: appendRef([]Ref{subject}, e.Subject()), Effects: []*Finding{e}, Vars: vars, Found: []Evidence{r.from}})
					}
				}
			}
			return list
		},
		Tests: []Test{{Asks: asks, Needs: needs, Run: proof}},
	}
}

// addSuspect joins suspects about the same object.
func addSuspect(list []Suspect, s Suspect) []Suspect {
	for i := range list {
		o := &list[i]
		if o.Subjects[0] != s.Subjects[0] {
			continue
		}
		o.Subjects = appendRef(o.Subjects, s.Subjects...)
		for _, e := range s.Effects {
			if !slices.Contains(o.Effects, e) {
				o.Effects = append(o.Effects, e)
			}
		}
		for _, e := range s.Found {
			if !slices.ContainsFunc(o.Found, func(f Evidence) bool { return f.Says == e.Says }) {
				o.Found = append(o.Found, e)
			}
		}
		return list
	}
	return append(list, s)
}

func appendRef(list []Ref, more ...Ref) []Ref {
	for _, r := range more {
		if !slices.Contains(list, r) {
			list = append(list, r)
		}
	}
	return list
}

// named are the named groups of a match that are not empty.
func named(re *regexp.Regexp, match []string) map[string]string {
	vars := map[string]string{}
	for i, name := range re.SubexpNames() {
		if name != "" && match[i] != "" {
			vars[name] = match[i]
		}
	}
	return vars
}

// asSaid answers yes with what the installer said, which Suspects found.
func asSaid(_ *probes.Facts, s Suspect) Answer { return Answered(true, s.Found...) }

// istioPlatformRefused: the value `platform` names one that the Istio chart
// does not know; from 1.24 it refuses, before it ignored the value.
// Source: istio manifests/zzz_profile.yaml and helm-profiles 1.24.
var istioPlatformRefused = refusedBy("istio-platform-refused",
	"does the chart refuse the platform that its values name?",
	regexp.MustCompile(`unknown platform:? "?(?P<platform>[\w-]+)`), nil, nil, asSaid)

// lokiBucketNamesMissing: Loki's chart is not told its buckets.
// Source: grafana/loki production/helm/loki 5.48.0 and 6.1.0.
var lokiBucketNamesMissing = refusedBy("loki-bucket-names-missing",
	"does Loki's chart lack the names of its buckets?",
	regexp.MustCompile(`(?s)(?:loki|bucketNames).*?nil pointer evaluating interface \{\}\.(?P<bucket>chunks|ruler|admin)|Please define loki\.storage\.bucketNames\.(?P<bucket2>\w+)`),
	func(_ setback, vars map[string]string) Ref {
		vars["bucket"] = cmp.Or(vars["bucket"], vars["bucket2"])
		return Ref{}
	}, nil, asSaid)

// chartValuesRefused: a chart fails on its values, and no rule knows it better.
var chartValuesRefused = refusedBy("chart-values-refused",
	"does the chart refuse its values, or fail on them?",
	regexp.MustCompile(`(?s)execution error at \((?P<file>[^)]+)\): (?P<reason>[^\n]+)|(?P<file2>[\w./-]+\.(?:yaml|tpl)):\d+(?::\d+)?[^\n]*?(?P<reason2>nil pointer evaluating [^\n]+|wrong type for value[^\n]+|error calling (?:fail|required)[^\n]+)|values don't meet the specifications of the schema\(s\)[^:]*:\s*(?P<reason3>.+)`),
	func(r setback, vars map[string]string) Ref {
		vars["file"] = cmp.Or(vars["file"], vars["file2"], "the chart's values.schema.json")
		vars["reason"] = clip(strings.TrimSpace(cmp.Or(vars["reason"], vars["reason2"], vars["reason3"])), 300)
		return Ref{}
	}, nil, func(_ *probes.Facts, s Suspect) Answer {
		for _, known := range []*regexp.Regexp{regexp.MustCompile(`unknown platform`), regexp.MustCompile(`bucketNames|interface \{\}\.(?:chunks|ruler|admin)`)} {
			if known.MatchString(s.Vars["says"]) {
				return Answered(false) // a rule of its own says more
			}
		}
		return Answered(true, s.Found...)
	})

// objectFieldUnknown: a manifest has a field that the kind's schema does not.
// Source: k8s.io/apimachinery pkg/runtime strict decoding errors.
var objectFieldUnknown = refusedBy("object-field-unknown",
	"does the API server know no such field?",
	regexp.MustCompile(`(?:unknown field "(?P<field>[^"]+)"|\.(?P<field2>[\w.\[\]]+): field not declared in schema)`),
	func(r setback, vars map[string]string) Ref {
		vars["field"] = strings.TrimPrefix(cmp.Or(vars["field"], vars["field2"]), ".")
		vars["advice"] = FieldAdvice(vars["field"], r.of.Kind+" "+r.text)
		vars["where"] = cmp.Or(vars["object"], vars["installer"])
		vars["explain"] = ExplainPath(cmp.Or(r.of.Kind, "KIND"), vars["field"])
		return r.of
	}, nil, asSaid)

var fieldIndex = regexp.MustCompile(`\[[^\]]*\]`)

// ExplainPath is a field as kubectl explain wants it: "nodepool.spec.template".
func ExplainPath(kind, field string) string {
	return strings.TrimSuffix(strings.ToLower(kind)+"."+fieldIndex.ReplaceAllString(field, ""), ".")
}

// FieldAdvice is what is true of fields that people expect.
// Sources: CRDs of Karpenter v0.32 to v1.15 and of Gateway API v0.8.1 to v1.6.1.
func FieldAdvice(field, about string) string {
	switch {
	case strings.HasSuffix(field, "template.spec.tolerations"):
		return " No version of the NodePool has tolerations: it has taints and startupTaints, which the pods tolerate."
	case strings.HasSuffix(field, "infrastructure.replicas"):
		return " No version of the Gateway API has replicas under infrastructure: it has labels, annotations and parametersRef; scale the Deployment that the Gateway gets, or name a ConfigMap in parametersRef."
	case strings.HasSuffix(field, "spec.infrastructure") && strings.Contains(about, "Gateway"):
		return " The standard channel of the Gateway API has infrastructure since v1.2.0; the installed CRD is older."
	}
	return ""
}

// objectInvalid: a field has a value that the schema doesn't allow, or a
// needed one is missing.
// Source: k8s.io/apimachinery pkg/util/validation/field/errors.go.
var objectInvalid = refusedBy("object-invalid",
	"does the API server refuse a value of the object?",
	regexp.MustCompile(`is invalid: (?:\[)?(?P<field>[\w.\[\]/-]+): (?P<reason>(?:Required value|Invalid value|Unsupported value|Forbidden|Too long|Too many|Duplicate value|Not found)[^\n]*)`),
	func(r setback, vars map[string]string) Ref {
		vars["where"] = cmp.Or(vars["object"], vars["installer"])
		vars["reason"] = clip(vars["reason"], 300)
		vars["explain"] = ExplainPath(cmp.Or(r.of.Kind, "KIND"), vars["field"])
		return r.of
	}, nil, asSaid)

// namespaceMissing: something is to be made in a namespace that isn't there.
var namespaceMissing = refusedBy("namespace-missing",
	"does namespace {missing} not exist?",
	regexp.MustCompile(`namespaces? "?(?P<missing>[a-z0-9][a-z0-9-]*)"? not found`),
	func(_ setback, vars map[string]string) Ref { return Ref{Kind: "Namespace", Name: vars["missing"]} },
	[]probes.Any{probes.Namespaces}, func(facts *probes.Facts, s Suspect) Answer {
		list, err := probes.Namespaces.Of(facts)
		if err != nil {
			return CantTell(err, s.Found...)
		}
		name := s.Vars["missing"]
		if list.Get("", name) != nil {
			return Answered(false, SawObject("namespaces", "", name, "namespace %s exists by now: sync or install again", name))
		}
		return Answered(true, append(s.Found, SawObject("namespaces", "", name, "there is no namespace %s", name))...)
	})

var noMatches = regexp.MustCompile(`no matches for kind "(?P<kind>\w+)" in version "(?P<apiVersion>[\w./-]+)"|could not find (?P<group4>[\w-]+\.[\w.-]+)/(?P<kind4>\w+) for requested resource|could not find version "(?P<version2>[\w-]+)" of (?P<group2>[\w.-]+)/(?P<kind2>\w+)|failed to get API group resources:[^\n]*?(?P<apiVersion3>[\w.-]+/v[\w]+): the server could not find`)

// A kindWanted is a kind that somebody asked for: the Data of the two rules
// about kinds that are not served.
type kindWanted struct{ apiVersion, kind string }

func (k kindWanted) group() string {
	group, _, ok := strings.Cut(k.apiVersion, "/")
	if !ok && !strings.Contains(group, ".") {
		return ""
	}
	return group
}

func (k kindWanted) resource() string { return probes.ResourceOf(k.group()+"/v1", k.kind) }

// BuiltInGroup reports whether Kubernetes itself serves a group.
// Source: kubernetes docs reference/using-api ("API groups").
func BuiltInGroup(group string) bool {
	return !strings.Contains(group, ".") || strings.HasSuffix(group, ".k8s.io") && !slices.ContainsFunc([]string{"gateway.networking.k8s.io", "snapshot.storage.k8s.io", "autoscaling.x-k8s.io"}, func(g string) bool { return group == g })
}

func wantedKind(vars map[string]string) kindWanted {
	k := kindWanted{apiVersion: cmp.Or(vars["apiVersion"], vars["apiVersion3"]), kind: cmp.Or(vars["kind"], vars["kind2"], vars["kind4"])}
	if vars["group4"] != "" {
		k.apiVersion = vars["group4"] // Argo CD doesn't say which version
	}
	if vars["group2"] != "" {
		k.apiVersion = vars["group2"] + "/" + vars["version2"]
	}
	return k
}

// kindRefused proposes the kinds that installers, and programs that crash or
// don't get ready, say are not served.
func kindRefused(subject func(kindWanted, *Finding) Ref) func(*probes.Facts, []*Finding) []Suspect {
	return func(facts *probes.Facts, effects []*Finding) []Suspect {
		logs, _ := probes.Logs.Of(facts)
		var list []Suspect
		for _, e := range effects {
			texts, _ := e.Data.([]setback)
			for _, p := range troubled(e) {
				if logs == nil {
					break
				}
				for _, l := range failures(logs, p) {
					texts = append(texts, setback{text: l.Text, from: Evidence{Says: l.quote(), Document: l.document, At: l.at}})
				}
			}
			for _, r := range texts {
				for _, m := range noMatches.FindAllStringSubmatch(r.text, -1) {
					k := wantedKind(named(noMatches, m))
					if k.kind == "" {
						continue
					}
					list = addSuspect(list, Suspect{
						Subjects: appendRef([]Ref{subject(k, e)}, e.Subject()), Effects: []*Finding{e}, Data: k, Found: []Evidence{r.from},
						Vars: map[string]string{
							"wanted": k.kind, "apiVersion": k.apiVersion, "crd": k.resource(), "installer": short(e.Subject()),
							"install": WhoInstalls(k.group()), "served": "", "says": clip(r.text, 420),
						},
					})
				}
			}
		}
		return list
	}
}

// definitionOf is the CRD of a kind, or nil.
func definitionOf(list *probes.List[apiextensionsv1.CustomResourceDefinition], k kindWanted) *apiextensionsv1.CustomResourceDefinition {
	for _, d := range list.All() {
		if d.Spec.Group == k.group() && d.Spec.Names.Kind == k.kind {
			return d
		}
	}
	return nil
}

func servedVersions(d *apiextensionsv1.CustomResourceDefinition) []string {
	var served []string
	for _, v := range d.Spec.Versions {
		if v.Served {
			served = append(served, v.Name)
		}
	}
	return served
}

func sawDefinition(d *apiextensionsv1.CustomResourceDefinition) Evidence {
	return SawObject("customresourcedefinitions.apiextensions.k8s.io", "", d.Name, "CustomResourceDefinition %s serves %s, since %s", d.Name, strings.Join(servedVersions(d), ", "), stampOf(d.CreationTimestamp.Time))
}

// crdMissing: a kind is used whose CustomResourceDefinition is not installed.
var crdMissing = &Rule{
	ID: "crd-missing", Explains: []*Rule{helmReleaseFailed, argocdSyncError, podCrashLooping, podNotReady},
	Needs: []probes.Any{probes.Logs},
	Suspects: kindRefused(func(k kindWanted, _ *Finding) Ref {
		return Ref{Kind: "CustomResourceDefinition", Name: k.resource()}
	}),
	Tests: []Test{{
		Asks: "is no CustomResourceDefinition installed for {wanted} of {apiVersion}?", Needs: []probes.Any{probes.Definitions},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			k := s.Data.(kindWanted)
			if BuiltInGroup(k.group()) {
				return Answered(false) // Kubernetes' own: api-version-not-served
			}
			list, err := probes.Definitions.Of(facts)
			if err != nil {
				return CantTell(err, s.Found...)
			}
			if d := definitionOf(list, k); d != nil {
				return Answered(false, sawDefinition(d))
			}
			return Answered(true, append(s.Found, SawObject("customresourcedefinitions.apiextensions.k8s.io", "", s.Vars["crd"], "of the %d CustomResourceDefinitions none is for %s of %s", list.Len(), k.kind, k.group()))...)
		},
	}},
}

// apiVersionNotServed: the kind is there, but not in the version that the
// manifests use.
var apiVersionNotServed = &Rule{
	ID: "api-version-not-served", Explains: []*Rule{helmReleaseFailed, argocdSyncError, podCrashLooping, podNotReady},
	Needs:    []probes.Any{probes.Logs},
	Suspects: kindRefused(func(_ kindWanted, e *Finding) Ref { return e.Subject() }),
	Tests: []Test{{
		Asks: "is {wanted} served in other versions only than {apiVersion}?", Needs: []probes.Any{probes.Definitions, probes.Nodes},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			k := s.Data.(kindWanted)
			if BuiltInGroup(k.group()) {
				now, removed := removedVersions[k.apiVersion+" "+k.kind]
				if !removed {
					return Answered(false)
				}
				return Answered(true, append(s.Found, Evidence{Says: fmt.Sprintf("Kubernetes removed %s of %s in %s; it is served as %s", k.kind, k.apiVersion, now.since, now.as)})...).With("served", now.as)
			}
			list, err := probes.Definitions.Of(facts)
			if err != nil {
				return CantTell(err, s.Found...)
			}
			d := definitionOf(list, k)
			if d == nil {
				return Answered(false, SawObject("customresourcedefinitions.apiextensions.k8s.io", "", s.Vars["crd"], "no CustomResourceDefinition is for %s of %s", k.kind, k.group()))
			}
			_, version, _ := strings.Cut(k.apiVersion, "/")
			if slices.Contains(servedVersions(d), version) {
				return Answered(false, sawDefinition(d)) // it has been installed since
			}
			return Answered(true, append(s.Found, sawDefinition(d))...).With("served", k.group()+"/"+strings.Join(servedVersions(d), ", "))
		},
	}},
}

// RemovedVersion says as what a kind of Kubernetes' own is served that is no
// longer served in a version, and since when; empty if it isn't known to be gone.
func RemovedVersion(apiVersion, kind string) (as, since string) {
	r := removedVersions[apiVersion+" "+kind]
	return r.as, r.since
}

// removedVersions are the versions of Kubernetes' own kinds that are gone.
// Source: https://kubernetes.io/docs/reference/using-api/deprecation-guide/
var removedVersions = map[string]struct{ since, as string }{
	"extensions/v1beta1 Ingress":                                          {"1.22", "networking.k8s.io/v1"},
	"networking.k8s.io/v1beta1 Ingress":                                   {"1.22", "networking.k8s.io/v1"},
	"networking.k8s.io/v1beta1 IngressClass":                              {"1.22", "networking.k8s.io/v1"},
	"apiextensions.k8s.io/v1beta1 CustomResourceDefinition":               {"1.22", "apiextensions.k8s.io/v1"},
	"rbac.authorization.k8s.io/v1beta1 ClusterRole":                       {"1.22", "rbac.authorization.k8s.io/v1"},
	"rbac.authorization.k8s.io/v1beta1 ClusterRoleBinding":                {"1.22", "rbac.authorization.k8s.io/v1"},
	"rbac.authorization.k8s.io/v1beta1 Role":                              {"1.22", "rbac.authorization.k8s.io/v1"},
	"rbac.authorization.k8s.io/v1beta1 RoleBinding":                       {"1.22", "rbac.authorization.k8s.io/v1"},
	"admissionregistration.k8s.io/v1beta1 ValidatingWebhookConfiguration": {"1.22", "admissionregistration.k8s.io/v1"},
	"admissionregistration.k8s.io/v1beta1 MutatingWebhookConfiguration":   {"1.22", "admissionregistration.k8s.io/v1"},
	"storage.k8s.io/v1beta1 StorageClass":                                 {"1.22", "storage.k8s.io/v1"},
	"storage.k8s.io/v1beta1 CSIDriver":                                    {"1.22", "storage.k8s.io/v1"},
	"scheduling.k8s.io/v1beta1 PriorityClass":                             {"1.22", "scheduling.k8s.io/v1"},
	"policy/v1beta1 PodDisruptionBudget":                                  {"1.25", "policy/v1"},
	"policy/v1beta1 PodSecurityPolicy":                                    {"1.25", "nothing (Pod Security Admission took its place)"},
	"batch/v1beta1 CronJob":                                               {"1.25", "batch/v1"},
	"discovery.k8s.io/v1beta1 EndpointSlice":                              {"1.25", "discovery.k8s.io/v1"},
	"autoscaling/v2beta1 HorizontalPodAutoscaler":                         {"1.25", "autoscaling/v2"},
	"autoscaling/v2beta2 HorizontalPodAutoscaler":                         {"1.26", "autoscaling/v2"},
	"flowcontrol.apiserver.k8s.io/v1beta2 FlowSchema":                     {"1.29", "flowcontrol.apiserver.k8s.io/v1"},
	"flowcontrol.apiserver.k8s.io/v1beta3 FlowSchema":                     {"1.32", "flowcontrol.apiserver.k8s.io/v1"},
}

// WhoInstalls says how the kinds of a group get into a cluster.
// Sources: the installation guides of each project.
func WhoInstalls(group string) string {
	for _, k := range []struct{ suffix, how string }{
		{"gateway.networking.k8s.io", "kubectl apply --server-side -f https://github.com/kubernetes-sigs/gateway-api/releases/download/VERSION/standard-install.yaml (neither Istio nor EKS brings them)"},
		{"istio.io", "helm upgrade --install istio-base istio/base -n istio-system --create-namespace"},
		{"karpenter.sh", "helm upgrade --install karpenter-crd oci://public.ecr.aws/karpenter/karpenter-crd --version VERSION -n kube-system"},
		{"karpenter.k8s.aws", "helm upgrade --install karpenter-crd oci://public.ecr.aws/karpenter/karpenter-crd --version VERSION -n kube-system"},
		{"monitoring.coreos.com", "helm upgrade --install prometheus-operator-crds prometheus-community/prometheus-operator-crds"},
		{"external-secrets.io", "helm upgrade --install external-secrets external-secrets/external-secrets -n external-secrets --create-namespace --set installCRDs=true"},
		{"cert-manager.io", "helm upgrade --install cert-manager jetstack/cert-manager -n cert-manager --create-namespace --set crds.enabled=true"},
		{"argoproj.io", "kubectl apply --server-side -k 'https://github.com/argoproj/argo-cd/manifests/crds?ref=VERSION'"},
		{"elbv2.k8s.aws", "kubectl apply -k 'github.com/aws/eks-charts/stable/aws-load-balancer-controller/crds?ref=master'"},
		{"snapshot.storage.k8s.io", "aws eks create-addon --cluster-name CLUSTER --addon-name snapshot-controller"},
		{"strimzi.io", "helm upgrade --install strimzi oci://quay.io/strimzi-helm/strimzi-kafka-operator -n NAMESPACE"},
	} {
		if group == k.suffix || strings.HasSuffix(group, "."+k.suffix) {
			return k.how
		}
	}
	return "kubectl apply --server-side -f CRD.yaml (from the project that defines " + group + ")"
}

// argocdRevisionMissing: an application follows a branch or tag that its
// repository does not have.
var argocdRevisionMissing = refusedBy("argocd-revision-missing",
	"can't Argo CD find the revision that the application follows?",
	regexp.MustCompile(`(?i)unable to resolve '?(?P<revision>[^'\s]+)'? to a commit SHA|couldn't find remote ref (?P<revision2>\S+)|no (?:matching )?version (?:found )?(?:for|matching)[^\n]*?(?P<revision3>[\w.^~<>=*-]+)`),
	func(_ setback, vars map[string]string) Ref {
		vars["revision"], vars["repo"] = cmp.Or(vars["revision"], vars["revision2"], vars["revision3"]), "its repository"
		return Ref{}
	}, []probes.Any{probes.Applications}, func(facts *probes.Facts, s Suspect) Answer {
		list, err := probes.Applications.Of(facts)
		if err != nil {
			return CantTell(err, s.Found...)
		}
		a := list.Get(s.Subjects[0].Namespace, s.Subjects[0].Name)
		if a == nil {
			return Answered(true, s.Found...) // Flux says so, not Argo CD
		}
		for _, src := range a.Sources() {
			if cmp.Or(src.TargetRevision, "HEAD") == s.Vars["revision"] || strings.HasSuffix(s.Vars["revision"], src.TargetRevision) {
				return Answered(true, append(s.Found, SawObject("applications.argoproj.io", a.Namespace, a.Name, "Application %s follows targetRevision %s of %s", a.Name, cmp.Or(src.TargetRevision, "HEAD"), src.RepoURL))...).With("repo", src.RepoURL)
			}
		}
		return Answered(false, SawObject("applications.argoproj.io", a.Namespace, a.Name, "Application %s follows another revision by now", a.Name))
	})

// argocdPathMissing: an application's source has no such folder.
var argocdPathMissing = refusedBy("argocd-path-missing",
	"does the source of the application have no such path?",
	regexp.MustCompile(`(?P<path>[\w./-]+): app path does not exist`), nil, nil, asSaid)

// argocdVersionSkew: parts of Argo CD are of different releases.
var argocdVersionSkew = &Rule{
	ID: "argocd-version-skew", Explains: []*Rule{argocdSyncError}, Needs: []probes.Any{probes.Pods},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		var list []Suspect
		for _, e := range effects {
			for _, r := range e.Data.([]setback) {
				if strings.Contains(r.text, "unknown method") && strings.Contains(r.text, "Unimplemented") {
					list = addSuspect(list, Suspect{Subjects: []Ref{{Kind: "Deployment", Namespace: e.Subject().Namespace, Name: "argocd-repo-server"}}, Effects: []*Finding{e}, Found: []Evidence{r.from}, Vars: map[string]string{"says": clip(r.text, 300)}})
				}
			}
		}
		pods, err := probes.Pods.Of(facts)
		if err != nil {
			return list
		}
		for i := range list {
			for _, p := range pods.Where(func(p *corev1.Pod) bool {
				return p.Labels["app.kubernetes.io/name"] == "argocd-repo-server" && !probes.Finished(p)
			}) {
				list[i].Subjects[0].Namespace = p.Namespace
				list[i].Subjects[0].Name = cmp.Or(strings.TrimSuffix(p.GenerateName, "-"+p.Labels["pod-template-hash"]+"-"), list[i].Subjects[0].Name)
			}
		}
		return list
	},
	Tests: []Test{{
		Asks: "do Argo CD's controller and its repo-server run different releases?", Needs: []probes.Any{probes.Pods},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			pods, err := probes.Pods.Of(facts)
			if err != nil {
				return CantTell(err)
			}
			tags := map[string]string{}
			var says []Evidence
			for _, p := range pods.All() {
				part := p.Labels["app.kubernetes.io/name"]
				if probes.Finished(p) || len(p.Spec.Containers) == 0 || part != "argocd-repo-server" && part != "argocd-application-controller" {
					continue
				}
				image := p.Spec.Containers[0].Image
				tags[part] = image[strings.LastIndexByte(image, ':')+1:]
				says = append(says, SawObject("pods", p.Namespace, p.Name, "pod %s runs %s", p.Name, image))
			}
			repo, controller := tags["argocd-repo-server"], tags["argocd-application-controller"]
			if repo == "" || controller == "" || repo == controller {
				return Answered(false, says...)
			}
			return Answered(true, append(s.Found, says...)...).With("versions", "repo-server "+repo+", application-controller "+controller)
		},
	}},
}

var installRules = slices.Concat(installSymptoms, []*Rule{
	helmReleaseStuck, istioPlatformRefused, lokiBucketNamesMissing, chartValuesRefused, objectFieldUnknown, objectInvalid, namespaceMissing,
	crdMissing, apiVersionNotServed, argocdRevisionMissing, argocdPathMissing, argocdVersionSkew,
})
