package diagnose

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/pposiraegi/ppodoctor/probes"
)

// A healthcheck is a probe of a container that fails.
type healthcheck struct {
	container container
	kind      string // "readiness", "liveness", "startup"
	probe     *corev1.Probe
	message   string    // what the kubelet said of it; empty where no event is left
	event     *Evidence // nil with no message
}

// unhealthy is what an event of the kubelet says of a probe.
// Source: kubernetes pkg/kubelet/prober/prober.go.
var unhealthy = regexp.MustCompile(`(?s)^(?:Unhealthy|ProbeError|ProbeWarning): (?P<kind>Readiness|Liveness|Startup) probe (?:failed|errored(?: and resulted in \w+ state)?|warning): ?(?P<message>.*)`)

// failingHealthchecks are the probes of a container that fail: those that an
// event tells of, and a readiness probe of a container that runs unready.
func failingHealthchecks(facts *probes.Facts, c container) ([]healthcheck, error) {
	all := []healthcheck{
		{container: c, kind: "startup", probe: c.spec.StartupProbe},
		{container: c, kind: "liveness", probe: c.spec.LivenessProbe},
		{container: c, kind: "readiness", probe: c.spec.ReadinessProbe},
	}
	heard, err := remarks(facts, c)
	var failing []healthcheck
	for _, h := range all {
		if h.probe == nil {
			continue
		}
		for _, r := range heard {
			got := groups(unhealthy, r.text)
			if got != nil && strings.EqualFold(got["kind"], h.kind) {
				h.message, h.event = got["message"], &r.from
				break
			}
		}
		runsUnready := h.kind == "readiness" && c.status.State.Running != nil && !c.status.Ready
		if h.event != nil || runsUnready {
			failing = append(failing, h)
		}
	}
	return failing, err
}

// field is the probe's field in the container's spec.
func (h healthcheck) field() string { return h.kind + "Probe" }

// target is the port that the probe asks, with its number where it is known,
// and what it asks for.
func (h healthcheck) target() (port intstr.IntOrString, number int32, asks string) {
	switch p := h.probe; {
	case p.HTTPGet != nil:
		port, asks = p.HTTPGet.Port, fmt.Sprintf("%s %s", strings.ToLower(string(scheme(p.HTTPGet))), p.HTTPGet.Path)
	case p.TCPSocket != nil:
		port, asks = p.TCPSocket.Port, "tcp"
	case p.GRPC != nil:
		port, asks = intstr.FromInt32(p.GRPC.Port), "grpc"
	default:
		return intstr.IntOrString{}, 0, "exec"
	}
	if port.Type == intstr.Int {
		return port, port.IntVal, asks
	}
	for _, p := range h.container.spec.Ports {
		if p.Name == port.StrVal {
			return port, p.ContainerPort, asks
		}
	}
	return port, 0, asks
}

func scheme(h *corev1.HTTPGetAction) corev1.URIScheme {
	if h.Scheme == "" {
		return corev1.URISchemeHTTP
	}
	return h.Scheme
}

// meshed reports whether a mesh rewrites the container's probes.
func (h healthcheck) meshed() bool {
	return h.probe.HTTPGet != nil && strings.HasPrefix(h.probe.HTTPGet.Path, "/app-health/")
}

func (h healthcheck) says() Evidence {
	if h.event != nil {
		return *h.event
	}
	c := h.container
	return SawObject("pods", c.pod.Namespace, c.pod.Name, "pod %s: container %s runs and its readiness probe fails", c.pod.Name, c.spec.Name)
}

func (h healthcheck) spec(format string, args ...any) Evidence {
	c := h.container
	return SawObject("pods", c.pod.Namespace, c.pod.Name, "container %s: %s", c.spec.Name, fmt.Sprintf(format, args...))
}

// checked are the symptoms that a wrong health check leads to.
var checked = []*Rule{podNotReady, podCrashLooping, podRestarting}

