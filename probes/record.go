package probes

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/yaml"
)

// A Recorder is a Source around another one that keeps what was read, redacted,
// in the form of a snapshot. Kinds are always recorded whole, whatever a
// reader narrows its question to.
type Recorder struct {
	Source
	redact *Redactor
	dir    string // where documents are kept until Write
	mu     sync.Mutex
	files  map[string]string // path in the snapshot → file in dir
	done   map[string]bool   // resources that were read to their end
	gaps   map[string]*Gap   // by document path
}

// NewRecorder records what is read of a source, in a folder that must be empty
// and is the recorder's own.
func NewRecorder(src Source, redact *Redactor, dir string) *Recorder {
	return &Recorder{Source: src, redact: redact, dir: dir, files: map[string]string{}, done: map[string]bool{}, gaps: map[string]*Gap{}}
}

// Open reads a document and records it while it is read.
func (r *Recorder) Open(ctx context.Context, doc Document) (io.ReadCloser, error) {
	_, _, _, _, isLog := doc.AsLog()
	resource := !doc.IsAWS() && !isLog
	if resource && !doc.IsHelmReleases() {
		doc.Only = nil
	}
	body, err := r.Source.Open(ctx, doc)
	if err != nil {
		r.missed(doc, err)
		return nil, err
	}
	switch objects, ok := body.(ObjectReader); {
	case ok:
		file, err := r.create(placeOf(doc))
		if err != nil {
			body.Close()
			return nil, err
		}
		return &recordedObjects{recording: recording{recorder: r, doc: doc, file: file, body: body}, ObjectReader: objects}, nil
	case resource:
		file, err := r.create(placeOf(doc))
		if err != nil {
			body.Close()
			return nil, err
		}
		c := &recordedStream{recording: recording{recorder: r, doc: doc, file: file, body: body}}
		c.decoder = json.NewDecoder(body)
		return c, nil
	}
	defer body.Close()
	data, err := io.ReadAll(body)
	if err != nil {
		r.missed(doc, err)
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(data)), r.keep(doc, data, isLog)
}

// ClusterMeta is that of the recorded source.
func (r *Recorder) ClusterMeta() SnapshotMeta {
	if m, ok := r.Source.(interface{ ClusterMeta() SnapshotMeta }); ok {
		return m.ClusterMeta()
	}
	return SnapshotMeta{}
}

// Gaps are those of the recorded source.
func (r *Recorder) Gaps() []*Gap {
	if s, ok := r.Source.(interface{ Gaps() []*Gap }); ok {
		return s.Gaps()
	}
	return nil
}

