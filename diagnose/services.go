package diagnose

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// serviceUse is the Data of the symptoms of a Service: who uses it, at which
// of its ports.
type serviceUse struct {
	service *corev1.Service
	port    *corev1.ServicePort // nil: all of them
	users   []Evidence
}

// mentionedServices are the Services that the configuration of workloads names,
// each with where; a workload that names its own Service is none of its users.
func mentionedServices(facts *probes.Facts, dir *probes.Directory) iter.Seq2[probes.Target, mention] {
	return func(yield func(probes.Target, mention) bool) {
		workloads, err := probes.Workloads.Of(facts)
		if err != nil {
			return
		}
		configMaps, _ := probes.ConfigMaps.Of(facts)
		for _, owner := range workloads.All() {
			pods := workloads.Pods(owner)
			if probes.Finished(pods[0]) {
				continue
			}
			for _, m := range mentionsOf(pods[0], owner, configMaps) {
				t := dir.Lookup(owner.Namespace, m.host, m.port)
				if t.Kind == probes.TargetService && !t.Missing && !slices.Contains(t.Pods, pods[0]) && !yield(t, m) {
					return
				}
			}
		}
	}
}

// users are what names a Service: the configuration of workloads and Ingresses.
func users(facts *probes.Facts, dir *probes.Directory) map[Ref][]Evidence {
	used := map[Ref][]Evidence{}
	add := func(r Ref, e Evidence) {
		if len(used[r]) < maxExamples {
			used[r] = append(used[r], e)
		}
	}
	for t, m := range mentionedServices(facts, dir) {
		add(t.Ref, m.seen)
	}
	if list, err := probes.Ingresses.Of(facts); err == nil {
		for _, in := range list.All() {
			for _, b := range ingressBackends(in) {
				add(Ref{Kind: "Service", Namespace: in.Namespace, Name: b.service}, SawObject("ingresses.networking.k8s.io", in.Namespace, in.Name, "Ingress %s/%s sends %s to Service %s", in.Namespace, in.Name, b.rule, b.service))
			}
		}
	}
	return used
}

var serviceFacts = append([]probes.Any{probes.Workloads, probes.ConfigMaps, probes.Ingresses, probes.AppLogs, probes.Logs}, callDirectoryFacts...)

// serviceWithoutEndpoints: a Service that something uses, or that was meant
// for pods that are there, selects none.
var serviceWithoutEndpoints = &Rule{
	ID:    "service-without-endpoints",
	Needs: serviceFacts,
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		dir, err := callDirectory(facts)
		if err != nil {
			return nil
		}
		used := users(facts, dir)
		workloads, err := probes.Workloads.Of(facts)
		if err != nil {
			return nil
		}
		var found []Suspect
		for _, s := range dir.Services.All() {
			if len(s.Spec.Selector) == 0 || s.Spec.Type == corev1.ServiceTypeExternalName || s.DeletionTimestamp != nil || len(dir.Behind(s)) > 0 {
				continue
			}
			if probes.Controller(s) != nil {
				continue // an operator's: it keeps some for pods that may never come
			}
			ref := Ref{Kind: "Service", Namespace: s.Namespace, Name: s.Name}
			near := meantPods(dir, workloads, s)
			if len(used[ref]) == 0 && (near == nil || near.likeness < meantForSure || elsewhereServed(dir, s, near.pods)) {
				continue
			}
			found = append(found, Suspect{
				Subjects: []Ref{ref}, Data: &serviceUse{service: s, users: used[ref]}, Vars: map[string]string{"selector": selectorText(s.Spec.Selector)},
				Found: append([]Evidence{SawObject("services", s.Namespace, s.Name, "no pod of namespace %s has the labels that Service %s selects: %s", s.Namespace, s.Name, selectorText(s.Spec.Selector))}, used[ref]...),
			})
		}
		return found
	},
}

