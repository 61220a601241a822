package scheduling

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

const classDefault = `
metadata: {name: default}
status: {subnets: [{id: s1, zone: eu-west-1a}, {id: s2, zone: eu-west-1b}], amis: [{id: a, requirements: [{key: kubernetes.io/arch, operator: In, values: [amd64]}]}]}`

func karpenter(t testing.TB, pools ...string) *Karpenter {
	k := &Karpenter{
		Claims:      probes.NewList[probes.NodeClaim](nil),
		NodeClasses: probes.NewList([]*probes.EC2NodeClass{parse[probes.EC2NodeClass](t, classDefault)}),
		DaemonSets:  probes.NewList([]*appsv1.DaemonSet{parse[appsv1.DaemonSet](t, "metadata: {name: agent, namespace: kube-system}\nspec: {selector: {}, template: {spec: {tolerations: [{operator: Exists}], containers: [{name: a, resources: {requests: {cpu: 200m, memory: 512Mi}}}]}}}")}),
	}
	var list []*probes.NodePool
	for _, p := range pools {
		list = append(list, parse[probes.NodePool](t, p))
	}
	k.Pools = probes.NewList(list)
	return k
}

func pool(requirements, spec string) string {
	return `
metadata: {name: apps}
spec:
  ` + spec + `
  template:
    metadata: {labels: {team: payments}}
    spec: {nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}, requirements: [` + requirements + `], taints: [{key: dedicated, value: apps, effect: NoSchedule}]}`
}

func TestNodePools(t *testing.T) {
	tolerate := "tolerations: [{key: dedicated, operator: Exists}]"
	cmr := "{key: karpenter.k8s.aws/instance-category, operator: In, values: [c, m, r]}, {key: karpenter.k8s.aws/instance-generation, operator: Gt, values: ['4']}"
	for name, tc := range map[string]struct {
		pool, pod string
		want      string // "" serves; else predicate and words; "unknown" serves maybe
	}{
		"serves":             {pool(cmr, ""), tolerate + ", " + asks("2"), ""},
		"taint":              {pool(cmr, ""), asks("2"), "taint dedicated=apps:NoSchedule"},
		"template label":     {pool(cmr, ""), tolerate + ", nodeSelector: {team: search}", "node-selector offers team In [payments], the pod wants team In [search]"},
		"label of no pool":   {pool(cmr, ""), tolerate + ", nodeSelector: {disk: ssd}", "node-selector gives its nodes no label disk"},
		"well-known label":   {pool(cmr, ""), tolerate + ", nodeSelector: {karpenter.sh/capacity-type: on-demand}", ""},
		"capacity type":      {pool(cmr+", {key: karpenter.sh/capacity-type, operator: In, values: [spot]}", ""), tolerate + ", nodeSelector: {karpenter.sh/capacity-type: on-demand}", "node-selector offers karpenter.sh/capacity-type In [spot]"},
		"arch of the AMIs":   {pool(cmr, ""), tolerate + ", nodeSelector: {kubernetes.io/arch: arm64}", "node-selector offers kubernetes.io/arch In [amd64]"},
		"zone of no subnet":  {pool(cmr, ""), tolerate + ", nodeSelector: {topology.kubernetes.io/zone: eu-west-1c}", "node-selector offers topology.kubernetes.io/zone In [eu-west-1a eu-west-1b]"},
		"old zone name":      {pool(cmr, ""), tolerate + ", nodeSelector: {failure-domain.beta.kubernetes.io/zone: eu-west-1c}", "node-selector"},
		"other nodepool":     {pool(cmr, ""), tolerate + ", nodeSelector: {karpenter.sh/nodepool: gpu}", "node-selector offers karpenter.sh/nodepool In [apps]"},
		"affinity, second":   {pool(cmr, ""), tolerate + ", affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: team, operator: In, values: [search]}]}, {matchExpressions: [{key: team, operator: NotIn, values: [search]}]}]}}}", ""},
		"not on Karpenter":   {pool(cmr, ""), tolerate + ", affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: karpenter.sh/nodepool, operator: DoesNotExist}]}]}}}", "node-affinity"},
		"generation":         {pool(cmr, ""), tolerate + ", nodeSelector: {karpenter.k8s.aws/instance-generation: '3'}", "node-selector"},
		"too large by sizes": {pool(cmr+", {key: karpenter.k8s.aws/instance-size, operator: In, values: [large, xlarge]}", ""), tolerate + ", " + asks("6"), "instance-types no instance type that it allows holds the pod: cpu 6 asked, DaemonSets take cpu 200m, memory 512Mi, the largest type is"},
		"overhead decides":   {pool(cmr+", {key: karpenter.k8s.aws/instance-cpu, operator: Lt, values: ['5']}", ""), tolerate + ", " + asks("3800m"), "instance-types"},
		"by type names":      {pool("{key: node.kubernetes.io/instance-type, operator: In, values: [m5.large, c6i.xlarge]}", ""), tolerate + ", containers: [{name: m, resources: {requests: {memory: 9Gi}}}]", "instance-types the largest type is c6i.xlarge (4 vCPU, 8Gi)"},
		"by type, fits":      {pool("{key: node.kubernetes.io/instance-type, operator: In, values: [r5.xlarge]}", ""), tolerate + ", containers: [{name: m, resources: {requests: {memory: 20Gi}}}]", ""},
		"unknown type":       {pool("{key: node.kubernetes.io/instance-type, operator: In, values: [u-6tb1.metal]}", ""), tolerate + ", containers: [{name: m, resources: {requests: {memory: 900Gi}}}]", "unknown"},
		"unknown GPU":        {pool("{key: karpenter.k8s.aws/instance-family, operator: In, values: [g5]}", ""), tolerate + ", containers: [{name: m, resources: {requests: {nvidia.com/gpu: 1}}}]", "unknown"},
		"limits":             {pool(cmr, "limits: {cpu: '100'}") + "\nstatus: {resources: {cpu: '98'}}", tolerate + ", " + asks("3"), "nodepool-limits spec.limits.cpu is 100, its nodes have 98, and the smallest node for this pod needs 4 more"},
		"limits leave room":  {pool(cmr, "limits: {cpu: '100'}") + "\nstatus: {resources: {cpu: '95'}}", tolerate + ", " + asks("3"), ""},
		"memory limit":       {pool(cmr, "limits: {memory: 64Gi}") + "\nstatus: {resources: {memory: 62Gi}}", tolerate + ", containers: [{name: m, resources: {requests: {memory: 3Gi}}}]", "nodepool-limits"},
		"node limit":         {pool(cmr, "limits: {nodes: '3'}") + "\nstatus: {resources: {nodes: '3'}}", tolerate, "nodepool-limits"},
		"static":             {pool(cmr, "replicas: 2"), tolerate, "nodepool-static"},
		"not ready":          {pool(cmr, "") + "\nstatus: {conditions: [{type: NodeClassReady, status: 'False', reason: NodeClassNotFound, message: NodeClass not found on cluster}, {type: Ready, status: 'False', reason: UnhealthyDependents, message: x}]}", tolerate, "nodepool-not-ready NodeClassReady=False, NodeClassNotFound"},
	} {
		t.Run(name, func(t *testing.T) {
			on := karpenter(t, tc.pool).Place(pod(t, "p", "", tc.pod))[0]
			if tc.want == "" || tc.want == "unknown" {
				if !on.Serves() || (tc.want == "") != (len(on.Failures) == 0) {
					t.Errorf("failures = %+v", on.Failures)
				}
				return
			}
			predicate, says, _ := strings.Cut(tc.want, " ")
			if !slices.ContainsFunc(on.Failures, func(f Failure) bool {
				return string(f.Predicate) == predicate && strings.Contains(f.Says, says) && !f.Unknown
			}) {
				t.Errorf("failures = %+v, want %s", on.Failures, tc.want)
			}
			if len(on.Failures) != 1 {
				t.Errorf("one fault, %d failures: %+v", len(on.Failures), on.Failures)
			}
		})
	}
}

