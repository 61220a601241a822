package diagnose

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	ec2 "github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/pposiraegi/ppodoctor/probes"
)

// What is said where no subnets fit. Sources: aws-load-balancer-controller
// pkg/networking/subnet_resolver.go; cloud-provider-aws pkg/providers/v1/aws.go.
var subnetsSay = regexp.MustCompile(`couldn't auto-discover subnets|unable to (?:discover|resolve) at least one subnet|subnets count less than minimal|could not find any suitable subnets|no matching subnets? found`)

// leastAddresses is how many free addresses a load balancer needs of a subnet.
// Source: ELB user guide, "Subnets for your load balancer".
const leastAddresses = 8

var balancerSubnetFacts = []probes.Any{probes.Subnets, probes.RouteTables, probes.EKSCluster, probes.Deployments}

// balancerSubnets: the controller finds no subnets, or too few, that are
// tagged for this kind of load balancer and this cluster.
var balancerSubnets = ofBalanced("load-balancer-subnets-not-found", "does no subnet fit that {object} may use (tag {tag})?", balancerSubnetFacts, subnetsSay,
	func(b *balanced) bool { return byAWSController(b) && b.says == "" && b.unmade && !namesSubnets(b) },
	func(facts *probes.Facts, b *balanced, m []string, s *Suspect) Answer {
		scheme, role := "internal", "kubernetes.io/role/internal-elb"
		if b.internetFacing() {
			scheme, role = "internet-facing", "kubernetes.io/role/elb"
		}
		s.Vars["tag"], s.Vars["scheme"], s.Vars["subnets"] = role, scheme, "SUBNETS"
		s.Vars["why"] = fmt.Sprintf("the controller looks for subnets tagged %s=1 in at least two zones, of which none is tagged for other clusters only", role)
		s.Vars["fix"] = fmt.Sprintf("tag the %s subnets %s=1", map[bool]string{true: "public", false: "private"}[scheme == "internet-facing"], role)
		seen := slices.Clone(b.seen)
		if m != nil && (namesSubnets(b) || b.ref.Kind == "TargetGroupBinding") {
			return Answered(true, seen...)
		}
		list, err := probes.Subnets.Of(facts)
		if m == nil {
			if d, dErr := controllerDeployment(facts); dErr != nil || d == nil || d.Status.ReadyReplicas == 0 || err != nil {
				return Answered(false, Evidence{Says: "the controller does not say so"})
			}
		}
		if err != nil {
			if strings.Contains(b.says, "other clusters") && !strings.Contains(b.says, " 0 are tagged for other clusters") {
				return CantTell(err, seen...) // the controller may have another cluster's name
			}
			return Answered(true, seen...)
		}
		c := chosenSubnets(facts, list, role)
		add := func(says string, ids []string) Answer {
			for _, id := range ids {
				s.Subjects = append(s.Subjects, Ref{Kind: "Subnet", Name: id})
			}
			s.Subjects = append(s.Subjects[1:], b.ref)
			s.Vars["why"], s.Vars["subnets"] = says, strings.Join(ids, " ")
			return Answered(true, append(seen, Saw("aws/ec2/describe-subnets", ids, "%s", says))...)
		}
		zones := map[string]bool{}
		for _, x := range c.fit {
			zones[str(x.AvailabilityZone)] = true
		}
		need := 2
		if b.service != nil {
			need = 1
		}
		switch {
		case len(zones) >= need && m == nil, len(zones) >= 2:
			return Answered(false, Saw("aws/ec2/describe-subnets", subnetIDs(c.fit), "%d subnets in %d zones fit: %s", len(c.fit), len(zones), strings.Join(subnetIDs(c.fit), ", ")))
		case len(c.foreign) > 0:
			if _, err := probes.EKSCluster.Of(facts); err != nil && c.name == "" && c.named != "" {
				return CantTell(err, seen...) // the controller may have another cluster's name
			}
			if c.named != "" && c.name != "" && c.named != c.name {
				return Answered(false, Saw("aws/ec2/describe-subnets", subnetIDs(c.foreign), "they are tagged, for cluster %s, and the controller runs for %s", c.name, c.named))
			}
			s.Vars["fix"] = fmt.Sprintf("tag them kubernetes.io/cluster/%s=shared as well, or take the tags of other clusters off", orDefault(c.name, "CLUSTER"))
			return add(fmt.Sprintf("%s are tagged for other clusters (%s), and not for %s", strings.Join(subnetIDs(c.foreign), ", "), strings.Join(c.others, ", "), orDefault(c.name, "this one")), subnetIDs(c.foreign))
		case len(c.full) > 0:
			s.Vars["fix"] = "free addresses in them, or tag larger subnets"
			return add(fmt.Sprintf("%s have fewer than %d free addresses", strings.Join(subnetIDs(c.full), ", "), leastAddresses), subnetIDs(c.full))
		case len(c.untagged) > 0:
			return add(fmt.Sprintf("of the %s subnets %s none has the tag %s", map[bool]string{true: "public", false: "private"}[scheme == "internet-facing"], strings.Join(subnetIDs(c.untagged), ", "), role), subnetIDs(c.untagged))
		}
		s.Vars["why"] = fmt.Sprintf("the VPC has no subnet for a load balancer with scheme %s, and %s asks for one", scheme, short(b.ref))
		s.Vars["fix"] = "set the scheme to the kind of subnet that there is, or make subnets of the other kind"
		return Answered(true, append(seen, Saw("aws/ec2/describe-subnets", nil, "of the %d subnets none is for %s load balancers", list.Len(), scheme))...)
	})