// perHealthcheck proposes each failing probe of the troubled containers.
func perHealthcheck(facts *probes.Facts, effects []*Finding) []Suspect {
	var list []Suspect
	for _, s := range suspectsOf(effects, anyContainer) {
		done := map[string]bool{}
		for _, c := range containers(s) {
			failing, _ := failingHealthchecks(facts, c)
			for _, h := range failing {
				if done[h.kind] || h.meshed() {
					continue
				}
				done[h.kind] = true
				one := s
				one.Data = h
				port, number, asks := h.target()
				one.Vars = containerVars(c)
				one.Vars["probe"], one.Vars["asks"], one.Vars["port"] = h.field(), asks, port.String()
				if number != 0 && port.Type == intstr.String {
					one.Vars["port"] = fmt.Sprintf("%s (%d)", port.StrVal, number)
				}
				one.Vars["message"] = strings.TrimSpace(h.message)
				list = append(list, one)
			}
		}
	}
	return list
}

func ofHealthcheck(asks string, needs []probes.Any, run func(*probes.Facts, healthcheck) Answer) Test {
	return Test{Asks: asks, Needs: needs, Run: func(facts *probes.Facts, s Suspect) Answer {
		return run(facts, s.Data.(healthcheck))
	}}
}

// listens are the ports that the program says it listens on, with the line
// that says so; loopback ones are left out. The error is a log that can't be had.
func listens(facts *probes.Facts, c container) (map[string]Evidence, error) {
	logs, err := logsOf(facts, c)
	if err != nil {
		return nil, err
	}
	ports := map[string]Evidence{}
	for _, l := range logs {
		for _, m := range l.Excerpt.Milestones {
			if m.Meaning == "listening" && !loopback(m.Captures["host"]) {
				ports[m.Captures["port"]] = Evidence{Says: fmt.Sprintf("log of container %s of pod %s: %q", c.spec.Name, c.pod.Name, m.Text), Document: l.Document()}
			}
		}
	}
	return ports, nil
}

func loopback(host string) bool {
	return host == "localhost" || host == "::1" || host == "[::1]" || strings.HasPrefix(host, "127.")
}

var refused = regexp.MustCompile(`(?i)connection refused|connect: refused|failed to connect service`)

// probePortWrong: the probe asks a port that the program does not listen on.
var probePortWrong = &Rule{
	ID:       "probe-port-wrong",
	Explains: checked,
	Needs:    []probes.Any{probes.Pods, probes.Events},
	Suspects: perHealthcheck,
	Tests: []Test{
		ofHealthcheck("does {probe} of container {container} fail because nothing listens on port {port}?", nil, func(_ *probes.Facts, h healthcheck) Answer {
			port, number, asks := h.target()
			if asks == "exec" {
				return Answered(false)
			}
			unnamed := port.Type == intstr.String && number == 0
			if h.message != "" && !refused.MatchString(h.message) && !unnamed {
				return Answered(false, h.says())
			}
			return Answered(true, h.says())
		}),
		ofHealthcheck("is {port} none of the ports of container {container}?", []probes.Any{probes.Logs}, func(facts *probes.Facts, h healthcheck) Answer {
			c := h.container
			port, number, _ := h.target()
			own, declared := listedPorts(c)
			if port.Type == intstr.String && number == 0 {
				a := Answered(true, h.spec("%s asks port %q, and the container has no port of that name (it has %s)", h.field(), port.StrVal, own))
				return a.With("hint", fmt.Sprintf(" The container has no port named %s; it has %s.", port.StrVal, own))
			}
			ports, err := listens(facts, c)
			if e, ok := ports[fmt.Sprint(number)]; ok {
				return Answered(false, e)
			}
			if len(ports) > 0 {
				said := sortedKeys(ports)
				a := Answered(true, h.spec("%s asks port %s; containerPorts are %s", h.field(), port.String(), own), ports[said[0]])
				return a.With("hint", fmt.Sprintf(" The program says that it listens on %s.", strings.Join(said, ", ")))
			}
			if declared == 0 || hasPort(c, number) {
				if err != nil && !hasPort(c, number) {
					return CantTell(err)
				}
				return Answered(false)
			}
			if err != nil {
				return CantTell(err)
			}
			// The port is not declared, and the program says nothing: it is the
			// port only if the program is up otherwise.
			f, err := decisive(facts, []container{c})
			switch {
			case err != nil:
				return CantTell(err)
			case f != nil:
				return Answered(false, f.evidence())
			case h.message == "":
				return Answered(false)
			}
			return Answered(true, h.spec("%s asks port %s; containerPorts are %s", h.field(), port.String(), own)).With("hint", fmt.Sprintf(" Its containerPorts are %s.", own))
		}),
	},
}

