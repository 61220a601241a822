package probes

import (
	"context"
	"encoding/json"

	ec2 "github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// Instances are EC2 instances, those that have ended included.
var Instances = &Probe[*AWSList[ec2.Instance]]{
	Name:  "instances",
	About: "EC2 instances with their state, network interfaces and metadata options",
	Reads: []Permission{{Action: "ec2:DescribeInstances"}},
	Gather: func(ctx context.Context, src Source, _ *Facts) (*AWSList[ec2.Instance], error) {
		var all []ec2.Instance
		err := eachAWS(ctx, src, Document{Path: "aws/ec2/describe-instances"}, func(fields map[string]json.RawMessage) error {
			var some []ec2.Reservation
			if raw := fields["Reservations"]; raw != nil {
				if err := json.Unmarshal(raw, &some); err != nil {
					return err
				}
			}
			for _, r := range some {
				all = append(all, r.Instances...)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		return newAWSList(all, func(i *ec2.Instance) string { return deref(i.InstanceId) }), nil
	},
}
