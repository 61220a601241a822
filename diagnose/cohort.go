package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/network"
)

// A Cohort compares the failing pods with the healthy ones by one attribute
// that pods have: the nodepool, the security groups of the ENI, the zone.
type Cohort struct {
	Of     string  `json:"of,omitempty"` // "nodes" where nodes are compared, and not pods
	By     string  `json:"by"`           // "nodepool", "security groups"
	Splits bool    `json:"splits"`       // the failing and the healthy share no value
	Groups []Group `json:"groups"`
	// Same are other attributes that split the same pods in the same way: the
	// split alone does not tell which of them matters.
	Same []string `json:"same,omitempty"`
}

// A Group is the pods that have one value of a cohort's attribute.
type Group struct {
	Value   string  `json:"value"`
	Failing int     `json:"failing"`
	Healthy int     `json:"healthy"`
	Nodes   []Place `json:"nodes,omitempty"` // the nodes they run on, for a map of the incident
}

// A Place is a node as the incident's story sees it.
type Place struct {
	Name    string `json:"name"`
	Failing int    `json:"failing"`
	Healthy int    `json:"healthy"`
	Holds   []Ref  `json:"holds,omitempty"` // pods worth naming: the failing, and those that they need
}

// A Path is traffic between the pods of two groups of a cohort.
type Path struct {
	From    string `json:"from"` // a group's value
	To      string `json:"to"`   // a group's value
	What    string `json:"what"` // "53/udp, 53/tcp"
	Blocked bool   `json:"blocked"`
}

// Has reports whether both ends of a path are groups of the cohort.
func (c Cohort) Has(p Path) bool {
	group := func(value string) bool {
		return slices.ContainsFunc(c.Groups, func(g Group) bool { return g.Value == value })
	}
	return group(p.From) && group(p.To)
}

// says is the split in words, with the counts of both sides.
func (c Cohort) says() string {
	var on, elsewhere, off, healthyOn int
	var values []string
	for _, g := range c.Groups {
		if g.Failing > 0 {
			values = append(values, g.Value)
			on += g.Failing
			healthyOn += g.Healthy
		} else {
			off += g.Healthy
		}
		elsewhere += g.Failing + g.Healthy
	}
	s := fmt.Sprintf("%d of %d %s with %s %s fail, 0 of %d elsewhere", on, on+healthyOn, cmp.Or(c.Of, "pods"), c.By, strings.Join(values, " or "), off)
	if len(c.Same) > 0 {
		s += "; " + strings.Join(c.Same, ", ") + " split them the same way"
	}
	return s
}

func (c Cohort) fact() Fact {
	if c.Of == "nodes" {
		return Fact{Says: c.says(), Document: "nodes", Command: "kubectl get nodes --show-labels"}
	}
	return Fact{Says: c.says(), Document: "pods", Command: "kubectl get pods -A -o wide"}
}

// An attribute is something that pods have in common, or not. Those closer to
// a cause come first: a security group is changed by somebody, a node only
// carries it.
type attribute struct {
	by    string
	value func(*cohortView, *corev1.Pod, *corev1.Node) string
	own   bool // of the pod's own making: says nothing within one workload
}

func nodeLabel(key string) func(*cohortView, *corev1.Pod, *corev1.Node) string {
	return func(_ *cohortView, _ *corev1.Pod, n *corev1.Node) string {
		if n == nil {
			return ""
		}
		return n.Labels[key]
	}
}

