package probes

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// APIServices are the APIs that others than the API server itself serve.
var APIServices = listing[APIService]("apiservices.apiregistration.k8s.io", "aggregated APIs, and whether they answer")

// An APIService is a group and version of the API; one without a Service is
// the API server's own.
type APIService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Group   string `json:"group"`
		Version string `json:"version"`
		Service *struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"service"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

// Available is the condition that says whether the API answers, or nil.
func (a *APIService) Available() *metav1.Condition {
	for i := range a.Status.Conditions {
		if a.Status.Conditions[i].Type == "Available" {
			return &a.Status.Conditions[i]
		}
	}
	return nil
}