func TestVolumeZoneOfNoSubnet(t *testing.T) {
	k := karpenter(t, pool("", ""))
	k.Cluster = &Cluster{
		Claims:  probes.NewList([]*corev1.PersistentVolumeClaim{parse[corev1.PersistentVolumeClaim](t, "metadata: {name: data, namespace: shop}\nspec: {volumeName: pv}\nstatus: {phase: Bound}")}),
		Volumes: probes.NewList([]*corev1.PersistentVolume{parse[corev1.PersistentVolume](t, "metadata: {name: pv}\nspec: {nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: topology.ebs.csi.aws.com/zone, operator: In, values: [eu-west-1c]}]}]}}}")}),
	}
	on := k.Place(pod(t, "p", "", "tolerations: [{operator: Exists}], volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]"))[0]
	if len(on.Failures) != 1 || on.Failures[0].Predicate != VolumeNode {
		t.Errorf("failures = %+v", on.Failures)
	}
}

func TestParseInstanceType(t *testing.T) {
	for name, want := range map[string]struct {
		cpu, gib int64
		arch     string
	}{
		"m5.large": {2, 8, "amd64"}, "c7g.4xlarge": {16, 32, "arm64"}, "r6id.xlarge": {4, 32, "amd64"}, "m7gd.medium": {1, 4, "arm64"},
		"t3.medium": {2, 4, "amd64"}, "t4g.small": {2, 2, "arm64"}, "m7i-flex.2xlarge": {8, 32, "amd64"}, "c6gn.16xlarge": {64, 128, "arm64"},
	} {
		got, ok := ParseInstanceType(name)
		if !ok || got.CPU != want.cpu || got.MemoryMiB != want.gib*1024 || got.Labels[corev1.LabelArchStable] != want.arch {
			t.Errorf("%s = %+v, want %+v", name, got, want)
		}
	}
	for _, name := range []string{"", "m5.metal", "u-6tb1.112xlarge", "p4d.24xlarge", "nonsense"} {
		if _, ok := ParseInstanceType(name); ok {
			t.Errorf("%s has no size that follows from its name", name)
		}
	}
}
