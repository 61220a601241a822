package diagnose

import (
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// jobMemory is how long ago a job may have failed to be a symptom still.
const jobMemory = 24 * time.Hour

// jobFailing: a job has failed, or its pods fail and it is not done yet. A
// cron job is as well as its latest job.
var jobFailing = &Rule{
	ID:    "job-failing",
	Needs: []probes.Any{probes.Jobs, probes.Pods, probes.Workloads},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		jobs, err := probes.Jobs.Of(facts)
		if err != nil {
			return nil
		}
		pods, err := probes.Pods.Of(facts)
		if err != nil {
			return nil
		}
		latest := map[Ref]*batchv1.Job{}
		for _, j := range jobs.All() {
			owner := jobOwner(j)
			if old := latest[owner]; old == nil || old.CreationTimestamp.Before(&j.CreationTimestamp) {
				latest[owner] = j
			}
		}
		now := facts.Source().Now()
		var found []Suspect
		for _, j := range jobs.All() {
			owner := jobOwner(j)
			if latest[owner] != j || j.DeletionTimestamp != nil {
				continue
			}
			says, since := jobTrouble(j, now)
			if says == "" {
				continue
			}
			var data podTrouble
			for p := range pods.In(j.Namespace) {
				if o := probes.Controller(p); o != nil && o.Kind == "Job" && o.Name == j.Name && (p.Status.Phase == corev1.PodFailed || !probes.Finished(p)) {
					data.pods = append(data.pods, p)
					data.troubles = append(data.troubles, &trouble{says: says})
				}
			}
			s := Suspect{
				Subjects: []Ref{owner}, Count: max(1, len(data.pods)), Since: since, Data: data,
				Vars:  map[string]string{"job": j.Name, "says": says},
				Found: []Evidence{SawObject("jobs.batch", j.Namespace, j.Name, "job %s: %s", j.Name, says)},
			}
			if owner.Kind != "Job" {
				s.Subjects = append(s.Subjects, Ref{Kind: "Job", Namespace: j.Namespace, Name: j.Name})
			}
			for i, p := range data.pods {
				if i < maxExamples {
					s.Subjects = append(s.Subjects, podRef(p))
				}
			}
			found = append(found, s)
		}
		return found
	},
}

// jobTrouble says what is wrong with a job, or "".
func jobTrouble(j *batchv1.Job, now time.Time) (string, *time.Time) {
	for _, c := range j.Status.Conditions {
		if c.Status != corev1.ConditionTrue {
			continue
		}
		switch c.Type {
		case batchv1.JobComplete, batchv1.JobSuccessCriteriaMet, batchv1.JobSuspended:
			return "", nil
		case batchv1.JobFailed:
			at := c.LastTransitionTime.Time
			if now.Sub(at) > jobMemory {
				return "", nil
			}
			return fmt.Sprintf("it failed (%s): %s", c.Reason, c.Message), &at
		}
	}
	if j.Status.Failed > 0 && j.Status.Succeeded == 0 {
		var since *time.Time
		if j.Status.StartTime != nil {
			since = &j.Status.StartTime.Time
		}
		return fmt.Sprintf("%d of its pods failed, none succeeded", j.Status.Failed), since
	}
	return "", nil
}

// jobOwner is the cron job that made a job, or the job itself.
func jobOwner(j *batchv1.Job) Ref {
	if o := probes.Controller(j); o != nil {
		return Ref{Kind: o.Kind, Namespace: j.Namespace, Name: o.Name}
	}
	return Ref{Kind: "Job", Namespace: j.Namespace, Name: j.Name}
}

var jobSymptoms = []*Rule{jobFailing}
