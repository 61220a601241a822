package probes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// An ObjectReader is a document whose objects arrive decoded, for instance
// from protobuf pages. Next returns io.EOF after the last, and a *Gap if the
// rest can't be had.
type ObjectReader interface {
	io.ReadCloser
	Next() (any, error)
}

// Items yields the objects of a document one by one, so that a caller can
// reduce each before the next is read. The document is a stream of JSON
// objects, or an [ObjectReader] of *T. The error, if any, comes last.
func Items[T any](ctx context.Context, src Source, doc Document) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		r, err := src.Open(ctx, doc)
		if err != nil {
			yield(nil, err)
			return
		}
		defer r.Close()
		next := decodeNext[T](r)
		for {
			item, err := next()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				var gap *Gap
				if !errors.As(err, &gap) {
					err = gapf(doc, Unreadable, "%v", err)
				}
				yield(nil, err)
				return
			}
			if !yield(item, nil) {
				return
			}
		}
	}
}

func decodeNext[T any](r io.Reader) func() (*T, error) {
	if objects, ok := r.(ObjectReader); ok {
		return func() (*T, error) {
			object, err := objects.Next()
			if err != nil {
				return nil, err
			}
			if item, ok := object.(*T); ok {
				return item, nil
			}
			// The source has another type for this kind than the probe.
			data, err := json.Marshal(object)
			if err != nil {
				return nil, err
			}
			item := new(T)
			return item, json.Unmarshal(data, item)
		}
	}
	decoder := json.NewDecoder(r)
	return func() (*T, error) {
		item := new(T)
		return item, decoder.Decode(item)
	}
}

// A List is every object of one kind that a source holds, in the order of
// namespace and name.
type List[T any] struct {
	all []*T
}

// NewList orders objects.
func NewList[T any](objects []*T) *List[T] {
	slices.SortStableFunc(objects, func(a, b *T) int { return compareName(a, namespaceOf(b), nameOf(b)) })
	return &List[T]{all: objects}
}

func namespaceOf[T any](object *T) string { return any(object).(metav1.Object).GetNamespace() }

func nameOf[T any](object *T) string { return any(object).(metav1.Object).GetName() }

func compareName[T any](object *T, namespace, name string) int {
	return cmp.Or(strings.Compare(namespaceOf(object), namespace), strings.Compare(nameOf(object), name))
}

// All are the objects; the slice is the list's own.
func (l *List[T]) All() []*T { return l.all }

// Len is how many objects there are.
func (l *List[T]) Len() int { return len(l.all) }

// Get is the object of that name, or nil. The namespace of a cluster-scoped
// object is empty.
func (l *List[T]) Get(namespace, name string) *T {
	i, found := slices.BinarySearchFunc(l.all, name, func(o *T, name string) int { return compareName(o, namespace, name) })
	if !found {
		return nil
	}
	return l.all[i]
}

// In yields the objects of one namespace.
func (l *List[T]) In(namespace string) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		first, _ := slices.BinarySearchFunc(l.all, namespace, func(o *T, namespace string) int { return strings.Compare(namespaceOf(o), namespace) })
		for _, o := range l.all[first:] {
			if namespaceOf(o) != namespace || !yield(o) {
				return
			}
		}
	}
}

// Where are the objects for which keep is true.
func (l *List[T]) Where(keep func(*T) bool) []*T {
	var kept []*T
	for _, o := range l.all {
		if keep(o) {
			kept = append(kept, o)
		}
	}
	return kept
}

// listing is a probe for all objects of a resource, each reduced by the given
// functions while it is read. The resource is written as in [Document].
func listing[T any](resource, about string, reduce ...func(*T)) *Probe[*List[T]] {
	return &Probe[*List[T]]{
		Name:  resource,
		About: about,
		Reads: []Permission{{Verb: "list", Resource: resource}},
		Gather: func(ctx context.Context, src Source, _ *Facts) (*List[T], error) {
			return readList(ctx, src, Document{Path: resource}, reduce...)
		},
	}
}

func readList[T any](ctx context.Context, src Source, doc Document, reduce ...func(*T)) (*List[T], error) {
	var objects []*T
	for item, err := range Items[T](ctx, src, doc) {
		if err != nil {
			return nil, fmt.Errorf("listing %s: %w", doc.Path, err)
		}
		any(item).(metav1.Object).SetManagedFields(slimManagedFields(any(item).(metav1.Object).GetManagedFields()))
		for _, f := range reduce {
			f(item)
		}
		objects = append(objects, item)
	}
	return NewList(objects), nil
}

// slimManagedFields keeps who wrote and when, and the field sets of writers
// that are not controllers' status updates: those tell what a person changed.
func slimManagedFields(entries []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	return slices.DeleteFunc(entries, func(e metav1.ManagedFieldsEntry) bool { return e.Subresource == "status" })
}
