package live

import (
	"cmp"
	"context"
	"encoding/base64"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// The most that EC2 takes and gives at once.
// Source: docs.aws.amazon.com/AWSEC2/latest/APIReference, "Query requests" and each action.
const (
	valuesPerFilter = 200
	ec2Page         = 1000
)

// A placeCache remembers where the cluster is: its VPC, and the instances in it.
type placeCache struct {
	node      string // the id of one node's instance; empty: not known
	mu        sync.Mutex
	vpc       string
	vpcErr    error
	asked     bool
	instances []ec2types.Instance
	read      bool
}

// askTags finds the cluster's name and VPC by one node, where nothing told it.
func (p *placeCache) askTags(ctx context.Context, s *awsSession) {
	if p.node == "" || s.Cluster != "" {
		return
	}
	out, err := s.ec2.DescribeInstances(ctx, &ec2.DescribeInstancesInput{Filters: []ec2types.Filter{filter("instance-id", p.node)}})
	if err != nil {
		return // describe-cluster says that its name isn't known
	}
	for _, r := range out.Reservations {
		for _, i := range r.Instances {
			for _, t := range i.Tags {
				name, owned := strings.CutPrefix(str(t.Key), "kubernetes.io/cluster/")
				switch {
				case str(t.Key) == "aws:eks:cluster-name", str(t.Key) == "eks:cluster-name":
					s.Cluster = str(t.Value)
				case owned && s.Cluster == "":
					s.Cluster = name
				}
			}
			p.vpc, p.asked = str(i.VpcId), true
		}
	}
}

// vpcOf is the cluster's VPC: as EKS says, else that of a node.
func (s *awsSession) vpcOf(ctx context.Context) (string, error) {
	p := &s.places
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asked {
		return p.vpc, p.vpcErr
	}
	p.asked = true
	c, err := s.describeCluster(ctx, s.Cluster)
	if err == nil && c.ResourcesVpcConfig != nil {
		p.vpc = str(c.ResourcesVpcConfig.VpcId)
		return p.vpc, nil
	}
	node := p.node
	if node == "" && s.Nodes != nil {
		for n, nodeErr := range probes.Items[corev1.Node](ctx, s.Nodes, probes.Document{Path: "nodes"}) {
			if nodeErr != nil {
				break
			}
			if i := strings.LastIndex(n.Spec.ProviderID, "/i-"); i >= 0 {
				node = n.Spec.ProviderID[i+1:]
				break
			}
		}
	}
	if node == "" {
		p.vpcErr = err
		return "", err
	}
	out, nodeErr := s.ec2.DescribeInstances(ctx, &ec2.DescribeInstancesInput{Filters: []ec2types.Filter{filter("instance-id", node)}})
	if nodeErr != nil {
		p.vpcErr = nodeErr
		return "", nodeErr
	}
	for _, r := range out.Reservations {
		for _, i := range r.Instances {
			p.vpc = str(i.VpcId)
		}
	}
	if p.vpc == "" {
		p.vpcErr = &noAWS{reason: probes.NotCaptured, detail: "the VPC of the cluster isn't known: " + failure(err)}
	}
	return p.vpc, p.vpcErr
}

func filter(name string, values ...string) ec2types.Filter {
	return ec2types.Filter{Name: &name, Values: values}
}

// narrowed calls read with the filters that keep a document to what was asked
// for, in batches, else to the cluster's VPC. Filters, not parameters: one id
// that is gone would make the whole request fail.
func (s *awsSession) narrowed(ctx context.Context, idFilter string, only []string, read func([]ec2types.Filter) error) error {
	if len(only) == 0 {
		vpc, err := s.vpcOf(ctx)
		if err != nil && isRefusal(err) {
			return read(nil) // of the whole region: whether this may be read is another right
		}
		if err != nil {
			return err
		}
		return read([]ec2types.Filter{filter("vpc-id", vpc)})
	}
	for batch := range slices.Chunk(only, valuesPerFilter) {
		if err := read([]ec2types.Filter{filter(idFilter, batch...)}); err != nil {
			return err
		}
	}
	return nil
}

func readInstances(ctx context.Context, s *awsSession, only []string, emit func(any)) error {
	var all []ec2types.Instance
	err := s.narrowed(ctx, "instance-id", only, func(f []ec2types.Filter) error {
		in := &ec2.DescribeInstancesInput{Filters: f, MaxResults: aws.Int32(ec2Page)}
		return eachPage(ctx, ec2.NewDescribeInstancesPaginator(s.ec2, in), func(out *ec2.DescribeInstancesOutput) {
			for _, r := range out.Reservations {
				all = append(all, r.Instances...)
			}
			emit(printedList("Reservations", out.Reservations, printed))
		})
	})
	if err == nil && len(only) == 0 {
		s.places.mu.Lock()
		s.places.instances, s.places.read = all, true
		s.places.mu.Unlock()
	}
	return err
}

// instances are those of the cluster's VPC that carry its name.
func (s *awsSession) instances(ctx context.Context) ([]ec2types.Instance, error) {
	s.places.mu.Lock()
	read := s.places.read
	s.places.mu.Unlock()
	if !read {
		if err := readInstances(ctx, s, nil, func(any) {}); err != nil {
			return nil, err
		}
	}
	var own []ec2types.Instance
	for _, i := range s.places.instances {
		if slices.ContainsFunc(i.Tags, func(t ec2types.Tag) bool {
			return str(t.Key) == "kubernetes.io/cluster/"+s.Cluster || strings.HasSuffix(str(t.Key), "eks:cluster-name") && str(t.Value) == s.Cluster
		}) {
			own = append(own, i)
		}
	}
	return own, nil
}

func readNetworkInterfaces(ctx context.Context, s *awsSession, only []string, emit func(any)) error {
	return s.narrowed(ctx, "network-interface-id", only, func(f []ec2types.Filter) error {
		in := &ec2.DescribeNetworkInterfacesInput{Filters: f, MaxResults: aws.Int32(ec2Page)}
		return eachPage(ctx, ec2.NewDescribeNetworkInterfacesPaginator(s.ec2, in), func(out *ec2.DescribeNetworkInterfacesOutput) {
			emit(printedList("NetworkInterfaces", out.NetworkInterfaces, printed))
		})
	})
}

func readSecurityGroups(ctx context.Context, s *awsSession, only []string, emit func(any)) error {
	return s.narrowed(ctx, "group-id", only, func(f []ec2types.Filter) error {
		in := &ec2.DescribeSecurityGroupsInput{Filters: f, MaxResults: aws.Int32(ec2Page)}
		return eachPage(ctx, ec2.NewDescribeSecurityGroupsPaginator(s.ec2, in), func(out *ec2.DescribeSecurityGroupsOutput) {
			emit(printedList("SecurityGroups", out.SecurityGroups, printed))
		})
	})
}

// readSecurityGroupRules reads the rules of groups that are named; those of the
// VPC's groups are in describe-security-groups.
func readSecurityGroupRules(ctx context.Context, s *awsSession, only []string, emit func(any)) error {
	for batch := range slices.Chunk(only, valuesPerFilter) {
		in := &ec2.DescribeSecurityGroupRulesInput{Filters: []ec2types.Filter{filter("security-group-rule-id", batch...)}, MaxResults: aws.Int32(ec2Page)}
		err := eachPage(ctx, ec2.NewDescribeSecurityGroupRulesPaginator(s.ec2, in), func(out *ec2.DescribeSecurityGroupRulesOutput) {
			emit(printedList("SecurityGroupRules", out.SecurityGroupRules, printed))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func readSubnets(ctx context.Context, s *awsSession, only []string, emit func(any)) error {
	return s.narrowed(ctx, "subnet-id", only, func(f []ec2types.Filter) error {
		in := &ec2.DescribeSubnetsInput{Filters: f, MaxResults: aws.Int32(ec2Page)}
		return eachPage(ctx, ec2.NewDescribeSubnetsPaginator(s.ec2, in), func(out *ec2.DescribeSubnetsOutput) {
			emit(printedList("Subnets", out.Subnets, printed))
		})
	})
}

func readNetworkACLs(ctx context.Context, s *awsSession, only []string, emit func(any)) error {
	return s.narrowed(ctx, "network-acl-id", only, func(f []ec2types.Filter) error {
		in := &ec2.DescribeNetworkAclsInput{Filters: f, MaxResults: aws.Int32(ec2Page)}
		return eachPage(ctx, ec2.NewDescribeNetworkAclsPaginator(s.ec2, in), func(out *ec2.DescribeNetworkAclsOutput) {
			emit(printedList("NetworkAcls", out.NetworkAcls, printed))
		})
	})
}

func readRouteTables(ctx context.Context, s *awsSession, only []string, emit func(any)) error {
	return s.narrowed(ctx, "route-table-id", only, func(f []ec2types.Filter) error {
		in := &ec2.DescribeRouteTablesInput{Filters: f, MaxResults: aws.Int32(100)}
		return eachPage(ctx, ec2.NewDescribeRouteTablesPaginator(s.ec2, in), func(out *ec2.DescribeRouteTablesOutput) {
			emit(printedList("RouteTables", out.RouteTables, printed))
		})
	})
}

func readVPCEndpoints(ctx context.Context, s *awsSession, only []string, emit func(any)) error {
	return s.narrowed(ctx, "vpc-endpoint-id", only, func(f []ec2types.Filter) error {
		in := &ec2.DescribeVpcEndpointsInput{Filters: f, MaxResults: aws.Int32(ec2Page)}
		return eachPage(ctx, ec2.NewDescribeVpcEndpointsPaginator(s.ec2, in), func(out *ec2.DescribeVpcEndpointsOutput) {
			emit(printedList("VpcEndpoints", out.VpcEndpoints, printed))
		})
	})
}

func readPrefixLists(ctx context.Context, s *awsSession, only []string, emit func(any)) error {
	in := &ec2.DescribePrefixListsInput{MaxResults: aws.Int32(ec2Page)}
	if len(only) > 0 {
		in.Filters = []ec2types.Filter{filter("prefix-list-id", only...)}
	}
	return eachPage(ctx, ec2.NewDescribePrefixListsPaginator(s.ec2, in), func(out *ec2.DescribePrefixListsOutput) {
		emit(printedList("PrefixLists", out.PrefixLists, printed))
	})
}

// readManagedPrefixLists reads the lists of customers. Their entries come from
// another call; they stand with the list under Cidrs, where
// describe-prefix-lists has those of AWS's own lists.
func readManagedPrefixLists(ctx context.Context, s *awsSession, only []string, emit func(any)) error {
	in := &ec2.DescribeManagedPrefixListsInput{MaxResults: aws.Int32(100)}
	if len(only) > 0 {
		in.Filters = []ec2types.Filter{filter("prefix-list-id", only...)}
	}
	var own []ec2types.ManagedPrefixList
	err := eachPage(ctx, ec2.NewDescribeManagedPrefixListsPaginator(s.ec2, in), func(out *ec2.DescribeManagedPrefixListsOutput) {
		for _, l := range out.PrefixLists {
			if str(l.OwnerId) != "AWS" {
				own = append(own, l)
			}
		}
	})
	if err != nil {
		return err
	}
	lists := []map[string]any{}
	for _, l := range own {
		var cidrs []string
		in := &ec2.GetManagedPrefixListEntriesInput{PrefixListId: l.PrefixListId, MaxResults: aws.Int32(100)}
		err := eachPage(ctx, ec2.NewGetManagedPrefixListEntriesPaginator(s.ec2, in), func(out *ec2.GetManagedPrefixListEntriesOutput) {
			for _, e := range out.Entries {
				cidrs = append(cidrs, str(e.Cidr))
			}
		})
		if err != nil {
			return err
		}
		shown, _ := printed(l).(map[string]any)
		shown["Cidrs"] = cidrs
		lists = append(lists, shown)
	}
	emit(map[string]any{"PrefixLists": lists})
	return nil
}

// readLaunchTemplateVersions reads the versions that instances and node groups
// of the cluster were made from, or the templates that are named.
func readLaunchTemplateVersions(ctx context.Context, s *awsSession, only []string, emit func(any)) error {
	versions := map[string][]string{} // by template
	add := func(id, version string) {
		if id != "" && version != "" && !slices.Contains(versions[id], version) {
			versions[id] = append(versions[id], version)
		}
	}
	for _, id := range only {
		add(id, "$Default")
		add(id, "$Latest")
	}
	if len(only) == 0 {
		instances, err := s.instances(ctx)
		if err != nil {
			return err
		}
		for _, i := range instances {
			tags := map[string]string{}
			for _, t := range i.Tags {
				tags[str(t.Key)] = str(t.Value)
			}
			add(tags["aws:ec2launchtemplate:id"], tags["aws:ec2launchtemplate:version"])
		}
		groups, err := s.nodeGroups(ctx)
		if err != nil {
			return err
		}
		for _, g := range groups {
			if g.LaunchTemplate != nil {
				add(str(g.LaunchTemplate.Id), str(g.LaunchTemplate.Version))
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(versions)) {
		in := &ec2.DescribeLaunchTemplateVersionsInput{LaunchTemplateId: &id, Versions: versions[id]}
		err := eachPage(ctx, ec2.NewDescribeLaunchTemplateVersionsPaginator(s.ec2, in), func(out *ec2.DescribeLaunchTemplateVersionsOutput) {
			emit(printedList("LaunchTemplateVersions", out.LaunchTemplateVersions, printed))
		})
		if err != nil && !isCode(err, "InvalidLaunchTemplateId.NotFound") && !isCode(err, "InvalidLaunchTemplateId.VersionNotFound") {
			return err
		}
	}
	return nil
}

// readImages reads the images that the cluster's instances run.
func readImages(ctx context.Context, s *awsSession, only []string, emit func(any)) error {
	if len(only) == 0 {
		instances, err := s.instances(ctx)
		if err != nil {
			return err
		}
		for _, i := range instances {
			if id := str(i.ImageId); id != "" && !slices.Contains(only, id) {
				only = append(only, id)
			}
		}
		slices.Sort(only)
	}
	for batch := range slices.Chunk(only, valuesPerFilter) {
		in := &ec2.DescribeImagesInput{Filters: []ec2types.Filter{filter("image-id", batch...)}, MaxResults: aws.Int32(ec2Page)}
		err := eachPage(ctx, ec2.NewDescribeImagesPaginator(s.ec2, in), func(out *ec2.DescribeImagesOutput) {
			emit(printedList("Images", out.Images, printed))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// A console is read of the newest instances that are running and young: those
// that may never have become nodes.
const (
	consoles   = 5
	consoleAge = 2 * time.Hour
)

func readConsoleOutput(ctx context.Context, s *awsSession, only []string, emit func(any)) error {
	if len(only) == 0 {
		instances, err := s.instances(ctx)
		if err != nil {
			return err
		}
		slices.SortFunc(instances, func(a, b ec2types.Instance) int {
			return cmp.Or(aws.ToTime(b.LaunchTime).Compare(aws.ToTime(a.LaunchTime)), strings.Compare(str(a.InstanceId), str(b.InstanceId)))
		})
		nodes := map[string]bool{}
		if s.Nodes != nil {
			for n, err := range probes.Items[corev1.Node](ctx, s.Nodes, probes.Document{Path: "nodes"}) {
				if err != nil {
					break
				}
				nodes[n.Spec.ProviderID[strings.LastIndex(n.Spec.ProviderID, "/")+1:]] = true
			}
		}
		for _, i := range instances {
			if len(only) < consoles && !nodes[str(i.InstanceId)] && time.Since(aws.ToTime(i.LaunchTime)) < consoleAge {
				only = append(only, str(i.InstanceId))
			}
		}
	}
	for _, id := range only {
		out, err := s.ec2.GetConsoleOutput(ctx, &ec2.GetConsoleOutputInput{InstanceId: &id})
		if isCode(err, "InvalidInstanceID.NotFound") {
			continue
		}
		if err != nil {
			return err
		}
		shown := map[string]any{"InstanceId": id}
		if text, err := base64.StdEncoding.DecodeString(str(out.Output)); err == nil {
			shown["Output"] = string(text)
		}
		if out.Timestamp != nil {
			shown["Timestamp"] = out.Timestamp.UTC().Format(time.RFC3339)
		}
		emit(shown)
	}
	return nil
}
