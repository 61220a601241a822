package diagnose

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// How often a container that runs at the moment must have died, and how long
// ago at most, for its restarts to be a symptom.
const (
	restartMemory  = 6 * time.Hour
	fewestRestarts = 3
	rarestRestart  = 12 * time.Hour // the pod's age by its restarts
)

// podRestarting: containers run, and die every few hours.
var podRestarting = &Rule{
	ID:    "pod-restarting",
	Needs: []probes.Any{probes.Pods, probes.Workloads},
	Suspects: perWorkload(func(p *corev1.Pod, now time.Time) *trouble {
		for _, s := range probes.Statuses(p) {
			exit := s.LastTerminationState.Terminated
			if exit == nil || exit.ExitCode == 0 || s.State.Running == nil || s.RestartCount < fewestRestarts {
				continue
			}
			since := now.Sub(exit.FinishedAt.Time)
			if since < recent || since > restartMemory || now.Sub(p.CreationTimestamp.Time) > rarestRestart*time.Duration(s.RestartCount) {
				continue
			}
			return &trouble{container: s.Name, since: &exit.FinishedAt.Time, says: fmt.Sprintf("container %s has restarted %s, last at %s; it ended with exit code %d (%s)",
				s.Name, times(int(s.RestartCount)), exit.FinishedAt.UTC().Format(time.RFC3339), exit.ExitCode, exit.Reason)}
		}
		return nil
	}),
}

var restartSymptoms = []*Rule{podRestarting}
