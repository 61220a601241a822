package diagnose

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/pposiraegi/ppodoctor/probes"
)

// focus keeps what touches what was asked about: an object, a namespace, the
// pods that a selector matches. Other symptoms stay only as company that
// shares a cause.
func (w *walk) focus(d *Diagnosis) {
	asked := w.askedAbout()
	touches := func(refs ...Ref) bool { return slices.ContainsFunc(refs, asked) }
	causeTouches := func(c Cause) bool {
		if touches(c.Subjects...) || touches(c.Effects...) {
			return true
		}
		return slices.ContainsFunc(c.Chain, func(s Step) bool { return touches(s.Subject) })
	}
	drop := func(list []Cause) []Cause {
		return slices.DeleteFunc(list, func(c Cause) bool { return !causeTouches(c) })
	}
	d.Causes, d.Suspected, d.Risks = drop(d.Causes), drop(d.Suspected), drop(d.Risks)
	shared := func(s Symptom) bool {
		return touches(s.Subject) || touches(s.Examples...) || slices.ContainsFunc(s.ExplainedBy, func(f string) bool {
			return slices.ContainsFunc(d.Causes, func(c Cause) bool { return c.Fingerprint == f })
		})
	}
	d.Symptoms = slices.DeleteFunc(d.Symptoms, func(s Symptom) bool { return !shared(s) })
	d.Unexplained = slices.DeleteFunc(d.Unexplained, func(s Symptom) bool { return !shared(s) })
	if len(d.Symptoms)+len(d.Causes)+len(d.Suspected) == 0 {
		d.Timeline = []Moment{} // it is that of others' troubles
	}
	// A rule was considered for the object if it was judged about it, or as an
	// explanation of something about it.
	kept := map[*Finding]bool{}
	for _, f := range w.findings {
		if touches(f.Subjects...) || slices.ContainsFunc(f.Effects, func(e *Finding) bool { return kept[e] }) {
			kept[f] = true
		}
	}
	var considered []Considered
	for i, f := range w.findings {
		if kept[f] && len(d.Considered) > 0 {
			considered = append(considered, d.Considered[i])
		}
	}
	d.Considered = considered
}

// askedAbout tells whether something was asked about.
func (w *walk) askedAbout() func(Ref) bool {
	about := map[Ref]bool{}
	switch {
	case w.opts.Focus != nil && w.opts.Focus.Kind == "Namespace":
		name := w.opts.Focus.Name
		return func(r Ref) bool { return r.Namespace == name || r == *w.opts.Focus }
	case w.opts.Focus != nil:
		for _, r := range w.aliases(*w.opts.Focus) {
			about[r] = true
		}
	case w.opts.Selector != nil:
		pods, err := probes.Pods.Of(w.facts)
		index, indexErr := probes.Workloads.Of(w.facts)
		if err != nil || indexErr != nil {
			break
		}
		for _, p := range pods.All() {
			if w.opts.Selector.Matches(labels.Set(p.Labels)) && (w.opts.Namespace == "" || p.Namespace == w.opts.Namespace) {
				about[podRef(p)], about[index.Of(p)] = true, true
			}
		}
	default:
		return func(r Ref) bool {
			return r.Namespace == w.opts.Namespace || r.Kind == "Namespace" && r.Name == w.opts.Namespace
		}
	}
	return func(r Ref) bool { return about[r] }
}

// aliases are the names under which the object may appear: a pod's workload,
// a workload's pods; and what fails of the pods that hang on it.
func (w *walk) aliases(r Ref) []Ref {
	about := []Ref{r}
	index, err := probes.Workloads.Of(w.facts)
	if err != nil {
		return about
	}
	for _, owner := range index.All() {
		for _, p := range index.Pods(owner) {
			pod := podRef(p)
			if pod == r {
				about = append(about, owner)
			}
			if owner == r {
				about = append(about, pod)
			}
		}
	}
	nodes := w.nodesBehind(r)
	for name := range nodes {
		about = appendNew(about, Ref{Kind: "Node", Name: name})
	}
	hangs := w.hangsOn(r)
	for _, f := range w.findings {
		for _, p := range troubled(f) {
			if nodes[p.Spec.NodeName] || hangs(p) {
				about = appendNew(about, podRef(p), f.Subject())
			}
		}
	}
	return about
}

// nodesBehind are the nodes that an object is or makes, by name.
func (w *walk) nodesBehind(r Ref) map[string]bool {
	label := map[string]string{"NodePool": "karpenter.sh/nodepool", "EC2NodeClass": "karpenter.k8s.aws/ec2nodeclass"}[r.Kind]
	names := map[string]bool{}
	if r.Kind == "Node" {
		names[r.Name] = true
	}
	if list, err := probes.Nodes.Of(w.facts); err == nil && label != "" {
		for _, n := range list.All() {
			if n.Labels[label] == r.Name {
				names[n.Name] = true
			}
		}
	}
	if r.Kind == "NodeClaim" && w.facts.Has(probes.NodeClaims) {
		if list, err := probes.NodeClaims.Of(w.facts); err == nil {
			if c := list.Get("", r.Name); c != nil && c.Status.NodeName != "" {
				names[c.Status.NodeName] = true
			}
		}
	}
	return names
}

// hangsOn tells which pods a Service sends to, a claim is mounted by, or an
// autoscaler scales.
func (w *walk) hangsOn(r Ref) func(*corev1.Pod) bool {
	switch r.Kind {
	case "Service":
		if list, err := probes.Services.Of(w.facts); w.facts.Has(probes.Services) && err == nil {
			if svc := list.Get(r.Namespace, r.Name); svc != nil && len(svc.Spec.Selector) > 0 {
				sel := labels.SelectorFromSet(svc.Spec.Selector)
				return func(p *corev1.Pod) bool { return p.Namespace == r.Namespace && sel.Matches(labels.Set(p.Labels)) }
			}
		}
	case "PersistentVolumeClaim":
		return func(p *corev1.Pod) bool {
			return p.Namespace == r.Namespace && slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
				return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == r.Name
			})
		}
	case "HorizontalPodAutoscaler":
		if list, err := probes.Autoscalers.Of(w.facts); w.facts.Has(probes.Autoscalers) && err == nil {
			index, indexErr := probes.Workloads.Of(w.facts)
			if h := list.Get(r.Namespace, r.Name); h != nil && indexErr == nil {
				target := Ref{Kind: h.Spec.ScaleTargetRef.Kind, Namespace: r.Namespace, Name: h.Spec.ScaleTargetRef.Name}
				return func(p *corev1.Pod) bool { return index.Of(p) == target }
			}
		}
	}
	return func(*corev1.Pod) bool { return false }
}
