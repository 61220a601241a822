package diagnose

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// balancerPatience is how long a load balancer may take to be made.
const balancerPatience = 10 * time.Minute

// awsController is the AWS Load Balancer Controller among what makes load
// balancers; inTree is the cloud provider's own service controller.
const (
	awsController = "ingress.k8s.aws/alb"
	inTree        = "the cloud provider"
)

// A balanced is an object that is to get a load balancer, and what its
// controller last complained of.
type balanced struct {
	ref     Ref
	meta    *metav1.ObjectMeta
	ingress *networkingv1.Ingress
	service *corev1.Service
	class   string // the class that it names or gets by default; empty: none
	maker   string // what is to make it: awsController, inTree, another controller's name; empty: nothing
	unmade  bool   // it has no address
	says    string // the complaint; empty: none is kept
	seen    []Evidence
	since   time.Time
}

func (b *balanced) internetFacing() bool {
	if b.service != nil {
		if b.maker == inTree {
			return b.meta.Annotations["service.beta.kubernetes.io/aws-load-balancer-internal"] != "true"
		}
		return b.meta.Annotations["service.beta.kubernetes.io/aws-load-balancer-scheme"] == "internet-facing"
	}
	return b.meta.Annotations["alb.ingress.kubernetes.io/scheme"] == "internet-facing"
}

// complaints are the reasons of events by which the makers of load balancers
// say that they could not. Sources: kubernetes-sigs/aws-load-balancer-controller
// pkg/k8s/events.go; kubernetes/cloud-provider controllers/service; metallb.
var (
	complaints = []string{"FailedBuildModel", "FailedDeployModel", "FailedNetworkReconcile", "FailedReconcile", "SyncLoadBalancerFailed", "AllocationFailed", "BackendNotFound", "FailedAddFinalizer", "FailedCleanup"}
	allsWell   = []string{"SuccessfullyReconciled", "EnsuredLoadBalancer", "UpdatedLoadBalancer"}
)

// complaintAbout is the newest complaint that nothing has mended since.
func complaintAbout(events *probes.EventList, r Ref, now time.Time) *corev1.Event {
	var last *corev1.Event
	for _, e := range events.About(r) {
		switch {
		case slices.Contains(allsWell, e.Reason):
			last = nil
		case e.Type == corev1.EventTypeWarning && slices.Contains(complaints, e.Reason) && now.Sub(probes.EventTime(e)) < recent:
			last = e
		}
	}
	return last
}

var balancerFacts = []probes.Any{probes.Ingresses, probes.Services, probes.IngressClassesInUse, probes.Events, probes.LoadBalancerControllerLogs, probes.Pods, probes.Nodes}

// loadBalancerNotReady: an Ingress or a Service has no load balancer, or its
// controller can't bring it up to date.
var loadBalancerNotReady = &Rule{
	ID: "load-balancer-not-ready", Needs: balancerFacts,
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		var found []Suspect
		for _, b := range balancedObjects(facts) {
			if b.says == "" && !b.unmade || b.meta.DeletionTimestamp != nil {
				continue
			}
			s := Suspect{Subjects: []Ref{b.ref}, Data: b, Since: &b.since, Found: b.seen, Vars: map[string]string{"state": "its load balancer is not kept up to date"}}
			if b.unmade {
				s.Vars["state"] = "it has no load balancer"
				s.Found = append([]Evidence{SawObject(probes.ResourceOf("", b.ref.Kind), b.ref.Namespace, b.ref.Name, "%s, made %s, has no address in status.loadBalancer.ingress", short(b.ref), stamp(b.meta.CreationTimestamp.Time))}, b.seen...)
			}
			found = append(found, s)
		}
		return found
	},
}

