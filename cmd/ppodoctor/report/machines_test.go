package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	_ "github.com/owenrumney/go-sarif/v3/pkg/report/v210/sarif"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

func TestMachineFormats(t *testing.T) {
	for _, format := range []string{"sarif", "junit", "openmetrics", "slack", "pagerduty", "yaml"} {
		golden(t, "dns."+format, render(t, sample(t, "dns"), format, Options{}))
		for _, name := range samples {
			harmless(t, name+" "+format, render(t, sample(t, name), format, Options{}))
		}
	}
}

func TestSARIF(t *testing.T) {
	schema := officialSARIF(t)
	if schema.Validate(object{"version": "2.1.0", "runs": []any{object{}}}) == nil {
		t.Error("a run without a tool passes: the schema isn't in use")
	}
	for _, name := range samples {
		value, err := jsonschema.UnmarshalJSON(strings.NewReader(render(t, sample(t, name), "sarif", Options{})))
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(value); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, result := range value.(object)["runs"].([]any)[0].(object)["results"].([]any) {
			// §3.27.10: only a failure has a level.
			if r := result.(object); r["kind"] != "fail" && r["level"] != "none" {
				t.Errorf("%s: a result of kind %s has the level %s", name, r["kind"], r["level"])
			}
		}
	}
}

// officialSARIF is the OASIS schema, which go-sarif holds as a constant.
func officialSARIF(t *testing.T) *jsonschema.Schema {
	t.Helper()
	pkg, err := build.Import("github.com/owenrumney/go-sarif/v3/pkg/report/v210/sarif", ".", build.FindOnly)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(pkg.Dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		object := parsed.Scope.Lookup("schema")
		if object == nil {
			continue
		}
		literal := object.Decl.(*ast.ValueSpec).Values[0].(*ast.BasicLit)
		text, err := strconv.Unquote(literal.Value)
		if err != nil {
			t.Fatal(err)
		}
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		compiler := jsonschema.NewCompiler()
		compiler.AssertFormat()
		if err := compiler.AddResource("sarif.json", doc); err != nil {
			t.Fatal(err)
		}
		return compiler.MustCompile("sarif.json")
	}
	t.Fatal("go-sarif holds no schema")
	return nil
}

func TestJUnit(t *testing.T) {
	for _, name := range samples {
		var all junitSuites
		if err := xml.Unmarshal([]byte(render(t, sample(t, name), "junit", Options{})), &all); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, s := range all.Suites {
			failures, skipped := 0, 0
			for _, c := range s.Cases {
				if c.Failure != nil {
					failures++
				}
				if c.Skipped != nil {
					skipped++
				}
			}
			if len(s.Cases) != s.Tests || failures != s.Failures || skipped != s.Skipped {
				t.Errorf("%s: %s says %d tests, %d failures, %d skipped; has %d, %d, %d", name, s.Name, s.Tests, s.Failures, s.Skipped, len(s.Cases), failures, skipped)
			}
		}
	}
	// What couldn't be asked is skipped, never passed.
	var all junitSuites
	if err := xml.Unmarshal([]byte(render(t, sample(t, "suspected"), "junit", Options{})), &all); err != nil {
		t.Fatal(err)
	}
	for _, s := range all.Suites {
		for _, c := range s.Cases {
			open := c.Class == "dns-cut-off-by-security-groups" || c.Class == "gap"
			if open != (c.Skipped != nil) {
				t.Errorf("%s %s: skipped is %v", c.Class, c.Name, c.Skipped != nil)
			}
		}
	}
}

