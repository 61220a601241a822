package probes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// A Snapshot is a cluster captured in files, as a Source. It goes by what is
// in a file and not by its name, except for logs.
type Snapshot struct {
	Meta    SnapshotMeta
	objects map[string][]object // by Document path
	listed  map[string]bool     // Document paths of which a list was seen, empty ones too
	loose   []string            // names of resources that were listed, as `captured:` and file names have them
	logs    map[string]entry    // by Document path
	dumps   map[string]entry    // by "NAMESPACE/POD": all containers in one file
	aws     map[string][]json.RawMessage
	gaps    []*Gap
	now     time.Time
}

// SnapshotMeta is what the file snapshot.yaml says.
type SnapshotMeta struct {
	CapturedAt        *time.Time   `json:"capturedAt,omitempty"`
	Cluster           string       `json:"cluster,omitempty"`
	Region            string       `json:"region,omitempty"`
	Account           string       `json:"account,omitempty"`
	KubernetesVersion string       `json:"kubernetesVersion,omitempty"`
	Identity          string       `json:"identity,omitempty"` // the AWS identity that captured
	NotCaptured       []Uncaptured `json:"notCaptured,omitempty"`
	Captured          []string     `json:"captured,omitempty"`
}

// Uncaptured is one thing that could not be read at capture.
type Uncaptured struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

type object struct {
	key     string // namespace/name
	version string // resourceVersion
	raw     json.RawMessage
}

// OpenSnapshot reads a snapshot from a folder or an archive.
func OpenSnapshot(name string) (*Snapshot, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, fmt.Errorf("opening snapshot: %w", err)
	}
	var entries []entry
	if info.IsDir() {
		entries, err = folderEntries(os.DirFS(name))
	} else {
		entries, err = archiveEntries(name)
	}
	if err != nil {
		return nil, fmt.Errorf("opening snapshot %s: %w", name, err)
	}
	s, err := readSnapshot(entries)
	if err != nil {
		return nil, fmt.Errorf("reading snapshot %s: %w", name, err)
	}
	return s, nil
}

// NewSnapshot reads a snapshot from a file system.
func NewSnapshot(fsys fs.FS) (*Snapshot, error) {
	entries, err := folderEntries(fsys)
	if err != nil {
		return nil, fmt.Errorf("opening snapshot: %w", err)
	}
	return readSnapshot(entries)
}

func readSnapshot(entries []entry) (*Snapshot, error) {
	s := &Snapshot{
		objects: map[string][]object{}, listed: map[string]bool{}, logs: map[string]entry{},
		dumps: map[string]entry{}, aws: map[string][]json.RawMessage{},
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.path, b.path) })
	for _, e := range entries {
		if err := s.add(e); err != nil {
			if e.path == "snapshot.yaml" {
				return nil, fmt.Errorf("%s: %w", e.path, err)
			}
			// One bad file must not blind the rest.
			s.gaps = append(s.gaps, &Gap{Document: Document{Path: e.path}, Reason: Unreadable, Detail: err.Error()})
		}
	}
	if len(s.objects) == 0 {
		if len(s.gaps) > 0 {
			return nil, fmt.Errorf("no Kubernetes object in it; %w", s.gaps[0])
		}
		return nil, errors.New("no Kubernetes object in it; a snapshot holds what `kubectl get … -o json` prints")
	}
	s.loose = append(s.loose, s.Meta.Captured...)
	s.settle()
	return s, nil
}

// settle makes each object one object, in a fixed order, and finds the clock.
func (s *Snapshot) settle() {
	for resource, objects := range s.objects {
		slices.SortStableFunc(objects, func(a, b object) int {
			if c := strings.Compare(a.key, b.key); c != 0 {
				return c
			}
			if c := len(b.version) - len(a.version); c != 0 { // numbers, the newer first
				return c
			}
			if c := strings.Compare(b.version, a.version); c != 0 {
				return c
			}
			return bytes.Compare(a.raw, b.raw)
		})
		s.objects[resource] = slices.CompactFunc(objects, func(a, b object) bool { return a.key == b.key })
	}
	for _, docs := range s.aws {
		slices.SortFunc(docs, func(a, b json.RawMessage) int { return bytes.Compare(a, b) })
	}
	if s.Meta.CapturedAt != nil {
		s.now = s.Meta.CapturedAt.UTC()
		return
	}
	for _, objects := range s.objects {
		for _, o := range objects {
			for _, m := range pastTimes.FindAllSubmatch(o.raw, -1) {
				if t, err := time.Parse(time.RFC3339Nano, string(m[1])); err == nil && t.After(s.now) {
					s.now = t.UTC()
				}
			}
		}
	}
}

