package report

// labels are the words of the report that come from no rule: headings and
// units. All sentences are knowledge data.
type labels struct {
	cause, suspected, risk                      string
	change, chain, evidence, why                string
	common, failing, healthy, reaches, blocked  string
	open, lacks                                 string
	ruledOut, remedies, verify, expect, beware  string
	caution, terraform, manifest                string
	timeline, unexplained, lead, gaps, next     string
	settles, questions, other, more, since, ago string
	explains, sources, symptoms                 string
	scopes, truths, reasons                     map[string]string
}

var english = labels{
	cause: "CAUSE", suspected: "SUSPECTED", risk: "RISK",
	change: "to change", chain: "How it leads to the symptoms", evidence: "Evidence", why: "Why",
	common: "What the failing have in common", failing: "failing", healthy: "healthy", reaches: "reaches", blocked: "is blocked",
	open: "Not known", lacks: "lacks",
	ruledOut: "Ruled out", remedies: "Remedies", verify: "Verify", expect: "expect", beware: "beware",
	caution: "caution", terraform: "Terraform", manifest: "manifest",
	timeline: "Timeline", unexplained: "UNEXPLAINED", lead: "lead", gaps: "NOT SEEN", next: "To read next",
	settles: "settles", questions: "Questions", other: "see", more: "more", since: "since", ago: "ago",
	explains: "explains", sources: "Sources", symptoms: "Symptoms",
	scopes: map[string]string{
		"structural": "structural", "replaces-nodes": "replaces nodes",
		"restarts-pods": "restarts pods", "covers-symptom": "covers the symptom only",
	},
	truths:  map[string]string{"yes": "yes", "no": "no", "unknown": "not known"},
	reasons: map[string]string{"forbidden": "forbidden", "not-captured": "not captured", "timed-out": "timed out", "unreadable": "unreadable"},
}
