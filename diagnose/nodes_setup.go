package diagnose

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

var noCNI = regexp.MustCompile(`cni plugin not initialized|NetworkPluginNotReady|cni config uninitialized`)

// networkPlugins are the DaemonSets that make a node's network, each with the
// label k8s-app that its pods carry.
// Sources: the manifests of each project.
var networkPlugins = []string{"aws-node", "cilium", "calico-node", "canal", "kindnet", "kube-flannel-ds", "weave-net", "antrea-agent", "kube-router"}

// pluginOf is the network plug-in among DaemonSets, or nil.
func pluginOf(sets *probes.List[appsv1.DaemonSet]) *appsv1.DaemonSet {
	for _, name := range networkPlugins {
		for _, ds := range sets.All() {
			if ds.Name == name || ds.Spec.Template.Labels["k8s-app"] == name {
				return ds
			}
		}
	}
	return nil
}

// A bareNode is a node without a network, with the plug-in's pod on it.
type bareNode struct {
	node   *corev1.Node
	plugin *appsv1.DaemonSet
	pod    *corev1.Pod // nil: there is none on the node
}

// networkNotReady: the kubelet waits for the network plug-in. That is a state
// on the way: what keeps the plug-in from working is the cause.
var networkNotReady = &Rule{
	ID: "network-plugin-not-ready", Explains: []*Rule{nodeNotReady, nodeClaimNotInitialized, nodesNotReady, podNotReady, podNotStarting, stuckTerminating, podOnLostNode}, Intermediate: true, Relay: true,
	Needs: []probes.Any{probes.Pods, probes.DaemonSets, probes.Nodes},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		pods, err := probes.Pods.Of(facts)
		nodes, nodesErr := probes.Nodes.Of(facts)
		if err != nil || nodesErr != nil {
			return nil
		}
		var plugin *appsv1.DaemonSet
		ref := Ref{Kind: "DaemonSet", Namespace: "kube-system", Name: "aws-node"}
		if sets, err := probes.DaemonSets.Of(facts); err == nil {
			if plugin = pluginOf(sets); plugin != nil {
				ref = Ref{Kind: "DaemonSet", Namespace: plugin.Namespace, Name: plugin.Name}
			}
		}
		s := Suspect{Subjects: []Ref{ref}, Vars: map[string]string{"plugin": ref.Name}}
		var bare []bareNode
		for _, n := range nodes.All() {
			c := nodeCondition(n, corev1.NodeReady)
			if c == nil || c.Status == corev1.ConditionTrue || !noCNI.MatchString(c.Message) {
				continue
			}
			b := bareNode{node: n, plugin: plugin}
			for _, p := range pods.On(n.Name) {
				if owner := probes.Controller(p); owner != nil && owner.Kind == "DaemonSet" && (owner.Name == ref.Name || p.Labels["k8s-app"] == ref.Name) {
					b.pod = p
				}
			}
			bare = append(bare, b)
			s.Subjects = append(s.Subjects, Ref{Kind: "Node", Name: n.Name})
			s.Found = append(s.Found, sawNodeCondition(n, c))
			for _, e := range effects {
				claim, _ := e.Data.(*probes.NodeClaim)
				if slices.Contains(e.Subjects, Ref{Kind: "Node", Name: n.Name}) || claim != nil && claim.Status.NodeName == n.Name {
					s.Effects = appendNew(s.Effects, e)
				}
			}
		}
		if len(bare) == 0 || len(s.Effects) == 0 {
			return nil
		}
		unready := unreadyNodes(effects)
		var without []*corev1.Node
		for _, b := range bare {
			without = append(without, b.node)
		}
		for _, e := range effects {
			if e.Subject() != ref && hurtOn(without, unready, e) {
				s.Effects = appendOnce(s.Effects, e)
			}
		}
		if plugin == nil && !slices.ContainsFunc(nodes.All(), isAWS) {
			s.Subjects, s.Vars["plugin"] = s.Subjects[1:], "a network plug-in (CNI)" // which one was meant, nothing says
		}
		s.Found = s.Found[:min(len(s.Found), maxExamples)]
		s.Data = bare
		return []Suspect{s}
	},
	Tests: []Test{{Asks: "do kubelets say that the network plug-in is not there?", Run: func(_ *probes.Facts, s Suspect) Answer {
		return Answered(true, Evidence{Says: fmt.Sprintf("%d nodes wait for %s", len(s.Data.([]bareNode)), s.Vars["plugin"])})
	}}},
}

