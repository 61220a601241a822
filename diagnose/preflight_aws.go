package diagnose

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	ec2 "github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/iampolicy"
	"github.com/pposiraegi/ppodoctor/probes/network"
)

// account asks for the role of the ServiceAccount and what it may do.
func (p *preflight) account() {
	if p.of.Account == "" {
		return
	}
	need := "AWS role"
	ns, name := p.where(), p.of.Account
	if pod := p.pod(); pod != nil && pod.Spec.ServiceAccountName != "" {
		name = pod.Spec.ServiceAccountName
	}
	accounts, err := probes.ServiceAccounts.Of(p.facts)
	if err != nil {
		p.cantTell(need, err)
		return
	}
	id := probes.IdentityOf(p.facts)
	sa := accounts.Get(ns, name)
	chain := id.PodIdentity(ns, name)
	role := ""
	if sa != nil && sa.Annotations[probes.RoleAnnotation] != "" {
		chain, role = id.IRSA(sa), sa.Annotations[probes.RoleAnnotation]
	} else if id.AssocErr == nil {
		if a := id.Associations.Of(ns, name); a != nil {
			role = a.RoleARN
		}
	}
	for _, s := range chain {
		switch {
		case s.Err != nil:
			p.cantTell(need, s.Err)
			return
		case !s.Holds:
			p.add(need, NeedUnmet, s.Says, fmt.Sprintf("make a role that trusts system:serviceaccount:%s:%s, with the policy of the guide, and name it: aws eks create-pod-identity-association --cluster-name %s --namespace %s --service-account %s --role-arn ROLE; or the annotation eks.amazonaws.com/role-arn", ns, name, p.clusterName(), ns, name))
			return
		}
	}
	p.add(need, NeedMet, fmt.Sprintf("ServiceAccount %s/%s takes role %s", ns, name, probes.RoleName(role)), "")
	p.actions(role)
}

// actions asks whether the role may do what the component can't work without.
// Only what doesn't hang on conditions and single resources is judged here.
func (p *preflight) actions(role string) {
	solver, err := probes.Permissions.Of(p.facts)
	component := p.knowledge.Component(p.of.Permissions)
	if err != nil || component == nil {
		return
	}
	vars := map[string]string{"cluster": p.clusterName()}
	if parts := strings.Split(role, ":"); len(parts) == 6 {
		vars["partition"], vars["account"] = parts[1], parts[4]
	}
	if c, err := probes.EKSCluster.Of(p.facts); err == nil {
		if parts := strings.Split(c.ARN, ":"); len(parts) == 6 {
			vars["region"] = parts[3]
		}
	}
	var denied []string
	asked := 0
	for _, call := range component.Calls {
		if !call.Blocks || call.When != "" || call.Until != "" || len(call.Resources) == 0 || call.Resources[0] != "*" {
			continue
		}
		for _, action := range call.Actions {
			ruling, err := solver.May(role, action, "*", component.Context(call, "", vars))
			switch {
			case err != nil:
				p.cantTell("AWS actions", err)
				return
			case ruling.Effect == iampolicy.ImplicitDeny || ruling.Effect == iampolicy.ExplicitDeny:
				denied = append(denied, action)
			}
			asked++
		}
	}
	if asked > 0 {
		p.decide(len(denied) == 0, "AWS actions", fmt.Sprintf("of %d actions without which it can't work, role %s is denied: %s", asked, probes.RoleName(role), listed(denied)), "allow "+strings.Join(denied, ", ")+" in a policy of role "+probes.RoleName(role))
	}
}

