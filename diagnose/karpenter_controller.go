package diagnose

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/network"
)

// controllerNeeds are the facts that say whether Karpenter itself works.
var controllerNeeds = []probes.Any{pools, probes.Pods, probes.Deployments, probes.Workloads}

// A controller is Karpenter's own workload.
type controller struct {
	ref        Ref
	pods       []*corev1.Pod
	deployment *appsv1.Deployment // nil where it isn't known
}

// karpenterController finds Karpenter's workload; nil where it isn't there, or
// where AWS runs it (EKS Auto Mode).
func karpenterController(facts *probes.Facts) *controller {
	c := &controller{pods: karpenterPods(facts)}
	if deployments, err := probes.Deployments.Of(facts); err == nil {
		for _, d := range deployments.All() {
			pod := &corev1.Pod{Spec: d.Spec.Template.Spec}
			pod.Labels = d.Spec.Template.Labels
			if probes.IsController(pod, "karpenter") {
				c.deployment = d
				c.ref = Ref{Kind: "Deployment", Namespace: d.Namespace, Name: d.Name}
			}
		}
	}
	if c.ref.Name == "" && len(c.pods) > 0 {
		c.ref = podRef(c.pods[0])
		if workloads, err := probes.Workloads.Of(facts); err == nil {
			c.ref = workloads.Of(c.pods[0])
		}
	}
	if c.ref.Name == "" {
		return nil
	}
	return c
}

func (c *controller) ready() int {
	n := 0
	for _, p := range c.pods {
		if probes.Ready(p) {
			n++
		}
	}
	return n
}

// spec is what the controller's pods are made from.
func (c *controller) spec() *corev1.PodSpec {
	if c.deployment != nil {
		return &c.deployment.Spec.Template.Spec
	}
	if len(c.pods) > 0 {
		return &c.pods[0].Spec
	}
	return &corev1.PodSpec{}
}

// saw is evidence from the controller's workload.
func (c *controller) saw(format string, args ...any) Evidence {
	resource := map[string]string{"Deployment": "deployments.apps", "Pod": "pods"}[c.ref.Kind]
	if resource == "" || c.deployment == nil {
		if len(c.pods) > 0 {
			return SawObject("pods", c.pods[0].Namespace, c.pods[0].Name, format, args...)
		}
	}
	return SawObject(resource, c.ref.Namespace, c.ref.Name, format, args...)
}

// setting is a setting of the controller by the name of its environment
// variable or flag. Up to v0.31 the ConfigMap karpenter-global-settings has them.
func (c *controller) setting(env string) string {
	flag := "--" + strings.ToLower(strings.ReplaceAll(env, "_", "-")) + "="
	for _, container := range c.spec().Containers {
		for _, e := range container.Env {
			if e.Name == env && e.ValueFrom == nil {
				return e.Value
			}
		}
		for _, a := range slices.Concat(container.Command, container.Args) {
			if v, ok := strings.CutPrefix(a, flag); ok {
				return v
			}
		}
	}
	return ""
}

// karpenterDown: no pod of Karpenter's controller is ready, so that no node is
// made, and none is taken away.
var karpenterDown = &Rule{
	ID:           "karpenter-down",
	Relay:        true,
	Explains:     []*Rule{noNodeFromKarpenter, poolNotReady, classNotReady, poolUnusable, nodeClaimNotLaunched, nodeClaimNotRegistered, nodeClaimNotInitialized, nodeNotRemoved},
	Intermediate: true,
	Needs:        controllerNeeds,
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		c := karpenterController(facts)
		if c == nil {
			return nil
		}
		return []Suspect{{Subjects: []Ref{c.ref}, Effects: effects, Data: c, Vars: map[string]string{"controller": short(c.ref)}}}
	},
	Tests: []Test{{Asks: "is no pod of {controller} ready?", Run: func(_ *probes.Facts, s Suspect) Answer {
		c := s.Data.(*controller)
		evidence := []Evidence{c.saw("%d of %d pods of %s are ready", c.ready(), len(c.pods), short(c.ref))}
		for _, p := range c.pods[:min(len(c.pods), maxExamples)] {
			for _, st := range probes.Statuses(p) {
				if w := st.State.Waiting; w != nil {
					evidence = append(evidence, SawObject("pods", p.Namespace, p.Name, "pod %s: container %s waits: %s", p.Name, st.Name, w.Reason))
				}
			}
		}
		return Answered(c.ready() == 0, evidence...)
	}}},
}

