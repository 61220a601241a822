package live

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/service/eks"
	ekstypes "github.com/aws/aws-sdk-go-v2/service/eks/types"
	"golang.org/x/sync/errgroup"

	"github.com/pposiraegi/ppodoctor/probes"
)

// awsAtOnce is how many requests for single resources run at the same time.
const awsAtOnce = 8

// each reads single resources at the same time, and hands them on in order.
func each[T any](ctx context.Context, names []string, read func(context.Context, string) (T, error), take func(string, T)) error {
	found := make([]T, len(names))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(awsAtOnce)
	for i, name := range names {
		group.Go(func() error {
			one, err := read(ctx, name)
			found[i] = one
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, one := range found {
		take(names[i], one)
	}
	return nil
}

var errNoCluster = &noAWS{reason: probes.NotCaptured, detail: "the name of the EKS cluster isn't known: neither the kubeconfig nor a node's tags tell it"}

func (s *awsSession) describeCluster(ctx context.Context, name string) (*ekstypes.Cluster, error) {
	if name == "" {
		return nil, errNoCluster
	}
	out, err := s.eks.DescribeCluster(ctx, &eks.DescribeClusterInput{Name: &name})
	if err != nil {
		return nil, err
	}
	return out.Cluster, nil
}

func readCluster(ctx context.Context, s *awsSession, only []string, emit func(any)) error {
	if len(only) == 0 {
		only = []string{s.Cluster}
	}
	return each(ctx, only, s.describeCluster, func(_ string, c *ekstypes.Cluster) {
		emit(map[string]any{"cluster": printedEKS(c)})
	})
}

// nodeGroups are the cluster's managed node groups.
func (s *awsSession) nodeGroups(ctx context.Context, only ...string) ([]*ekstypes.Nodegroup, error) {
	if s.Cluster == "" {
		return nil, errNoCluster
	}
	if len(only) == 0 {
		err := eachPage(ctx, eks.NewListNodegroupsPaginator(s.eks, &eks.ListNodegroupsInput{ClusterName: &s.Cluster}), func(out *eks.ListNodegroupsOutput) {
			only = append(only, out.Nodegroups...)
		})
		if err != nil {
			return nil, err
		}
	}
	var all []*ekstypes.Nodegroup
	err := each(ctx, only, func(ctx context.Context, name string) (*ekstypes.Nodegroup, error) {
		out, err := s.eks.DescribeNodegroup(ctx, &eks.DescribeNodegroupInput{ClusterName: &s.Cluster, NodegroupName: &name})
		if err != nil {
			return nil, err
		}
		return out.Nodegroup, nil
	}, func(_ string, g *ekstypes.Nodegroup) { all = append(all, g) })
	return all, err
}

func readNodeGroups(ctx context.Context, s *awsSession, only []string, emit func(any)) error {
	groups, err := s.nodeGroups(ctx, only...)
	for _, g := range groups {
		emit(map[string]any{"nodegroup": printedEKS(g)})
	}
	return err
}

func readAddons(ctx context.Context, s *awsSession, only []string, emit func(any)) error {
	if s.Cluster == "" {
		return errNoCluster
	}
	if len(only) == 0 {
		err := eachPage(ctx, eks.NewListAddonsPaginator(s.eks, &eks.ListAddonsInput{ClusterName: &s.Cluster}), func(out *eks.ListAddonsOutput) {
			only = append(only, out.Addons...)
		})
		if err != nil {
			return err
		}
	}
	return each(ctx, only, func(ctx context.Context, name string) (*ekstypes.Addon, error) {
		out, err := s.eks.DescribeAddon(ctx, &eks.DescribeAddonInput{ClusterName: &s.Cluster, AddonName: &name})
		if err != nil {
			return nil, err
		}
		return out.Addon, nil
	}, func(_ string, a *ekstypes.Addon) { emit(map[string]any{"addon": printedEKS(a)}) })
}

func (s *awsSession) accessEntryNames(ctx context.Context) ([]string, error) {
	if s.Cluster == "" {
		return nil, errNoCluster
	}
	names := []string{}
	err := eachPage(ctx, eks.NewListAccessEntriesPaginator(s.eks, &eks.ListAccessEntriesInput{ClusterName: &s.Cluster}), func(out *eks.ListAccessEntriesOutput) {
		names = append(names, out.AccessEntries...)
	})
	return names, err
}

func readAccessEntryNames(ctx context.Context, s *awsSession, _ []string, emit func(any)) error {
	names, err := s.accessEntryNames(ctx)
	if err == nil {
		emit(map[string]any{"accessEntries": names})
	}
	return err
}

func readAccessEntries(ctx context.Context, s *awsSession, only []string, emit func(any)) error {
	if len(only) == 0 {
		var err error
		if only, err = s.accessEntryNames(ctx); err != nil {
			return err
		}
	}
	return each(ctx, only, func(ctx context.Context, arn string) (*ekstypes.AccessEntry, error) {
		out, err := s.eks.DescribeAccessEntry(ctx, &eks.DescribeAccessEntryInput{ClusterName: &s.Cluster, PrincipalArn: &arn})
		if err != nil {
			return nil, err
		}
		return out.AccessEntry, nil
	}, func(_ string, e *ekstypes.AccessEntry) { emit(map[string]any{"accessEntry": printedEKS(e)}) })
}

func (s *awsSession) associations(ctx context.Context) ([]ekstypes.PodIdentityAssociationSummary, error) {
	if s.Cluster == "" {
		return nil, errNoCluster
	}
	all := []ekstypes.PodIdentityAssociationSummary{}
	err := eachPage(ctx, eks.NewListPodIdentityAssociationsPaginator(s.eks, &eks.ListPodIdentityAssociationsInput{ClusterName: &s.Cluster}), func(out *eks.ListPodIdentityAssociationsOutput) {
		all = append(all, out.Associations...)
	})
	return all, err
}

func readAssociationNames(ctx context.Context, s *awsSession, _ []string, emit func(any)) error {
	all, err := s.associations(ctx)
	if err == nil {
		emit(printedList("associations", all, printedEKS))
	}
	return err
}

func readAssociations(ctx context.Context, s *awsSession, only []string, emit func(any)) error {
	if len(only) == 0 {
		all, err := s.associations(ctx)
		if err != nil {
			return err
		}
		for _, a := range all {
			only = append(only, str(a.AssociationId))
		}
	}
	return each(ctx, only, func(ctx context.Context, id string) (*ekstypes.PodIdentityAssociation, error) {
		out, err := s.eks.DescribePodIdentityAssociation(ctx, &eks.DescribePodIdentityAssociationInput{ClusterName: &s.Cluster, AssociationId: &id})
		if err != nil {
			return nil, err
		}
		return out.Association, nil
	}, func(_ string, a *ekstypes.PodIdentityAssociation) {
		emit(map[string]any{"association": printedEKS(a)})
	})
}
