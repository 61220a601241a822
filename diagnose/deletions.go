package diagnose

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// overdue is how long a deletion may take beyond its grace.
const overdue = 10 * time.Minute

// stuckTerminating: something is being deleted and does not go.
var stuckTerminating = &Rule{
	ID:    "stuck-terminating",
	Needs: []probes.Any{probes.Pods, probes.Namespaces, probes.Claims, probes.Ingresses, probes.Services},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		now := facts.Source().Now()
		var list []Suspect
		add := func(r Ref, resource string, since time.Time, finalizers []string, data any) {
			if now.Sub(since) < overdue {
				return
			}
			list = append(list, Suspect{
				Subjects: []Ref{r}, Count: 1, Since: &since, Data: data,
				Vars: map[string]string{"since": since.UTC().Format(time.RFC3339), "finalizers": listed(finalizers)},
				Found: []Evidence{SawObject(resource, r.Namespace, r.Name, "%s should be gone since %s; its finalizers: %s",
					short(r), since.UTC().Format(time.RFC3339), listed(finalizers))},
			})
		}
		if pods, err := probes.Pods.Of(facts); err == nil {
			for _, p := range pods.All() {
				if p.DeletionTimestamp != nil {
					add(podRef(p), "pods", p.DeletionTimestamp.Time, p.Finalizers, p)
				}
			}
		}
		if namespaces, err := probes.Namespaces.Of(facts); err == nil {
			for _, n := range namespaces.All() {
				if n.DeletionTimestamp != nil {
					finalizers := slices.Clone(n.Finalizers)
					for _, f := range n.Spec.Finalizers {
						finalizers = append(finalizers, string(f))
					}
					add(Ref{Kind: "Namespace", Name: n.Name}, "namespaces", n.DeletionTimestamp.Time, finalizers, n)
				}
			}
		}
		if claims, err := probes.Claims.Of(facts); err == nil {
			for _, c := range claims.All() {
				if c.DeletionTimestamp != nil {
					add(Ref{Kind: "PersistentVolumeClaim", Namespace: c.Namespace, Name: c.Name}, "persistentvolumeclaims", c.DeletionTimestamp.Time, c.Finalizers, c)
				}
			}
		}
		if ingresses, err := probes.Ingresses.Of(facts); err == nil {
			for _, in := range ingresses.All() {
				if in.DeletionTimestamp != nil {
					add(Ref{Kind: "Ingress", Namespace: in.Namespace, Name: in.Name}, "ingresses.networking.k8s.io", in.DeletionTimestamp.Time, in.Finalizers, in)
				}
			}
		}
		if services, err := probes.Services.Of(facts); err == nil {
			for _, s := range services.All() {
				if s.DeletionTimestamp != nil {
					add(Ref{Kind: "Service", Namespace: s.Namespace, Name: s.Name}, "services", s.DeletionTimestamp.Time, s.Finalizers, s)
				}
			}
		}
		return list
	},
}

// perDeletion proposes the stuck objects of one type.
func perDeletion[T any](subjects func(T, Ref) []Ref) func(*probes.Facts, []*Finding) []Suspect {
	return func(_ *probes.Facts, effects []*Finding) []Suspect {
		var list []Suspect
		for _, e := range effects {
			o, ok := e.Data.(T)
			if !ok {
				continue
			}
			vars := map[string]string{"hint": "", "node": "", "user": "", "api": "", "remaining": ""}
			for k, v := range e.Vars {
				vars[k] = v
			}
			if refs := subjects(o, e.Subject()); refs != nil {
				list = append(list, Suspect{Subjects: refs, Effects: []*Finding{e}, Vars: vars, Found: e.Found, Data: o})
			}
		}
		return list
	}
}

// podOnLostNode: the pod's node can't say that its containers have ended.
var podOnLostNode = &Rule{
	ID:       "pod-on-lost-node",
	Explains: []*Rule{stuckTerminating},
	Suspects: perDeletion(func(p *corev1.Pod, r Ref) []Ref {
		if p.Spec.NodeName == "" {
			return nil
		}
		return []Ref{{Kind: "Node", Name: p.Spec.NodeName}, r}
	}),
	Tests: []Test{{
		Asks:  "is the pod's node gone or not ready?",
		Needs: []probes.Any{probes.Nodes},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			nodes, err := probes.Nodes.Of(facts)
			if err != nil {
				return CantTell(err)
			}
			name := s.Subjects[0].Name
			n := nodes.Get("", name)
			if n == nil {
				return Answered(true, SawObject("nodes", "", name, "node %s does not exist", name)).With("hint", "does not exist any more")
			}
			for _, c := range n.Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
					return Answered(true, SawObject("nodes", "", name, "node %s: Ready is %s: %s", name, c.Status, c.Message)).With("hint", "is not ready")
				}
			}
			return Answered(false)
		},
	}},
}