func (r *Recorder) missed(doc Document, err error) {
	var gap *Gap
	if !errors.As(err, &gap) {
		gap = gapf(doc, Unreadable, "%v", err)
	}
	if _, _, _, previous, isLog := doc.AsLog(); isLog && !previous && gap.Reason == NotCaptured && gap.Grant == "" {
		return // a container without a log: a snapshot without it says the same
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.done[doc.Path] {
		r.gaps[doc.Path] = gap
	}
}

// placeOf is where a document stands in a snapshot.
func placeOf(doc Document) string {
	if doc.IsHelmReleases() {
		return "kubernetes/helm-releases.json"
	}
	if rest, ok := strings.CutPrefix(doc.Path, "aws/"); ok {
		service, command, _ := strings.Cut(rest, "/")
		if len(doc.Only) == 0 {
			return "aws/" + service + "/" + command + ".json"
		}
		// What IAM says of a role stands in a folder of the role's name.
		about := doc.Only[0]
		about = about[strings.LastIndexAny(about, "/:")+1:]
		return "aws/" + service + "/" + about + "/" + command + ".json"
	}
	if strings.HasPrefix(doc.Path, "logs/") {
		return doc.Path
	}
	return "kubernetes/" + doc.Path + ".json"
}

// create opens the file for a place, another one if the place is taken.
func (r *Recorder) create(place string) (*os.File, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	file, err := os.CreateTemp(r.dir, "document-")
	if err != nil {
		return nil, fmt.Errorf("recording: %w", err)
	}
	ext := filepath.Ext(place)
	for n := 2; r.files[place] != "" && !strings.HasPrefix(place, "kubernetes/"); n++ {
		place = strings.TrimSuffix(strings.TrimSuffix(place, ext), fmt.Sprintf("-%d", n-1)) + fmt.Sprintf("-%d", n) + ext
	}
	r.files[place] = file.Name()
	return file, nil
}

func (r *Recorder) keep(doc Document, data []byte, isLog bool) error {
	if isLog && r.holds(placeOf(doc)) {
		return nil // two facts are read from one log
	}
	file, err := r.create(placeOf(doc))
	if err != nil {
		return err
	}
	defer file.Close()
	if isLog {
		_, err = file.Write(r.redact.Text(data))
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	for {
		var raw json.RawMessage
		if err := decoder.Decode(&raw); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("recording %s: %w", doc.Path, err)
		}
		redacted, err := r.redact.Object(raw)
		if err != nil {
			return fmt.Errorf("recording %s: %w", doc.Path, err)
		}
		if _, err := file.Write(append(redacted, '\n')); err != nil {
			return fmt.Errorf("recording %s: %w", doc.Path, err)
		}
	}
}

func (r *Recorder) holds(place string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.files[place] != ""
}

// A recording is a list of objects that is being read and kept.
type recording struct {
	recorder *Recorder
	doc      Document
	file     *os.File
	w        *bufio.Writer
	body     io.Closer
	err      error // of keeping
	ended    bool
	whole    bool // read to the end
}

func (c *recording) object(raw []byte) {
	redacted, err := c.recorder.redact.Object(raw)
	if err == nil {
		if c.w == nil {
			c.w = bufio.NewWriter(c.file)
			_, err = c.w.WriteString(`{"apiVersion":"v1","kind":"List","items":[` + "\n")
		} else {
			_, err = c.w.WriteString(",\n")
		}
	}
	if err == nil {
		_, err = c.w.Write(redacted)
	}
	if c.err == nil {
		c.err = err
	}
}

// end is called with what ended the list.
func (c *recording) end(err error) {
	if c.ended {
		return
	}
	c.ended = true
	r := c.recorder
	if !errors.Is(err, io.EOF) {
		r.missed(c.doc, err)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c.whole = true
	if c.doc.IsHelmReleases() {
		r.done[helmCaptured] = true
		return
	}
	r.done[c.doc.Path] = true
	delete(r.gaps, c.doc.Path)
}

func (c *recording) close() error {
	if c.w != nil {
		_, err := c.w.WriteString("\n]}\n")
		c.err = errors.Join(c.err, err, c.w.Flush())
	}
	if c.w == nil || !c.whole { // half a list would pass for a whole one
		c.recorder.mu.Lock()
		for place, name := range c.recorder.files {
			if name == c.file.Name() {
				delete(c.recorder.files, place)
			}
		}
		c.recorder.mu.Unlock()
	}
	return errors.Join(c.err, c.file.Close(), c.body.Close())
}

type recordedObjects struct {
	recording
	ObjectReader
}

func (c *recordedObjects) Next() (any, error) {
	object, err := c.ObjectReader.Next()
	if err != nil {
		c.end(err)
		return nil, err
	}
	raw, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	c.object(raw)
	return object, nil
}

// Close reads what the reader has left, so that the kind is recorded whole.
func (c *recordedObjects) Close() error {
	for !c.ended {
		if _, err := c.Next(); err != nil {
			c.end(err)
		}
	}
	return c.close()
}

type recordedStream struct {
	recording
	decoder *json.Decoder
	rest    []byte
}

func (c *recordedStream) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		var raw json.RawMessage
		if err := c.decoder.Decode(&raw); err != nil {
			c.end(err)
			return 0, err
		}
		c.object(raw)
		c.rest = append(raw, '\n')
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *recordedStream) Close() error {
	for !c.ended {
		c.rest = nil
		if _, err := c.Read(nil); err != nil {
			c.end(err)
		}
	}
	return c.close()
}

// Counts are how many documents were recorded, and how many could not be read.
func (r *Recorder) Counts() (documents, missing int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.files), len(r.gaps)
}

// helmCaptured, in `captured:`, says that of the Secrets only Helm's were read.
const helmCaptured = "secrets/" + HelmReleaseType

// Write writes the snapshot to a folder or, by its name, an archive: .tar.gz,
// .tgz, .tar or .zip. Nothing may be read any more. rename, if not nil, is
// applied to each line of each file and to their paths.
func (r *Recorder) Write(name string, rename func(string) string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	meta := r.ClusterMeta()
	meta.Captured, meta.NotCaptured = nil, nil // what a recorded snapshot says of itself
	now := r.Now().UTC().Truncate(time.Second)
	meta.CapturedAt = &now
	for resource := range r.done {
		meta.Captured = append(meta.Captured, resource)
	}
	slices.Sort(meta.Captured)
	for _, gap := range r.Gaps() {
		r.gaps[gap.Document.Path] = gap
	}
	for path, gap := range r.gaps {
		why := gap.Detail
		if gap.Reason == Forbidden && !strings.Contains(strings.ToLower(why), "forbidden") {
			why = strings.TrimSuffix("forbidden: "+why, ": ")
		}
		meta.NotCaptured = append(meta.NotCaptured, Uncaptured{What: path, Why: r.redact.Known().Replace(string(r.redact.Text([]byte(why))))})
	}
	slices.SortFunc(meta.NotCaptured, func(a, b Uncaptured) int { return strings.Compare(a.What, b.What) })
	head, err := yaml.Marshal(meta)
	if err != nil {
		return fmt.Errorf("writing snapshot: %w", err)
	}
	known := r.redact.Known()
	change := known.Replace
	if rename != nil {
		change = func(line string) string { return rename(known.Replace(line)) }
	}
	if err := writeSnapshot(name, change, string(head), now, r.files); err != nil {
		return fmt.Errorf("writing snapshot %s: %w", name, err)
	}
	return nil
}
