package diagnose

import (
	"fmt"
	"slices"
	"strings"

	ec2 "github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/network"
)

// originGroups are the security groups of an origin.
func originGroups(world *network.World, o *origin) []string {
	if len(o.pods) > 0 {
		if groups, _, err := world.GroupsOfPod(o.pods[0]); err == nil {
			return groups
		}
	}
	if o.class != nil {
		return classGroups(o.class)
	}
	return nil
}

func dnsGroups(world *network.World, dns *clusterDNS) []string {
	var all []string
	for _, p := range dns.pods {
		groups, _, err := world.GroupsOfPod(p)
		if err == nil {
			all = append(all, groups...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// nameGroups names groups with what they are: "sg-1 (eks-cluster-sg-x, the
// cluster primary security group)".
func nameGroups(world *network.World, ids []string) string {
	var names []string
	for _, id := range ids {
		var more []string
		if name := world.GroupName(id); name != "" {
			more = append(more, name)
		}
		if len(world.Cluster.All) > 0 && world.Cluster.All[0].PrimaryGroup == id {
			more = append(more, "the cluster primary security group")
		}
		if len(more) > 0 {
			id += " (" + strings.Join(more, ", ") + ")"
		}
		names = append(names, id)
	}
	if len(names) == 0 {
		return "groups that are not known"
	}
	return strings.Join(names, " and ")
}

// describeGroups says which groups stand on either side and how they got there.
func describeGroups(facts *probes.Facts, world *network.World, dns *clusterDNS, o *origin) []Evidence {
	mine, theirs := originGroups(world, o), dnsGroups(world, dns)
	var list []Evidence
	if o.class != nil {
		list = append(list, SawObject("ec2nodeclasses.karpenter.k8s.aws", "", o.class.Name,
			"EC2NodeClass/%s selects security groups by %s and gets %s", o.class.Name, selectorWords(o.class), nameGroups(world, classGroups(o.class))))
	}
	if len(o.nodes) > 0 {
		list = append(list, Saw("aws/ec2/describe-network-interfaces", nil, "nodes with failing pods (%s) carry %s", strings.Join(o.nodes, ", "), nameGroups(world, mine)))
	}
	var where []string
	for _, p := range dns.pods {
		if p.Spec.NodeName != "" && !slices.Contains(where, p.Spec.NodeName) {
			where = append(where, p.Spec.NodeName)
		}
	}
	list = append(list, Saw("aws/ec2/describe-network-interfaces", nil, "CoreDNS runs on %s, which carry %s", strings.Join(where, ", "), nameGroups(world, theirs)))
	list = append(list, tagEvidence(facts, world, o, theirs)...)
	return list
}

func selectorWords(c *probes.EC2NodeClass) string {
	var words []string
	for _, t := range c.Spec.SecurityGroupSelectorTerms {
		switch {
		case t.ID != "":
			words = append(words, "id "+t.ID)
		case t.Name != "":
			words = append(words, "name "+t.Name)
		}
		for _, k := range sortedKeys(t.Tags) {
			words = append(words, "tag "+k+"="+t.Tags[k])
		}
	}
	return strings.Join(words, ", ")
}

// tagEvidence says on which groups the selector's tags sit.
func tagEvidence(facts *probes.Facts, world *network.World, o *origin, theirs []string) []Evidence {
	groups, err := probes.SecurityGroups.Of(facts)
	if err != nil || o.class == nil {
		return nil
	}
	var list []Evidence
	for _, t := range o.class.Spec.SecurityGroupSelectorTerms {
		for _, k := range sortedKeys(t.Tags) {
			var with []string
			for _, g := range groups.All() {
				if hasTag(g.Tags, k, t.Tags[k]) {
					with = append(with, *g.GroupId)
				}
			}
			without := slices.DeleteFunc(slices.Clone(theirs), func(id string) bool { return slices.Contains(with, id) })
			if len(with) > 0 && len(without) > 0 {
				list = append(list, Saw("aws/ec2/describe-security-groups", append(slices.Clone(with), without...),
					"the tag %s=%s sits on %s, not on %s", k, t.Tags[k], nameGroups(world, with), nameGroups(world, without)))
			}
		}
	}
	return list
}

func hasTag(tags []ec2.Tag, key, value string) bool {
	return slices.ContainsFunc(tags, func(t ec2.Tag) bool {
		return t.Key != nil && *t.Key == key && (value == "*" || t.Value != nil && *t.Value == value)
	})
}

// groupVars are what the texts say of the two sides.
func groupVars(facts *probes.Facts, world *network.World, dns *clusterDNS, o *origin, blocked network.Answer) map[string]string {
	mine, theirs := originGroups(world, o), dnsGroups(world, dns)
	v := map[string]string{
		"mine": nameGroups(world, mine), "theirs": nameGroups(world, theirs), "dnsService": dns.service.Namespace + "/" + dns.service.Name,
		"tagKey": "KEY", "tagValue": "VALUE", "right": first(theirs), "wrong": first(mine), "share": "all",
		"rule": "aws ec2 authorize-security-group-ingress --group-id " + first(theirs) + " --ip-permissions IpProtocol=udp,FromPort=53,ToPort=53,UserIdGroupPairs=[{GroupId=" + first(mine) + "}]",
	}
	for _, h := range blocked.Decisive() {
		if h.Fix != "" {
			v["rule"] = h.Fix
			break
		}
	}
	if o.class != nil {
		for _, t := range o.class.Spec.SecurityGroupSelectorTerms {
			for _, k := range sortedKeys(t.Tags) {
				v["tagKey"], v["tagValue"] = k, t.Tags[k]
			}
		}
	}
	v["pinKey"], v["pinValue"] = "kubernetes.io/hostname", "NODE"
	if len(o.nodes) > 0 {
		v["pinValue"] = o.nodes[0]
	}
	nodes, err := probes.Nodes.Of(facts)
	if err == nil && len(o.nodes) > 0 {
		if n := nodes.Get("", o.nodes[0]); n != nil {
			for _, key := range []string{"karpenter.sh/nodepool", "eks.amazonaws.com/nodegroup"} {
				if value := n.Labels[key]; value != "" {
					v["pinKey"], v["pinValue"] = key, value
					v["mine"] += fmt.Sprintf(" (%s %s)", strings.TrimPrefix(key[strings.Index(key, "/"):], "/"), value)
					break
				}
			}
		}
	}
	return v
}

func first(list []string) string {
	if len(list) == 0 {
		return "GROUP"
	}
	return list[0]
}
