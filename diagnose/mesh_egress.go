package diagnose

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/pposiraegi/ppodoctor/probes"
)

// registryOnly is the mode in which sidecars let nothing out to a host that
// the mesh does not know.
// Source: https://istio.io/latest/docs/tasks/traffic-management/egress/egress-control/
const registryOnly = "REGISTRY_ONLY"

// meshEgressClosed: a sidecar lets nothing out to the host that its program
// calls, for no ServiceEntry names it.
var meshEgressClosed = &Rule{
	ID: "mesh-egress-closed", Explains: []*Rule{targetUnreachable}, Needs: []probes.Any{probes.Sidecars, probes.ServiceEntries, probes.ConfigMaps},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		var list []Suspect
		for _, e := range effects {
			u, ok := e.Data.(*unreached)
			if !ok || len(u.lines) == 0 || u.target.Kind != probes.TargetExternal && u.target.Kind != probes.TargetAWS {
				continue
			}
			i := slices.IndexFunc(u.pods, hasSidecar)
			if i < 0 {
				continue
			}
			by, mode, saw := outboundOf(facts, u.pods[i])
			if mode == "" {
				continue
			}
			list = append(list, Suspect{
				Subjects: []Ref{by, u.client}, Effects: []*Finding{e}, Data: egress{u, mode},
				Vars: map[string]string{
					"client": short(u.client), "host": u.host, "by": short(by), "port": orDefault(u.port, "443"),
					"entry": strings.ReplaceAll(u.host, ".", "-"), "clientNamespace": u.client.Namespace, "clientTarget": strings.ToLower(u.client.Kind) + "/" + u.client.Name,
				},
				Found: append(slices.Clone(u.lines), saw),
			})
		}
		return list
	},
	Tests: []Test{{
		Asks: "Does {by} let pods call only hosts that the mesh knows?",
		Run: func(_ *probes.Facts, s Suspect) Answer {
			return Answered(s.Data.(egress).mode == registryOnly, s.Found[len(s.Found)-1])
		},
	}, {
		Asks: "Does no ServiceEntry name {host}?", Needs: []probes.Any{probes.ServiceEntries},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			entries, err := probes.ServiceEntries.Of(facts)
			if err != nil {
				return CantTell(err)
			}
			u := s.Data.(egress).unreached
			for _, e := range entries.All() {
				if slices.ContainsFunc(e.Spec.Hosts, func(h string) bool { return coversHost(h, u.host) }) {
					return Answered(false, SawObject("serviceentries.networking.istio.io", e.Namespace, e.Name, "ServiceEntry %s names %s", e.Name, u.host))
				}
			}
			return Answered(true, append(u.lines, Saw("serviceentries.networking.istio.io", nil, "of the %d ServiceEntries none names %s", entries.Len(), u.host))...)
		},
	}},
}

type egress struct {
	*unreached
	mode string
}

// coversHost reports whether a host of the mesh's configuration, which may
// begin with "*.", means a name.
func coversHost(pattern, name string) bool {
	suffix, wild := strings.CutPrefix(pattern, "*")
	return strings.EqualFold(pattern, name) || wild && strings.HasSuffix(strings.ToLower(name), strings.ToLower(suffix))
}

// outboundOf is what decides what a pod's sidecar lets out: the Sidecar that
// selects it, that of its namespace, that of the root namespace, or the mesh's
// own configuration. The mode is empty where none says anything.
// Source: https://istio.io/latest/docs/reference/config/networking/sidecar/
func outboundOf(facts *probes.Facts, p *corev1.Pod) (by Ref, mode string, saw Evidence) {
	if list, err := probes.Sidecars.Of(facts); err == nil {
		scope := func(s *probes.Sidecar) int {
			sel := s.Spec.WorkloadSelector
			selects := sel != nil && len(sel.Labels) > 0
			switch {
			case selects && s.Namespace == p.Namespace && labels.SelectorFromSet(sel.Labels).Matches(labels.Set(p.Labels)):
				return 3
			case !selects && s.Namespace == p.Namespace:
				return 2
			case !selects && s.Namespace == meshRoot:
				return 1
			}
			return 0
		}
		var narrowest *probes.Sidecar
		for _, s := range list.All() {
			if scope(s) > 0 && (narrowest == nil || scope(s) > scope(narrowest)) {
				narrowest = s
			}
		}
		if narrowest != nil && narrowest.Spec.OutboundTrafficPolicy != nil {
			mode := narrowest.Spec.OutboundTrafficPolicy.Mode
			return Ref{Kind: "Sidecar", Namespace: narrowest.Namespace, Name: narrowest.Name}, mode,
				SawObject("sidecars.networking.istio.io", narrowest.Namespace, narrowest.Name, "Sidecar %s: outboundTrafficPolicy.mode %s", narrowest.Name, mode)
		}
	}
	maps, err := probes.ConfigMaps.Of(facts)
	if err != nil {
		return Ref{}, "", Evidence{}
	}
	for _, m := range maps.All() {
		if m.Namespace != meshRoot || m.Name != "istio" && !strings.HasPrefix(m.Name, "istio-") || m.Data["mesh"] == "" {
			continue
		}
		var mesh struct {
			OutboundTrafficPolicy probes.OutboundTrafficPolicy `json:"outboundTrafficPolicy"`
		}
		if yaml.Unmarshal([]byte(m.Data["mesh"]), &mesh) == nil && mesh.OutboundTrafficPolicy.Mode != "" {
			mode := mesh.OutboundTrafficPolicy.Mode
			return Ref{Kind: "ConfigMap", Namespace: m.Namespace, Name: m.Name}, mode, SawObject("configmaps", m.Namespace, m.Name, "ConfigMap %s, the mesh's configuration: outboundTrafficPolicy.mode %s", m.Name, mode)
		}
	}
	return Ref{}, "", Evidence{}
}
