package diagnose

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/network"
)

// gatePrefix begins the readiness gates that the AWS Load Balancer Controller
// keeps; the rest is the name of a TargetGroupBinding.
// Source: aws-load-balancer-controller docs/deploy/pod_readiness_gate.md.
const gatePrefix = "target-health.elbv2.k8s.aws/"

// knownBindings are the TargetGroupBindings that were captured; nil where none
// could have been. knownGroups and knownInterfaces are the same of security
// groups and network interfaces.
var (
	knownGroups     = whereCaptured(probes.SecurityGroups)
	knownInterfaces = whereCaptured(probes.NetworkInterfaces)
	knownBindings   = whereCaptured(probes.TargetGroupBindings)
)

// A bound is a Service's pods as targets of a load balancer.
type bound struct {
	binding *probes.TargetGroupBinding
	service *corev1.Service
	port    *corev1.ServicePort
	pods    []*corev1.Pod
	from    []string // the groups of the load balancer
	opened  int      // the port that is opened for it; 0: that of the targets
}

func boundTargets(facts *probes.Facts) []*bound {
	bindings, err := knownBindings.Of(facts)
	dir, dirErr := callDirectory(facts)
	if err != nil || dirErr != nil || bindings == nil {
		return nil
	}
	var all []*bound
	for _, b := range bindings.All() {
		t := &bound{binding: b, service: dir.Services.Get(b.Namespace, b.Spec.ServiceRef.Name)}
		if t.service == nil || b.DeletionTimestamp != nil {
			continue
		}
		for i, p := range t.service.Spec.Ports {
			if p.Name == b.Spec.ServiceRef.Port.StrVal && p.Name != "" || p.Port == b.Spec.ServiceRef.Port.IntVal {
				t.port = &t.service.Spec.Ports[i]
			}
		}
		if b.Spec.Networking != nil {
			for _, in := range b.Spec.Networking.Ingress {
				for _, p := range in.Ports {
					if p.Port != nil && p.Port.IntVal > 0 {
						t.opened = int(p.Port.IntVal)
					}
				}
				for _, f := range in.From {
					if f.SecurityGroup != nil {
						t.from = appendNew(t.from, f.SecurityGroup.GroupID)
					}
				}
			}
		}
		for _, p := range dir.Behind(t.service) {
			if !probes.Finished(p) && p.Status.PodIP != "" && p.DeletionTimestamp == nil {
				t.pods = append(t.pods, p)
			}
		}
		all = append(all, t)
	}
	return all
}

// owner is what the load balancer was made for, with the annotations that
// rule its health checks.
func (t *bound) owner(facts *probes.Facts) Ref {
	if owners := loadBalanced(facts, t.binding.Namespace, t.service.Name); len(owners) > 0 {
		return owners[0]
	}
	return Ref{Kind: "TargetGroupBinding", Namespace: t.binding.Namespace, Name: t.binding.Name}
}

// closed is whether security groups stop the load balancer before all of its
// targets; the hops say which.
func (t *bound) closed(world *network.World) (network.Truth, []network.Hop, int, error) {
	var unknown error
	for _, p := range t.pods {
		from := network.Attached("the load balancer", t.from...)
		to, port := network.Pod(p.Namespace, p.Name), int(targetNumber(p, t.port))
		if t.binding.Spec.TargetType == "instance" {
			to, port = network.Node(p.Spec.NodeName), int(t.port.NodePort)
		}
		if t.opened > 0 {
			port = t.opened
		}
		a := world.Path(from, to, network.TCP, port).On(network.SecurityGroups)
		switch {
		case a.Truth == network.No && !a.Partly:
			return network.No, a.Decisive(), port, nil
		case a.Truth == network.Yes:
			return network.Yes, a.Decisive(), port, nil
		}
		unknown = errors.Join(unknown, a.Err())
	}
	return network.Unknown, nil, 0, unknown
}

var boundFacts = slices.Concat([]probes.Any{knownBindings, knownGroups, probes.Ingresses, probes.IngressClasses}, callDirectoryFacts)

