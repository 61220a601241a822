package diagnose_test

import (
	"errors"
	"testing"
	"time"

	"github.com/pposiraegi/ppodoctor/diagnose"
	"github.com/pposiraegi/ppodoctor/probes"
)

var (
	class  = diagnose.Ref{Kind: "EC2NodeClass", Name: "default"}
	api    = diagnose.Ref{Kind: "Deployment", Namespace: "shop", Name: "api"}
	cutOff = diagnose.Cause{
		Rule: "cut-off", Fingerprint: "f1", Title: "cut off", Subject: class, Subjects: []diagnose.Ref{class}, Effects: []diagnose.Ref{api},
		Verify: []diagnose.Verify{{Run: "kubectl run …", Expect: "an answer"}},
	}
	crashing = diagnose.Symptom{Rule: "crash", Fingerprint: "s1", Title: "crashes", Subject: api, ExplainedBy: []string{}}
)

// TestCompare has a row for each thing that can have become of a cause.
func TestCompare(t *testing.T) {
	yes := func(diagnose.Cause) (bool, diagnose.Fact, error) { return true, diagnose.Fact{Says: "3 pods"}, nil }
	no := func(diagnose.Cause) (bool, diagnose.Fact, error) { return false, diagnose.Fact{Says: "no node"}, nil }
	unknown := func(diagnose.Cause) (bool, diagnose.Fact, error) {
		return false, diagnose.Fact{}, &probes.Gap{Document: probes.Document{Path: "nodes"}, Reason: probes.Forbidden}
	}
	otherCause := cutOff
	otherCause.Rule, otherCause.Fingerprint = "other", "f2"
	for _, row := range []struct {
		name      string
		after     diagnose.Diagnosis
		exercised diagnose.Exercised
		want      string
		code      int
	}{
		{"the same", diagnose.Diagnosis{Causes: []diagnose.Cause{cutOff}}, yes, "there", 1},
		{"only a risk by now", diagnose.Diagnosis{Risks: []diagnose.Cause{cutOff}}, yes, "vanished", 3},
		{"only suspected by now", diagnose.Diagnosis{Suspected: []diagnose.Cause{cutOff}}, yes, "unsettled", 3},
		{"gone, and exercised", diagnose.Diagnosis{}, yes, "fixed", 0},
		{"gone, and nothing exercises it", diagnose.Diagnosis{}, no, "vanished", 3},
		{"gone, and that can't be told", diagnose.Diagnosis{}, unknown, "unsettled", 3},
		{"gone, between saved diagnoses", diagnose.Diagnosis{}, nil, "vanished", 3},
		{"ruled out", diagnose.Diagnosis{Considered: []diagnose.Considered{{
			Rule: "cut-off", Subject: class, Truth: diagnose.No, Asked: []diagnose.Asked{{Truth: diagnose.No}},
		}}}, nil, "fixed", 0},
		{"a document that it waits for is missing", diagnose.Diagnosis{Gaps: []diagnose.Gap{{Document: "nodes", Settles: []string{"cut-off"}}}}, yes, "unsettled", 3},
		{"gone, but what it hurt still hurts", diagnose.Diagnosis{Symptoms: []diagnose.Symptom{crashing}, Unexplained: []diagnose.Symptom{crashing}}, yes, "unsettled", 1},
		{"gone, but what it hurt has another cause", diagnose.Diagnosis{
			Causes: []diagnose.Cause{otherCause}, Symptoms: []diagnose.Symptom{crashing},
		}, yes, "unsettled", 1},
	} {
		d := diagnose.Compare(&diagnose.Diagnosis{Causes: []diagnose.Cause{cutOff}}, &row.after, row.exercised)
		got := ""
		for name, list := range map[string][]diagnose.Outcome{"there": d.There, "fixed": d.Fixed, "vanished": d.Vanished, "unsettled": d.Unsettled} {
			for _, o := range list {
				if o.Fingerprint == "f1" {
					got += name
				}
				if name == "vanished" && len(o.Verify) == 0 {
					t.Errorf("%s: no run that would prove it", row.name)
				}
			}
		}
		if got != row.want || d.ExitCode() != row.code {
			t.Errorf("%s: %q, exit code %d; want %q, %d", row.name, got, d.ExitCode(), row.want, row.code)
		}
	}
}

