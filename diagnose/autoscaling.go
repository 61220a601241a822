package diagnose

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/pposiraegi/ppodoctor/probes"
)

// autoscalerBlind: an autoscaler can't see its metrics or its target.
var autoscalerBlind = &Rule{
	ID:    "autoscaler-blind",
	Needs: []probes.Any{probes.Autoscalers},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		return autoscalers(facts, func(h *autoscalingv2.HorizontalPodAutoscaler) (*autoscalingv2.HorizontalPodAutoscalerCondition, string) {
			for i, c := range h.Status.Conditions {
				late := facts.Source().Now().Sub(c.LastTransitionTime.Time) > 5*patience
				if c.Status == corev1.ConditionFalse && late && (c.Type == autoscalingv2.ScalingActive && c.Reason != "ScalingDisabled" || c.Type == autoscalingv2.AbleToScale && c.Reason == "FailedGetScale") {
					return &h.Status.Conditions[i], fmt.Sprintf("%s is False: %s: %s", c.Type, c.Reason, c.Message)
				}
			}
			return nil, ""
		})
	},
}

// autoscalerAtLimit: an autoscaler has made as many pods as it may, and they
// are still over the target.
var autoscalerAtLimit = &Rule{
	ID:    "autoscaler-at-limit",
	Needs: []probes.Any{probes.Autoscalers},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		return autoscalers(facts, func(h *autoscalingv2.HorizontalPodAutoscaler) (*autoscalingv2.HorizontalPodAutoscalerCondition, string) {
			if h.Status.CurrentReplicas < h.Spec.MaxReplicas {
				return nil, ""
			}
			over := overTarget(h)
			for i, c := range h.Status.Conditions {
				if c.Type == autoscalingv2.ScalingLimited && c.Status == corev1.ConditionTrue && c.Reason == "TooManyReplicas" && over != "" {
					return &h.Status.Conditions[i], fmt.Sprintf("it has its maximum of %d replicas, and %s", h.Spec.MaxReplicas, over)
				}
			}
			return nil, ""
		})
	},
}

// overTarget says which metric is well over its target, or "".
func overTarget(h *autoscalingv2.HorizontalPodAutoscaler) string {
	for _, m := range h.Spec.Metrics {
		if m.Resource == nil || m.Resource.Target.AverageUtilization == nil {
			continue
		}
		for _, c := range h.Status.CurrentMetrics {
			if c.Resource != nil && c.Resource.Name == m.Resource.Name && c.Resource.Current.AverageUtilization != nil &&
				*c.Resource.Current.AverageUtilization*10 > *m.Resource.Target.AverageUtilization*12 {
				return fmt.Sprintf("%s is at %d%% with a target of %d%%", m.Resource.Name, *c.Resource.Current.AverageUtilization, *m.Resource.Target.AverageUtilization)
			}
		}
	}
	return ""
}

func autoscalers(facts *probes.Facts, look func(*autoscalingv2.HorizontalPodAutoscaler) (*autoscalingv2.HorizontalPodAutoscalerCondition, string)) []Suspect {
	list, err := probes.Autoscalers.Of(facts)
	if err != nil {
		return nil
	}
	var found []Suspect
	for _, h := range list.All() {
		c, says := look(h)
		if c == nil || h.DeletionTimestamp != nil {
			continue
		}
		t := h.Spec.ScaleTargetRef
		at := c.LastTransitionTime.Time
		found = append(found, Suspect{
			Subjects: []Ref{{Kind: "HorizontalPodAutoscaler", Namespace: h.Namespace, Name: h.Name}, {Kind: t.Kind, Namespace: h.Namespace, Name: t.Name}},
			Count:    1, Since: &at, Data: h,
			Vars:  map[string]string{"says": says, "target": t.Kind + " " + t.Name, "message": c.Message, "max": fmt.Sprint(h.Spec.MaxReplicas)},
			Found: []Evidence{SawObject("horizontalpodautoscalers.autoscaling", h.Namespace, h.Name, "autoscaler %s: %s", h.Name, says)},
		})
	}
	return found
}

// perAutoscaler proposes the autoscalers, with the given subject first.
func perAutoscaler(subject func(h, target Ref) Ref) func(*probes.Facts, []*Finding) []Suspect {
	return func(_ *probes.Facts, effects []*Finding) []Suspect {
		var list []Suspect
		for _, e := range effects {
			vars := map[string]string{"hint": ""}
			for k, v := range e.Vars {
				vars[k] = v
			}
			first := subject(e.Subjects[0], e.Subjects[1])
			list = append(list, Suspect{Subjects: append([]Ref{first}, e.Subjects...), Effects: []*Finding{e}, Vars: vars, Data: e.Data, Found: e.Found})
		}
		return list
	}
}

