package diagnose

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/scheduling"
)

// Karpenter's objects. In a cluster that shows no sign of Karpenter and of
// which they were not captured they are empty, and no gap.
var (
	pools   = whereKarpenter(probes.NodePools)
	claims  = whereKarpenter(probes.NodeClaims)
	classes = whereKarpenter(probes.EC2NodeClasses)
)

func whereKarpenter[T any](p *probes.Probe[*probes.List[T]]) *probes.Probe[*probes.List[T]] {
	return &probes.Probe[*probes.List[T]]{
		Name: p.Name, About: p.About, Reads: p.Reads, After: []probes.Any{probes.Pods, probes.Nodes},
		Gather: func(ctx context.Context, _ probes.Source, known *probes.Facts) (*probes.List[T], error) {
			list, err := p.Ask(ctx, known)
			var gap *probes.Gap
			if errors.As(err, &gap) && gap.Reason == probes.NotCaptured && !showsKarpenter(known) {
				return probes.NewList[T](nil), nil
			}
			return list, err
		},
	}
}

func showsKarpenter(known *probes.Facts) bool {
	pods, err := probes.Pods.Of(known)
	nodes, nodesErr := probes.Nodes.Of(known)
	if err != nil || nodesErr != nil {
		return false
	}
	return karpenterSigns(&scheduling.Cluster{Pods: pods.List, Nodes: nodes.All()})
}

// A saying is one thing that Karpenter, or AWS through it, said of making
// nodes, with the objects that it is about as far as they are known.
type saying struct {
	text              string
	at                time.Time // zero where it isn't known
	from              Evidence
	claim, pool, node string
	class             string
	standing          bool // it is in a condition, so it holds now
}

// karpenterSays is what was said of nodes in the making: by conditions, by
// events and by the controller's log. The latest is first; what stands in a
// condition counts as said now.
var karpenterSays = &probes.Probe[*sayings]{
	Name:  "karpenter-says",
	About: "what Karpenter and AWS said of nodes in the making",
	After: []probes.Any{pools, claims, classes, probes.Events, probes.KarpenterLogs},
	Gather: func(_ context.Context, src probes.Source, known *probes.Facts) (*sayings, error) {
		s := &sayings{now: src.Now()}
		s.classOf = map[string]string{}
		if list, err := pools.Of(known); err == nil {
			for _, p := range list.All() {
				s.classOf[p.Name] = p.Spec.Template.Spec.NodeClassRef.Name
				s.conditions("nodepools.karpenter.sh", p, "NodePool", p.Status.Conditions, saying{pool: p.Name, class: s.classOf[p.Name]})
			}
		} else {
			s.errs = append(s.errs, err)
		}
		s.poolOf = map[string]string{}
		if list, err := claims.Of(known); err == nil {
			for _, c := range list.All() {
				s.poolOf[c.Name] = c.Labels["karpenter.sh/nodepool"]
				s.conditions("nodeclaims.karpenter.sh", c, "NodeClaim", c.Status.Conditions, saying{claim: c.Name, pool: s.poolOf[c.Name], class: c.Spec.NodeClassRef.Name})
			}
		}
		if list, err := classes.Of(known); err == nil {
			for _, c := range list.All() {
				s.conditions("ec2nodeclasses.karpenter.k8s.aws", c, "EC2NodeClass", c.Status.Conditions, saying{class: c.Name})
			}
		}
		events, err := probes.Events.Of(known)
		if err == nil {
			s.events(events)
		} else {
			s.errs = append(s.errs, err)
		}
		logs, err := probes.KarpenterLogs.Of(known)
		if err == nil {
			s.logs(logs)
		} else {
			s.errs = append(s.errs, err)
		}
		slices.SortStableFunc(s.all, func(a, b saying) int { return b.at.Compare(a.at) })
		return s, nil
	},
}

type sayings struct {
	now     time.Time
	all     []saying
	classOf map[string]string // by NodePool
	poolOf  map[string]string // by NodeClaim
	errs    []error           // what could not be read
}

