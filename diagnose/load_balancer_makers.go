package diagnose

import (
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// balancerMakers are parts of images of programs that give Services of type
// LoadBalancer their addresses. Sources: each project's manifests.
var balancerMakers = []string{"metallb", "kube-vip", "klipper-lb", "openelb", "purelb", "loxilb", "cloud-controller-manager", "cloud-provider", "ccm", "cilium", "calico/node", "tailscale", "aws-load-balancer-controller", "porter"}

// nobodyMakes: what is to make the load balancer is not there.
var nobodyMakes = ofBalanced("load-balancer-controller-missing", "is there nothing that would make the load balancer of {object}?", []probes.Any{probes.Deployments, probes.Nodes, probes.EKSCluster}, nil,
	func(b *balanced) bool { return b.unmade && b.says == "" && b.maker != "" },
	func(facts *probes.Facts, b *balanced, _ []string, s *Suspect) Answer {
		s.Vars["wants"], s.Vars["fix"] = "a controller", "install it"
		missing, wants, fix, evidence, err := makerMissing(facts, b)
		s.Vars["wants"], s.Vars["fix"] = orDefault(wants, "a controller"), orDefault(fix, "install it")
		if err != nil {
			return CantTell(err)
		}
		return Answered(missing, evidence...)
	})

func makerMissing(facts *probes.Facts, b *balanced) (missing bool, wants, fix string, evidence []Evidence, err error) {
	pods, err := probes.Pods.Of(facts)
	if err != nil {
		return false, "", "", nil, err
	}
	where := func(format string, args ...any) Evidence {
		return SawObject(probes.ResourceOf("", b.ref.Kind), b.ref.Namespace, b.ref.Name, format, args...)
	}
	switch {
	case b.maker == awsController:
		wants, fix = "the AWS Load Balancer Controller", "install the AWS Load Balancer Controller: helm upgrade --install aws-load-balancer-controller eks/aws-load-balancer-controller -n kube-system --set clusterName=CLUSTER"
		d, err := controllerDeployment(facts)
		if err != nil {
			return false, wants, fix, nil, err
		}
		if d != nil {
			return false, wants, fix, []Evidence{SawObject("deployments.apps", d.Namespace, d.Name, "Deployment %s is it", d.Name)}, nil
		}
		if p := pods.Where(func(p *corev1.Pod) bool { return probes.IsController(p, "aws-load-balancer-controller") }); len(p) > 0 {
			return false, wants, fix, []Evidence{SawObject("pods", p[0].Namespace, p[0].Name, "pod %s is it", p[0].Name)}, nil
		}
		return true, wants, fix, []Evidence{where("%s is for it: %s", short(b.ref), whyAWS(b)), Saw("deployments.apps", nil, "no Deployment and no pod runs aws-load-balancer-controller")}, nil
	case b.maker == inTree:
		wants, fix = "a cloud provider or another implementation of load balancers", "install one that fits the network (MetalLB with an IPAddressPool, kube-vip, a cloud controller manager), or make the Service a NodePort or ClusterIP behind what there is"
		if _, err := probes.EKSCluster.Of(facts); err == nil {
			return false, wants, fix, []Evidence{Saw("aws/eks/describe-cluster", nil, "EKS makes load balancers itself")}, nil
		}
		nodes, err := probes.Nodes.Of(facts)
		if err != nil {
			return false, wants, fix, nil, err
		}
		for _, n := range nodes.All() {
			if cloud, _, ok := strings.Cut(n.Spec.ProviderID, "://"); ok && cloud != "kind" && cloud != "k3s" && cloud != "kwok" {
				return false, wants, fix, []Evidence{SawObject("nodes", "", n.Name, "node %s is of cloud provider %s, which makes them", n.Name, cloud)}, nil
			}
		}
		for _, p := range pods.All() {
			for _, c := range p.Spec.Containers {
				for _, part := range balancerMakers {
					if strings.Contains(c.Image, part) {
						return false, wants, fix, []Evidence{SawObject("pods", p.Namespace, p.Name, "pod %s runs %s", p.Name, c.Image)}, nil
					}
				}
			}
		}
		return true, wants, fix, []Evidence{where("Service %s is of type LoadBalancer and pending", b.ref.Name), Saw("nodes", nil, "no node has the providerID of a cloud, and no pod runs MetalLB, kube-vip or a cloud controller manager")}, nil
	case b.service != nil:
		wants, fix = "a controller of class "+b.class, "correct spec.loadBalancerClass (it can't be changed on a Service that exists: make it anew), or install the controller that serves it"
		if strings.HasPrefix(b.class, "service.k8s.aws/") {
			fix = "make the Service anew with loadBalancerClass service.k8s.aws/nlb, the one that the AWS Load Balancer Controller takes"
			return true, wants, fix, []Evidence{where("Service %s has loadBalancerClass %s; the AWS Load Balancer Controller takes service.k8s.aws/nlb only", b.ref.Name, b.class)}, nil
		}
		for _, p := range pods.All() {
			for _, c := range p.Spec.Containers {
				told := slices.ContainsFunc(slices.Concat(c.Args, c.Command), func(a string) bool { return strings.Contains(a, b.class) })
				if told || slices.ContainsFunc(classWord.FindAllString(b.class, -1), func(w string) bool { return strings.Contains(c.Image, w) }) {
					return false, wants, fix, []Evidence{SawObject("pods", p.Namespace, p.Name, "pod %s (%s) may serve class %s", p.Name, c.Image, b.class)}, nil
				}
			}
		}
		return true, wants, fix, []Evidence{where("Service %s has loadBalancerClass %s", b.ref.Name, b.class), Saw("pods", nil, "no pod's image or arguments have to do with that class")}, nil
	}
	wants, fix = "an ingress controller for "+b.maker, "install the controller of that class, or give the Ingress the class of one that runs"
	if p := makersOf(facts, b.maker); len(p) > 0 {
		return false, wants, fix, []Evidence{Saw("pods", nil, "its controller may run")}, nil
	}
	return true, wants, fix, []Evidence{where("Ingress %s has class %s", b.ref.Name, b.class), SawObject("ingressclasses.networking.k8s.io", "", b.class, "IngressClass %s is for controller %s, of which no pod runs", b.class, b.maker)}, nil
}

// classWord finds the words of a load balancer's class that may name its program.
var classWord = regexp.MustCompile(`[a-z]{5,}`)

func whyAWS(b *balanced) string {
	switch {
	case b.ingress != nil:
		return "its class is " + b.class + " (" + awsController + ")"
	case b.class != "":
		return "its loadBalancerClass is " + b.class
	}
	return "service.beta.kubernetes.io/aws-load-balancer-type is " + b.meta.Annotations["service.beta.kubernetes.io/aws-load-balancer-type"]
}

// makerDown: the AWS Load Balancer Controller is installed and does not run.
var makerDown = func() *Rule {
	r := ofBalanced("load-balancer-controller-down", "does no pod of the AWS Load Balancer Controller serve?", []probes.Any{probes.Deployments}, nil,
		func(b *balanced) bool { return b.maker == awsController },
		func(facts *probes.Facts, b *balanced, _ []string, s *Suspect) Answer {
			d, err := controllerDeployment(facts)
			s.Vars["how"], s.Vars["namespace"], s.Vars["deployment"] = "none of its pods is ready", "kube-system", "aws-load-balancer-controller"
			if err != nil {
				return CantTell(err)
			}
			if d == nil {
				return Answered(false, Saw("deployments.apps", nil, "no Deployment runs the AWS Load Balancer Controller"))
			}
			s.Vars["namespace"], s.Vars["deployment"] = d.Namespace, d.Name
			s.Subjects = []Ref{{Kind: "Deployment", Namespace: d.Namespace, Name: d.Name}, b.ref}
			how := controllerRests(d)
			if how == "" {
				return Answered(false, SawObject("deployments.apps", d.Namespace, d.Name, "Deployment %s has %d ready pods", d.Name, d.Status.ReadyReplicas))
			}
			s.Vars["how"] = how
			return Answered(true, SawObject("deployments.apps", d.Namespace, d.Name, "Deployment %s/%s: %s", d.Namespace, d.Name, how))
		})
	r.Relay = true
	r.Explains = append(r.Explains, ingressNotServed)
	of := r.Suspects
	r.Suspects = func(facts *probes.Facts, effects []*Finding) []Suspect {
		found := of(facts, effects)
		for _, e := range effects {
			t, ok := e.Data.(*objectTrouble)
			if !ok || t.fault == nil || t.fault.rule != r.ID {
				continue
			}
			found = append(found, Suspect{Subjects: []Ref{t.fault.subject, e.Subject()}, Effects: []*Finding{e}, Found: t.fault.found, Data: balancedAnswer{answer: Answered(true, t.fault.found...)}, Vars: map[string]string{
				"object": short(e.Subject()), "how": t.fault.vars["how"], "namespace": t.fault.subject.Namespace, "deployment": t.fault.subject.Name,
			}})
		}
		return found
	}
	return r
}()

// controllerRests says in what way a controller does not work; empty where it does.
func controllerRests(d *appsv1.Deployment) string {
	switch {
	case d.Spec.Replicas != nil && *d.Spec.Replicas == 0:
		return "it is scaled to zero (spec.replicas: 0)"
	case d.Status.ReadyReplicas == 0:
		return "none of its pods is ready"
	}
	return ""
}

// A finalizing is an object that a load balancer's controller has to release.
type finalizing struct {
	ref        Ref
	finalizers []string
}

func finalizingOf(e *Finding) *finalizing {
	var o metav1.Object
	switch x := e.Data.(type) {
	case *networkingv1.Ingress:
		o = x
	case *corev1.Service:
		o = x
	default:
		return nil
	}
	f := &finalizing{ref: e.Subject()}
	for _, name := range o.GetFinalizers() {
		if strings.Contains(name, "k8s.aws/") {
			f.finalizers = append(f.finalizers, name)
		}
	}
	if len(f.finalizers) == 0 {
		return nil
	}
	return f
}

// balancerFinalizer is a rule about objects that the AWS Load Balancer
// Controller does not release.
func balancerFinalizer(id, asks string, test func(*probes.Facts, *finalizing, *Suspect) Answer) *Rule {
	needs := []probes.Any{probes.Deployments, probes.Pods, probes.Events, probes.LoadBalancerControllerLogs}
	type answered struct {
		*finalizing
		answer Answer
	}
	return &Rule{
		ID: id, Explains: []*Rule{stuckTerminating}, Needs: needs,
		Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
			var found []Suspect
			for _, e := range effects {
				f := finalizingOf(e)
				if f == nil {
					continue
				}
				s := Suspect{Subjects: []Ref{f.ref}, Effects: []*Finding{e}, Found: e.Found, Vars: map[string]string{
					"object": short(f.ref), "objectName": f.ref.Name, "objectNamespace": f.ref.Namespace, "resource": strings.ToLower(f.ref.Kind), "finalizers": strings.Join(f.finalizers, ", "),
				}}
				s.Data = answered{f, test(facts, f, &s)}
				found = append(found, s)
			}
			return found
		},
		Tests: []Test{{Asks: asks, Needs: needs, Run: func(_ *probes.Facts, s Suspect) Answer { return s.Data.(answered).answer }}},
	}
}

