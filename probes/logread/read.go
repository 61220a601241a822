// Package logread reads a container's log: what failed in it, when first, what
// it names, and how it ended.
package logread

import (
	"cmp"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/pposiraegi/ppodoctor/knowledge"
)

// Options say what is known of a log beforehand.
type Options struct {
	Now   time.Time // the clock of the source; klog leaves out the year
	Ended bool      // the log is of a run that ended: its last lines say why
	Limit int64     // bytes to read; 0 is 32 MiB
}

// An Excerpt is what matters of one log. Its size doesn't grow with the log.
type Excerpt struct {
	Entries  int       // how many entries were read
	Bytes    int64     // how much of the log was read
	Cut      bool      // the log goes on after what was read
	Broken   error     // reading ended with this
	From, To time.Time // of the first and the last entry with a time; else zero

	First    *Failure   // the first entry that failed, nil if none
	Decisive *Failure   // the one that most likely says why, nil if none failed
	Failures []*Failure // all that failed, folded; the most telling first
	Dropped  int        // how many kinds of failures there were beyond Failures
	Last     []string   // the last three lines

	// Milestones are how far the program came, in the order of the log: the
	// ports that it listens on, that it has started. A few at most.
	Milestones []Milestone
}

// A Milestone is an entry that says how far the program came.
type Milestone struct {
	Text     string
	Meaning  string
	Captures map[string]string
	At       time.Time // zero where the log has no times
}

const maxMilestones = 12

// A Failure is an entry that says that something failed, with those like it.
type Failure struct {
	Text      string               // what the entry says, without time and level; a stack trace with its telling lines only
	Template  string               // Text with # for what differs from one to the next
	Level     Level                // the most serious of those folded
	Meaning   string               // of the signature; empty where none recognises it
	Signature *knowledge.Signature // nil where none recognises it
	Captures  map[string]string    // of the signature
	Also      []string             // other meanings of the same entry, with the role cause
	Host      string               // the name or address that it could not reach, or ""
	Port      string
	Frame     string            // of a panic: the first frame of the program's own code
	Fields    map[string]string // of a structured entry: the objects that it is about
	Count     int
	FirstAt   time.Time // zero where the log has no times
	LastAt    time.Time
	After     int  // how many entries came after the last of them
	Handled   bool // the program says that it goes on: logged as info, or mended

	order  int // of its first entry
	last   int
	weight int
}

const maxFailures = 64

// Read reads a log to its end or limit.
func Read(r io.Reader, signatures *knowledge.Signatures, o Options) *Excerpt {
	x := &reading{Excerpt: &Excerpt{}, signatures: signatures, options: o, byTemplate: map[string]*Failure{}}
	limit := cmp.Or(o.Limit, 32<<20)
	x.Bytes, x.Cut, x.Broken = x.entries(r, limit)
	x.conclude()
	return x.Excerpt
}

type reading struct {
	*Excerpt
	signatures *knowledge.Signatures
	options    Options
	byTemplate map[string]*Failure
}

func (x *reading) tail(s string) {
	if len(x.Last) == 3 {
		x.Last = append(x.Last[:0], x.Last[1:]...)
	}
	x.Last = append(x.Last, shorten(s, 400))
}

func (x *reading) entry(e *entry) {
	x.Entries++
	if !e.at.IsZero() {
		if x.From.IsZero() {
			x.From = e.at
		}
		x.To = e.at
	}
	matches := x.signatures.Match(matched(e.text))
	if i := slices.IndexFunc(matches, func(m knowledge.Match) bool { return m.Signature.Role == knowledge.Milestone }); i >= 0 {
		if m := matches[i]; e.level < Warn && len(x.Milestones) < maxMilestones {
			x.Milestones = append(x.Milestones, Milestone{Text: telling(e.text[e.lead:]), Meaning: m.Signature.Meaning, Captures: m.Captures, At: e.at})
		}
		matches = matches[:i]
	}
	if len(matches) == 0 && e.level < Error {
		return
	}
	template := fold(e.text[e.lead:])
	key := template
	if len(matches) > 0 {
		key = matches[0].Signature.ID + " " + template
	}
	f := x.byTemplate[key]
	if f == nil {
		if len(x.byTemplate) >= maxFailures {
			x.Dropped++
			x.forget()
		}
		f = newFailure(e, template, matches)
		f.order = x.Entries
		x.byTemplate[key] = f
	}
	f.Count++
	f.last = x.Entries
	f.Level = max(f.Level, e.level)
	if !e.at.IsZero() {
		if f.FirstAt.IsZero() {
			f.FirstAt = e.at
		}
		f.LastAt = e.at
	}
}

