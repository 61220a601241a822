package diagnose

import (
	"time"
)

// Schema names the shape of [Diagnosis] as JSON. Changes are additive.
const Schema = "ppodoctor/v1"

// A Diagnosis is all that a walk found out. As JSON it is the contract with
// bots. Every list is in a fixed order: the same input gives the same bytes.
type Diagnosis struct {
	Schema  string    `json:"schema"`
	At      time.Time `json:"at"` // the source's clock
	Cluster Cluster   `json:"cluster"`
	// Focus is the object that was asked about, where it was one.
	Focus       *Ref      `json:"focus,omitempty"`
	Verdict     string    `json:"verdict"`   // one sentence
	Causes      []Cause   `json:"causes"`    // confirmed
	Suspected   []Cause   `json:"suspected"` // open, with what would settle them
	Risks       []Cause   `json:"risks"`     // true now, hurting nothing yet
	Symptoms    []Symptom `json:"symptoms"`
	Unexplained []Symptom `json:"unexplained"` // symptoms without a confirmed cause
	Gaps        []Gap     `json:"gaps"`        // what could not be seen
	Next        []Next    `json:"next"`        // what to read next, most useful first
	Timeline    []Moment  `json:"timeline"`
	// Considered are the rules that were judged, with their verdicts; filled
	// for a focus and for --verbose.
	Considered []Considered `json:"considered,omitempty"`
	// Baseline says what became of an earlier diagnosis's faults, where one
	// was given; the lists above then hold only what is new or has changed.
	Baseline *Difference `json:"baseline,omitempty"`
	// Suppressed are the suppressions that were given, with what they hid.
	Suppressed []Suppression `json:"suppressed,omitempty"`
	Stats      Stats         `json:"stats"`
}

// Cluster is what is known of the cluster itself; empty fields are unknown.
type Cluster struct {
	Name     string `json:"name,omitempty"`
	Region   string `json:"region,omitempty"`
	Account  string `json:"account,omitempty"`
	Version  string `json:"version,omitempty"`  // of the API server, "v1.32.4-eks-abc1234"
	Platform string `json:"platform,omitempty"` // "EKS", "not AWS"; empty when unknown
	Identity string `json:"identity,omitempty"` // the AWS identity that was used
	Nodes    int    `json:"nodes,omitempty"`
	Pods     int    `json:"pods,omitempty"`
}

// A Cause is a fault with its proof. In suspected it is a fault that is
// neither proven nor ruled out, in risks one that hurts nothing yet.
type Cause struct {
	Rule        string   `json:"rule"`
	Fingerprint string   `json:"fingerprint"` // rule and subjects; stable over re-scans
	Title       string   `json:"title"`
	Summary     string   `json:"summary"`
	Because     string   `json:"because,omitempty"` // why this fault has these effects
	Subject     Ref      `json:"subject"`           // the object that a person would change
	Subjects    []Ref    `json:"subjects"`
	Effects     []Ref    `json:"effects"` // the subjects of the symptoms explained
	Chain       []Step   `json:"chain"`   // from this cause to the symptoms
	Evidence    []Fact   `json:"evidence"`
	Open        []Open   `json:"open,omitempty"` // questions without an answer: why it is only suspected
	RuledOut    []Ruled  `json:"ruledOut"`
	Cohorts     []Cohort `json:"cohorts,omitempty"` // what the failing have in common; the best split first
	Paths       []Path   `json:"paths,omitempty"`   // traffic between the groups of a cohort
	Remedies    []Remedy `json:"remedies"`
	Verify      []Verify `json:"verify"`
	Sources     []string `json:"sources,omitempty"` // where the rule's knowledge comes from
}

// A Step is one link of the chain, the cause first, the symptoms last.
type Step struct {
	Rule     string     `json:"rule"`
	Title    string     `json:"title"`
	Subject  Ref        `json:"subject"`
	Count    int        `json:"count,omitempty"`
	Since    *time.Time `json:"since,omitempty"`
	Evidence []Fact     `json:"evidence"`
	// Explains are the indexes, in the chain, of the steps that follow from this one.
	Explains []int `json:"explains,omitempty"`
}

