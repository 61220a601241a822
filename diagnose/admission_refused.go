package diagnose

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/scheduling"
)

// The API server's words. Sources: kubernetes
// staging/src/k8s.io/apiserver/pkg/admission/plugin/policy/validating/dispatcher.go,
// staging/src/k8s.io/apimachinery/pkg/api/errors (NewInvalid).
var (
	policyDenied = regexp.MustCompile(`ValidatingAdmissionPolicy '([^']+)' with binding '([^']+)' denied request: ((?s).*)`)
	podIsInvalid = regexp.MustCompile(`Pod "[^"]*" is invalid: (?:\[)?((?s).*)`)
	aboveLimit   = regexp.MustCompile(`must be less than or equal to (\S+) limit`)
)

// admissionPolicyDenies: a ValidatingAdmissionPolicy refuses the pods. The API
// server itself evaluates it, and names the policy and its binding.
var admissionPolicyDenies = admissionRule("admission-policy-denies-pods", "did a ValidatingAdmissionPolicy refuse the pods of {workload}?", "admission-policy",
	[]probes.Any{probes.Events}, func(_ *probes.Facts, c shortage, s *Suspect) Answer {
		m := policyDenied.FindStringSubmatch(c.says)
		if m == nil {
			return Answered(false, Saw("events", nil, "no refusal by a ValidatingAdmissionPolicy is reported"))
		}
		s.Subjects = append(s.Subjects, Ref{Kind: "ValidatingAdmissionPolicy", Name: m[1]}, Ref{Kind: "ValidatingAdmissionPolicyBinding", Name: m[2]})
		s.Vars["policy"], s.Vars["binding"], s.Vars["says"] = m[1], m[2], strings.TrimSpace(m[3])
		return Answered(true, c.seen)
	})

// podInvalid: the pods that the template gives are not valid. A template is
// checked as such; what defaults and injections make of it only as a pod.
var podInvalid = admissionRule("pod-template-invalid", "does the API server say that the pods of {workload} are not valid?", "invalid",
	[]probes.Any{probes.LimitRanges}, func(facts *probes.Facts, c shortage, s *Suspect) Answer {
		m := podIsInvalid.FindStringSubmatch(c.says)
		if m == nil {
			return Answered(false, Saw("events", nil, "no invalid pod is reported"))
		}
		s.Vars["says"] = strings.TrimSuffix(strings.TrimSpace(m[1]), "]")
		over := aboveLimit.FindStringSubmatch(m[1])
		if over == nil {
			return Answered(true, c.seen)
		}
		// A request above the limit that a LimitRange fills in: the template has none.
		list, err := probes.LimitRanges.Of(facts)
		if err != nil {
			return CantTell(err, c.seen)
		}
		evidence := []Evidence{c.seen}
		for _, r := range rangesIn(list, c.workload.Namespace) {
			if says := defaultBelowRequest(r, c.template.Spec, corev1.ResourceName(over[1])); says != "" {
				s.Subjects = append(s.Subjects, Ref{Kind: "LimitRange", Namespace: r.Namespace, Name: r.Name})
				s.Vars["near"] = fmt.Sprintf(" The limit is not the template's: LimitRange %s fills it in. %s.", r.Name, says)
				evidence = append(evidence, SawObject("limitranges", r.Namespace, r.Name, "LimitRange %s/%s: %s", r.Namespace, r.Name, says))
			}
		}
		return Answered(true, evidence...)
	})

// defaultBelowRequest says which container requests more than the limit that a
// LimitRange gives to those that set none.
func defaultBelowRequest(r *corev1.LimitRange, spec corev1.PodSpec, name corev1.ResourceName) string {
	for _, item := range r.Spec.Limits {
		limit, ok := item.Default[name]
		if item.Type != corev1.LimitTypeContainer || !ok {
			continue
		}
		for _, c := range append(append([]corev1.Container{}, spec.InitContainers...), spec.Containers...) {
			_, has := c.Resources.Limits[name]
			if request, ok := c.Resources.Requests[name]; ok && !has && request.Cmp(limit) > 0 {
				return fmt.Sprintf("container %s requests %s of %s and sets no limit, the default limit is %s", c.Name, scheduling.Show(name, request), name, scheduling.Show(name, limit))
			}
		}
	}
	return ""
}

// claimOutside says how the claims of a StatefulSet are outside a LimitRange.
func claimOutside(r *corev1.LimitRange, claims []corev1.PersistentVolumeClaim) []string {
	var says []string
	for _, item := range r.Spec.Limits {
		if item.Type != corev1.LimitTypePersistentVolumeClaim {
			continue
		}
		for _, c := range claims {
			asked := c.Spec.Resources.Requests[corev1.ResourceStorage]
			if bound, ok := item.Min[corev1.ResourceStorage]; ok && asked.Cmp(bound) < 0 {
				says = append(says, fmt.Sprintf("claim %s requests %s of storage, the minimum is %s", c.Name, asked.String(), bound.String()))
			}
			if bound, ok := item.Max[corev1.ResourceStorage]; ok && asked.Cmp(bound) > 0 {
				says = append(says, fmt.Sprintf("claim %s requests %s of storage, the maximum is %s", c.Name, asked.String(), bound.String()))
			}
		}
	}
	return says
}