func balancedObjects(facts *probes.Facts) []*balanced {
	now := facts.Source().Now()
	events, err := probes.Events.Of(facts)
	if err != nil {
		events = probes.NewEventList(nil)
	}
	var all []*balanced
	add := func(b *balanced) {
		b.since = b.meta.CreationTimestamp.Time
		if e := complaintAbout(events, b.ref, now); e != nil {
			at := probes.EventTime(e)
			b.says, b.since = e.Message, at
			if !e.FirstTimestamp.IsZero() {
				b.since = e.FirstTimestamp.Time
			}
			b.seen = []Evidence{{Says: fmt.Sprintf("event %s of %s: %s", e.Reason, short(b.ref), clip(e.Message, 420)), Document: probes.Document{Path: "events"}, At: &at}}
		} else if text, seen := loggedAbout(facts, b.ref, now); text != "" && (b.unmade || b.meta.DeletionTimestamp != nil) {
			b.says, b.seen = text, []Evidence{seen}
		}
		all = append(all, b)
	}
	if ingresses, err := probes.Ingresses.Of(facts); err == nil {
		for _, in := range ingresses.All() {
			b := &balanced{ref: Ref{Kind: "Ingress", Namespace: in.Namespace, Name: in.Name}, meta: &in.ObjectMeta, ingress: in}
			known := b.classify(facts)
			late := now.Sub(in.CreationTimestamp.Time) > balancerPatience
			b.unmade = known && late && in.DeletionTimestamp == nil && len(in.Status.LoadBalancer.Ingress) == 0
			add(b)
		}
	}
	if services, err := probes.Services.Of(facts); err == nil {
		for _, svc := range services.All() {
			if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
				continue
			}
			b := &balanced{ref: Ref{Kind: "Service", Namespace: svc.Namespace, Name: svc.Name}, meta: &svc.ObjectMeta, service: svc}
			b.class, b.maker = serviceMaker(svc)
			late := now.Sub(svc.CreationTimestamp.Time) > balancerPatience
			b.unmade = late && svc.DeletionTimestamp == nil && len(svc.Status.LoadBalancer.Ingress) == 0
			add(b)
		}
	}
	seen := map[Ref]bool{}
	for _, e := range events.All() { // bindings are read where their controller runs; what it says of them is enough
		r := probes.EventRef(e)
		if r.Kind != "TargetGroupBinding" || seen[r] || complaintAbout(events, r, now) == nil {
			continue
		}
		seen[r] = true
		add(&balanced{ref: r, meta: &metav1.ObjectMeta{Name: r.Name, Namespace: r.Namespace}, maker: awsController})
	}
	return all
}

// classify finds who is to make an Ingress's load balancer; it reports
// whether a missing address is a fault: of some controllers it never is.
func (b *balanced) classify(facts *probes.Facts) bool {
	in := b.ingress
	classes, err := probes.IngressClassesInUse.Of(facts)
	if in.Spec.IngressClassName != nil {
		b.class = *in.Spec.IngressClassName
	} else {
		b.class = in.Annotations["kubernetes.io/ingress.class"]
	}
	if err != nil {
		if b.class == "alb" {
			b.maker = awsController
		}
		return b.class == "alb"
	}
	if b.class == "" {
		for _, c := range classes.All() {
			if c.Annotations["ingressclass.kubernetes.io/is-default-class"] == "true" {
				b.class = c.Name
			}
		}
	}
	if c := classes.Get("", b.class); c != nil {
		b.maker = c.Spec.Controller
	} else if b.class == "alb" && in.Spec.IngressClassName == nil {
		b.maker = awsController
	}
	switch {
	case b.class == "":
		return !takesUnclassed(facts)
	case b.maker == "":
		return false // that the class is not there is told by another symptom
	case b.maker == awsController:
		return true
	case strings.HasPrefix(b.maker, "eks.amazonaws.com/"):
		return false // EKS Auto Mode's own controller runs outside the cluster
	}
	return len(makersOf(facts, b.maker)) == 0
}

// takesUnclassed reports whether a controller runs that serves Ingresses
// without a class.
func takesUnclassed(facts *probes.Facts) bool {
	pods, err := probes.Pods.Of(facts)
	if err != nil {
		return true
	}
	return slices.ContainsFunc(pods.All(), func(p *corev1.Pod) bool {
		return slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool {
			return strings.Contains(c.Image, "traefik") || strings.Contains(c.Image, "kong") || slices.ContainsFunc(c.Args, func(a string) bool {
				return strings.HasPrefix(a, "--watch-ingress-without-class") && !strings.HasSuffix(a, "false")
			})
		})
	})
}

// ingressImages are parts of the images of ingress controllers, by the name
// that an IngressClass has for them. Sources: each project's chart.
var ingressImages = map[string][]string{
	awsController:                          {"aws-load-balancer-controller"},
	"k8s.io/ingress-nginx":                 {"ingress-nginx/controller", "nginx-ingress-controller", "ingress-nginx-controller"},
	"nginx.org/ingress-controller":         {"nginx/nginx-ingress", "nginx-ic"},
	"traefik.io/ingress-controller":        {"traefik"},
	"haproxy.org/ingress-controller":       {"haproxytech/kubernetes-ingress"},
	"haproxy-ingress.github.io/controller": {"haproxy-ingress"},
	"ingress-controllers.konghq.com/kong":  {"kong"},
	"projectcontour.io/ingress-controller": {"contour"},
	"istio.io/ingress-controller":          {"pilot"},
	"cilium.io/ingress-controller":         {"cilium"},
	"azure/application-gateway":            {"kubernetes-ingress"},
	"apisix.apache.org/apisix-ingress":     {"apisix-ingress-controller"},
}

