package diagnose

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// What the runtime says of a sandbox that it can't make.
// Sources: amazon-vpc-cni-k8s cmd/routed-eni-cni-plugin/cni.go; containerd
// internal/cri/server/sandbox_run.go.
var (
	noAddressForPod = regexp.MustCompile(`failed to assign an IP address to container`)
	noSandboxImage  = regexp.MustCompile(`failed to get sandbox image "(?P<image>[^"]+)".*?(?P<why>401 Unauthorized|403 Forbidden|no basic auth credentials|pull access denied|not found)`)
)

// A sandboxCase is a pod that has no sandbox, on a node of the VPC CNI.
type sandboxCase struct {
	pod  *corev1.Pod
	node *corev1.Node
	cni  *corev1.Pod // the plug-in's pod on the node, or nil
	says Evidence
	got  map[string]string
}

// sandboxRule is a rule for pods of whose sandbox the kubelet says a certain
// thing. who is at fault, nil: the case is not the rule's.
func sandboxRule(id, asks string, needs []probes.Any, reasons []string, pattern *regexp.Regexp, who func(*probes.Facts, sandboxCase) ([]Ref, map[string]string), test func(*probes.Facts, sandboxCase) Answer) *Rule {
	return &Rule{
		ID: id, Explains: []*Rule{sandboxNotCreated},
		Needs: slices.Concat([]probes.Any{probes.Pods, probes.Nodes, probes.Events, probes.DaemonSets}, needs),
		Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
			nodes, err := probes.Nodes.Of(facts)
			pods, podsErr := probes.Pods.Of(facts)
			if err != nil || podsErr != nil {
				return nil
			}
			var found []Suspect
			for _, s := range suspectsOf(effects, waitsForPod) {
				r, got, _ := said(facts, containers(s), reasons, pattern)
				pod := containers(s)[0].pod
				node := nodes.Get("", pod.Spec.NodeName)
				if got == nil || node == nil {
					continue
				}
				c := sandboxCase{pod: pod, node: node, cni: agentOn(pods, node.Name, "aws-node"), says: r.from, got: got}
				refs, vars := who(facts, c)
				if len(refs) == 0 {
					continue
				}
				for k, v := range vars {
					s.Vars[k] = v
				}
				s.Vars["waits"] = s.Subjects[0].Kind + " " + s.Subjects[0].Namespace + "/" + s.Subjects[0].Name
				s.Subjects, s.Data = appendNew(refs, s.Subjects[0]), c
				if i := slices.IndexFunc(found, func(o Suspect) bool { return o.Subjects[0] == s.Subjects[0] }); i >= 0 {
					found[i].Effects = appendNew(found[i].Effects, s.Effects...)
					found[i].Subjects = appendNew(found[i].Subjects, s.Subjects...)
					continue
				}
				found = append(found, s)
			}
			return found
		},
		Tests: []Test{{Asks: asks, Needs: needs, Run: func(facts *probes.Facts, s Suspect) Answer {
			c := s.Data.(sandboxCase)
			a := test(facts, c)
			a.Evidence = append([]Evidence{c.says}, a.Evidence...)
			return a
		}}},
	}
}

var sandboxReason = []string{"FailedCreatePodSandBox"}

// cniSetting is the value of one of the VPC CNI's settings, or "".
func cniSetting(facts *probes.Facts, name string) string {
	sets, err := probes.DaemonSets.Of(facts)
	if err != nil {
		return ""
	}
	ds := sets.Get("kube-system", "aws-node")
	if ds == nil {
		return ""
	}
	for _, k := range slices.Concat(ds.Spec.Template.Spec.InitContainers, ds.Spec.Template.Spec.Containers) {
		for _, e := range k.Env {
			if e.Name == name {
				return e.Value
			}
		}
	}
	return ""
}

func customNetworking(facts *probes.Facts) bool {
	return cniSetting(facts, "AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG") == "true"
}

func prefixDelegation(facts *probes.Facts) bool {
	return cniSetting(facts, "ENABLE_PREFIX_DELEGATION") == "true"
}

