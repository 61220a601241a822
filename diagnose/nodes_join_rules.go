package diagnose

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	ec2 "github.com/aws/aws-sdk-go-v2/service/ec2/types"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/network"
	"github.com/pposiraegi/ppodoctor/probes/userdata"
)

func newcomersOnly(n *newcomer) bool { return len(n.nodes) == 0 }

func fromClass(n *newcomer) bool { return newcomersOnly(n) && n.class != nil }

// controllerRoleForNodes: the class gives nodes the role of Karpenter's own
// controller. Source: incident join-wrong-role.
var controllerRoleForNodes = joinRule("nodeclass-has-controller-role", "is the role of {made} the one of Karpenter's controller?", []probes.Any{probes.ServiceAccounts, probes.Pods},
	fromClass, nil,
	func(facts *probes.Facts, n *newcomer) Answer {
		accounts, err := probes.ServiceAccounts.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		for _, p := range karpenterPods(facts) {
			sa := accounts.Get(p.Namespace, orDefault(p.Spec.ServiceAccountName, "default"))
			if sa == nil || sa.Annotations[probes.RoleAnnotation] == "" {
				continue
			}
			role := probes.RoleName(sa.Annotations[probes.RoleAnnotation])
			evidence := []Evidence{
				SawObject("serviceaccounts", sa.Namespace, sa.Name, "Karpenter's ServiceAccount %s/%s has role %s", sa.Namespace, sa.Name, role),
				SawObject("ec2nodeclasses.karpenter.k8s.aws", "", n.class.Name, "EC2NodeClass %s: spec.role is %s", n.class.Name, n.class.Spec.Role),
			}
			return Answered(role == probes.RoleName(n.class.Spec.Role), evidence...)
		}
		return Answered(false, SawObject("ec2nodeclasses.karpenter.k8s.aws", "", n.class.Name, "EC2NodeClass %s: spec.role is %s; Karpenter's own role isn't known", n.class.Name, n.class.Spec.Role))
	})

// profileSwapped: the instances have another instance profile than they were
// launched with, such as that of SSM's quick setup.
// Source: incident role-swapped-ssm.
var profileSwapped = joinRule("instance-profile-swapped", "do the instances of {made} have another instance profile than it gives them?", []probes.Any{probes.Instances},
	func(n *newcomer) bool { return len(n.nodes) > 0 },
	func(_ *probes.Facts, n *newcomer) []Ref {
		if n.profile == "" {
			return []Ref{n.made()}
		}
		return []Ref{{Kind: "IAMRole", Name: orDefault(n.has, n.profile)}, n.made()}
	},
	func(facts *probes.Facts, n *newcomer) Answer {
		if n.profile == "" {
			_, err := probes.Instances.Of(facts)
			return CantTell(err).With("profile", "another profile").With("right", "its own")
		}
		has := Saw("aws/ec2/describe-instances", n.ids[:1], "instance %s has instance profile %s", n.ids[0], n.profile)
		right := ""
		switch {
		case n.class != nil && orDefault(n.class.Spec.InstanceProfile, n.class.Status.InstanceProfile) != "":
			right = orDefault(n.class.Spec.InstanceProfile, n.class.Status.InstanceProfile)
		case n.role != "" && n.has != "":
			if n.has == n.role {
				return Answered(false, has, Evidence{Says: fmt.Sprintf("that profile holds role %s, which is the one of %s", n.role, short(n.made()))})
			}
			right = "one with role " + n.role
		}
		if right == "" {
			return swappedFrom(facts, n, has)
		}
		return Answered(n.profile != right, has, Evidence{Says: fmt.Sprintf("%s gives its instances %s", short(n.made()), right)}).With("profile", n.profile).With("right", right)
	})

