package diagnose

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// An elsewhere is a Service that leads to the pods of another program than the
// one whose name it has.
type elsewhere struct {
	service *corev1.Service
	meant   Ref             // the workload of its name, which no Service selects
	others  Ref             // the workload that it selects
	own     *corev1.Service // by which those have their own clients
}

// leadsElsewhere decides that of names and selectors alone: the workload of
// the Service's name is there and behind no Service, while the pods that the
// Service selects have a Service of their own name too. Blue and green, or the
// versions of one program, share a part of their names and are left out.
func leadsElsewhere(dir *probes.Directory, workloads *probes.WorkloadIndex, s *corev1.Service) *elsewhere {
	pods := dir.Behind(s)
	if len(pods) == 0 || len(s.Spec.Selector) == 0 {
		return nil
	}
	e := &elsewhere{service: s, others: workloads.Of(pods[0])}
	if e.others.Name == s.Name || slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return workloads.Of(p) != e.others }) {
		return nil
	}
	if strings.HasPrefix(e.others.Name, s.Name) || strings.HasPrefix(s.Name, e.others.Name) {
		return nil
	}
	for o := range dir.Services.In(s.Namespace) {
		if o.Name == e.others.Name && slices.Contains(dir.Behind(o), pods[0]) {
			e.own = o
		}
	}
	owner, p := unselected(dir, workloads, Ref{Namespace: s.Namespace, Name: s.Name})
	if e.own == nil || p == nil || p.Spec.Containers[0].Image == pods[0].Spec.Containers[0].Image {
		return nil
	}
	e.meant = owner
	return e
}

// serviceLeadsElsewhere: a Service that something uses leads to another
// program than its name says.
var serviceLeadsElsewhere = &Rule{
	ID:    "service-leads-elsewhere",
	Needs: serviceFacts,
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		dir, err := callDirectory(facts)
		workloads, err2 := probes.Workloads.Of(facts)
		if err != nil || err2 != nil {
			return nil
		}
		used := users(facts, dir)
		var found []Suspect
		for _, s := range dir.Services.All() {
			ref := Ref{Kind: "Service", Namespace: s.Namespace, Name: s.Name}
			e := leadsElsewhere(dir, workloads, s)
			if e == nil || len(used[ref]) == 0 {
				continue
			}
			found = append(found, Suspect{
				Subjects: []Ref{ref}, Data: &serviceUse{service: s, users: used[ref]}, Vars: map[string]string{"others": short(e.others), "meant": short(e.meant)},
				Found: append([]Evidence{SawObject("services", s.Namespace, s.Name, "Service %s selects %s, the labels of %s, which has Service %s; %s has none", s.Name, selectorText(s.Spec.Selector), short(e.others), e.own.Name, short(e.meant))}, used[ref]...),
			})
		}
		return found
	},
}
