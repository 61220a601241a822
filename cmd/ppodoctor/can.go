package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/iampolicy"
)

func newCan() *cobra.Command {
	in := &input{}
	var format string
	var verbose bool
	var sent []string
	cmd := &cobra.Command{
		Use:   "can ROLE|serviceaccount/NAMESPACE/NAME ACTION [RESOURCE]",
		Short: "Tell whether AWS lets a role or a service account do something, and what decides it",
		Long: `Tell whether AWS lets a role, or the role of a service account, do something,
and name the statement that decides. A service account is followed by IRSA or
EKS Pod Identity: annotation or association, role, OIDC provider, trust policy.

In a running cluster IAM's simulator is asked, which also sees service control
policies; a snapshot's policies are evaluated. RESOURCE is an ARN or *.
--context gives the condition keys that the request carries, such as
aws:RequestTag/owner=me; without any, an answer that hangs on them is unknown.

Exit codes: 0 it can, 1 it can't, 2 could not run, 3 it can't be told.`,
		Example: `  ppodoctor can KarpenterControllerRole-prod ec2:CreateFleet 'arn:aws:ec2:eu-west-1::fleet/*'
  ppodoctor can serviceaccount/kube-system/external-dns route53:ListHostedZones
  ppodoctor can karpenter ec2:RunInstances --context aws:RequestTag/karpenter.sh/nodepool=default`,
		Args: cobra.RangeArgs(2, 3),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := validReplyFormat(format); err != nil {
				return err
			}
			call := probes.Call{Role: args[0], Action: args[1], Resource: "*"}
			if len(args) == 3 {
				call.Resource = args[2]
			}
			if service, name, ok := strings.Cut(call.Action, ":"); !ok || service == "" || name == "" {
				return fmt.Errorf("%q is no action: write SERVICE:ACTION, for example ec2:RunInstances", call.Action)
			}
			var err error
			if call.Context, err = contextOf(sent); err != nil {
				return err
			}
			facts, _, err := in.open(cmd)
			if err != nil {
				return err
			}
			r, err := canReply(cmd, facts, call, in.namespace())
			if err != nil {
				return err
			}
			return r.write(cmd, facts.Source(), format, verbose)
		},
	}
	in.flags(cmd)
	replyFlags(cmd, &format, &verbose)
	context := cmd.Flags().Lookup("context")
	context.Value = &contextValue{kube: context.Value, sent: &sent}
	context.Usage = "KEY=VALUE: a condition key of the request, again for more; else the kubeconfig context to use"
	context.Annotations = nil // with a snapshot it makes sense here
	cmd.Flags().Lookup("namespace").Usage = "the namespace of a service account that is named without one"
	return cmd
}

// A contextValue is --context where it means two things: kubectl's context, and
// what a request to AWS carries. The former has no = in its name.
type contextValue struct {
	kube pflag.Value
	sent *[]string
}

func (v *contextValue) Set(s string) error {
	if strings.Contains(s, "=") {
		*v.sent = append(*v.sent, s)
		return nil
	}
	return v.kube.Set(s)
}

func (v *contextValue) String() string { return v.kube.String() }

func (v *contextValue) Type() string { return "string" }

// contextOf reads KEY=VALUE pairs; nil where there are none.
func contextOf(pairs []string) (map[string][]string, error) {
	var all map[string][]string
	for _, pair := range pairs {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("--context %q: write KEY=VALUE", pair)
		}
		if all == nil {
			all = map[string][]string{}
		}
		all[key] = append(all[key], value)
	}
	return all, nil
}

func canReply(cmd *cobra.Command, facts *probes.Facts, call probes.Call, namespace string) (*reply, error) {
	r := &reply{Schema: "ppodoctor/can/v1", Question: call.Role + " " + call.Action}
	if call.Resource != "*" {
		r.Question += " on " + call.Resource
	}
	var open error // a link of the chain that can't be told
	if kind, rest, ok := strings.Cut(call.Role, "/"); ok && isServiceAccount(kind) {
		ns, name, full := strings.Cut(rest, "/")
		if !full {
			ns, name = namespace, rest
		}
		if ns == "" {
			return nil, fmt.Errorf("%q: write serviceaccount/NAMESPACE/NAME", call.Role)
		}
		facts.Gather(cmd.Context(), append([]probes.Any{probes.ServiceAccounts}, probes.IdentityNeeds...)...)
		role, chain, err := probes.IdentityOf(facts).Role(facts, ns, name)
		if err != nil && !probes.IsGap(err) {
			return nil, err
		}
		if err != nil {
			r.lacking(err)
			return r, nil
		}
		for _, step := range chain {
			h := hop{What: string(step.Name), Answer: "no", Says: step.Says, Commands: []string{step.Document.Command()}}
			switch {
			case step.Err != nil:
				open = errors.Join(open, step.Err)
				h.Answer, h.Says = "unknown", step.Err.Error()
			case step.Holds:
				h.Answer = "yes"
			}
			r.Hops = append(r.Hops, h)
		}
		if broken := probes.Broken(chain); broken != nil {
			r.Answer, r.Says = "no", broken.Says
			return r, nil
		}
		if role == "" {
			r.lacking(open)
			return r, nil
		}
		call.Role = role
	}
	facts.Asking(call).Gather(cmd.Context(), probes.Permissions)
	solver, err := probes.Permissions.Of(facts)
	if err != nil {
		return nil, err
	}
	ruling, err := solver.May(call.Role, call.Action, call.Resource, call.Context)
	if region := regionOf(facts.Source()); region != "" && err == nil && slices.Equal(ruling.Missing, []string{"aws:RequestedRegion"}) {
		call.Context = maps.Clone(call.Context)
		if call.Context == nil {
			call.Context = map[string][]string{}
		}
		call.Context["aws:RequestedRegion"] = []string{region}
		r.Question += " in " + region
		ruling, err = solver.May(call.Role, call.Action, call.Resource, call.Context)
	}
	switch {
	case err != nil && !probes.IsGap(err):
		r.Answer, r.Says = "no", err.Error()
		return r, nil
	case err != nil:
		r.lacking(err)
		return r, nil
	}
	r.ruled(ruling)
	if open != nil && r.Answer == "yes" {
		r.Says += "; but whether the service account gets the role isn't known"
		r.lacking(open)
	}
	return r, nil
}

// ruled takes over what the solver decided.
func (r *reply) ruled(ruling probes.Ruling) {
	r.Says = ruling.Why()
	r.Answer = "no"
	switch ruling.Effect {
	case iampolicy.Allowed:
		r.Answer = "yes"
	case iampolicy.Undecided:
		r.Answer = "unknown"
		r.Says += "; give what the request carries with --context"
	default:
		if st, ok := ruling.StatementToAdd(); ok {
			var compact bytes.Buffer
			if json.Compact(&compact, []byte(st.JSON())) == nil {
				r.Fix = append(r.Fix, compact.String())
			}
		}
	}
	r.Hops = append(r.Hops, hop{What: ruling.By, Answer: r.Answer, Code: string(ruling.Reason), Says: ruling.Why(), Commands: []string{ruling.Document.Command()}})
}

// regionOf is the cluster's region, in which a call is made that names no other.
func regionOf(src probes.Source) string {
	if m, ok := src.(interface{ ClusterMeta() probes.SnapshotMeta }); ok {
		return m.ClusterMeta().Region
	}
	return ""
}

func isServiceAccount(kind string) bool {
	switch strings.ToLower(kind) {
	case "serviceaccount", "serviceaccounts", "sa":
		return true
	}
	return false
}