// servicePortDead: a port of a Service that something uses leads to a port
// that none of its pods serves.
var servicePortDead = &Rule{
	ID:    "service-port-dead",
	Needs: serviceFacts,
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		dir, err := callDirectory(facts)
		if err != nil {
			return nil
		}
		used := users(facts, dir)
		called := calledPorts(facts, dir)
		var found []Suspect
		for _, s := range dir.Services.All() {
			ref := Ref{Kind: "Service", Namespace: s.Namespace, Name: s.Name}
			if s.Spec.Type == corev1.ServiceTypeExternalName || len(used[ref]) == 0 && len(s.Spec.Ports) > 1 || s.DeletionTimestamp != nil {
				continue
			}
			for i := range s.Spec.Ports {
				sp := &s.Spec.Ports[i]
				if len(used[ref]) == 0 && (sp.TargetPort.StrVal == "" || elsewhereServed(dir, s, dir.Behind(s))) || len(s.Spec.Ports) > 1 && !called[ref][sp.Port] {
					continue
				}
				if headless(s) && sp.TargetPort.StrVal == "" {
					continue // its clients go to the pods' own ports
				}
				if d := deadPort(facts, dir, s, sp, false); d.dead {
					found = append(found, Suspect{
						Subjects: []Ref{ref}, Data: &serviceUse{service: s, port: sp, users: used[ref]}, Vars: map[string]string{"port": fmt.Sprint(sp.Port)},
						Found: append([]Evidence{d.says}, used[ref]...),
					})
				}
			}
		}
		return found
	},
}

func selectorText(m map[string]string) string {
	var list []string
	for _, k := range sortedKeys(m) {
		list = append(list, k+"="+m[k])
	}
	return strings.Join(list, ",")
}

// meant are the pods of a workload that a Service was evidently meant for.
type meant struct {
	workload  Ref
	pods      []*corev1.Pod
	likeness  int
	differing []string // the selector's keys that the pods' labels differ in
}

// meantForSure is the likeness from which a Service without any user counts:
// all labels but one agree, or the workload has the Service's name.
const meantForSure = 60

// meantPods finds the workload of a Service's namespace whose labels are
// nearest to the selector; nil where none is near.
func meantPods(dir *probes.Directory, workloads *probes.WorkloadIndex, s *corev1.Service) *meant {
	var best *meant
	for _, owner := range workloads.All() {
		if owner.Namespace != s.Namespace || owner.Kind == "Job" || owner.Kind == "CronJob" {
			continue
		}
		var pods []*corev1.Pod
		for _, p := range workloads.Pods(owner) {
			if !probes.Finished(p) && p.DeletionTimestamp == nil {
				pods = append(pods, p)
			}
		}
		if len(pods) == 0 {
			continue
		}
		m := &meant{workload: owner, pods: pods}
		agree, alike := 0, 0
		for _, k := range sortedKeys(s.Spec.Selector) {
			have, ok := pods[0].Labels[k]
			switch {
			case ok && have == s.Spec.Selector[k]:
				agree++
				continue
			case ok && likeness(have, s.Spec.Selector[k]) > 0:
				alike++
			case !ok && slices.ContainsFunc(sortedKeys(pods[0].Labels), func(key string) bool {
				return pods[0].Labels[key] == s.Spec.Selector[k] && likeness(key, k) > 0
			}):
				alike++
			}
			m.differing = append(m.differing, k)
		}
		named := owner.Name == s.Name || likeness(owner.Name, s.Name) >= 85
		n := len(s.Spec.Selector)
		switch {
		case len(m.differing) == 0:
			continue // they match: no fault of the selector
		case named:
			m.likeness = 80 + agree
		case n > 1 && agree == n-1 && (alike > 0 || likeness(owner.Name, s.Name) > 0):
			m.likeness = 60 + agree
		case agree+alike == n:
			m.likeness = 40 + agree
		case n > 2 && agree == n-1:
			m.likeness = 30
		default:
			continue
		}
		if best == nil || m.likeness > best.likeness {
			best = m
		}
	}
	return best
}

// meantFor is meantPods where the Service selects others.
func meantFor(facts *probes.Facts, dir *probes.Directory, s *corev1.Service) *meant {
	workloads, err := probes.Workloads.Of(facts)
	if err != nil || len(s.Spec.Selector) == 0 {
		return nil
	}
	return meantPods(dir, workloads, s)
}

// elsewhereServed reports whether another Service leads to the pods as well:
// what is wrong with one that nobody is known to use hurts nobody then.
func elsewhereServed(dir *probes.Directory, s *corev1.Service, pods []*corev1.Pod) bool {
	return len(pods) > 0 && slices.ContainsFunc(dir.Services.All(), func(o *corev1.Service) bool {
		return o != s && o.Namespace == s.Namespace && slices.Contains(dir.Behind(o), pods[0])
	})
}

// An asked is how many pods a workload asks for.
type asked struct {
	workload Ref
	replicas int32
}

