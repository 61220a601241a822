package report

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	generator "github.com/invopop/jsonschema"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"

	"github.com/pposiraegi/ppodoctor/diagnose"
)

// The schema is what the types say: -update writes it anew.
func TestSchemaIsOfTheTypes(t *testing.T) {
	reflector := &generator.Reflector{
		AllowAdditionalProperties: true,
		Mapper: func(typ reflect.Type) *generator.Schema {
			if typ == reflect.TypeFor[diagnose.Truth]() {
				return &generator.Schema{Type: "string", Enum: []any{diagnose.Yes, diagnose.No, diagnose.Unknown}}
			}
			return nil
		},
	}
	for _, pkg := range []string{"diagnose", "probes"} {
		// The generator joins the two, so that the dots take the slashes back.
		if err := reflector.AddGoComments("github.com/pposiraegi/ppodoctor/cmd/ppodoctor/report", "../../../"+pkg); err != nil {
			t.Fatal(err)
		}
	}
	schema := reflector.Reflect(&diagnose.Diagnosis{})
	schema.ID = "https://github.com/pposiraegi/ppodoctor/schema/v1"
	schema.Title = diagnose.Schema
	got, err := json.MarshalIndent(schema, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	if *update {
		if err := os.WriteFile("schema.json", got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(Schema), string(got)); diff != "" {
		t.Errorf("schema.json (-have +want), -update accepts:\n%s", diff)
	}
}

// compiled is our own schema.
func compiled(t testing.TB) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	if err := compiler.AddResource("schema.json", doc); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

func TestJSONFollowsTheSchema(t *testing.T) {
	schema := compiled(t)
	for _, name := range samples {
		d := sample(t, name)
		text := render(t, d, "json", Options{})
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader([]byte(text)))
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(value); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		back := new(diagnose.Diagnosis)
		if err := json.Unmarshal([]byte(text), back); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(d, back); diff != "" {
			t.Errorf("%s: JSON changes the data:\n%s", name, diff)
		}
		harmless(t, name+" json", text)

		text = render(t, d, "yaml", Options{})
		back = new(diagnose.Diagnosis)
		if err := yaml.Unmarshal([]byte(text), back); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(d, back); diff != "" {
			t.Errorf("%s: YAML changes the data:\n%s", name, diff)
		}
		harmless(t, name+" yaml", text)
	}
}

func harmless(t *testing.T, name, text string) {
	t.Helper()
	for _, r := range text {
		if r != '\n' && hidden(r) {
			t.Errorf("%s: %U raw", name, r)
		}
	}
}

// A broken diagnosis must not pass.
func TestSchemaRefuses(t *testing.T) {
	schema := compiled(t)
	for name, breakIt := range map[string]func(map[string]any){
		"no verdict":      func(d map[string]any) { delete(d, "verdict") },
		"null causes":     func(d map[string]any) { d["causes"] = nil },
		"a time in words": func(d map[string]any) { d["at"] = "yesterday" },
		"an unknown truth": func(d map[string]any) {
			d["considered"].([]any)[0].(map[string]any)["truth"] = "perhaps"
		},
	} {
		var d map[string]any
		if err := json.Unmarshal([]byte(render(t, sample(t, "dns"), "json", Options{})), &d); err != nil {
			t.Fatal(err)
		}
		breakIt(d)
		if schema.Validate(d) == nil {
			t.Errorf("%s passes", name)
		}
	}
}
