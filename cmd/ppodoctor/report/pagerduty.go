package report

import (
	"bytes"
	"encoding/json"

	"github.com/pposiraegi/ppodoctor/diagnose"
)

// Limits of PagerDuty's Events API v2. Source: developer.pagerduty.com,
// "Send an alert event": summary, source, dedup_key.
const (
	pagerSummary = 1024
	pagerKey     = 255
)

// pagerDuty is an event a line, ready for the Events API v2 but for the
// routing key, which is the sender's secret: a trigger for each cause and each
// unexplained symptom, and with a baseline a resolve for each that is fixed
// (what has only vanished stays open). The dedup_key is the fingerprint, so that a re-scan
// updates the alert and doesn't open another.
func pagerDuty(b *bytes.Buffer, dirty *diagnose.Diagnosis, _ Options) error {
	d, err := cleaned(dirty)
	if err != nil {
		return err
	}
	source := "kubernetes"
	if d.Cluster.Name != "" {
		source = d.Cluster.Name
	}
	event := func(key, severity, summary, class string, ref diagnose.Ref, details any) error {
		data, err := json.Marshal(object{
			"event_action": "trigger", "dedup_key": shorten(key, pagerKey), "client": "ppodoctor",
			"payload": object{
				"summary": shorten(summary, pagerSummary), "source": shorten(source, pagerKey), "severity": severity,
				"timestamp": d.At.UTC().Format("2006-01-02T15:04:05.000Z"),
				"component": ref.String(), "group": ref.Namespace, "class": class, "custom_details": details,
			},
		})
		b.Write(append(data, '\n'))
		return err
	}
	for _, c := range d.Causes {
		details := object{"summary": c.Summary, "evidence": c.Evidence, "effects": c.Effects}
		if len(c.Remedies) > 0 {
			details["remedy"] = c.Remedies[0]
		}
		if err := event(c.Fingerprint, "critical", c.Title+": "+c.Subject.String(), c.Rule, c.Subject, details); err != nil {
			return err
		}
	}
	for _, s := range d.Unexplained {
		details := object{"summary": s.Summary, "evidence": s.Evidence, "lead": s.Lead}
		if err := event(s.Fingerprint, "error", s.Title+": "+s.Subject.String(), s.Rule, s.Subject, details); err != nil {
			return err
		}
	}
	if d.Baseline != nil {
		for _, o := range d.Baseline.Fixed {
			data, err := json.Marshal(object{"event_action": "resolve", "dedup_key": shorten(o.Fingerprint, pagerKey)})
			if err != nil {
				return err
			}
			b.Write(append(data, '\n'))
		}
	}
	return nil
}