// eniConfigName is the ENIConfig that the VPC CNI wants for a node.
// Source: amazon-vpc-cni-k8s README, ENI_CONFIG_LABEL_DEF, ENI_CONFIG_ANNOTATION_DEF.
func eniConfigName(facts *probes.Facts, n *corev1.Node) string {
	annotation := cmp.Or(cniSetting(facts, "ENI_CONFIG_ANNOTATION_DEF"), "k8s.amazonaws.com/eniConfig")
	label := cmp.Or(cniSetting(facts, "ENI_CONFIG_LABEL_DEF"), "k8s.amazonaws.com/eniConfig")
	return cmp.Or(n.Annotations[annotation], n.Labels[label], "default")
}

// podSubnets are the subnets from which pods on a node get their addresses:
// with custom networking that of its ENIConfig, else that of the instance and
// those of its zone that are tagged for the VPC CNI.
func podSubnets(facts *probes.Facts, n *corev1.Node) ([]string, error) {
	if customNetworking(facts) {
		configs, err := probes.ENIConfigs.Of(facts)
		if err != nil {
			return nil, err
		}
		if c := configs.Get("", eniConfigName(facts, n)); c != nil {
			return []string{c.Spec.Subnet}, nil
		}
		return nil, fmt.Errorf("there is no ENIConfig %s", eniConfigName(facts, n))
	}
	instances, err := probes.Instances.Of(facts)
	subnets, subnetsErr := probes.Subnets.Of(facts)
	if err = errors.Join(err, subnetsErr); err != nil {
		return nil, err
	}
	i := instances.Get(instanceID(n.Spec.ProviderID))
	if i == nil {
		return nil, fmt.Errorf("instance %s was not captured", instanceID(n.Spec.ProviderID))
	}
	ids := []string{str(i.SubnetId)}
	own := subnets.Get(str(i.SubnetId))
	for _, s := range subnets.All() {
		if own != nil && str(s.AvailabilityZone) == str(own.AvailabilityZone) && str(s.VpcId) == str(own.VpcId) && tagValue(s.Tags, "kubernetes.io/role/cni") == "1" {
			ids = appendNew(ids, str(s.SubnetId))
		}
	}
	return ids, nil
}

func subnetRefs(facts *probes.Facts, c sandboxCase) ([]Ref, map[string]string) {
	ids, err := podSubnets(facts, c.node)
	if err != nil || len(ids) == 0 {
		return []Ref{{Kind: "DaemonSet", Namespace: "kube-system", Name: "aws-node"}}, map[string]string{"subnet": "of node " + c.node.Name, "free": "an unknown number of"}
	}
	var refs []Ref
	for _, id := range ids {
		refs = append(refs, Ref{Kind: "Subnet", Name: id})
	}
	return refs, map[string]string{"subnet": strings.Join(ids, ", "), "free": "an unknown number of"}
}

// roomIn is how many addresses the pods' subnets have, and how many of them
// are free, with what shows it.
func roomIn(facts *probes.Facts, n *corev1.Node) (free, size int, evidence []Evidence, err error) {
	ids, err := podSubnets(facts, n)
	subnets, subnetsErr := probes.Subnets.Of(facts)
	if err = errors.Join(err, subnetsErr); err != nil {
		return 0, 0, nil, err
	}
	for _, id := range ids {
		s := subnets.Get(id)
		if s == nil || s.AvailableIpAddressCount == nil {
			return 0, 0, nil, fmt.Errorf("subnet %s was not captured", id)
		}
		free += int(*s.AvailableIpAddressCount)
		size += blockSize(str(s.CidrBlock))
		evidence = append(evidence, Saw("aws/ec2/describe-subnets", []string{id}, "subnet %s (%s, %s) has %d free addresses", id, str(s.CidrBlock), str(s.AvailabilityZone), *s.AvailableIpAddressCount))
	}
	return free, size, evidence, nil
}