var attributes = []attribute{
	{by: "security groups", value: func(v *cohortView, p *corev1.Pod, _ *corev1.Node) string {
		if v.world == nil {
			return ""
		}
		groups, _, err := v.world.GroupsOfPod(p)
		if err != nil {
			return ""
		}
		return strings.Join(groups, " ")
	}},
	{by: "nodepool", value: nodeLabel("karpenter.sh/nodepool")},
	{by: "nodegroup", value: nodeLabel("eks.amazonaws.com/nodegroup")},
	{by: "AMI", value: func(v *cohortView, _ *corev1.Pod, n *corev1.Node) string {
		if n == nil {
			return ""
		}
		return cmp.Or(n.Labels["eks.amazonaws.com/nodegroup-image"], v.images[n.Name], n.Status.NodeInfo.OSImage)
	}},
	{by: "kubelet version", value: func(_ *cohortView, _ *corev1.Pod, n *corev1.Node) string {
		if n == nil {
			return ""
		}
		return n.Status.NodeInfo.KubeletVersion
	}},
	{by: "architecture", value: nodeLabel("kubernetes.io/arch")},
	{by: "instance type", value: nodeLabel("node.kubernetes.io/instance-type")},
	{by: "capacity type", value: func(_ *cohortView, _ *corev1.Pod, n *corev1.Node) string {
		if n == nil {
			return ""
		}
		return strings.ToLower(cmp.Or(n.Labels["karpenter.sh/capacity-type"], n.Labels["eks.amazonaws.com/capacityType"]))
	}},
	{by: "zone", value: nodeLabel("topology.kubernetes.io/zone")},
	{by: "node", value: func(_ *cohortView, p *corev1.Pod, _ *corev1.Node) string { return p.Spec.NodeName }},
	{by: "namespace", own: true, value: func(_ *cohortView, p *corev1.Pod, _ *corev1.Node) string { return p.Namespace }},
	{by: "service account", own: true, value: func(_ *cohortView, p *corev1.Pod, _ *corev1.Node) string {
		return p.Namespace + "/" + cmp.Or(p.Spec.ServiceAccountName, "default")
	}},
	{by: "image", own: true, value: func(_ *cohortView, p *corev1.Pod, _ *corev1.Node) string {
		if len(p.Spec.Containers) == 0 {
			return ""
		}
		return p.Spec.Containers[0].Image
	}},
}

// A cohortView is what the comparison reads.
type cohortView struct {
	pods   *probes.PodList
	nodes  *probes.List[corev1.Node]
	owners *probes.WorkloadIndex
	world  *network.World    // nil where no rule has asked for the network
	images map[string]string // AMI by node name, where Karpenter knows it
}

// cohorts compares failing pods with the healthy pods that are comparable:
// they run, are ready, and are no daemons, which every node has. The best
// split comes first; none is reported of a single pod, or where nothing
// healthy is left to compare with.
func (v *cohortView) cohorts(failing []*corev1.Pod) []Cohort {
	if v == nil || len(failing) < 2 {
		return nil
	}
	bad := map[*corev1.Pod]bool{}
	owners := map[Ref]bool{}
	for _, p := range failing {
		bad[p] = true
		owners[v.owners.Of(p)] = true
	}
	var all []*corev1.Pod
	healthy := 0
	for _, p := range v.pods.All() {
		owner := v.owners.Of(p)
		comparable := p.Spec.NodeName != "" && !p.Spec.HostNetwork && owner.Kind != "DaemonSet" && probes.Ready(p) && p.DeletionTimestamp == nil
		switch {
		case bad[p]:
			all = append(all, p)
		case comparable:
			all = append(all, p)
			healthy++
		}
	}
	if healthy == 0 {
		return nil
	}
	return v.splits(all, bad, len(owners) > 1)
}

// nodeCohorts compares failing nodes with those that are ready and do not fail,
// as cohorts does pods. A pod of the host stands for each node: it has the
// node's groups and nothing of its own.
func (v *cohortView) nodeCohorts(failing []string) []Cohort {
	if v == nil || len(failing) < 2 {
		return nil
	}
	bad := map[*corev1.Pod]bool{}
	var all []*corev1.Pod
	for _, n := range v.nodes.All() {
		fails := slices.Contains(failing, n.Name)
		if c := nodeCondition(n, corev1.NodeReady); !fails && (c == nil || c.Status != corev1.ConditionTrue) {
			continue
		}
		p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: n.Name, HostNetwork: true}}
		all = append(all, p)
		if fails {
			bad[p] = true
		}
	}
	if len(bad) < 2 || len(bad) == len(all) {
		return nil
	}
	cohorts := v.splits(all, bad, false)
	for i := range cohorts {
		cohorts[i].Of = "nodes"
	}
	return cohorts
}

// splits are the best splits, the best first; own says whether attributes of
// the pods' own making count.
func (v *cohortView) splits(all []*corev1.Pod, bad map[*corev1.Pod]bool, own bool) []Cohort {
	var found []Cohort
	for _, a := range attributes {
		if a.own && !own {
			continue
		}
		c, ok := v.split(a, all, bad)
		if !ok {
			continue
		}
		if i := slices.IndexFunc(found, func(o Cohort) bool { return sameSplit(o, c) }); i >= 0 {
			found[i].Same = append(found[i].Same, c.By)
			continue
		}
		found = append(found, c)
	}
	slices.SortStableFunc(found, func(a, b Cohort) int { return cmp.Compare(spoilt(a), spoilt(b)) })
	return found[:min(len(found), 3)]
}

