package diagnose

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// poolRule is a rule for NodePools, one suspect for each that hurts.
func poolRule(id, asks string, needs []probes.Any, test func(*probes.Facts, *probes.NodePool) Answer) *Rule {
	return &Rule{
		ID: id, Explains: []*Rule{poolUnusable, poolNotReady, noNodeFromKarpenter}, Needs: []probes.Any{pools},
		Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
			list, err := pools.Of(facts)
			if err != nil {
				return nil
			}
			var found []Suspect
			for _, p := range list.All() {
				ref := Ref{Kind: "NodePool", Name: p.Name}
				s := Suspect{Subjects: []Ref{ref}, Data: p, Vars: map[string]string{"pool": p.Name}}
				for _, e := range effects {
					for _, r := range e.Subjects {
						if r == ref {
							s.Effects = appendNew(s.Effects, e)
						}
					}
				}
				if len(s.Effects) > 0 {
					found = append(found, s)
				}
			}
			return found
		},
		Tests: []Test{{Asks: asks, Needs: append([]probes.Any{pools}, needs...), Run: func(facts *probes.Facts, s Suspect) Answer {
			return test(facts, s.Data.(*probes.NodePool))
		}}},
	}
}

func sawPool(p *probes.NodePool, format string, args ...any) Evidence {
	return SawObject("nodepools.karpenter.sh", "", p.Name, format, args...)
}

func sawPoolCondition(p *probes.NodePool, k *metav1.Condition) Evidence {
	return sawPool(p, "NodePool %s: %s=%s, %s: %s", p.Name, k.Type, k.Status, k.Reason, k.Message)
}

// The node class kinds, with the group of each.
// Sources: karpenter.k8s.aws and eks.amazonaws.com (EKS Auto Mode) CRDs.
var nodeClassGroups = map[string]string{"EC2NodeClass": "karpenter.k8s.aws", "NodeClass": "eks.amazonaws.com"}

// classRefWrong: a NodePool refers to a node class that does not exist.
var classRefWrong = poolRule("nodepool-refers-to-no-class", "does the nodeClassRef of NodePool {pool} name a node class that does not exist?", []probes.Any{classes},
	func(facts *probes.Facts, p *probes.NodePool) Answer {
		ref := p.Spec.Template.Spec.NodeClassRef
		words := refWords(ref)
		k := meta.FindStatusCondition(p.Status.Conditions, "NodeClassReady")
		var evidence []Evidence
		if k != nil && k.Status == metav1.ConditionTrue {
			return Answered(false, sawPoolCondition(p, k))
		}
		if k != nil && k.Status != metav1.ConditionTrue {
			evidence = append(evidence, sawPoolCondition(p, k))
		}
		evidence = append(evidence, sawPool(p, "NodePool %s: spec.template.spec.nodeClassRef is %s", p.Name, words))
		yes := func(right string) Answer {
			return Answered(true, evidence...).With("ref", words).With("right", right)
		}
		// A group or kind that is none, or that belong to different products.
		group := ref.Group
		if group == "" {
			group, _, _ = strings.Cut(ref.APIVersion, "/")
		}
		if want, ok := nodeClassGroups[ref.Kind]; ref.Kind != "" && (!ok || group != "" && group != want) {
			right := "kind EC2NodeClass of group karpenter.k8s.aws"
			if ok {
				right = fmt.Sprintf("group %s, which has kind %s", want, ref.Kind)
			} else if n := nearest(ref.Kind, []string{"EC2NodeClass", "NodeClass"}); n != "" {
				right = fmt.Sprintf("kind %s of group %s", n, nodeClassGroups[n])
			}
			return yes(right)
		}
		if ref.Kind == "NodeClass" {
			if k != nil && k.Reason == "NodeClassNotFound" {
				return yes("a NodeClass of eks.amazonaws.com that exists")
			}
			return Answered(false, evidence...)
		}
		list, err := classes.Of(facts)
		if err != nil {
			if k != nil && k.Reason == "NodeClassNotFound" {
				return yes("an EC2NodeClass that exists")
			}
			return CantTell(err)
		}
		if c := list.Get("", ref.Name); c != nil {
			return Answered(false, SawObject("ec2nodeclasses.karpenter.k8s.aws", "", c.Name, "EC2NodeClass %s, to which NodePool %s refers, exists", c.Name, p.Name))
		}
		var names []string
		for _, c := range list.All() {
			names = append(names, c.Name)
		}
		evidence = append(evidence, SawObject("ec2nodeclasses.karpenter.k8s.aws", "", "", "there is no EC2NodeClass %s; there are: %s", ref.Name, orDefault(strings.Join(names, ", "), "none")))
		evidence[len(evidence)-1].Document.Only = nil
		right := "an EC2NodeClass that exists (" + orDefault(strings.Join(names, ", "), "there is none") + ")"
		if n := nearest(ref.Name, names); n != "" {
			right = "EC2NodeClass " + n
		} else if len(names) == 1 {
			right = "EC2NodeClass " + names[0]
		}
		return yes(right)
	})

func refWords(r probes.NodeClassRef) string {
	var parts []string
	for _, f := range []struct{ name, value string }{{"group", r.Group}, {"apiVersion", r.APIVersion}, {"kind", r.Kind}, {"name", r.Name}} {
		if f.value != "" {
			parts = append(parts, f.name+": "+f.value)
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// poolInvalid: Karpenter itself says what is wrong with a NodePool's spec.
var poolInvalid = poolRule("nodepool-spec-invalid", "does Karpenter refuse the spec of NodePool {pool}?", nil,
	func(_ *probes.Facts, p *probes.NodePool) Answer {
		k := meta.FindStatusCondition(p.Status.Conditions, "ValidationSucceeded")
		if k == nil || k.Status != metav1.ConditionFalse {
			return Answered(false, sawPool(p, "no condition of NodePool %s refuses its spec", p.Name))
		}
		return Answered(true, sawPoolCondition(p, k)).With("says", k.Message)
	})

var poolRules = []*Rule{classRefWrong, poolInvalid}
