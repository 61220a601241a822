package probes

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// manyPods is a source that makes up well pods while they are read.
type manyPods struct{ n, next int }

func (s *manyPods) Now() time.Time                                        { return time.Unix(1e9, 0) }
func (s *manyPods) Open(context.Context, Document) (io.ReadCloser, error) { return s, nil }
func (s *manyPods) Close() error                                          { return nil }
func (s *manyPods) Read([]byte) (int, error)                              { return 0, io.EOF }

func (s *manyPods) Next() (any, error) {
	if s.next == s.n {
		return nil, io.EOF
	}
	s.next++
	return wellPod(s.next), nil
}

// wellPod is a pod as an API server sends it; nothing of it is shared.
func wellPod(i int) *corev1.Pod {
	app := fmt.Sprintf("app-%d", i/50)
	yes := true
	now := metav1.Unix(999999000+int64(i%1000), 0)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: strings.Clone("shop"), Name: fmt.Sprintf("%s-7d9f8b6c5d-%05x", app, i), UID: types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012x", i)),
			GenerateName: app + "-7d9f8b6c5d-", CreationTimestamp: now,
			Labels:          map[string]string{"app": app, "pod-template-hash": strings.Clone("7d9f8b6c5d"), "team": strings.Clone("payments")},
			Annotations:     map[string]string{"prometheus.io/scrape": "true", "checksum/config": strings.Repeat("a", 64)},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: app + "-7d9f8b6c5d", UID: types.UID("rs-" + app), Controller: &yes}},
			ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "kube-controller-manager", FieldsV1: metav1.NewFieldsV1(strings.Repeat("f", 1500))}},
		},
		Spec: corev1.PodSpec{
			NodeName: fmt.Sprintf("ip-10-0-%d-%d.eu-west-1.compute.internal", i%4, i%250),
			Containers: []corev1.Container{{
				Name: "app", Image: "registry/" + app + ":1",
				Env:          []corev1.EnvVar{{Name: "A", Value: strings.Repeat("v", 200)}, {Name: "B", Value: strings.Repeat("w", 200)}},
				VolumeMounts: []corev1.VolumeMount{{Name: fmt.Sprintf("kube-api-access-%05x", i), MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"}},
			}},
			Volumes:     []corev1.Volume{{Name: fmt.Sprintf("kube-api-access-%05x", i), VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}}},
			Tolerations: []corev1.Toleration{{Key: "node.kubernetes.io/not-ready"}, {Key: "node.kubernetes.io/unreachable"}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: fmt.Sprintf("10.1.%d.%d", i/250, i%250), HostIP: fmt.Sprintf("10.0.%d.%d", i%4, i%250), StartTime: &now,
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: "app", Ready: true, Image: "registry/" + app + ":1", ImageID: "registry/" + app + "@sha256:" + strings.Repeat("0", 64),
				ContainerID: fmt.Sprintf("containerd://%064x", i), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
			}},
		},
	}
	for _, t := range []corev1.PodConditionType{"PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"} {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	p.Status.PodIPs = []corev1.PodIP{{IP: p.Status.PodIP}}
	return p
}

// TestPodMemory: a large cluster fits, because memory grows little with pods
// that are well.
func TestPodMemory(t *testing.T) {
	const n = 20000
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	facts := NewFacts(&manyPods{n: n})
	facts.Gather(t.Context(), Pods)
	after := heap()
	pods, err := Pods.Of(facts)
	if err != nil || pods.Len() != n {
		t.Fatalf("%v, %v", pods, err)
	}
	per := (after - before) / n
	t.Logf("%d bytes a pod", per)
	if per > 2000 {
		t.Errorf("a well pod takes %d bytes, more than 2000", per)
	}
	runtime.KeepAlive(facts)
}

// What rules may ask of a pod that is well is there, though it is shared.
func TestReducedPod(t *testing.T) {
	r := newPodReducer()
	first, second := r.reduce(wellPod(1)), r.reduce(wellPod(2))
	if &first.Spec.Containers[0] != &second.Spec.Containers[0] {
		t.Error("two pods of a revision don't share their containers")
	}
	want := wellPod(2)
	for what, same := range map[string]bool{
		"name": second.Name == want.Name, "node": second.Spec.NodeName == want.Spec.NodeName, "address": second.Status.PodIP == want.Status.PodIP && second.Status.PodIPs[0] == want.Status.PodIPs[0],
		"labels": second.Labels["app"] == "app-0", "owner": Controller(second).Name == Controller(want).Name, "ready": Ready(second),
		"started": second.Status.ContainerStatuses[0].State.Running.StartedAt == want.Status.ContainerStatuses[0].State.Running.StartedAt,
		"env":     len(second.Spec.Containers[0].Env) == 2, "mount": second.Spec.Containers[0].VolumeMounts[0].Name == second.Spec.Volumes[0].Name,
	} {
		if !same {
			t.Errorf("the %s is not the pod's own: %+v", what, second)
		}
	}
	changed := wellPod(3)
	changed.Spec.Containers[0].Image = "registry/app-0:2"
	if got := r.reduce(changed); got.Spec.Containers[0].Image != "registry/app-0:2" {
		t.Errorf("a pod with an image of its own shares another one's: %s", got.Spec.Containers[0].Image)
	}
	claim := wellPod(4)
	claim.Spec.Volumes = append(claim.Spec.Volumes, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-4"}}})
	if got := r.reduce(claim); len(got.Spec.Volumes) != 2 || got.Spec.Volumes[1].PersistentVolumeClaim.ClaimName != "data-4" {
		t.Errorf("a claim is lost: %+v", got.Spec.Volumes)
	}
	ill := wellPod(5)
	ill.Status.ContainerStatuses[0].RestartCount = 1
	if got := r.reduce(ill); len(got.Status.Conditions) != 5 || len(got.Annotations) != 2 {
		t.Errorf("a pod that has restarted is not kept whole: %+v", got)
	}
}
