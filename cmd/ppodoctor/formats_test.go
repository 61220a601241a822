package main

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/pposiraegi/ppodoctor/cmd/ppodoctor/report"
	"github.com/pposiraegi/ppodoctor/diagnose"
	"github.com/pposiraegi/ppodoctor/knowledge"
	"github.com/pposiraegi/ppodoctor/probes"
)

// Every scenario can be written in every format, and its JSON follows the
// schema.
func TestScenariosInEveryFormat(t *testing.T) {
	k, err := knowledge.Load()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(report.Schema))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	if err := compiler.AddResource("schema.json", doc); err != nil {
		t.Fatal(err)
	}
	schema := compiler.MustCompile("schema.json")
	files, err := filepath.Glob("../../testdata/*/snapshot.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenario: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) {
			t.Parallel()
			src, err := probes.OpenSnapshot(filepath.Dir(file))
			if err != nil {
				t.Fatal(err)
			}
			d := diagnose.Walk(t.Context(), probes.NewFacts(src), k, diagnose.Options{Verbose: true})
			for _, f := range report.Formats() {
				var b bytes.Buffer
				if err := report.Write(&b, d, f.Name, report.Options{Verbose: true}); err != nil {
					t.Errorf("%s: %v", f.Name, err)
				}
				if f.Name != "json" {
					continue
				}
				value, err := jsonschema.UnmarshalJSON(&b)
				if err != nil {
					t.Fatal(err)
				}
				if err := schema.Validate(value); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