// controllerFault is what Karpenter's log says that its controller lacks.
var controllerFaults = []struct {
	id string
	re *regexp.Regexp
}{
	{"queue", regexp.MustCompile(`NonExistentQueue|specified queue does not exist|failed to create valid sqs provider`)},
	{"cluster", regexp.MustCompile(`No cluster found for name: (?P<name>[\w-]+)`)},
	{"endpoint", regexp.MustCompile(`(?:Post|Get|Put) "?https://(?P<host>[\w.-]+\.amazonaws\.com(?:\.cn)?)[^"\s]*"?: (?:dial tcp (?P<ip>[0-9a-f.:\[\]]+):443: (?:i/o timeout|connect: connection timed out)|context deadline exceeded|net/http: (?:TLS handshake timeout|request canceled while waiting for connection))`)},
	{"lookup", regexp.MustCompile(`lookup (?P<host>[\w.-]+)(?: on (?P<server>[\d.:]+))?: (?:.*(?:i/o timeout|connection refused|no route to host)|server misbehaving|Temporary failure)`)},
	{"region", regexp.MustCompile(`MissingRegion|could not find region|failed to (?:get|retrieve|detect) (?:the )?region|Invalid Configuration: Missing Region`)},
}

// controllerSaying is what Karpenter's log says of a fault of its own.
type controllerSaying struct {
	saying
	id  string
	got map[string]string
}

// controllerSayings are those of the last half hour; a controller tries again
// every few minutes.
func controllerSayings(facts *probes.Facts) []controllerSaying {
	says, err := karpenterSays.Of(facts)
	if err != nil {
		return nil
	}
	var list []controllerSaying
	for _, s := range says.all {
		if s.from.Document.Path == "" || !strings.HasPrefix(s.from.Document.Path, "logs/") || !s.at.IsZero() && says.now.Sub(s.at) > recent {
			continue
		}
		for _, row := range controllerFaults {
			if got := groups(row.re, s.text); got != nil && !asideHost(row.id, got["host"]) {
				list = append(list, controllerSaying{s, row.id, got})
				break
			}
		}
	}
	return list
}

// asideHost: prices may be stale; Karpenter goes on without them.
func asideHost(id, host string) bool { return id == "endpoint" && strings.Contains(host, "pricing") }

// karpenterFailing: Karpenter's log says that something it needs is not there.
var karpenterFailing = &Rule{
	ID: "karpenter-failing", Needs: append([]probes.Any{karpenterSays}, controllerNeeds...),
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		c := karpenterController(facts)
		list := controllerSayings(facts)
		if c == nil || len(list) == 0 {
			return nil
		}
		s := Suspect{Subjects: []Ref{c.ref}, Data: list}
		for _, one := range list {
			if len(s.Found) < maxExamples {
				s.Found = append(s.Found, one.from)
			}
			if at := one.at; !at.IsZero() && (s.Since == nil || at.Before(*s.Since)) {
				s.Since = &at
			}
		}
		return []Suspect{s}
	},
}