// pluginRule is a rule for what keeps the network plug-in from working.
func pluginRule(id, asks string, needs []probes.Any, who func(*probes.Facts, *Finding) []Ref, test func(*probes.Facts, []bareNode) Answer) *Rule {
	return &Rule{
		ID: id, Explains: []*Rule{networkNotReady}, Needs: needs,
		Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
			var found []Suspect
			for _, e := range effects {
				s := Suspect{Subjects: []Ref{e.Subject()}, Effects: []*Finding{e}, Data: e.Data, Vars: map[string]string{"plugin": e.Vars["plugin"]}}
				if who != nil {
					s.Subjects = who(facts, e)
				}
				found = append(found, s)
			}
			return found
		},
		Tests: []Test{{Asks: asks, Needs: needs, Run: func(facts *probes.Facts, s Suspect) Answer { return test(facts, s.Data.([]bareNode)) }}},
	}
}

// pluginAbsent: no pod of the plug-in is on the node.
var pluginAbsent = pluginRule("network-plugin-absent", "is no pod of {plugin} on those nodes?", []probes.Any{probes.Pods, probes.DaemonSets}, nil,
	func(facts *probes.Facts, bare []bareNode) Answer {
		if _, err := probes.DaemonSets.Of(facts); err != nil {
			return CantTell(err).With("why", "its DaemonSet could not be read")
		}
		for _, b := range bare {
			if b.pod != nil {
				return Answered(false, SawObject("pods", b.pod.Namespace, b.pod.Name, "pod %s is on node %s", b.pod.Name, b.node.Name))
			}
		}
		if bare[0].plugin == nil {
			return Answered(true, Saw("daemonsets.apps", nil, "there is no DaemonSet of a network plug-in that is known")).With("why", "the cluster has no such DaemonSet")
		}
		why := "its nodeSelector, affinity or tolerations leave the nodes out"
		ds := bare[0].plugin
		if wants := placementWords(&ds.Spec.Template.Spec); wants != "room for it" {
			why = "it wants nodes with " + wants
		}
		return Answered(true, SawObject("daemonsets.apps", ds.Namespace, ds.Name, "DaemonSet %s has no pod on node %s; %s", ds.Name, bare[0].node.Name, why)).With("why", why)
	})

// pluginSubnetFull: the plug-in finds no address for pods in the node's subnet.
var pluginSubnetFull = pluginRule("network-plugin-finds-no-address", "has the subnet of those nodes no addresses left?", []probes.Any{probes.Subnets, probes.Instances},
	func(facts *probes.Facts, e *Finding) []Ref {
		if id, _ := fullSubnet(facts, e.Data.([]bareNode)); id != "" {
			return []Ref{{Kind: "Subnet", Name: id}, e.Subject()}
		}
		return []Ref{e.Subject()}
	},
	func(facts *probes.Facts, bare []bareNode) Answer {
		if bare[0].plugin == nil || bare[0].plugin.Name != "aws-node" {
			return Answered(false, Evidence{Says: "the plug-in takes no addresses of the VPC"})
		}
		_, err := probes.Subnets.Of(facts)
		if err = errors.Join(err, facts.Err(probes.Instances)); err != nil {
			return CantTell(err).With("subnet", "its subnet").With("free", "an unknown number of")
		}
		id, free := fullSubnet(facts, bare)
		return Answered(id != "", Saw("aws/ec2/describe-subnets", nil, "subnet %s has %d free addresses", orDefault(id, "of the nodes"), free)).With("subnet", id).With("free", fmt.Sprint(free))
	})

// fullSubnet is the subnet of one of the nodes that has hardly an address left.
func fullSubnet(facts *probes.Facts, bare []bareNode) (id string, free int32) {
	subnets, err := probes.Subnets.Of(facts)
	instances, instancesErr := probes.Instances.Of(facts)
	if err != nil || instancesErr != nil {
		return "", 0
	}
	free = 9999
	for _, b := range bare {
		i := instances.Get(instanceID(b.node.Spec.ProviderID))
		if i == nil {
			continue
		}
		if s := subnets.Get(str(i.SubnetId)); s != nil && s.AvailableIpAddressCount != nil {
			if free = *s.AvailableIpAddressCount; free < 5 {
				return str(i.SubnetId), free
			}
		}
	}
	return "", free
}

