package scheduling

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/yaml"

	"github.com/pposiraegi/ppodoctor/probes"
)

func parse[T any](t testing.TB, text string) *T {
	t.Helper()
	object := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), object); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return object
}

// node is a Node of 4 CPUs, 16Gi and 10 pods in a zone; more is YAML of its spec.
func node(t testing.TB, name, zone, labels, spec string) *corev1.Node {
	return parse[corev1.Node](t, fmt.Sprintf(`
metadata: {name: %[1]s, labels: {kubernetes.io/hostname: %[1]s, topology.kubernetes.io/zone: %[2]s, %[3]s}}
spec: {%[4]s}
status: {allocatable: {cpu: "4", memory: 16Gi, pods: "10"}}`, name, zone, labels, spec))
}

func pod(t testing.TB, name, labels, spec string) *corev1.Pod {
	p := parse[corev1.Pod](t, fmt.Sprintf("metadata: {name: %s, namespace: shop, labels: {%s}}\nspec: {%s}", name, labels, spec))
	if len(p.Spec.Containers) == 0 {
		p.Spec.Containers = []corev1.Container{{Name: "main"}}
	}
	return p
}

func asks(cpu string) string {
	return "containers: [{name: main, resources: {requests: {cpu: " + cpu + "}}}]"
}

