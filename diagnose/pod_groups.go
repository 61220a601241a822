package diagnose

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/network"
)

// Rules for Security Groups for Pods: pods with a branch interface and groups
// of their own. Source: EKS user guide, "Security groups for Pods";
// amazon-vpc-cni-k8s README.

const branchAnnotation = "vpc.amazonaws.com/pod-eni"

func hasBranch(p *corev1.Pod) bool { return p.Annotations[branchAnnotation] != "" }

// branchPolicies are the SecurityGroupPolicies that give a pod its groups.
func branchPolicies(facts *probes.Facts, p *corev1.Pod) ([]*probes.SecurityGroupPolicy, error) {
	list, err := probes.SecurityGroupPolicies.Of(facts)
	if err != nil {
		return nil, err
	}
	accounts, accountsErr := probes.ServiceAccounts.Of(facts)
	var mine []*probes.SecurityGroupPolicy
	for _, s := range list.All() {
		if s.Namespace != p.Namespace {
			continue
		}
		if s.Spec.ServiceAccountSelector != nil {
			if accountsErr != nil {
				return nil, accountsErr
			}
			sa := accounts.Get(p.Namespace, orDefault(p.Spec.ServiceAccountName, "default"))
			if sa == nil || !selects(s.Spec.ServiceAccountSelector, sa.Labels) {
				continue
			}
		}
		if s.Spec.PodSelector == nil || selects(s.Spec.PodSelector, p.Labels) {
			mine = append(mine, s)
		}
	}
	return mine, nil
}

// branchRefused is what the VPC resource controller says when it can make no
// branch interface. Source: amazon-vpc-resource-controller-k8s pkg/utils/events.go,
// pkg/provider/branch.
var branchRefused = regexp.MustCompile(`(?P<code>InvalidGroup\.NotFound|InvalidSecurityGroupID\.NotFound|InvalidParameterValue|UnauthorizedOperation|InsufficientFreeAddressesInSubnet|SecurityGroupLimitExceeded)|security group '?(?P<code2>sg-\w+)'? does not exist|not enough free addresses`)

var groupIn = regexp.MustCompile(`sg-[0-9a-f]+`)

// branchNotMade: the pod gets no branch interface with its groups.
var branchNotMade = sandboxRule("pod-groups-not-attached", "could no interface with the groups of {policies} be made for pod {pod}?", []probes.Any{probes.SecurityGroupPolicies, probes.ServiceAccounts, probes.EKSCluster},
	[]string{"BranchAllocationFailed"}, branchRefused, func(facts *probes.Facts, c sandboxCase) ([]Ref, map[string]string) {
		vars := map[string]string{"policies": "its SecurityGroupPolicy", "why": c.says.Says}
		policies, err := branchPolicies(facts, c.pod)
		if err != nil || len(policies) == 0 {
			return nil, nil
		}
		named := groupIn.FindAllString(c.says.Says, -1)
		var refs []Ref
		var names []string
		for _, p := range policies {
			names = append(names, p.Name)
			if slices.ContainsFunc(p.Spec.SecurityGroups.GroupIDs, func(id string) bool { return slices.Contains(named, id) }) {
				refs = append(refs, Ref{Kind: "SecurityGroupPolicy", Namespace: p.Namespace, Name: p.Name})
			}
		}
		vars["policies"] = "SecurityGroupPolicy " + strings.Join(names, ", ")
		switch {
		case strings.Contains(c.says.Says, "UnauthorizedOperation"):
			cluster, err := probes.EKSCluster.Of(facts)
			if err == nil && cluster.RoleARN != "" {
				refs = []Ref{{Kind: "IAMRole", Name: probes.RoleName(cluster.RoleARN)}}
			}
		case strings.Contains(c.says.Says, "free addresses") || strings.Contains(c.says.Says, "InsufficientFreeAddresses"):
			if id := subnetIn.FindString(c.says.Says); id != "" {
				refs = []Ref{{Kind: "Subnet", Name: id}}
			}
		}
		for _, p := range policies {
			refs = appendNew(refs, Ref{Kind: "SecurityGroupPolicy", Namespace: p.Namespace, Name: p.Name})
		}
		return refs, vars
	}, func(facts *probes.Facts, c sandboxCase) Answer {
		var evidence []Evidence
		policies, err := branchPolicies(facts, c.pod)
		if err != nil {
			return CantTell(err)
		}
		for _, p := range policies {
			evidence = append(evidence, SawObject("securitygrouppolicies.vpcresources.k8s.aws", p.Namespace, p.Name, "SecurityGroupPolicy %s gives pod %s the groups %s", p.Name, c.pod.Name, strings.Join(p.Spec.SecurityGroups.GroupIDs, ", ")))
		}
		return Answered(true, evidence...)
	})

