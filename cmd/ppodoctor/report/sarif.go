package report

import (
	"bytes"
	"cmp"
	"net/url"

	"github.com/pposiraegi/ppodoctor/diagnose"
)

type object = map[string]any

// sarif is SARIF 2.1.0: a confirmed cause is an error, a risk a warning, what
// is only suspected is "open", which is no failure. A result names the object
// as a logical location, and the snapshot's document that shows it. What could
// not be seen is a notification of the run.
// Source: docs.oasis-open.org/sarif/sarif/v2.1.0, §3.27.9 kind, §3.27.10 level.
func sarif(b *bytes.Buffer, dirty *diagnose.Diagnosis, _ Options) error {
	d, err := cleaned(dirty)
	if err != nil {
		return err
	}
	rules, index := []object{}, map[string]int{}
	results := []object{}
	for _, group := range []struct {
		kind, level string
		causes      []diagnose.Cause
	}{{"fail", "error", d.Causes}, {"open", "none", d.Suspected}, {"fail", "warning", d.Risks}} {
		for _, c := range group.causes {
			if _, ok := index[c.Rule]; !ok {
				index[c.Rule] = len(rules)
				rule := object{"id": c.Rule, "shortDescription": object{"text": c.Title}}
				if c.Because != "" {
					rule["fullDescription"] = object{"text": c.Because}
				}
				rules = append(rules, rule)
			}
			result := object{
				"ruleId": c.Rule, "ruleIndex": index[c.Rule], "kind": group.kind, "level": group.level,
				"message":             object{"text": c.Title + ": " + cmp.Or(c.Summary, c.Subject.String())},
				"locations":           []object{location(c.Subject, c.Evidence, 0)},
				"partialFingerprints": object{"ppodoctor/v1": c.Fingerprint},
			}
			var related []object
			for i, ref := range c.Effects {
				related = append(related, location(ref, nil, i+1))
			}
			if related != nil {
				result["relatedLocations"] = related
			}
			results = append(results, result)
		}
	}
	notes := []object{}
	for _, g := range d.Gaps {
		text := g.Document + ": " + g.Reason
		if g.Detail != "" {
			text += ": " + g.Detail
		}
		notes = append(notes, object{"level": "warning", "message": object{"text": text}})
	}
	data, err := marshal(object{
		"$schema": "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json",
		"version": "2.1.0",
		"runs": []object{{
			"tool":        object{"driver": object{"name": "ppodoctor", "informationUri": "https://github.com/pposiraegi/ppodoctor", "rules": rules}},
			"invocations": []object{{"executionSuccessful": true, "endTimeUtc": d.At.UTC().Format("2006-01-02T15:04:05Z"), "toolExecutionNotifications": notes}},
			"results":     results,
		}},
	})
	b.Write(data)
	return err
}

// location is an object, and the first document of its evidence.
func location(ref diagnose.Ref, evidence []diagnose.Fact, id int) object {
	l := object{"logicalLocations": []object{{"name": ref.Name, "fullyQualifiedName": ref.String(), "kind": "resource"}}}
	if id > 0 {
		l["id"] = id
	}
	for _, f := range evidence {
		if f.Document != "" {
			l["physicalLocation"] = object{"artifactLocation": object{"uri": (&url.URL{Path: f.Document}).String(), "uriBaseId": "SNAPSHOT"}}
			break
		}
	}
	return l
}
