package scheduling

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// A valueSet is the values that requirements leave to one label: those listed,
// or all but those listed, within bounds. absent says whether the label may be
// missing. Source of the semantics: kubernetes-sigs/karpenter
// pkg/scheduling/requirement.go.
type valueSet struct {
	complement bool
	values     []string
	above      int // exclusive
	below      int // exclusive
	absent     bool
	says       []string // the requirements it comes from
}

func anyValue() valueSet {
	return valueSet{complement: true, above: math.MinInt, below: math.MaxInt, absent: true}
}

// and narrows the set by one more requirement.
func (s valueSet) and(r probes.Requirement) valueSet {
	s.says = append(slices.Clone(s.says), RequirementString(r))
	number := func(otherwise int) int {
		if len(r.Values) == 1 {
			if n, err := strconv.Atoi(r.Values[0]); err == nil {
				return n
			}
		}
		return otherwise
	}
	switch r.Operator {
	case "In":
		s = s.onlyIn(r.Values)
	case "NotIn":
		if s.complement {
			s.values = append(slices.Clone(s.values), r.Values...)
		} else {
			s.values = slices.DeleteFunc(slices.Clone(s.values), func(v string) bool { return slices.Contains(r.Values, v) })
		}
	case "Exists":
		s.absent = false
	case "DoesNotExist":
		if !s.absent {
			s.values, s.complement = nil, false
			break
		}
		s.values, s.complement = nil, false
		s.absent = true
	case "Gt":
		s.above, s.absent = max(s.above, number(math.MaxInt)), false
	case "Gte":
		s.above, s.absent = max(s.above, number(math.MaxInt)-1), false
	case "Lt":
		s.below, s.absent = min(s.below, number(math.MinInt)), false
	case "Lte":
		s.below, s.absent = min(s.below, number(math.MinInt)+1), false
	}
	return s
}

func (s valueSet) onlyIn(values []string) valueSet {
	var kept []string
	for _, v := range values {
		if slices.Contains(s.values, v) != s.complement {
			kept = append(kept, v)
		}
	}
	s.values, s.complement, s.absent = kept, false, false
	return s
}

// has reports whether the label may have the value.
func (s valueSet) has(value string) bool {
	if slices.Contains(s.values, value) == s.complement {
		return false
	}
	if s.above == math.MinInt && s.below == math.MaxInt {
		return true
	}
	n, err := strconv.Atoi(value)
	return err == nil && n > s.above && n < s.below
}

// empty reports whether neither a value nor the label's absence is left.
func (s valueSet) empty() bool {
	if s.absent {
		return false
	}
	if s.complement {
		return s.below != math.MaxInt && s.above != math.MinInt && s.below-s.above < 2
	}
	return !slices.ContainsFunc(s.values, s.has)
}

// defined reports whether some requirement was put on the label.
func (s valueSet) defined() bool { return len(s.says) > 0 }

// requirements are value sets by label.
type requirements map[string]valueSet

func (r requirements) of(key string) valueSet {
	if s, ok := r[key]; ok {
		return s
	}
	return anyValue()
}

func (r requirements) add(req probes.Requirement) {
	req.Key = normal(req.Key)
	r[req.Key] = r.of(req.Key).and(req)
}

// stableName are the old names of labels that Karpenter reads as the new ones.
// Source: kubernetes-sigs/karpenter pkg/apis/v1/labels.go NormalizedLabels.
var stableName = map[string]string{
	corev1.LabelFailureDomainBetaZone:   corev1.LabelTopologyZone,
	corev1.LabelFailureDomainBetaRegion: corev1.LabelTopologyRegion,
	"beta.kubernetes.io/arch":           corev1.LabelArchStable,
	"beta.kubernetes.io/os":             corev1.LabelOSStable,
	corev1.LabelInstanceType:            corev1.LabelInstanceTypeStable,
}

// normal is the name under which a label is compared. EKS Auto Mode has its
// own names for what an instance type is.
func normal(key string) string {
	if stable, ok := stableName[key]; ok {
		return stable
	}
	if name, ok := strings.CutPrefix(key, "eks.amazonaws.com/instance-"); ok {
		return "karpenter.k8s.aws/instance-" + name
	}
	return key
}

// wellKnown reports whether Karpenter gives every node the label without being
// asked, so that a pod may ask for it of any pool.
func wellKnown(key string) bool {
	switch key {
	case corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelArchStable, corev1.LabelOSStable,
		corev1.LabelInstanceTypeStable, corev1.LabelHostname, corev1.LabelWindowsBuild, "karpenter.sh/capacity-type", "karpenter.sh/nodepool",
		"topology.k8s.aws/zone-id", "karpenter.k8s.aws/ec2nodeclass", "topology.ebs.csi.aws.com/zone":
		return true
	}
	return strings.HasPrefix(key, "karpenter.k8s.aws/")
}

// RequirementString is "karpenter.sh/capacity-type In [spot]".
func RequirementString(r probes.Requirement) string {
	if len(r.Values) == 0 {
		return r.Key + " " + r.Operator
	}
	return fmt.Sprintf("%s %s [%s]", r.Key, r.Operator, strings.Join(r.Values, " "))
}

func ofExpression(e corev1.NodeSelectorRequirement) probes.Requirement {
	return probes.Requirement{Key: e.Key, Operator: string(e.Operator), Values: e.Values}
}
