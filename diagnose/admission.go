package diagnose

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/scheduling"
)

// admitted is a pod of the template as the API server would judge it: limits
// stand for missing requests, and the namespace's LimitRanges fill in defaults.
func admitted(s shortage, ranges []*corev1.LimitRange) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: *s.template.ObjectMeta.DeepCopy(), Spec: *s.template.Spec.DeepCopy()}
	pod.Namespace = s.workload.Namespace
	fill := func(c *corev1.Container) {
		if c.Resources.Limits == nil {
			c.Resources.Limits = corev1.ResourceList{}
		}
		if c.Resources.Requests == nil {
			c.Resources.Requests = corev1.ResourceList{}
		}
		given := maps.Clone(c.Resources.Limits)
		for _, name := range slices.Sorted(maps.Keys(given)) {
			if _, ok := c.Resources.Requests[name]; !ok {
				c.Resources.Requests[name] = given[name]
			}
		}
		for _, r := range ranges {
			for _, item := range r.Spec.Limits {
				if item.Type != corev1.LimitTypeContainer {
					continue
				}
				for name, q := range item.Default {
					if _, ok := c.Resources.Limits[name]; !ok {
						c.Resources.Limits[name] = q
					}
				}
				for name, q := range item.DefaultRequest {
					if _, ok := c.Resources.Requests[name]; !ok {
						c.Resources.Requests[name] = q
					}
				}
			}
		}
	}
	for i := range pod.Spec.InitContainers {
		fill(&pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		fill(&pod.Spec.Containers[i])
	}
	return pod
}

func rangesIn(list *probes.List[corev1.LimitRange], namespace string) []*corev1.LimitRange {
	return list.Where(func(r *corev1.LimitRange) bool { return r.Namespace == namespace })
}

// quotaExceeded: one more pod would go over a ResourceQuota.
var quotaExceeded = admissionRule("quota-exceeded", "would one more pod of {workload} go over a ResourceQuota of its namespace?", "quota",
	[]probes.Any{probes.ResourceQuotas, probes.LimitRanges}, func(facts *probes.Facts, c shortage, s *Suspect) Answer {
		quotas, err := probes.ResourceQuotas.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		ranges, err := probes.LimitRanges.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		pod := admitted(c, rangesIn(ranges, c.workload.Namespace))
		asked := quotaUse(pod, c.claims)
		var evidence []Evidence
		for q := range quotas.In(c.workload.Namespace) {
			if !quotaCovers(q, pod) {
				continue
			}
			for _, name := range slices.Sorted(maps.Keys(hardOf(q))) {
				want, ok := asked[name]
				if !ok || want.IsZero() {
					continue
				}
				hard, used := hardOf(q)[name], q.Status.Used[name]
				sum := used.DeepCopy()
				sum.Add(want)
				if sum.Cmp(hard) <= 0 {
					continue
				}
				unit := corev1.ResourceName(strings.TrimPrefix(strings.TrimPrefix(string(name), "requests."), "limits."))
				says := fmt.Sprintf("%s: %s used of %s, a pod of %s asks for %s", name, scheduling.Show(unit, used), scheduling.Show(unit, hard), c.workload.Name, scheduling.Show(unit, want))
				evidence = append(evidence, SawObject("resourcequotas", q.Namespace, q.Name, "ResourceQuota %s/%s: %s", q.Namespace, q.Name, says))
				if len(evidence) == 1 {
					s.Subjects = []Ref{{Kind: "ResourceQuota", Namespace: q.Namespace, Name: q.Name}, c.workload}
					s.Vars["quota"], s.Vars["resource"], s.Vars["says"] = q.Name, string(name), says
					s.Vars["used"], s.Vars["hard"], s.Vars["asked"] = scheduling.Show(unit, used), scheduling.Show(unit, hard), scheduling.Show(unit, want)
				}
			}
		}
		if len(evidence) > 0 {
			return Answered(true, evidence...)
		}
		if kindOfRefusal(c.says) == "quota" {
			return CantTell(fmt.Errorf("the API server says %q, but by the quotas that are here a pod would fit", c.says), c.seen)
		}
		return Answered(false, Saw("resourcequotas", nil, "a pod of %s fits into the quotas of namespace %s", c.workload.Name, c.workload.Namespace))
	})

func hardOf(q *corev1.ResourceQuota) corev1.ResourceList {
	if len(q.Status.Hard) > 0 {
		return q.Status.Hard
	}
	return q.Spec.Hard
}

