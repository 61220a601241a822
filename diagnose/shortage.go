package diagnose

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// A shortage is a workload that has fewer pods than it asks for, and not
// because pods wait: they don't exist.
type shortage struct {
	workload Ref
	creator  Ref // who makes the pods: ReplicaSet, StatefulSet, DaemonSet, Job
	object   metav1.Object
	template corev1.PodTemplateSpec
	claims   []corev1.PersistentVolumeClaim // of a StatefulSet
	asked    int
	have     int
	// says is the API server's last refusal, as the creator reports it; empty
	// where none is kept (events expire).
	says string
	seen Evidence // of says
}

// workloadShortOfPods: a workload has fewer pods than it asks for.
var workloadShortOfPods = &Rule{
	ID:    "workload-short-of-pods",
	Needs: []probes.Any{probes.Pods, probes.Workloads, probes.Deployments, probes.ReplicaSets, probes.StatefulSets, probes.DaemonSets, probes.Jobs, probes.Events},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		pods, err := probes.Pods.Of(facts)
		if err != nil {
			return nil
		}
		var found []Suspect
		for _, s := range shortages(facts, pods) {
			created := s.object.GetCreationTimestamp()
			if facts.Source().Now().Sub(created.Time) < patience || s.object.GetDeletionTimestamp() != nil {
				continue
			}
			refusal(facts, &s)
			suspect := Suspect{
				Subjects: []Ref{s.workload}, Count: s.asked - s.have, Data: s,
				Vars:  map[string]string{"asked": fmt.Sprint(s.asked), "have": fmt.Sprint(s.have), "creator": short(s.creator)},
				Found: []Evidence{{Says: fmt.Sprintf("%s asks for %d pods and has %d", short(s.creator), s.asked, s.have), Document: probes.Document{Path: creatorDocument(s.creator.Kind), Only: []string{s.creator.Namespace + "/" + s.creator.Name}}}},
			}
			if s.creator != s.workload {
				suspect.Subjects = append(suspect.Subjects, s.creator)
			}
			if s.says != "" {
				suspect.Found = append(suspect.Found, s.seen)
				suspect.Since = s.seen.At
			}
			found = append(found, suspect)
		}
		return found
	},
}

// creatorDocument is where the objects of a kind that makes pods are read.
func creatorDocument(kind string) string {
	if kind == "Job" {
		return "jobs.batch"
	}
	return resourceOfKind(kind) + ".apps"
}