// controllerRule is a rule for what keeps Karpenter itself from working.
func controllerRule(id, asks string, needs []probes.Any, test func(*probes.Facts, *controller) (Answer, []Ref)) *Rule {
	needs = slices.Concat(controllerNeeds, needs)
	r := &Rule{ID: id, Explains: []*Rule{karpenterDown, karpenterFailing, podCrashLooping, podNotReady, podPending, classNotReady, noNodeFromKarpenter, nodeClaimNotRegistered}, Needs: needs}
	r.Suspects = func(facts *probes.Facts, effects []*Finding) []Suspect {
		c := karpenterController(facts)
		if c == nil {
			return nil
		}
		a, subjects := test(facts, c)
		s := Suspect{Subjects: append(subjects, c.ref), Data: a, Vars: map[string]string{"controller": short(c.ref)}}
		if slices.Contains(subjects, c.ref) {
			s.Subjects = subjects
		}
		for _, e := range effects {
			switch e.Rule {
			case podCrashLooping, podNotReady, podPending:
				if e.Subject() != c.ref {
					continue
				}
			case classNotReady, noNodeFromKarpenter, nodeClaimNotRegistered:
				if c.ready() == 0 {
					continue // by way of the controller that is down
				}
				if id != "karpenter-cluster-setting-wrong" && id != "karpenter-endpoint-unreachable" {
					continue
				}
			}
			s.Effects = append(s.Effects, e)
		}
		if len(s.Effects) == 0 {
			return nil
		}
		return []Suspect{s}
	}
	r.Tests = []Test{{Asks: asks, Run: func(_ *probes.Facts, s Suspect) Answer { return s.Data.(Answer) }}}
	return r
}

// karpenterScaledToZero: its Deployment is asked to have no pod.
var karpenterScaledToZero = controllerRule("karpenter-scaled-to-zero", "is {controller} asked to have no pod?", nil,
	func(_ *probes.Facts, c *controller) (Answer, []Ref) {
		if c.deployment == nil {
			return Answered(len(c.pods) == 0, c.saw("%s has %d pods", short(c.ref), len(c.pods))), []Ref{c.ref}
		}
		n := int32(1)
		if c.deployment.Spec.Replicas != nil {
			n = *c.deployment.Spec.Replicas
		}
		return Answered(n == 0, c.saw("%s has spec.replicas: %d", short(c.ref), n)), []Ref{c.ref}
	})

// karpenterHasNoNode: Karpenter's pods wait for a node, and who makes nodes is
// Karpenter. Source: incident chicken-egg-karpenter.
var karpenterHasNoNode = controllerRule("karpenter-waits-for-its-own-nodes", "do all pods of {controller} wait for a node that only it would make?", []probes.Any{probes.Nodes},
	func(facts *probes.Facts, c *controller) (Answer, []Ref) {
		if len(c.pods) == 0 {
			return Answered(false, c.saw("%s has no pods", short(c.ref))), []Ref{c.ref}
		}
		var evidence []Evidence
		for _, p := range c.pods {
			if !pending(p) {
				return Answered(false, SawObject("pods", p.Namespace, p.Name, "pod %s of %s has a node: %s", p.Name, short(c.ref), orDefault(p.Spec.NodeName, "…"))), []Ref{c.ref}
			}
			evidence = append(evidence, SawObject("pods", p.Namespace, p.Name, "pod %s has no node since %s; the scheduler says: %s", p.Name, p.CreationTimestamp.UTC().Format(time.RFC3339), orDefault(schedulerSays(p), "nothing")))
		}
		wants := placementWords(c.spec())
		evidence = append(evidence[:min(len(evidence), maxExamples)], c.saw("%s wants nodes with %s", short(c.ref), wants))
		return Answered(true, evidence...).With("wants", wants), []Ref{c.ref}
	})

// placementWords is which nodes a pod wants.
func placementWords(spec *corev1.PodSpec) string {
	var parts []string
	for _, key := range sortedKeys(spec.NodeSelector) {
		parts = append(parts, key+"="+spec.NodeSelector[key])
	}
	if a := spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		for _, t := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, e := range t.MatchExpressions {
				parts = append(parts, strings.TrimSpace(fmt.Sprintf("%s %s %s", e.Key, e.Operator, strings.Join(e.Values, ", "))))
			}
		}
	}
	return orDefault(strings.Join(parts, ", "), "room for it")
}