// templateOf is a workload, with or without pods, that makes pods which the
// Service selects.
func templateOf(facts *probes.Facts, s *corev1.Service) (asked, bool) {
	if list, err := probes.Deployments.Of(facts); err == nil {
		for d := range list.In(s.Namespace) {
			if covers(d.Spec.Template.Labels, s.Spec.Selector) {
				return asked{Ref{Kind: "Deployment", Namespace: d.Namespace, Name: d.Name}, replicas(d.Spec.Replicas)}, true
			}
		}
	}
	if list, err := probes.StatefulSets.Of(facts); err == nil {
		for d := range list.In(s.Namespace) {
			if covers(d.Spec.Template.Labels, s.Spec.Selector) {
				return asked{Ref{Kind: "StatefulSet", Namespace: d.Namespace, Name: d.Name}, replicas(d.Spec.Replicas)}, true
			}
		}
	}
	return asked{}, false
}

// A perService is what a Service's fault would explain.
type perService struct {
	service *corev1.Service
	effects []*Finding
	ports   []*corev1.ServicePort // that are called; none: all
	refused bool
	calls   []*unreached
}

// servicesBehind groups effects by the Service that they are about.
func servicesBehind(dir *probes.Directory, effects []*Finding) []*perService {
	byRef := map[Ref]*perService{}
	get := func(s *corev1.Service) *perService {
		r := Ref{Kind: "Service", Namespace: s.Namespace, Name: s.Name}
		if byRef[r] == nil {
			byRef[r] = &perService{service: s}
		}
		return byRef[r]
	}
	for _, e := range effects {
		switch data := e.Data.(type) {
		case *unreached:
			if s := serviceOfCall(dir, data); s != nil {
				g := get(s)
				g.effects, g.calls = appendOnce(g.effects, e), append(g.calls, data)
				g.refused = g.refused || data.refused
				if sp := portOf(s, data.portNumber()); sp != nil && !slices.Contains(g.ports, sp) {
					g.ports = append(g.ports, sp)
				}
			}
		case *lookupTrouble:
			// A headless Service without pods has no addresses in DNS.
			for _, host := range data.hosts {
				if s := neededService(dir, dir.Lookup(e.Subject().Namespace, host, "")); s != nil && headless(s) && len(dir.Behind(s)) == 0 {
					g := get(s)
					g.effects = appendOnce(g.effects, e)
				}
			}
		case *serviceUse:
			g := get(data.service)
			g.effects = appendOnce(g.effects, e)
			if data.port != nil && !slices.Contains(g.ports, data.port) {
				g.ports = append(g.ports, data.port)
			}
		}
	}
	var list []*perService
	for _, r := range sortedRefs(byRef) {
		g := byRef[r]
		if len(g.ports) == 0 {
			for i := range g.service.Spec.Ports {
				g.ports = append(g.ports, &g.service.Spec.Ports[i])
			}
		}
		list = append(list, g)
	}
	return list
}

// ofServices makes a rule about the Services behind what can't be reached.
func ofServices(id string, needs []probes.Any, asks string, run func(*probes.Facts, *probes.Directory, *perService, *Suspect) Answer) *Rule {
	all := slices.Concat(serviceFacts, needs)
	return &Rule{
		ID: id, Explains: []*Rule{targetUnreachable, nameLookupsFail, serviceWithoutEndpoints, servicePortDead, serviceLeadsElsewhere}, Needs: all,
		Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
			dir, err := callDirectory(facts)
			if err != nil {
				return nil
			}
			var found []Suspect
			for _, g := range servicesBehind(dir, effects) {
				s := Suspect{Subjects: []Ref{{Kind: "Service", Namespace: g.service.Namespace, Name: g.service.Name}}, Effects: g.effects, Data: g, Vars: map[string]string{"service": g.service.Name, "namespace": g.service.Namespace, "selector": selectorText(g.service.Spec.Selector)}}
				// The answer decides whose fault it is, and so the subject.
				a := run(facts, dir, g, &s)
				s.Data = judged{g, a}
				found = append(found, s)
			}
			return found
		},
		Tests: []Test{{Asks: asks, Needs: all, Run: func(_ *probes.Facts, s Suspect) Answer { return s.Data.(judged).answer }}},
	}
}

// A judged service is one with the answer about it.
type judged struct {
	*perService
	answer Answer
}

var templates = []probes.Any{probes.Deployments, probes.StatefulSets}