// setupRule is a rule for nodes that Karpenter waits for, by the reason of
// the condition Initialized; what the message names is captured.
func setupRule(id, asks string, message *regexp.Regexp, needs []probes.Any, who func(*probes.Facts, *probes.NodeClaim, string) ([]Ref, map[string]string, []Evidence)) *Rule {
	needs = append([]probes.Any{pools, probes.DaemonSets}, needs...)
	return &Rule{
		ID: id, Explains: []*Rule{nodeClaimNotInitialized}, Needs: needs,
		Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
			var found []Suspect
			for _, e := range effects {
				c, ok := e.Data.(*probes.NodeClaim)
				if !ok {
					continue
				}
				m := message.FindStringSubmatch(e.Vars["message"])
				if m == nil {
					continue
				}
				subjects, vars, evidence := who(facts, c, m[1])
				s := Suspect{Subjects: subjects, Effects: []*Finding{e}, Vars: vars, Found: evidence, Data: m[1]}
				s.Vars["thing"], s.Vars["node"], s.Vars["pool"] = m[1], c.Status.NodeName, c.Labels["karpenter.sh/nodepool"]
				if i := slices.IndexFunc(found, func(o Suspect) bool { return o.Subjects[0] == s.Subjects[0] && o.Data == s.Data }); i >= 0 {
					found[i].Effects = append(found[i].Effects, e)
					continue
				}
				found = append(found, s)
			}
			return found
		},
		Tests: []Test{{Asks: asks, Needs: needs, Run: func(facts *probes.Facts, s Suspect) Answer {
			if _, err := probes.DaemonSets.Of(facts); err != nil {
				return CantTell(err)
			}
			if s.Vars["unclear"] != "" {
				return CantTell(nil, Evidence{Says: s.Vars["unclear"]})
			}
			return Answered(true, s.Effects[0].Found...)
		}}},
	}
}

// agentFor is the DaemonSet that takes a startup taint away, or nil: the one
// that serves the CSI driver that the taint is named after, or that bears the
// name of the taint's owner.
func agentFor(facts *probes.Facts, key string) *appsv1.DaemonSet {
	sets, err := probes.DaemonSets.Of(facts)
	if err != nil {
		return nil
	}
	domain, _, _ := strings.Cut(key, "/")
	words := strings.FieldsFunc(domain, func(r rune) bool { return r == '.' || r == '-' })
	for _, ds := range sets.All() {
		if servesDriver(&ds.Spec.Template.Spec, domain) {
			return ds
		}
		for _, w := range words {
			if len(w) >= 4 && !slices.Contains([]string{"node", "kubernetes", "agent", "aws", "amazonaws", "karpenter", "cloudprovider"}, w) && strings.Contains(ds.Name, w) {
				return ds
			}
		}
	}
	return nil
}

// taintStays: a startup taint that nothing in the cluster takes away.
// Source: incident taint-nobody-removes.
var taintStays = setupRule("startup-taint-nobody-removes", "does nothing in the cluster take the taint {thing} away?", regexp.MustCompile(`StartupTaint "([^"]+)" still exists`), []probes.Any{probes.Pods},
	func(facts *probes.Facts, c *probes.NodeClaim, taint string) ([]Ref, map[string]string, []Evidence) {
		key := strings.FieldsFunc(taint, func(r rune) bool { return r == '=' || r == ':' })[0]
		pool := Ref{Kind: "NodePool", Name: c.Labels["karpenter.sh/nodepool"]}
		ds := agentFor(facts, key)
		if ds == nil {
			return []Ref{pool}, map[string]string{"key": key, "who": "no DaemonSet of the cluster belongs to it"},
				[]Evidence{Saw("daemonsets.apps", nil, "no DaemonSet is named after %s or serves it", key)}
		}
		ref := Ref{Kind: "DaemonSet", Namespace: ds.Namespace, Name: ds.Name}
		vars := map[string]string{"key": key, "who": short(ref) + " is to take it away, and has not done so"}
		pods, err := probes.Pods.Of(facts)
		if err != nil {
			vars["unclear"] = err.Error()
			return []Ref{ref, pool}, vars, nil
		}
		for _, p := range pods.On(c.Status.NodeName) {
			if owner := probes.Controller(p); owner != nil && owner.Name == ds.Name {
				if probes.Ready(p) {
					// Karpenter may have put it back, or the driver lost a race: the driver's log tells.
					vars["unclear"] = fmt.Sprintf("pod %s is ready on the node; whether it has removed the taint only its log says", p.Name)
				}
				return []Ref{ref, pool}, vars, []Evidence{SawObject("pods", p.Namespace, p.Name, "pod %s of %s is on node %s, ready: %t", p.Name, short(ref), c.Status.NodeName, probes.Ready(p))}
			}
		}
		vars["who"] = short(ref) + " is to take it away, and has no pod on the node"
		return []Ref{ref, pool}, vars, []Evidence{SawObject("daemonsets.apps", ds.Namespace, ds.Name, "DaemonSet %s has no pod on node %s", ds.Name, c.Status.NodeName)}
	})

