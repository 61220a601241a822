package report

// labels are the words of the report that come from no rule: headings and
// units. All sentences are knowledge data.
type labels struct {
	Cause, Suspected, Risk                      string
	Change, Chain, Evidence, Why                string
	Common, Failing, Healthy, Reaches, Blocked  string
	Open, Lacks                                 string
	RuledOut, Remedies, Verify, Expect, Beware  string
	Caution, Terraform, Manifest                string
	Timeline, Unexplained, Lead, Gaps, Next     string
	Settles, Questions, Other, More, Since, Ago string
	Explains, Sources, Symptoms                 string
	New, There, Fixed, Vanished, Unsettled      string
	Suppressed, Until, Expired, Baseline        string
	Reads, Explained, NoSuspect, Same           string
	Scopes, Truths, Reasons, Standings          map[string]string
}

var english = labels{
	Cause: "CAUSE", Suspected: "SUSPECTED", Risk: "RISK",
	Change: "to change", Chain: "How it leads to the symptoms", Evidence: "Evidence", Why: "Why",
	Common: "What the failing have in common", Failing: "failing", Healthy: "healthy", Reaches: "reaches", Blocked: "is blocked",
	Open: "Not known", Lacks: "lacks",
	RuledOut: "Ruled out", Remedies: "Remedies", Verify: "Verify", Expect: "expect", Beware: "beware",
	Caution: "caution", Terraform: "Terraform", Manifest: "manifest",
	Timeline: "Timeline", Unexplained: "UNEXPLAINED", Lead: "lead", Gaps: "NOT SEEN", Next: "To read next",
	Settles: "settles", Questions: "Questions", Other: "see", More: "more", Since: "since", Ago: "ago",
	Explains: "explains", Sources: "Sources", Symptoms: "Symptoms",
	New: "NEW", There: "STILL THERE", Fixed: "FIXED", Vanished: "VANISHED, unproven: nothing exercises it any more", Unsettled: "UNSETTLED: not all could be seen, or what it hurt is not well",
	Suppressed: "Suppressed", Until: "until", Expired: "expired", Baseline: "Since",
	Reads: "Reads", Explained: "explained by", NoSuspect: "no suspect there", Same: "the same split",
	Standings: map[string]string{"cause": "cause", "suspected": "suspected", "risk": "risk", "symptom": "symptom", "state": "state on the way"},
	Scopes: map[string]string{
		"structural": "structural", "replaces-nodes": "replaces nodes",
		"restarts-pods": "restarts pods", "covers-symptom": "covers the symptom only",
	},
	Truths:  map[string]string{"yes": "yes", "no": "no", "unknown": "not known"},
	Reasons: map[string]string{"forbidden": "forbidden", "not-captured": "not captured", "timed-out": "timed out", "unreadable": "unreadable"},
}

// word is the label of a value, or the value.
func word(words map[string]string, key string) string {
	if w, ok := words[key]; ok {
		return w
	}
	return key
}
