package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/pposiraegi/ppodoctor/diagnose"
	"github.com/pposiraegi/ppodoctor/probes"
)

func newPermissions() *cobra.Command {
	var system, format string
	var noHelm bool
	cmd := &cobra.Command{
		Use:   "permissions",
		Short: "Print the least rights that a scan needs",
		Long: `Print the least rights that a scan needs: a ClusterRole, or an IAM policy.

They are put together from what the program's own probes declare that they
read. With less the program still runs: what it may not read, it names.`,
		Example: `  ppodoctor permissions | kubectl apply -f -
  ppodoctor permissions --for iam > policy.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var rights []probes.Permission
			for _, p := range diagnose.Probes(diagnose.Rules()) {
				rights = append(rights, p.Permissions()...)
			}
			if noHelm {
				rights = slices.DeleteFunc(rights, func(p probes.Permission) bool { return p.Resource == "secrets" })
			}
			var object any
			switch system {
			case "rbac":
				object = clusterRole(rights)
			case "iam":
				object = iamPolicy(rights)
				if !cmd.Flags().Changed("output") {
					format = "json" // the only form that AWS takes
				}
			default:
				return fmt.Errorf("--for %s: it is rbac or iam", system)
			}
			return printObject(cmd, object, format)
		},
	}
	cmd.Flags().StringVar(&system, "for", "rbac", "whose rights: rbac (a ClusterRole) or iam (a policy)")
	cmd.Flags().StringVarP(&format, "output", "o", "yaml", "yaml or json")
	cmd.Flags().BoolVar(&noHelm, "no-helm", false, "without the right to list Secrets, which Helm's releases are")
	return cmd
}

func printObject(cmd *cobra.Command, object any, format string) error {
	var data bytes.Buffer
	encoder := json.NewEncoder(&data)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(object); err != nil {
		return err
	}
	switch format {
	case "json":
	case "yaml":
		text, err := yaml.JSONToYAML(data.Bytes())
		if err != nil {
			return err
		}
		data = *bytes.NewBuffer(text)
	default:
		return fmt.Errorf("--output %s: it is yaml or json", format)
	}
	_, err := cmd.OutOrStdout().Write(data.Bytes())
	return err
}

// A role is a ClusterRole as it is written by hand.
type role struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        map[string]string   `json:"metadata"`
	Rules           []rbacv1.PolicyRule `json:"rules"`
}

// clusterRole has one rule for each API group and set of verbs. Reaching the
// server and asking what it serves is everybody's right already, by the
// built-in roles system:discovery and system:public-info-viewer.
func clusterRole(rights []probes.Permission) role {
	verbs := map[string][]string{} // by resource
	for _, p := range rights {
		if p.Action == "" && !slices.Contains(verbs[p.Resource], p.Verb) {
			verbs[p.Resource] = append(verbs[p.Resource], p.Verb)
		}
	}
	r := role{TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole"}, Metadata: map[string]string{"name": "ppodoctor"}}
	byRule := map[string]*rbacv1.PolicyRule{}
	var order []string
	for resource, v := range verbs {
		slices.Sort(v)
		name, group, _ := strings.Cut(resource, ".")
		key := group + " " + strings.Join(v, ",")
		if byRule[key] == nil {
			byRule[key] = &rbacv1.PolicyRule{APIGroups: []string{group}, Verbs: v}
			order = append(order, key)
		}
		byRule[key].Resources = append(byRule[key].Resources, name)
	}
	slices.Sort(order)
	for _, key := range order {
		slices.Sort(byRule[key].Resources)
		r.Rules = append(r.Rules, *byRule[key])
	}
	return r
}

type policy struct {
	Version   string
	Statement []statement
}

type statement struct {
	Sid      string
	Effect   string
	Action   []string
	Resource string
}

func iamPolicy(rights []probes.Permission) policy {
	var actions []string
	for _, p := range rights {
		if p.Action != "" {
			actions = append(actions, p.Action)
		}
	}
	slices.Sort(actions)
	return policy{Version: "2012-10-17", Statement: []statement{{Sid: "PpodoctorReads", Effect: "Allow", Action: slices.Compact(actions), Resource: "*"}}}
}
