package diagnose

import (
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// schedulerSays is the scheduler's account of its last try as the pod keeps it.
func schedulerSays(p *corev1.Pod) string {
	if c := probes.PodCondition(p, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		return c.Message
	}
	return ""
}

// schedulerWords are what kube-scheduler says of each reason, in any version
// since 1.18. Source: kubernetes pkg/scheduler/framework/plugins.
var schedulerWords = map[reason]*regexp.Regexp{
	byLabels:       regexp.MustCompile(`(?i)node affinity|node selector|nodeselector|didn't match Pod's|NodeAffinity`),
	byVolume:       regexp.MustCompile(`(?i)volume node affinity|available persistent volumes|no available volume zone|volume|NodeSelectorTerms`),
	byTaint:        regexp.MustCompile(`(?i)taint`),
	byStartupTaint: regexp.MustCompile(`(?i)taint`),
	byNotReady:     regexp.MustCompile(`(?i)taint|not ready`),
	byCordon:       regexp.MustCompile(`(?i)unschedulable`),
	byTooLarge:     regexp.MustCompile(`(?i)insufficient|too many pods|no instance type`),
	byNoRoom:       regexp.MustCompile(`(?i)insufficient|too many pods`),
	byHostPort:     regexp.MustCompile(`(?i)port`),
	byAntiAffinity: regexp.MustCompile(`(?i)anti-affinity|affinity/anti-affinity`),
	byAffinity:     regexp.MustCompile(`(?i)pod affinity|affinity/anti-affinity|inter-?pod`),
	bySpread:       regexp.MustCompile(`(?i)topology spread`),
	byAttachLimit:  regexp.MustCompile(`(?i)max volume count`),
}

// contradicted reports whether the scheduler gave an account of the nodes in
// which the recomputed reason doesn't occur: then a document is incomplete, or
// something else decides.
func contradicted(p *placement) bool {
	says, words := p.says, schedulerWords[p.reason]
	onPools := slices.ContainsFunc(p.units, func(u unit) bool { return u.pool != nil }) // of which kube-scheduler knows nothing
	return words != nil && !onPools && strings.Contains(says, "nodes are available") && !words.MatchString(says)
}
