package diagnose

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	ec2 "github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/pposiraegi/ppodoctor/probes"
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