// kubeletPath is whether the kubelet reaches a pod with a branch interface on
// the port of a health check. Unknown is an answer too; ok is false where the
// pod has no such interface or the health check no port.
func kubeletPath(facts *probes.Facts, h healthcheck) (a network.Answer, ok bool, err error) {
	_, port, _ := h.target()
	if !hasBranch(h.container.pod) || port == 0 {
		return network.Answer{}, false, nil
	}
	world, err := probes.Network.Of(facts)
	if err != nil {
		return network.Answer{}, true, err
	}
	p := h.container.pod
	a = world.Path(network.Node(p.Spec.NodeName), network.Pod(p.Namespace, p.Name), network.TCP, int(port)).On(network.SecurityGroups, network.NetworkACLs)
	var lacking []error
	for _, hop := range a.Decisive() {
		lacking = append(lacking, hop.Err)
	}
	return a, true, errors.Join(lacking...)
}

// branchNeeds are the facts of rules about the kubelet and branch interfaces.
var branchNeeds = []probes.Any{probes.Network, probes.Instances, probes.NetworkInterfaces, probes.SecurityGroups, probes.SecurityGroupPolicies, probes.ServiceAccounts, probes.DaemonSets, probes.Namespaces}

// noReply are the words of a health check that nothing answered in time.
var noReply = regexp.MustCompile(`(?i)i/o timeout|awaiting headers|deadline exceeded|timed out|no route to host`)

// branchRule is a rule for pods with groups of their own whose health checks
// are not answered.
func branchRule(id, asks string, who func(*probes.Facts, Suspect, healthcheck) []Ref, test func(*probes.Facts, healthcheck) Answer) *Rule {
	return &Rule{
		ID: id, Explains: checked, Needs: slices.Concat([]probes.Any{probes.Pods, probes.Events}, branchNeeds),
		Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
			var found []Suspect
			for _, s := range perHealthcheck(facts, effects) {
				h := s.Data.(healthcheck)
				if !hasBranch(h.container.pod) || h.event == nil || !noReply.MatchString(h.message) || h.probe.Exec != nil {
					continue
				}
				s.Vars["waits"] = s.Subjects[0].Kind + " " + s.Subjects[0].Namespace + "/" + s.Subjects[0].Name
				s.Subjects = appendNew(who(facts, s, h), s.Subjects[0])
				found = append(found, s)
			}
			return found
		},
		Tests: []Test{ofHealthcheck(asks, branchNeeds, func(facts *probes.Facts, h healthcheck) Answer {
			a := test(facts, h)
			a.Evidence = append([]Evidence{h.says()}, a.Evidence...)
			return a
		})},
	}
}

// branchGroups are the groups that a pod's branch interface carries, with those
// that its SecurityGroupPolicies name now.
func branchGroups(facts *probes.Facts, p *corev1.Pod) (has, named []string, err error) {
	world, err := probes.Network.Of(facts)
	if err != nil {
		return nil, nil, err
	}
	i, err := world.PodInterface(p.Namespace, p.Name)
	if err != nil || i == nil {
		return nil, nil, errors.Join(err, facts.Err(probes.NetworkInterfaces))
	}
	policies, err := branchPolicies(facts, p)
	if err != nil {
		return nil, nil, err
	}
	for _, s := range policies {
		named = appendNew(named, s.Spec.SecurityGroups.GroupIDs...)
	}
	slices.Sort(named)
	return i.Groups, named, nil
}

// staleGroups reports whether a pod carries other groups than its policies
// name now.
func staleGroups(has, named []string) bool { return len(named) > 0 && !slices.Equal(has, named) }

