package network

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// The policies are after the recipes of
// kubernetes.io/docs/concepts/services-networking/network-policies; the table
// is for what the comparison with upstream's evaluator (in
// testdata/kube-network-policies) can't ask: nodes, defaults, things unknown.
func TestPolicies(t *testing.T) {
	const (
		denyIn     = `{podSelector: {}, policyTypes: [Ingress]}`
		denyOut    = `{podSelector: {}, policyTypes: [Egress]}`
		defaulted  = `{podSelector: {}}`
		egressOnly = `{podSelector: {}, egress: [{ports: [{port: 53, protocol: UDP}]}]}`
		fromTeam   = `{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: a}}, podSelector: {matchLabels: {app: api}}}]}]}`
		fromTeamOr = `{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: a}}}, {podSelector: {matchLabels: {app: api}}}]}]}`
		byName     = `{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}}]}]}`
		nodeBlock  = `{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/24, except: [10.0.0.11/32]}}]}]}`
		named      = `{podSelector: {}, ingress: [{ports: [{port: webhook}]}]}`
		ranged     = `{podSelector: {}, ingress: [{ports: [{port: 9000, endPort: 9500}]}]}`
		udpOnly    = `{podSelector: {}, ingress: [{ports: [{port: 9443, protocol: UDP}]}]}`
	)
	api, hook := Pod("shop", "api"), Pod("kube-system", "hook")
	for name, test := range map[string]struct {
		namespace, spec string
		from, to        Endpoint
		change          func(*World)
		want            Truth
		code            Code
	}{
		"no policy":                            {"other", denyIn, api, hook, nil, Yes, NotIsolated},
		"default deny ingress":                 {"kube-system", denyIn, api, hook, nil, No, PolicyDenies},
		"does not touch egress":                {"kube-system", denyIn, hook, api, nil, Yes, NotIsolated},
		"default deny egress":                  {"shop", denyOut, api, hook, nil, No, PolicyDenies},
		"policyTypes default to ingress":       {"kube-system", defaulted, api, hook, nil, No, PolicyDenies},
		"and not to egress without its rules":  {"shop", defaulted, api, hook, nil, Yes, NotIsolated},
		"egress rules imply egress":            {"shop", egressOnly, api, hook, nil, No, PolicyDenies},
		"and ingress stays implied":            {"kube-system", egressOnly, api, hook, nil, No, PolicyDenies},
		"the API server is no pod":             {"kube-system", fromTeam, APIServer(), hook, nil, No, PolicyDenies},
		"both selectors must match":            {"kube-system", fromTeam, api, hook, nil, No, PolicyDenies},
		"and do":                               {"kube-system", fromTeam, api, hook, team, Yes, PolicyAllows},
		"either selector, in its namespace":    {"kube-system", fromTeamOr, api, hook, nil, No, PolicyDenies},
		"either selector":                      {"kube-system", fromTeamOr, api, hook, team, Yes, PolicyAllows},
		"labels of namespaces unknown":         {"kube-system", fromTeam, api, hook, noNamespaces, Unknown, NotKnown},
		"but their names are known":            {"kube-system", byName, api, hook, noNamespaces, Yes, PolicyAllows},
		"a named port of the pod":              {"kube-system", named, api, hook, nil, Yes, PolicyAllows},
		"that the pod does not have":           {"kube-system", named, api, hook, func(w *World) { w.Pods.All[1].Spec.Containers = nil }, No, PolicyDenies},
		"a port of a range":                    {"kube-system", ranged, api, hook, nil, Yes, PolicyAllows},
		"another protocol":                     {"kube-system", udpOnly, api, hook, nil, No, PolicyDenies},
		"the except of a block":                {"kube-system", nodeBlock, api, hook, nil, No, PolicyDenies},
		"a node in the block":                  {"kube-system", nodeBlock, Node("node-0"), hook, nil, Yes, PolicyAllows},
		"a node is no pod":                     {"kube-system", byName, Node("node-0"), hook, nil, No, PolicyDenies},
		"a pod's own node is exempt":           {"kube-system", denyIn, Node("node-1"), hook, nil, Yes, PolicyExempt},
		"a hostNetwork pod is not selected":    {"kube-system", denyIn, api, hook, hostNetwork, Yes, ""},
		"nor matched as a pod":                 {"shop", `{podSelector: {}, egress: [{to: [{namespaceSelector: {}}]}]}`, api, hook, hostNetwork, No, PolicyDenies},
		"a pod reaches itself":                 {"kube-system", denyIn, hook, hook, nil, Yes, PolicyExempt},
		"nothing enforces it":                  {"kube-system", denyIn, api, hook, func(w *World) { w.Enforced = No }, Yes, NotEnforced},
		"whether anything enforces it unknown": {"kube-system", denyIn, api, hook, func(w *World) { w.Enforced = "" }, Unknown, NotKnown},
		"policies unknown":                     {"kube-system", denyIn, api, hook, func(w *World) { w.Policies = Known[*networkingv1.NetworkPolicy]{Err: errors.New("x")} }, Unknown, NotKnown},
		"egress to a Service, at the pod":      {"shop", `{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: 443}]}]}`, api, Service("kube-system", "hook"), nil, No, PolicyDenies},
		"by the pod's port":                    {"shop", `{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: 9443}]}]}`, api, Service("kube-system", "hook"), nil, Yes, PolicyAllows},
	} {
		t.Run(name, func(t *testing.T) {
			w := smallWorld()
			np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: test.namespace, Name: "np"}}
			if err := yaml.UnmarshalStrict([]byte(test.spec), &np.Spec); err != nil {
				t.Fatal(err)
			}
			w.Policies.All = []*networkingv1.NetworkPolicy{np}
			w.Namespaces.All = []*corev1.Namespace{namespace("shop", nil), namespace("kube-system", map[string]string{"team": "b"})}
			if test.change != nil {
				test.change(w)
			}
			port := 9443
			if test.to.Kind == "Service" {
				port = 443
			}
			a := w.Path(test.from, test.to, TCP, port).On(NetworkPolicies)
			if a.Truth != test.want {
				t.Fatalf("%s: %s", a.Truth, a.Says())
			}
			found := test.code == ""
			for _, h := range a.Decisive() {
				found = found || h.Code == test.code
			}
			if !found {
				t.Errorf("no %s: %s", test.code, a.Says())
			}
		})
	}
}

func namespace(name string, labels map[string]string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

func team(w *World) { w.Namespaces.All[0].Labels = map[string]string{"team": "a"} }

func noNamespaces(w *World) { w.Namespaces = Known[*corev1.Namespace]{Err: errors.New("forbidden")} }

func hostNetwork(w *World) {
	w.Pods.All[1].Spec.HostNetwork = true
	w.Pods.All[1].Status.PodIP = "10.0.1.10"
}