// selectorMatchesNothing: a Service's selector fits none of the pods that it
// is meant for.
var selectorMatchesNothing = ofServices("service-selector-matches-nothing", templates, "does the selector of Service {service} ({selector}) match no pod, though those that it is meant for are there?",
	func(facts *probes.Facts, dir *probes.Directory, g *perService, s *Suspect) Answer {
		svc := g.service
		if len(svc.Spec.Selector) == 0 || svc.Spec.Type == corev1.ServiceTypeExternalName {
			return Answered(false, SawObject("services", svc.Namespace, svc.Name, "Service %s has no selector", svc.Name))
		}
		if pods := dir.Behind(svc); len(pods) > 0 {
			return Answered(false, SawObject("services", svc.Namespace, svc.Name, "%d pods match its selector", len(pods)))
		}
		if t, ok := templateOf(facts, svc); ok {
			return Answered(false, SawObject(strings.ToLower(t.workload.Kind)+"s.apps", t.workload.Namespace, t.workload.Name, "%s makes pods that match", short(t.workload)))
		}
		workloads, err := probes.Workloads.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		near := meantPods(dir, workloads, svc)
		none := SawObject("services", svc.Namespace, svc.Name, "Service %s selects %s, and no pod of namespace %s has these labels", svc.Name, selectorText(svc.Spec.Selector), svc.Namespace)
		if near == nil {
			for _, err := range []error{facts.Err(probes.Deployments), facts.Err(probes.StatefulSets)} {
				if err != nil {
					return CantTell(err, none)
				}
			}
			for p := range allSelected(dir, svc) {
				s.Vars["hint"] = fmt.Sprintf(" Pods with these labels are in namespace %s; a Service selects only in its own.", p.Namespace)
				return Answered(true, none, SawObject("pods", p.Namespace, p.Name, "pod %s in namespace %s has them", p.Name, p.Namespace))
			}
			s.Vars["hint"] = ""
			return Answered(true, none)
		}
		var differ, right []string
		for _, k := range near.differing {
			have, ok := near.pods[0].Labels[k]
			if !ok {
				differ = append(differ, fmt.Sprintf("%s: the Service asks for %q, the pods don't have that label", k, svc.Spec.Selector[k]))
				for _, other := range sortedKeys(near.pods[0].Labels) {
					if near.pods[0].Labels[other] == svc.Spec.Selector[k] {
						differ[len(differ)-1] += fmt.Sprintf(" (they have %s=%s)", other, svc.Spec.Selector[k])
						right = append(right, other+"="+svc.Spec.Selector[k])
					}
				}
				continue
			}
			differ = append(differ, fmt.Sprintf("%s: the Service asks for %q, the pods have %q", k, svc.Spec.Selector[k], have))
			right = append(right, k+"="+have)
		}
		s.Vars["hint"] = fmt.Sprintf(" The pods of %s, for which it is meant, differ in %s.", short(near.workload), strings.Join(differ, "; "))
		s.Vars["right"] = strings.Join(right, ",")
		s.Subjects = append(s.Subjects, near.workload)
		return Answered(true, none, SawObject("pods", near.pods[0].Namespace, near.pods[0].Name, "pod %s of %s: %s", near.pods[0].Name, short(near.workload), strings.Join(differ, "; ")))
	})

// allSelected yields the pods of other namespaces that a Service would select.
func allSelected(dir *probes.Directory, s *corev1.Service) func(func(*corev1.Pod) bool) {
	return func(yield func(*corev1.Pod) bool) {
		for _, p := range dir.Pods.All() {
			if p.Namespace != s.Namespace && !probes.Finished(p) && covers(p.Labels, s.Spec.Selector) && !yield(p) {
				return
			}
		}
	}
}

// noPodsAsked: the workload behind a Service is scaled to zero.
var noPodsAsked = ofServices("backend-scaled-to-zero", templates, "does the workload behind Service {service} ask for no pods?",
	func(facts *probes.Facts, dir *probes.Directory, g *perService, s *Suspect) Answer {
		if pods := dir.Behind(g.service); len(pods) > 0 {
			return Answered(false, SawObject("services", g.service.Namespace, g.service.Name, "%d pods match its selector", len(pods)))
		}
		if len(g.service.Spec.Selector) == 0 {
			return Answered(false, SawObject("services", g.service.Namespace, g.service.Name, "Service %s has no selector", g.service.Name))
		}
		t, ok := templateOf(facts, g.service)
		if !ok {
			for _, p := range templates {
				if err := facts.Err(p); err != nil {
					return CantTell(err)
				}
			}
			return Answered(false, SawObject("services", g.service.Namespace, g.service.Name, "no Deployment or StatefulSet makes pods with its labels"))
		}
		s.Subjects = []Ref{t.workload, s.Subjects[0]}
		return Answered(t.replicas == 0, SawObject(strings.ToLower(t.workload.Kind)+"s.apps", t.workload.Namespace, t.workload.Name, "%s, behind Service %s, has spec.replicas: %d", short(t.workload), g.service.Name, t.replicas))
	})