// swappedFrom compares with the instances of the same node group that are nodes
// still, where nothing else says what profile is right.
func swappedFrom(facts *probes.Facts, n *newcomer, has Evidence) Answer {
	if strings.Contains(n.profile, "AmazonSSMRoleForInstancesQuickSetup") {
		return Answered(true, has).With("profile", n.profile).With("right", "its own")
	}
	instances, err := probes.Instances.Of(facts)
	if err != nil {
		return CantTell(err).With("profile", n.profile).With("right", "its own")
	}
	mine := instances.Get(n.ids[0])
	for _, i := range instances.All() {
		other := profileOf(&i)
		if mine != nil && other != "" && other != n.profile && tagValue(i.Tags, "eks:nodegroup-name") != "" && tagValue(i.Tags, "eks:nodegroup-name") == tagValue(mine.Tags, "eks:nodegroup-name") {
			return Answered(true, has, Saw("aws/ec2/describe-instances", []string{str(i.InstanceId)}, "instance %s of the same node group has %s", str(i.InstanceId), other)).With("profile", n.profile).With("right", other)
		}
	}
	return Answered(false, has)
}

// from are the places on the network that newcomers start from: their
// instances, or what the class would attach.
func (n *newcomer) from(facts *probes.Facts) []network.Endpoint {
	var list []network.Endpoint
	if instances, err := knownInstances.Of(facts); err == nil && instances != nil {
		for _, id := range n.ids {
			i := instances.Get(id)
			if i == nil || len(list) == maxExamples {
				continue
			}
			for _, eni := range i.NetworkInterfaces {
				if eni.Attachment == nil || eni.Attachment.DeviceIndex == nil || *eni.Attachment.DeviceIndex == 0 {
					list = append(list, network.NetworkInterface(str(eni.NetworkInterfaceId)))
				}
			}
		}
	}
	if len(list) == 0 && n.class != nil && len(n.class.Status.SecurityGroups) > 0 {
		list = append(list, network.Attached("the next node of EC2NodeClass/"+n.class.Name, classGroups(n.class)...))
	}
	return list
}

// groupsOf are the security groups that newcomers carry.
func (n *newcomer) groupsOf(facts *probes.Facts) []string {
	if instances, err := knownInstances.Of(facts); err == nil && instances != nil {
		for _, id := range n.ids {
			if i := instances.Get(id); i != nil {
				var ids []string
				for _, g := range i.SecurityGroups {
					ids = appendNew(ids, str(g.GroupId))
				}
				return ids
			}
		}
	}
	if n.class != nil {
		return classGroups(n.class)
	}
	return nil
}

var pathNeeds = []probes.Any{probes.Network, probes.Instances, probes.EKSCluster}

// apiServerClosed: what nodes need first, the API server on port 443, does not
// let them in. Source: incident join-cluster-sg-443.
var apiServerClosed = joinRule("node-cannot-reach-api-server", "can the instances of {made} not reach the API server on TCP 443?", pathNeeds,
	func(n *newcomer) bool { return true },
	func(facts *probes.Facts, n *newcomer) []Ref {
		world, err := probes.Network.Of(facts)
		if err != nil {
			return []Ref{n.made()}
		}
		for _, a := range n.toAPI(facts, world) {
			if a.Truth == network.No && !a.Partly {
				return closedSubjects(facts, world, n, a)
			}
		}
		return []Ref{n.made()}
	},
	func(facts *probes.Facts, n *newcomer) Answer {
		world, err := probes.Network.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		var open []Evidence
		var lacking []error
		for _, a := range n.toAPI(facts, world) {
			switch {
			case a.Truth == network.No && !a.Partly:
				evidence := fromHops(a.Decisive(), 3)
				if _, err := n.differs(facts, world); err != nil && n.class != nil && len(n.nodes) == 0 {
					// It is closed; whose fault that is only a comparison tells.
					return CantTell(err, evidence...).With("says", hopWords(a.Decisive())).With("groups", groupNames(world, n.groupsOf(facts)))
				}
				if mine := n.groupsOf(facts); len(mine) > 0 {
					evidence = append(evidence, Evidence{Says: fmt.Sprintf("the instances of %s carry %s", short(n.made()), groupNames(world, mine))})
				}
				return Answered(true, evidence...).With("says", hopWords(a.Decisive())).With("groups", groupNames(world, n.groupsOf(facts)))
			case a.Truth == network.Yes:
				open = append(open, fromHops(a.Decisive(), 1)...)
			default:
				for _, h := range a.Decisive() {
					lacking = append(lacking, h.Err)
				}
			}
		}
		if len(open) > 0 || len(lacking) == 0 && len(n.from(facts)) > 0 {
			return Answered(false, open...)
		}
		if peer := n.readyPeer(facts); peer != nil {
			return Answered(false, SawObject("nodes", "", peer.Name, "node %s, made in the same way, is ready", peer.Name))
		}
		unknown := CantTell(errors.Join(append(lacking, facts.Err(probes.Instances))...))
		return unknown.With("says", "whether it is open could not be read").With("groups", "the nodes' groups")
	})