// balancerFinalizerOrphaned: the controller that would take its finalizer away
// is not there any more, or does not run.
var balancerFinalizerOrphaned = balancerFinalizer("load-balancer-finalizer-orphaned", "is the controller that has to release {object} gone?",
	func(facts *probes.Facts, f *finalizing, s *Suspect) Answer {
		s.Vars["how"] = "is not installed any more"
		d, err := controllerDeployment(facts)
		pods, podsErr := probes.Pods.Of(facts)
		if err != nil || podsErr != nil {
			return CantTell(orErr(err, podsErr))
		}
		if d != nil {
			how := controllerRests(d)
			if how == "" {
				return Answered(false, SawObject("deployments.apps", d.Namespace, d.Name, "Deployment %s runs", d.Name))
			}
			s.Vars["how"] = "does not run: " + how
			s.Subjects = []Ref{{Kind: "Deployment", Namespace: d.Namespace, Name: d.Name}, f.ref}
			return Answered(true, SawObject("deployments.apps", d.Namespace, d.Name, "Deployment %s/%s: %s", d.Namespace, d.Name, how))
		}
		if p := pods.Where(func(p *corev1.Pod) bool { return probes.IsController(p, "aws-load-balancer-controller") }); len(p) > 0 {
			return Answered(false, SawObject("pods", p[0].Namespace, p[0].Name, "pod %s runs the controller", p[0].Name))
		}
		return Answered(true, Saw("deployments.apps", nil, "no Deployment and no pod runs aws-load-balancer-controller, which alone takes away %s", s.Vars["finalizers"]))
	})