// selectorMatchesOthers: a Service's selector takes in pods of a program that
// is not the one behind its port.
var selectorMatchesOthers = ofServices("service-selector-matches-other-pods", nil, "does the selector of Service {service} ({selector}) match the pods of a workload that does not serve its port?",
	func(facts *probes.Facts, dir *probes.Directory, g *perService, s *Suspect) Answer {
		workloads, err := probes.Workloads.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		svc := g.service
		by := map[Ref][]*corev1.Pod{}
		for _, p := range dir.Behind(svc) {
			by[workloads.Of(p)] = append(by[workloads.Of(p)], p)
		}
		owners := sortedRefs(by)
		if len(owners) == 0 {
			return Answered(false, SawObject("services", svc.Namespace, svc.Name, "no pod matches its selector"))
		}
		serves := func(p *corev1.Pod) bool {
			return slices.ContainsFunc(g.ports, func(sp *corev1.ServicePort) bool { return declares(p, sp) })
		}
		var good, bad []Ref
		for _, o := range owners {
			if declared := declaredPorts(by[o][0]); serves(by[o][0]) || len(declared) == 0 {
				good = append(good, o)
			} else {
				bad = append(bad, o)
			}
		}
		matched := SawObject("services", svc.Namespace, svc.Name, "Service %s selects %s, which pods of %s have", svc.Name, selectorText(svc.Spec.Selector), refNames(owners))
		if e := leadsElsewhere(dir, workloads, svc); e != nil {
			s.Vars["others"], s.Vars["right"], s.Vars["ports"] = short(e.others), short(e.meant), strings.Join(declaredPorts(by[owners[0]][0]), ", ")
			s.Vars["hint"] = selectorText(uniqueLabels(workloads, e.meant, owners))
			return Answered(true, matched, SawObject("services", e.own.Namespace, e.own.Name, "%s has a Service of its own, %s; %s, whose name Service %s has, is behind none", short(e.others), e.own.Name, short(e.meant), svc.Name))
		}
		if len(bad) == 0 {
			return Answered(false, matched)
		}
		if len(good) == 0 {
			// All are wrong only where the right ones can be shown.
			near := meantPods(dir, workloads, svc)
			if near == nil || !serves(near.pods[0]) {
				return Answered(false, matched)
			}
			good = append(good, near.workload)
		}
		// A named port that a pod does not have keeps the pod out by itself.
		if slices.ContainsFunc(g.ports, func(sp *corev1.ServicePort) bool { return sp.TargetPort.StrVal != "" }) && len(owners) > 1 {
			return Answered(false, matched)
		}
		p := by[bad[0]][0]
		own := selectorText(uniqueLabels(workloads, good[0], bad))
		s.Vars["others"], s.Vars["right"], s.Vars["ports"], s.Vars["hint"] = refNames(bad), refNames(good), strings.Join(declaredPorts(p), ", "), own
		return Answered(true, matched, SawObject("pods", p.Namespace, p.Name, "pod %s of %s serves %s, not port %s of the Service", p.Name, short(bad[0]), strings.Join(declaredPorts(p), ", "), g.ports[0].TargetPort.String()))
	})

func refNames(refs []Ref) string {
	var names []string
	for _, r := range refs {
		names = append(names, short(r))
	}
	return listed(names)
}

// uniqueLabels are the labels of a workload's pods that none of the others has.
func uniqueLabels(workloads *probes.WorkloadIndex, of Ref, others []Ref) map[string]string {
	own := map[string]string{}
	for k, v := range workloads.Pods(of)[0].Labels {
		if k == "pod-template-hash" || k == "controller-revision-hash" || strings.HasPrefix(k, "statefulset.kubernetes.io/") || strings.HasPrefix(k, "apps.kubernetes.io/") {
			continue
		}
		if !slices.ContainsFunc(others, func(o Ref) bool { return workloads.Pods(o)[0].Labels[k] == v }) {
			own[k] = v
		}
	}
	return maps.Clone(own)
}
