package diagnose

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/iampolicy"
)

// maxSimulated bounds how many refused calls are put to IAM's simulator, which
// answers few requests a second.
const maxSimulated = 12

// refusedSimulated is what IAM's simulator says of the calls that were
// refused: it knows organization policies, which no read of a role shows. A
// running cluster is asked; a snapshot has what was captured.
var refusedSimulated = &probes.Probe[[]probes.Simulation]{
	Name: "refused-simulations", About: "what IAM's policy simulator says of the calls that AWS refused",
	Reads: probes.Simulations.Reads, After: []probes.Any{probes.Denials, probes.ServiceAccounts, probes.EKSCluster, probes.EC2NodeClasses},
	Gather: func(ctx context.Context, src probes.Source, known *probes.Facts) ([]probes.Simulation, error) {
		var calls []probes.Call
		for _, r := range byRole(known) {
			for _, d := range r.denials {
				if !judgedByPolicies(d) {
					continue
				}
				for _, q := range requestsOf(known, d) {
					if len(calls) < maxSimulated {
						calls = append(calls, probes.Call{Role: r.role, Action: q.Action, Resource: q.Resource, Context: q.Context})
					}
				}
			}
		}
		if len(calls) == 0 {
			return nil, nil
		}
		sims, _ := probes.Simulate(ctx, src, calls) // without them, policies are evaluated
		return sims, nil
	},
}

// simulateCommand is how IAM's simulator is asked for a refused call, with the
// context that the call really carries.
func simulateCommand(role string, requests []callRequest) string {
	first := requests[0]
	var resources []string
	for _, q := range requests {
		if q.Action == first.Action && q.Resource != "*" && contextEntries(q.Request) == contextEntries(first.Request) {
			resources = appendNew(resources, "'"+q.Resource+"'")
		}
	}
	command := fmt.Sprintf("aws iam simulate-principal-policy --policy-source-arn $(aws iam get-role --role-name %s --query Role.Arn --output text) --action-names %s", role, first.Action)
	if len(resources) > 0 {
		command += " --resource-arns " + strings.Join(resources, " ")
	}
	return command + contextEntries(first.Request)
}

func contextEntries(q iampolicy.Request) string {
	if len(q.Context) == 0 {
		return ""
	}
	var entries []string
	for _, key := range slices.Sorted(maps.Keys(q.Context)) {
		kind, values := "string", q.Context[key]
		if len(values) > 1 || strings.EqualFold(key, "aws:TagKeys") {
			kind = "stringList"
		}
		entries = append(entries, fmt.Sprintf("'ContextKeyName=%s,ContextKeyType=%s,ContextKeyValues=%s'", key, kind, strings.Join(values, ",")))
	}
	return " --context-entries " + strings.Join(entries, " ")
}