// spoilt is how many healthy pods stand on the failing side of a split.
func spoilt(c Cohort) int {
	n := 0
	for _, g := range c.Groups {
		if g.Failing > 0 {
			n += g.Healthy
		}
	}
	return n
}

// split groups pods by an attribute. It is worth telling if all that fail
// share a value and most of the healthy have another.
func (v *cohortView) split(a attribute, all []*corev1.Pod, bad map[*corev1.Pod]bool) (Cohort, bool) {
	groups := map[string]*Group{}
	for _, p := range all {
		value := a.value(v, p, v.nodes.Get("", p.Spec.NodeName))
		if value == "" {
			value = "none"
		}
		g := groups[value]
		if g == nil {
			g = &Group{Value: value}
			groups[value] = g
		}
		if bad[p] {
			g.Failing++
		} else {
			g.Healthy++
		}
		g.place(p, bad[p])
	}
	c := Cohort{By: a.by}
	on, off, sides := 0, 0, 0
	for _, value := range sortedKeys(groups) {
		g := groups[value]
		slices.SortFunc(g.Nodes, func(a, b Place) int { return strings.Compare(a.Name, b.Name) })
		c.Groups = append(c.Groups, *g)
		if g.Failing > 0 {
			sides++
			on += g.Healthy
		} else {
			off += g.Healthy
		}
	}
	slices.SortStableFunc(c.Groups, func(a, b Group) int { return cmp.Compare(b.Failing, a.Failing) })
	c.Splits = on == 0
	return c, sides == 1 && c.Groups[0].Value != "none" && off > on
}

func (g *Group) place(p *corev1.Pod, failing bool) {
	i := slices.IndexFunc(g.Nodes, func(n Place) bool { return n.Name == p.Spec.NodeName })
	if i < 0 {
		i = len(g.Nodes)
		g.Nodes = append(g.Nodes, Place{Name: p.Spec.NodeName})
	}
	n := &g.Nodes[i]
	if failing {
		n.Failing++
	} else {
		n.Healthy++
	}
	if p.Name != "" && (failing || isCoreDNS(p)) {
		n.Holds = append(n.Holds, podRef(p))
	}
}

func isCoreDNS(p *corev1.Pod) bool { return p.Labels["k8s-app"] == "kube-dns" }

// sameSplit reports whether two cohorts put the same number of failing and
// healthy pods on either side.
func sameSplit(a, b Cohort) bool {
	return a.Groups[0].Failing == b.Groups[0].Failing && a.Groups[0].Healthy == b.Groups[0].Healthy &&
		a.Splits == b.Splits
}

// cohortView gathers what comparisons read; nil where the pods can't be had.
func (w *walk) cohortView() *cohortView {
	v := &cohortView{images: map[string]string{}}
	var err error
	if v.pods, err = probes.Pods.Of(w.facts); err != nil {
		return nil
	}
	if v.owners, err = probes.Workloads.Of(w.facts); err != nil {
		return nil
	}
	if v.nodes, err = probes.Nodes.Of(w.facts); err != nil {
		return nil
	}
	// The network costs reads of AWS: it is compared only where a rule has
	// asked for it already.
	if w.facts.Has(probes.Network) {
		v.world, _ = probes.Network.Of(w.facts)
	}
	if w.facts.Has(probes.NodeClaims) {
		if claims, err := probes.NodeClaims.Of(w.facts); err == nil {
			for _, c := range claims.All() {
				v.images[c.Status.NodeName] = c.Status.ImageID
			}
		}
	}
	return v
}

// failingPods are the pods behind a finding: those of the symptoms below it.
func (g *graph) failingPods(f *Finding) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, b := range g.below(f) {
		for _, p := range troubled(b) {
			if !slices.Contains(pods, p) {
				pods = append(pods, p)
			}
		}
	}
	return pods
}

// failingNodes are the nodes behind a finding: the subjects of the symptoms
// below it that are about nodes.
func (g *graph) failingNodes(f *Finding) []string {
	var nodes []string
	for _, b := range g.below(f) {
		nodes = append(nodes, subjectNodes(b)...)
	}
	return nodes
}

// subjectNodes are the nodes that a symptom is about.
func subjectNodes(f *Finding) []string {
	var nodes []string
	for _, s := range f.Subjects {
		if f.Rule.symptom() && f.Subject().Kind == "Node" && s.Kind == "Node" {
			nodes = appendNew(nodes, s.Name)
		}
	}
	return nodes
}
