package diagnose

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/fstest"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/knowledge"
	"github.com/pposiraegi/ppodoctor/probes"
)

// TestEveryPendingPodIsJudged throws random worlds at the rules: none may
// panic, and whatever keeps a pod from its node is confirmed or suspected.
func TestEveryPendingPodIsJudged(t *testing.T) {
	k, err := knowledge.Load()
	if err != nil {
		t.Fatal(err)
	}
	reasons := map[string]int{}
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 3))
		src, err := probes.NewSnapshot(fstest.MapFS{
			"snapshot.yaml": {Data: []byte("capturedAt: 2026-06-11T08:00:00Z\ncaptured: [pods, nodes, replicasets, jobs, statefulsets, daemonsets, events, persistentvolumeclaims, persistentvolumes, storageclasses, csinodes, leases, nodepools.karpenter.sh]")},
			"all.json":      {Data: randomWorld(r)},
		})
		if err != nil {
			t.Fatal(err)
		}
		d := Walk(context.Background(), probes.NewFacts(src), k, Options{})
		for _, s := range d.Symptoms {
			if s.Rule != podPending.ID {
				continue
			}
			judged := len(s.ExplainedBy) > 0
			for _, c := range d.Suspected {
				for _, e := range c.Effects {
					judged = judged || e == s.Subject
				}
			}
			if !judged {
				t.Errorf("seed %d: %s is neither explained nor is anything suspected", seed, s.Subject)
			}
		}
		for _, c := range d.Causes {
			reasons[c.Rule]++
		}
	}
	if len(reasons) < 6 {
		t.Errorf("the worlds are too uniform: %v", reasons)
	}
}

func randomWorld(r *rand.Rand) []byte {
	some := func(from ...string) string { return from[r.IntN(len(from))] }
	labels := func() map[string]any {
		return map[string]any{"zone": some("a", "b"), "disk": some("ssd", "hdd"), "kubernetes.io/hostname": some("h1", "h2", "h3")}
	}
	var items []any
	for i := range r.IntN(4) {
		spec := map[string]any{"unschedulable": r.IntN(4) == 0}
		if r.IntN(3) == 0 {
			spec["taints"] = []any{map[string]any{"key": some("team", "node.kubernetes.io/not-ready", "ebs.csi.aws.com/agent-not-ready", "node-role.kubernetes.io/control-plane"), "effect": "NoSchedule"}}
		}
		items = append(items, map[string]any{
			"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": fmt.Sprint("n", i), "labels": labels()}, "spec": spec,
			"status": map[string]any{"allocatable": map[string]any{"cpu": some("1", "4"), "memory": "8Gi", "pods": some("1", "5")}},
		})
	}
	if r.IntN(3) == 0 {
		items = append(items, map[string]any{"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": map[string]any{"name": "p"}, "spec": map[string]any{
			"limits": map[string]any{"cpu": some("1", "1000")}, "replicas": map[bool]any{true: 2, false: nil}[r.IntN(4) == 0],
			"template": map[string]any{"metadata": map[string]any{"labels": labels()}, "spec": map[string]any{"nodeClassRef": map[string]any{"name": "x"}, "taints": map[bool]any{true: []any{map[string]any{"key": "team", "effect": "NoSchedule"}}, false: nil}[r.IntN(3) == 0]}},
		}})
	}
	for i := range 1 + r.IntN(4) {
		port := map[string]any{"containerPort": 80}
		if r.IntN(3) == 0 {
			port["hostPort"] = 80
		}
		app := some("x", "y")
		spec := map[string]any{"containers": []any{map[string]any{"name": "c", "ports": []any{port}, "resources": map[string]any{"requests": map[string]any{"cpu": some("500m", "2", "100")}}}}}
		if r.IntN(3) == 0 {
			spec["nodeSelector"] = map[string]any{some("zone", "disk", "gone"): some("a", "ssd")}
		}
		if r.IntN(3) == 0 {
			spec["volumes"] = []any{map[string]any{"name": "v", "persistentVolumeClaim": map[string]any{"claimName": some("bound", "unbound", "gone")}}}
		}
		term := []any{map[string]any{"labelSelector": map[string]any{"matchLabels": map[string]any{"app": some("x", "y")}}, "topologyKey": "zone"}}
		switch r.IntN(5) {
		case 0:
			spec["affinity"] = map[string]any{"podAntiAffinity": map[string]any{"requiredDuringSchedulingIgnoredDuringExecution": term}}
		case 1:
			spec["affinity"] = map[string]any{"podAffinity": map[string]any{"requiredDuringSchedulingIgnoredDuringExecution": term}}
		case 2:
			spec["topologySpreadConstraints"] = []any{map[string]any{"maxSkew": 1, "topologyKey": some("zone", "rack"), "whenUnsatisfiable": "DoNotSchedule", "labelSelector": map[string]any{"matchLabels": map[string]any{"app": app}}}}
		}
		status := map[string]any{"phase": "Pending"}
		switch r.IntN(3) {
		case 0:
			spec["nodeName"] = "n0"
			status["phase"] = string(corev1.PodRunning)
		case 1:
			status["conditions"] = []any{map[string]any{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"}}
		}
		items = append(items, map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": fmt.Sprint("p", i), "namespace": "shop", "creationTimestamp": "2026-06-11T07:00:00Z", "labels": map[string]any{"app": app}}, "spec": spec, "status": status})
	}
	items = append(items,
		map[string]any{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": map[string]any{"name": "unbound", "namespace": "shop"}, "status": map[string]any{"phase": "Pending"}},
		map[string]any{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": map[string]any{"name": "bound", "namespace": "shop"}, "spec": map[string]any{"volumeName": "pv"}, "status": map[string]any{"phase": "Bound"}},
		map[string]any{"apiVersion": "v1", "kind": "PersistentVolume", "metadata": map[string]any{"name": "pv"}, "spec": map[string]any{"nodeAffinity": map[string]any{"required": map[string]any{"nodeSelectorTerms": []any{map[string]any{"matchExpressions": []any{map[string]any{"key": "zone", "operator": "In", "values": []any{"b"}}}}}}}}},
		map[string]any{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": map[string]any{"name": "kube-scheduler", "namespace": "kube-system"}, "spec": map[string]any{"renewTime": some("2026-06-11T07:59:58.000000Z", "2026-06-11T07:00:00.000000Z")}})
	data, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	if err != nil {
		panic(err)
	}
	return data
}