func theAutoscaler(h, _ Ref) Ref  { return h }
func theScaled(_, target Ref) Ref { return target }
func messageOf(s Suspect) string  { return s.Vars["message"] }

// autoscalerTargetMissing: the autoscaler scales something that is not there.
var autoscalerTargetMissing = &Rule{
	ID:       "autoscaler-target-missing",
	Explains: []*Rule{autoscalerBlind},
	Suspects: perAutoscaler(theAutoscaler),
	Tests: []Test{{
		Asks:  "does the autoscaler's target {target} not exist?",
		Needs: []probes.Any{probes.Deployments, probes.StatefulSets},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			h := s.Data.(*autoscalingv2.HorizontalPodAutoscaler)
			t := h.Spec.ScaleTargetRef
			var names []string
			var err error
			switch t.Kind {
			case "Deployment":
				names, err = namesIn(probes.Deployments, facts, h.Namespace)
			case "StatefulSet":
				names, err = namesIn(probes.StatefulSets, facts, h.Namespace)
			default:
				return Answered(strings.Contains(messageOf(s), "not found"), s.Found...)
			}
			if err != nil {
				return CantTell(err)
			}
			if slices.Contains(names, t.Name) {
				return Answered(false)
			}
			a := Answered(true, SawObject("horizontalpodautoscalers.autoscaling", h.Namespace, h.Name, "scaleTargetRef is %s %s, and namespace %s has no such %s", t.Kind, t.Name, h.Namespace, t.Kind))
			if near := nearest(t.Name, names); near != "" {
				a = a.With("hint", fmt.Sprintf(" There is a %s %s.", t.Kind, near))
			}
			return a
		},
	}},
}

func namesIn[T any](p *probes.Probe[*probes.List[T]], facts *probes.Facts, namespace string) ([]string, error) {
	list, err := p.Of(facts)
	if err != nil {
		return nil, err
	}
	var names []string
	for o := range list.In(namespace) {
		names = append(names, any(o).(metav1.Object).GetName())
	}
	return names, nil
}

var missingRequest = regexp.MustCompile(`missing request for (?P<resource>[\w./-]+)(?: in container (?P<container>\S+) of Pod (?P<pod>\S+))?`)

// autoscalerNeedsRequests: utilisation is of a request, and a container has none.
var autoscalerNeedsRequests = &Rule{
	ID:       "autoscaler-needs-requests",
	Explains: []*Rule{autoscalerBlind},
	Suspects: perAutoscaler(theScaled),
	Tests: []Test{
		{
			Asks: "does the autoscaler say that a container has no request?",
			Run: func(_ *probes.Facts, s Suspect) Answer {
				got := groups(missingRequest, messageOf(s))
				if got == nil {
					return Answered(false)
				}
				a := Answered(true, s.Found...).With("resource", got["resource"])
				return a
			},
		},
		{
			Asks:  "which containers of {target} have no request for {resource}?",
			Needs: []probes.Any{probes.Pods, probes.Workloads, probes.Deployments},
			Run: func(facts *probes.Facts, s Suspect) Answer {
				workloads, err := probes.Workloads.Of(facts)
				if err != nil {
					return CantTell(err).With("containers", "(not known)")
				}
				got := groups(missingRequest, messageOf(s))
				var names []string
				var says []Evidence
				for _, p := range workloads.Pods(s.Subjects[0]) {
					for _, c := range p.Spec.Containers {
						_, ok := c.Resources.Requests[corev1.ResourceName(got["resource"])]
						if !ok && !slices.Contains(names, c.Name) {
							names = append(names, c.Name)
							says = append(says, SawObject("pods", p.Namespace, p.Name, "pod %s: container %s has no resources.requests.%s", p.Name, c.Name, got["resource"]))
						}
					}
				}
				if len(names) == 0 && got["container"] != "" {
					names = []string{got["container"]}
					says = s.Found
				}
				if len(names) == 0 {
					return Answered(false)
				}
				a := Answered(true, says...).With("containers", strings.Join(names, ", "))
				if deployments, err := probes.Deployments.Of(facts); err == nil {
					if d := deployments.Get(s.Subjects[0].Namespace, s.Subjects[0].Name); d != nil && s.Subjects[0].Kind == "Deployment" {
						for _, n := range names {
							if !slices.ContainsFunc(d.Spec.Template.Spec.Containers, func(c corev1.Container) bool { return c.Name == n }) {
								a = a.With("hint", fmt.Sprintf(" Container %s is not in the deployment's template: it is injected, and its request is set where the injection is configured.", n))
							}
						}
					}
				}
				return a
			},
		},
	},
}

var noMetricsAPI = regexp.MustCompile(`(?:unable to (?:fetch|get) metrics from resource metrics API|failed to get \S+ (?:utilization|resource metric value))[^\n]*(?:the server could not find the requested resource|the server is currently unable to handle the request|service unavailable|connection refused|no endpoints|i/o timeout|deadline exceeded)`)

