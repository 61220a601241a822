package diagnose

import (
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// longRun is how long the rest of a pod may go on after its work is done.
const longRun = 10 * time.Minute

// jobNotEnding: a job's work is done, and its pod goes on.
var jobNotEnding = &Rule{
	ID:    "job-not-ending",
	Needs: []probes.Any{probes.Jobs, probes.Pods, probes.Workloads},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		if _, err := probes.Jobs.Of(facts); err != nil {
			return nil // whose pods they are is known by the jobs
		}
		workloads, err := probes.Workloads.Of(facts)
		if err != nil {
			return nil
		}
		now := facts.Source().Now()
		var list []Suspect
		for _, owner := range workloads.All() {
			for _, p := range workloads.Pods(owner) {
				if o := probes.Controller(p); o == nil || o.Kind != "Job" || probes.Finished(p) || p.DeletionTimestamp != nil {
					continue
				}
				done, runs := doneAndRunning(p)
				if done == nil || runs == nil || now.Sub(done.State.Terminated.FinishedAt.Time) < longRun {
					continue
				}
				at := done.State.Terminated.FinishedAt.Time
				list = append(list, Suspect{
					Subjects: []Ref{owner, podRef(p)}, Count: 1, Since: &at,
					Vars: map[string]string{"pod": p.Name, "done": done.Name, "container": runs.Name},
					Found: []Evidence{SawObject("pods", p.Namespace, p.Name, "pod %s: container %s ended well at %s, and container %s still runs",
						p.Name, done.Name, at.UTC().Format(time.RFC3339), runs.Name)},
				})
				break
			}
		}
		return list
	},
}

// doneAndRunning are a container that ended well and one that still runs.
func doneAndRunning(p *corev1.Pod) (done, runs *corev1.ContainerStatus) {
	for i, s := range p.Status.ContainerStatuses {
		switch {
		case s.State.Terminated != nil && s.State.Terminated.ExitCode == 0:
			done = &p.Status.ContainerStatuses[i]
		case s.State.Running != nil:
			runs = &p.Status.ContainerStatuses[i]
		}
	}
	return done, runs
}

// jobKeptBySidecar: a container beside the job's work never ends, so the job
// never completes.
var jobKeptBySidecar = &Rule{
	ID:       "job-kept-alive-by-sidecar",
	Explains: []*Rule{jobNotEnding},
	Suspects: func(_ *probes.Facts, effects []*Finding) []Suspect {
		var list []Suspect
		for _, e := range effects {
			list = append(list, Suspect{Subjects: e.Subjects, Effects: []*Finding{e}, Vars: e.Vars, Found: e.Found})
		}
		return list
	},
	Tests: []Test{{
		Asks: "does container {container} run on beside {done}, which has ended?",
		Run:  func(_ *probes.Facts, s Suspect) Answer { return Answered(true, s.Found...) },
	}},
}

// jobDeadlineTooShort: a job is ended by its own deadline while its pod works.
var jobDeadlineTooShort = &Rule{
	ID:         "job-deadline-too-short",
	Explains:   []*Rule{jobFailing},
	LastResort: true,
	Needs:      []probes.Any{probes.Jobs},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		jobs, err := probes.Jobs.Of(facts)
		if err != nil {
			return nil
		}
		var list []Suspect
		for _, e := range effects {
			j := jobs.Get(e.Subject().Namespace, e.Vars["job"])
			if j == nil || j.Spec.ActiveDeadlineSeconds == nil {
				continue
			}
			list = append(list, Suspect{Subjects: e.Subjects, Effects: []*Finding{e}, Data: j, Vars: map[string]string{"job": j.Name, "deadline": fmt.Sprint(*j.Spec.ActiveDeadlineSeconds)}})
		}
		return list
	},
	Tests: []Test{{
		Asks: "was job {job} ended by its activeDeadlineSeconds of {deadline}?",
		Run: func(_ *probes.Facts, s Suspect) Answer {
			j := s.Data.(*batchv1.Job)
			for _, c := range j.Status.Conditions {
				if c.Type == batchv1.JobFailed && c.Status == corev1.ConditionTrue && c.Reason == "DeadlineExceeded" {
					return Answered(true, SawObject("jobs.batch", j.Namespace, j.Name, "job %s failed: DeadlineExceeded: %s; activeDeadlineSeconds is %s", j.Name, c.Message, s.Vars["deadline"]))
				}
			}
			return Answered(false)
		},
	}},
}

// missedRuns are the events with which the CronJob controller says that a run
// did not start. Source: kubernetes pkg/controller/cronjob/cronjob_controllerv2.go.
var missedRuns = []string{"MissSchedule", "TooManyMissedTimes", "JobAlreadyActive", "UnparseableSchedule", "UnknownTimeZone", "FailedNeedsStart", "InvalidSchedule"}