func TestCompareFindsTheNew(t *testing.T) {
	d := diagnose.Compare(&diagnose.Diagnosis{}, &diagnose.Diagnosis{Causes: []diagnose.Cause{cutOff}, Unexplained: []diagnose.Symptom{crashing}}, nil)
	if len(d.New) != 2 || d.ExitCode() != 1 {
		t.Errorf("new: %v, exit code %d", d.New, d.ExitCode())
	}
	// A risk alone hurts nothing.
	if d := diagnose.Compare(&diagnose.Diagnosis{}, &diagnose.Diagnosis{Risks: []diagnose.Cause{cutOff}}, nil); len(d.New) != 1 || d.ExitCode() != 0 {
		t.Errorf("a new risk: %v, exit code %d", d.New, d.ExitCode())
	}
}

func TestSuppress(t *testing.T) {
	now := time.Date(2026, 5, 2, 0, 0, 0, 0, time.UTC)
	explained := crashing
	explained.ExplainedBy = []string{"f1"}
	for _, row := range []struct {
		rule, subject string
		expires       time.Time
		hides         bool
	}{
		{"cut-off", "EC2NodeClass/default", now.Add(time.Hour), true},
		{"cut-off", "EC2NodeClass/*", now.Add(time.Hour), true},
		{"cut-off", "*", now.Add(time.Hour), true},
		{"cut-off", "*", now, false},                                 // expired
		{"cut-off", "Deployment/*/*", now.Add(time.Hour), false},     // another subject
		{"other", "EC2NodeClass/default", now.Add(time.Hour), false}, // another rule
		{"cut-off", "[", now.Add(time.Hour), false},                  // no pattern
	} {
		d := &diagnose.Diagnosis{At: now, Causes: []diagnose.Cause{cutOff}, Symptoms: []diagnose.Symptom{explained}}
		d.Suppress([]diagnose.Suppression{{Rule: row.rule, Subject: row.subject, Reason: "r", Expires: row.expires}})
		hidden := len(d.Causes) == 0 && len(d.Symptoms) == 0
		if hidden != row.hides || (d.ExitCode() == 0) != row.hides {
			t.Errorf("%s %s: hidden %v, exit code %d", row.rule, row.subject, hidden, d.ExitCode())
		}
		if len(d.Suppressed) != 1 || (len(d.Suppressed[0].Hides) == 1) != row.hides {
			t.Errorf("%s %s: not said what was hidden: %+v", row.rule, row.subject, d.Suppressed)
		}
	}
}

// A symptom that another cause explains too stays.
func TestSuppressKeepsWhatElseIsWrong(t *testing.T) {
	both := crashing
	both.ExplainedBy = []string{"f1", "f2"}
	d := &diagnose.Diagnosis{Causes: []diagnose.Cause{cutOff}, Symptoms: []diagnose.Symptom{both}}
	d.Suppress([]diagnose.Suppression{{Rule: "cut-off", Subject: "*", Expires: d.At.Add(time.Hour)}})
	if len(d.Symptoms) != 1 || d.ExitCode() != 1 {
		t.Errorf("symptoms %v, exit code %d", d.Symptoms, d.ExitCode())
	}
}

func TestSince(t *testing.T) {
	earlier := &diagnose.Diagnosis{Causes: []diagnose.Cause{cutOff}}
	d := &diagnose.Diagnosis{Causes: []diagnose.Cause{cutOff}, Unexplained: []diagnose.Symptom{crashing}, Symptoms: []diagnose.Symptom{crashing}}
	d.Since(earlier, nil)
	if len(d.Causes) != 0 || len(d.Unexplained) != 1 || len(d.Baseline.There) != 1 || len(d.Baseline.New) != 1 {
		t.Errorf("causes %v, unexplained %v, baseline %+v", d.Causes, d.Unexplained, d.Baseline)
	}
	// What stands differently is reported.
	d = &diagnose.Diagnosis{Causes: []diagnose.Cause{cutOff}}
	d.Since(&diagnose.Diagnosis{Suspected: []diagnose.Cause{cutOff}}, func(diagnose.Cause) (bool, diagnose.Fact, error) {
		return false, diagnose.Fact{}, errors.New("not asked")
	})
	if len(d.Causes) != 1 {
		t.Errorf("a suspicion that was proven is not reported: %+v", d)
	}
}
