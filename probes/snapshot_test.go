package probes

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const onePod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"x","creationTimestamp":"2026-01-02T03:04:05Z"}}`

func snapshot(t *testing.T, files map[string]string) *Snapshot {
	t.Helper()
	fsys := fstest.MapFS{}
	for name, data := range files {
		fsys[name] = &fstest.MapFile{Data: []byte(data)}
	}
	s, err := NewSnapshot(fsys)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func podNames(t *testing.T, src Source) []string {
	t.Helper()
	var names []string
	for p, err := range Items[corev1.Pod](context.Background(), src, Document{Path: "pods"}) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, p.Namespace+"/"+p.Name)
	}
	return names
}

func TestSnapshotReadsWhatKubectlPrints(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"object":         {"a.json": onePod},
		"list":           {"a.json": `{"apiVersion":"v1","items":[` + onePod + `],"kind":"List"}`},
		"typed list":     {"a.json": `{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"a","namespace":"x"}}]}`},
		"kind last":      {"a.json": `{"items":[{"metadata":{"name":"a","namespace":"x"}}],"apiVersion":"v1","kind":"PodList"}`},
		"bare array":     {"a.json": `[` + onePod + `]`},
		"several values": {"a.json": onePod + "\n" + onePod},
		"yaml documents": {"a.yml": "---\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: x}\n---\napiVersion: v1\nkind: Node\nmetadata: {name: n}\n"},
		"same twice":     {"a.json": onePod, "b/c.json": onePod},
		"list in list":   {"a.json": `{"kind":"List","apiVersion":"v1","items":[{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"a","namespace":"x"}}]}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			if got := podNames(t, snapshot(t, files)); len(got) != 1 || got[0] != "x/a" {
				t.Errorf("pods %v, want x/a", got)
			}
		})
	}
}

func TestSnapshotTellsMissingFromAbsent(t *testing.T) {
	crd := `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"nodepools.karpenter.sh"}}`
	for _, c := range []struct {
		name, doc string
		files     map[string]string
		empty     bool
	}{
		{"nothing said", "networkpolicies.networking.k8s.io", nil, false},
		{"typed empty list", "networkpolicies.networking.k8s.io", map[string]string{"n.json": `{"kind":"NetworkPolicyList","apiVersion":"networking.k8s.io/v1","items":[]}`}, true},
		{"empty list in a file of that name", "networkpolicies.networking.k8s.io", map[string]string{"networkpolicies.json": `{"kind":"List","apiVersion":"v1","items":[]}`}, true},
		{"empty list in another file", "networkpolicies.networking.k8s.io", map[string]string{"all.json": `{"kind":"List","apiVersion":"v1","items":[]}`}, false},
		{"captured, with group", "networkpolicies.networking.k8s.io", map[string]string{"snapshot.yaml": "captured: [networkpolicies.networking.k8s.io]"}, true},
		{"captured, without group", "networkpolicies.networking.k8s.io", map[string]string{"snapshot.yaml": "captured: [networkpolicies]"}, true},
		{"captured, short name", "persistentvolumeclaims", map[string]string{"snapshot.yaml": "captured: [pvc]"}, true},
		{"captured, other group", "nodepools.karpenter.sh", map[string]string{"snapshot.yaml": "captured: [nodepools.example.com]"}, false},
		{"CRDs captured, this one not among them", "certificates.cert-manager.io", map[string]string{"c.json": crd}, true},
		{"CRDs captured, this one among them", "nodepools.karpenter.sh", map[string]string{"c.json": crd}, false},
		{"no CRD captured", "certificates.cert-manager.io", nil, false},
		{"misspelt plural of a file", "gatewayclasses.gateway.networking.k8s.io", map[string]string{"gatewayclasss.json": `{"kind":"List","apiVersion":"v1","items":[]}`}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := map[string]string{"pod.json": onePod}
			for k, v := range c.files {
				files[k] = v
			}
			_, err := snapshot(t, files).Open(context.Background(), Document{Path: c.doc})
			var gap *Gap
			if c.empty != (err == nil) || err != nil && !errors.As(err, &gap) {
				t.Errorf("empty %v, got %v", c.empty, err)
			}
		})
	}
}

