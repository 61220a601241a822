package diagnose

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/scheduling"
)

// unscheduled is how long a pod may wait for a node before anybody would ask
// why: longer than a cloud takes to make one.
const unscheduled = 3 * time.Minute

// podPending: a pod of the workload has no node.
var podPending = &Rule{
	ID:    "pod-pending",
	Needs: []probes.Any{probes.Pods, probes.Workloads},
	Suspects: perWorkload(func(p *corev1.Pod, now time.Time) *trouble {
		if !pending(p) || now.Sub(p.CreationTimestamp.Time) < unscheduled || placeholder(p) {
			return nil
		}
		says := "has no node since " + p.CreationTimestamp.UTC().Format(time.RFC3339)
		if s := schedulerSays(p); s != "" {
			says += "; the scheduler says: " + s
		}
		return &trouble{since: &p.CreationTimestamp.Time, says: says}
	}),
}

// placeholder reports whether a pod only keeps room for others: it gives way
// to any, and is meant to wait when they have come.
// Source: kubernetes autoscaler FAQ, "How can I configure overprovisioning".
func placeholder(p *corev1.Pod) bool { return p.Spec.Priority != nil && *p.Spec.Priority < 0 }

// A pendingCase is a workload whose pods have no node, with what decides the
// case of its first such pod.
type pendingCase struct {
	effect   *Finding
	workload Ref
	*placement
	x *placementIndex
}

func pendingCases(facts *probes.Facts, effects []*Finding) []pendingCase {
	x, err := placements.Of(facts)
	if err != nil {
		return nil
	}
	var cases []pendingCase
	for _, e := range effects {
		for _, pod := range troubled(e) {
			if p := x.of[pod]; p != nil {
				cases = append(cases, pendingCase{effect: e, workload: e.Subject(), placement: p, x: x})
				break
			}
		}
	}
	return cases
}

// A told is who is at fault in a case, and the words for it.
type told struct {
	subjects []Ref
	vars     map[string]string
	evidence []Evidence
}

// placementRule is a rule for the cases that one reason decides. Cases in
// which the predicates fail somewhere, but don't decide, are ruled out with
// what decides them.
func placementRule(id, asks string, r reason, intermediate bool, predicates []scheduling.Predicate, tell func(pendingCase) told) *Rule {
	return &Rule{
		ID: id, Explains: []*Rule{podPending}, Intermediate: intermediate,
		Needs: []probes.Any{placements, probes.Workloads},
		Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
			var suspects []Suspect
			for _, c := range pendingCases(facts, effects) {
				s := Suspect{Subjects: []Ref{c.workload}, Effects: []*Finding{c.effect}, Data: c, Vars: map[string]string{"pod": c.pod.Name, "podNamespace": c.pod.Namespace, "workload": short(c.workload)}}
				switch {
				case c.reason == r:
					t := tell(c)
					s.Subjects, s.Found = t.subjects, t.evidence
					for k, v := range t.vars {
						s.Vars[k] = v
					}
				default:
					rival := c.failing(predicates)
					if len(rival.failures) == 0 {
						continue
					}
					for k, v := range tell(rival).vars {
						s.Vars[k] = v
					}
				}
				suspects = append(suspects, s)
			}
			return merged(suspects)
		},
		Tests: []Test{{Asks: asks, Needs: []probes.Any{placements}, Run: func(_ *probes.Facts, s Suspect) Answer {
			c := s.Data.(pendingCase)
			if c.reason != r {
				return Answered(false, append(c.decisive(), c.evidence()...)...)
			}
			if c.err != nil {
				return CantTell(c.err, c.evidence()...)
			}
			return Answered(true, c.evidence()...)
		}}},
	}
}

// failing is the case as it would be if only some predicates counted.
func (c pendingCase) failing(predicates []scheduling.Predicate) pendingCase {
	only := &placement{pod: c.pod, on: c.on, pools: c.pools}
	for _, on := range c.on.Nodes {
		u := unit{node: on.Node, failures: on.Failures}
		if f := u.fails(predicates...); len(predicates) > 0 && len(f) > 0 {
			only.units, only.failures = append(only.units, u), append(only.failures, f...)
		}
	}
	c.placement = only
	return c
}

// decisive says what decides instead of what was asked about.
func (c pendingCase) decisive() []Evidence {
	if len(c.failures) == 0 {
		return nil
	}
	return []Evidence{SawObject("pods", c.pod.Namespace, c.pod.Name, "what decides for pod %s/%s is another matter: one would have to %s", c.pod.Namespace, c.pod.Name, strings.Join(c.changes(), " and "))}
}

