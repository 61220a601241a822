package knowledge

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"sync"
)

// A Role is what a matching log entry may be taken for.
type Role string

// The roles of a [Signature], best first.
const (
	Cause   Role = "cause"   // names what went wrong
	Wrapper Role = "wrapper" // wraps another error; its inner text says more
	Symptom Role = "symptom" // a consequence of something else
	Weak    Role = "weak"    // says that something failed, not what
	// Milestone says how far the program has come; nothing failed.
	Milestone Role = "milestone"
)

var roles = []Role{Cause, Wrapper, Symptom, Weak, Milestone}

// A Signature recognises one form of log entry.
//
// Named groups of the pattern are captures. Digits at the end of a group's
// name are dropped, so that alternatives can capture the same thing; a capture
// "addr" is also given as "host" and "port". Names in use: host, port, addr,
// server, ip, url, principal, action, resource, role, user, file, key, name,
// kind, namespace, image, command, module, message, reason, code.
type Signature struct {
	ID       string   `json:"id"`
	Meaning  string   `json:"meaning"` // one of [Signatures.Meanings]
	Runtime  string   `json:"runtime"` // who prints it: "go", "java-kafka", "karpenter"
	Role     Role     `json:"role"`
	Priority int      `json:"priority"` // 1–99; of two entries the higher says more
	Pattern  string   `json:"pattern"`  // RE2, on one entry: the lines of a stack trace are joined by \n
	Alone    bool     `json:"alone"`    // what else an entry says that it recognises doesn't count
	Matches  []string `json:"matches"`  // entries that it recognises
	Ignores  []string `json:"ignores"`  // look-alikes that it must not
	Sources  []string `json:"sources"`

	re func() *regexp.Regexp // compiles the pattern the first time: most rows are never needed
}

// Signatures recognise log entries.
type Signatures struct {
	Meanings map[string]string // each meaning in one line

	ranked   []*Signature
	literals *literals
}

// A Match is a signature that recognises an entry.
type Match struct {
	Signature *Signature
	Captures  map[string]string
}

type signatureFile struct {
	Meanings   map[string]string `json:"meanings"`
	Signatures []*Signature      `json:"signatures"`
}

// Ranked are the signatures, best first: by role, priority and ID.
func (s *Signatures) Ranked() []*Signature { return s.ranked }

// Match is every signature that recognises the entry, best first. An entry is
// one message without colour codes; the lines of a stack trace are joined by \n.
func (s *Signatures) Match(entry string) []Match {
	var found []Match
	for _, i := range s.literals.candidates(entry) {
		sig := s.ranked[i]
		re := sig.re()
		if groups := re.FindStringSubmatch(entry); groups != nil {
			m := Match{sig, captures(re, groups)}
			if sig.Alone {
				return []Match{m}
			}
			found = append(found, m)
		}
	}
	return found
}

// MayMatch reports, at a fraction of the cost of Match, whether any signature
// can recognise the entry at all.
func (s *Signatures) MayMatch(entry string) bool { return len(s.literals.candidates(entry)) > 0 }

func captures(re *regexp.Regexp, groups []string) map[string]string {
	got := map[string]string{}
	for i, name := range re.SubexpNames() {
		name = strings.TrimRight(name, "0123456789")
		if name != "" && groups[i] != "" && got[name] == "" {
			got[name] = groups[i]
		}
	}
	if host, port, err := net.SplitHostPort(got["addr"]); err == nil {
		setMissing(got, "host", host)
		setMissing(got, "port", port)
	}
	return got
}

func setMissing(m map[string]string, key, value string) {
	if m[key] == "" {
		m[key] = value
	}
}

