package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pposiraegi/ppodoctor/diagnose"
)

func newExplain() *cobra.Command {
	in, out := &input{}, &output{}
	cmd := &cobra.Command{
		Use:   "explain KIND/NAME",
		Short: "Diagnose one object",
		Long: `Diagnose one object: the same walk as scan, kept to what touches the object,
with every rule that was considered for it.

KIND/NAME may also be NAMESPACE/KIND/NAME. Without a namespace the object is
looked for in all of them.`,
		Example: `  ppodoctor explain pod/kafka-0 -n kafka --snapshot incident.tar.gz
  ppodoctor explain kafka/pod/kafka-0 --snapshot incident.tar.gz`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.validate(); err != nil {
				return err
			}
			kind, name, err := splitObject(args[0], in.kube.Namespace)
			if err != nil {
				return err
			}
			facts, k, err := in.open(cmd)
			if err != nil {
				return err
			}
			ref, err := diagnose.Find(cmd.Context(), facts, kind, in.namespace(), name)
			if err != nil {
				return err
			}
			d := diagnose.Walk(cmd.Context(), facts, k, diagnose.Options{Focus: &ref, Verbose: out.verbose})
			return out.write(cmd, d, diagnose.ExercisedIn(cmd.Context(), facts))
		},
	}
	in.flags(cmd)
	out.flags(cmd)
	cmd.Flags().Lookup("namespace").Usage = "the object's namespace"
	for _, name := range []string{"all-namespaces", "selector"} {
		cmd.Flags().Lookup(name).Hidden = true
	}
	return cmd
}

func splitObject(arg string, namespace *string) (kind, name string, err error) {
	switch parts := strings.Split(arg, "/"); len(parts) {
	case 2:
		return parts[0], parts[1], nil
	case 3:
		*namespace = parts[0]
		return parts[1], parts[2], nil
	}
	return "", "", fmt.Errorf("%q names no object: write KIND/NAME or NAMESPACE/KIND/NAME, for example pod/kafka-0", arg)
}