// pastTimes are the times that lie in the past when they are written; others,
// such as a certificate's notAfter, say nothing of when the capture was.
var pastTimes = regexp.MustCompile(`"(?:creationTimestamp|deletionTimestamp|lastTransitionTime|lastUpdateTime|lastTimestamp|lastObservedTime|eventTime|renewTime|startedAt|finishedAt|startTime|completionTime|lastHeartbeatTime|time)"\s*:\s*"([0-9T:.Z+-]+)"`)

var (
	logPath   = regexp.MustCompile(`(?:^|/)logs/([^/]+)/([^/]+)/([^/]+?)(\.previous)?\.log$`)
	troublLog = regexp.MustCompile(`(?:^|/)cluster-resources/pods/logs/([^/]+)/([^/]+)/([^/]+?)(-previous)?\.log$`)
	dumpLog   = regexp.MustCompile(`(?:^|/)([^/]+)/([^/]+)/logs\.txt$`)
)

func (s *Snapshot) add(e entry) error {
	for _, form := range []*regexp.Regexp{troublLog, logPath} {
		if m := form.FindStringSubmatch(e.path); m != nil {
			s.logs[Log(m[1], m[2], m[3], m[4] != "").Path] = e
			return nil
		}
	}
	if m := dumpLog.FindStringSubmatch(e.path); m != nil {
		s.dumps[m[1]+"/"+m[2]] = e
		return nil
	}
	ext := path.Ext(e.path)
	switch {
	case e.path == "expect.yaml":
		return nil
	case e.path == "snapshot.yaml", e.path == "snapshot.yml":
		data, err := e.read()
		if err != nil {
			return err
		}
		return yaml.UnmarshalStrict(data, &s.Meta)
	case ext == ".json":
		r, err := e.open()
		if err != nil {
			return err
		}
		defer r.Close()
		return s.addJSON(e.path, r)
	case ext == ".yaml", ext == ".yml":
		data, err := e.read()
		if err != nil {
			return err
		}
		return s.addYAML(e.path, data)
	}
	return nil
}

