package report

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"slices"
	"strings"

	"github.com/pposiraegi/ppodoctor/diagnose"
)

// The shape is that of Ant's JUnit reports, which every reader takes; its
// schema is github.com/windyroad/JUnit-Schema.
type junitSuites struct {
	XMLName xml.Name     `xml:"testsuites"`
	Suites  []junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	ID         int         `xml:"id,attr"`
	Package    string      `xml:"package,attr"`
	Name       string      `xml:"name,attr"`
	Timestamp  string      `xml:"timestamp,attr"`
	Hostname   string      `xml:"hostname,attr"`
	Tests      int         `xml:"tests,attr"`
	Failures   int         `xml:"failures,attr"`
	Errors     int         `xml:"errors,attr"`
	Skipped    int         `xml:"skipped,attr"`
	Time       string      `xml:"time,attr"`
	Properties struct{}    `xml:"properties"`
	Cases      []junitCase `xml:"testcase"`
	Out        string      `xml:"system-out"`
	Err        string      `xml:"system-err"`
}

type junitCase struct {
	Name    string        `xml:"name,attr"`
	Class   string        `xml:"classname,attr"`
	Time    string        `xml:"time,attr"`
	Skipped *junitOutcome `xml:"skipped"`
	Failure *junitOutcome `xml:"failure"`
	out     string        // goes to the suite's: a test has none in the schema
}

type junitOutcome struct {
	Message string `xml:"message,attr"`
	Type    string `xml:"type,attr,omitempty"`
	Text    string `xml:",chardata"`
}

// junit has a test for each fault that was judged: confirmed is a failure,
// ruled out has passed, and what couldn't be asked is skipped, never passed. A
// risk has passed, with what it says. Each unexplained symptom is a failure,
// each gap is skipped.
func junit(b *bytes.Buffer, dirty *diagnose.Diagnosis, _ Options) error {
	d, err := cleaned(dirty)
	if err != nil {
		return err
	}
	faults := suite(d, "faults")
	done := map[string]bool{}
	test := func(rule, title string, ref *diagnose.Ref, fill func(*junitCase)) {
		c := junitCase{Name: title, Class: rule, Time: "0"}
		if ref != nil {
			c.Name += " (" + ref.String() + ")"
		}
		if done[c.Class+" "+c.Name] {
			return
		}
		done[c.Class+" "+c.Name] = true
		fill(&c)
		faults.add(c)
	}
	for _, c := range d.Causes {
		test(c.Rule, c.Title, &c.Subject, func(t *junitCase) {
			t.Failure = &junitOutcome{Message: cmp.Or(c.Summary, c.Title), Type: "cause", Text: says(c.Evidence)}
		})
	}
	for _, c := range d.Suspected {
		test(c.Rule, c.Title, &c.Subject, func(t *junitCase) {
			var open []string
			for _, o := range c.Open {
				open = append(open, o.Asked+" "+o.Lacks)
			}
			t.Skipped = &junitOutcome{Message: cmp.Or(strings.Join(open, "; "), c.Title)}
		})
	}
	for _, c := range d.Risks {
		test(c.Rule, c.Title, &c.Subject, func(t *junitCase) { t.out = cmp.Or(c.Summary, c.Title) })
	}
	for _, c := range slices.Concat(d.Causes, d.Suspected) {
		for _, r := range c.RuledOut {
			test(r.Rule, r.Title, r.Subject, func(t *junitCase) { t.out = says(r.Evidence) })
		}
	}
	for _, c := range d.Considered {
		test(c.Rule, c.Title, &c.Subject, func(t *junitCase) {
			if c.Truth == diagnose.Unknown {
				var lacks []string
				for _, a := range c.Asked {
					if a.Truth == diagnose.Unknown {
						lacks = append(lacks, a.Question+" "+a.Lacks)
					}
				}
				t.Skipped = &junitOutcome{Message: cmp.Or(strings.Join(lacks, "; "), c.Title)}
			}
		})
	}
	symptoms := suite(d, "symptoms")
	for _, s := range d.Symptoms {
		c := junitCase{Name: s.Title + " (" + s.Subject.String() + ")", Class: s.Rule, Time: "0"}
		if len(s.ExplainedBy) > 0 {
			c.out = strings.Join(s.ExplainedBy, " ")
		} else {
			c.Failure = &junitOutcome{Message: cmp.Or(s.Summary, s.Title), Type: "unexplained", Text: says(slices.Concat(s.Evidence, s.Lead))}
		}
		symptoms.add(c)
	}
	gaps := suite(d, "gaps")
	for _, g := range d.Gaps {
		gaps.add(junitCase{Name: g.Document, Class: "gap", Time: "0", Skipped: &junitOutcome{Message: strings.TrimSpace(g.Reason + " " + g.Detail)}})
	}
	all := junitSuites{Suites: []junitSuite{*faults, *symptoms, *gaps}}
	for i := range all.Suites {
		all.Suites[i].ID = i
	}
	b.WriteString(xml.Header)
	encoder := xml.NewEncoder(b)
	encoder.Indent("", "  ")
	if err := encoder.Encode(all); err != nil {
		return err
	}
	b.WriteByte('\n')
	return nil
}

func suite(d *diagnose.Diagnosis, name string) *junitSuite {
	return &junitSuite{Package: "ppodoctor", Name: name, Time: "0", Timestamp: d.At.UTC().Format("2006-01-02T15:04:05"), Hostname: cmp.Or(d.Cluster.Name, "cluster")}
}

func (s *junitSuite) add(c junitCase) {
	s.Tests++
	if c.Failure != nil {
		s.Failures++
	}
	if c.Skipped != nil {
		s.Skipped++
	}
	if c.out != "" {
		s.Out += c.Name + "\n" + c.out + "\n"
	}
	s.Cases = append(s.Cases, c)
}

// says is evidence as lines, each with its command.
func says(facts []diagnose.Fact) string {
	var b strings.Builder
	for _, f := range facts {
		b.WriteString(f.Says + "\n")
		if f.Command != "" {
			b.WriteString("  $ " + f.Command + "\n")
		}
	}
	return b.String()
}