func listedPorts(c container) (string, int) {
	var list []string
	for _, p := range c.spec.Ports {
		s := fmt.Sprint(p.ContainerPort)
		if p.Name != "" {
			s = p.Name + " " + s
		}
		list = append(list, s)
	}
	return listed(list), len(list)
}

func hasPort(c container, number int32) bool {
	return slices.ContainsFunc(c.spec.Ports, func(p corev1.ContainerPort) bool { return p.ContainerPort == number })
}

// loopbackOnly: the program listens on the loopback address, where neither
// the kubelet nor a Service reaches it.
var loopbackOnly = &Rule{
	ID:       "listens-on-loopback-only",
	Explains: checked,
	Needs:    []probes.Any{probes.Pods, probes.Events},
	Suspects: perHealthcheck,
	Tests: []Test{
		ofHealthcheck("is {probe}'s connection refused?", nil, func(_ *probes.Facts, h healthcheck) Answer {
			return Answered((h.message == "" || refused.MatchString(h.message)) && h.probe.Exec == nil, h.says())
		}),
		ofHealthcheck("does the program say that it listens on the loopback address only?", []probes.Any{probes.Logs}, func(facts *probes.Facts, h healthcheck) Answer {
			logs, err := logsOf(facts, h.container)
			if err != nil {
				return CantTell(err).With("address", "a loopback address")
			}
			_, number, _ := h.target()
			for _, l := range logs {
				for _, m := range l.Excerpt.Milestones {
					if m.Meaning == "listening" && m.Captures["port"] == fmt.Sprint(number) {
						e := Evidence{Says: fmt.Sprintf("log of container %s of pod %s: %q", h.container.spec.Name, h.container.pod.Name, m.Text), Document: l.Document()}
						return Answered(loopback(m.Captures["host"]), e).With("address", m.Captures["host"])
					}
				}
			}
			return Answered(false)
		}),
	},
}

// wrongScheme recognises a probe and a server that speak different protocols.
// Sources: Go net/http and crypto/tls, grpc-health-probe, kubelet's gRPC prober.
var wrongScheme = []struct {
	re   *regexp.Regexp
	says string
}{
	{regexp.MustCompile(`server gave HTTP response to HTTPS client|first record does not look like a TLS handshake`), "the probe speaks HTTPS and the server plain HTTP"},
	{regexp.MustCompile(`(?i)sent an HTTP request to an HTTPS server|plain HTTP request was sent to HTTPS port`), "the probe speaks plain HTTP and the server HTTPS"},
	{regexp.MustCompile(`malformed HTTP (?:response|status code|version)`), "the probe speaks HTTP and the server another protocol (gRPC or TLS)"},
	{regexp.MustCompile(`error reading server preface|frame too large|unexpected HTTP status code received from server|this server does not implement the grpc health protocol|unknown service grpc\.health\.v1\.Health`), "the probe speaks gRPC health checking and the server does not"},
}

