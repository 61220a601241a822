package diagnose

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// calledPorts are the ports of Services that something names: the configuration
// of workloads, by number or by a URL's scheme, and Ingresses, by number or name.
func calledPorts(facts *probes.Facts, dir *probes.Directory) map[Ref]map[int32]bool {
	called := map[Ref]map[int32]bool{}
	add := func(s *corev1.Service, is func(*corev1.ServicePort) bool) {
		ref := Ref{Kind: "Service", Namespace: s.Namespace, Name: s.Name}
		for i := range s.Spec.Ports {
			if is(&s.Spec.Ports[i]) {
				if called[ref] == nil {
					called[ref] = map[int32]bool{}
				}
				called[ref][s.Spec.Ports[i].Port] = true
			}
		}
	}
	for t, m := range mentionedServices(facts, dir) {
		if s := dir.Services.Get(t.Ref.Namespace, t.Ref.Name); s != nil {
			add(s, func(sp *corev1.ServicePort) bool { return m.port == "" || m.port == fmt.Sprint(sp.Port) })
		}
	}
	if list, err := probes.Ingresses.Of(facts); err == nil {
		for _, in := range list.All() {
			for _, b := range ingressBackends(in) {
				if s := dir.Services.Get(in.Namespace, b.service); s != nil {
					add(s, func(sp *corev1.ServicePort) bool {
						return b.port == fmt.Sprint(sp.Port) || b.port == sp.Name && sp.Name != ""
					})
				}
			}
		}
	}
	return called
}
