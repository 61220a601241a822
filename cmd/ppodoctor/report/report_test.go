package report

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pposiraegi/ppodoctor/diagnose"
)

var update = flag.Bool("update", false, "write the golden files anew")

var samples = []string{"dns", "suspected", "risk", "healthy", "hostile", "compared"}

// sample is a diagnosis of testdata.
func sample(t testing.TB, name string) *diagnose.Diagnosis {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var d diagnose.Diagnosis
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&d); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return &d
}

func render(t testing.TB, d *diagnose.Diagnosis, format string, opts Options) string {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, d, format, opts); err != nil {
		t.Fatalf("%s: %v", format, err)
	}
	return b.String()
}

// golden compares with a file of testdata/golden, or writes it with -update.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", "golden", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got), -update accepts:\n%s", path, diff)
	}
}
