package diagnose

import (
	"context"
	"errors"
	"strings"

	ec2 "github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/pposiraegi/ppodoctor/probes"
)

// What was captured of instances, node groups and add-ons. A symptom looks at them
// in every cluster, so that they are missing is no gap of its own: the rules
// that need them to explain something say so.
var (
	knownInstances  = whereCaptured(probes.Instances)
	knownNodeGroups = whereCaptured(probes.NodeGroups)
	knownAddons     = whereCaptured(probes.Addons)
)

// whereCaptured is the list, or nil where it was not captured.
func whereCaptured[List any](p *probes.Probe[*List]) *probes.Probe[*List] {
	return &probes.Probe[*List]{
		Name: p.Name, About: p.About, Reads: p.Reads,
		Gather: func(ctx context.Context, _ probes.Source, known *probes.Facts) (*List, error) {
			list, err := p.Ask(ctx, known)
			var gap *probes.Gap
			if errors.As(err, &gap) && gap.Reason == probes.NotCaptured {
				return nil, nil
			}
			return list, err
		},
	}
}

// instanceID is the instance in a provider ID, aws:///ZONE/i-….
func instanceID(providerID string) string {
	return providerID[strings.LastIndex(providerID, "/")+1:]
}

func tagValue(tags []ec2.Tag, key string) string {
	for _, t := range tags {
		if str(t.Key) == key {
			return str(t.Value)
		}
	}
	return ""
}

func str(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}