func blockSize(cidr string) int {
	var bits int
	if _, length, ok := strings.Cut(cidr, "/"); ok {
		_, _ = fmt.Sscan(length, &bits)
	}
	if bits < 8 || bits > 32 {
		return 0
	}
	return 1 << (32 - bits)
}

// podSubnetFull: the subnet that pods on the node get their addresses from has
// none left.
var podSubnetFull = sandboxRule("pod-subnet-has-no-addresses", "has {subnet}, where pods on node {node} get their addresses, none left?", []probes.Any{probes.Subnets, probes.Instances, probes.ENIConfigs},
	sandboxReason, noAddressForPod, subnetRefs, func(facts *probes.Facts, c sandboxCase) Answer {
		free, _, evidence, err := roomIn(facts, c.node)
		if err != nil {
			return CantTell(err)
		}
		least := 3 // what is counted as free may be taken already
		if prefixDelegation(facts) {
			least = 15 // a prefix is 16 addresses
		}
		return Answered(free <= least, evidence...).With("free", fmt.Sprint(free))
	})

var noPrefix = regexp.MustCompile(`InsufficientCidrBlocks|does not have enough free cidr blocks`)

// podSubnetFragmented: prefixes are 16 addresses in a row, and the subnet has
// no such row left, though single addresses are free.
var podSubnetFragmented = sandboxRule("pod-subnet-fragmented", "has {subnet} free addresses, but no 16 in a row for a prefix?", []probes.Any{probes.Subnets, probes.Instances, probes.ENIConfigs, probes.VPCCNILogs},
	sandboxReason, noAddressForPod, func(facts *probes.Facts, c sandboxCase) ([]Ref, map[string]string) {
		if !prefixDelegation(facts) {
			return nil, nil
		}
		return subnetRefs(facts, c)
	}, func(facts *probes.Facts, c sandboxCase) Answer {
		free, size, evidence, err := roomIn(facts, c.node)
		if err != nil {
			return CantTell(err)
		}
		if free <= 15 {
			return Answered(false, evidence...)
		}
		word, heard, unread := cniSays(facts, c, noPrefix)
		switch {
		case heard:
			return Answered(true, append(evidence, word)...).With("free", fmt.Sprint(free))
		case size > 0 && free*2 > size:
			return Answered(false, evidence...)
		}
		// A subnet may be half empty and yet have no prefix; only EC2's own answer tells.
		return CantTell(unread, evidence...).With("free", fmt.Sprint(free))
	})

// cniSays is what the VPC CNI's pod on the node said that matches, in its log
// or in an event.
func cniSays(facts *probes.Facts, c sandboxCase, pattern *regexp.Regexp) (Evidence, bool, error) {
	if c.cni == nil {
		return Evidence{}, false, nil
	}
	now := facts.Source().Now()
	if events, err := probes.Events.Of(facts); err == nil {
		for _, e := range slices.Backward(events.About(podRef(c.cni))) {
			if at := probes.EventTime(e); pattern.MatchString(e.Reason+": "+e.Message) && now.Sub(at) < recent {
				return Saw("events", nil, "event on pod %s: %s: %s", c.cni.Name, e.Reason, e.Message), true, nil
			}
		}
	}
	logs, err := probes.VPCCNILogs.Of(facts)
	if err != nil {
		return Evidence{}, false, err
	}
	for _, l := range logs.All() {
		if l.Pod != c.cni.Name {
			continue
		}
		if l.Excerpt == nil {
			err = errors.Join(err, l.Gap)
			continue
		}
		for _, f := range l.Excerpt.Failures {
			if pattern.MatchString(f.Text) && (f.LastAt.IsZero() || now.Sub(f.LastAt) < recent) {
				return Evidence{Says: fmt.Sprintf("log of %s/%s: %q", l.Pod, l.Container, abridged(f.Text, 600)), Document: l.Document()}, true, nil
			}
		}
	}
	return Evidence{}, false, err
}

