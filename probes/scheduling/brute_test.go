package scheduling

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// The worlds of this test are tiny, so that every predicate can be said again
// in the plainest words and the two be held against each other. The second
// half mends what the first way names and expects the pod to fit.

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func randomPod(r *rand.Rand, name string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: pick(r, "n1", "n2"), Labels: map[string]string{"app": pick(r, "x", "y")}}}
	c := corev1.Container{Name: "main", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": *resource.NewQuantity(int64(r.IntN(4)), resource.DecimalSI)}}}
	if r.IntN(3) == 0 {
		c.Ports = []corev1.ContainerPort{{HostPort: pick(r, int32(80), 81), HostIP: pick(r, "", "10.0.0.1", "10.0.0.2"), Protocol: pick(r, corev1.ProtocolTCP, corev1.ProtocolUDP)}}
	}
	p.Spec.Containers = []corev1.Container{c}
	if r.IntN(2) == 0 {
		p.Spec.NodeSelector = map[string]string{pick(r, "zone", "disk"): pick(r, "1", "2")}
	}
	for range r.IntN(3) {
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{
			Key: pick(r, "t1", "t2"), Operator: pick(r, corev1.TolerationOpExists, corev1.TolerationOpEqual, ""), Effect: pick(r, "", corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute),
		})
	}
	affinity := &corev1.Affinity{}
	if r.IntN(3) == 0 {
		var terms []corev1.NodeSelectorTerm
		for range 1 + r.IntN(2) {
			e := corev1.NodeSelectorRequirement{Key: pick(r, "zone", "disk"), Operator: pick(r, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist)}
			if e.Operator == corev1.NodeSelectorOpIn || e.Operator == corev1.NodeSelectorOpNotIn {
				e.Values = []string{pick(r, "1", "2", "3")}
			}
			terms = append(terms, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{e}})
		}
		affinity.NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}
	}
	term := func() []corev1.PodAffinityTerm {
		return []corev1.PodAffinityTerm{{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": pick(r, "x", "y")}}, TopologyKey: pick(r, "zone", "host"), Namespaces: pick(r, nil, []string{"n1"})}}
	}
	if r.IntN(4) == 0 {
		affinity.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term()}
	}
	if r.IntN(4) == 0 {
		affinity.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term()}
	}
	p.Spec.Affinity = affinity
	if r.IntN(3) == 0 {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: int32(1 + r.IntN(2)), TopologyKey: pick(r, "zone", "host"), WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": pick(r, "x", "y")}}}}
	}
	return p
}

func randomCluster(r *rand.Rand) *Cluster {
	c := &Cluster{Namespaces: probes.NewList[corev1.Namespace](nil)}
	for i := range 1 + r.IntN(4) {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node", i), Labels: map[string]string{"host": fmt.Sprint(i)}}}
		for _, key := range []string{"zone", "disk"} {
			if r.IntN(4) > 0 {
				n.Labels[key] = pick(r, "1", "2")
			}
		}
		if r.IntN(3) == 0 {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: pick(r, "t1", "t2"), Value: pick(r, "", "v"), Effect: pick(r, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute, corev1.TaintEffectPreferNoSchedule)})
		}
		n.Spec.Unschedulable = r.IntN(6) == 0
		n.Status.Allocatable = corev1.ResourceList{"cpu": *resource.NewQuantity(int64(2+r.IntN(4)), resource.DecimalSI), "pods": *resource.NewQuantity(int64(2+r.IntN(3)), resource.DecimalSI)}
		c.Nodes = append(c.Nodes, n)
	}
	var pods []*corev1.Pod
	for i := range r.IntN(6) {
		p := randomPod(r, fmt.Sprint("running", i))
		p.Spec.NodeName = c.Nodes[r.IntN(len(c.Nodes))].Name
		p.Status.Phase = pick(r, corev1.PodRunning, corev1.PodRunning, corev1.PodSucceeded)
		pods = append(pods, p)
	}
	c.Pods = probes.NewList(pods)
	return c
}