func namesSubnets(b *balanced) bool {
	return b.meta.Annotations["alb.ingress.kubernetes.io/subnets"] != "" || b.meta.Annotations["service.beta.kubernetes.io/aws-load-balancer-subnets"] != ""
}

func subnetIDs(list []*ec2.Subnet) []string {
	var ids []string
	for _, s := range list {
		ids = append(ids, str(s.SubnetId))
	}
	return ids
}

// A subnetChoice is the subnets as the controller sorts them.
type subnetChoice struct {
	name, named                  string // of the cluster; as the controller is told
	fit, foreign, full, untagged []*ec2.Subnet
	others                       []string // tags of other clusters
}

func chosenSubnets(facts *probes.Facts, list *probes.AWSList[ec2.Subnet], role string) subnetChoice {
	c := subnetChoice{name: clusterName(facts)}
	vpc := ""
	if cluster, err := probes.EKSCluster.Of(facts); err == nil {
		vpc = cluster.VPC.ID
	}
	if d, err := controllerDeployment(facts); err == nil && d != nil {
		c.named = flagOf(d.Spec.Template.Spec.Containers, "cluster-name")
		vpc = orDefault(vpc, flagOf(d.Spec.Template.Spec.Containers, "aws-vpc-id"))
	}
	mine := orDefault(c.named, c.name)
	for _, s := range list.All() {
		if vpc != "" && str(s.VpcId) != vpc {
			continue
		}
		var clusters []string
		tagged := false
		for _, t := range s.Tags {
			key, value := str(t.Key), str(t.Value)
			if name, ok := strings.CutPrefix(key, "kubernetes.io/cluster/"); ok {
				clusters = append(clusters, name)
			}
			tagged = tagged || key == role && (value == "1" || value == "")
		}
		switch {
		case !tagged:
			if public, known := isPublic(facts, &s); known && public == (role == "kubernetes.io/role/elb") {
				c.untagged = append(c.untagged, &s)
			}
		case len(clusters) > 0 && !slices.Contains(clusters, mine):
			c.foreign, c.others = append(c.foreign, &s), appendNew(c.others, clusters...)
		case s.AvailableIpAddressCount != nil && *s.AvailableIpAddressCount < leastAddresses:
			c.full = append(c.full, &s)
		default:
			c.fit = append(c.fit, &s)
		}
	}
	return c
}

// isPublic is whether a subnet's route table leads to an internet gateway;
// where route tables are not known, the subnet's own settings say it.
func isPublic(facts *probes.Facts, s *ec2.Subnet) (public, known bool) {
	tables, err := probes.RouteTables.Of(facts)
	if err != nil {
		if s.MapPublicIpOnLaunch != nil && *s.MapPublicIpOnLaunch {
			return true, true
		}
		name := strings.ToLower(tagValue(s.Tags, "Name"))
		return strings.Contains(name, "public"), strings.Contains(name, "public") || strings.Contains(name, "private")
	}
	var table *ec2.RouteTable
	for _, t := range tables.All() {
		for _, a := range t.Associations {
			switch {
			case str(a.SubnetId) == str(s.SubnetId):
				table = &t
			case table == nil && a.Main != nil && *a.Main && str(t.VpcId) == str(s.VpcId):
				table = &t
			}
		}
	}
	if table == nil {
		return false, false
	}
	return slices.ContainsFunc(table.Routes, func(r ec2.Route) bool { return strings.HasPrefix(str(r.GatewayId), "igw-") }), true
}

// controllerOfOtherCluster: the controller is told another cluster's name
// than the one that subnets are tagged for.
var controllerOfOtherCluster = ofBalanced("load-balancer-controller-names-another-cluster", "does the AWS Load Balancer Controller run with another cluster's name?", balancerSubnetFacts, subnetsSay, nil,
	func(facts *probes.Facts, b *balanced, _ []string, s *Suspect) Answer {
		d, err := controllerDeployment(facts)
		s.Vars["named"], s.Vars["cluster"], s.Vars["namespace"], s.Vars["deployment"] = "another name", orDefault(clusterName(facts), "this one"), "kube-system", "aws-load-balancer-controller"
		if err != nil {
			return CantTell(err, b.seen...)
		}
		if d == nil {
			return Answered(false, Saw("deployments.apps", nil, "no Deployment runs the AWS Load Balancer Controller"))
		}
		s.Vars["namespace"], s.Vars["deployment"] = d.Namespace, d.Name
		named, name := flagOf(d.Spec.Template.Spec.Containers, "cluster-name"), clusterName(facts)
		where := SawObject("deployments.apps", d.Namespace, d.Name, "Deployment %s runs with --cluster-name=%s", d.Name, named)
		if named == "" || name == "" || named == name {
			return Answered(false, where)
		}
		s.Subjects = []Ref{{Kind: "Deployment", Namespace: d.Namespace, Name: d.Name}, b.ref}
		s.Vars["named"], s.Vars["cluster"] = named, name
		evidence := append(slices.Clone(b.seen), where, Evidence{Says: "the cluster is " + name})
		if list, err := probes.Subnets.Of(facts); err == nil {
			for _, x := range list.All() {
				if tagValue(x.Tags, "kubernetes.io/cluster/"+name) != "" {
					evidence = append(evidence, Saw("aws/ec2/describe-subnets", []string{str(x.SubnetId)}, "subnet %s is tagged kubernetes.io/cluster/%s", str(x.SubnetId), name))
					break
				}
			}
		}
		return Answered(true, evidence...)
	})