// nodes asks for what Karpenter's node classes find, and whether their nodes
// would be let in.
func (p *preflight) nodes() {
	if !slices.Contains(p.of.Discovers, "nodes") {
		return
	}
	classes, err := probes.EC2NodeClasses.Of(p.facts)
	if err != nil {
		p.cantTell("node classes", err)
		return
	}
	subnets, subnetsErr := probes.Subnets.Of(p.facts)
	groups, groupsErr := probes.SecurityGroups.Of(p.facts)
	if classes.Len() == 0 {
		p.discoverable(subnets, subnetsErr, groups, groupsErr)
	}
	for _, c := range classes.All() {
		subject := "EC2NodeClass " + c.Name + ": "
		need := subject + "subnets"
		switch found := selected(c.Spec.SubnetSelectorTerms, subnets, func(s ec2.Subnet) (string, string, []ec2.Tag) { return *s.SubnetId, "", s.Tags }); {
		case subnetsErr != nil:
			p.cantTell(need, subnetsErr)
		default:
			free, zones := 0, []string{}
			for _, s := range found {
				if s.AvailableIpAddressCount != nil {
					free += int(*s.AvailableIpAddressCount)
				}
				if s.AvailabilityZone != nil && !slices.Contains(zones, *s.AvailabilityZone) {
					zones = append(zones, *s.AvailabilityZone)
				}
			}
			slices.Sort(zones)
			missing := p.zonesWithout(c.Name, zones)
			p.decide(len(found) > 0 && free > 0 && len(missing) == 0, need, fmt.Sprintf("its selector finds %d subnets in %s, with %d free addresses; zones that its NodePools ask for and that have none: %s", len(found), listed(zones), free, listed(missing)),
				"tag a private subnet in each zone as the selector asks ("+termsWords(c.Spec.SubnetSelectorTerms)+"), or add subnets with free addresses")
		}
		need = subject + "security groups"
		if groupsErr != nil {
			p.cantTell(need, groupsErr)
		} else {
			found := selected(c.Spec.SecurityGroupSelectorTerms, groups, func(g ec2.SecurityGroup) (string, string, []ec2.Tag) { return *g.GroupId, *g.GroupName, g.Tags })
			var ids, tagged []string
			for _, g := range found {
				ids = append(ids, *g.GroupId)
				if hasTag(g.Tags, "kubernetes.io/cluster/"+p.clusterName(), "*") {
					tagged = append(tagged, *g.GroupId)
				}
			}
			p.decide(len(found) > 0 && len(tagged) <= 1, need, fmt.Sprintf("its selector finds %s; tagged kubernetes.io/cluster/%s: %s", listed(ids), p.clusterName(), listed(tagged)),
				"tag one security group as the selector asks ("+termsWords(c.Spec.SecurityGroupSelectorTerms)+"); at most one group of a node may carry the cluster's tag")
		}
		if c.Spec.Role == "" {
			continue
		}
		role := probes.RoleName(c.Spec.Role)
		met := true
		for _, s := range mapping(p.facts, role) {
			if s.Err != nil {
				p.cantTell(subject+"access of role "+role, s.Err)
				met = false
				break
			}
			if !s.Holds {
				p.add(subject+"access of role "+role, NeedUnmet, s.Says, fmt.Sprintf("aws eks create-access-entry --cluster-name %s --principal-arn %s --type EC2_LINUX", p.clusterName(), arnOf(p.facts, role)))
				met = false
				break
			}
		}
		if met {
			p.add(subject+"access of role "+role, NeedMet, "the cluster lets nodes with role "+role+" in", "")
		}
	}
}

// discoverable asks, where there is no node class yet, for the tags by which
// Karpenter's guide has subnets and groups found. The module terraform-aws-eks
// puts them on the nodes' group only if it is told to, and never on the
// cluster's own.
func (p *preflight) discoverable(subnets *probes.AWSList[ec2.Subnet], subnetsErr error, groups *probes.AWSList[ec2.SecurityGroup], groupsErr error) {
	tag, name := "karpenter.sh/discovery", p.clusterName()
	if subnetsErr != nil {
		p.cantTell("subnets to discover", subnetsErr)
	} else {
		var zones []string
		for _, s := range subnets.All() {
			if hasTag(s.Tags, tag, name) && s.AvailabilityZone != nil && !slices.Contains(zones, *s.AvailabilityZone) {
				zones = append(zones, *s.AvailabilityZone)
			}
		}
		slices.Sort(zones)
		p.decide(len(zones) > 0, "subnets to discover", fmt.Sprintf("subnets tagged %s=%s lie in: %s", tag, name, listed(zones)), fmt.Sprintf("aws ec2 create-tags --resources PRIVATE_SUBNETS --tags Key=%s,Value=%s", tag, name))
	}
	if groupsErr != nil {
		p.cantTell("security group to discover", groupsErr)
		return
	}
	var tagged []string
	for _, g := range groups.All() {
		if hasTag(g.Tags, tag, name) {
			tagged = append(tagged, *g.GroupId)
		}
	}
	p.decide(len(tagged) == 1, "security group to discover", fmt.Sprintf("security groups tagged %s=%s: %s; nodes get all of them", tag, name, listed(tagged)), fmt.Sprintf("tag exactly one group, the one that the other nodes have: aws ec2 create-tags --resources GROUP --tags Key=%s,Value=%s", tag, name))
}