// readyPeer is a node made in the same way as nodes that have fallen silent,
// and ready; nil for those that never joined.
func (n *newcomer) readyPeer(facts *probes.Facts) *corev1.Node {
	nodes, err := probes.Nodes.Of(facts)
	if err != nil || len(n.nodes) == 0 || len(n.claims) > 0 {
		return nil
	}
	for _, peer := range nodes.All() {
		class, group := peer.Labels["karpenter.k8s.aws/ec2nodeclass"], peer.Labels["eks.amazonaws.com/nodegroup"]
		c := nodeCondition(peer, corev1.NodeReady)
		if c == nil || c.Status != corev1.ConditionTrue {
			continue
		}
		if n.class != nil && class == n.class.Name || n.group != nil && group == n.group.Name {
			return peer
		}
	}
	return nil
}

func groupNames(world *network.World, ids []string) string {
	var names []string
	for _, id := range ids {
		if name := world.GroupName(id); name != "" {
			names = append(names, id+" ("+name+")")
		} else {
			names = append(names, id)
		}
	}
	return orDefault(strings.Join(names, ", "), "no group that is known")
}

// toAPI are the paths to the API server as the groups and ACLs decide them.
func (n *newcomer) toAPI(facts *probes.Facts, world *network.World) []network.Answer {
	var list []network.Answer
	for _, from := range n.from(facts) {
		list = append(list, world.Path(from, network.APIServer(), network.TCP, 443).On(network.SecurityGroups, network.NetworkACLs, network.Services))
	}
	return list
}

// closedSubjects is what a person would change: the class where it selects
// other groups than nodes that have joined carry, else what stops the packet.
func closedSubjects(facts *probes.Facts, world *network.World, n *newcomer, a network.Answer) []Ref {
	subjects := []Ref{n.made()}
	hops := a.Decisive()
	if len(hops) == 0 || len(hops[0].Names) == 0 {
		return subjects
	}
	stops := Ref{Kind: hops[0].Kind, Name: hops[0].Names[0]}
	if hops[0].Kind != "SecurityGroup" || n.class == nil || len(n.nodes) > 0 {
		// Nodes that have joined carried the right groups: a rule was taken away.
		return append([]Ref{stops}, subjects...)
	}
	if differ, _ := n.differs(facts, world); differ {
		return append(subjects, stops)
	}
	return append([]Ref{stops}, subjects...)
}

// differs is whether newcomers of a class carry none of the groups that other
// nodes, which did join, carry; the error says that this can't be told.
func (n *newcomer) differs(facts *probes.Facts, world *network.World) (bool, error) {
	nodes, err := probes.Nodes.Of(facts)
	if err != nil || n.class == nil {
		return false, err
	}
	mine := n.groupsOf(facts)
	var lacking error
	for _, other := range nodes.All() {
		if slices.Contains(n.nodes, other.Name) || other.Labels["karpenter.k8s.aws/ec2nodeclass"] == n.class.Name || other.Labels["eks.amazonaws.com/compute-type"] == "fargate" {
			continue
		}
		i, err := world.NodeInterface(other.Name)
		if err != nil || i == nil {
			lacking = errors.Join(err, facts.Err(probes.Instances))
			continue
		}
		if !slices.ContainsFunc(i.Groups, func(g string) bool { return slices.Contains(mine, g) }) {
			return true, nil
		}
		return false, nil
	}
	return false, lacking
}

