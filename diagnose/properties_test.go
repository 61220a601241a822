package diagnose_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pposiraegi/ppodoctor/diagnose"
	"github.com/pposiraegi/ppodoctor/probes"
)

// A rewriter changes the objects of documents on their way.
type rewriter struct {
	*probes.Snapshot
	rewrite func(path string, objects []json.RawMessage) []json.RawMessage
}

func (r *rewriter) Open(ctx context.Context, doc probes.Document) (io.ReadCloser, error) {
	rc, err := r.Snapshot.Open(ctx, doc)
	if err != nil || strings.HasPrefix(doc.Path, "logs/") {
		return rc, err
	}
	defer rc.Close()
	var objects []json.RawMessage
	for decoder := json.NewDecoder(rc); ; {
		var o json.RawMessage
		if err := decoder.Decode(&o); err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		objects = append(objects, o)
	}
	return io.NopCloser(bytes.NewReader(bytes.Join(asBytes(r.rewrite(doc.Path, objects)), []byte("\n")))), nil
}

func asBytes(raw []json.RawMessage) [][]byte {
	list := make([][]byte, len(raw))
	for i, r := range raw {
		list[i] = r
	}
	return list
}

// TestOrderDoesNotMatter turns every list around.
func TestOrderDoesNotMatter(t *testing.T) {
	eachScenario(t, func(t *testing.T, src *probes.Snapshot) {
		turned := &rewriter{src, func(_ string, objects []json.RawMessage) []json.RawMessage {
			slices.Reverse(objects)
			return objects
		}}
		if diff := cmp.Diff(asJSON(t, walk(src)), asJSON(t, walk(turned))); diff != "" {
			t.Errorf("with every list turned around:\n%s", diff)
		}
	})
}

// TestNoiseDoesNotMatter adds healthy pods of other workloads to every node.
// Their image is of a registry of its own: that one is used tells something.
func TestNoiseDoesNotMatter(t *testing.T) {
	eachScenario(t, func(t *testing.T, src *probes.Snapshot) {
		now := src.Now().Add(-30 * 24 * 60 * 60 * 1e9).UTC().Format("2006-01-02T15:04:05Z")
		nodes := []string{}
		for n, err := range probes.Items[struct {
			Metadata struct{ Name, DeletionTimestamp string }
		}](context.Background(), src, probes.Document{Path: "nodes"}) {
			if err == nil && n.Metadata.DeletionTimestamp == "" { // a pod on a node that goes would matter
				nodes = append(nodes, n.Metadata.Name)
			}
		}
		noisy := &rewriter{src, func(path string, objects []json.RawMessage) []json.RawMessage {
			if path != "pods" {
				return objects
			}
			// Few enough not to fill a node.
			for i := range 2 * len(nodes) {
				objects = append(objects, json.RawMessage(fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"quiet-%d","namespace":"zz-noise","creationTimestamp":%q,"labels":{"app":"quiet"}},
"spec":{"nodeName":%q,"restartPolicy":"Always","hostNetwork":true,"containers":[{"name":"quiet","image":"registry.noise.example/quiet:1"}]},
"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True","lastTransitionTime":%q}],"containerStatuses":[{"name":"quiet","ready":true,"restartCount":0,"state":{"running":{"startedAt":%q}}}]}}`,
					i, now, nodes[i%len(nodes)], now, now)))
			}
			return objects
		}}
		if diff := cmp.Diff(verdicts(walk(src)), verdicts(walk(noisy))); diff != "" {
			t.Errorf("with quiet pods added:\n%s", diff)
		}
	})
}

// verdicts are the causes, suspects and risks by rule and subject.
func verdicts(d *diagnose.Diagnosis) []string {
	var list []string
	for _, l := range [][]diagnose.Cause{d.Causes, d.Suspected, d.Risks} {
		for _, c := range l {
			list = append(list, c.Rule+" "+c.Subject.String())
		}
		list = append(list, "--")
	}
	return list
}

func eachScenario(t *testing.T, f func(*testing.T, *probes.Snapshot)) {
	if testing.Short() {
		t.Skip("walks every scenario again")
	}
	for _, dir := range scenarios(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			src, err := probes.OpenSnapshot(dir)
			if err != nil {
				t.Fatal(err)
			}
			f(t, src)
		})
	}
}

// answered counts how often each question of each rule was answered with each
// truth, over all walks of the tests.
type answered struct {
	mu    sync.Mutex
	count map[string]map[diagnose.Truth]int
}

func (a *answered) add(d *diagnose.Diagnosis) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range d.Considered {
		for i, q := range c.Asked {
			key := fmt.Sprintf("%s question %d", c.Rule, i+1)
			if a.count[key] == nil {
				a.count[key] = map[diagnose.Truth]int{}
			}
			a.count[key][q.Truth]++
		}
	}
}

// missing are the questions that never got one of the truths.
func (a *answered) missing(truths ...diagnose.Truth) []string {
	var list []string
	for _, r := range diagnose.Rules() {
		for i := range r.Tests {
			key := fmt.Sprintf("%s question %d", r.ID, i+1)
			for _, t := range truths {
				if a.count[key][t] == 0 {
					list = append(list, key+" ("+r.Tests[i].Asks+") was never answered "+string(t))
				}
			}
		}
	}
	return list
}

// TestSymptomsBeginAsTheTimelineSays: a symptom has one beginning.
func TestSymptomsBeginAsTheTimelineSays(t *testing.T) {
	compared := 0
	for _, dir := range scenarios(t) {
		if !strings.HasPrefix(filepath.Base(dir), "dns-") {
			continue
		}
		src, err := probes.OpenSnapshot(dir)
		if err != nil {
			t.Fatal(err)
		}
		d := walk(src)
		for _, m := range d.Timeline {
			title, ok := strings.CutPrefix(m.What, "first failure: ")
			if !ok {
				continue
			}
			for _, s := range d.Symptoms {
				if s.Subject != m.Subject || s.Title != title {
					continue
				}
				compared++
				if s.Since == nil || !s.Since.Equal(m.At) {
					t.Errorf("%s: %s began at %v, by the timeline at %s", filepath.Base(dir), s.Title, s.Since, m.At)
				}
			}
		}
	}
	if compared == 0 {
		t.Error("no symptom is in a timeline")
	}
}
