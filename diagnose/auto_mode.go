package diagnose

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// autoClasses are the NodeClasses of EKS Auto Mode: nil where they were not
// captured, which is no gap of its own, as most clusters have none.
var autoClasses = &probes.Probe[*probes.List[probes.AutoNodeClass]]{
	Name: probes.AutoNodeClasses.Name, About: probes.AutoNodeClasses.About, Reads: probes.AutoNodeClasses.Reads,
	Gather: func(ctx context.Context, _ probes.Source, known *probes.Facts) (*probes.List[probes.AutoNodeClass], error) {
		list, err := probes.AutoNodeClasses.Ask(ctx, known)
		var gap *probes.Gap
		if errors.As(err, &gap) {
			return nil, nil
		}
		return list, err
	},
}

// An autoCase is a NodeClass of EKS Auto Mode with a NodePool that needs it.
type autoCase struct {
	class *probes.AutoNodeClass // nil: not captured
	pool  *probes.NodePool
	why   *metav1.Condition // that is not True; nil: none
}

var unauthorizedRole = regexp.MustCompile(`Role (\S+) is unauthorized`)

// autoClassNotReady: EKS Auto Mode can't use the NodeClass of a NodePool.
var autoClassNotReady = &Rule{
	ID: "auto-nodeclass-not-ready", Explains: []*Rule{poolUnusable, poolNotReady, noNodeFromKarpenter}, Needs: []probes.Any{pools, autoClasses},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		list, err := pools.Of(facts)
		if err != nil {
			return nil
		}
		known, _ := autoClasses.Of(facts)
		byClass := map[string]*Suspect{}
		for _, p := range list.All() {
			ref := p.Spec.Template.Spec.NodeClassRef
			if ref.Group != "eks.amazonaws.com" || ref.Kind != "NodeClass" {
				continue
			}
			for _, e := range effects {
				for _, r := range e.Subjects {
					if r != (Ref{Kind: "NodePool", Name: p.Name}) {
						continue
					}
					s := byClass[ref.Name]
					if s == nil {
						c := autoCase{pool: p}
						if known != nil {
							c.class = known.Get("", ref.Name)
						}
						c.why = c.broken()
						s = &Suspect{Subjects: []Ref{{Kind: "NodeClass", Name: ref.Name}}, Data: c, Vars: map[string]string{"class": ref.Name, "pools": p.Name, "condition": "Ready", "says": "why is not known"}}
						if c.why != nil {
							s.Vars["condition"], s.Vars["says"] = c.why.Type+" is "+string(c.why.Status), strings.TrimSpace(c.why.Reason+": "+c.why.Message)
							if m := unauthorizedRole.FindStringSubmatch(c.why.Message); m != nil {
								s.Subjects = append([]Ref{{Kind: "IAMRole", Name: probes.RoleName(m[1])}}, s.Subjects...)
							}
						}
						byClass[ref.Name] = s
					} else if !strings.Contains(", "+s.Vars["pools"]+", ", ", "+p.Name+", ") {
						s.Vars["pools"] += ", " + p.Name
					}
					s.Effects = appendNew(s.Effects, e)
				}
			}
		}
		var found []Suspect
		for _, name := range sortedKeys(byClass) {
			found = append(found, *byClass[name])
		}
		return found
	},
	Tests: []Test{{Asks: "does EKS Auto Mode say that NodeClass {class} is not ready?", Needs: []probes.Any{pools, autoClasses}, Run: func(_ *probes.Facts, s Suspect) Answer {
		c := s.Data.(autoCase)
		switch {
		case c.class != nil && c.why != nil:
			return Answered(true, SawObject("nodeclasses.eks.amazonaws.com", "", c.class.Name, "NodeClass %s: %s=%s, %s: %s", c.class.Name, c.why.Type, c.why.Status, c.why.Reason, c.why.Message))
		case c.class != nil:
			return Answered(false, SawObject("nodeclasses.eks.amazonaws.com", "", c.class.Name, "no condition of NodeClass %s is False", c.class.Name))
		case c.why != nil && strings.Contains(c.why.Message, "=False"):
			return Answered(true, sawPoolCondition(c.pool, c.why))
		case c.why != nil && c.why.Reason != "NodeClassNotFound":
			return CantTell(fmt.Errorf("NodeClass %s was not captured", s.Vars["class"]), sawPoolCondition(c.pool, c.why))
		}
		return Answered(false, sawPool(c.pool, "NodePool %s names no fault of its NodeClass", c.pool.Name))
	}}},
}

// broken is the condition that says what is wrong with the class, or, where it
// was not captured, what its NodePool says of it.
func (c autoCase) broken() *metav1.Condition {
	if c.class == nil {
		if k := meta.FindStatusCondition(c.pool.Status.Conditions, "NodeClassReady"); k != nil && k.Status != metav1.ConditionTrue {
			return k
		}
		return nil
	}
	var ready *metav1.Condition
	for i := range c.class.Status.Conditions {
		k := &c.class.Status.Conditions[i]
		if k.Type == "Ready" && k.Status != metav1.ConditionTrue {
			ready = k
		} else if k.Status == metav1.ConditionFalse {
			return k
		}
	}
	return ready
}