// quotaUse is what a pod counts for in a quota, and the claims made with it.
// Source: kubernetes pkg/quota/v1/evaluator/core.
func quotaUse(pod *corev1.Pod, claims []corev1.PersistentVolumeClaim) corev1.ResourceList {
	use := corev1.ResourceList{"pods": *resource.NewQuantity(1, resource.DecimalSI), "count/pods": *resource.NewQuantity(1, resource.DecimalSI)}
	add := func(name corev1.ResourceName, q resource.Quantity) {
		sum := use[name]
		sum.Add(q)
		use[name] = sum
	}
	for name, q := range scheduling.Requests(pod) {
		switch name {
		case corev1.ResourcePods:
		case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
			add(name, q)
			add("requests."+name, q)
		default:
			add("requests."+name, q)
		}
	}
	for _, container := range pod.Spec.Containers {
		for name, q := range container.Resources.Limits {
			add("limits."+name, q)
		}
	}
	for _, claim := range claims {
		one := *resource.NewQuantity(1, resource.DecimalSI)
		add("persistentvolumeclaims", one)
		add("count/persistentvolumeclaims", one)
		add("requests.storage", claim.Spec.Resources.Requests[corev1.ResourceStorage])
		if class := scheduling.ClassOfClaim(&claim); class != "" {
			add(corev1.ResourceName(class+".storageclass.storage.k8s.io/requests.storage"), claim.Spec.Resources.Requests[corev1.ResourceStorage])
			add(corev1.ResourceName(class+".storageclass.storage.k8s.io/persistentvolumeclaims"), one)
		}
	}
	return use
}

// quotaCovers reports whether a quota's scopes take in the pod.
func quotaCovers(q *corev1.ResourceQuota, pod *corev1.Pod) bool {
	bestEffort := true
	for _, c := range pod.Spec.Containers {
		for _, list := range []corev1.ResourceList{c.Resources.Requests, c.Resources.Limits} {
			for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
				if v, ok := list[name]; ok && !v.IsZero() {
					bestEffort = false
				}
			}
		}
	}
	covers := func(scope corev1.ResourceQuotaScope, operator corev1.ScopeSelectorOperator, values []string) bool {
		switch scope {
		case corev1.ResourceQuotaScopeTerminating:
			return pod.Spec.ActiveDeadlineSeconds != nil
		case corev1.ResourceQuotaScopeNotTerminating:
			return pod.Spec.ActiveDeadlineSeconds == nil
		case corev1.ResourceQuotaScopeBestEffort:
			return bestEffort
		case corev1.ResourceQuotaScopeNotBestEffort:
			return !bestEffort
		case corev1.ResourceQuotaScopePriorityClass:
			name := pod.Spec.PriorityClassName
			switch operator {
			case corev1.ScopeSelectorOpIn:
				return slices.Contains(values, name)
			case corev1.ScopeSelectorOpNotIn:
				return !slices.Contains(values, name)
			case corev1.ScopeSelectorOpDoesNotExist:
				return name == ""
			}
			return name != ""
		}
		return true
	}
	for _, scope := range q.Spec.Scopes {
		if !covers(scope, corev1.ScopeSelectorOpExists, nil) {
			return false
		}
	}
	if q.Spec.ScopeSelector != nil {
		for _, e := range q.Spec.ScopeSelector.MatchExpressions {
			if !covers(e.ScopeName, e.Operator, e.Values) {
				return false
			}
		}
	}
	return true
}

// quotaDemandsRequests: a quota counts a resource, so that every container
// must say how much it asks for, and one doesn't.
var quotaDemandsRequests = admissionRule("quota-demands-requests", "does a ResourceQuota count a resource for which a container of {workload} sets no request or limit?", "quota-needs",
	[]probes.Any{probes.ResourceQuotas, probes.LimitRanges}, func(facts *probes.Facts, c shortage, s *Suspect) Answer {
		quotas, err := probes.ResourceQuotas.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		ranges, err := probes.LimitRanges.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		pod := admitted(c, rangesIn(ranges, c.workload.Namespace))
		var evidence []Evidence
		var missing []string
		for q := range quotas.In(c.workload.Namespace) {
			if !quotaCovers(q, pod) {
				continue
			}
			for _, name := range slices.Sorted(maps.Keys(hardOf(q))) {
				for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
					if !lacks(container, name) {
						continue
					}
					says := fmt.Sprintf("container %s sets no %s", container.Name, name)
					evidence = append(evidence, SawObject("resourcequotas", q.Namespace, q.Name, "ResourceQuota %s/%s limits %s, and %s", q.Namespace, q.Name, name, says))
					s.Vars["quota"] = q.Name
					if !slices.Contains(missing, says) {
						missing = append(missing, says)
					}
				}
			}
		}
		if len(evidence) > 0 {
			s.Vars["says"] = strings.Join(missing, ", ")
			s.Subjects = append(s.Subjects, Ref{Kind: "ResourceQuota", Namespace: c.workload.Namespace, Name: s.Vars["quota"]})
			return Answered(true, evidence...)
		}
		if kindOfRefusal(c.says) == "quota-needs" {
			return CantTell(fmt.Errorf("the API server says %q, but each container of the template sets what the quotas count: a container that is injected may not", c.says), c.seen)
		}
		return Answered(false, Saw("resourcequotas", nil, "each container of %s sets what the quotas of namespace %s count", c.workload.Name, c.workload.Namespace))
	})