func TestPlace(t *testing.T) {
	nodes := []*corev1.Node{
		node(t, "a", "z1", "disk: ssd", ""),
		node(t, "b", "z2", "disk: hdd", "taints: [{key: dedicated, value: db, effect: NoSchedule}, {key: soft, effect: PreferNoSchedule}]"),
		node(t, "c", "z3", "disk: hdd", "unschedulable: true, taints: [{key: node.kubernetes.io/unschedulable, effect: NoSchedule}]"),
	}
	on := func(node string, p *corev1.Pod) *corev1.Pod { p.Spec.NodeName = node; return p }
	running := []*corev1.Pod{
		on("a", pod(t, "web-1", "app: web", asks("3"))),
		on("b", pod(t, "db-1", "app: db", "containers: [{name: main, ports: [{containerPort: 5432, hostPort: 5432}]}], affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{labelSelector: {matchLabels: {app: batch}}, topologyKey: topology.kubernetes.io/zone}]}}")),
	}
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	cluster := func() *Cluster {
		return &Cluster{
			Nodes: nodes, Pods: probes.NewList(append([]*corev1.Pod{}, running...)), Namespaces: probes.NewList[corev1.Namespace](nil),
			Claims: probes.NewList([]*corev1.PersistentVolumeClaim{
				parse[corev1.PersistentVolumeClaim](t, "metadata: {name: z2, namespace: shop}\nspec: {volumeName: pv-z2}\nstatus: {phase: Bound}"),
				parse[corev1.PersistentVolumeClaim](t, "metadata: {name: waiting, namespace: shop}\nspec: {storageClassName: wait}\nstatus: {phase: Pending}"),
				parse[corev1.PersistentVolumeClaim](t, "metadata: {name: stuck, namespace: shop}\nspec: {storageClassName: typo}\nstatus: {phase: Pending}"),
			}),
			Volumes:  probes.NewList([]*corev1.PersistentVolume{parse[corev1.PersistentVolume](t, "metadata: {name: pv-z2}\nspec: {csi: {driver: ebs.csi.aws.com, volumeHandle: v}, nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: topology.kubernetes.io/zone, operator: In, values: [z2]}]}]}}}")}),
			Classes:  probes.NewList([]*storagev1.StorageClass{{ObjectMeta: parse[corev1.Pod](t, "metadata: {name: wait}").ObjectMeta, Provisioner: "ebs.csi.aws.com", VolumeBindingMode: &wait, AllowedTopologies: []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "topology.kubernetes.io/zone", Values: []string{"z1"}}}}}}}),
			CSINodes: probes.NewList([]*storagev1.CSINode{parse[storagev1.CSINode](t, "metadata: {name: b}\nspec: {drivers: [{name: ebs.csi.aws.com, nodeID: i, allocatable: {count: 0}}]}")}),
		}
	}
	all := "tolerations: [{operator: Exists}]"
	for name, tc := range map[string]struct {
		pod     *corev1.Pod
		fits    string
		blocked string            // part of what blocks everywhere
		fails   map[string]string // per node: predicate and part of its words
		way     string            // the first way's changes
	}{
		"plain":              {pod(t, "p", "", ""), "a", "", map[string]string{"b": "taint dedicated=db:NoSchedule", "c": "cordoned unschedulable: true"}, ""},
		"tolerating":         {pod(t, "p", "", all), "a b c", "", nil, ""},
		"selector":           {pod(t, "p", "", "nodeSelector: {disk: nvme}"), "", "", map[string]string{"a": "node-selector has disk=ssd and not nvme"}, "match nodeSelector disk=nvme"},
		"selector typo":      {pod(t, "p", "", "nodeSelector: {dsk: ssd}, "+all), "", "", map[string]string{"a": "node-selector has no label dsk"}, "match nodeSelector dsk=ssd"},
		"affinity":           {pod(t, "p", "", all+", affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: disk, operator: In, values: [ssd]}, {key: gpu, operator: Exists}]}]}}}"), "", "", map[string]string{"a": "node-affinity has no label gpu", "b": "node-affinity disk=hdd"}, "match the node affinity gpu Exists"},
		"affinity by name":   {pod(t, "p", "", all+", affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [b]}]}]}}}"), "b", "", nil, ""},
		"affinity either":    {pod(t, "p", "", all+", affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: disk, operator: In, values: [tape]}]}, {matchExpressions: [{key: disk, operator: NotIn, values: [ssd]}]}]}}}"), "b c", "", nil, ""},
		"full now":           {pod(t, "p", "", asks("2")), "", "", map[string]string{"a": "resources 2 of cpu asked, 1 of 4 free"}, "get more cpu"},
		"too large":          {pod(t, "p", "", asks("64")+", "+all), "", "", map[string]string{"a": "resources is too small: 64 of cpu asked, 4 allocatable"}, "get more cpu"},
		"extended":           {pod(t, "p", "", all+", containers: [{name: main, resources: {limits: {nvidia.com/gpu: 1}, requests: {nvidia.com/gpu: 1}}}]"), "", "", map[string]string{"a": "resources offers no nvidia.com/gpu at all"}, "get more nvidia.com/gpu"},
		"init container":     {pod(t, "p", "", "initContainers: [{name: i, resources: {requests: {cpu: 2}}}], "+asks("100m")), "", "", map[string]string{"a": "resources 2 of cpu asked"}, "get more cpu"},
		"overhead":           {pod(t, "p", "", "overhead: {cpu: 500m}, "+asks("600m")), "", "", map[string]string{"a": "resources 1100m of cpu asked"}, "get more cpu"},
		"host port":          {pod(t, "p", "", all+", containers: [{name: main, ports: [{containerPort: 1, hostPort: 5432}]}]"), "a c", "", map[string]string{"b": "host-port 5432/TCP is taken by pod shop/db-1"}, "free host port 5432/TCP"},
		"anti-affinity":      {pod(t, "p", "app: web", all+", affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{labelSelector: {matchLabels: {app: web}}, topologyKey: kubernetes.io/hostname}]}}"), "b c", "", map[string]string{"a": "pod-anti-affinity already has shop/web-1"}, ""},
		"others refuse":      {pod(t, "p", "app: batch", all), "a c", "", map[string]string{"b": "anti-affinity-of-others shop/db-1"}, ""},
		"affinity to pod":    {pod(t, "p", "", all+", affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{labelSelector: {matchLabels: {app: db}}, topologyKey: topology.kubernetes.io/zone}]}}"), "b", "", map[string]string{"a": "pod-affinity runs in topology.kubernetes.io/zone=z1"}, ""},
		"affinity to nobody": {pod(t, "p", "", all+", affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{labelSelector: {matchLabels: {app: gone}}, topologyKey: topology.kubernetes.io/zone}]}}"), "", "", map[string]string{"a": "pod-affinity no running pod matches"}, "meet the pod affinity to pods {app=gone} in shop per topology.kubernetes.io/zone"},
		"affinity to itself": {pod(t, "p", "app: first", all+", affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{labelSelector: {matchLabels: {app: first}}, topologyKey: topology.kubernetes.io/zone}]}}"), "a b c", "", nil, ""},
		"spread":             {pod(t, "p", "app: web", all+", topologySpreadConstraints: [{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}]"), "b c", "", map[string]string{"a": "topology-spread would bring topology.kubernetes.io/zone=z1 to 2 while the emptiest domain has 0"}, ""},
		"spread minDomains":  {pod(t, "p", "app: db", all+", topologySpreadConstraints: [{maxSkew: 1, minDomains: 4, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: db}}}]"), "a c", "", map[string]string{"b": "topology-spread minDomains 4"}, ""},
		"spread without key": {pod(t, "p", "app: db", all+", topologySpreadConstraints: [{maxSkew: 1, topologyKey: rack, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: db}}}]"), "", "", map[string]string{"a": "topology-spread has no label rack"}, "relax the topology spread over rack"},
		"volume elsewhere":   {pod(t, "p", "", "volumes: [{name: v, persistentVolumeClaim: {claimName: z2}}]"), "", "", map[string]string{"a": "volume-node-affinity wants topology.kubernetes.io/zone=z2, the node has z1", "b": "volume-limit the limit is 0"}, "have the volume pv-z2 of PersistentVolumeClaim z2 elsewhere"},
		"waiting claim":      {pod(t, "p", "", all+", volumes: [{name: v, persistentVolumeClaim: {claimName: waiting}}]"), "a", "", map[string]string{"b": "volume-node-affinity StorageClass wait of claim waiting allows only topology.kubernetes.io/zone in [z1], the node has z2"}, ""},
		"claim unbound":      {pod(t, "p", "", "volumes: [{name: v, persistentVolumeClaim: {claimName: stuck}}]"), "", "is not bound", nil, ""},
		"claim missing":      {pod(t, "p", "", "volumes: [{name: v, persistentVolumeClaim: {claimName: none}}]"), "", "doesn't exist", nil, ""},
		"gate":               {pod(t, "p", "", "schedulingGates: [{name: example.com/wait}]"), "", "example.com/wait", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := cluster().Place(tc.pod)
			var fits []string
			for _, n := range p.Fitting() {
				fits = append(fits, n.Name)
			}
			if got := strings.Join(fits, " "); got != tc.fits {
				t.Errorf("fits on %q, want %q (%s)", got, tc.fits, p.Summary())
			}
			var blocked string
			for _, b := range p.Blocked {
				blocked += b.Says + "\n"
			}
			if !strings.Contains(blocked, tc.blocked) || (tc.blocked == "") != (blocked == "") {
				t.Errorf("blocked by %q, want %q", blocked, tc.blocked)
			}
			for _, on := range p.Nodes {
				want, ok := tc.fails[on.Node.Name]
				if !ok {
					continue
				}
				predicate, says, _ := strings.Cut(want, " ")
				found := false
				for _, f := range on.Failures {
					found = found || string(f.Predicate) == predicate && strings.Contains(f.Says, says)
				}
				if !found {
					t.Errorf("node %s fails %+v, want %s: %s", on.Node.Name, on.Failures, predicate, says)
				}
			}
			if tc.way != "" {
				if ways := p.Ways(); len(ways) == 0 || strings.Join(ways[0].Changes, "; ") != tc.way {
					t.Errorf("ways = %v, want first %s", ways, tc.way)
				}
			}
		})
	}
}