// targetsCutOff: by its security groups a load balancer reaches none of its
// targets.
var targetsCutOff = &Rule{
	ID: "load-balancer-targets-cut-off", Needs: append([]probes.Any{knownInterfaces, probes.TargetGroupBindings, probes.Deployments}, boundFacts...),
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		groups, err := knownGroups.Of(facts)
		interfaces, err2 := knownInterfaces.Of(facts)
		if err != nil || err2 != nil || groups == nil && interfaces == nil {
			return nil // nothing of the network was captured
		}
		bindings, err := knownBindings.Of(facts)
		if err != nil || bindings == nil {
			if balancedByController(facts) {
				_, _ = probes.TargetGroupBindings.Of(facts) // there must be some
			}
			return nil
		}
		var found []Suspect
		for _, b := range bindings.All() {
			if b.Spec.Networking != nil && b.DeletionTimestamp == nil {
				found = append(found, Suspect{Subjects: []Ref{{Kind: "TargetGroupBinding", Namespace: b.Namespace, Name: b.Name}}, Data: b, Vars: map[string]string{"service": b.Spec.ServiceRef.Name}})
			}
		}
		return found
	},
	Tests: []Test{{
		Asks: "is the load balancer stopped before the pods of Service {service}?", Needs: slices.Concat(boundFacts, []probes.Any{probes.Network}),
		Run: func(facts *probes.Facts, s Suspect) Answer {
			world, err := probes.Network.Of(facts)
			if err != nil {
				return Answered(false)
			}
			for _, t := range boundTargets(facts) {
				if t.binding != s.Data.(*probes.TargetGroupBinding) || t.port == nil || len(t.from) == 0 {
					continue
				}
				truth, hops, port, err := t.closed(world)
				if groups, _ := knownGroups.Of(facts); groups == nil && truth == network.Unknown {
					return CantTell(errors.Join(append([]error{err}, missingGroups(facts)...)...))
				}
				if truth == network.No {
					return Answered(true, append([]Evidence{SawObject("targetgroupbindings.elbv2.k8s.aws", t.binding.Namespace, t.binding.Name, "TargetGroupBinding %s: %s sends to port %d of the targets of Service %s", t.binding.Name, strings.Join(t.from, ", "), port, t.service.Name)}, fromHops(hops, 1)...)...)
				}
			}
			return Answered(false, Evidence{Says: "nothing is known to stop it"})
		},
	}},
}

// balancedByController reports whether something has a load balancer that the
// AWS Load Balancer Controller made.
func balancedByController(facts *probes.Facts) bool {
	if !hasLoadBalancerController(facts) {
		return false
	}
	if ingresses, err := probes.Ingresses.Of(facts); err == nil {
		for _, in := range ingresses.All() {
			if slices.ContainsFunc(in.Status.LoadBalancer.Ingress, func(i networkingv1.IngressLoadBalancerIngress) bool { return elbName.MatchString(i.Hostname) }) {
				return true
			}
		}
	}
	services, err := probes.Services.Of(facts)
	return err == nil && slices.ContainsFunc(services.All(), func(s *corev1.Service) bool {
		return slices.ContainsFunc(s.Status.LoadBalancer.Ingress, func(i corev1.LoadBalancerIngress) bool { return elbName.MatchString(i.Hostname) })
	})
}

// elbName is the host name of a load balancer of the controller: it begins the
// name with k8s-. Source: aws-load-balancer-controller pkg/ingress/model_build_load_balancer.go.
var elbName = regexp.MustCompile(`^(?:internal-)?k8s-.*\.amazonaws\.com(?:\.cn)?$`)

// targetGate are the pods of a symptom that wait for a target to be healthy, with
// what the controller says of it.
type targetGate struct {
	pod          *corev1.Pod
	binding      string
	reason, says string
	judged       bool // the controller has set the condition
}

func gatesOf(e *Finding) []targetGate {
	var list []targetGate
	for _, p := range troubled(e) {
		for _, g := range p.Spec.ReadinessGates {
			name, ok := strings.CutPrefix(string(g.ConditionType), gatePrefix)
			if !ok {
				continue
			}
			c := probes.PodCondition(p, g.ConditionType)
			switch {
			case c == nil:
				list = append(list, targetGate{pod: p, binding: name})
			case c.Status != corev1.ConditionTrue:
				list = append(list, targetGate{pod: p, binding: name, reason: c.Reason, says: c.Message, judged: true})
			}
		}
	}
	return list
}

func (g targetGate) seen() Evidence {
	says := "has no such condition yet"
	if g.judged {
		says = fmt.Sprintf("is False: %s: %s", g.reason, g.says)
	}
	return SawObject("pods", g.pod.Namespace, g.pod.Name, "pod %s: its readiness gate %s%s %s", g.pod.Name, gatePrefix, g.binding, says)
}

var targetTimesOut = regexp.MustCompile(`Target\.Timeout|[Rr]equest timed out|[Cc]onnection timed out`)

