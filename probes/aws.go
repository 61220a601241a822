package probes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// An AWSList is every resource of one kind in a document, each once, in the
// order of their ids. It may be a part of what exists: an AWS read is narrowed
// to what is in question, and a captured document may be, too.
type AWSList[T any] struct {
	all  []T
	byID map[string]*T
}

// All are the resources; the slice is the list's own.
func (l *AWSList[T]) All() []T { return l.all }

// Len is how many there are.
func (l *AWSList[T]) Len() int { return len(l.all) }

// Get is the resource of that id, or nil.
func (l *AWSList[T]) Get(id string) *T { return l.byID[id] }

func newAWSList[T any](all []T, id func(*T) string) *AWSList[T] {
	slices.SortStableFunc(all, func(a, b T) int { return strings.Compare(id(&a), id(&b)) })
	all = slices.CompactFunc(all, func(a, b T) bool { return id(&a) == id(&b) })
	l := &AWSList[T]{all: all, byID: make(map[string]*T, len(all))}
	for i := range all {
		l.byID[id(&all[i])] = &all[i]
	}
	return l
}

// described is a probe for the resources that an AWS CLI command prints as an
// array under a key: awsListing's path is "ec2/describe-subnets", its key
// "Subnets". The CLI's JSON is that of the SDK's types.
func described[T any](path, key, about string, id func(*T) string) *Probe[*AWSList[T]] {
	doc := Document{Path: "aws/" + path}
	_, name, _ := strings.Cut(path, "-")
	return &Probe[*AWSList[T]]{
		Name:  name,
		About: about,
		Reads: []Permission{{Action: doc.Grant()}},
		Gather: func(ctx context.Context, src Source, _ *Facts) (*AWSList[T], error) {
			var all []T
			err := eachAWS(ctx, src, doc, func(fields map[string]json.RawMessage) error {
				var some []T
				if raw := fields[key]; raw != nil {
					if err := json.Unmarshal(raw, &some); err != nil {
						return err
					}
				}
				all = append(all, some...)
				return nil
			})
			if err != nil {
				return nil, err
			}
			return newAWSList(all, id), nil
		},
	}
}

// eachAWS calls read with each JSON value of an AWS document. An error of read
// makes the document unreadable.
func eachAWS(ctx context.Context, src Source, doc Document, read func(map[string]json.RawMessage) error) error {
	r, err := src.Open(ctx, doc)
	if err != nil {
		return fmt.Errorf("reading %s: %w", doc.Path, err)
	}
	defer r.Close()
	decoder := json.NewDecoder(r)
	for {
		var fields map[string]json.RawMessage
		err := decoder.Decode(&fields)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = read(fields)
		}
		var gap *Gap
		if errors.As(err, &gap) {
			return gap
		}
		if err != nil {
			return gapf(doc, Unreadable, "%v", err)
		}
	}
}

func deref[T any](p *T) T {
	var zero T
	if p == nil {
		return zero
	}
	return *p
}
