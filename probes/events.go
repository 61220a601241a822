package probes

import (
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Events are the events that are still kept, oldest first. That an event is
// missing proves nothing: they expire after an hour by default.
var Events = &Probe[*EventList]{
	Name:  "events",
	About: "what components last said about objects",
	Reads: []Permission{{Verb: "list", Resource: "events"}},
	Gather: func(ctx context.Context, src Source, _ *Facts) (*EventList, error) {
		list, err := readList[corev1.Event](ctx, src, Document{Path: "events"})
		if err != nil {
			return nil, err
		}
		return NewEventList(list.All()), nil
	},
}

// An EventList is events by the object that they are about.
type EventList struct {
	all   []*corev1.Event
	about map[Ref][]*corev1.Event
}

// NewEventList orders events by their last time.
func NewEventList(events []*corev1.Event) *EventList {
	l := &EventList{all: events, about: map[Ref][]*corev1.Event{}}
	slices.SortStableFunc(l.all, func(a, b *corev1.Event) int {
		if c := EventTime(a).Compare(EventTime(b)); c != 0 {
			return c
		}
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	for _, e := range l.all {
		r := EventRef(e)
		l.about[r] = append(l.about[r], e)
	}
	return l
}

// All are the events, oldest first.
func (l *EventList) All() []*corev1.Event { return l.all }

// About are the events about an object, oldest first.
func (l *EventList) About(r Ref) []*corev1.Event { return l.about[r] }

// EventRef is the object that an event is about.
func EventRef(e *corev1.Event) Ref {
	return Ref{Kind: e.InvolvedObject.Kind, Namespace: e.InvolvedObject.Namespace, Name: e.InvolvedObject.Name}
}

// EventTime is when an event was last seen.
func EventTime(e *corev1.Event) time.Time {
	switch {
	case e.Series != nil && !e.Series.LastObservedTime.IsZero():
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	case !e.FirstTimestamp.IsZero():
		return e.FirstTimestamp.Time
	}
	return e.CreationTimestamp.Time
}