// branchShutsOutKubelet: the groups of the pods' own don't admit the node.
var branchShutsOutKubelet = branchRule("pod-groups-shut-out-kubelet", "do the security groups of pod {pod} let nothing of its node in on port {port}?",
	func(facts *probes.Facts, s Suspect, h healthcheck) []Ref {
		has, _, err := branchGroups(facts, h.container.pod)
		var refs []Ref
		if err == nil {
			for _, g := range has {
				refs = append(refs, Ref{Kind: "SecurityGroup", Name: g})
			}
		}
		if a, ok, _ := kubeletPath(facts, h); ok && a.Truth == network.No {
			for _, hop := range a.Decisive() {
				if len(hop.Names) > 0 && hop.Kind == "NetworkACL" {
					refs = append([]Ref{{Kind: hop.Kind, Name: hop.Names[0]}}, refs...)
				}
			}
		}
		return append(refs, s.Subjects[0])
	}, func(facts *probes.Facts, h healthcheck) Answer {
		a, _, err := kubeletPath(facts, h)
		has, named, groupsErr := branchGroups(facts, h.container.pod)
		switch {
		case a.Truth == network.No && groupsErr == nil && staleGroups(has, named):
			return Answered(false, Evidence{Says: "the pod carries older groups than its SecurityGroupPolicy names"})
		case a.Truth == network.No:
			return Answered(true, fromHops(a.Decisive(), 3)...).With("says", hopWords(a.Decisive())).With("groups", strings.Join(has, ", "))
		case a.Truth == network.Yes:
			return Answered(false, fromHops(a.Decisive(), 1)...)
		}
		return CantTell(err).With("says", "whether they admit the node could not be read").With("groups", "groups of their own")
	})

// branchGroupsStale: the SecurityGroupPolicy names other groups by now; those
// of running pods stay as they were when the pods were made.
// Source: incident sgp-not-propagated.
var branchGroupsStale = branchRule("pod-groups-stale", "does pod {pod} carry other security groups than its SecurityGroupPolicy names now?",
	func(facts *probes.Facts, s Suspect, h healthcheck) []Ref {
		refs := []Ref{s.Subjects[0]}
		if policies, err := branchPolicies(facts, h.container.pod); err == nil {
			for _, p := range policies {
				refs = append(refs, Ref{Kind: "SecurityGroupPolicy", Namespace: p.Namespace, Name: p.Name})
			}
		}
		return refs
	}, func(facts *probes.Facts, h healthcheck) Answer {
		has, named, err := branchGroups(facts, h.container.pod)
		if err != nil {
			return CantTell(err).With("groups", "older groups").With("named", "others")
		}
		a, _, err := kubeletPath(facts, h)
		p := h.container.pod
		carries := SawObject("pods", p.Namespace, p.Name, "pod %s (made %s) carries %s; its SecurityGroupPolicy names %s", p.Name, stamp(p.CreationTimestamp.Time), strings.Join(has, ", "), strings.Join(named, ", "))
		switch {
		case !staleGroups(has, named) || a.Truth == network.Yes:
			return Answered(false, carries)
		case a.Truth != network.No:
			return CantTell(err, carries).With("groups", strings.Join(has, ", ")).With("named", strings.Join(named, ", "))
		}
		return Answered(true, append([]Evidence{carries}, fromHops(a.Decisive(), 2)...)...).With("groups", strings.Join(has, ", ")).With("named", strings.Join(named, ", "))
	})

var awsNodeRef = Ref{Kind: "DaemonSet", Namespace: "kube-system", Name: "aws-node"}

func cniIsAtFault(_ *probes.Facts, s Suspect, _ healthcheck) []Ref {
	return []Ref{awsNodeRef, s.Subjects[0]}
}

// strictMode asks aws-node for its mode; standard is the other.
func strictMode(facts *probes.Facts) (bool, Evidence, error) {
	if _, err := probes.DaemonSets.Of(facts); err != nil {
		return false, Evidence{}, err
	}
	mode := orDefault(cniSetting(facts, "POD_SECURITY_GROUP_ENFORCING_MODE"), "strict (by default)")
	return mode != "standard", SawObject("daemonsets.apps", "kube-system", "aws-node", "aws-node has POD_SECURITY_GROUP_ENFORCING_MODE %s", mode), nil
}