// lacks reports whether a container leaves out what a quota resource counts.
// Source: kubernetes pkg/quota/v1/evaluator/core/pods.go Constraints.
func lacks(c corev1.Container, name corev1.ResourceName) bool {
	list, of := c.Resources.Requests, name
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory:
	case corev1.ResourceRequestsCPU:
		of = corev1.ResourceCPU
	case corev1.ResourceRequestsMemory:
		of = corev1.ResourceMemory
	case corev1.ResourceLimitsCPU:
		list, of = c.Resources.Limits, corev1.ResourceCPU
	case corev1.ResourceLimitsMemory:
		list, of = c.Resources.Limits, corev1.ResourceMemory
	default:
		return false
	}
	_, ok := list[of]
	return !ok
}

// limitRangeRefuses: a container or pod is outside a LimitRange.
var limitRangeRefuses = admissionRule("limit-range-refuses", "is a container of {workload} outside the minimum, maximum or ratio of a LimitRange?", "limit-range",
	[]probes.Any{probes.LimitRanges}, func(facts *probes.Facts, c shortage, s *Suspect) Answer {
		list, err := probes.LimitRanges.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		ranges := rangesIn(list, c.workload.Namespace)
		pod := admitted(c, ranges)
		for _, r := range ranges {
			violations := append(outside(r, pod), claimOutside(r, c.claims)...)
			if len(violations) == 0 {
				continue
			}
			ref := Ref{Kind: "LimitRange", Namespace: r.Namespace, Name: r.Name}
			s.Subjects = append(s.Subjects, ref)
			if changedAt(r).After(changedAt(c.object)) {
				s.Subjects = []Ref{ref, c.workload}
			}
			s.Vars["range"], s.Vars["says"] = r.Name, strings.Join(violations, "; ")
			return Answered(true, SawObject("limitranges", r.Namespace, r.Name, "LimitRange %s/%s: %s", r.Namespace, r.Name, s.Vars["says"]))
		}
		if kindOfRefusal(c.says) == "limit-range" {
			return CantTell(fmt.Errorf("the API server says %q, but by the LimitRanges that are here the pod is within them", c.says), c.seen)
		}
		return Answered(false, Saw("limitranges", nil, "a pod of %s is within the LimitRanges of namespace %s", c.workload.Name, c.workload.Namespace))
	})

// outside says how a pod is outside a LimitRange.
// Source: kubernetes plugin/pkg/admission/limitranger.
func outside(r *corev1.LimitRange, pod *corev1.Pod) []string {
	var says []string
	judge := func(who string, item corev1.LimitRangeItem, requests, limits corev1.ResourceList) {
		for _, name := range slices.Sorted(maps.Keys(item.Min)) {
			bound := item.Min[name]
			if q, ok := requests[name]; !ok {
				says = append(says, fmt.Sprintf("%s requests no %s, the minimum is %s", who, name, scheduling.Show(name, bound)))
			} else if q.Cmp(bound) < 0 {
				says = append(says, fmt.Sprintf("%s requests %s of %s, the minimum is %s", who, scheduling.Show(name, q), name, scheduling.Show(name, bound)))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(item.Max)) {
			bound := item.Max[name]
			if q, ok := limits[name]; !ok {
				says = append(says, fmt.Sprintf("%s has no limit of %s, the maximum is %s", who, name, scheduling.Show(name, bound)))
			} else if q.Cmp(bound) > 0 {
				says = append(says, fmt.Sprintf("%s has a limit of %s of %s, the maximum is %s", who, scheduling.Show(name, q), name, scheduling.Show(name, bound)))
			} else if q, ok := requests[name]; ok && q.Cmp(bound) > 0 {
				says = append(says, fmt.Sprintf("%s requests %s of %s, the maximum is %s", who, scheduling.Show(name, q), name, scheduling.Show(name, bound)))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(item.MaxLimitRequestRatio)) {
			bound, request, limit := item.MaxLimitRequestRatio[name], requests[name], limits[name]
			if request.IsZero() || float64(limit.MilliValue())/float64(request.MilliValue()) > float64(bound.MilliValue())/1000 {
				says = append(says, fmt.Sprintf("%s has a limit of %s and a request of %s of %s, the greatest ratio is %s", who, scheduling.Show(name, limit), scheduling.Show(name, request), name, bound.String()))
			}
		}
	}
	for _, item := range r.Spec.Limits {
		switch item.Type {
		case corev1.LimitTypeContainer:
			for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
				judge("container "+c.Name, item, c.Resources.Requests, c.Resources.Limits)
			}
		case corev1.LimitTypePod:
			limits := corev1.ResourceList{}
			for _, c := range pod.Spec.Containers {
				for name, q := range c.Resources.Limits {
					sum := limits[name]
					sum.Add(q)
					limits[name] = sum
				}
			}
			judge("the pod", item, scheduling.Requests(pod), limits)
		}
	}
	return says
}