func TestMissingIsUnknown(t *testing.T) {
	c := &Cluster{Nodes: []*corev1.Node{node(t, "a", "z1", "", "")}}
	p := c.Place(pod(t, "p", "", asks("1")+", volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]"))
	if len(p.Unknowns()) != 2 {
		t.Errorf("unknowns = %+v", p.Unknowns())
	}
	if len(p.Ways()) != 0 {
		t.Errorf("what is unknown is no change: %+v", p.Ways())
	}
}

func TestPreemptible(t *testing.T) {
	low := pod(t, "low", "", "nodeName: a, priority: 0, "+asks("3"))
	high := pod(t, "high", "", "priority: 10, "+asks("3"))
	c := &Cluster{Nodes: []*corev1.Node{node(t, "a", "z1", "", "")}, Pods: probes.NewList([]*corev1.Pod{low, high})}
	f := c.Place(high).Failing(Resources)
	if len(f) != 1 || !f[0].Amount.Preemptible {
		t.Errorf("failures = %+v", f)
	}
	never := corev1.PreemptNever
	high.Spec.PreemptionPolicy = &never
	if f := c.Place(high).Failing(Resources); f[0].Amount.Preemptible {
		t.Error("a pod that never preempts has no victims")
	}
}

func TestVolumeMisfits(t *testing.T) {
	claim := parse[corev1.PersistentVolumeClaim](t, "metadata: {name: data, namespace: shop, uid: u2}\nspec: {storageClassName: manual, accessModes: [ReadWriteMany], resources: {requests: {storage: 10Gi}}, selector: {matchLabels: {tier: gold}}}")
	for spec, want := range map[string]string{
		"labels: {tier: gold}}\nspec: {storageClassName: manual, accessModes: [ReadWriteMany], capacity: {storage: 10Gi}}":                                                             "",
		"labels: {tier: tin}}\nspec: {storageClassName: manual, accessModes: [ReadWriteMany], capacity: {storage: 10Gi}}":                                                              "selector",
		"labels: {tier: gold}}\nspec: {storageClassName: other, accessModes: [ReadWriteOnce], capacity: {storage: 5Gi}}":                                                               "class capacity access-modes",
		"labels: {tier: gold}}\nspec: {storageClassName: manual, accessModes: [ReadWriteMany], capacity: {storage: 10Gi}, claimRef: {namespace: shop, name: old}}":                     "claimed",
		"labels: {tier: gold}}\nspec: {storageClassName: manual, accessModes: [ReadWriteMany], capacity: {storage: 10Gi}, claimRef: {namespace: shop, name: data, uid: u1}}":           "claimed",
		"labels: {tier: gold}}\nspec: {storageClassName: manual, accessModes: [ReadWriteMany], capacity: {storage: 10Gi}, volumeMode: Block, claimRef: {namespace: shop, name: data}}": "volume-mode",
	} {
		var fields []string
		for _, m := range VolumeMisfits(claim, parse[corev1.PersistentVolume](t, "metadata: {name: pv, "+spec)) {
			fields = append(fields, m.Field)
		}
		if got := strings.Join(fields, " "); got != want {
			t.Errorf("%s: %q, want %q", spec, got, want)
		}
	}
}