// joinServices are what a node asks before it can be one.
var joinServices = []string{".ec2", ".ecr.api", ".ecr.dkr", ".sts", ".eks", ".eks-auth"}

// vpcEndpointClosed: the interface endpoint of a service that nodes need does
// not let them in: names resolve to it, and nothing comes back.
var vpcEndpointClosed = joinRule("vpc-endpoint-refuses-nodes", "does a VPC endpoint that nodes need refuse the instances of {made}?", append([]probes.Any{probes.VPCEndpoints}, pathNeeds...),
	newcomersOnly,
	func(facts *probes.Facts, n *newcomer) []Ref {
		_, _, hops, id := n.closedEndpoint(facts)
		subjects := []Ref{n.made()}
		if id != "" {
			subjects = append([]Ref{{Kind: "VPCEndpoint", Name: id}}, subjects...)
		}
		if len(hops) > 0 && len(hops[0].Names) > 0 {
			subjects = append([]Ref{{Kind: hops[0].Kind, Name: hops[0].Names[0]}}, subjects...)
		}
		return subjects
	},
	func(facts *probes.Facts, n *newcomer) Answer {
		a, name, hops, id := n.closedEndpoint(facts)
		if id == "" {
			return a
		}
		evidence := append(fromHops(hops, 2), Saw("aws/ec2/describe-vpc-endpoints", []string{id}, "%s is the endpoint of %s", id, name))
		return Answered(true, evidence...).With("service", name).With("endpoint", id).With("says", hopWords(hops))
	})

func (n *newcomer) closedEndpoint(facts *probes.Facts) (none Answer, service string, hops []network.Hop, id string) {
	endpoints, err := probes.VPCEndpoints.Of(facts)
	world, worldErr := probes.Network.Of(facts)
	if err != nil || worldErr != nil {
		// Most VPCs have none; that they were not captured makes no suspect.
		return Answered(false, Evidence{Says: "no VPC endpoints were captured"}), "", nil, ""
	}
	for _, v := range endpoints.All() {
		name := str(v.ServiceName)
		if v.VpcEndpointType != ec2.VpcEndpointTypeInterface || v.PrivateDnsEnabled == nil || !*v.PrivateDnsEnabled || !slices.ContainsFunc(joinServices, func(s string) bool { return strings.HasSuffix(name, s) }) {
			continue
		}
		for _, from := range n.from(facts) {
			a := world.Path(from, network.VPCEndpoint(str(v.VpcEndpointId)), network.TCP, 443).On(network.SecurityGroups, network.NetworkACLs)
			if a.Truth == network.No && !a.Partly {
				return Answer{}, name, a.Decisive(), str(v.VpcEndpointId)
			}
		}
	}
	return Answered(false, Saw("aws/ec2/describe-vpc-endpoints", nil, "none of the %d VPC endpoints refuses them", endpoints.Len())), "", nil, ""
}

// told is the user data of newcomers, with where it stands.
func (n *newcomer) told(facts *probes.Facts) (text string, subject Ref, from Evidence, merged bool, err error) {
	switch {
	case n.class != nil:
		family := familyOf(n)
		return n.class.Spec.UserData, n.made(), SawObject("ec2nodeclasses.karpenter.k8s.aws", "", n.class.Name, "EC2NodeClass %s: spec.userData", n.class.Name), family != "Custom", nil
	case n.group != nil && n.group.LaunchTemplate != nil:
		versions, err := probes.LaunchTemplateVersions.Of(facts)
		if err != nil {
			return "", n.made(), Evidence{}, true, err
		}
		lt := n.group.LaunchTemplate
		for _, v := range versions.All() {
			if (str(v.LaunchTemplateId) == lt.ID || str(v.LaunchTemplateName) == lt.Name) && v.VersionNumber != nil && fmt.Sprint(*v.VersionNumber) == lt.Version && v.LaunchTemplateData != nil {
				ref := Ref{Kind: "LaunchTemplate", Name: orDefault(str(v.LaunchTemplateName), lt.ID)}
				return str(v.LaunchTemplateData.UserData), ref, Saw("aws/ec2/describe-launch-template-versions", []string{lt.ID}, "launch template %s version %s: its user data", ref.Name, lt.Version), str(v.LaunchTemplateData.ImageId) == "", nil
			}
		}
	}
	return "", n.made(), Evidence{}, true, nil
}

