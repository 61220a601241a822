// Package knowledge holds what ppodoctor knows that is not logic: the texts of
// its rules, the meanings of log lines, and what components need. It is data,
// embedded in the binary; a folder given by the user overlays it under the
// same validation.
package knowledge

import (
	"embed"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"sigs.k8s.io/yaml"
)

//go:embed rules/*.yaml signatures.yaml permissions.yaml components.yaml
var embedded embed.FS

// Knowledge is everything that was loaded.
type Knowledge struct {
	Rules         map[string]*Entry // by rule ID
	Signatures    *Signatures       // of log entries
	Permissions   []*Component      // what components ask of AWS, in the order of the file
	Installations []*Installation   // what components need before they are installed, in the order of the file
}

// An Entry is the texts of one rule. Texts may hold {placeholders}, filled
// from the finding.
type Entry struct {
	ID          string   `json:"id"`
	Title       string   `json:"title"`       // of the fault or state: "DNS is cut off between two groups of nodes"
	Summary     string   `json:"summary"`     // one or two sentences with the particulars
	Because     string   `json:"because"`     // why this fault has these effects
	Remedies    []Remedy `json:"remedies"`    // causes only; most structural first
	Verify      []Verify `json:"verify"`      // how to prove the remedy
	Versions    string   `json:"versions"`    // the releases that the rule holds for, if not all
	Undecidable string   `json:"undecidable"` // what facts in a snapshot can't decide, and why
	Formerly    []string `json:"formerly"`    // earlier IDs
	Sources     []string `json:"sources"`     // where the facts come from
}

// A Remedy is one way to mend a fault.
type Remedy struct {
	Do        string   `json:"do"`
	Scope     string   `json:"scope"`
	Commands  []string `json:"commands"`
	Terraform string   `json:"terraform"`
	Manifest  string   `json:"manifest"`
	Caution   string   `json:"caution"`
}

// Scopes are what a remedy can reach.
var Scopes = []string{"structural", "replaces-nodes", "restarts-pods", "covers-symptom"}

// Verify is a run that proves a remedy.
type Verify struct {
	Run    string `json:"run"`
	Expect string `json:"expect"`
	Beware string `json:"beware"`
}

// Embedded is the knowledge that comes with the program. It is read once and
// shared, so it must not be changed.
var Embedded = sync.OnceValues(func() (*Knowledge, error) { return Load() })

// Load reads the embedded knowledge and then each overlay, whose entries
// replace those of the same ID. It refuses unknown fields, duplicates and
// incomplete entries, and names the file.
func Load(overlays ...fs.FS) (*Knowledge, error) {
	k := &Knowledge{Rules: map[string]*Entry{}}
	for _, fsys := range append([]fs.FS{embedded}, overlays...) {
		if err := k.add(fsys); err != nil {
			return nil, err
		}
	}
	var err error
	if k.Signatures, err = readSignatures(append([]fs.FS{embedded}, overlays...)...); err != nil {
		return nil, err
	}
	return k, nil
}

func (k *Knowledge) add(fsys fs.FS) error {
	if err := k.addPermissions(fsys); err != nil {
		return err
	}
	if err := k.addInstallations(fsys); err != nil {
		return err
	}
	files, err := fs.Glob(fsys, "rules/*.yaml")
	if err != nil {
		return fmt.Errorf("looking for knowledge: %w", err)
	}
	here := map[string]string{}
	for _, file := range files {
		var entries []*Entry
		if err := readStrict(fsys, file, &entries); err != nil {
			return err
		}
		for _, e := range entries {
			if err := e.validate(); err != nil {
				return fmt.Errorf("%s: %s: %w", file, e.ID, err)
			}
			if other, ok := here[e.ID]; ok {
				return fmt.Errorf("%s: %s is already in %s", file, e.ID, path.Base(other))
			}
			here[e.ID] = file
			k.Rules[e.ID] = e
		}
	}
	return nil
}

func readStrict(fsys fs.FS, file string, into any) error {
	data, err := fs.ReadFile(fsys, file)
	if err != nil {
		return fmt.Errorf("reading knowledge: %w", err)
	}
	if err := yaml.UnmarshalStrict(data, into); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

var kebab = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)

func (e *Entry) validate() error {
	switch {
	case !kebab.MatchString(e.ID):
		return fmt.Errorf("id must be kebab-case")
	case e.Title == "":
		return fmt.Errorf("title is missing")
	case e.Summary == "":
		return fmt.Errorf("summary is missing")
	}
	for _, r := range e.Remedies {
		if r.Do == "" || !slices.Contains(Scopes, r.Scope) {
			return fmt.Errorf("remedy %q needs a text and one of the scopes %s", r.Do, strings.Join(Scopes, ", "))
		}
	}
	for _, v := range e.Verify {
		if v.Run == "" || v.Expect == "" {
			return fmt.Errorf("verify needs run and expect")
		}
	}
	return nil
}

// IDs are the rule IDs with texts, sorted.
func (k *Knowledge) IDs() []string { return slices.Sorted(maps.Keys(k.Rules)) }

var placeholder = regexp.MustCompile(`\{([a-zA-Z][a-zA-Z0-9]*)\}`)

// Fill puts vars into the {placeholders} of a text. A placeholder without a
// value stays as it is, so that shell and JSON braces survive.
func Fill(text string, vars map[string]string) string {
	return placeholder.ReplaceAllStringFunc(text, func(p string) string {
		if v, ok := vars[p[1:len(p)-1]]; ok {
			return v
		}
		return p
	})
}

// Placeholders are the names between braces in a text.
func Placeholders(text string) []string {
	var names []string
	for _, m := range placeholder.FindAllStringSubmatch(text, -1) {
		names = append(names, m[1])
	}
	return names
}