// controllerSays are the sayings of one fault.
func controllerSays(facts *probes.Facts, id string) (list []controllerSaying, evidence []Evidence) {
	for _, s := range controllerSayings(facts) {
		if s.id == id {
			list = append(list, s)
			if len(evidence) < maxExamples {
				evidence = append(evidence, s.from)
			}
		}
	}
	return list, evidence
}

// queueWrong: the interruption queue is not there under the name that
// Karpenter has; an ARN or URL is no name. Source: incident queue-arn.
var queueWrong = controllerRule("karpenter-queue-wrong", "does the interruption queue that {controller} names not exist?", []probes.Any{karpenterSays},
	func(facts *probes.Facts, c *controller) (Answer, []Ref) {
		queue := c.setting("INTERRUPTION_QUEUE")
		list, evidence := controllerSays(facts, "queue")
		form := strings.HasPrefix(queue, "arn:") || strings.HasPrefix(queue, "https://")
		if len(list) == 0 && !(form && c.ready() == 0) {
			return Answered(false, c.saw("the log of %s doesn't speak of its queue %q", short(c.ref), queue)), []Ref{c.ref}
		}
		right := "the name of a queue that exists in this region and account"
		if form {
			right = queue[max(strings.LastIndex(queue, ":"), strings.LastIndex(queue, "/"))+1:] + ": the name, not the ARN or URL"
		}
		evidence = append(evidence, c.saw("%s has INTERRUPTION_QUEUE=%s", short(c.ref), orDefault(queue, "(not in its environment)")))
		return Answered(true, evidence...).With("queue", orDefault(queue, "the queue")).With("right", right), []Ref{c.ref}
	})

// clusterSettingWrong: Karpenter is told of another cluster, endpoint or region
// than the one that it runs in. Its controller works with the cluster's own
// API all the same; only the nodes get the wrong address.
// Source: incident join-stale-endpoint.
var clusterSettingWrong = controllerRule("karpenter-cluster-setting-wrong", "does {controller} have the name, endpoint or region of another cluster?", []probes.Any{karpenterSays, probes.EKSCluster, probes.Nodes},
	func(facts *probes.Facts, c *controller) (Answer, []Ref) {
		list, evidence := controllerSays(facts, "cluster")
		_, regionEvidence := controllerSays(facts, "region")
		cluster, err := probes.EKSCluster.Of(facts)
		var wrong []string
		vars := map[string]string{"setting": "CLUSTER_NAME", "value": c.setting("CLUSTER_NAME"), "right": "the name of this cluster"}
		differ := func(env, value, right string) {
			if value != "" && right != "" && !strings.EqualFold(strings.TrimSuffix(value, "/"), strings.TrimSuffix(right, "/")) {
				wrong = append(wrong, env)
				vars["setting"], vars["value"], vars["right"] = env, value, right
				evidence = append(evidence, c.saw("%s has %s=%s", short(c.ref), env, value), Saw("aws/eks/describe-cluster", nil, "the cluster says %s", right))
			}
		}
		if err == nil {
			differ("CLUSTER_NAME", c.setting("CLUSTER_NAME"), cluster.Name)
			differ("CLUSTER_ENDPOINT", c.setting("CLUSTER_ENDPOINT"), cluster.Endpoint)
			if parts := strings.SplitN(cluster.ARN, ":", 6); len(parts) == 6 {
				differ("AWS_REGION", c.setting("AWS_REGION"), parts[3])
			}
		}
		switch {
		case len(wrong) > 0:
		case len(list) > 0:
			vars["value"] = list[0].got["name"]
			if err == nil && cluster.Name == vars["value"] {
				return Answered(false, evidence...), []Ref{c.ref}
			}
			if name := clusterName(facts); name != "" && name != vars["value"] {
				vars["right"] = name
			}
			evidence = append(evidence, c.saw("%s has CLUSTER_NAME=%s", short(c.ref), orDefault(c.setting("CLUSTER_NAME"), vars["value"])))
		case len(regionEvidence) > 0:
			evidence = append(regionEvidence, c.saw("%s has AWS_REGION=%q", short(c.ref), c.setting("AWS_REGION")))
			vars["setting"], vars["value"], vars["right"] = "AWS_REGION", c.setting("AWS_REGION"), "the cluster's region"
		case err != nil && (c.setting("CLUSTER_ENDPOINT") != "" || c.setting("CLUSTER_NAME") != ""):
			return CantTell(err), []Ref{c.ref}
		default:
			return Answered(false, c.saw("%s has CLUSTER_NAME=%s, CLUSTER_ENDPOINT=%q", short(c.ref), c.setting("CLUSTER_NAME"), c.setting("CLUSTER_ENDPOINT"))), []Ref{c.ref}
		}
		a := Answered(true, evidence...)
		a.Vars = vars
		return a, []Ref{c.ref}
	})