func TestSnapshotFindsLogs(t *testing.T) {
	const dump = "==== START logs for container one of pod x/b ====\n1\n==== END logs for container one of pod x/b ====\n==== START logs for container two of pod x/b ====\n2\n==== END logs for container two of pod x/b ====\n"
	const troubleshoot = "cluster-resources/pods/logs/x/c/"
	files := map[string]string{"p.json": onePod, "dump/x/b/logs.txt": dump}
	files["logs/x/a/web.log"], files["logs/x/a/web.previous.log"] = "now", "before"
	files[troubleshoot+"web.log"], files[troubleshoot+"web-previous.log"] = "troubleshoot", "troubleshoot before"
	s := snapshot(t, files)
	for _, c := range []struct {
		pod, container string
		previous       bool
		want           string
	}{
		{"a", "web", false, "now"},
		{"a", "web", true, "before"},
		{"b", "one", false, "1\n"},
		{"b", "two", false, "2\n"},
		{"b", "two", true, ""},
		{"b", "three", false, ""},
		{"c", "web", false, "troubleshoot"},
		{"c", "web", true, "troubleshoot before"},
	} {
		r, err := s.Open(context.Background(), Log("x", c.pod, c.container, c.previous))
		if c.want == "" {
			var gap *Gap
			if !errors.As(err, &gap) {
				t.Errorf("%+v: want a gap, got %v", c, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		got, _ := io.ReadAll(r)
		if string(got) != c.want {
			t.Errorf("%+v: got %q", c, got)
		}
	}
}

func TestSnapshotKeepsNoSecretValue(t *testing.T) {
	s := snapshot(t, map[string]string{"s.yaml": `
apiVersion: v1
kind: Secret
metadata:
  name: db
  namespace: x
  annotations: {kubectl.kubernetes.io/last-applied-configuration: '{"data":{"password":"aHVudGVyMg=="}}'}
data: {password: aHVudGVyMg==}
stringData: {user: hunter2}
`})
	r, err := s.Open(context.Background(), Document{Path: "secrets"})
	if err != nil {
		t.Fatal(err)
	}
	got, _ := io.ReadAll(r)
	for _, leak := range []string{"hunter2", "aHVudGVyMg"} {
		if bytes.Contains(got, []byte(leak)) {
			t.Errorf("a value survives: %s", got)
		}
	}
	if !bytes.Contains(got, []byte(`"password":7`)) {
		t.Errorf("the size of the key is lost: %s", got)
	}
}

func TestSnapshotClock(t *testing.T) {
	s := snapshot(t, map[string]string{"a.json": onePod, "c.json": `{"apiVersion":"cert-manager.io/v1","kind":"Certificate","metadata":{"name":"c"},"status":{"notAfter":"2036-01-01T00:00:00Z"}}`})
	if want := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC); !s.Now().Equal(want) {
		t.Errorf("now is %v, want %v: a time in the future says nothing of the capture", s.Now(), want)
	}
}

func TestSnapshotOneBadFileIsAGap(t *testing.T) {
	s := snapshot(t, map[string]string{"a.json": onePod, "bad.json": `{"kind": "Po`, "bad.yaml": "a: [b"})
	if got := len(s.Gaps()); got != 2 {
		t.Errorf("%d gaps, want 2: %v", got, s.Gaps())
	}
	if got := podNames(t, s); len(got) != 1 {
		t.Errorf("the good file is lost: %v", got)
	}
}

func TestSnapshotRefuses(t *testing.T) {
	bomb := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for i := 'b'; i <= 'k'; i++ {
		bomb += string(i) + ": &" + string(i) + " [" + strings.TrimSuffix(strings.Repeat("*"+string(i-1)+",", 9), ",") + "]\n"
	}
	for name, files := range map[string]map[string]string{
		"an empty folder":        {},
		"no Kubernetes object":   {"a.json": `{"hello":"world"}`},
		"only truncated JSON":    {"a.json": `{"kind":"Pod","apiVersion":"v1","metadata":{`},
		"only a YAML bomb":       {"a.yaml": bomb},
		"a broken snapshot.yaml": {"a.json": onePod, "snapshot.yaml": "captured: {"},
	} {
		fsys := fstest.MapFS{}
		for f, data := range files {
			fsys[f] = &fstest.MapFile{Data: []byte(data)}
		}
		if _, err := NewSnapshot(fsys); err == nil {
			t.Errorf("%s is taken for a snapshot", name)
		}
	}
}

func TestArchives(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, pack func(io.Writer)) string {
		file := filepath.Join(dir, name)
		f, err := os.Create(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		pack(f)
		return file
	}
	tarOf := func(w io.Writer, entry, data string) {
		tw := tar.NewWriter(w)
		_ = tw.WriteHeader(&tar.Header{Name: entry, Size: int64(len(data)), Mode: 0o600, Typeflag: tar.TypeReg})
		_, _ = tw.Write([]byte(data))
		_ = tw.Close()
	}
	gz := func(entry, data string) func(io.Writer) {
		return func(w io.Writer) { z := gzip.NewWriter(w); tarOf(z, entry, data); _ = z.Close() }
	}
	zipped := func(entry, data string) func(io.Writer) {
		return func(w io.Writer) {
			zw := zip.NewWriter(w)
			e, _ := zw.Create(entry)
			_, _ = e.Write([]byte(data))
			_ = zw.Close()
		}
	}
	for _, file := range []string{
		write("a.tar.gz", gz("root/pods.json", onePod)), write("a.tgz", gz("pods.json", onePod)),
		write("a.tar", func(w io.Writer) { tarOf(w, "./pods.json", onePod) }), write("a.zip", zipped("root/pods.json", onePod)),
	} {
		s, err := OpenSnapshot(file)
		if err != nil {
			t.Errorf("%s: %v", filepath.Base(file), err)
			continue
		}
		if got := podNames(t, s); len(got) != 1 {
			t.Errorf("%s: pods %v", filepath.Base(file), got)
		}
	}
	for _, file := range []string{
		write("escape.tar.gz", gz("../../etc/pods.json", onePod)), write("escape.zip", zipped("../pods.json", onePod)),
		write("absolute.tar", func(w io.Writer) { tarOf(w, "/etc/pods.json", onePod) }),
		write("text.tar.gz", func(w io.Writer) { _, _ = io.WriteString(w, "no gzip") }), write("text.zip", func(w io.Writer) { _, _ = io.WriteString(w, "no zip") }),
		write("pods.json", func(w io.Writer) { _, _ = io.WriteString(w, onePod) }), filepath.Join(dir, "missing"),
	} {
		if _, err := OpenSnapshot(file); err == nil {
			t.Errorf("%s is taken for a snapshot", filepath.Base(file))
		}
	}
}

func FuzzSnapshot(f *testing.F) {
	f.Add("a.json", []byte(onePod))
	f.Add("a.yaml", []byte("kind: List\nitems: [{kind: Secret, apiVersion: v1, metadata: {name: a}, data: {b: c}}]"))
	f.Add("aws.json", []byte(`{"AttachedPolicies":[],"items":{"a":[1]}}`))
	f.Add("logs/a/b/c.log", []byte("x"))
	f.Add("snapshot.yaml", []byte("capturedAt: 2026-01-01T00:00:00Z"))
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		content := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
		pod := func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(onePod)), nil }
		s, err := readSnapshot([]entry{{"pod.json", pod}, {name, content}})
		if err != nil {
			return
		}
		for _, doc := range s.Documents() {
			r, err := s.Open(context.Background(), Document{Path: doc})
			if err != nil {
				t.Fatalf("%s is listed but can't be opened: %v", doc, err)
			}
			_, _ = io.Copy(io.Discard, r)
		}
	})
}