// readSignatures reads signatures.yaml of each file system; later rows replace
// those of the same ID. The rows that come with the program alone are not
// proven again by their examples in each run: a test has done that.
func readSignatures(all ...fs.FS) (*Signatures, error) {
	s := &Signatures{Meanings: map[string]string{}}
	byID := map[string]*Signature{}
	for _, fsys := range all {
		const name = "signatures.yaml"
		if _, err := fs.Stat(fsys, name); err != nil {
			continue
		}
		var file signatureFile
		if err := readStrict(fsys, name, &file); err != nil {
			return nil, err
		}
		maps.Copy(s.Meanings, file.Meanings)
		here := map[string]bool{}
		for _, sig := range file.Signatures {
			if here[sig.ID] {
				return nil, fmt.Errorf("%s: %s is there twice", name, sig.ID)
			}
			here[sig.ID] = true
			byID[sig.ID] = sig
		}
	}
	s.ranked = slices.SortedFunc(maps.Values(byID), func(a, b *Signature) int {
		return cmp.Or(a.rank(b), cmp.Compare(a.ID, b.ID))
	})
	var needs [][]string
	var faults []error
	for _, sig := range s.ranked {
		need, err := sig.compile()
		if err != nil {
			faults = append(faults, fmt.Errorf("signatures.yaml: %s: %w", sig.ID, err))
		}
		needs = append(needs, need)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	s.literals = newLiterals(needs)
	if len(all) > 1 {
		return s, s.validate()
	}
	return s, nil
}

// validate proves each row by its examples.
func (s *Signatures) validate() error {
	var faults []error
	for _, sig := range s.ranked {
		if err := s.validateRow(sig); err != nil {
			faults = append(faults, fmt.Errorf("signatures.yaml: %s: %w", sig.ID, err))
		}
	}
	return errors.Join(faults...)
}

// rank orders by role, then by priority, best first.
func (s *Signature) rank(other *Signature) int {
	return cmp.Or(
		cmp.Compare(slices.Index(roles, s.Role), slices.Index(roles, other.Role)),
		cmp.Compare(other.Priority, s.Priority))
}

// compile parses the pattern, and tells which texts (lower case) an entry must
// hold one of to match.
func (s *Signature) compile() ([]string, error) {
	pattern, err := syntax.Parse(s.Pattern, syntax.Perl)
	if err != nil {
		return nil, err
	}
	s.re = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(s.Pattern) })
	need := required(pattern)
	if len(need) == 0 {
		return nil, fmt.Errorf("the pattern needs a literal of 3 letters that every match holds")
	}
	return need, nil
}

func (s *Signatures) validateRow(sig *Signature) error {
	switch {
	case !kebab.MatchString(sig.ID):
		return fmt.Errorf("id must be kebab-case")
	case s.Meanings[sig.Meaning] == "":
		return fmt.Errorf("meaning %q is not explained under meanings", sig.Meaning)
	case !slices.Contains(roles, sig.Role):
		return fmt.Errorf("role %q is none of %v", sig.Role, roles)
	case sig.Priority < 1 || sig.Priority > 99:
		return fmt.Errorf("priority must be 1 to 99")
	case len(sig.Matches) == 0 || len(sig.Ignores) == 0 || len(sig.Sources) == 0:
		return fmt.Errorf("matches, ignores and sources must each have one at least")
	}
	for _, line := range sig.Matches {
		found := s.Match(line)
		if !slices.ContainsFunc(found, func(m Match) bool { return m.Signature == sig }) {
			return fmt.Errorf("does not match %q", line)
		}
		if best := found[0].Signature; best.Meaning != sig.Meaning {
			return fmt.Errorf("%q is taken for %s by %s", line, best.Meaning, best.ID)
		}
		for _, m := range found[1:] {
			if m.Signature.Meaning != sig.Meaning && m.Signature.rank(found[0].Signature) == 0 {
				return fmt.Errorf("%q is as well %s by %s", line, m.Signature.Meaning, m.Signature.ID)
			}
		}
	}
	for _, line := range sig.Ignores {
		if sig.re().MatchString(line) {
			return fmt.Errorf("must not match %q", line)
		}
	}
	return nil
}
