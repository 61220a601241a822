package diagnose

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/network"
)

// asksForCredentials tells a call of the metadata service for credentials from
// one for the region or VPC.
var asksForCredentials = regexp.MustCompile(`(?i)credential|IMDS role|security-credentials`)

// A metadataSetting is who decides how far the metadata service answers on a node.
type metadataSetting struct {
	by   Ref
	hops int64
	off  bool
	seen Evidence
}

// metadataOf finds the metadata options of a pod's node: those of its
// instance, else of what the instance is made from.
func metadataOf(facts *probes.Facts, p *corev1.Pod) (*metadataSetting, error) {
	nodes, err := probes.Nodes.Of(facts)
	if err != nil {
		return nil, err
	}
	n := nodes.Get("", p.Spec.NodeName)
	if n == nil {
		return nil, nil
	}
	s := &metadataSetting{by: Ref{Kind: "Instance", Name: instanceID(n.Spec.ProviderID)}}
	class := n.Labels["karpenter.k8s.aws/ec2nodeclass"]
	if class != "" {
		s.by = Ref{Kind: "EC2NodeClass", Name: class}
	} else if group := n.Labels["eks.amazonaws.com/nodegroup"]; group != "" {
		s.by = Ref{Kind: "NodeGroup", Name: group}
		if id := n.Labels["eks.amazonaws.com/sourceLaunchTemplateId"]; id != "" {
			s.by = Ref{Kind: "LaunchTemplate", Name: id}
		}
	}
	instances, err := probes.Instances.Of(facts)
	if err == nil {
		if i := instances.Get(instanceID(n.Spec.ProviderID)); i != nil && i.MetadataOptions != nil && i.MetadataOptions.HttpPutResponseHopLimit != nil {
			s.hops, s.off = int64(*i.MetadataOptions.HttpPutResponseHopLimit), i.MetadataOptions.HttpEndpoint == "disabled"
			s.seen = Saw("aws/ec2/describe-instances", []string{str(i.InstanceId)}, "instance %s of node %s has MetadataOptions.HttpPutResponseHopLimit %d, HttpTokens %s, HttpEndpoint %s", str(i.InstanceId), n.Name, s.hops, i.MetadataOptions.HttpTokens, i.MetadataOptions.HttpEndpoint)
			return s, nil
		}
	}
	if class == "" {
		return s, err
	}
	classes, classErr := probes.EC2NodeClasses.Of(facts)
	if classErr != nil {
		return s, classErr
	}
	c := classes.Get("", class)
	if c == nil {
		return s, err
	}
	s.hops = 1 // the default of v1
	if o := c.Spec.MetadataOptions; o != nil {
		if o.HTTPPutResponseHopLimit != nil {
			s.hops = *o.HTTPPutResponseHopLimit
		}
		s.off = o.HTTPEndpoint == "disabled"
	}
	s.seen = SawObject("ec2nodeclasses.karpenter.k8s.aws", "", class, "EC2NodeClass %s, of which node %s is, has metadataOptions.httpPutResponseHopLimit %d", class, n.Name, s.hops)
	return s, nil
}

// metadataHopLimit: the metadata service answers only what is one hop away,
// and a pod with its own network is two.
// Sources: incidents imds-hop-lbc, imds-hop-ebscsi; EKS best practices, "Restrict access to the instance profile".
var metadataHopLimit = fromLog("metadata-hop-limit-too-low", "does the metadata service answer only the node itself (hop limit {hops}), and not pod {pod}?", ailing,
	[]probes.Any{probes.Nodes, probes.Instances, probes.EC2NodeClasses},
	func(facts *probes.Facts, f *logFault) blame {
		p := f.container.pod
		b := blame{vars: map[string]string{"hops": "unknown", "pod": p.Name, "node": p.Spec.NodeName, "made": "the node", "how": "give what its node is made from a hop limit of 2"}}
		where := SawObject("pods", p.Namespace, p.Name, "pod %s runs on node %s", p.Name, p.Spec.NodeName)
		if p.Spec.HostNetwork {
			b.unless = Answered(false, SawObject("pods", p.Namespace, p.Name, "pod %s is in the host's network, so the hop limit does not concern it", p.Name))
			return b
		}
		if by, role := probes.Injection(p, ""); by != "" && asksForCredentials.MatchString(f.failure.Text) {
			b.unless = Answered(false, SawObject("pods", p.Namespace, p.Name, "pod %s has credentials by %s (%s): that it asks the metadata service shows that those failed", p.Name, by, role))
			return b
		}
		s, err := metadataOf(facts, p)
		switch {
		case s == nil || s.seen.Says == "":
			b.unless = CantTell(err, f.evidence())
			return b
		case s.hops >= 2 && !s.off:
			b.unless = Answered(false, s.seen)
			return b
		}
		b.subject, b.found = s.by, []Evidence{where, s.seen}
		b.vars["hops"], b.vars["made"] = fmt.Sprint(s.hops), short(s.by)
		if s.off {
			b.vars["hops"] = "none: it is switched off"
		}
		return b
	}, "aws-imds-unreachable")

