package diagnose_test

import (
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pposiraegi/ppodoctor/diagnose"
	"github.com/pposiraegi/ppodoctor/probes"
)

// TestReplay records each scenario while it is diagnosed, redacted, and
// diagnoses the recording: redaction keeps what decides.
func TestReplay(t *testing.T) {
	for _, dir := range scenarios(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			src, err := probes.OpenSnapshot(dir)
			if err != nil {
				t.Fatal(err)
			}
			recorder := probes.NewRecorder(src, probes.NewRedactor([]byte("test")), t.TempDir())
			live := walk(recorder)
			path := filepath.Join(t.TempDir(), "incident.tar.gz")
			if err := recorder.Write(path, nil); err != nil {
				t.Fatal(err)
			}
			recorded, err := probes.OpenSnapshot(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(comparable(t, live), comparable(t, walk(recorded))); diff != "" {
				t.Errorf("the recording is diagnosed differently (-live +replayed):\n%s", diff)
			}
		})
	}
}

// comparable is a diagnosis as JSON without what may differ between a source
// and its recording: the words of gaps, and what was redacted.
func comparable(t *testing.T, d *diagnose.Diagnosis) string {
	t.Helper()
	copied := *d
	copied.Gaps = slices.Clone(d.Gaps)
	for i := range copied.Gaps {
		copied.Gaps[i].Detail, copied.Gaps[i].Reason = "", ""
	}
	return redacted.ReplaceAllString(asJSON(t, &copied), "REDACTED")
}

var redacted = regexp.MustCompile(`REDACTED-[0-9a-f]{10}`)