func (s *sayings) conditions(resource string, object metav1.Object, kind string, list []metav1.Condition, about saying) {
	for _, c := range list {
		if c.Status == metav1.ConditionTrue || c.Message == "" && c.Reason == "" || c.Reason == "AwaitingReconciliation" {
			continue
		}
		one := about
		one.text, one.at, one.standing = strings.TrimSpace(c.Reason+": "+c.Message), s.now, true
		one.from = SawObject(resource, "", object.GetName(), "%s %s: %s=%s, %s: %s", kind, object.GetName(), c.Type, c.Status, c.Reason, c.Message)
		s.all = append(s.all, one)
	}
}

func (s *sayings) events(events *probes.EventList) {
	for _, e := range events.All() {
		about := saying{text: strings.TrimPrefix(e.Reason+": "+e.Message, ": "), at: probes.EventTime(e)}
		switch e.InvolvedObject.Kind {
		case "NodeClaim":
			about.claim = e.InvolvedObject.Name
		case "NodePool":
			about.pool = e.InvolvedObject.Name
		case "EC2NodeClass":
			about.class = e.InvolvedObject.Name
		case "Pod":
			if m := failedNominee.FindStringSubmatch(e.Message); m != nil {
				about.claim = m[1]
				break
			}
			continue
		case "Node":
			if e.Source.Component != "karpenter" && e.ReportingController != "karpenter" {
				continue
			}
			about.node = e.InvolvedObject.Name
		default:
			continue
		}
		about.from = Saw("events", nil, "event on %s %s: %s: %s", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
		at := about.at
		about.from.At = &at
		s.add(about)
	}
}

// failedNominee is Karpenter v1.15's event on a pod.
var failedNominee = regexp.MustCompile(`NodeClaim (\S+) nominated for this pod failed to launch`)

func (s *sayings) logs(logs *probes.LogSet) {
	for _, l := range logs.All() {
		if l.Excerpt == nil {
			s.errs = append(s.errs, l.Gap)
			continue
		}
		for _, f := range l.Excerpt.Failures {
			about := saying{
				text: f.Text, at: f.LastAt,
				claim: cmp.Or(f.Fields["NodeClaim.name"], f.Fields["nodeclaim"]),
				pool:  cmp.Or(f.Fields["NodePool.name"], f.Fields["nodepool"]),
				class: cmp.Or(f.Fields["EC2NodeClass.name"], f.Fields["ec2nodeclass"]),
				node:  f.Fields["Node.name"],
			}
			often := ""
			if f.Count > 1 {
				often = fmt.Sprintf(" (%d times)", f.Count)
			}
			about.from = Evidence{Says: fmt.Sprintf("log of %s/%s: %q%s", l.Pod, l.Container, abridged(f.Text, 600), often), Document: l.Document()}
			if !about.at.IsZero() {
				at := about.at
				about.from.At = &at
			}
			s.add(about)
		}
	}
}

// add completes what a saying is about: a NodeClaim is named after its pool.
func (s *sayings) add(one saying) {
	if one.pool == "" && one.claim != "" {
		one.pool = s.poolOf[one.claim]
		for _, pool := range sortedKeys(s.classOf) {
			if one.pool == "" && strings.HasPrefix(one.claim, pool+"-") && !strings.Contains(strings.TrimPrefix(one.claim, pool+"-"), "-") {
				one.pool = pool
			}
		}
	}
	if one.class == "" && one.pool != "" {
		one.class = s.classOf[one.pool]
	}
	s.all = append(s.all, one)
}

// of are the sayings about a node class and what is made from it, those whose
// object isn't known included; the latest first. What is older than an hour is
// left out: events end then, and a log may go back for days.
func (s *sayings) of(class string) []saying {
	var list []saying
	for _, one := range s.all {
		if (one.class == class || one.class == "") && (one.at.IsZero() || s.now.Sub(one.at) < time.Hour) {
			list = append(list, one)
		}
	}
	return list
}

// err joins what could not be read.
func (s *sayings) err() error { return errors.Join(s.errs...) }

func abridged(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + " …"
}

// classRef is the EC2NodeClass that a NodePool or NodeClaim refers to, or "".
func classRef(r probes.NodeClassRef) string {
	if r.Kind != "" && r.Kind != "EC2NodeClass" {
		return ""
	}
	return r.Name
}

// A classCase is an EC2NodeClass with what its nodes in the making suffer.
type classCase struct {
	class   *probes.EC2NodeClass
	name    string
	pools   []*probes.NodePool
	effects []*Finding
}

// perClass groups effects by the EC2NodeClass that the nodes would be made from.
func perClass(facts *probes.Facts, effects []*Finding) []classCase {
	poolList, err := pools.Of(facts)
	classList, classErr := classes.Of(facts)
	if err != nil || classErr != nil {
		return nil
	}
	claimList, _ := claims.Of(facts)
	byClass := map[string]*classCase{}
	at := func(name string) *classCase {
		if byClass[name] == nil {
			byClass[name] = &classCase{name: name, class: classList.Get("", name)}
		}
		return byClass[name]
	}
	for _, p := range poolList.All() {
		if name := classRef(p.Spec.Template.Spec.NodeClassRef); name != "" {
			at(name).pools = append(at(name).pools, p)
		}
	}
	for _, e := range effects {
		for _, ref := range e.Subjects {
			name := ""
			switch ref.Kind {
			case "EC2NodeClass":
				name = ref.Name
			case "NodePool":
				if p := poolList.Get("", ref.Name); p != nil {
					name = classRef(p.Spec.Template.Spec.NodeClassRef)
				}
			case "NodeClaim":
				if claimList != nil {
					if c := claimList.Get("", ref.Name); c != nil {
						name = classRef(c.Spec.NodeClassRef)
					}
				}
			}
			if name != "" && !slices.Contains(at(name).effects, e) {
				at(name).effects = append(at(name).effects, e)
			}
		}
	}
	var cases []classCase
	for _, name := range sortedKeys(byClass) {
		if len(byClass[name].effects) > 0 {
			cases = append(cases, *byClass[name])
		}
	}
	return cases
}

func (c classCase) ref() Ref { return Ref{Kind: "EC2NodeClass", Name: c.name} }

func (c classCase) condition(t string) *metav1.Condition {
	if c.class == nil {
		return nil
	}
	return meta.FindStatusCondition(c.class.Status.Conditions, t)
}

// sawClass is evidence from the EC2NodeClass.
func (c classCase) saw(format string, args ...any) Evidence {
	return SawObject("ec2nodeclasses.karpenter.k8s.aws", "", c.name, format, args...)
}

// sawCondition is a condition as evidence.
func (c classCase) sawCondition(k *metav1.Condition) Evidence {
	return c.saw("EC2NodeClass %s: %s=%s, %s: %s", c.name, k.Type, k.Status, k.Reason, k.Message)
}

// karpenterPods are the controller's pods.
func karpenterPods(facts *probes.Facts) []*corev1.Pod {
	pods, err := probes.Pods.Of(facts)
	if err != nil {
		return nil
	}
	return pods.Where(func(p *corev1.Pod) bool { return !probes.Finished(p) && probes.IsController(p, "karpenter") })
}

// karpenterVersion is the controller's version without "v", or "".
func karpenterVersion(podList []*corev1.Pod) string {
	for _, p := range podList {
		for _, c := range p.Spec.Containers {
			image, _, _ := strings.Cut(c.Image, "@")
			if i := strings.LastIndexByte(image, ':'); i > strings.LastIndexByte(image, '/') && strings.Contains(image, "karpenter") {
				return strings.TrimPrefix(image[i+1:], "v")
			}
		}
	}
	return ""
}
