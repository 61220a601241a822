package probes

import (
	"context"
	"encoding/json"
	"fmt"

	ec2 "github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/pposiraegi/ppodoctor/probes/network"
)

// SecurityGroups are security groups with their rules.
var SecurityGroups = described("ec2/describe-security-groups", "SecurityGroups", "security groups with their rules and tags",
	func(g *ec2.SecurityGroup) string { return deref(g.GroupId) })

// SecurityGroupRules are the rules of security groups, one by one.
var SecurityGroupRules = described("ec2/describe-security-group-rules", "SecurityGroupRules", "the rules of security groups, one by one",
	func(r *ec2.SecurityGroupRule) string { return deref(r.SecurityGroupRuleId) })

// PrefixLists are prefix lists with their entries. A list whose entries were
// not captured is not among them.
var PrefixLists = &Probe[*AWSList[network.PrefixList]]{
	Name:  "prefix-lists",
	About: "prefix lists with the address blocks in them",
	Reads: []Permission{{Action: "ec2:DescribePrefixLists"}, {Action: "ec2:DescribeManagedPrefixLists"}, {Action: "ec2:GetManagedPrefixListEntries"}},
	Gather: func(ctx context.Context, src Source, _ *Facts) (*AWSList[network.PrefixList], error) {
		var lists []network.PrefixList
		read := func(fields map[string]json.RawMessage) error {
			var some []ec2.PrefixList
			if raw := fields["PrefixLists"]; raw != nil {
				if err := json.Unmarshal(raw, &some); err != nil {
					return err
				}
			}
			for _, l := range some {
				if len(l.Cidrs) > 0 {
					lists = append(lists, network.PrefixList{ID: deref(l.PrefixListId), CIDRs: l.Cidrs})
				}
			}
			return nil
		}
		// describe-prefix-lists has the entries of AWS's own lists; the other
		// command prints the same key without entries.
		err := eachAWS(ctx, src, Document{Path: "aws/ec2/describe-prefix-lists"}, read)
		other := eachAWS(ctx, src, Document{Path: "aws/ec2/describe-managed-prefix-lists"}, read)
		if err != nil && other != nil {
			return nil, fmt.Errorf("prefix lists: %w", err)
		}
		return newAWSList(lists, func(l *network.PrefixList) string { return l.ID }), nil
	},
}