// needsClusterDNS: Karpenter looks names up by CoreDNS, and CoreDNS waits for
// a node that Karpenter is to make. Source: incident ctrl-dns.
var needsClusterDNS = controllerRule("karpenter-needs-cluster-dns", "does {controller} look names up by CoreDNS, which has no node?", []probes.Any{karpenterSays, probes.Pods},
	func(facts *probes.Facts, c *controller) (Answer, []Ref) {
		list, evidence := controllerSays(facts, "lookup")
		policy := orDefault(string(c.spec().DNSPolicy), "ClusterFirst")
		pods, err := probes.Pods.Of(facts)
		if err != nil {
			return CantTell(err), []Ref{c.ref}
		}
		dns := pods.Where(func(p *corev1.Pod) bool { return !probes.Finished(p) && probes.IsController(p, "coredns") })
		ready, waiting := 0, 0
		for _, p := range dns {
			if probes.Ready(p) {
				ready++
			}
			if pending(p) {
				waiting++
			}
		}
		evidence = append(evidence, c.saw("%s has dnsPolicy: %s", short(c.ref), policy))
		evidence = append(evidence, Saw("pods", nil, "%d of %d CoreDNS pods are ready; %d have no node", ready, len(dns), waiting))
		return Answered(len(list) > 0 && policy != "Default" && ready == 0 && waiting > 0, evidence...), []Ref{c.ref}
	})

