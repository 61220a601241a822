package diagnose_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/pposiraegi/ppodoctor/diagnose"
	"github.com/pposiraegi/ppodoctor/knowledge"
	"github.com/pposiraegi/ppodoctor/probes"
)

// An expectation is a scenario's expect.yaml; see the snapshot format.
type expectation struct {
	Title     string   `json:"title"`
	Source    string   `json:"source"`
	Causes    []expect `json:"causes"`
	Risks     []expect `json:"risks"`
	Suspected []expect `json:"suspected"`
	Gaps      []string `json:"gaps"`
	Never     []string `json:"never"`
	Healthy   bool     `json:"healthy"`
}

type expect struct {
	Rule     string   `json:"rule"`
	About    []string `json:"about"`
	Says     []string `json:"says"`
	Within   int      `json:"within"`
	Explains []string `json:"explains"`
}

var loadKnowledge = sync.OnceValue(func() *knowledge.Knowledge {
	k, err := knowledge.Load()
	if err != nil {
		panic(err)
	}
	return k
})

// scenarios are the folders of testdata that have an expect.yaml.
func scenarios(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("../testdata/*/expect.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var dirs []string
	for _, f := range files {
		dirs = append(dirs, filepath.Dir(f))
	}
	if len(dirs) == 0 {
		t.Fatal("no scenario in testdata")
	}
	return dirs
}

func walk(src probes.Source) *diagnose.Diagnosis {
	k := loadKnowledge()
	return diagnose.Walk(context.Background(), newFacts(src), k, diagnose.Options{Verbose: true})
}

func newFacts(src probes.Source) *probes.Facts { return probes.NewFacts(src) }

func asJSON(t *testing.T, d *diagnose.Diagnosis) string {
	t.Helper()
	b, err := json.MarshalIndent(d, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestScenarios judges each incident, and judges it again with each document
// withheld in turn.
func TestScenarios(t *testing.T) {
	coverage := &answered{count: map[string]map[diagnose.Truth]int{}}
	t.Cleanup(func() {
		for _, m := range coverage.missing(diagnose.Yes, diagnose.No) {
			t.Log(m)
		}
	})
	for _, dir := range scenarios(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			var want expectation
			data, err := os.ReadFile(filepath.Join(dir, "expect.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			if err := yaml.UnmarshalStrict(data, &want); err != nil {
				t.Fatalf("expect.yaml: %v", err)
			}
			src, err := probes.OpenSnapshot(dir)
			if err != nil {
				t.Fatal(err)
			}
			seen := &recorder{Source: src}
			full := walk(seen)
			judge(t, want, full)
			coverage.add(full)
			if t.Failed() {
				return
			}
			if diff := cmp.Diff(asJSON(t, full), asJSON(t, walk(seen))); diff != "" {
				t.Errorf("a second walk differs:\n%s", diff)
			}
			if testing.Short() {
				return
			}
			for _, doc := range seen.opened() {
				d := walk(&withholder{Source: src, path: doc})
				coverage.add(d)
				withheld(t, full, d, doc)
			}
		})
	}
}

// TestArchivedClustersAreHealthy walks whole clusters in which nothing is wrong.
func TestArchivedClustersAreHealthy(t *testing.T) {
	files, err := filepath.Glob("../testdata/*.tar.gz")
	if err != nil || len(files) == 0 {
		t.Fatalf("no archived cluster: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			src, err := probes.OpenSnapshot(file)
			if err != nil {
				t.Fatal(err)
			}
			judge(t, expectation{Healthy: true}, walk(src))
		})
	}
}

func judge(t *testing.T, want expectation, d *diagnose.Diagnosis) {
	t.Helper()
	report := func(format string, args ...any) {
		t.Helper()
		t.Errorf(format+"\n%s", append(args, brief(d))...)
	}
	for _, list := range []struct {
		name  string
		want  []expect
		got   []diagnose.Cause
		exact bool
	}{{"causes", want.Causes, d.Causes, true}, {"risks", want.Risks, d.Risks, false}, {"suspected", want.Suspected, d.Suspected, false}} {
		for _, e := range list.want {
			if err := meets(e, list.got, list.exact); err != nil {
				report("%s: %v", list.name, err)
			}
		}
	}
	if want.Healthy && (len(d.Causes) > 0 || len(d.Suspected) > 0 || len(d.Symptoms) > 0) {
		report("a healthy cluster has causes, suspects or symptoms")
	}
	if len(want.Causes) == 0 && len(d.Causes) > 0 {
		report("no cause is expected")
	}
	for _, pattern := range want.Gaps {
		re := regexp.MustCompile("(?i)" + pattern)
		if !slices.ContainsFunc(d.Gaps, func(g diagnose.Gap) bool {
			return re.MatchString(strings.Join([]string{g.Document, g.Reason, g.Grant, g.Detail}, " "))
		}) {
			report("no gap matches %q", pattern)
		}
	}
	for _, pattern := range want.Never {
		re := regexp.MustCompile("(?i)" + pattern)
		for _, c := range d.Causes {
			if re.MatchString(c.Title) || re.MatchString(c.Summary) {
				report("cause %s matches %q, which it never may", c.Rule, pattern)
			}
		}
	}
}

// meets finds the cause that an expectation asks for.
func meets(e expect, causes []diagnose.Cause, ranked bool) error {
	within := max(e.Within, 1)
	var why []string
	for i, c := range causes {
		switch {
		case e.Rule != "" && c.Rule != e.Rule:
			why = append(why, fmt.Sprintf("%s is another rule", c.Rule))
		case len(e.About) > 0 && !slices.ContainsFunc(e.About, func(pattern string) bool { return matches(pattern, c.Subject) }):
			why = append(why, fmt.Sprintf("%s is about %s", c.Rule, c.Subject))
		case ranked && i >= within:
			why = append(why, fmt.Sprintf("%s comes only at rank %d", c.Rule, i+1))
		default:
			text := causeText(c)
			for _, pattern := range e.Says {
				if !regexp.MustCompile("(?is)" + pattern).MatchString(text) {
					return fmt.Errorf("%s does not say %q; it says:\n%s", c.Rule, pattern, text)
				}
			}
			for _, pattern := range e.Explains {
				if !slices.ContainsFunc(c.Effects, func(r diagnose.Ref) bool { return matches(pattern, r) }) &&
					!slices.ContainsFunc(c.Chain, func(s diagnose.Step) bool {
						return slices.ContainsFunc(s.Evidence, func(f diagnose.Fact) bool { return strings.Contains(f.Says, path.Base(pattern)) })
					}) {
					return fmt.Errorf("%s does not explain %s", c.Rule, pattern)
				}
			}
			return nil
		}
	}
	return fmt.Errorf("nothing meets %+v: %s", e, strings.Join(why, "; "))
}

// matches compares Kind/name or Kind/namespace/name, * as wildcard, to a Ref.
func matches(pattern string, r diagnose.Ref) bool {
	parts := strings.Split(pattern, "/")
	got := []string{r.Kind, r.Namespace, r.Name}
	if len(parts) == 2 {
		got = []string{r.Kind, r.Name}
	}
	if len(parts) != len(got) {
		return false
	}
	for i := range parts {
		if ok, err := path.Match(parts[i], got[i]); err != nil || !ok && !strings.EqualFold(parts[i], got[i]) {
			return false
		}
	}
	return true
}

func causeText(c diagnose.Cause) string {
	var b strings.Builder
	fmt.Fprintln(&b, c.Title)
	fmt.Fprintln(&b, c.Summary)
	for _, e := range c.Evidence {
		fmt.Fprintln(&b, e.Says)
	}
	for _, r := range c.Remedies {
		fmt.Fprintln(&b, r.Do, strings.Join(r.Commands, "\n"), r.Terraform, r.Manifest, r.Caution)
	}
	return b.String()
}

func brief(d *diagnose.Diagnosis) string {
	var b strings.Builder
	fmt.Fprintln(&b, "verdict:", d.Verdict)
	for _, list := range []struct {
		name   string
		causes []diagnose.Cause
	}{{"cause", d.Causes}, {"suspected", d.Suspected}, {"risk", d.Risks}} {
		for _, c := range list.causes {
			fmt.Fprintf(&b, "%s: %s %s: %s | %s\n", list.name, c.Rule, c.Subject, c.Title, c.Summary)
		}
	}
	for _, s := range d.Symptoms {
		fmt.Fprintf(&b, "symptom: %s %s explainedBy=%v\n", s.Rule, s.Subject, s.ExplainedBy)
	}
	for _, g := range d.Gaps {
		fmt.Fprintf(&b, "gap: %s %s\n", g.Document, g.Reason)
	}
	for _, c := range d.Considered {
		if c.Truth != diagnose.Yes {
			for _, a := range c.Asked {
				if a.Truth != diagnose.Yes {
					fmt.Fprintf(&b, "considered: %s %s: %s %s %s\n", c.Rule, c.Subject, a.Question, a.Truth, a.Lacks)
				}
			}
		}
	}
	return b.String()
}

// withheld holds a diagnosis against the one with all documents: nothing
// flips, nothing goes silent, the gap is named.
func withheld(t *testing.T, full, d *diagnose.Diagnosis, doc string) {
	t.Helper()
	known := func(rule string, subject diagnose.Ref) bool {
		for _, c := range full.Causes {
			if slices.Contains(c.Subjects, subject) || c.Subject == subject { // the same object to change, for what less is known of
				return true
			}
			if slices.ContainsFunc(c.Chain, func(s diagnose.Step) bool { return s.Rule == rule && s.Subject == subject }) {
				return true
			}
			if c.Rule == rule && slices.Contains(c.Subjects, subject) {
				return true // the same, by the less telling of its objects
			}
		}
		return false
	}
	for _, c := range d.Causes {
		if !known(c.Rule, c.Subject) {
			t.Errorf("without %s there is a new cause: %s %s", doc, c.Rule, c.Subject)
		}
	}
	named := slices.ContainsFunc(d.Gaps, func(g diagnose.Gap) bool { return g.Document == doc }) || quiet(full, doc)
	for _, c := range full.Causes {
		still := slices.ContainsFunc(d.Causes, func(o diagnose.Cause) bool { return o.Rule == c.Rule && o.Subject == c.Subject })
		if !still && !named {
			t.Errorf("without %s the cause %s %s is gone and the gap is not named\n%s", doc, c.Rule, c.Subject, brief(d))
		}
	}
	if len(full.Symptoms) > 0 && len(d.Symptoms) == 0 && !named {
		t.Errorf("without %s all is silent", doc)
	}
}

// quiet reports whether a document is the log of a container that looks
// healthy: nobody captures them all, so that one more without is no gap.
func quiet(full *diagnose.Diagnosis, doc string) bool {
	return slices.ContainsFunc(full.Symptoms, func(s diagnose.Symptom) bool {
		return slices.Contains([]string{"clients-failing", "clients-refused", "aws-calls-refused", "mesh-calls-denied"}, s.Rule) && slices.ContainsFunc(append(s.Examples, s.Subject), func(r diagnose.Ref) bool {
			return r.Kind == "Pod" && strings.HasPrefix(doc, "logs/"+r.Namespace+"/"+r.Name+"/")
		})
	})
}

// A recorder notes which documents were opened and could be had.
type recorder struct {
	probes.Source
	mu    sync.Mutex
	paths []string
}

func (r *recorder) Open(ctx context.Context, doc probes.Document) (io.ReadCloser, error) {
	rc, err := r.Source.Open(ctx, doc)
	if err == nil {
		r.mu.Lock()
		r.paths = append(r.paths, doc.Path)
		r.mu.Unlock()
	}
	return rc, err
}

func (r *recorder) opened() []string {
	slices.Sort(r.paths)
	return slices.Compact(r.paths)
}

// A withholder lacks one document.
type withholder struct {
	probes.Source
	path string
}

func (w *withholder) Open(ctx context.Context, doc probes.Document) (io.ReadCloser, error) {
	if doc.Path == w.path {
		return nil, &probes.Gap{Document: doc, Reason: probes.NotCaptured, Grant: doc.Grant(), Detail: "withheld by the test"}
	}
	return w.Source.Open(ctx, doc)
}

// TestEveryRuleHasTexts keeps rules and knowledge in step.
func TestEveryRuleHasTexts(t *testing.T) {
	k := loadKnowledge()
	ids := map[string]bool{}
	for _, r := range diagnose.Rules() {
		if ids[r.ID] {
			t.Errorf("rule %s is there twice", r.ID)
		}
		ids[r.ID] = true
		e := k.Rules[r.ID]
		if e == nil {
			t.Errorf("rule %s has no entry in knowledge/rules", r.ID)
			continue
		}
		if len(e.Sources) == 0 {
			t.Errorf("the entry of %s cites no source", r.ID)
		}
		if len(r.Explains) > 0 && !r.Intermediate && (len(e.Remedies) == 0 || len(e.Verify) == 0) {
			t.Errorf("cause %s needs remedies and verify", r.ID)
		}
		for _, q := range r.Tests {
			if !strings.HasSuffix(q.Asks, "?") {
				t.Errorf("rule %s: %q is not a question", r.ID, q.Asks)
			}
		}
	}
	for _, id := range k.IDs() {
		if !ids[id] && k.Rules[id].Undecidable == "" {
			t.Errorf("the entry %s has no rule", id)
		}
	}
}

// TestTextsAreFilled finds placeholders that no finding fills.
func TestTextsAreFilled(t *testing.T) {
	left := regexp.MustCompile(`\{[a-z][a-zA-Z]*\}`)
	for _, dir := range scenarios(t) {
		src, err := probes.OpenSnapshot(dir)
		if err != nil {
			t.Fatal(err)
		}
		d := walk(src)
		for _, c := range slices.Concat(d.Causes, d.Suspected, d.Risks) {
			for _, s := range []string{c.Title, c.Summary, c.Because} {
				if m := left.FindString(s); m != "" {
					t.Errorf("%s: %s leaves %s in %q", filepath.Base(dir), c.Rule, m, s)
				}
			}
		}
		for _, s := range d.Symptoms {
			if m := left.FindString(s.Title + s.Summary); m != "" {
				t.Errorf("%s: %s leaves %s", filepath.Base(dir), s.Rule, m)
			}
		}
	}
}