// forget drops the failure that says least, the oldest of several.
func (x *reading) forget() {
	worst := ""
	for key, f := range x.byTemplate {
		w := x.byTemplate[worst]
		if w == nil || cmp.Or(cmp.Compare(f.class(), w.class()), cmp.Compare(f.priority(), w.priority()), cmp.Compare(w.last, f.last), strings.Compare(w.Template, f.Template)) < 0 {
			worst = key
		}
	}
	delete(x.byTemplate, worst)
}

func newFailure(e *entry, template string, matches []knowledge.Match) *Failure {
	f := &Failure{Text: telling(e.text[e.lead:]), Template: template, Fields: objects(e.fields), Frame: ownFrame(e.text)}
	f.Handled = e.level == Info || e.level == Debug || mended.MatchString(e.text)
	if len(matches) > 0 {
		f.Signature, f.Captures = matches[0].Signature, matches[0].Captures
		f.Meaning = f.Signature.Meaning
		for _, m := range matches[1:] {
			if s := m.Signature; s.Role == knowledge.Cause && s.Meaning != f.Meaning && !slices.Contains(f.Also, s.Meaning) {
				f.Also = append(f.Also, s.Meaning)
			}
		}
	}
	f.Host, f.Port = target(f.Captures, e.text)
	return f
}

var (
	mended   = regexp.MustCompile(`(?i)\b(?:recovered from|has recovered|reconnected|re-established|succeeded after|successfully after|no longer failing|resolved after|connection restored)\b`)
	retrying = regexp.MustCompile(`(?i)\b(?:retry(?:ing)?|will retry|try again|trying again|falling back|ignor(?:ed|ing)|skipp(?:ed|ing)|attempt \d+)\b`)
)

// class ranks kinds of failures: what names a cause over what wraps one, over
// an error that nothing recognises, over consequences and what was handled.
func (f *Failure) class() int {
	switch {
	case f.Handled:
		return 0
	case f.Signature == nil:
		return 2
	case f.Signature.Role == knowledge.Cause:
		return 4
	case f.Signature.Role == knowledge.Wrapper:
		return 3
	}
	return 1
}

func (f *Failure) priority() int {
	if f.Signature == nil {
		return 50
	}
	return f.Signature.Priority
}

// weigh estimates how likely a failure is why the program ended, or doesn't work.
func (x *reading) weigh(f *Failure) int {
	weight := f.priority()
	switch f.Level {
	case Fatal:
		weight += 15
	case Error:
		weight += 5
	case Warn:
		weight -= 10
	}
	if retrying.MatchString(f.Text) {
		weight -= 5
	}
	switch {
	case f.After < 3:
		weight += 20
	case f.After < 10:
		weight += 12
	case f.After < 50:
		weight += 5
	case !x.options.Ended && f.After > 20*f.Count:
		weight -= 30 // long over
	}
	return weight
}

func (x *reading) conclude() {
	for _, f := range x.byTemplate {
		f.After = x.Entries - f.last
		f.weight = x.weigh(f)
		x.Failures = append(x.Failures, f)
	}
	slices.SortFunc(x.Failures, func(a, b *Failure) int {
		return cmp.Or(cmp.Compare(b.class(), a.class()), cmp.Compare(b.weight, a.weight), cmp.Compare(b.last, a.last), strings.Compare(a.Template, b.Template))
	})
	for _, f := range x.Failures {
		if f.class() > 0 && (x.First == nil || f.order < x.First.order) {
			x.First = f
		}
	}
	if len(x.Failures) > 0 && x.Failures[0].class() > 0 {
		x.Decisive = x.Failures[0]
	}
}

// Says reports whether some failure that was not handled has one of the
// meanings, and gives the most telling.
func (x *Excerpt) Says(meanings ...string) *Failure {
	for _, f := range x.Failures {
		if !f.Handled && slices.Contains(meanings, f.Meaning) {
			return f
		}
	}
	return nil
}
