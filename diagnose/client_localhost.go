package diagnose

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// nobodyAtHome reports whether a pod's call of its own localhost, which was
// refused, was meant for a Service: no container of the pod shows the port or
// says that it listens there, all are ready, and the pod is told localhost by
// its configuration, or a Service of another workload has that port. What
// sidecars listen on need not be declared, so that with more than one container
// only a Service of the setting's name counts.
func nobodyAtHome(logs *probes.LogSet, dir *probes.Directory, p *corev1.Pod, port string, mentions []mention) bool {
	shown := func(cp corev1.ContainerPort) bool { return fmt.Sprint(cp.ContainerPort) == port }
	if port == "" || slices.ContainsFunc(podPorts(p), shown) || p.Spec.HostNetwork || !probes.Ready(p) && !crashedAlone(p) {
		return false
	}
	if slices.ContainsFunc(listeningBy(logs, p), func(l listener) bool { return l.port == port }) {
		return false
	}
	_, s := meantByLocalhost(dir, p, port, mentions)
	return s != nil
}

// crashedAlone reports whether a pod has but one container, so that no other
// of it could have listened.
func crashedAlone(p *corev1.Pod) bool {
	return len(p.Spec.Containers) == 1 && !slices.ContainsFunc(p.Spec.InitContainers, func(c corev1.Container) bool { return sidecar(p, c.Name) })
}

// meantByLocalhost is the Service that a pod's localhost:PORT was evidently
// meant to be, with the setting that says localhost, if one does.
func meantByLocalhost(dir *probes.Directory, p *corev1.Pod, port string, mentions []mention) (*mention, *corev1.Service) {
	var told *mention
	for i, m := range mentions {
		if t := dir.Lookup(p.Namespace, m.host, m.port); t.Kind == probes.TargetSelf && m.port == port {
			told = &mentions[i]
			break
		}
	}
	var named, others []*corev1.Service
	for s := range dir.Services.In(p.Namespace) {
		if slices.Contains(dir.Behind(s), p) || !slices.ContainsFunc(s.Spec.Ports, func(sp corev1.ServicePort) bool { return fmt.Sprint(sp.Port) == port }) {
			continue
		}
		others = append(others, s)
		if told != nil && strings.Contains(strings.ToLower(strings.ReplaceAll(told.where, "_", "-")), s.Name) {
			named = append(named, s)
		}
	}
	switch {
	case len(named) > 0:
		return told, slices.MaxFunc(named, func(a, b *corev1.Service) int { return len(a.Name) - len(b.Name) })
	case crashedAlone(p) && len(others) == 1, crashedAlone(p) && told != nil && len(others) > 0:
		return told, others[0]
	}
	return nil, nil
}