// endpointUnreachable: an address of AWS does not answer from where Karpenter
// runs: a VPC without a way out lacks the VPC endpoint of the service, or the
// endpoint's groups refuse. Sources: incidents ctrl-sts-endpoint,
// ctrl-eks-endpoint, ctrl-iam-endpoint.
var endpointUnreachable = controllerRule("karpenter-endpoint-unreachable", "can {controller} not reach an AWS service that it needs?", []probes.Any{karpenterSays, probes.VPCEndpoints, probes.Network},
	func(facts *probes.Facts, c *controller) (Answer, []Ref) {
		list, evidence := controllerSays(facts, "endpoint")
		if len(list) == 0 {
			return Answered(false, c.saw("the log of %s speaks of no address of AWS that doesn't answer", short(c.ref))), []Ref{c.ref}
		}
		host := list[len(list)-1].got["host"] // the first that failed: without credentials nothing else is tried
		ip := list[len(list)-1].got["ip"]
		service, region := awsServiceOf(host)
		name := "com.amazonaws." + region + "." + service
		missing := Ref{Kind: "VPCEndpoint", Name: name}
		vars := map[string]string{"host": host, "service": name, "why": "no VPC endpoint for " + name + " exists"}
		answer := func(a Answer) Answer { a.Vars = vars; return a }
		endpoints, err := probes.VPCEndpoints.Of(facts)
		world, worldErr := probes.Network.Of(facts)
		if err != nil || worldErr != nil {
			if public(ip) {
				vars["why"] = "the name resolves to the public address " + ip + ", so no VPC endpoint with private DNS serves it here"
				return answer(CantTell(errors.Join(err, worldErr), evidence...)), []Ref{missing}
			}
			return answer(CantTell(errors.Join(err, worldErr), evidence...)), []Ref{missing}
		}
		for _, v := range endpoints.All() {
			if str(v.ServiceName) != name {
				continue
			}
			id := str(v.VpcEndpointId)
			if v.PrivateDnsEnabled != nil && !*v.PrivateDnsEnabled && public(ip) {
				vars["why"] = id + " exists without private DNS, so that the name resolves to the public address " + ip
				return answer(Answered(true, append(evidence, Saw("aws/ec2/describe-vpc-endpoints", []string{id}, "%s (%s) has PrivateDnsEnabled=false", id, name))...)), []Ref{{Kind: "VPCEndpoint", Name: id}}
			}
			for _, p := range c.pods {
				a := world.Path(network.Pod(p.Namespace, p.Name), network.VPCEndpoint(id), network.TCP, 443)
				if a.Truth == network.No {
					hops := a.Decisive()
					refs := []Ref{{Kind: "VPCEndpoint", Name: id}}
					if len(hops) > 0 && len(hops[0].Names) > 0 {
						refs = append([]Ref{{Kind: hops[0].Kind, Name: hops[0].Names[0]}}, refs...)
					}
					vars["why"] = hopWords(hops)
					return answer(Answered(true, append(evidence, fromHops(hops, 2)...)...)), refs
				}
			}
			return answer(Answered(false, Saw("aws/ec2/describe-vpc-endpoints", []string{id}, "%s serves %s, and lets the controller in", id, name))), []Ref{missing}
		}
		evidence = append(evidence, Saw("aws/ec2/describe-vpc-endpoints", nil, "none of the %d VPC endpoints is for %s", endpoints.Len(), name))
		if service == "iam" {
			vars["service"], vars["why"] = "iam.amazonaws.com, which has no VPC endpoint", "IAM has no VPC endpoint; a VPC without a way out can't reach it"
			missing = c.ref
		}
		return answer(Answered(true, evidence...)), []Ref{missing}
	})

// public reports whether an address belongs to the internet.
func public(ip string) bool {
	addr, err := netip.ParseAddr(strings.Trim(ip, "[]"))
	return err == nil && !addr.IsPrivate() && !addr.IsLoopback() && !addr.IsLinkLocalUnicast()
}

// awsServiceOf is the service and region of an AWS host name: sts.eu-west-1.amazonaws.com.
func awsServiceOf(host string) (service, region string) {
	parts := strings.Split(strings.TrimSuffix(strings.TrimSuffix(host, ".cn"), ".amazonaws.com"), ".")
	if len(parts) < 2 {
		return parts[0], "global"
	}
	if parts[0] == "api" && len(parts) > 2 { // api.ecr.REGION
		return parts[1] + ".api", parts[len(parts)-1]
	}
	return strings.Join(parts[:len(parts)-1], "."), parts[len(parts)-1]
}

// hopWords is what stops a packet.
func hopWords(hops []network.Hop) string {
	for _, h := range hops {
		if h.Says != "" {
			return h.Says
		}
	}
	return "something on the way drops it"
}

var karpenterRules = slices.Concat(
	[]*Rule{karpenterFailing},
	classRules, poolRules, launchRules, []*Rule{autoClassNotReady},
	[]*Rule{karpenterDown, karpenterScaledToZero, karpenterHasNoNode, queueWrong, clusterSettingWrong, needsClusterDNS, endpointUnreachable},
)