// metricsAPIDown: nobody serves the resource metrics.
var metricsAPIDown = &Rule{
	ID:       "metrics-api-down",
	Relay:    true,
	Explains: []*Rule{autoscalerBlind, apiUnavailable, namespaceHeldByAPI},
	Needs:    []probes.Any{probes.Deployments},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		deployments, err := probes.Deployments.Of(facts)
		if err != nil {
			return nil
		}
		s := Suspect{Subjects: []Ref{{Kind: "APIService", Name: "v1beta1.metrics.k8s.io"}}, Vars: map[string]string{"state": "no metrics-server is installed", "hint": ""}}
		for _, d := range deployments.All() {
			if strings.Contains(d.Name, "metrics-server") || d.Labels["k8s-app"] == "metrics-server" || d.Labels["app.kubernetes.io/name"] == "metrics-server" {
				s.Subjects = []Ref{{Kind: "Deployment", Namespace: d.Namespace, Name: d.Name}, s.Subjects[0]}
				s.Vars["state"] = fmt.Sprintf("%d of %d pods of Deployment %s/%s are available", d.Status.AvailableReplicas, replicas(d.Spec.Replicas), d.Namespace, d.Name)
				s.Found = []Evidence{SawObject("deployments.apps", d.Namespace, d.Name, "%s", s.Vars["state"])}
				s.Data = d.Status.AvailableReplicas
				break
			}
		}
		var held []*Finding // which say it only of the API, whoever serves it
		for _, e := range effects {
			a, _ := e.Data.(*probes.APIService)
			if e.Rule == autoscalerBlind && noMetricsAPI.MatchString(e.Vars["message"]) || a != nil && a.Spec.Group == resourceMetrics {
				s.Effects = append(s.Effects, e)
			} else if e.Rule == namespaceHeldByAPI && strings.HasSuffix(e.Subject().Name, "."+resourceMetrics) {
				held = append(held, e)
			}
		}
		if len(s.Effects) == 0 {
			return nil
		}
		s.Effects = append(s.Effects, held...)
		return []Suspect{s}
	},
	Tests: []Test{{
		Asks: "is there no metrics-server that serves?",
		Run: func(_ *probes.Facts, s Suspect) Answer {
			if n, ok := s.Data.(int32); ok && n > 0 {
				return Answered(false, s.Found...)
			}
			return Answered(true, append(slices.Clone(s.Effects[0].Found), s.Found...)...)
		},
	}},
}

var noOtherMetric = regexp.MustCompile(`unable to (?:get|fetch) (?:external|custom|pods?|object) metrics? (?P<metric>[^:,]+)|no metrics returned from (?:external|custom) metrics API|failed to get (?:external|object|pods) metric`)

// metricMissing: nobody serves the external or custom metric.
var metricMissing = &Rule{
	ID:       "autoscaler-metric-missing",
	Explains: []*Rule{autoscalerBlind},
	Suspects: perAutoscaler(theAutoscaler),
	Tests: []Test{{
		Asks: "does nobody serve the external or custom metric that the autoscaler asks for?",
		Run: func(_ *probes.Facts, s Suspect) Answer {
			if !noOtherMetric.MatchString(messageOf(s)) {
				return Answered(false)
			}
			h := s.Data.(*autoscalingv2.HorizontalPodAutoscaler)
			var names []string
			for _, m := range h.Spec.Metrics {
				switch {
				case m.External != nil:
					names = append(names, "external "+m.External.Metric.Name)
				case m.Pods != nil:
					names = append(names, "pods "+m.Pods.Metric.Name)
				case m.Object != nil:
					names = append(names, "object "+m.Object.Metric.Name)
				}
			}
			return Answered(len(names) > 0, s.Found...).With("metrics", strings.Join(names, ", "))
		},
	}},
}

// autoscalerMaxTooLow: more pods would be made, but for maxReplicas.
var autoscalerMaxTooLow = &Rule{
	ID:       "autoscaler-max-too-low",
	Explains: []*Rule{autoscalerAtLimit},
	Suspects: perAutoscaler(theAutoscaler),
	Tests: []Test{{
		Asks: "is maxReplicas {max} what holds the autoscaler back?",
		Run:  func(_ *probes.Facts, s Suspect) Answer { return Answered(true, s.Found...) },
	}},
}

// selects reports whether a label selector, in its full form, takes the labels.
func selects(selector *metav1.LabelSelector, set map[string]string) bool {
	s, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && !s.Empty() && s.Matches(labels.Set(set))
}

var autoscalingRules = []*Rule{
	autoscalerBlind, autoscalerAtLimit, autoscalerTargetMissing, autoscalerNeedsRequests, metricsAPIDown, metricMissing, autoscalerMaxTooLow,
}