func (e entry) read() ([]byte, error) {
	r, err := e.open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// Now is when the snapshot was captured: as it says itself, else the newest
// time in it.
func (s *Snapshot) Now() time.Time { return s.now }

// Gaps are the files that could not be read, and the kinds that were captured
// in part. What the capture could not have at all is a gap of whoever asks for
// it, as in a running cluster.
func (s *Snapshot) Gaps() []*Gap {
	gaps := slices.Clone(s.gaps)
	for _, n := range s.Meta.NotCaptured {
		if len(s.objects[n.What]) > 0 {
			gaps = append(gaps, n.gap(Document{Path: n.What}))
		}
	}
	return gaps
}

func (n Uncaptured) gap(doc Document) *Gap {
	reason := NotCaptured
	if why := strings.ToLower(n.Why); strings.Contains(why, "forbidden") || strings.Contains(why, "denied") || strings.Contains(why, "not authorized") {
		reason = Forbidden
	}
	return &Gap{Document: doc, Reason: reason, Grant: doc.Grant(), Detail: n.Why}
}

// Documents are the paths of all documents that the snapshot holds, sorted.
func (s *Snapshot) Documents() []string {
	var paths []string
	for p := range s.objects {
		paths = append(paths, p)
	}
	for p := range s.aws {
		paths = append(paths, "aws/"+p)
	}
	for p := range s.logs {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	return paths
}

// Open reads a document.
func (s *Snapshot) Open(_ context.Context, doc Document) (io.ReadCloser, error) {
	if ns, pod, container, previous, ok := doc.AsLog(); ok {
		return s.openLog(doc, ns, pod, container, previous)
	}
	if key, ok := strings.CutPrefix(doc.Path, "aws/"); ok {
		if docs := s.aws[key]; len(docs) > 0 {
			return concat(docs, func(d json.RawMessage) []byte { return d }), nil
		}
		return nil, s.missing(doc)
	}
	if doc.Path == HelmReleases.Path && slices.Contains(s.Meta.Captured, helmCaptured) && !slices.Contains(s.Meta.Captured, HelmReleases.Path) {
		if !doc.IsHelmReleases() {
			return nil, gapf(doc, NotCaptured, "of the Secrets only Helm's were captured")
		}
		return concat(s.objects[doc.Path], func(o object) []byte { return o.raw }), nil
	}
	if objects := s.objects[doc.Path]; len(objects) > 0 {
		return concat(objects, func(o object) []byte { return o.raw }), nil
	}
	if s.knownEmpty(doc.Path) {
		return io.NopCloser(strings.NewReader("")), nil
	}
	return nil, s.missing(doc)
}

// knownEmpty reports whether the snapshot shows that no object of the
// resource exists.
func (s *Snapshot) knownEmpty(resource string) bool {
	if s.listed[resource] {
		return true
	}
	if slices.ContainsFunc(s.loose, func(name string) bool { return namesResource(name, resource) }) {
		return true
	}
	return s.NotInstalled(resource)
}

// NotInstalled reports whether a custom resource is known not to be served:
// the snapshot holds CustomResourceDefinitions, but not this one.
func (s *Snapshot) NotInstalled(resource string) bool {
	_, group, _ := strings.Cut(resource, ".")
	if !strings.Contains(group, ".") || strings.HasSuffix(group, ".k8s.io") && !strings.HasSuffix(group, "gateway.networking.k8s.io") && !strings.HasSuffix(group, "snapshot.storage.k8s.io") {
		return false // built in
	}
	crds := s.objects[crdResource]
	if len(crds) == 0 && !s.listed[crdResource] {
		return false
	}
	return !slices.ContainsFunc(crds, func(o object) bool { return o.key == "/"+resource })
}

const crdResource = "customresourcedefinitions.apiextensions.k8s.io"

// notHeld is said of what a snapshot just doesn't hold, without a word why.
const notHeld = "the snapshot does not hold it"

func (s *Snapshot) missing(doc Document) *Gap {
	for _, n := range s.Meta.NotCaptured {
		if doc.Path == n.What || strings.HasPrefix(doc.Path, n.What+"/") || !doc.IsAWS() && namesResource(n.What, doc.Path) {
			return n.gap(doc)
		}
	}
	return gapf(doc, NotCaptured, notHeld)
}

func concat[T any](parts []T, raw func(T) []byte) io.ReadCloser {
	readers := make([]io.Reader, len(parts))
	for i, p := range parts {
		readers[i] = bytes.NewReader(raw(p))
	}
	return io.NopCloser(io.MultiReader(readers...))
}

func (s *Snapshot) openLog(doc Document, ns, pod, container string, previous bool) (io.ReadCloser, error) {
	if e, ok := s.logs[doc.Path]; ok {
		r, err := e.open()
		if err != nil {
			return nil, gapf(doc, Unreadable, "%v", err)
		}
		return r, nil
	}
	if e, ok := s.dumps[ns+"/"+pod]; ok && !previous {
		data, err := e.read()
		if err != nil {
			return nil, gapf(doc, Unreadable, "%v", err)
		}
		if part, ok := cutDump(data, container); ok {
			return io.NopCloser(bytes.NewReader(part)), nil
		}
	}
	return nil, s.missing(doc)
}

// cutDump takes one container's part out of a log file of `kubectl
// cluster-info dump`. Source: kubectl pkg/cmd/clusterinfo/clusterinfo_dump.go.
func cutDump(data []byte, container string) ([]byte, bool) {
	start := []byte("==== START logs for container " + container + " of pod ")
	i := bytes.Index(data, start)
	if i < 0 {
		return nil, false
	}
	part := data[i:]
	if nl := bytes.IndexByte(part, '\n'); nl >= 0 {
		part = part[nl+1:]
	}
	if end := bytes.Index(part, []byte("==== END logs for container "+container+" of pod ")); end >= 0 {
		part = part[:end]
	}
	return part, true
}

// ClusterMeta is what names the cluster.
func (s *Snapshot) ClusterMeta() SnapshotMeta { return s.Meta }
