package diagnose

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

var timedOut = regexp.MustCompile(`(?i)timed out|timeout|deadline exceeded|^\s*$`)

// probeTimeoutShort: the answer comes later than timeoutSeconds allows.
var probeTimeoutShort = &Rule{
	ID:       "probe-timeout-short",
	Explains: checked,
	Needs:    []probes.Any{probes.Pods, probes.Events},
	Suspects: perHealthcheck,
	Tests: []Test{
		ofHealthcheck("does {probe} of container {container} end by its timeout, not by an answer?", []probes.Any{probes.NetworkPolicies}, func(facts *probes.Facts, h healthcheck) Answer {
			if by := dropsAmbientProbes(facts, h.container.pod); by != nil {
				return Answered(false, SawObject("networkpolicies.networking.k8s.io", by.Namespace, by.Name, "NetworkPolicy %s drops the probe", by.Name))
			}
			slow := strings.Contains(h.message, "awaiting headers") || h.probe.Exec != nil && timedOut.MatchString(h.message)
			if h.event == nil || !slow {
				return Answered(false)
			}
			seconds := max(h.probe.TimeoutSeconds, 1)
			return Answered(true, h.says(), h.spec("%s has timeoutSeconds %d", h.field(), seconds)).With("timeout", fmt.Sprint(seconds))
		}),
		ofHealthcheck("is the timeout short, and the program without an error of its own?", []probes.Any{probes.Logs}, func(facts *probes.Facts, h healthcheck) Answer {
			f, err := decisive(facts, []container{h.container})
			switch {
			case f != nil:
				return Answered(false, f.evidence())
			case err != nil:
				return CantTell(err)
			case h.probe.TimeoutSeconds > 2:
				return CantTell(nil)
			}
			return Answered(true, h.spec("its log names no error"))
		}),
		ofHealthcheck("does nothing between the kubelet and pod {pod} swallow the request?", branchNeeds, answerable),
	},
}

// livenessTooEarly: the kubelet kills a container that is still starting.
var livenessTooEarly = &Rule{
	ID:       "liveness-before-started",
	Explains: []*Rule{podCrashLooping, podRestarting},
	Needs:    []probes.Any{probes.Pods, probes.Events},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		return slices.DeleteFunc(perHealthcheck(facts, effects), func(s Suspect) bool { return s.Data.(healthcheck).kind == "readiness" })
	},
	Tests: []Test{
		ofHealthcheck("does the kubelet kill container {container} when {probe} has failed for as long as it allows?", nil, func(_ *probes.Facts, h healthcheck) Answer {
			exit := h.container.status.LastTerminationState.Terminated
			if exit == nil {
				exit = h.container.status.State.Terminated
			}
			if h.event == nil || exit == nil || exit.Reason == "OOMKilled" || exit.StartedAt.IsZero() {
				return Answered(false)
			}
			lived, allowed := exit.FinishedAt.Sub(exit.StartedAt.Time), h.allows()
			if lived < allowed-h.period() || lived > allowed+2*h.period()+h.grace() {
				return Answered(false, h.spec("it lived %s; %s allows %s", lived, h.field(), allowed))
			}
			p := h.probe
			a := Answered(true, h.says(), h.spec("%s: initialDelaySeconds %d, periodSeconds %d, failureThreshold %d: killed after %s at the earliest; the last run lived %s",
				h.field(), p.InitialDelaySeconds, int(h.period().Seconds()), threshold(p), allowed, lived))
			return a.With("allowed", allowed.String()).With("lived", lived.String())
		}),
		ofHealthcheck("was the program then still starting, without an error?", []probes.Any{probes.Logs}, func(facts *probes.Facts, h healthcheck) Answer {
			if !regexp.MustCompile(`(?i)refused|timeout|deadline|timed out|statuscode: 503|awaiting headers|EOF|reset`).MatchString(h.message) {
				return Answered(false, h.says())
			}
			logs, err := logsOf(facts, h.container)
			if err != nil {
				return CantTell(err)
			}
			took := ""
			for _, l := range logs {
				for _, m := range l.Excerpt.Milestones {
					took = cmpTook(took, m.Captures)
				}
			}
			if f, _ := decisive(facts, []container{h.container}); f != nil && !f.means("stopping") {
				return Answered(false, f.evidence())
			}
			ports, _ := listens(facts, h.container)
			_, number, _ := h.target()
			if len(ports) > 0 {
				if _, ok := ports[fmt.Sprint(number)]; !ok && number != 0 {
					return Answered(false) // it listens elsewhere
				}
			}
			if _, declared := listedPorts(h.container); declared > 0 && number != 0 && !hasPort(h.container, number) && refused.MatchString(h.message) {
				return Answered(false) // of a port that it does not have
			}
			a := Answered(true, h.spec("its log names no error before it is killed"))
			if took != "" {
				return a.With("hint", fmt.Sprintf(" Its log says that it takes %s to start.", took))
			}
			return a
		}),
	},
}

func cmpTook(took string, captures map[string]string) string {
	switch {
	case captures["seconds"] != "":
		return captures["seconds"] + " seconds"
	case captures["millis"] != "":
		return captures["millis"] + " milliseconds"
	}
	return took
}

func threshold(p *corev1.Probe) int32 {
	if p.FailureThreshold == 0 {
		return 3
	}
	return p.FailureThreshold
}

func (h healthcheck) period() time.Duration {
	if h.probe.PeriodSeconds == 0 {
		return 10 * time.Second // the API's default, in manifests that don't say
	}
	return time.Duration(h.probe.PeriodSeconds) * time.Second
}

// grace is how long a container may take to end after it was told to.
func (h healthcheck) grace() time.Duration {
	if s := h.container.pod.Spec.TerminationGracePeriodSeconds; s != nil {
		return time.Duration(*s)*time.Second + 2*time.Second
	}
	return 32 * time.Second
}

// allows is how long a container has from its start to the failure that
// makes the kubelet kill it; the startup probe's time comes first.
func (h healthcheck) allows() time.Duration {
	d := time.Duration(h.probe.InitialDelaySeconds)*time.Second + h.period()*time.Duration(threshold(h.probe)-1)
	return d
}