// shortages are the workloads that lack pods, by kind and name.
func shortages(facts *probes.Facts, pods *probes.PodList) []shortage {
	live := map[Ref][]*corev1.Pod{}
	for _, p := range pods.All() {
		// A ReplicaSet replaces a pod that is being deleted at once; the others wait until it is gone.
		if owner := probes.Controller(p); owner != nil && !probes.Finished(p) && (p.DeletionTimestamp == nil || owner.Kind != "ReplicaSet") {
			r := Ref{Kind: owner.Kind, Namespace: p.Namespace, Name: owner.Name}
			live[r] = append(live[r], p)
		}
	}
	var list []shortage
	add := func(s shortage, reported int) {
		s.have = max(len(live[s.creator]), reported)
		if s.have < s.asked {
			list = append(list, s)
		}
	}
	if sets, err := probes.ReplicaSets.Of(facts); err == nil {
		for _, rs := range sets.All() {
			s := shortage{creator: Ref{Kind: "ReplicaSet", Namespace: rs.Namespace, Name: rs.Name}, object: rs, template: rs.Spec.Template, asked: int(replicas(rs.Spec.Replicas))}
			s.workload = s.creator
			if owner := probes.Controller(rs); owner != nil {
				s.workload = Ref{Kind: owner.Kind, Namespace: rs.Namespace, Name: owner.Name}
			}
			for _, c := range rs.Status.Conditions {
				s.reports(string(c.Type), c.Status, c.Message, c.LastTransitionTime)
			}
			add(s, int(rs.Status.Replicas))
		}
		list = append(list, withoutReplicaSet(facts, sets)...)
	} else if deployments, err := probes.Deployments.Of(facts); err == nil {
		for _, d := range deployments.All() {
			s := shortage{creator: Ref{Kind: "Deployment", Namespace: d.Namespace, Name: d.Name}, object: d, template: d.Spec.Template, asked: int(replicas(d.Spec.Replicas))}
			s.workload = s.creator
			for _, c := range d.Status.Conditions {
				s.reports(string(c.Type), c.Status, c.Message, c.LastTransitionTime)
			}
			own := 0 // pods of the ReplicaSets that can't be read
			for r, pods := range live {
				if r.Kind == "ReplicaSet" && r.Namespace == d.Namespace && strings.HasPrefix(r.Name, d.Name+"-") {
					own += len(pods)
				}
			}
			add(s, max(own, int(d.Status.Replicas)))
		}
	}
	if sets, err := probes.StatefulSets.Of(facts); err == nil {
		for _, ss := range sets.All() {
			s := shortage{creator: Ref{Kind: "StatefulSet", Namespace: ss.Namespace, Name: ss.Name}, object: ss, template: ss.Spec.Template, claims: ss.Spec.VolumeClaimTemplates, asked: int(replicas(ss.Spec.Replicas))}
			s.workload = s.creator
			if ss.Spec.PodManagementPolicy != "Parallel" && waitsForEarlier(live[s.creator]) {
				continue // the next pod is made when the earlier ones are ready
			}
			add(s, int(ss.Status.Replicas))
		}
	}
	if sets, err := probes.DaemonSets.Of(facts); err == nil {
		for _, ds := range sets.All() {
			s := shortage{creator: Ref{Kind: "DaemonSet", Namespace: ds.Namespace, Name: ds.Name}, object: ds, template: ds.Spec.Template, asked: int(ds.Status.DesiredNumberScheduled)}
			s.workload = s.creator
			add(s, int(ds.Status.CurrentNumberScheduled))
		}
	}
	if jobs, err := probes.Jobs.Of(facts); err == nil {
		for _, j := range jobs.All() {
			over := j.Spec.Suspend != nil && *j.Spec.Suspend || j.Spec.Parallelism != nil && *j.Spec.Parallelism == 0 || j.Status.CompletionTime != nil || j.Status.Succeeded > 0 || j.Status.Failed > 0
			for _, c := range j.Status.Conditions {
				over = over || c.Status == corev1.ConditionTrue
			}
			if over {
				continue
			}
			s := shortage{workload: jobOwner(j), creator: Ref{Kind: "Job", Namespace: j.Namespace, Name: j.Name}, object: j, template: j.Spec.Template, asked: 1}
			if pods := podsOfJob(pods, j.Namespace, j.Name); pods == 0 {
				add(s, int(j.Status.Active))
			}
		}
	}
	return list
}

// withoutReplicaSet are the Deployments for which nobody made a ReplicaSet.
func withoutReplicaSet(facts *probes.Facts, sets *probes.List[appsv1.ReplicaSet]) []shortage {
	deployments, err := probes.Deployments.Of(facts)
	if err != nil || sets.Len() == 0 && deployments.Len() > 1 {
		return nil // an empty list beside many Deployments is more likely a list that wasn't taken
	}
	var list []shortage
	for _, d := range deployments.All() {
		r := Ref{Kind: "Deployment", Namespace: d.Namespace, Name: d.Name}
		owned := false
		for rs := range sets.In(d.Namespace) {
			owner := probes.Controller(rs)
			owned = owned || owner != nil && owner.Kind == r.Kind && owner.Name == r.Name
		}
		if n := int(replicas(d.Spec.Replicas)); !owned && n > 0 && d.Status.Replicas == 0 && !d.Spec.Paused {
			list = append(list, shortage{workload: r, creator: r, object: d, template: d.Spec.Template, asked: n})
		}
	}
	return list
}

// reports takes the refusal from a ReplicaFailure condition.
func (s *shortage) reports(condition string, status corev1.ConditionStatus, message string, since metav1.Time) {
	if condition != "ReplicaFailure" || status != corev1.ConditionTrue {
		return
	}
	at := since.Time
	s.says = message
	s.seen = Evidence{Says: fmt.Sprintf("%s says: %s", short(s.creator), message), Document: probes.Document{Path: creatorDocument(s.creator.Kind), Only: []string{s.creator.Namespace + "/" + s.creator.Name}}, At: &at}
}

func podsOfJob(pods *probes.PodList, namespace, job string) int {
	n := 0
	for p := range pods.In(namespace) {
		if o := probes.Controller(p); o != nil && o.Kind == "Job" && o.Name == job {
			n++
		}
	}
	return n
}

func waitsForEarlier(pods []*corev1.Pod) bool {
	for _, p := range pods {
		if !probes.Ready(p) {
			return true
		}
	}
	return false
}