// probeSchemeWrong: probe and server speak different protocols.
var probeSchemeWrong = &Rule{
	ID:       "probe-protocol-wrong",
	Explains: checked,
	Needs:    []probes.Any{probes.Pods, probes.Events},
	Suspects: perHealthcheck,
	Tests: []Test{ofHealthcheck("does {probe} of container {container} speak another protocol than the server on port {port}?", []probes.Any{probes.Logs}, func(facts *probes.Facts, h healthcheck) Answer {
		for _, w := range wrongScheme {
			if w.re.MatchString(h.message) {
				return Answered(true, h.says(), h.spec("%s: %s", h.field(), spokenBy(h))).With("why", w.says)
			}
		}
		if h.probe.HTTPGet == nil || !regexp.MustCompile(`statuscode: 400|EOF|connection reset`).MatchString(h.message) {
			return Answered(false)
		}
		// The server's log names the other side of the same conversation.
		logs, err := logsOf(facts, h.container)
		if err != nil {
			return CantTell(err)
		}
		for _, l := range logs {
			for _, f := range l.Excerpt.Failures {
				if f.Meaning == "tls-protocol" {
					return Answered(true, h.says(), Evidence{Says: fmt.Sprintf("log of container %s: %q", h.container.spec.Name, f.Text), Document: l.Document()}).
						With("why", "the probe speaks plain HTTP and the server TLS")
				}
			}
		}
		port, number, _ := h.target()
		secure := number == 443 || number == 8443 || port.Type == intstr.String && strings.Contains(port.StrVal, "https")
		if secure && scheme(h.probe.HTTPGet) == corev1.URISchemeHTTP {
			return Answered(true, h.says(), h.spec("%s: %s on a port for HTTPS", h.field(), spokenBy(h))).With("why", "the probe speaks plain HTTP on a port for HTTPS")
		}
		return Answered(false)
	})},
}

func spokenBy(h healthcheck) string {
	port, _, asks := h.target()
	return fmt.Sprintf("%s on port %s", asks, port.String())
}

var statusCode = regexp.MustCompile(`statuscode: (\d{3})`)

// probePathWrong: the server is up and has nothing, or lets nobody in, at the
// probe's path.
var probePathWrong = &Rule{
	ID:       "probe-path-wrong",
	Explains: checked,
	Needs:    []probes.Any{probes.Pods, probes.Events},
	Suspects: perHealthcheck,
	Tests: []Test{ofHealthcheck("does the server answer {probe} that there is nothing for it at the path?", nil, func(_ *probes.Facts, h healthcheck) Answer {
		m := statusCode.FindStringSubmatch(h.message)
		if m == nil || h.probe.HTTPGet == nil || !slices.Contains([]string{"404", "401", "403", "405", "410"}, m[1]) {
			return Answered(false)
		}
		return Answered(true, h.says(), h.spec("%s asks path %s on port %s", h.field(), h.probe.HTTPGet.Path, h.probe.HTTPGet.Port.String())).
			With("code", m[1]).With("path", h.probe.HTTPGet.Path)
	})},
}

// probeCommandMissing: the program that an exec probe runs is not in the image.
var probeCommandMissing = &Rule{
	ID:       "probe-command-missing",
	Explains: checked,
	Needs:    []probes.Any{probes.Pods, probes.Events},
	Suspects: perHealthcheck,
	Tests: []Test{ofHealthcheck("can the command of {probe} not be run in container {container}?", nil, func(_ *probes.Facts, h healthcheck) Answer {
		if h.probe.Exec == nil {
			return Answered(false)
		}
		for _, re := range append(slices.Clone(noCommand), regexp.MustCompile(`(?:sh|bash)(?:: line)?(?:: \d+)?: (?P<command>[^:\s]+): (?P<why>(?:command )?not found)`)) {
			if got := groups(re, h.message); got != nil {
				return Answered(true, h.says(), h.spec("%s runs %q", h.field(), h.probe.Exec.Command)).With("command", got["command"]).With("why", got["why"])
			}
		}
		return Answered(false)
	})},
}

var healthcheckRules = []*Rule{probePortWrong, loopbackOnly, probeSchemeWrong, probePathWrong, probeCommandMissing, probeTimeoutShort, livenessTooEarly}