// madeFrom is what a node was made from: its class or its node group, else
// itself.
func madeFrom(n *corev1.Node) Ref {
	switch {
	case n.Labels["karpenter.k8s.aws/ec2nodeclass"] != "":
		return Ref{Kind: "EC2NodeClass", Name: n.Labels["karpenter.k8s.aws/ec2nodeclass"]}
	case n.Labels["eks.amazonaws.com/nodeclass"] != "":
		return Ref{Kind: "NodeClass", Name: n.Labels["eks.amazonaws.com/nodeclass"]}
	case n.Labels["eks.amazonaws.com/nodegroup"] != "":
		return Ref{Kind: "NodeGroup", Name: n.Labels["eks.amazonaws.com/nodegroup"]}
	}
	return Ref{Kind: "Node", Name: n.Name}
}

// maxPodsTooHigh: the kubelet takes more pods than the node's network
// interfaces have addresses for.
var maxPodsTooHigh = sandboxRule("max-pods-beyond-addresses", "does node {node} take more pods than its network interfaces have addresses for?", nil,
	sandboxReason, noAddressForPod, func(_ *probes.Facts, c sandboxCase) ([]Ref, map[string]string) {
		return appendNew([]Ref{madeFrom(c.node)}, Ref{Kind: "Node", Name: c.node.Name}), map[string]string{"usable": "an unknown number of", "max": c.node.Status.Allocatable.Pods().String(), "type": c.node.Labels[corev1.LabelInstanceTypeStable], "why": ""}
	}, func(facts *probes.Facts, c sandboxCase) Answer {
		kind := c.node.Labels[corev1.LabelInstanceTypeStable]
		limit, known := interfaceLimits(kind)
		switch {
		case prefixDelegation(facts):
			return Answered(false, Evidence{Says: "prefix delegation gives a node more addresses than it takes pods"})
		case cniSetting(facts, "ENABLE_IPv6") == "true":
			return Answered(false, Evidence{Says: "with IPv6 a node has a whole prefix of addresses"})
		case !known:
			return CantTell(nil, Evidence{Says: "how many network interfaces and addresses " + orDefault(kind, "its instance type") + " has isn't known"})
		}
		reserved, why := 0, fmt.Sprintf("%s has %d network interfaces of %d addresses, of which each keeps one", kind, limit.interfaces, limit.addresses)
		if customNetworking(facts) {
			reserved, why = 1, why+"; custom networking gives pods none of the first one"
		}
		if c.node.Labels["vpc.amazonaws.com/has-trunk-attached"] == "true" {
			reserved, why = reserved+1, why+"; one is the trunk of Security Groups for Pods"
		}
		usable := (limit.interfaces - reserved) * (limit.addresses - 1)
		pods, err := probes.Pods.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		with := 0
		for _, p := range pods.On(c.node.Name) {
			if !p.Spec.HostNetwork && !probes.Finished(p) && p.Status.PodIP != "" && p.Annotations["vpc.amazonaws.com/pod-eni"] == "" {
				with++
			}
		}
		evidence := []Evidence{
			SawObject("nodes", "", c.node.Name, "node %s (%s) takes %s pods; %s: that is %d addresses for pods", c.node.Name, kind, c.node.Status.Allocatable.Pods(), why, usable),
			Saw("pods", nil, "%d pods on node %s have an address of their own", with, c.node.Name),
		}
		too := with >= usable && c.node.Status.Allocatable.Pods().Value() > int64(usable)+2 // two of the node's own need none
		return Answered(too, evidence...).With("usable", fmt.Sprint(usable)).With("why", why)
	})