// makersOf are the pods of a controller; of one that isn't known there might
// be some anywhere, so it gets one that stands for them.
func makersOf(facts *probes.Facts, controller string) []*corev1.Pod {
	pods, err := probes.Pods.Of(facts)
	parts, known := ingressImages[controller]
	if err != nil || !known {
		return []*corev1.Pod{{}}
	}
	return pods.Where(func(p *corev1.Pod) bool {
		return slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool {
			return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(c.Image, part) })
		})
	})
}

// serviceMaker is who is to make a Service's load balancer.
// Sources: aws-load-balancer-controller docs/guide/service/annotations.md;
// kubernetes.io Service, spec.loadBalancerClass.
func serviceMaker(s *corev1.Service) (class, maker string) {
	if s.Spec.LoadBalancerClass != nil {
		class = *s.Spec.LoadBalancerClass
		if class == "service.k8s.aws/nlb" {
			return class, awsController
		}
		return class, class
	}
	switch s.Annotations["service.beta.kubernetes.io/aws-load-balancer-type"] {
	case "external", "nlb-ip":
		return "", awsController
	}
	return "", inTree
}

// loggedAbout is what the AWS Load Balancer Controller last logged about an object.
func loggedAbout(facts *probes.Facts, r Ref, now time.Time) (text string, seen Evidence) {
	logs, err := probes.LoadBalancerControllerLogs.Of(facts)
	if err != nil {
		return "", Evidence{}
	}
	var at time.Time
	for _, l := range logs.All() {
		if l.Excerpt == nil {
			continue
		}
		for _, f := range l.Excerpt.Failures {
			if f.Fields["name"] != r.Name || f.Fields["namespace"] != r.Namespace || !f.LastAt.IsZero() && now.Sub(f.LastAt) > recent || f.LastAt.Before(at) {
				continue
			}
			text, at = f.Text, f.LastAt
			seen = Evidence{Says: fmt.Sprintf("log of %s about %s: %s", l.Pod, short(r), clip(f.Text, 420)), Document: l.Document()}
			if !at.IsZero() {
				seen.At = &at
			}
		}
	}
	return text, seen
}

// controllerDeployment is the Deployment of the AWS Load Balancer Controller.
func controllerDeployment(facts *probes.Facts) (*appsv1.Deployment, error) {
	deployments, err := probes.Deployments.Of(facts)
	if err != nil {
		return nil, err
	}
	for _, d := range deployments.All() {
		if d.Labels["app.kubernetes.io/name"] == "aws-load-balancer-controller" || slices.ContainsFunc(d.Spec.Template.Spec.Containers, func(c corev1.Container) bool { return strings.Contains(c.Image, "aws-load-balancer-controller") }) {
			return d, nil
		}
	}
	return nil, nil
}

// A balancedAnswer is what was found while a suspect was looked for.
type balancedAnswer struct {
	*balanced
	answer Answer
}

// ofBalanced makes a rule about the objects whose complaint matches, or for
// which applies says that facts may speak; one suspect each.
func ofBalanced(id, asks string, needs []probes.Any, says *regexp.Regexp, applies func(*balanced) bool, test func(*probes.Facts, *balanced, []string, *Suspect) Answer) *Rule {
	all := slices.Concat(balancerFacts, needs)
	return &Rule{
		ID: id, Explains: []*Rule{loadBalancerNotReady}, Needs: all,
		Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
			var found []Suspect
			for _, e := range effects {
				b, ok := e.Data.(*balanced)
				if !ok {
					continue
				}
				var m []string
				if says != nil {
					m = says.FindStringSubmatch(b.says)
				}
				if m == nil && (applies == nil || !applies(b)) {
					continue
				}
				s := Suspect{Subjects: []Ref{b.ref}, Effects: []*Finding{e}, Found: b.seen, Vars: map[string]string{
					"object": short(b.ref), "objectName": b.ref.Name, "objectNamespace": b.ref.Namespace, "resource": strings.ToLower(b.ref.Kind), "says": clip(complaintText(b.says), 300),
				}}
				a := test(facts, b, m, &s)
				s.Data = balancedAnswer{b, a}
				found = append(found, s)
			}
			return found
		},
		Tests: []Test{{Asks: asks, Needs: all, Run: func(_ *probes.Facts, s Suspect) Answer { return s.Data.(balancedAnswer).answer }}},
	}
}

var complaintPrefix = regexp.MustCompile(`^(?:Reconciler error: )?(?:(?:Failed|failed to) (?:build|deploy) model due to |Error syncing load balancer: )?(?:failed to ensure load balancer: )?`)

func complaintText(s string) string { return complaintPrefix.ReplaceAllString(s, "") }