// resourceNotRegistered: the node was made for a resource that no device
// plug-in offers on it. Source: incident gpu-plugin-missing.
var resourceNotRegistered = setupRule("promised-resource-not-registered", "does no device plug-in offer {thing} on node {node}?", regexp.MustCompile(`(?i)Resource "([^"]+)" (?:was requested but not|didn't|did not) regist`), []probes.Any{probes.Pods},
	func(facts *probes.Facts, c *probes.NodeClaim, resource string) ([]Ref, map[string]string, []Evidence) {
		pool := Ref{Kind: "NodePool", Name: c.Labels["karpenter.sh/nodepool"]}
		if resource == "vpc.amazonaws.com/pod-eni" {
			return []Ref{{Kind: "DaemonSet", Namespace: "kube-system", Name: "aws-node"}, pool}, map[string]string{"who": "aws-node offers it only with ENABLE_POD_ENI=true"}, nil
		}
		vendor, _, _ := strings.Cut(resource, ".")
		if vendor == "aws" {
			vendor = "neuron"
		}
		sets, err := probes.DaemonSets.Of(facts)
		if err == nil {
			for _, ds := range sets.All() {
				image := ""
				for _, k := range ds.Spec.Template.Spec.Containers {
					image += k.Image + " "
				}
				if strings.Contains(ds.Name+" "+image, vendor) && strings.Contains(ds.Name+" "+image, "device-plugin") {
					ref := Ref{Kind: "DaemonSet", Namespace: ds.Namespace, Name: ds.Name}
					vars := map[string]string{"who": short(ref) + " offers it, and does not on this node"}
					evidence := []Evidence{SawObject("daemonsets.apps", ds.Namespace, ds.Name, "DaemonSet %s wants nodes with %s", ds.Name, placementWords(&ds.Spec.Template.Spec))}
					if pods, err := probes.Pods.Of(facts); err == nil {
						on := slices.ContainsFunc(pods.On(c.Status.NodeName), func(p *corev1.Pod) bool {
							owner := probes.Controller(p)
							return owner != nil && owner.Name == ds.Name
						})
						if !on {
							vars["who"] = short(ref) + " has no pod on the node"
						}
					}
					return []Ref{ref, pool}, vars, evidence
				}
			}
		}
		return []Ref{pool}, map[string]string{"who": "no DaemonSet of the cluster is a device plug-in for it"},
			[]Evidence{Saw("daemonsets.apps", nil, "no DaemonSet is a device plug-in of %s", vendor)}
	})

// dataVolumeSmall: Bottlerocket keeps images and pods on its second disk, and
// the class sizes only the first. Source: tree S10.
var dataVolumeSmall = &Rule{
	ID: "bottlerocket-data-volume-small", Explains: []*Rule{nodePressed}, Needs: []probes.Any{classes},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		list, err := classes.Of(facts)
		if err != nil {
			return nil
		}
		byClass := map[string]*Suspect{}
		for _, e := range effects {
			n := e.Data.(*corev1.Node)
			c := list.Get("", n.Labels["karpenter.k8s.aws/ec2nodeclass"])
			if c == nil || e.Vars["pressure"] != string(corev1.NodeDiskPressure) || !strings.Contains(strings.ToLower(n.Status.NodeInfo.OSImage), "bottlerocket") {
				continue
			}
			if byClass[c.Name] == nil {
				byClass[c.Name] = &Suspect{Subjects: []Ref{{Kind: "EC2NodeClass", Name: c.Name}}, Data: c, Vars: map[string]string{"class": c.Name, "capacity": n.Status.Capacity.StorageEphemeral().String()}}
			}
			byClass[c.Name].Effects = append(byClass[c.Name].Effects, e)
		}
		var found []Suspect
		for _, name := range sortedKeys(byClass) {
			found = append(found, *byClass[name])
		}
		return found
	},
	Tests: []Test{{Asks: "does EC2NodeClass {class} size only the first disk, /dev/xvda?", Run: func(_ *probes.Facts, s Suspect) Answer {
		c := s.Data.(*probes.EC2NodeClass)
		var names []string
		for _, m := range c.Spec.BlockDeviceMappings {
			names = append(names, m.DeviceName)
		}
		only := slices.Contains(names, "/dev/xvda") && !slices.Contains(names, "/dev/xvdb")
		return Answered(only, SawObject("ec2nodeclasses.karpenter.k8s.aws", "", c.Name, "EC2NodeClass %s: spec.blockDeviceMappings has %s; its nodes have %s of ephemeral storage", c.Name, orDefault(strings.Join(names, ", "), "nothing"), s.Vars["capacity"]))
	}}},
}

var setupRules = []*Rule{networkNotReady, pluginAbsent, pluginSubnetFull, taintStays, resourceNotRegistered, dataVolumeSmall}
