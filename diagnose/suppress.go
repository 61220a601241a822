package diagnose

import (
	"path"
	"slices"
	"time"
)

// A Suppression is a fault that somebody has decided to live with until a day.
type Suppression struct {
	Rule    string    `json:"rule"`
	Subject string    `json:"subject"` // Kind/name or Kind/namespace/name; * is a wildcard within a part; * alone is anything
	Reason  string    `json:"reason"`
	Expires time.Time `json:"expires"`
	// Expired suppressions hide nothing.
	Expired bool      `json:"expired"`
	Hides   []Outcome `json:"hides"`
}

// Suppress takes the faults that match out of the lists, and notes them in
// Suppressed, so that nothing is hidden without a trace. Symptoms that only
// suppressed causes explain go with them.
func (d *Diagnosis) Suppress(list []Suppression) {
	if len(list) == 0 {
		return
	}
	gone := map[string]bool{}
	for _, s := range list {
		s.Hides = []Outcome{}
		if s.Expired = !s.Expires.After(d.At); !s.Expired {
			for _, f := range faults(d) {
				match, err := path.Match(s.Subject, f.Subject.String())
				if (match && err == nil || s.Subject == "*") && s.Rule == f.Rule && !gone[f.Fingerprint] {
					gone[f.Fingerprint] = true
					s.Hides = append(s.Hides, Outcome{Rule: f.Rule, Fingerprint: f.Fingerprint, Title: f.Title, Subject: f.Subject, Was: f.kind})
				}
			}
		}
		d.Suppressed = append(d.Suppressed, s)
	}
	d.keep(func(fingerprint string) bool { return !gone[fingerprint] })
	d.Symptoms = slices.DeleteFunc(d.Symptoms, func(s Symptom) bool {
		explained := len(s.ExplainedBy) > 0
		for _, f := range s.ExplainedBy {
			explained = explained && gone[f]
		}
		return explained
	})
	d.Verdict = verdict(d)
}

// keep drops the faults and symptoms that are not wanted.
func (d *Diagnosis) keep(wanted func(fingerprint string) bool) {
	drop := func(list []Cause) []Cause {
		return slices.DeleteFunc(list, func(c Cause) bool { return !wanted(c.Fingerprint) })
	}
	d.Causes, d.Suspected, d.Risks = drop(d.Causes), drop(d.Suspected), drop(d.Risks)
	unwanted := func(s Symptom) bool { return !wanted(s.Fingerprint) }
	d.Symptoms = slices.DeleteFunc(d.Symptoms, unwanted)
	d.Unexplained = slices.DeleteFunc(d.Unexplained, unwanted)
}

// Since keeps only what is new since an earlier diagnosis or stands
// differently now; what became of the rest is noted in Baseline. What is
// vanished or unsettled counts as gone, with the reason.
func (d *Diagnosis) Since(earlier *Diagnosis, exercised Exercised) {
	diff := Compare(earlier, d, exercised)
	same := map[string]bool{}
	for _, o := range diff.There {
		if o.Was == o.Is {
			same[o.Fingerprint] = true
		}
	}
	known := map[string]bool{}
	for _, s := range earlier.Symptoms {
		known[s.Fingerprint] = true
	}
	d.Baseline = diff
	d.keep(func(fingerprint string) bool { return !same[fingerprint] })
	d.Symptoms = slices.DeleteFunc(d.Symptoms, func(s Symptom) bool {
		return known[s.Fingerprint] && !slices.ContainsFunc(s.ExplainedBy, func(f string) bool { return !same[f] })
	})
	d.Verdict = verdict(d)
}
