package probes

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A ChaosExperiment is a fault that somebody injects on purpose, by Chaos Mesh
// or by Litmus. Sources: chaos-mesh.org/docs (api/v1alpha1 common_types.go,
// selector.go, status.go); litmuschaos/chaos-operator api/litmuschaos/v1alpha1
// chaosengine_types.go.
type ChaosExperiment struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Action   string `json:"action,omitempty"`
		Duration string `json:"duration,omitempty"`
		Selector struct {
			Namespaces     []string            `json:"namespaces,omitempty"` // its own if empty
			LabelSelectors map[string]string   `json:"labelSelectors,omitempty"`
			Pods           map[string][]string `json:"pods,omitempty"` // names by namespace
		} `json:"selector"`
		// What follows is Litmus'.
		EngineState string `json:"engineState,omitempty"`
		AppInfo     struct {
			Namespace string `json:"appns,omitempty"`
			Label     string `json:"applabel,omitempty"`
		} `json:"appinfo"`
		Experiments []struct {
			Name string `json:"name"`
		} `json:"experiments,omitempty"`
	} `json:"spec"`
	Status struct {
		EngineStatus string `json:"engineStatus,omitempty"` // Litmus'
		Experiment   struct {
			DesiredPhase string `json:"desiredPhase,omitempty"` // Run, Stop
			Records      []struct {
				ID    string `json:"id"`    // "namespace/pod" or "namespace/pod/container"
				Phase string `json:"phase"` // Injected, Not Injected
			} `json:"containerRecords,omitempty"`
		} `json:"experiment"`
	} `json:"status"`
}

// A ChaosKind is one kind of them.
type ChaosKind struct {
	Kind, Resource string
	Objects        *Probe[*List[ChaosExperiment]]
}

// ChaosKinds are those that are read.
var ChaosKinds = func() []ChaosKind {
	var kinds []ChaosKind
	for _, k := range []struct{ kind, resource, controller string }{
		{"PodChaos", "podchaos.chaos-mesh.org", "chaos-mesh"},
		{"NetworkChaos", "networkchaos.chaos-mesh.org", "chaos-mesh"},
		{"StressChaos", "stresschaos.chaos-mesh.org", "chaos-mesh"},
		{"IOChaos", "iochaos.chaos-mesh.org", "chaos-mesh"},
		{"HTTPChaos", "httpchaos.chaos-mesh.org", "chaos-mesh"},
		{"DNSChaos", "dnschaos.chaos-mesh.org", "chaos-mesh"},
		{"TimeChaos", "timechaos.chaos-mesh.org", "chaos-mesh"},
		{"JVMChaos", "jvmchaos.chaos-mesh.org", "chaos-mesh"},
		{"KernelChaos", "kernelchaos.chaos-mesh.org", "chaos-mesh"},
		{"ChaosEngine", "chaosengines.litmuschaos.io", "chaos-operator"},
	} {
		kinds = append(kinds, ChaosKind{k.kind, k.resource, actedOnBy[ChaosExperiment](k.controller, k.resource, "faults that are injected on purpose: "+k.kind)})
	}
	return kinds
}()