// targetsClosed: a security group does not let the load balancer in.
var targetsClosed = &Rule{
	ID: "load-balancer-closed-to-targets", Explains: []*Rule{targetsCutOff, podNotReady}, Needs: append([]probes.Any{probes.Workloads}, boundFacts...),
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		var found []Suspect
		for _, t := range boundTargets(facts) {
			s := Suspect{Subjects: []Ref{t.owner(facts)}, Data: t, Vars: map[string]string{
				"service": t.service.Name, "namespace": t.service.Namespace, "owner": short(t.owner(facts)), "stops": "Something", "port": "the targets' port", "groups": orDefault(strings.Join(t.from, ", "), "the load balancer's groups"), "says": "what stops it could not be read", "fix": "aws ec2 authorize-security-group-ingress --group-id NODE-GROUP --protocol tcp --port PORT --source-group LOAD-BALANCER-GROUP",
			}}
			for _, e := range effects {
				if e.Rule == targetsCutOff && e.Data.(*probes.TargetGroupBinding) == t.binding {
					s.Effects = append(s.Effects, e)
				}
				if e.Rule != podNotReady {
					continue
				}
				for _, g := range gatesOf(e) {
					if g.binding == t.binding.Name && g.pod.Namespace == t.binding.Namespace && targetTimesOut.MatchString(g.reason+" "+g.says) {
						s.Effects, s.Found = appendOnce(s.Effects, e), append(s.Found, g.seen())
						break
					}
				}
			}
			if len(s.Effects) > 0 && t.port != nil {
				found = append(found, s)
			}
		}
		return found
	},
	Tests: []Test{{
		Asks: "do security groups stop the load balancer of {owner} before its targets?", Needs: []probes.Any{probes.Network},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			t := s.Data.(*bound)
			world, err := probes.Network.Of(facts)
			if err != nil {
				return CantTell(err)
			}
			if len(t.from) == 0 {
				return CantTell(nil, Evidence{Says: "the binding does not say with which groups the load balancer comes"})
			}
			truth, hops, port, err := t.closed(world)
			switch truth {
			case network.No:
				s.Subjects[0] = refOf(hops[0])
				a := Answered(true, append([]Evidence{SawObject("targetgroupbindings.elbv2.k8s.aws", t.binding.Namespace, t.binding.Name, "the load balancer comes with %s, to port %d", strings.Join(t.from, ", "), port)}, fromHops(hops, 2)...)...)
				return a.With("port", fmt.Sprint(port)).With("says", hopWords(hops)).With("fix", hops[0].Fix).With("stops", short(s.Subjects[0]))
			case network.Yes:
				return Answered(false, fromHops(hops, 1)...)
			}
			return CantTell(errors.Join(append([]error{err}, missingGroups(facts)...)...))
		},
	}},
}

// What the controller copies from the health of targets.
// Source: ELBv2 API Reference, TargetHealth.
var checkFailed = regexp.MustCompile(`Health checks failed(?: with these codes: \[([\d, ]+)\])?`)

// targetChecksFail: targets answer, and not as the health check wants it.
var targetChecksFail = &Rule{
	ID: "load-balancer-health-check-wrong", Explains: []*Rule{podNotReady}, Needs: append([]probes.Any{probes.Workloads}, boundFacts...),
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		var found []Suspect
		for _, e := range effects {
			for _, g := range gatesOf(e) {
				m := checkFailed.FindStringSubmatch(g.says)
				if m == nil {
					continue
				}
				s := Suspect{Subjects: []Ref{e.Subject()}, Effects: []*Finding{e}, Data: g, Found: []Evidence{g.seen()}}
				s.Vars = healthCheckVars(facts, g, &s)
				s.Vars["workload"], s.Vars["answers"] = short(e.Subject()), "not at all, or cut the connection"
				if m[1] != "" {
					s.Vars["answers"] = "with status " + m[1]
				}
				found = append(found, s)
				break
			}
		}
		return found
	},
	Tests: []Test{{
		Asks: "does the load balancer's health check ({path} on {port}) fail, though the pods' containers are ready?", Needs: append([]probes.Any{probes.TargetGroupBindings}, boundFacts...),
		Run: func(facts *probes.Facts, s Suspect) Answer {
			g := s.Data.(targetGate)
			for _, c := range probes.Statuses(g.pod) {
				if c.State.Running != nil && !c.Ready && c.RestartCount == 0 && slices.ContainsFunc(g.pod.Spec.Containers, func(x corev1.Container) bool { return x.Name == c.Name }) {
					return Answered(false, SawObject("pods", g.pod.Namespace, g.pod.Name, "container %s of pod %s is not ready itself", c.Name, g.pod.Name))
				}
			}
			if err := orErr(facts.Err(probes.TargetGroupBindings), facts.Err(probes.Services), facts.Err(probes.Ingresses)); err != nil && s.Vars["set"] == "the default" {
				return CantTell(err, g.seen()) // where the health check is set is not known
			}
			return Answered(true, append([]Evidence{SawObject("pods", g.pod.Namespace, g.pod.Name, "all containers of pod %s are ready by the kubelet's own probes%s", g.pod.Name, s.Vars["probe"])}, evidenceOf(s)...)...)
		},
	}},
}

