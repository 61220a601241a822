package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/pposiraegi/ppodoctor/cmd/ppodoctor/report"
	"github.com/pposiraegi/ppodoctor/diagnose"
)

// output is how a diagnosis is written, and what of it counts.
type output struct {
	format         string
	width          int
	quiet, verbose bool
	failOn         string
	baseline       string
	suppressions   string
}

// failOn are what --fail-on takes, the mildest last; each includes those before.
var failOn = []string{"causes", "suspected", "risks"}

const suppressionsFile = ".ppodoctor.yaml"

func (out *output) flags(cmd *cobra.Command) {
	var formats, about []string
	for _, f := range report.Formats() {
		formats = append(formats, f.Name+"\t"+f.About)
		about = append(about, f.Name)
	}
	cmd.Flags().StringVarP(&out.format, "output", "o", "text", "how to write the diagnosis: "+strings.Join(about, ", "))
	cmd.Flags().IntVar(&out.width, "width", 0, "columns of text, 60 to 200 (default: the terminal's, else 80)")
	cmd.Flags().BoolVarP(&out.quiet, "quiet", "q", false, "verdict and causes only")
	cmd.Flags().BoolVarP(&out.verbose, "verbose", "v", false, "every question that was asked")
	cmd.Flags().StringVar(&out.failOn, "fail-on", "suspected", "exit with 1 on: causes (proven only), suspected (also symptoms without a proven cause), risks (also what hurts nothing yet)")
	cmd.Flags().StringVar(&out.baseline, "baseline", "", "an earlier diagnosis (-o json): report only what is new, changed or gone since")
	cmd.Flags().StringVar(&out.suppressions, "suppressions", "", "faults to live with, each with a reason and a last day (default: "+suppressionsFile+", if there)")
	for name, values := range map[string][]string{"output": formats, "fail-on": failOn} {
		if err := cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
			panic(err) // a flag that isn't there
		}
	}
}

// validate refuses what can't be written, before anything is read.
func (out *output) validate() error {
	if !slices.ContainsFunc(report.Formats(), func(f report.Format) bool { return f.Name == out.format }) {
		return report.UnknownFormat(out.format)
	}
	if !slices.Contains(failOn, out.failOn) {
		return fmt.Errorf("--fail-on %q: use one of %s", out.failOn, strings.Join(failOn, ", "))
	}
	return nil
}

// write applies suppressions and baseline, writes the diagnosis, and returns
// the exit code as an error.
func (out *output) write(cmd *cobra.Command, d *diagnose.Diagnosis, exercised diagnose.Exercised) error {
	list, err := readSuppressions(out.suppressions)
	if err != nil {
		return err
	}
	d.Suppress(list)
	if out.baseline != "" {
		earlier, err := readDiagnosis(out.baseline)
		if err != nil {
			return fmt.Errorf("--baseline: %w", err)
		}
		d.Since(earlier, exercised)
	}
	opts := report.Terminal(os.Stdout, os.Getenv)
	opts.Quiet, opts.Verbose = out.quiet, out.verbose
	if out.width != 0 {
		opts.Width = out.width
	}
	if err := report.Write(cmd.OutOrStdout(), d, out.format, opts); err != nil {
		return err
	}
	if code := out.exitCode(d); code != 0 {
		return exitError(code)
	}
	return nil
}

// exitCode is that of the diagnosis, moved by --fail-on.
func (out *output) exitCode(d *diagnose.Diagnosis) int {
	code := d.ExitCode()
	switch {
	case out.failOn == "risks" && len(d.Risks) > 0:
		return 1
	case out.failOn == "causes" && code == 1 && len(d.Causes) == 0:
		if len(d.Gaps) > 0 {
			return 3
		}
		return 0
	}
	return code
}

// readDiagnosis reads what -o json or -o yaml wrote.
func readDiagnosis(file string) (*diagnose.Diagnosis, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	d := new(diagnose.Diagnosis)
	if err := yaml.Unmarshal(data, d); err != nil {
		return nil, fmt.Errorf("%s is no diagnosis (write one with -o json): %w", file, err)
	}
	if d.Schema != diagnose.Schema {
		return nil, fmt.Errorf("%s is no diagnosis: its schema is %q, not %q; write one with -o json", file, d.Schema, diagnose.Schema)
	}
	return d, nil
}

// readSuppressions reads a suppressions file, strictly: a slip must not hide
// or show the wrong thing.
func readSuppressions(file string) ([]diagnose.Suppression, error) {
	data, err := os.ReadFile(cmp.Or(file, suppressionsFile))
	if file == "" && errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	file = cmp.Or(file, suppressionsFile)
	if err != nil {
		return nil, fmt.Errorf("reading suppressions: %w", err)
	}
	var content struct {
		Suppressions []struct {
			Rule    string `json:"rule"`
			Subject string `json:"subject"`
			Reason  string `json:"reason"`
			Expires string `json:"expires"`
		} `json:"suppressions"`
	}
	if err := yaml.UnmarshalStrict(data, &content); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var list []diagnose.Suppression
	for i, s := range content.Suppressions {
		expires, err := time.Parse(time.DateOnly, s.Expires)
		switch {
		case s.Rule == "" || s.Subject == "" || s.Reason == "":
			return nil, fmt.Errorf("%s: suppression %d needs rule, subject and reason", file, i+1)
		case err != nil:
			return nil, fmt.Errorf("%s: suppression %d: expires must be a day such as 2027-01-31, not %q", file, i+1, s.Expires)
		}
		// The last day counts.
		list = append(list, diagnose.Suppression{Rule: s.Rule, Subject: s.Subject, Reason: s.Reason, Expires: expires.AddDate(0, 0, 1)})
	}
	return list, nil
}