// zonesWithout are the zones that the NodePools of a class ask for, of which
// its subnets lie in none.
func (p *preflight) zonesWithout(class string, have []string) []string {
	pools, err := probes.NodePools.Of(p.facts)
	if err != nil {
		return nil
	}
	var missing []string
	for _, pool := range pools.All() {
		if pool.Spec.Template.Spec.NodeClassRef.Name != class {
			continue
		}
		for _, r := range pool.Spec.Template.Spec.Requirements {
			if r.Key != "topology.kubernetes.io/zone" || r.Operator != "In" {
				continue
			}
			for _, z := range r.Values {
				if !slices.Contains(have, z) && !slices.Contains(missing, z) {
					missing = append(missing, z)
				}
			}
		}
	}
	slices.Sort(missing)
	return missing
}

// selected are the things that one of the terms matches.
func selected[T any](terms []probes.SelectorTerm, list *probes.AWSList[T], of func(T) (id, name string, tags []ec2.Tag)) []T {
	var found []T
	if list == nil {
		return nil
	}
	for _, item := range list.All() {
		id, name, tags := of(item)
		if slices.ContainsFunc(terms, func(t probes.SelectorTerm) bool {
			if t.ID != "" && t.ID != id || t.Name != "" && t.Name != name || t.ID == "" && t.Name == "" && len(t.Tags) == 0 {
				return false
			}
			for k, v := range t.Tags {
				if !hasTag(tags, k, v) {
					return false
				}
			}
			return true
		}) {
			found = append(found, item)
		}
	}
	return found
}

func termsWords(terms []probes.SelectorTerm) string {
	var words []string
	for _, t := range terms {
		for _, k := range slices.Sorted(maps.Keys(t.Tags)) {
			words = append(words, k+"="+t.Tags[k])
		}
		words = append(words, strings.Fields(t.ID+" "+t.Name)...)
	}
	return listed(words)
}

func (p *preflight) loadBalancers() {
	if !slices.Contains(p.of.Discovers, "load-balancers") {
		return
	}
	subnets, err := probes.Subnets.Of(p.facts)
	if err != nil {
		p.cantTell("subnets for load balancers", err)
		return
	}
	zones := map[string][]string{}
	for _, s := range subnets.All() {
		for _, role := range []string{"kubernetes.io/role/elb", "kubernetes.io/role/internal-elb"} {
			if hasTag(s.Tags, role, "*") && s.AvailabilityZone != nil && !slices.Contains(zones[role], *s.AvailabilityZone) {
				zones[role] = append(zones[role], *s.AvailabilityZone)
			}
		}
	}
	for _, list := range zones {
		slices.Sort(list)
	}
	public, internal := zones["kubernetes.io/role/elb"], zones["kubernetes.io/role/internal-elb"]
	p.decide(len(public) > 1 || len(internal) > 1, "subnets for load balancers", fmt.Sprintf("tagged kubernetes.io/role/elb in %s, kubernetes.io/role/internal-elb in %s; an ALB needs two zones", listed(public), listed(internal)),
		"aws ec2 create-tags --resources SUBNETS --tags Key=kubernetes.io/role/elb,Value=1 (public), Key=kubernetes.io/role/internal-elb,Value=1 (private)")
}

// webhook asks whether the control plane reaches the component's pods.
func (p *preflight) webhook() {
	pod := p.pod()
	if p.of.Webhook == 0 || pod == nil {
		return // where its pods will be is not known yet
	}
	need := fmt.Sprintf("port %d from the control plane", p.of.Webhook)
	world, err := probes.Network.Of(p.facts)
	if err != nil {
		p.cantTell(need, err)
		return
	}
	a := world.Path(network.APIServer(), network.Pod(pod.Namespace, pod.Name), network.TCP, p.of.Webhook)
	switch a.Truth {
	case network.Yes:
		p.add(need, NeedMet, fmt.Sprintf("the API server reaches pod %s on %d", pod.Name, p.of.Webhook), "")
	case network.No:
		p.add(need, NeedUnmet, a.Says(), fmt.Sprintf("let the cluster's security group in on TCP %d at the nodes' group", p.of.Webhook))
	default:
		p.cantTell(need, a.Err())
	}
}
