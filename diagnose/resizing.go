package diagnose

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/scheduling"
)

// claimNotResized: a claim asks for more than its volume has, and the last try
// to give it more failed.
var claimNotResized = &Rule{
	ID: "claim-not-resized", Needs: []probes.Any{probes.Claims, probes.Events},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		claims, err := probes.Claims.Of(facts)
		events, err2 := probes.Events.Of(facts)
		if err != nil || err2 != nil {
			return nil
		}
		var found []Suspect
		for _, c := range claims.All() {
			asked, has := c.Spec.Resources.Requests[corev1.ResourceStorage], c.Status.Capacity[corev1.ResourceStorage]
			if c.Status.Phase != corev1.ClaimBound || c.DeletionTimestamp != nil || asked.Cmp(has) <= 0 {
				continue
			}
			ref := Ref{Kind: "PersistentVolumeClaim", Namespace: c.Namespace, Name: c.Name}
			last := lastResizing(facts, events, ref)
			if last == nil {
				continue
			}
			at := probes.EventTime(last)
			seen := SawObject("persistentvolumeclaims", c.Namespace, c.Name, "claim %s asks for %s and has %s", c.Name, scheduling.Show(corev1.ResourceStorage, asked), scheduling.Show(corev1.ResourceStorage, has))
			found = append(found, Suspect{
				Subjects: []Ref{ref}, Count: 1, Since: &at, Data: last, Found: []Evidence{seen, eventOn(last)},
				Vars: map[string]string{"asked": scheduling.Show(corev1.ResourceStorage, asked), "has": scheduling.Show(corev1.ResourceStorage, has)},
			})
		}
		return found
	},
}

// lastResizing is the newest event about growing a claim, if it is a failure
// that is not long ago. Source: kubernetes-csi/external-resizer
// pkg/util/event.go (VolumeResizeFailed); kubernetes pkg/kubelet/events.
func lastResizing(facts *probes.Facts, events *probes.EventList, claim Ref) *corev1.Event {
	var last *corev1.Event
	for _, e := range events.About(claim) {
		switch e.Reason {
		case "VolumeResizeFailed", "VolumeResizeSuccessful", "FileSystemResizeFailed", "FileSystemResizeSuccessful":
			if last == nil || probes.EventTime(e).After(probes.EventTime(last)) {
				last = e
			}
		}
	}
	if last == nil || !strings.HasSuffix(last.Reason, "Failed") || facts.Source().Now().Sub(probes.EventTime(last)) > recent {
		return nil
	}
	return last
}

// lastEvent is the newest event of that reason about an object, nil if there
// is none.
func lastEvent(facts *probes.Facts, about Ref, reason string) *corev1.Event {
	events, err := probes.Events.Of(facts)
	if err != nil {
		return nil
	}
	var last *corev1.Event
	for _, e := range events.About(about) {
		if e.Reason == reason && (last == nil || probes.EventTime(e).After(probes.EventTime(last))) {
			last = e
		}
	}
	return last
}

func eventOn(e *corev1.Event) Evidence {
	at := probes.EventTime(e)
	saw := SawObject("events", e.Namespace, e.Name, "event %s on %s %s: %s", e.Reason, strings.ToLower(e.InvolvedObject.Kind), e.InvolvedObject.Name, clip(e.Message, 420))
	saw.At = &at
	return saw
}

// resizeRefused: the storage driver says why it does not grow the volume.
var resizeRefused = &Rule{
	ID: "volume-resize-refused", Explains: []*Rule{claimNotResized}, LastResort: true, Needs: []probes.Any{probes.Events},
	Suspects: func(_ *probes.Facts, effects []*Finding) []Suspect {
		var list []Suspect
		for _, e := range effects {
			event := e.Data.(*corev1.Event)
			list = append(list, Suspect{
				Subjects: e.Subjects, Effects: []*Finding{e}, Data: event,
				Vars: map[string]string{"says": clip(event.Message, 420), "advice": resizeAdvice(event.Message), "asked": e.Vars["asked"], "has": e.Vars["has"]},
			})
		}
		return list
	},
	Tests: []Test{{Asks: "does the storage driver refuse to grow the volume?", Run: func(_ *probes.Facts, s Suspect) Answer {
		return Answered(true, eventOn(s.Data.(*corev1.Event)))
	}}},
}

// resizeAdvice is what a known refusal asks for.
// Source: Amazon EBS User Guide, "Requirements for EBS volume modifications".
func resizeAdvice(says string) string {
	switch {
	case strings.Contains(says, "VolumeModificationRateExceeded"), strings.Contains(says, "IncorrectModificationState"):
		return " EBS lets a volume be modified once in six hours: it will go through by itself then."
	case strings.Contains(says, "VolumeQuotaExceeded"), strings.Contains(says, "LimitExceeded"):
		return " A quota of the account is used up: ask for a higher one, or delete volumes."
	case strings.Contains(says, "does not support"), strings.Contains(says, "Unimplemented"):
		return " The driver can't grow volumes: copy the data to a new, larger claim."
	}
	return ""
}

var resizingRules = []*Rule{claimNotResized, resizeRefused}