// refusal takes the latest FailedCreate event of the creator, which is newer
// than what a condition keeps, where there is one.
func refusal(facts *probes.Facts, s *shortage) {
	events, err := probes.Events.Of(facts)
	if err != nil {
		return
	}
	for _, e := range events.About(s.creator) {
		if e.Reason != "FailedCreate" || s.seen.At != nil && probes.EventTime(e).Before(*s.seen.At) {
			continue
		}
		at := probes.EventTime(e)
		s.says = e.Message
		s.seen = Evidence{Says: fmt.Sprintf("%s: FailedCreate: %s", short(s.creator), e.Message), Document: probes.Document{Path: "events", Only: []string{e.Namespace + "/" + e.Name}}, At: &at}
	}
}

// A refusalKind is what the API server refused a pod for, by its words.
type refusalKind string

// kindOfRefusal reads the API server's refusal; empty: no refusal is known.
// Source: kubernetes plugin/pkg/admission and staging/src/k8s.io/apiserver/pkg/admission.
func kindOfRefusal(says string) refusalKind {
	for _, k := range []struct {
		kind refusalKind
		any  []string
	}{
		{"webhook-call", []string{"failed calling webhook"}},
		{"admission-policy", []string{"ValidatingAdmissionPolicy '"}},
		{"webhook-denial", []string{"denied the request"}},
		{"quota-needs", []string{"failed quota:"}},
		{"quota", []string{"exceeded quota:"}},
		{"service-account", []string{"error looking up service account", "serviceaccount \""}},
		{"priority-class", []string{"no PriorityClass with name"}},
		{"runtime-class", []string{"RuntimeClass"}},
		{"pod-security", []string{"violates PodSecurity"}},
		{"limit-range", []string{"usage per Container", "usage per Pod", "limit to request ratio", "per PersistentVolumeClaim"}},
		{"invalid", []string{" is invalid: "}},
	} {
		for _, words := range k.any {
			if strings.Contains(says, words) {
				return k.kind
			}
		}
	}
	if says != "" {
		return "other"
	}
	return ""
}

// admissionRule is a rule for missing pods that the API server refuses. run
// recomputes the refusal; a refusal in other words rules it out before that.
func admissionRule(id, asks string, kind refusalKind, needs []probes.Any, run func(*probes.Facts, shortage, *Suspect) Answer) *Rule {
	r := &Rule{
		ID: id, Explains: []*Rule{workloadShortOfPods}, Needs: needs,
		Tests: []Test{{Asks: asks, Needs: needs, Run: func(_ *probes.Facts, s Suspect) Answer { return s.Data.(Answer) }}},
	}
	r.Suspects = func(facts *probes.Facts, effects []*Finding) []Suspect {
		var suspects []Suspect
		for _, e := range effects {
			c, ok := e.Data.(shortage)
			if !ok {
				continue
			}
			s := Suspect{Subjects: []Ref{c.workload}, Effects: []*Finding{e}, Vars: map[string]string{
				"workload": short(c.workload), "podNamespace": c.workload.Namespace, "near": "", "says": c.says,
				"quota": "", "resource": "", "range": "", "level": "",
			}}
			if m := quotaNamed.FindStringSubmatch(c.says); m != nil {
				s.Vars["quota"] = m[1]
			}
			if said := kindOfRefusal(c.says); said != "" && said != kind {
				s.Data = Answered(false, c.seen)
			} else {
				s.Data = run(facts, c, &s)
			}
			suspects = append(suspects, s)
		}
		return mergedAnswers(suspects)
	}
	return r
}

var quotaNamed = regexp.MustCompile(`(?:exceeded|failed) quota: ([a-z0-9.-]+[a-z0-9])`)

// mergedAnswers joins confirmed suspects with the same subjects: one quota
// that starves five workloads is one cause.
func mergedAnswers(suspects []Suspect) []Suspect {
	var list []Suspect
next:
	for _, s := range suspects {
		a := s.Data.(Answer)
		for i := range list {
			b := list[i].Data.(Answer)
			if a.Truth == Yes && b.Truth == Yes && list[i].Subjects[0] == s.Subjects[0] {
				list[i].Effects = append(list[i].Effects, s.Effects...)
				b.Evidence = append(b.Evidence, a.Evidence...)
				list[i].Data = b
				continue next
			}
		}
		list = append(list, s)
	}
	return list
}

// changedAt is when a person or a tool last wrote an object: the newest entry
// of managedFields that is not a controller's of Kubernetes, else its birth.
func changedAt(o metav1.Object) time.Time {
	at := o.GetCreationTimestamp().Time
	for _, f := range o.GetManagedFields() {
		if f.Time != nil && f.Manager != "kube-controller-manager" && f.Manager != "kubelet" && f.Manager != "kube-scheduler" && f.Time.After(at) {
			at = f.Time.Time
		}
	}
	return at
}

var shortageRules = []*Rule{workloadShortOfPods}
