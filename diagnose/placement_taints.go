package diagnose

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes/scheduling"
)

// byTaints tells whose taints keep the pod out: nodes that are only down or
// not yet set up are the ones that are meant for it.
func (p *placement) byTaints(units []unit, startup func(string) bool) {
	kind := func(key string) reason {
		switch {
		case notReadyTaint(key):
			return byNotReady
		case startup(key):
			return byStartupTaint
		}
		return byTaint
	}
	for _, r := range []reason{byStartupTaint, byNotReady} {
		only := slices.DeleteFunc(slices.Clone(units), func(u unit) bool {
			return slices.ContainsFunc(u.fails(scheduling.Taint), func(f scheduling.Failure) bool {
				k := kind(f.Key)
				return k == byTaint || r == byNotReady && k != byNotReady
			})
		})
		// A new node has both taints at first; what stays is the startup taint.
		if r == byStartupTaint {
			only = slices.DeleteFunc(only, func(u unit) bool {
				return !slices.ContainsFunc(u.fails(scheduling.Taint), func(f scheduling.Failure) bool { return kind(f.Key) == byStartupTaint })
			})
		}
		if len(only) > 0 {
			p.settle(r, only, scheduling.Taint)
			return
		}
	}
	p.settle(byTaint, units, scheduling.Taint)
}

// notReadyTaint reports whether the node controller sets the taint for a
// node's condition. Source: kubernetes.io/docs/reference/labels-annotations-taints.
func notReadyTaint(key string) bool {
	switch key {
	case corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeMemoryPressure, corev1.TaintNodeDiskPressure,
		corev1.TaintNodePIDPressure, corev1.TaintNodeNetworkUnavailable, corev1.TaintNodeOutOfService, "node.cloudprovider.kubernetes.io/shutdown":
		return true
	}
	return false
}

// startupTaints reports which taints are put on new nodes for somebody to take
// away. Sources: kubernetes.io/docs/reference/labels-annotations-taints,
// karpenter.sh/docs (startupTaints), docs.cilium.io, the CSI drivers' docs.
func (x *placementIndex) startupTaints() func(string) bool {
	var own []string
	if x.karpenter != nil {
		for _, p := range x.karpenter.Pools.All() {
			for _, t := range p.Spec.Template.Spec.StartupTaints {
				own = append(own, t.Key)
			}
		}
	}
	return func(key string) bool {
		return key == "node.cloudprovider.kubernetes.io/uninitialized" || key == "karpenter.sh/unregistered" ||
			strings.HasSuffix(key, "/agent-not-ready") || strings.HasSuffix(key, "/not-ready") && key != corev1.TaintNodeNotReady || slices.Contains(own, key)
	}
}
