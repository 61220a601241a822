package diagnose

import (
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/pposiraegi/ppodoctor/probes"
)

// bundleVersion is the annotation with the Gateway API's version on its CRDs.
const bundleVersion = "gateway.networking.k8s.io/bundle-version"

// leastBundles are the versions of the Gateway API's CRDs below which istiod
// ignores them, by the Istio release that began with it; below 1.0.0 gateways
// and routes are not served in v1, which Istio reads from 1.22.
// Source: istio pkg/kube/kclient/crdwatcher.go (minimumCRDVersions) per release; pkg/config/schema/gvk.
var leastBundles = []struct{ resource, istio, least string }{
	{"gateways", "1.22", "1.0.0"},
	{"httproutes", "1.22", "1.0.0"},
	{"grpcroutes", "1.22", "1.1.0"},
	{"backendtlspolicies", "1.28", "1.4.0"},
	{"tlsroutes", "1.30", "1.5.0"},
}

// gatewayIgnored: nothing has acted on a Gateway of Istio's.
var gatewayIgnored = &Rule{
	ID: "gateway-without-status", Needs: []probes.Any{probes.Gateways},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		list, err := probes.Gateways.Of(facts)
		if err != nil {
			return nil
		}
		var found []Suspect
		for _, g := range list.All() {
			waits := !slices.ContainsFunc(g.Status.Conditions, func(c metav1.Condition) bool { return c.Status != metav1.ConditionUnknown })
			if !strings.HasPrefix(g.Spec.GatewayClassName, "istio") || !waits || facts.Source().Now().Sub(g.CreationTimestamp.Time) < 2*patience {
				continue
			}
			since := g.CreationTimestamp.Time
			found = append(found, Suspect{
				Subjects: []Ref{{Kind: "Gateway", Namespace: g.Namespace, Name: g.Name}}, Since: &since, Vars: map[string]string{"class": g.Spec.GatewayClassName},
				Found: []Evidence{SawObject("gateways.gateway.networking.k8s.io", g.Namespace, g.Name, "Gateway %s of class %s has no status but what the API server puts there, since %s", g.Name, g.Spec.GatewayClassName, stampOf(since))},
			})
		}
		return found
	},
}

// gatewayAPITooOld: a CRD of the Gateway API is older than istiod takes; it
// ignores the kind without a word in any status.
var gatewayAPITooOld = &Rule{
	ID: "gateway-api-too-old", Explains: []*Rule{gatewayIgnored}, Latent: true, Needs: []probes.Any{probes.Pods},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		istio, pod := istioVersion(facts)
		if istio == nil {
			return nil
		}
		var found []Suspect
		for _, l := range leastBundles {
			if !istio.AtLeast(version.MustParseGeneric(l.istio)) {
				continue
			}
			s := Suspect{
				Subjects: []Ref{{Kind: "CustomResourceDefinition", Name: l.resource + ".gateway.networking.k8s.io"}}, Data: l.least,
				Found: []Evidence{SawObject("pods", pod.Namespace, pod.Name, "istiod is Istio %s", istio)},
				Vars:  map[string]string{"istio": istio.String(), "least": "v" + l.least, "bundle": "unknown", "name": l.resource + ".gateway.networking.k8s.io"},
			}
			if l.resource == "gateways" {
				s.Effects = effects
			}
			found = append(found, s)
		}
		return found
	},
	Tests: []Test{{
		Asks: "is {name} installed in an older version than {least}?", Needs: []probes.Any{probes.Definitions},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			list, err := probes.Definitions.Of(facts)
			if err != nil {
				return CantTell(err)
			}
			d := list.Get("", s.Subjects[0].Name)
			if d == nil {
				return Answered(false, SawObject("customresourcedefinitions.apiextensions.k8s.io", "", s.Subjects[0].Name, "it is not installed"))
			}
			bundle := d.Annotations[bundleVersion]
			saw := SawObject("customresourcedefinitions.apiextensions.k8s.io", "", d.Name, "%s has %s: %q and serves %s", d.Name, bundleVersion, bundle, strings.Join(servedVersions(d), ", "))
			have, err := version.ParseGeneric(bundle)
			if err != nil {
				return Answered(!serves(d, "v1") && s.Data.(string) == "1.0.0", saw).With("bundle", strings.Join(servedVersions(d), ", "))
			}
			return Answered(have.LessThan(version.MustParseGeneric(s.Data.(string))), saw).With("bundle", bundle)
		},
	}},
}

func serves(d *apiextensionsv1.CustomResourceDefinition, v string) bool {
	return slices.Contains(servedVersions(d), v)
}

var pilotTag = regexp.MustCompile(`/pilot:v?(\d+\.\d+(?:\.\d+)?)`)

// istioVersion is the release of istiod, by its image, with the pod; nil where
// none runs or its tag says nothing.
func istioVersion(facts *probes.Facts) (*version.Version, *corev1.Pod) {
	pods, err := probes.Pods.Of(facts)
	if err != nil {
		return nil, nil
	}
	for _, p := range pods.All() {
		if !probes.IsController(p, "istiod") {
			continue
		}
		for _, c := range p.Spec.Containers {
			if m := pilotTag.FindStringSubmatch(c.Image); m != nil {
				if v, err := version.ParseGeneric(m[1]); err == nil {
					return v, p
				}
			}
		}
	}
	return nil, nil
}

// gatewayControllerMissing: a Gateway waits for a class that nothing serves.
var gatewayControllerMissing = &Rule{
	ID: "gateway-controller-missing", Explains: []*Rule{gatewayIgnored}, Needs: []probes.Any{probes.Pods},
	Suspects: func(_ *probes.Facts, effects []*Finding) []Suspect {
		var list []Suspect
		for _, e := range effects {
			list = append(list, Suspect{Subjects: e.Subjects, Effects: []*Finding{e}, Vars: map[string]string{"class": e.Vars["class"]}})
		}
		return list
	},
	Tests: []Test{{
		Asks: "does no istiod run?", Needs: []probes.Any{probes.Pods},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			pods, err := probes.Pods.Of(facts)
			if err != nil {
				return CantTell(err)
			}
			for _, p := range pods.All() {
				if probes.IsController(p, "istiod") {
					return Answered(false, SawObject("pods", p.Namespace, p.Name, "istiod runs: pod %s", p.Name))
				}
			}
			return Answered(true, Saw("pods", nil, "of the %d pods none is istiod", pods.Len()))
		},
	}},
}

var gatewayRules = []*Rule{gatewayIgnored, gatewayAPITooOld, gatewayControllerMissing}