// inAmbientMesh is what says that a pod's traffic goes through the node's mesh
// proxy. Source: istio.io, ambient mode: labels and annotations.
func inAmbientMesh(facts *probes.Facts, p *corev1.Pod) (string, bool) {
	if p.Annotations["ambient.istio.io/redirection"] == "enabled" {
		return "pod " + p.Name + " has annotation ambient.istio.io/redirection: enabled", true
	}
	if list, err := probes.Namespaces.Of(facts); err == nil && p.Labels["istio.io/dataplane-mode"] != "none" {
		if ns := list.Get("", p.Namespace); ns != nil && ns.Labels["istio.io/dataplane-mode"] == "ambient" {
			return "namespace " + p.Namespace + " has label istio.io/dataplane-mode: ambient", true
		}
	}
	return "", false
}

// strictBreaksAmbient: in strict mode health checks leave the node and come in
// at the branch interface, past the rule by which the ambient mesh knows them.
// Source: incident sgp-strict-ambient.
var strictBreaksAmbient = branchRule("pod-groups-strict-in-ambient-mesh", "do pods with security groups of their own run in strict mode in an ambient mesh?", cniIsAtFault,
	func(facts *probes.Facts, h healthcheck) Answer {
		strict, mode, err := strictMode(facts)
		if err != nil {
			return CantTell(err)
		}
		says, ambient := inAmbientMesh(facts, h.container.pod)
		if !strict || !ambient {
			return Answered(false, mode)
		}
		if a, _, _ := kubeletPath(facts, h); a.Truth == network.No {
			return Answered(false, fromHops(a.Decisive(), 1)...)
		}
		return Answered(true, mode, Evidence{Says: says, Document: probes.Document{Path: "pods", Only: []string{h.container.pod.Namespace + "/" + h.container.pod.Name}}})
	})

// earlyDemux: in strict mode the node's kernel takes the answers to TCP health
// checks for its own, unless that is turned off.
// Source: amazon-vpc-cni-k8s README, DISABLE_TCP_EARLY_DEMUX.
var earlyDemux = branchRule("pod-groups-tcp-early-demux", "does aws-node leave TCP early demux on, in strict mode, with the groups open?", cniIsAtFault,
	func(facts *probes.Facts, h healthcheck) Answer {
		strict, mode, err := strictMode(facts)
		if err != nil {
			return CantTell(err)
		}
		setting := orDefault(cniSetting(facts, "DISABLE_TCP_EARLY_DEMUX"), "false (by default)")
		demux := SawObject("daemonsets.apps", "kube-system", "aws-node", "aws-node has DISABLE_TCP_EARLY_DEMUX %s", setting)
		if !strict || setting == "true" {
			return Answered(false, mode, demux)
		}
		if says, ambient := inAmbientMesh(facts, h.container.pod); ambient {
			return Answered(false, Evidence{Says: says})
		}
		a, _, err := kubeletPath(facts, h)
		switch a.Truth {
		case network.Yes:
			return Answered(true, append([]Evidence{mode, demux}, fromHops(a.Decisive(), 1)...)...)
		case network.No:
			return Answered(false, fromHops(a.Decisive(), 1)...)
		}
		return CantTell(err, mode, demux)
	})

// answerable reports whether a health check's silence can be the program's: it
// is not where the pod has groups of its own that the kubelet can't get past.
func answerable(facts *probes.Facts, h healthcheck) Answer {
	a, branch, err := kubeletPath(facts, h)
	if !branch {
		return Answered(true, Evidence{Says: fmt.Sprintf("pod %s is on the network of its node", h.container.pod.Name)})
	}
	if a.Truth == network.No {
		return Answered(false, fromHops(a.Decisive(), 2)...)
	}
	if strict, mode, modeErr := strictMode(facts); modeErr == nil && strict {
		_, ambient := inAmbientMesh(facts, h.container.pod)
		if ambient || cniSetting(facts, "DISABLE_TCP_EARLY_DEMUX") != "true" {
			return Answered(false, mode)
		}
	}
	if a.Truth != network.Yes {
		return CantTell(err)
	}
	return Answered(true, fromHops(a.Decisive(), 1)...)
}

var podGroupRules = []*Rule{dnsCutOffPodGroups, branchNotMade, branchShutsOutKubelet, branchGroupsStale, strictBreaksAmbient, earlyDemux}