// finalizerHolds: a finalizer that nobody takes away holds the object.
var finalizerHolds = &Rule{
	ID:       "finalizer-not-removed",
	Explains: []*Rule{stuckTerminating},
	Suspects: perDeletion(func(p *corev1.Pod, r Ref) []Ref { return []Ref{r} }),
	Tests: []Test{
		{
			Asks: "has the pod a finalizer, and have its containers ended?",
			Run: func(_ *probes.Facts, s Suspect) Answer {
				p := s.Data.(*corev1.Pod)
				ended := !slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.State.Running != nil })
				return Answered(len(p.Finalizers) > 0 && ended, s.Found...)
			},
		},
	},
}

// claimInUse: a claim is kept while a pod uses it.
var claimInUse = &Rule{
	ID:       "claim-deleted-in-use",
	Explains: []*Rule{stuckTerminating},
	Suspects: perDeletion(func(c *corev1.PersistentVolumeClaim, r Ref) []Ref { return []Ref{r} }),
	Tests: []Test{{
		Asks:  "does a pod still use the claim?",
		Needs: []probes.Any{probes.Pods, probes.Workloads},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			pods, err := probes.Pods.Of(facts)
			if err != nil {
				return CantTell(err)
			}
			c := s.Data.(*corev1.PersistentVolumeClaim)
			if !slices.Contains(c.Finalizers, "kubernetes.io/pvc-protection") {
				return Answered(false)
			}
			for p := range pods.In(c.Namespace) {
				for _, v := range p.Spec.Volumes {
					if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == c.Name && !probes.Finished(p) {
						return Answered(true, SawObject("pods", p.Namespace, p.Name, "pod %s uses claim %s", p.Name, c.Name)).With("user", fmt.Sprintf("pod %s (%s)", p.Name, short(workloadOf(facts, p))))
					}
				}
			}
			return Answered(false)
		},
	}},
}