// merged joins the suspects that have the same subjects, so that one cordoned
// node that keeps out ten workloads is one cause.
func merged(suspects []Suspect) []Suspect {
	var list []Suspect
	for _, s := range suspects {
		i := slices.IndexFunc(list, func(o Suspect) bool {
			a, b := o.Data.(pendingCase), s.Data.(pendingCase)
			return o.Subjects[0] == s.Subjects[0] && a.reason == b.reason && (a.err == nil) == (b.err == nil)
		})
		if i < 0 {
			list = append(list, s)
			continue
		}
		list[i].Effects = append(list[i].Effects, s.Effects...)
		list[i].Found = append(list[i].Found, s.Found...)
		for _, r := range s.Subjects {
			if !slices.Contains(list[i].Subjects, r) {
				list[i].Subjects = append(list[i].Subjects, r)
			}
		}
	}
	return list
}

// evidence is the recomputation in words: what each node and pool that
// decides fails, and the scheduler's own account.
func (p *placement) evidence() []Evidence {
	name := p.pod.Namespace + "/" + p.pod.Name
	list := []Evidence{SawObject("pods", p.pod.Namespace, p.pod.Name, "recomputed for pod %s: %s", name, p.on.Summary())}
	shown := 0
	// Pools first: they say what a new node could be.
	units := slices.Clone(p.units)
	slices.SortStableFunc(units, func(a, b unit) int { return strings.Compare(b.ref().Kind, a.ref().Kind) })
	for _, u := range units {
		var says []string
		for _, f := range u.fails() {
			says = append(says, f.Says)
		}
		if len(says) == 0 {
			continue
		}
		if shown++; shown > 4 {
			list = append(list, Evidence{Says: fmt.Sprintf("and %d more nodes for the like reasons", len(p.units)-4)})
			break
		}
		resource := "nodes"
		if u.pool != nil {
			resource = "nodepools.karpenter.sh"
		}
		list = append(list, SawObject(resource, "", u.ref().Name, "%s: %s", short(u.ref()), strings.Join(says, "; ")))
	}
	for _, on := range p.pools {
		if slices.ContainsFunc(p.units, func(u unit) bool { return u.pool == on.Pool }) || on.Serves() {
			continue
		}
		var says []string
		for _, f := range on.Failures {
			says = append(says, f.Says)
		}
		if len(list) < 8 {
			list = append(list, SawObject("nodepools.karpenter.sh", "", on.Pool.Name, "NodePool %s: %s", on.Pool.Name, strings.Join(says, "; ")))
		}
	}
	if p.says != "" {
		list = append(list, SawObject("pods", p.pod.Namespace, p.pod.Name, "the scheduler says of pod %s: %s", name, p.says))
	}
	return list
}

// changes are what the decisive failures ask for, each once.
func (p *placement) changes() []string {
	var list []string
	for _, f := range p.failures {
		if !slices.Contains(list, f.Change) {
			list = append(list, f.Change)
		}
	}
	slices.Sort(list)
	return list
}

// refs are the nodes (and pools) on which a case is decided.
func (p *placement) refs() []Ref {
	var refs []Ref
	for _, u := range p.units {
		refs = append(refs, u.ref())
	}
	slices.SortFunc(refs, probes.CompareRefs)
	return slices.Compact(refs)
}

func names(refs []Ref) string {
	var list []string
	for i, r := range refs {
		if i == 5 {
			list = append(list, fmt.Sprintf("%d more", len(refs)-i))
			break
		}
		list = append(list, r.Name)
	}
	return strings.Join(list, ", ")
}

// args are names as arguments of a command.
func args(refs []Ref) string {
	var list []string
	for _, r := range refs {
		list = append(list, r.Name)
	}
	return strings.Join(list, " ")
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// gated: nobody has removed a scheduling gate.
var gated = placementRule("scheduling-gate-not-removed", "does pod {pod} have a scheduling gate that nobody removed?",
	byGate, false, nil, func(c pendingCase) told {
		return told{[]Ref{c.workload}, map[string]string{"gate": c.failures[0].Key}, nil}
	})

var schedulingRules = []*Rule{
	nodeCordoned, labelsMatchNoNode, taintNotTolerated, startupTaintStays, requestTooLarge, noRoom, hostPortTaken, antiAffinity,
	affinityToNobody, spreadUnsatisfiable, attachLimit, volumeElsewhere, gated, nodesNotReady, claimNotBound, claimMissing,
	claimExclusive, poolLimit, poolRulesOut, poolNotReady, noNodeFromKarpenter, schedulerDown, schedulerUnknown, noBranchInterfaces, branchInterfacesOff, resourceControllerDenied, branchInterfacesUnsupported, noNodes, placementUnclear, nodeNameMissing,
}