// cronJobMissesRuns: a cron job's runs don't start.
var cronJobMissesRuns = &Rule{
	ID:    "cron-job-misses-runs",
	Needs: []probes.Any{probes.CronJobs, probes.Events, probes.Pods, probes.Workloads},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		crons, err := probes.CronJobs.Of(facts)
		if err != nil {
			return nil
		}
		events, err := probes.Events.Of(facts)
		if err != nil {
			return nil
		}
		now := facts.Source().Now()
		var list []Suspect
		for _, c := range crons.All() {
			owner := Ref{Kind: "CronJob", Namespace: c.Namespace, Name: c.Name}
			if c.Spec.Suspend != nil && *c.Spec.Suspend {
				continue
			}
			for _, e := range slices.Backward(events.About(owner)) {
				at := probes.EventTime(e)
				if !slices.Contains(missedRuns, e.Reason) || now.Sub(at) > 2*time.Hour || c.Status.LastScheduleTime != nil && c.Status.LastScheduleTime.After(at) {
					continue
				}
				list = append(list, Suspect{
					Subjects: []Ref{owner}, Count: 1, Since: &at, Data: c,
					Vars:  map[string]string{"says": e.Message, "reason": e.Reason, "schedule": c.Spec.Schedule},
					Found: []Evidence{SawObject("events", e.Namespace, e.Name, "event %s on cron job %s: %s", e.Reason, c.Name, e.Message)},
				})
				break
			}
		}
		return list
	},
}

func perCronJob(_ *probes.Facts, effects []*Finding) []Suspect {
	var list []Suspect
	for _, e := range effects {
		vars := map[string]string{"job": ""}
		for k, v := range e.Vars {
			vars[k] = v
		}
		list = append(list, Suspect{Subjects: e.Subjects, Effects: []*Finding{e}, Vars: vars, Found: e.Found, Data: e.Data})
	}
	return list
}

// cronJobBlockedByRun: the run before has not ended, and runs may not overlap.
var cronJobBlockedByRun = &Rule{
	ID:       "cron-job-blocked-by-earlier-run",
	Explains: []*Rule{cronJobMissesRuns},
	Suspects: perCronJob,
	Tests: []Test{{
		Asks: "does an earlier run still go on, with concurrencyPolicy Forbid?",
		Run: func(_ *probes.Facts, s Suspect) Answer {
			c := s.Data.(*batchv1.CronJob)
			if c.Spec.ConcurrencyPolicy != batchv1.ForbidConcurrent || len(c.Status.Active) == 0 {
				return Answered(false)
			}
			return Answered(true, SawObject("cronjobs.batch", c.Namespace, c.Name, "cron job %s has concurrencyPolicy Forbid, and job %s is still active", c.Name, c.Status.Active[0].Name)).With("job", c.Status.Active[0].Name)
		},
	}},
}

// cronJobScheduleInvalid: the schedule or its time zone can't be read, or the
// time in which a run may start is too short.
var cronJobScheduleInvalid = &Rule{
	ID:       "cron-job-schedule-wrong",
	Explains: []*Rule{cronJobMissesRuns},
	Suspects: perCronJob,
	Tests: []Test{{
		Asks: "does the controller say that the schedule, its time zone or its deadline can't be kept?",
		Run: func(_ *probes.Facts, s Suspect) Answer {
			c := s.Data.(*batchv1.CronJob)
			zone := "none"
			if c.Spec.TimeZone != nil {
				zone = *c.Spec.TimeZone
			}
			deadline := "not set"
			if d := c.Spec.StartingDeadlineSeconds; d != nil {
				deadline = fmt.Sprint(*d)
			}
			says := SawObject("cronjobs.batch", c.Namespace, c.Name, "cron job %s: schedule %q, timeZone %s, startingDeadlineSeconds %s", c.Name, c.Spec.Schedule, zone, deadline)
			wrong := slices.Contains([]string{"UnparseableSchedule", "UnknownTimeZone", "InvalidSchedule", "TooManyMissedTimes"}, s.Vars["reason"])
			short := s.Vars["reason"] == "MissSchedule" && c.Spec.StartingDeadlineSeconds != nil && *c.Spec.StartingDeadlineSeconds < 10
			if !wrong && !short {
				return Answered(false)
			}
			return Answered(true, says).With("zone", zone).With("deadline", deadline)
		},
	}},
}

// cronJobSuspended: a cron job that once ran is suspended.
var cronJobSuspended = &Rule{
	ID: "cron-job-suspended", Latent: true, Explains: []*Rule{cronJobMissesRuns},
	Needs: []probes.Any{probes.CronJobs},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		crons, err := probes.CronJobs.Of(facts)
		if err != nil {
			return nil
		}
		var list []Suspect
		for _, c := range crons.All() {
			if c.Spec.Suspend != nil && *c.Spec.Suspend && c.Status.LastScheduleTime != nil {
				list = append(list, Suspect{
					Subjects: []Ref{{Kind: "CronJob", Namespace: c.Namespace, Name: c.Name}}, Data: c,
					Vars: map[string]string{"last": c.Status.LastScheduleTime.UTC().Format(time.RFC3339), "schedule": strings.TrimSpace(c.Spec.Schedule)},
				})
			}
		}
		return list
	},
	Tests: []Test{{
		Asks: "is it suspended, though it once ran?",
		Run: func(_ *probes.Facts, s Suspect) Answer {
			c := s.Data.(*batchv1.CronJob)
			return Answered(true, SawObject("cronjobs.batch", c.Namespace, c.Name, "cron job %s has suspend: true; its last run was at %s", c.Name, s.Vars["last"]))
		},
	}},
}

var jobRules = []*Rule{jobNotEnding, cronJobMissesRuns, jobKeptBySidecar, jobDeadlineTooShort, cronJobBlockedByRun, cronJobScheduleInvalid, cronJobSuspended}
