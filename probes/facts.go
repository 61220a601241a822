package probes

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/pposiraegi/ppodoctor/knowledge"
)

// A Probe gathers one fact, and is the key to it: a rule reads the fact with
// Of. A probe is a package variable and runs at most once a walk, only because
// something asks for it.
type Probe[T any] struct {
	Name  string // kebab-case, as shown by `ppodoctor permissions`
	About string // one line: what the fact is
	Reads []Permission
	After []Any // the facts that Gather reads from known
	// Gather returns a *Gap, or an error that wraps one, when the fact can't
	// be had. A fact that fans out (logs, IAM decisions) keeps its gaps per
	// item and returns no error.
	Gather func(ctx context.Context, src Source, known *Facts) (T, error)
}

// Any is a probe of any type.
type Any interface {
	ProbeName() string
	Permissions() []Permission
	Prerequisites() []Any
	run(ctx context.Context, src Source, known *Facts) (any, error)
}

// ProbeName is the probe's name.
func (p *Probe[T]) ProbeName() string { return p.Name }

// Permissions are the rights that the probe itself uses.
func (p *Probe[T]) Permissions() []Permission { return p.Reads }

// Prerequisites are the probes whose facts this one reads.
func (p *Probe[T]) Prerequisites() []Any { return p.After }

func (p *Probe[T]) run(ctx context.Context, src Source, known *Facts) (any, error) {
	return p.Gather(ctx, src, known)
}

// Of is the fact that the probe gathered, or the reason why it can't be had.
// It panics where the reader hasn't declared that it needs the fact: such a
// rule would work by accident only.
func (p *Probe[T]) Of(f *Facts) (T, error) {
	var none T
	if f.allowed != nil && !slices.Contains(f.allowed, Any(p)) {
		panic(fmt.Sprintf("probes: %s is read but not declared in Needs", p.Name))
	}
	f.store.mu.Lock()
	got := f.store.facts[p]
	f.store.mu.Unlock()
	if got == nil {
		panic(fmt.Sprintf("probes: %s is read before it was gathered", p.Name))
	}
	<-got.done
	if f.observe != nil {
		f.observe(p)
	}
	if got.err != nil {
		return none, got.err
	}
	return got.value.(T), nil
}

// Ask is the fact for a probe that builds on this one in some clusters only,
// and so can't say that it comes after it. It is gathered once for all.
func (p *Probe[T]) Ask(ctx context.Context, known *Facts) (T, error) {
	known.Gather(ctx, p)
	return p.Of(&Facts{store: known.store})
}

// Facts are what the probes gathered from one source.
type Facts struct {
	store   *factStore
	allowed []Any // nil: all
	observe func(Any)
}

type factStore struct {
	src   Source
	knows *knowledge.Knowledge // nil: the embedded one
	calls []Call
	logs  readOnce
	mu    sync.Mutex
	facts map[Any]*fact
}

type fact struct {
	done  chan struct{}
	value any
	err   error
}

// NewFacts are no facts yet, to be gathered from src.
func NewFacts(src Source) *Facts {
	return &Facts{store: &factStore{src: src, facts: map[Any]*fact{}}}
}

// Knowing makes log lines be read with the signatures of k, and components be
// recognised by its tables, in place of the embedded ones. It must be said
// before anything is gathered.
func (f *Facts) Knowing(k *knowledge.Knowledge) *Facts {
	f.store.knows = k
	return f
}

// Asking makes IAM be asked for these calls too, and their roles be read. It
// must be said before anything of IAM is gathered.
func (f *Facts) Asking(calls ...Call) *Facts {
	f.store.calls = append(f.store.calls, calls...)
	return f
}

func (f *Facts) knowledge() (*knowledge.Knowledge, error) {
	if f.store.knows != nil {
		return f.store.knows, nil
	}
	return knowledge.Embedded()
}

func (f *Facts) signatures() (*knowledge.Signatures, error) {
	k, err := f.knowledge()
	if err != nil {
		return nil, err
	}
	return k.Signatures, nil
}

// Source is where the facts come from.
func (f *Facts) Source() Source { return f.store.src }

// Gather runs the probes that have not run yet, and what they build on, at the
// same time. It returns when all are done; what can't be had is an error that
// the probe's Of returns.
func (f *Facts) Gather(ctx context.Context, wanted ...Any) {
	var wait []*fact
	for _, p := range wanted {
		wait = append(wait, f.start(ctx, p))
	}
	for _, w := range wait {
		<-w.done
	}
}

func (f *Facts) start(ctx context.Context, p Any) *fact {
	f.store.mu.Lock()
	if got := f.store.facts[p]; got != nil {
		f.store.mu.Unlock()
		return got
	}
	got := &fact{done: make(chan struct{})}
	f.store.facts[p] = got
	f.store.mu.Unlock()
	go func() {
		defer close(got.done)
		before := p.Prerequisites()
		f.Gather(ctx, before...)
		got.value, got.err = p.run(ctx, f.store.src, f.Only(before...))
	}()
	return got
}

// Only is a view of the facts that panics on a read of any other.
func (f *Facts) Only(allowed ...Any) *Facts {
	if allowed == nil {
		allowed = []Any{}
	}
	return &Facts{store: f.store, allowed: allowed, observe: f.observe}
}

// Observed is a view of the same facts that tells observe of each read.
func (f *Facts) Observed(observe func(Any)) *Facts {
	return &Facts{store: f.store, allowed: f.allowed, observe: observe}
}

// Gathered are the names of the probes that have run, sorted.
func (f *Facts) Gathered() []string {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	var names []string
	for p := range f.store.facts {
		names = append(names, p.ProbeName())
	}
	slices.Sort(names)
	return names
}

// Has reports whether a probe's fact was gathered, or is being gathered.
func (f *Facts) Has(p Any) bool {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	return f.store.facts[p] != nil
}

// ItemGaps are the gaps of single items (one log of many) of a fact that was
// gathered without an error.
func (f *Facts) ItemGaps(p Any) []*Gap {
	f.store.mu.Lock()
	got := f.store.facts[p]
	f.store.mu.Unlock()
	if got == nil {
		return nil
	}
	<-got.done
	if items, ok := got.value.(interface{ Gaps() []*Gap }); ok && got.err == nil {
		return items.Gaps()
	}
	return nil
}

// Err is why a probe's fact can't be had; nil where it can.
func (f *Facts) Err(p Any) error {
	f.store.mu.Lock()
	got := f.store.facts[p]
	f.store.mu.Unlock()
	if got == nil {
		return nil
	}
	<-got.done
	return got.err
}

// Closure is the probes and all that they build on, each once, in a fixed
// order: prerequisites first.
func Closure(wanted ...Any) []Any {
	var all []Any
	var add func(Any)
	add = func(p Any) {
		if slices.Contains(all, p) {
			return
		}
		for _, b := range p.Prerequisites() {
			add(b)
		}
		all = append(all, p)
	}
	for _, p := range wanted {
		add(p)
	}
	return all
}