// familyOf is the image family of newcomers, or "".
func familyOf(n *newcomer) string {
	if n.class != nil {
		for _, t := range n.class.Spec.AMISelectorTerms {
			if name, _, ok := strings.Cut(t.Alias, "@"); ok {
				return map[string]string{"al2": "AL2", "al2023": "AL2023", "bottlerocket": "Bottlerocket"}[name]
			}
		}
		return n.class.Spec.AMIFamily
	}
	if n.group != nil {
		for prefix, family := range map[string]string{"AL2_": "AL2", "AL2023": "AL2023", "BOTTLEROCKET": "Bottlerocket", "WINDOWS": "Windows", "CUSTOM": "Custom"} {
			if strings.HasPrefix(n.group.AMIType, prefix) {
				return family
			}
		}
	}
	return ""
}

var userDataNeeds = []probes.Any{probes.LaunchTemplateVersions, probes.EKSCluster}

func userDataSubjects(facts *probes.Facts, n *newcomer) []Ref {
	_, subject, _, _, _ := n.told(facts)
	if subject != n.made() {
		return []Ref{subject, n.made()}
	}
	return []Ref{subject}
}

// userDataBroken: what the instances are told when they boot can't be read as
// it is meant, so that no kubelet starts. Sources: incidents
// join-userdata-newline, join-nodeconfig-shape.
var userDataBroken = joinRule("user-data-broken", "does the user data of {made} keep the kubelet from starting?", userDataNeeds, newcomersOnly, userDataSubjects,
	func(facts *probes.Facts, n *newcomer) Answer {
		text, subject, from, merged, err := n.told(facts)
		if err != nil {
			return CantTell(err).With("says", "it could not be read")
		}
		r := userdata.Parse(text, merged)
		problems := r.Problems
		family := familyOf(n)
		if r.Family != userdata.Unknown && family != "" && family != "Custom" && string(r.Family) != family {
			problems = append(problems, fmt.Sprintf("it is written for %s, and the images are %s", familyWords[r.Family], family))
		}
		if len(problems) == 0 {
			from.Says += orDefault(map[bool]string{true: " is empty"}[text == ""], " reads as it is meant")
			return Answered(false, from)
		}
		says := strings.Join(problems, "; ")
		from.Says += ": " + says
		return Answered(true, from).With("says", says).With("subjectUserData", short(subject))
	})

var familyWords = map[userdata.Family]string{
	userdata.AL2: "AL2 (/etc/eks/bootstrap.sh)", userdata.AL2023: "AL2023 (a NodeConfig for nodeadm)", userdata.Bottlerocket: "Bottlerocket (TOML settings)", userdata.Windows: "Windows",
}

