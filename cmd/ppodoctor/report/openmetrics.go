package report

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/pposiraegi/ppodoctor/diagnose"
)

// openMetrics is for a Pushgateway or node_exporter's textfile collector. The
// counts are always there, so that an alert can tell 0 from no scan.
// Source: the OpenMetrics 1.0 specification (RFC draft), text format.
func openMetrics(b *bytes.Buffer, dirty *diagnose.Diagnosis, _ Options) error {
	d, err := cleaned(dirty)
	if err != nil {
		return err
	}
	family := func(name, help string) { fmt.Fprintf(b, "# TYPE %s gauge\n# HELP %s %s\n", name, name, help) }
	sample := func(name string, value any, labels ...string) {
		b.WriteString(name)
		for i := 0; i < len(labels); i += 2 {
			fmt.Fprintf(b, "%s%s=\"%s\"", map[bool]string{true: "{", false: ","}[i == 0], labels[i], escapeLabel.Replace(labels[i+1]))
		}
		if len(labels) > 0 {
			b.WriteByte('}')
		}
		fmt.Fprintf(b, " %v\n", value)
	}
	verdicts := []struct {
		name   string
		causes []diagnose.Cause
	}{{"confirmed", d.Causes}, {"suspected", d.Suspected}, {"risk", d.Risks}}

	family("ppodoctor_causes", "Causes by verdict.")
	for _, v := range verdicts {
		sample("ppodoctor_causes", len(v.causes), "verdict", v.name)
	}
	family("ppodoctor_cause", "One cause; 1 while it is there.")
	seen := map[string]bool{}
	for _, v := range verdicts {
		for _, c := range v.causes {
			if key := v.name + c.Fingerprint; !seen[key] {
				seen[key] = true
				sample("ppodoctor_cause", 1, "verdict", v.name, "rule", c.Rule, "fingerprint", c.Fingerprint,
					"kind", c.Subject.Kind, "namespace", c.Subject.Namespace, "name", c.Subject.Name)
			}
		}
	}
	family("ppodoctor_symptoms", "Symptoms, explained by a cause or not.")
	sample("ppodoctor_symptoms", len(d.Symptoms)-len(d.Unexplained), "explained", "true")
	sample("ppodoctor_symptoms", len(d.Unexplained), "explained", "false")
	family("ppodoctor_gaps", "Documents that could not be seen.")
	sample("ppodoctor_gaps", len(d.Gaps))
	family("ppodoctor_questions", "Questions that were asked.")
	sample("ppodoctor_questions", d.Stats.Questions)
	fmt.Fprint(b, "# TYPE ppodoctor_scanned_timestamp_seconds gauge\n# UNIT ppodoctor_scanned_timestamp_seconds seconds\n",
		"# HELP ppodoctor_scanned_timestamp_seconds When the cluster was looked at.\n")
	sample("ppodoctor_scanned_timestamp_seconds", d.At.Unix())
	b.WriteString("# EOF\n")
	return nil
}

var escapeLabel = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