// plainlyFits says the predicates again, for the worlds of randomCluster.
func plainlyFits(c *Cluster, p *corev1.Pod, n *corev1.Node) bool {
	tolerated := func(t corev1.Taint) bool {
		for _, o := range p.Spec.Tolerations {
			if (o.Effect == "" || o.Effect == t.Effect) && (o.Key == "" || o.Key == t.Key) && (o.Operator == corev1.TolerationOpExists || o.Value == t.Value) {
				return true
			}
		}
		return false
	}
	if n.Spec.Unschedulable && !tolerated(corev1.Taint{Key: "node.kubernetes.io/unschedulable", Effect: corev1.TaintEffectNoSchedule}) {
		return false
	}
	for _, t := range n.Spec.Taints {
		if t.Effect != corev1.TaintEffectPreferNoSchedule && !tolerated(t) {
			return false
		}
	}
	labelsFit := func(n *corev1.Node) bool {
		for k, v := range p.Spec.NodeSelector {
			if have, ok := n.Labels[k]; !ok || have != v {
				return false
			}
		}
		if a := p.Spec.Affinity.NodeAffinity; a != nil {
			any := false
			for _, t := range a.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
				e := t.MatchExpressions[0]
				have, ok := n.Labels[e.Key]
				switch e.Operator {
				case corev1.NodeSelectorOpIn:
					any = any || ok && have == e.Values[0]
				case corev1.NodeSelectorOpNotIn:
					any = any || !ok || have != e.Values[0]
				case corev1.NodeSelectorOpExists:
					any = any || ok
				case corev1.NodeSelectorOpDoesNotExist:
					any = any || !ok
				}
			}
			return any
		}
		return true
	}
	if !labelsFit(n) {
		return false
	}
	live := func(n *corev1.Node) (pods []*corev1.Pod) {
		for _, o := range c.Pods.All() {
			if o.Spec.NodeName == n.Name && o.Status.Phase == corev1.PodRunning {
				pods = append(pods, o)
			}
		}
		return pods
	}
	cpu := p.Spec.Containers[0].Resources.Requests.Cpu().Value()
	for _, o := range live(n) {
		cpu += o.Spec.Containers[0].Resources.Requests.Cpu().Value()
		for _, a := range p.Spec.Containers[0].Ports {
			for _, b := range o.Spec.Containers[0].Ports {
				if a.HostPort == b.HostPort && a.Protocol == b.Protocol && (a.HostIP == "" || b.HostIP == "" || a.HostIP == b.HostIP) {
					return false
				}
			}
		}
	}
	if p.Spec.Containers[0].Resources.Requests.Cpu().Value() > 0 && cpu > n.Status.Allocatable.Cpu().Value() || int64(len(live(n)))+1 > n.Status.Allocatable.Pods().Value() {
		return false
	}
	// count is how many running pods a term of owner's selects in n's domain; n nil: anywhere.
	count := func(t corev1.PodAffinityTerm, owner string, n *corev1.Node) (total int) {
		for _, m := range c.Nodes {
			v, ok := m.Labels[t.TopologyKey]
			if !ok || n != nil && v != n.Labels[t.TopologyKey] {
				continue
			}
			for _, o := range live(m) {
				if o.Labels["app"] == t.LabelSelector.MatchLabels["app"] && (len(t.Namespaces) == 0 && o.Namespace == owner || len(t.Namespaces) == 1 && o.Namespace == "n1") {
					total++
				}
			}
		}
		return total
	}
	itself := func(t corev1.PodAffinityTerm, owner string) bool {
		return p.Labels["app"] == t.LabelSelector.MatchLabels["app"] && (len(t.Namespaces) == 0 && p.Namespace == owner || len(t.Namespaces) == 1 && p.Namespace == "n1")
	}
	if a := p.Spec.Affinity.PodAffinity; a != nil {
		t := a.RequiredDuringSchedulingIgnoredDuringExecution[0]
		_, ok := n.Labels[t.TopologyKey]
		if !ok || count(t, p.Namespace, n) == 0 && !(count(t, p.Namespace, nil) == 0 && itself(t, p.Namespace)) {
			return false
		}
	}
	if a := p.Spec.Affinity.PodAntiAffinity; a != nil {
		t := a.RequiredDuringSchedulingIgnoredDuringExecution[0]
		if _, ok := n.Labels[t.TopologyKey]; ok && count(t, p.Namespace, n) > 0 {
			return false
		}
	}
	for _, m := range c.Nodes {
		for _, o := range live(m) {
			if a := o.Spec.Affinity.PodAntiAffinity; a != nil {
				t := a.RequiredDuringSchedulingIgnoredDuringExecution[0]
				v, ok := m.Labels[t.TopologyKey]
				if w, has := n.Labels[t.TopologyKey]; ok && has && v == w && itself(t, o.Namespace) {
					return false
				}
			}
		}
	}
	for _, t := range p.Spec.TopologySpreadConstraints {
		v, ok := n.Labels[t.TopologyKey]
		if !ok {
			return false
		}
		domains := map[string]int{}
		for _, m := range c.Nodes {
			if w, ok := m.Labels[t.TopologyKey]; ok && labelsFit(m) {
				domains[w] += 0
				for _, o := range live(m) {
					if o.Namespace == p.Namespace && o.Labels["app"] == t.LabelSelector.MatchLabels["app"] {
						domains[w]++
					}
				}
			}
		}
		least := 1 << 20
		for _, d := range domains {
			least = min(least, d)
		}
		self := 0
		if p.Labels["app"] == t.LabelSelector.MatchLabels["app"] {
			self = 1
		}
		if domains[v]+self-least > int(t.MaxSkew) {
			return false
		}
	}
	return true
}