// userDataOfOtherCluster: the user data names another cluster, endpoint or
// certificate.
var userDataOfOtherCluster = joinRule("user-data-names-another-cluster", "does the user data of {made} name another cluster than this?", userDataNeeds, newcomersOnly, userDataSubjects,
	func(facts *probes.Facts, n *newcomer) Answer {
		text, _, from, merged, err := n.told(facts)
		if err != nil {
			return CantTell(err).With("says", "it could not be read")
		}
		told := userdata.Parse(text, merged).Cluster
		if told == (userdata.Cluster{}) {
			from.Says += " names no cluster"
			return Answered(false, from)
		}
		cluster, err := probes.EKSCluster.Of(facts)
		if err != nil {
			return CantTell(err).With("says", "the cluster was not described")
		}
		var wrong []string
		for _, f := range []struct{ what, told, right string }{
			{"the cluster's name", told.Name, cluster.Name}, {"the endpoint", told.Endpoint, cluster.Endpoint}, {"the service CIDR", told.CIDR, orDefault(cluster.Network.ServiceIPv4CIDR, cluster.Network.ServiceIPv6CIDR)},
		} {
			if f.told != "" && f.right != "" && !strings.Contains(f.told, "$") && !strings.EqualFold(strings.TrimSuffix(f.told, "/"), f.right) {
				wrong = append(wrong, fmt.Sprintf("%s is %s there; the cluster has %s", f.what, f.told, f.right))
			}
		}
		says := strings.Join(wrong, "; ")
		from.Says += ": " + orDefault(says, "it names this cluster")
		return Answered(len(wrong) > 0, from).With("says", says)
	})

var unregisteredTaint = regexp.MustCompile(`missing required startup taint,? "?karpenter\.sh/unregistered|UnregisteredTaintMissing`)

// imageLacksTaint: the image's own bootstrap joins the cluster without the
// taint by which Karpenter knows its nodes.
// Source: incident custom-ami-unregistered.
var imageLacksTaint = joinRule("custom-image-lacks-unregistered-taint", "did a node of {made} join without the taint karpenter.sh/unregistered?", []probes.Any{karpenterSays}, fromClass, nil,
	func(facts *probes.Facts, n *newcomer) Answer {
		says, err := karpenterSays.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		for _, s := range says.of(n.class.Name) {
			if unregisteredTaint.MatchString(s.text) {
				return Answered(true, s.from, SawObject("ec2nodeclasses.karpenter.k8s.aws", "", n.class.Name, "EC2NodeClass %s: amiFamily is %q", n.class.Name, familyOf(n)))
			}
		}
		return Answered(false, SawObject("ec2nodeclasses.karpenter.k8s.aws", "", n.class.Name, "nothing says that nodes of EC2NodeClass %s join without it", n.class.Name))
	})

// instanceDied: EC2 ended the instance as soon as it was made, which is what a
// key that may not be used looks like. Source: incident kms-default-key.
var instanceDied = joinRule("instance-ends-at-launch", "did EC2 end the instances of {made} at once, for their encrypted volumes?", []probes.Any{probes.Instances}, newcomersOnly,
	func(_ *probes.Facts, n *newcomer) []Ref {
		refs, _, _ := keySubject(classCase{class: n.class, name: n.made().Name})
		if n.class == nil {
			refs = []Ref{refs[0], n.made()}
		}
		return refs
	},
	func(facts *probes.Facts, n *newcomer) Answer {
		_, vars, evidence := keySubject(classCase{class: n.class, name: n.made().Name})
		instances, err := probes.Instances.Of(facts)
		if err != nil {
			return CantTell(err).With("key", vars["key"]).With("says", "what became of them could not be read")
		}
		var pool string
		for _, e := range n.effects {
			if e.Rule == nodeClaimNotRegistered {
				pool = e.Vars["pool"]
			}
		}
		for _, i := range instances.All() {
			mine := slices.Contains(n.ids, str(i.InstanceId)) || pool != "" && tagValue(i.Tags, "karpenter.sh/nodepool") == pool
			if !mine || i.State == nil || i.State.Name == ec2.InstanceStateNameRunning || i.StateReason == nil {
				continue
			}
			code := str(i.StateReason.Code)
			if strings.HasPrefix(code, "Client.InternalError") || strings.Contains(code, "KMS") {
				says := fmt.Sprintf("instance %s is %s: %s: %s", str(i.InstanceId), i.State.Name, code, str(i.StateReason.Message))
				return Answered(true, append([]Evidence{Saw("aws/ec2/describe-instances", []string{str(i.InstanceId)}, "%s", says)}, evidence...)...).With("key", vars["key"]).With("says", says)
			}
		}
		return Answered(false, Saw("aws/ec2/describe-instances", nil, "no instance of it ended with Client.InternalError"))
	})

