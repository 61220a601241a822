package diagnose

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// rewrittenAt is when an object was last changed after it was made; zero if
// never, or if nothing says so.
func rewrittenAt(o metav1.Object) time.Time {
	if at := changedAt(o); at.After(o.GetCreationTimestamp().Add(time.Minute)) {
		return at
	}
	return time.Time{}
}

// changedLast tells of a Service and what holds its client's address which was
// written last: that is the one by which a setting that had worked was broken.
// It is unknown where neither was changed since it was made.
func changedLast(facts *probes.Facts, s *corev1.Service, holder Ref) (service, known bool) {
	mine := rewrittenAt(s)
	var theirs time.Time
	switch holder.Kind {
	case "Deployment":
		if l, err := probes.Deployments.Of(facts); err == nil && l.Get(holder.Namespace, holder.Name) != nil {
			theirs = rewrittenAt(l.Get(holder.Namespace, holder.Name))
		}
	case "StatefulSet":
		if l, err := probes.StatefulSets.Of(facts); err == nil && l.Get(holder.Namespace, holder.Name) != nil {
			theirs = rewrittenAt(l.Get(holder.Namespace, holder.Name))
		}
	case "ConfigMap":
		if l, err := probes.ConfigMaps.Of(facts); err == nil && l.Get(holder.Namespace, holder.Name) != nil {
			theirs = rewrittenAt(l.Get(holder.Namespace, holder.Name))
		}
	}
	return mine.After(theirs), !mine.Equal(theirs)
}