func TestOpenMetrics(t *testing.T) {
	line := regexp.MustCompile(`^(# (TYPE|HELP|UNIT) [a-z_]+ .+|[a-z_]+(\{[a-z]+="([^"\\\n]|\\[\\"n])*"(,[a-z]+="([^"\\\n]|\\[\\"n])*")*\})? [0-9]+)$`)
	for _, name := range samples {
		text := render(t, sample(t, name), "openmetrics", Options{})
		body, ok := strings.CutSuffix(text, "# EOF\n")
		if !ok {
			t.Errorf("%s: doesn't end in # EOF", name)
		}
		for l := range strings.Lines(body) {
			if !line.MatchString(strings.TrimSuffix(l, "\n")) {
				t.Errorf("%s: %s", name, l)
			}
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(body))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := len(families["ppodoctor_cause"].GetMetric()); got != len(sample(t, name).Causes)+len(sample(t, name).Suspected)+len(sample(t, name).Risks) {
			t.Errorf("%s: %d causes", name, got)
		}
	}
}

func TestSlackKeepsItsLimits(t *testing.T) {
	large := sample(t, "hostile")
	for range 40 {
		large.Causes = append(large.Causes, large.Causes[0])
	}
	large.Verdict = strings.Repeat("<&>", 4000)
	large.Causes[0].Summary = strings.Repeat("가<&>", 4000)
	texts := []string{render(t, large, "slack", Options{})}
	for _, name := range samples {
		texts = append(texts, render(t, sample(t, name), "slack", Options{}))
	}
	for _, text := range texts {
		var message struct {
			Text   string
			Blocks []struct {
				Type     string
				Text     *struct{ Type, Text string }
				Elements []struct{ Type, Text string }
			}
		}
		if err := json.Unmarshal([]byte(text), &message); err != nil {
			t.Fatal(err)
		}
		if n := len(message.Blocks); n == 0 || n > 50 {
			t.Errorf("%d blocks", n)
		}
		if n := utf8.RuneCountInString(message.Text); n == 0 || n > 4000 {
			t.Errorf("text of %d characters", n)
		}
		limits := map[string]int{"header": 150, "section": 3000}
		for _, b := range message.Blocks {
			switch b.Type {
			case "header", "section":
				if n := utf8.RuneCountInString(b.Text.Text); n == 0 || n > limits[b.Type] {
					t.Errorf("%s of %d characters", b.Type, n)
				}
				if b.Type == "section" && regexp.MustCompile(`<|&(?:$|[^aglt]|am$|amp$|l$|g$|lt$|gt$)`).MatchString(b.Text.Text) {
					t.Errorf("raw markup in %q", b.Text.Text)
				}
			case "context":
				if len(b.Elements) > 10 {
					t.Errorf("%d elements", len(b.Elements))
				}
			case "divider":
			default:
				t.Errorf("block %q", b.Type)
			}
		}
	}
}

func TestPagerDuty(t *testing.T) {
	severities := map[string]bool{"critical": true, "error": true, "warning": true, "info": true}
	for _, name := range samples {
		d := sample(t, name)
		keys := map[string]bool{}
		decoder := json.NewDecoder(bytes.NewReader([]byte(render(t, d, "pagerduty", Options{}))))
		for decoder.More() {
			var event struct {
				Action  string `json:"event_action"`
				Key     string `json:"dedup_key"`
				Payload struct{ Summary, Source, Severity string }
			}
			if err := decoder.Decode(&event); err != nil {
				t.Fatal(err)
			}
			if event.Action == "resolve" && name == "compared" && event.Key != "" {
				keys[event.Key] = true
				continue
			}
			p := event.Payload
			if event.Action != "trigger" || event.Key == "" || len(event.Key) > 255 || p.Source == "" || !severities[p.Severity] ||
				p.Summary == "" || utf8.RuneCountInString(p.Summary) > 1024 {
				t.Errorf("%s: %+v", name, event)
			}
			keys[event.Key] = true
		}
		for _, c := range d.Causes {
			if !keys[c.Fingerprint] {
				t.Errorf("%s: no event for %s", name, c.Fingerprint)
			}
		}
		if d.Baseline != nil && len(keys) != len(d.Baseline.Fixed) {
			t.Errorf("%s: resolves %v", name, keys)
		}
	}
}
