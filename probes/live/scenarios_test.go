//go:build controlplane

package live

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pposiraegi/ppodoctor/diagnose"
	"github.com/pposiraegi/ppodoctor/knowledge"
	"github.com/pposiraegi/ppodoctor/probes"
)

// TestScenarios loads every scenario into a real control plane: the running
// cluster, its recording and the scenario's files are diagnosed alike. The AWS
// side is the scenario's in each.
func TestScenarios(t *testing.T) {
	p := startControlPlane(t)
	for _, path := range scenarioPaths(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			defer func(of testing.TB) { p.t = of }(p.t)
			p.t = t // what can't be loaded fails alone
			s, err := probes.OpenSnapshot(path)
			if err != nil {
				t.Fatal(err)
			}
			p.load(s)
			cluster, err := NewCluster(p.config("admin"), Options{AWS: s, Clock: s.Now})
			if err != nil {
				t.Fatal(err)
			}
			want := walk(asLive{s, cluster})
			recorder := probes.NewRecorder(cluster, probes.NewRedactor([]byte("test")), t.TempDir())
			live := walk(recorder)
			if diff := cmp.Diff(comparable(want), comparable(live)); diff != "" {
				t.Errorf("the running cluster is diagnosed differently (-scenario +live):\n%s", diff)
			}
			file := filepath.Join(t.TempDir(), "recorded.tar.gz")
			if err := recorder.Write(file, nil); err != nil {
				t.Fatal(err)
			}
			recorded, err := probes.OpenSnapshot(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(comparable(live), comparable(walk(recorded))); diff != "" {
				t.Errorf("the recording is diagnosed differently (-live +recorded):\n%s", diff)
			}
		})
	}
}

func scenarioPaths(t *testing.T) []string {
	t.Helper()
	folders, err := filepath.Glob("../../testdata/*/expect.yaml")
	if err != nil || len(folders) == 0 {
		t.Fatalf("no scenario: %v", err)
	}
	for i := range folders {
		folders[i] = filepath.Dir(folders[i])
	}
	archives, err := filepath.Glob("../../testdata/*.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	return append(folders, archives...)
}

// asLive is a snapshot seen as the cluster that holds it: what nobody captured
// is what the cluster has, and Secrets but Helm's are not read.
type asLive struct {
	*probes.Snapshot
	cluster *Cluster
}

// servers are the kinds of which the API server makes objects of its own.
var servers = []string{apiServices, "priorityclasses.scheduling.k8s.io", "leases.coordination.k8s.io"}

func (s asLive) Open(ctx context.Context, doc probes.Document) (io.ReadCloser, error) {
	if slices.Contains(servers, doc.Path) || doc.Path == "secrets" {
		return s.cluster.Open(ctx, doc)
	}
	body, err := s.Snapshot.Open(ctx, doc)
	var gap *probes.Gap
	if errors.As(err, &gap) && gap.Reason == probes.NotCaptured && !doc.IsAWS() && !strings.HasPrefix(doc.Path, "logs/") {
		return s.cluster.Open(ctx, doc)
	}
	return body, err
}

func walk(src probes.Source) *diagnose.Diagnosis {
	k, err := knowledge.Load()
	must(err)
	return diagnose.Walk(context.Background(), probes.NewFacts(src), k, diagnose.Options{Verbose: true})
}

// comparable is a diagnosis as JSON without what may differ between a cluster
// and files of it: its name, the words of gaps and what would close them (no right
// brings a log that is gone), and what was redacted.
func comparable(d *diagnose.Diagnosis) string {
	copied := *d
	copied.Cluster = diagnose.Cluster{}
	copied.Gaps = slices.Clone(d.Gaps)
	for i := range copied.Gaps {
		copied.Gaps[i].Detail, copied.Gaps[i].Reason, copied.Gaps[i].Grant = "", "", ""
	}
	copied.Next = slices.Clone(d.Next)
	for i := range copied.Next {
		copied.Next[i].Grant = ""
	}
	text, err := json.MarshalIndent(&copied, "", " ")
	must(err)
	return definedAt.ReplaceAllString(redacted.ReplaceAllString(string(text), "REDACTED"), "$1")
}

// definedAt is when a definition was made: in the test, just now.
var definedAt = regexp.MustCompile(`(CustomResourceDefinition \S+ serves [^"]*?), since [0-9TZ:-]+`)

var redacted = regexp.MustCompile(`REDACTED-[0-9a-f]{10}`)