// linkLocalBlocked: a NetworkPolicy stops what pods ask of their node's own
// services: the metadata service or the Pod Identity agent.
var linkLocalBlocked = fromLog("node-service-blocked-by-network-policy", "does a NetworkPolicy stop pod {pod} before {address}?", ailing,
	[]probes.Any{probes.NetworkPolicies, probes.Network},
	func(facts *probes.Facts, f *logFault) blame {
		p := f.container.pod
		b := blame{vars: map[string]string{"pod": p.Name, "address": "169.254.169.254:80", "says": "", "policy": "the policy", "namespace": p.Namespace, "service": "the instance metadata service"}}
		address := "169.254.169.254"
		if f.failure.Meaning == "pod-identity-unreachable" {
			address = "169.254.170.23"
			b.vars["address"], b.vars["service"] = address+":80", "the EKS Pod Identity agent"
		}
		world, err := probes.Network.Of(facts)
		if err != nil {
			b.unless = CantTell(err)
			return b
		}
		a := world.Path(network.Pod(p.Namespace, p.Name), network.Address(netip.MustParseAddr(address)), network.TCP, 80).On(network.NetworkPolicies)
		var stop []network.Hop
		for _, h := range a.Hops {
			if h.Code == network.PolicyDenies || h.Truth == network.No {
				stop = append(stop, h)
			}
		}
		if len(stop) == 0 {
			b.unless = Answered(false, Saw("networkpolicies.networking.k8s.io", nil, "no NetworkPolicy stops pod %s before %s", p.Name, address))
			return b
		}
		b.subject, b.found = refOf(stop[0]), fromHops(stop, 2)
		b.vars["says"], b.vars["policy"] = hopWords(stop), b.subject.Name
		return b
	}, "aws-imds-unreachable", "pod-identity-unreachable")

const identityAgent = "eks-pod-identity-agent"

// identityAgentMissing: the agent that gives pods their credentials does not
// run on the pod's node.
var identityAgentMissing = fromLog("pod-identity-agent-not-on-node", "does no Pod Identity agent serve on node {node}?", ailing,
	[]probes.Any{probes.Pods, probes.DaemonSets},
	func(facts *probes.Facts, f *logFault) blame {
		p := f.container.pod
		b := blame{vars: map[string]string{"pod": p.Name, "node": p.Spec.NodeName, "state": "no pod of it is on that node"}}
		pods, err := probes.Pods.Of(facts)
		if err != nil {
			b.unless = CantTell(err)
			return b
		}
		set := Ref{Kind: "DaemonSet", Namespace: "kube-system", Name: identityAgent}
		hint := Saw("daemonsets.apps", nil, "there is no DaemonSet %s", identityAgent)
		if sets, err := probes.DaemonSets.Of(facts); err == nil {
			for _, d := range sets.All() {
				if d.Name == identityAgent || d.Labels["app.kubernetes.io/name"] == identityAgent {
					set = daemonRef(d)
					hint = SawObject("daemonsets.apps", d.Namespace, d.Name, "DaemonSet %s wants %d pods and has %d ready; its nodeSelector: %s", d.Name, d.Status.DesiredNumberScheduled, d.Status.NumberReady, orDefault(selectorText(d.Spec.Template.Spec.NodeSelector), "none"))
				}
			}
		}
		for _, o := range pods.On(p.Spec.NodeName) {
			if !podIdentityAgent(o) {
				continue
			}
			if probes.Ready(o) {
				b.unless = Answered(false, SawObject("pods", o.Namespace, o.Name, "pod %s on node %s is the agent, and ready", o.Name, p.Spec.NodeName))
				return b
			}
			b.vars["state"] = fmt.Sprintf("its pod %s there is not ready", o.Name)
			hint = SawObject("pods", o.Namespace, o.Name, "pod %s is the agent of node %s, and not ready", o.Name, p.Spec.NodeName)
		}
		b.subject, b.found = set, []Evidence{SawObject("pods", p.Namespace, p.Name, "pod %s is on node %s; %s", p.Name, p.Spec.NodeName, b.vars["state"]), hint}
		return b
	}, "pod-identity-unreachable")

// keysRejected: AWS knows the caller's keys no longer, or they have run out.
var keysRejected = fromLog("aws-keys-rejected", "are the AWS credentials of {workload} expired or not valid?", ailing, nil,
	func(_ *probes.Facts, f *logFault) blame {
		p := f.container.pod
		b := blame{vars: map[string]string{"where": "from where the program reads them", "how": "give it valid ones, or better a role (IRSA or Pod Identity) instead of keys", "state": "expired"}}
		if f.failure.Meaning == "aws-credentials-invalid" {
			b.vars["state"] = "not valid"
		}
		for _, e := range f.container.spec.Env {
			if !strings.HasPrefix(e.Name, "AWS_") || !strings.Contains(e.Name, "KEY") && !strings.Contains(e.Name, "TOKEN") || e.ValueFrom == nil || e.ValueFrom.SecretKeyRef == nil {
				continue
			}
			ref := e.ValueFrom.SecretKeyRef
			b.subject = Ref{Kind: "Secret", Namespace: p.Namespace, Name: ref.Name}
			b.vars["where"] = fmt.Sprintf("from key %s of Secret %s (%s)", ref.Key, ref.Name, e.Name)
			b.found = []Evidence{SawObject("pods", p.Namespace, p.Name, "container %s takes %s from key %s of Secret %s", f.container.spec.Name, e.Name, ref.Key, ref.Name)}
			return b
		}
		for _, e := range f.container.spec.EnvFrom {
			if e.SecretRef != nil && strings.Contains(strings.ToLower(e.SecretRef.Name), "aws") {
				b.subject = Ref{Kind: "Secret", Namespace: p.Namespace, Name: e.SecretRef.Name}
				b.vars["where"] = "from Secret " + e.SecretRef.Name
				return b
			}
		}
		if by, role := probes.Injection(p, ""); by != "" {
			b.vars["where"] = fmt.Sprintf("by %s (%s)", by, role)
			b.vars["how"] = "make the pod anew, and update the SDK: one that is too old reads the token only once"
		}
		return b
	}, "aws-credentials-expired", "aws-credentials-invalid")

var credentialRules = []*Rule{metadataHopLimit, linkLocalBlocked, identityAgentMissing, keysRejected}