// namesDiffer: the subnet names instances after their id, and Bottlerocket
// names the node after its address: the API server refuses a kubelet that
// speaks for another name. Source: incident join-rbn-bottlerocket.
var namesDiffer = joinRule("node-name-differs-from-dns-name", "do the subnets of {made} name instances otherwise than their nodes?", []probes.Any{probes.Subnets, probes.Instances}, newcomersOnly,
	func(facts *probes.Facts, n *newcomer) []Ref {
		if ids := n.resourceNamed(facts); len(ids) > 0 {
			return []Ref{{Kind: "Subnet", Name: ids[0]}, n.made()}
		}
		return []Ref{n.made()}
	},
	func(facts *probes.Facts, n *newcomer) Answer {
		if family := familyOf(n); family != "Bottlerocket" {
			return Answered(false, Evidence{Says: fmt.Sprintf("the images of %s are not Bottlerocket but %s", short(n.made()), orDefault(family, "unknown"))})
		}
		ids := n.resourceNamed(facts)
		if len(ids) == 0 {
			return Answered(false, Saw("aws/ec2/describe-subnets", nil, "no subnet of them is known to name instances after their id"))
		}
		return Answered(true, Saw("aws/ec2/describe-subnets", ids, "subnets %s have PrivateDnsNameOptionsOnLaunch.HostnameType=resource-name: instances are called i-…", strings.Join(ids, ", "))).With("subnets", strings.Join(ids, ", "))
	})

// resourceNamed are the subnets of newcomers that name instances after their id.
func (n *newcomer) resourceNamed(facts *probes.Facts) []string {
	subnets, err := probes.Subnets.Of(facts)
	if err != nil {
		return nil
	}
	var mine []string
	if instances, err := probes.Instances.Of(facts); err == nil {
		for _, id := range n.ids {
			if i := instances.Get(id); i != nil {
				mine = appendNew(mine, str(i.SubnetId))
			}
		}
	}
	if len(mine) == 0 && n.class != nil {
		for _, s := range n.class.Status.Subnets {
			mine = append(mine, s.ID)
		}
	}
	var ids []string
	for _, id := range mine {
		if s := subnets.Get(id); s != nil && s.PrivateDnsNameOptionsOnLaunch != nil && s.PrivateDnsNameOptionsOnLaunch.HostnameType == ec2.HostnameTypeResourceName {
			ids = append(ids, id)
		}
	}
	return ids
}

// joinUnexplained: an instance runs and is no node; what would say why is on
// the instance.
var joinUnexplained = joinRule("node-never-joined", "what does the console of the instances of {made} say?", []probes.Any{probes.Consoles}, newcomersOnly, nil,
	func(facts *probes.Facts, n *newcomer) Answer {
		consoles, err := probes.Consoles.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		var evidence []Evidence
		for _, id := range n.ids {
			c := consoles.Get(id)
			if c == nil {
				continue
			}
			for _, line := range strings.Split(c.Text, "\n") {
				if telling.MatchString(line) && len(evidence) < maxExamples {
					evidence = append(evidence, Saw("aws/ec2/get-console-output", []string{id}, "console of %s: %s", id, abridged(strings.TrimSpace(line), 300)))
				}
			}
		}
		return CantTell(nil, evidence...)
	})

// telling are lines of a boot that say why no kubelet came up.
var telling = regexp.MustCompile(`Unauthorized|i/o timeout|x509:|no such host|Command failed|is missing in cluster configuration|cgroup driver|Error PATCHing|Failed to start|not allowed to modify node|AVC|denied`)

var joinRules = []*Rule{
	controllerRoleForNodes, profileSwapped, apiServerClosed, vpcEndpointClosed, userDataBroken, userDataOfOtherCluster, imageLacksTaint, instanceDied, namesDiffer, joinUnexplained,
}
