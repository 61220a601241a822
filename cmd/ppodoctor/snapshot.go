package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/pposiraegi/ppodoctor/diagnose"
	"github.com/pposiraegi/ppodoctor/knowledge"
	"github.com/pposiraegi/ppodoctor/probes"
)

func newSnapshot() *cobra.Command {
	in := &input{recording: true}
	var path string
	var all, redactNames bool
	cmd := &cobra.Command{
		Use:   "snapshot -o PATH",
		Short: "Record what a scan reads, redacted",
		Long: `Record what a scan reads, so that it can be scanned elsewhere and later:
ppodoctor scan --snapshot PATH. It holds what kubectl and the AWS CLI print.

Secrets are replaced as they are read: the values of environment variables and
Secrets, and what looks like a credential in logs, annotations and
configuration. The names of keys stay, and the same secret becomes the same
token. Look at what it holds before you hand it on.

Exit codes: 0 all was recorded, 2 could not run, 3 something could not be read
(the snapshot says what).`,
		Example: `  ppodoctor snapshot -o incident.tar.gz
  ppodoctor snapshot -o incident.tar.gz --redact-names
  ppodoctor snapshot -o shareable.zip --snapshot incident/     redacts what kubectl captured`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if path == "" {
				return errors.New("say where to: -o incident.tar.gz (or .tgz, .tar, .zip, or a new folder)")
			}
			facts, k, err := in.open(cmd)
			if err != nil {
				return err
			}
			dir, err := os.MkdirTemp("", "ppodoctor-")
			if err != nil {
				return fmt.Errorf("recording: %w", err)
			}
			defer os.RemoveAll(dir)
			key := make([]byte, 32)
			rand.Read(key)
			recorder := probes.NewRecorder(facts.Source(), probes.NewRedactor(key), dir)
			recorded := probes.NewFacts(recorder).Knowing(k)
			diagnose.Walk(cmd.Context(), recorded, k, diagnose.Options{})
			if all {
				recorded.Gather(cmd.Context(), diagnose.Probes(diagnose.Rules())...)
			}
			var rename func(string) string
			if redactNames {
				if rename, err = recorder.Renamer(key, publicWords(k)); err != nil {
					return err
				}
			}
			if err := recorder.Write(path, rename); err != nil {
				return err
			}
			documents, missing := recorder.Counts()
			fmt.Fprintf(cmd.ErrOrStderr(), "%s holds %d documents; %d could not be read\n", path, documents, missing)
			if missing > 0 {
				return exitError(3)
			}
			return nil
		},
	}
	in.flags(cmd)
	cmd.Flags().StringVarP(&path, "output", "o", "", "where to: .tar.gz, .tgz, .tar, .zip, or a new folder")
	cmd.Flags().BoolVar(&all, "all", false, "everything that any rule might read, not only what this walk needed")
	cmd.Flags().BoolVar(&redactNames, "redact-names", false, "replace names too, each by the same word everywhere")
	for _, name := range []string{"namespace", "all-namespaces", "selector"} {
		cmd.Flags().Lookup(name).Hidden = true
	}
	return cmd
}

// publicWords are texts whose words must survive renaming, for a diagnosis
// looks for them: the knowledge, and the kinds that probes read.
func publicWords(k *knowledge.Knowledge) []string {
	text, err := json.Marshal(k)
	if err != nil {
		panic(err) // plain data
	}
	texts := []string{string(text)}
	for _, p := range diagnose.Probes(diagnose.Rules()) {
		for _, right := range p.Permissions() {
			texts = append(texts, right.String())
		}
	}
	return texts
}