func orErr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// balancerNotRemoved: the controller runs, and says why it can't remove what
// it has made for an object.
var balancerNotRemoved = balancerFinalizer("load-balancer-not-removed", "does the controller say that it can't remove what it made for {object}?",
	func(facts *probes.Facts, f *finalizing, s *Suspect) Answer {
		s.Vars["says"] = "what it says is not kept"
		now := facts.Source().Now()
		text, seen := "", Evidence{}
		if events, err := probes.Events.Of(facts); err == nil {
			if e := complaintAbout(events, f.ref, now); e != nil {
				at := probes.EventTime(e)
				text, seen = e.Message, Evidence{Says: "event " + e.Reason + ": " + clip(e.Message, 420), Document: probes.Document{Path: "events"}, At: &at}
			}
		}
		if text == "" {
			text, seen = loggedAbout(facts, f.ref, now)
		}
		if text == "" || strings.Contains(text, "is not authorized to perform") {
			return Answered(false, Evidence{Says: "it says nothing of that"})
		}
		s.Vars["says"] = clip(complaintText(text), 300)
		if id := groupID.FindString(text); id != "" {
			s.Subjects = []Ref{{Kind: "SecurityGroup", Name: id}, f.ref}
		}
		return Answered(true, seen)
	})

var balancerRules = []*Rule{
	loadBalancerNotReady, groupsNotTaggedOnce, instanceTargets, certificateWrong, classNotNamed, balancerSubnets, controllerOfOtherCluster,
	nobodyMakes, makerDown, balancerRefused, balancerFinalizerOrphaned, balancerNotRemoved,
	targetsCutOff, targetsClosed, targetChecksFail, gateOfOldGroup,
}
