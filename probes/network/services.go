package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// serviceEnds are the ready backends of a Service at the ports behind the port
// asked for. kube-proxy rewrites the Service's address before anything in the
// VPC sees the packet, so filters see the backend's address and port only.
func (w *World) serviceEnds(p Endpoint, proto Protocol, port int, source *end) ([]end, []Hop) {
	who := "service " + p.Namespace + "/" + p.Name
	h := Hop{Layer: Services, Kind: "Service", Names: []string{p.Namespace + "/" + p.Name}, Documents: []Document{w.Services.doc(p.Namespace + "/" + p.Name)}}
	unknown := func(err error) ([]end, []Hop) {
		h.Truth, h.Code, h.Err, h.Says = Unknown, NotKnown, err, "what is behind "+who+" isn't known"
		return nil, []Hop{h}
	}
	refuse := func(code Code, format string, args ...any) ([]end, []Hop) {
		h.Truth, h.Code, h.Says = No, code, fmt.Sprintf(format, args...)
		return nil, []Hop{h}
	}
	s := w.ix().services[p.Namespace+"/"+p.Name]
	if s == nil {
		if w.Services.Err == nil {
			return refuse(NoServicePort, "there is no %s", who)
		}
		return unknown(absent(w, w.Services, "service", p.Namespace+"/"+p.Name))
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return w.resolve(External(s.Spec.ExternalName), proto, port, source)
	}
	i := slices.IndexFunc(s.Spec.Ports, func(sp corev1.ServicePort) bool { return int(sp.Port) == port && protocolOf(&sp.Protocol) == proto })
	if i < 0 {
		return refuse(NoServicePort, "%s has no port %d/%s", who, port, proto)
	}
	if p.Namespace == "default" && p.Name == "kubernetes" && w.onAWS() && len(w.Cluster.All)+len(w.ControlPlaneInterfaces()) > 0 {
		ends, hops := w.controlPlane()
		h.Truth, h.Code, h.Says = Yes, ServiceForward, who+" goes to the control plane's interfaces in the VPC"
		for i := range ends {
			ends[i].port = 443
		}
		return ends, append([]Hop{h}, hops...)
	}
	backends, err := w.backends(s, s.Spec.Ports[i])
	if err != nil {
		return unknown(err)
	}
	local := s.Spec.InternalTrafficPolicy != nil && *s.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
	var ends []end
	for _, b := range backends {
		if local && source != nil && source.node != "" && b.node != source.node {
			continue
		}
		ends = append(ends, b)
	}
	h.Documents = append(h.Documents, w.Slices.doc())
	if len(ends) == 0 {
		where := ""
		if local && len(backends) > 0 {
			where = " on node " + source.node + ", and its internalTrafficPolicy is Local"
		}
		return refuse(NoEndpoints, "%s has no ready endpoint for port %d%s", who, port, where)
	}
	h.Truth, h.Code = Yes, ServiceForward
	h.Says = fmt.Sprintf("%s port %d goes to port %s of %d ready endpoints", who, port, portsOf(ends), len(ends))
	return ends, []Hop{h}
}

func portsOf(ends []end) string {
	var ports []int
	for _, e := range ends {
		if !slices.Contains(ports, e.port) {
			ports = append(ports, e.port)
		}
	}
	s := ""
	for i, p := range ports {
		if i > 0 {
			s += " or "
		}
		s += strconv.Itoa(p)
	}
	return s
}

func protocolOf(p *corev1.Protocol) Protocol {
	if p == nil || *p == "" {
		return TCP
	}
	return Protocol(*p)
}

func (w *World) backends(s *corev1.Service, sp corev1.ServicePort) ([]end, error) {
	if w.Slices.Err != nil {
		return w.selected(s, sp)
	}
	var ends []end
	for _, slice := range w.ix().slices[s.Namespace+"/"+s.Name] {
		if slice.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		port := 0
		for _, p := range slice.Ports {
			name := ""
			if p.Name != nil {
				name = *p.Name
			}
			if name == sp.Name && p.Port != nil && protocolOf(p.Protocol) == protocolOf(&sp.Protocol) {
				port = int(*p.Port)
			}
		}
		if port == 0 {
			continue
		}
		for _, e := range slice.Endpoints {
			if e.Conditions.Ready != nil && !*e.Conditions.Ready || len(e.Addresses) == 0 {
				continue
			}
			ip, err := netip.ParseAddr(e.Addresses[0])
			if err != nil {
				continue
			}
			var b end
			if pod := w.targetOf(e); pod != nil {
				b = w.podEnd(pod)
			} else {
				found, _ := w.addressEnds(Address(ip), protocolOf(&sp.Protocol), port, nil)
				b = found[0]
			}
			b.port = port
			if !slices.ContainsFunc(ends, func(o end) bool { return o.is.String() == b.is.String() && o.port == port }) {
				ends = append(ends, b)
			}
		}
	}
	slices.SortStableFunc(ends, func(a, b end) int {
		switch {
		case a.is.String() < b.is.String():
			return -1
		case a.is.String() > b.is.String():
			return 1
		}
		return a.port - b.port
	})
	return ends, nil
}

func (w *World) targetOf(e discoveryv1.Endpoint) *corev1.Pod {
	if e.TargetRef == nil || e.TargetRef.Kind != "Pod" {
		return nil
	}
	return w.ix().pods[e.TargetRef.Namespace+"/"+e.TargetRef.Name]
}

// selected are the ready pods that the Service's selector selects, for a World
// that does not know the EndpointSlices.
func (w *World) selected(s *corev1.Service, sp corev1.ServicePort) ([]end, error) {
	if w.Pods.Err != nil || len(s.Spec.Selector) == 0 {
		return nil, fmt.Errorf("the endpoints of service %s/%s: %w", s.Namespace, s.Name, w.Slices.Err)
	}
	var ends []end
	for _, p := range w.Pods.All {
		if p.Namespace != s.Namespace || !ready(p) && !s.Spec.PublishNotReadyAddresses || finished(p) || !labelled(p.Labels, s.Spec.Selector) {
			continue
		}
		port := targetPort(p, sp)
		if port == 0 {
			continue
		}
		b := w.podEnd(p)
		b.port = port
		ends = append(ends, b)
	}
	return ends, nil
}

// targetPort is the port of the pod that a Service's port leads to; 0 where the
// pod has no port of that name.
func targetPort(p *corev1.Pod, sp corev1.ServicePort) int {
	if sp.TargetPort.Type == intstr.Int {
		if sp.TargetPort.IntVal == 0 {
			return int(sp.Port)
		}
		return int(sp.TargetPort.IntVal)
	}
	for _, c := range containersOf(p) {
		for _, cp := range c.Ports {
			if cp.Name == sp.TargetPort.StrVal && protocolOf(&cp.Protocol) == protocolOf(&sp.Protocol) {
				return int(cp.ContainerPort)
			}
		}
	}
	return 0
}

// containersOf are the containers that run beside each other: the pod's own and
// its sidecars.
func containersOf(p *corev1.Pod) []corev1.Container {
	all := slices.Clone(p.Spec.Containers)
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			all = append(all, c)
		}
	}
	return all
}

func labelled(labels, selector map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

func ready(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