func evidenceOf(s Suspect) []Evidence {
	return []Evidence{{Says: fmt.Sprintf("%s: the health check is %s on %s (%s)", short(s.Subjects[0]), s.Vars["path"], s.Vars["port"], s.Vars["set"])}}
}

// healthCheckVars finds the object whose annotations rule the health check and
// makes it the subject.
func healthCheckVars(facts *probes.Facts, g targetGate, s *Suspect) map[string]string {
	vars := map[string]string{"path": "/", "port": "the traffic port", "set": "the default", "probe": "", "object": short(s.Subjects[0]), "resource": "ingress", "objectName": "NAME", "objectNamespace": g.pod.Namespace, "annotation": "alb.ingress.kubernetes.io/healthcheck-path"}
	for _, c := range g.pod.Spec.Containers {
		if p := c.ReadinessProbe; p != nil && p.HTTPGet != nil {
			vars["probe"] = fmt.Sprintf(" (GET %s on port %s)", p.HTTPGet.Path, p.HTTPGet.Port.String())
		}
	}
	for _, t := range boundTargets(facts) {
		if t.binding.Name != g.binding || t.binding.Namespace != g.pod.Namespace {
			continue
		}
		owner := t.owner(facts)
		annotations := t.service.Annotations
		prefix := "alb.ingress.kubernetes.io/healthcheck-"
		if owner.Kind == "Service" {
			prefix = "service.beta.kubernetes.io/aws-load-balancer-healthcheck-"
		} else if in, err := probes.Ingresses.Of(facts); err == nil && annotations[prefix+"path"]+annotations[prefix+"port"] == "" {
			if i := in.Get(owner.Namespace, owner.Name); i != nil {
				annotations = i.Annotations
			}
		} else {
			owner = Ref{Kind: "Service", Namespace: t.service.Namespace, Name: t.service.Name}
		}
		s.Subjects = []Ref{owner, s.Subjects[0]}
		vars["object"], vars["resource"], vars["objectName"], vars["annotation"] = short(owner), strings.ToLower(owner.Kind), owner.Name, prefix+"path"
		var set []string
		for _, part := range []string{"path", "port"} {
			if v := annotations[prefix+part]; v != "" {
				vars[part] = v
				set = append(set, prefix+part+": "+v)
			}
		}
		if len(set) > 0 {
			vars["set"] = strings.Join(set, ", ")
		}
	}
	return vars
}

// gateOfOldGroup: pods wait for a target group that no binding is for any
// more; their gates were set when they were made.
// Source: incident lbc-readiness-new-group.
var gateOfOldGroup = &Rule{
	ID: "readiness-gate-of-old-target-group", Explains: []*Rule{podNotReady}, Needs: append([]probes.Any{probes.Workloads, probes.TargetGroupBindings}, boundFacts...),
	Suspects: func(_ *probes.Facts, effects []*Finding) []Suspect {
		var found []Suspect
		for _, e := range effects {
			if gates := gatesOf(e); len(gates) > 0 {
				found = append(found, Suspect{Subjects: []Ref{e.Subject()}, Effects: []*Finding{e}, Data: gates[0], Found: []Evidence{gates[0].seen()}, Vars: map[string]string{
					"workload": short(e.Subject()), "namespace": gates[0].pod.Namespace, "gate": gates[0].binding, "target": strings.ToLower(e.Subject().Kind) + "/" + e.Subject().Name, "bindings": "not known",
				}})
			}
		}
		return found
	},
	Tests: []Test{{
		Asks: "is there no TargetGroupBinding {gate}, for which the pods of {workload} wait?", Needs: []probes.Any{probes.TargetGroupBindings},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			g := s.Data.(targetGate)
			list, err := probes.TargetGroupBindings.Of(facts)
			if err != nil {
				if g.judged {
					return Answered(false, g.seen()) // somebody judges it, so it is there
				}
				return CantTell(err)
			}
			var names []string
			for b := range list.In(g.pod.Namespace) {
				if b.Name == g.binding {
					return Answered(false, SawObject("targetgroupbindings.elbv2.k8s.aws", b.Namespace, b.Name, "TargetGroupBinding %s is there", b.Name))
				}
				names = append(names, b.Name)
			}
			return Answered(true, Saw("targetgroupbindings.elbv2.k8s.aws", nil, "namespace %s has the TargetGroupBindings %s, and no %s", g.pod.Namespace, listed(names), g.binding)).With("bindings", listed(names))
		},
	}},
}