func namespaceCondition(n *corev1.Namespace, t corev1.NamespaceConditionType) *corev1.NamespaceCondition {
	for i, c := range n.Status.Conditions {
		if c.Type == t && c.Status == corev1.ConditionTrue {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

// deadGroup finds the API that discovery can't ask.
// Source: kubernetes client-go/discovery ErrGroupDiscoveryFailed.
var deadGroup = regexp.MustCompile(`(?P<group>[a-z0-9.-]+\.[a-z0-9.-]+)/(?P<version>v\w+): `)

// namespaceHeldByAPI: an aggregated API does not answer, so nobody can know
// what is left in the namespace.
var namespaceHeldByAPI = &Rule{
	ID:       "namespace-held-by-dead-api",
	Explains: []*Rule{stuckTerminating},
	Suspects: perDeletion(func(n *corev1.Namespace, r Ref) []Ref {
		c := namespaceCondition(n, corev1.NamespaceDeletionDiscoveryFailure)
		if c == nil {
			return nil
		}
		if m := deadGroup.FindStringSubmatch(c.Message); m != nil {
			return []Ref{{Kind: "APIService", Name: m[2] + "." + m[1]}, r}
		}
		return []Ref{r}
	}),
	Tests: []Test{{
		Asks: "can the namespace's controller not ask an API what is left?",
		Run: func(_ *probes.Facts, s Suspect) Answer {
			n := s.Data.(*corev1.Namespace)
			c := namespaceCondition(n, corev1.NamespaceDeletionDiscoveryFailure)
			return Answered(true, SawObject("namespaces", "", n.Name, "namespace %s: %s: %s", n.Name, c.Reason, c.Message)).With("api", s.Subjects[0].Name)
		},
	}},
}

// namespaceHeldByContent: objects with finalizers are left in the namespace.
var namespaceHeldByContent = &Rule{
	ID:       "namespace-held-by-finalizers",
	Explains: []*Rule{stuckTerminating},
	Suspects: perDeletion(func(n *corev1.Namespace, r Ref) []Ref { return []Ref{r} }),
	Tests: []Test{{
		Asks: "are objects with finalizers left in the namespace, which nobody takes away?",
		Run: func(_ *probes.Facts, s Suspect) Answer {
			n := s.Data.(*corev1.Namespace)
			if namespaceCondition(n, corev1.NamespaceDeletionDiscoveryFailure) != nil {
				return Answered(false)
			}
			var says []Evidence
			var left []string
			for _, t := range []corev1.NamespaceConditionType{corev1.NamespaceContentRemaining, corev1.NamespaceFinalizersRemaining, corev1.NamespaceDeletionContentFailure} {
				if c := namespaceCondition(n, t); c != nil {
					says = append(says, SawObject("namespaces", "", n.Name, "namespace %s: %s: %s", n.Name, c.Reason, c.Message))
					left = append(left, c.Message)
				}
			}
			return Answered(len(says) > 0, says...).With("remaining", strings.Join(left, "; "))
		},
	}},
}

// drainBlocked: a node should be emptied, and the API refuses to evict a pod.
var drainBlocked = &Rule{
	ID:    "drain-blocked",
	Needs: []probes.Any{probes.Nodes, probes.Pods, probes.Events},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		nodes, err := probes.Nodes.Of(facts)
		if err != nil {
			return nil
		}
		pods, err := probes.Pods.Of(facts)
		if err != nil {
			return nil
		}
		events, err := probes.Events.Of(facts)
		if err != nil {
			return nil
		}
		var list []Suspect
		for _, n := range nodes.All() {
			why, at := draining(n, events, facts.Source().Now())
			if why.Says == "" {
				continue
			}
			left := slices.DeleteFunc(slices.Clone(pods.On(n.Name)), func(p *corev1.Pod) bool {
				o := probes.Controller(p)
				return probes.Finished(p) || p.DeletionTimestamp != nil || o != nil && (o.Kind == "DaemonSet" || o.Kind == "Node")
			})
			if len(left) == 0 {
				continue
			}
			list = append(list, Suspect{
				Subjects: []Ref{{Kind: "Node", Name: n.Name}}, Count: 1, Since: at, Data: left, Found: []Evidence{why},
				Vars: map[string]string{"node": n.Name, "pod": left[0].Name, "budget": "(not known)"},
			})
		}
		return list
	},
	Tests: []Test{{
		Asks:  "does a disruption budget allow no eviction of a pod on node {node}?",
		Needs: []probes.Any{probes.DisruptionBudgets},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			budgets, err := probes.DisruptionBudgets.Of(facts)
			if err != nil {
				return CantTell(err)
			}
			blocked := heldByBudget(s.Data.([]*corev1.Pod), budgets)
			if len(blocked) == 0 {
				return Answered(false)
			}
			h := blocked[0]
			return Answered(true, h.says()).With("pod", h.pod.Name).With("budget", h.budget.Name)
		},
	}},
}

// A heldPod is a pod that its budget lets nobody evict.
type heldPod struct {
	pod    *corev1.Pod
	budget *policyv1.PodDisruptionBudget
}

func (h heldPod) says() Evidence {
	b := h.budget
	return SawObject("poddisruptionbudgets.policy", b.Namespace, b.Name, "budget %s of pod %s allows 0 disruptions: %d of %d pods are healthy, %d must be",
		b.Name, h.pod.Name, b.Status.CurrentHealthy, b.Status.ExpectedPods, b.Status.DesiredHealthy)
}

func heldByBudget(pods []*corev1.Pod, budgets *probes.List[policyv1.PodDisruptionBudget]) []heldPod {
	var list []heldPod
	for _, p := range pods {
		for b := range budgets.In(p.Namespace) {
			if b.Status.DisruptionsAllowed == 0 && selects(b.Spec.Selector, p.Labels) {
				list = append(list, heldPod{p, b})
			}
		}
	}
	return list
}

// draining says that somebody tries to empty a node, and since when.
func draining(n *corev1.Node, events *probes.EventList, now time.Time) (Evidence, *time.Time) {
	for _, t := range n.Spec.Taints {
		if t.Key == "karpenter.sh/disrupted" || t.Key == "karpenter.sh/disruption" || t.Key == "ToBeDeletedByClusterAutoscaler" {
			return SawObject("nodes", "", n.Name, "node %s has taint %s", n.Name, t.Key), nil
		}
	}
	if n.DeletionTimestamp != nil {
		at := n.DeletionTimestamp.Time
		return SawObject("nodes", "", n.Name, "node %s is being deleted since %s", n.Name, at.UTC().Format(time.RFC3339)), &at
	}
	if !n.Spec.Unschedulable {
		return Evidence{}, nil
	}
	for _, e := range slices.Backward(events.All()) {
		if strings.Contains(e.Message, "disruption budget") && now.Sub(probes.EventTime(e)) < 2*time.Hour && (e.InvolvedObject.Name == n.Name || e.InvolvedObject.Kind == "Pod" || strings.Contains(e.Message, n.Name)) {
			at := probes.EventTime(e)
			return SawObject("events", e.Namespace, e.Name, "event %s: %s", e.Reason, e.Message), &at
		}
	}
	for _, t := range n.Spec.Taints {
		if t.Key == corev1.TaintNodeUnschedulable && t.TimeAdded != nil && now.Sub(t.TimeAdded.Time) > overdue {
			at := t.TimeAdded.Time
			return SawObject("nodes", "", n.Name, "node %s is cordoned since %s", n.Name, at.UTC().Format(time.RFC3339)), &at
		}
	}
	return Evidence{}, nil
}

// leftOn are the pods that an effect says must still leave.
func leftOn(facts *probes.Facts, e *Finding) []*corev1.Pod {
	if list, ok := e.Data.([]*corev1.Pod); ok {
		return list
	}
	pods, err := probes.Pods.Of(facts)
	if err != nil {
		return nil
	}
	_, list := leaving(pods, e)
	return list
}

func perBudget(facts *probes.Facts, effects []*Finding) []Suspect {
	budgets, err := probes.DisruptionBudgets.Of(facts)
	if err != nil {
		return nil
	}
	var list []Suspect
	index := map[Ref]int{}
	for _, e := range effects {
		for _, h := range heldByBudget(leftOn(facts, e), budgets) {
			b := h.budget
			r := Ref{Kind: "PodDisruptionBudget", Namespace: b.Namespace, Name: b.Name}
			i, ok := index[r]
			if !ok {
				i = len(list)
				index[r] = i
				list = append(list, Suspect{
					Subjects: []Ref{r}, Found: []Evidence{h.says()}, Data: b,
					Vars: map[string]string{"pod": h.pod.Name, "budget": b.Name, "budgetNamespace": b.Namespace},
				})
			}
			if !slices.Contains(list[i].Effects, e) {
				list[i].Effects = append(list[i].Effects, e)
				list[i].Subjects = append(list[i].Subjects, e.Subject(), podRef(h.pod))
			}
		}
	}
	return list
}

// budgetNeverAllows: all pods are healthy, and the budget wants them all.
var budgetNeverAllows = &Rule{
	ID:       "disruption-budget-never-allows",
	Explains: []*Rule{drainBlocked, nodeNotRemoved},
	Needs:    []probes.Any{probes.Pods, probes.DisruptionBudgets},
	Suspects: perBudget,
	Tests: []Test{{
		Asks: "are all pods of the budget healthy, and does it want as many as there are?",
		Run: func(_ *probes.Facts, s Suspect) Answer {
			b := s.Data.(*policyv1.PodDisruptionBudget)
			wants := "maxUnavailable 0"
			if b.Spec.MinAvailable != nil {
				wants = "minAvailable " + b.Spec.MinAvailable.String()
			} else if b.Spec.MaxUnavailable != nil {
				wants = "maxUnavailable " + b.Spec.MaxUnavailable.String()
			}
			return Answered(b.Status.CurrentHealthy >= b.Status.ExpectedPods && b.Status.DesiredHealthy >= b.Status.ExpectedPods && b.Status.ExpectedPods > 0, s.Found...).
				With("wants", wants).With("pods", fmt.Sprint(b.Status.ExpectedPods))
		},
	}},
}

// budgetOfUnhealthyPods: the budget would allow it, were its pods healthy.
var budgetOfUnhealthyPods = &Rule{
	ID:       "disruption-budget-of-unhealthy-pods",
	Explains: []*Rule{drainBlocked, nodeNotRemoved},
	Needs:    []probes.Any{probes.Pods, probes.Workloads, probes.DisruptionBudgets},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		pods, err := probes.Pods.Of(facts)
		if err != nil {
			return nil
		}
		list := perBudget(facts, effects)
		for i := range list {
			b := list[i].Data.(*policyv1.PodDisruptionBudget)
			for p := range pods.In(b.Namespace) {
				if selects(b.Spec.Selector, p.Labels) && !probes.Ready(p) && !probes.Finished(p) {
					list[i].Subjects = append([]Ref{workloadOf(facts, p)}, list[i].Subjects...)
					break
				}
			}
		}
		return list
	},
	Tests: []Test{{
		Asks: "are pods of the budget not healthy?",
		Run: func(_ *probes.Facts, s Suspect) Answer {
			b := s.Data.(*policyv1.PodDisruptionBudget)
			return Answered(b.Status.CurrentHealthy < b.Status.ExpectedPods, s.Found...).
				With("healthy", fmt.Sprint(b.Status.CurrentHealthy)).With("pods", fmt.Sprint(b.Status.ExpectedPods)).With("policy", string(unhealthyPolicy(b)))
		},
	}},
}

func unhealthyPolicy(b *policyv1.PodDisruptionBudget) policyv1.UnhealthyPodEvictionPolicyType {
	if b.Spec.UnhealthyPodEvictionPolicy == nil {
		return policyv1.IfHealthyBudget
	}
	return cmp.Or(*b.Spec.UnhealthyPodEvictionPolicy, policyv1.IfHealthyBudget)
}

var deletionRules = []*Rule{
	stuckTerminating, drainBlocked, podOnLostNode, finalizerHolds, claimInUse, namespaceHeldByAPI, namespaceHeldByContent, budgetNeverAllows, budgetOfUnhealthyPods,
}