func TestPlaceAgainstPlainWords(t *testing.T) {
	fits, doesnt := 0, 0
	for seed := range uint64(8000) {
		r := rand.New(rand.NewPCG(seed, 1))
		c, p := randomCluster(r), randomPod(r, "new")
		for _, on := range c.Place(p).Nodes {
			want := plainlyFits(c, p, on.Node)
			if on.Fits() != want {
				t.Fatalf("seed %d: node %s fits = %v, plainly %v: %+v", seed, on.Node.Name, on.Fits(), want, on.Failures)
			}
			if want {
				fits++
			} else {
				doesnt++
			}
		}
	}
	if fits < 1000 || doesnt < 1000 {
		t.Errorf("the worlds are too uniform: %d fit, %d don't", fits, doesnt)
	}
}

// mend makes the change that a failure names.
func mend(c *Cluster, p *corev1.Pod, n *corev1.Node, f Failure) bool {
	switch f.Predicate {
	case Cordoned:
		n.Spec.Unschedulable = false
	case Taint:
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: f.Taint.Key, Value: f.Taint.Value, Operator: corev1.TolerationOpEqual, Effect: f.Taint.Effect})
	case NodeSelector:
		delete(p.Spec.NodeSelector, f.Key)
	case Resources:
		more := n.Status.Allocatable[f.Amount.Resource]
		more.Add(*resource.NewQuantity(100, resource.DecimalSI))
		n.Status.Allocatable[f.Amount.Resource] = more
	case HostPort:
		p.Spec.Containers[0].Ports = nil
	case AntiAffinity:
		p.Spec.Affinity.PodAntiAffinity = nil
	default:
		return false // changing labels of nodes or pods moves the other predicates
	}
	return true
}

func TestWaysHold(t *testing.T) {
	mended := map[Predicate]int{}
	for seed := range uint64(8000) {
		r := rand.New(rand.NewPCG(seed, 2))
		c, p := randomCluster(r), randomPod(r, "new")
		p.Spec.TopologySpreadConstraints, p.Spec.Affinity.PodAffinity = nil, nil
		placement := c.Place(p)
		ways := placement.Ways()
		if len(placement.Fitting()) > 0 || len(ways) == 0 || len(ways[0].Changes) != 1 || strings.Contains(ways[0].Changes[0], "node affinity") {
			continue
		}
		way, node := ways[0], ways[0].Nodes[0]
		for _, f := range placement.Nodes {
			if f.Node != node {
				continue
			}
			ok := true
			for _, f := range f.Failures {
				ok = ok && mend(c, p, node, f)
			}
			if !ok {
				continue
			}
			mended[f.Failures[0].Predicate]++
			fits := false
			for _, n := range c.Place(p).Fitting() {
				fits = fits || n == node
			}
			if !fits {
				t.Fatalf("seed %d: after %v the pod still doesn't fit on %s: %s", seed, way.Changes, node.Name, c.Place(p).Summary())
			}
		}
	}
	for _, p := range []Predicate{Cordoned, Taint, NodeSelector, Resources, HostPort, AntiAffinity} {
		if mended[p] < 20 {
			t.Errorf("%s was mended only %d times", p, mended[p])
		}
	}
}