// sandboxImageUnavailable: the image of the pod's sandbox is not on the node
// any more, and the runtime may not pull it again.
// Sources: incidents pause-gc-129, pause-copied-ami.
var sandboxImageUnavailable = sandboxRule("sandbox-image-unavailable", "is only the sandbox's own image out of reach on node {node}?", nil,
	sandboxReason, noSandboxImage, func(_ *probes.Facts, c sandboxCase) ([]Ref, map[string]string) {
		return appendNew([]Ref{madeFrom(c.node)}, Ref{Kind: "Node", Name: c.node.Name}), map[string]string{"image": c.got["image"], "why": c.got["why"]}
	}, func(facts *probes.Facts, c sandboxCase) Answer {
		pods, err := probes.Pods.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		for _, p := range pods.On(c.node.Name) {
			for _, s := range probes.Statuses(p) {
				if w := s.State.Waiting; w != nil && strings.Contains(w.Reason, "ImagePull") && strings.Contains(s.Image, ".dkr.ecr.") {
					// Other images fail too: then it is the node's credentials.
					return CantTell(nil, SawObject("pods", p.Namespace, p.Name, "pod %s on the same node waits for its image: %s", p.Name, w.Message))
				}
			}
		}
		return Answered(true, SawObject("nodes", "", c.node.Name, "node %s has %s on %s", c.node.Name, c.node.Status.NodeInfo.ContainerRuntimeVersion, c.node.Status.NodeInfo.OSImage))
	})

// eniConfigMissing: custom networking is on, and there is no ENIConfig of the
// name that the node's label asks for.
var eniConfigMissing = &Rule{
	ID: "eniconfig-missing", Explains: []*Rule{networkNotReady, sandboxNotCreated, podCrashLooping, podNotReady}, Needs: []probes.Any{probes.Pods, probes.Nodes, probes.DaemonSets, probes.ENIConfigs},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		nodes, err := probes.Nodes.Of(facts)
		if err != nil || !customNetworking(facts) {
			return nil
		}
		var found []Suspect
		for _, e := range effects {
			for _, n := range nodes.All() {
				hurt := slices.Contains(e.Subjects, Ref{Kind: "Node", Name: n.Name})
				for _, s := range rootSymptoms([]*Finding{e}) {
					hurt = hurt || slices.ContainsFunc(troubled(s.symptom), func(p *corev1.Pod) bool {
						return p.Spec.NodeName == n.Name && (e.Rule == sandboxNotCreated || e.Subject().Name == "aws-node")
					})
				}
				if !hurt {
					continue
				}
				name := eniConfigName(facts, n)
				ref := Ref{Kind: "ENIConfig", Name: name}
				i := slices.IndexFunc(found, func(s Suspect) bool { return s.Subjects[0] == ref })
				if i < 0 {
					found = append(found, Suspect{Subjects: []Ref{ref, {Kind: "DaemonSet", Namespace: "kube-system", Name: "aws-node"}}, Data: n, Vars: map[string]string{"config": name, "node": n.Name, "have": "not known"}})
					i = len(found) - 1
				}
				found[i].Effects = appendNew(found[i].Effects, e)
			}
		}
		return found
	},
	Tests: []Test{{Asks: "is there no ENIConfig {config}, which custom networking wants for node {node}?", Needs: []probes.Any{probes.ENIConfigs}, Run: func(facts *probes.Facts, s Suspect) Answer {
		configs, err := probes.ENIConfigs.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		n := s.Data.(*corev1.Node)
		var have []string
		for _, c := range configs.All() {
			have = append(have, c.Name)
		}
		if slices.Contains(have, s.Vars["config"]) {
			return Answered(false, SawObject("eniconfigs.crd.k8s.amazonaws.com", "", s.Vars["config"], "ENIConfig %s exists", s.Vars["config"]))
		}
		return Answered(true,
			SawObject("daemonsets.apps", "kube-system", "aws-node", "aws-node has AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG=true, ENI_CONFIG_LABEL_DEF=%s", cniSetting(facts, "ENI_CONFIG_LABEL_DEF")),
			SawObject("nodes", "", n.Name, "node %s asks for ENIConfig %s", n.Name, s.Vars["config"]),
			Saw("eniconfigs.crd.k8s.amazonaws.com", nil, "the ENIConfigs are: %s", orDefault(strings.Join(have, ", "), "none"))).With("have", orDefault(strings.Join(have, ", "), "none"))
	}}},
}

var podAddressRules = []*Rule{podSubnetFull, podSubnetFragmented, maxPodsTooHigh, cniNotPermitted, cniWithoutRole, sandboxImageUnavailable, eniConfigMissing}