// A Fact is one piece of evidence, with the command that shows it.
type Fact struct {
	Says     string     `json:"says"`
	Document string     `json:"document,omitempty"`
	Command  string     `json:"command,omitempty"`
	At       *time.Time `json:"at,omitempty"`
}

// Open is a question that could not be answered.
type Open struct {
	Asked   string `json:"asked"`
	Lacks   string `json:"lacks,omitempty"` // the document
	Command string `json:"command,omitempty"`
}

// Ruled is a rival that an answer ruled out.
type Ruled struct {
	Rule     string `json:"rule"`
	Title    string `json:"title"`
	Subject  *Ref   `json:"subject,omitempty"`
	Why      string `json:"why"` // the question that was answered no
	Evidence []Fact `json:"evidence"`
}

// A Remedy is one way to mend a fault.
type Remedy struct {
	Do        string   `json:"do"`
	Scope     string   `json:"scope"` // structural, replaces-nodes, restarts-pods, covers-symptom
	Commands  []string `json:"commands,omitempty"`
	Terraform string   `json:"terraform,omitempty"`
	Manifest  string   `json:"manifest,omitempty"`
	Caution   string   `json:"caution,omitempty"`
}

// Verify is a run that proves a remedy under the conditions that failed.
type Verify struct {
	Run    string `json:"run"`
	Expect string `json:"expect"`
	Beware string `json:"beware,omitempty"`
}

// A Symptom is a state that somebody would complain about.
type Symptom struct {
	Rule        string     `json:"rule"`
	Fingerprint string     `json:"fingerprint"`
	Title       string     `json:"title"`
	Summary     string     `json:"summary,omitempty"`
	Subject     Ref        `json:"subject"`
	Examples    []Ref      `json:"examples,omitempty"` // pods of the workload, at most a few
	Count       int        `json:"count"`
	Since       *time.Time `json:"since,omitempty"`
	ExplainedBy []string   `json:"explainedBy"` // fingerprints of causes
	Evidence    []Fact     `json:"evidence"`
	Lead        []Fact     `json:"lead,omitempty"`    // for the unexplained: first failing log lines
	Cohorts     []Cohort   `json:"cohorts,omitempty"` // for the unexplained: what the failing have in common
}

// A Gap is a document that could not be had.
type Gap struct {
	Document string   `json:"document"`
	Reason   string   `json:"reason"`
	Grant    string   `json:"grant,omitempty"`
	Detail   string   `json:"detail,omitempty"`
	Settles  []string `json:"settles,omitempty"` // the rules that wait for it
}

// Next is a read that would settle something.
type Next struct {
	Document string   `json:"document,omitempty"`
	Grant    string   `json:"grant,omitempty"`
	Command  string   `json:"command,omitempty"`
	Settles  int      `json:"settles"`           // how many open questions it answers
	Between  []string `json:"between,omitempty"` // the titles of the suspected causes it decides between
}

// A Moment is something that happened before or during the fault.
type Moment struct {
	At      time.Time `json:"at"`
	What    string    `json:"what"`
	Subject Ref       `json:"subject"`
	Kind    string    `json:"kind,omitempty"` // "change", "symptom", "note"
}

// Considered is one rule's verdict on one suspect.
type Considered struct {
	Rule    string  `json:"rule"`
	Title   string  `json:"title"`
	Subject Ref     `json:"subject"`
	Truth   Truth   `json:"truth"`
	Asked   []Asked `json:"asked,omitempty"`
}

// Asked is a question with its answer.
type Asked struct {
	Question string `json:"question"`
	Truth    Truth  `json:"truth"`
	Evidence []Fact `json:"evidence,omitempty"`
	Lacks    string `json:"lacks,omitempty"`
}

// Stats says how much was looked at.
type Stats struct {
	Rules     int      `json:"rules"`     // rules that were judged
	Questions int      `json:"questions"` // questions that were asked
	Facts     []string `json:"facts"`     // the probes that ran
}
