package lint

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"

	"github.com/pposiraegi/ppodoctor/probes"
)

// A document is one YAML document of a file: a manifest, or Helm values.
type document struct {
	file   string
	node   *yamlv3.Node
	object map[string]any
	at     int // the order in which kubectl would apply it
}

func (d *document) text(path ...string) string {
	s, _ := d.get(path...).(string)
	return s
}

func (d *document) get(path ...string) any { return dig(d.object, path...) }

func dig(value any, path ...string) any {
	for _, p := range path {
		m, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		value = m[p]
	}
	return value
}

// manifest reports whether the document is an object of the API.
func (d *document) manifest() bool { return d.text("apiVersion") != "" && d.text("kind") != "" }

func (d *document) ref() probes.Ref {
	name := d.text("metadata", "name")
	if name == "" {
		name = d.text("metadata", "generateName")
	}
	return probes.Ref{Kind: d.text("kind"), Namespace: d.text("metadata", "namespace"), Name: name}
}

// line is where a field stands: "file:12". The last part that is there counts.
func (d *document) line(path string) string {
	line := d.node.Line
	at := d.node
	for _, part := range parts(path) {
		switch at.Kind {
		case yamlv3.AliasNode:
			at = at.Alias
		}
		found := false
		if i, err := strconv.Atoi(part); err == nil && at.Kind == yamlv3.SequenceNode && i < len(at.Content) {
			at, found = at.Content[i], true
			line = at.Line
		}
		for i := 0; !found && at.Kind == yamlv3.MappingNode && i+1 < len(at.Content); i += 2 {
			if at.Content[i].Value == part {
				line = at.Content[i].Line
				at, found = at.Content[i+1], true
			}
		}
		if !found {
			break
		}
	}
	return fmt.Sprintf("%s:%d", d.file, line)
}

var part = regexp.MustCompile(`\[(\d+)\]|([^.\[\]]+)`)

func parts(path string) []string {
	var list []string
	for _, m := range part.FindAllStringSubmatch(path, -1) {
		list = append(list, m[1]+m[2])
	}
	return list
}

// read takes the documents out of a file, a folder, or standard input ("-").
// What can't be read is a gap of its own.
func read(name string, stdin io.Reader) ([]*document, []*probes.Gap, error) {
	if name == "-" {
		data, err := io.ReadAll(stdin)
		if err != nil {
			return nil, nil, fmt.Errorf("reading standard input: %w", err)
		}
		docs, gaps := documents("-", data)
		return docs, gaps, nil
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil, nil, err
	}
	files := []string{name}
	if info.IsDir() {
		files = nil
		err := filepath.WalkDir(name, func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if ext := filepath.Ext(path); !e.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, ext) {
				files = append(files, path)
			}
			return nil
		})
		if err != nil {
			return nil, nil, err
		}
	}
	var all []*document
	var gaps []*probes.Gap
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, err
		}
		docs, unread := documents(file, data)
		all, gaps = append(all, docs...), append(gaps, unread...)
	}
	for i, d := range all {
		d.at = i
	}
	return all, gaps, nil
}

func documents(file string, data []byte) (docs []*document, gaps []*probes.Gap) {
	gap := func(err error) {
		detail := err.Error()
		if bytes.Contains(data, []byte("{{")) {
			detail = "a template: lint what `helm template` makes of it"
		}
		gaps = append(gaps, &probes.Gap{Document: probes.Document{Path: file}, Reason: probes.Unreadable, Detail: detail})
	}
	decoder := yamlv3.NewDecoder(bytes.NewReader(data))
	for {
		var node yamlv3.Node
		err := decoder.Decode(&node)
		if errors.Is(err, io.EOF) {
			return docs, gaps
		}
		if err != nil {
			gap(err)
			return docs, gaps
		}
		if len(node.Content) == 0 || node.Content[0].Kind != yamlv3.MappingNode {
			continue
		}
		d := &document{file: file, node: node.Content[0]}
		// Through JSON, so that numbers and keys are those of the API.
		text, err := yamlv3.Marshal(d.node)
		if err == nil {
			err = yaml.Unmarshal(text, &d.object)
		}
		if err != nil {
			gap(err)
			continue
		}
		if items, ok := d.object["items"].([]any); ok && strings.HasSuffix(d.text("kind"), "List") {
			for i, item := range items {
				object, _ := item.(map[string]any)
				if n := child(d.node, "items"); object != nil && n != nil && i < len(n.Content) {
					docs = append(docs, &document{file: file, node: n.Content[i], object: object})
				}
			}
			continue
		}
		docs = append(docs, d)
	}
}

func child(n *yamlv3.Node, key string) *yamlv3.Node {
	for i := 0; n.Kind == yamlv3.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}
