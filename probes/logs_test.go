package probes

import (
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// held is a source of pods and logs, for tests.
type held struct {
	pods []*corev1.Pod
	logs map[string]string
}

func (h held) Now() time.Time { return time.Date(2026, 5, 12, 4, 0, 0, 0, time.UTC) }

func (h held) Open(_ context.Context, doc Document) (io.ReadCloser, error) {
	if doc.Path == "pods" {
		var b strings.Builder
		for _, p := range h.pods {
			_ = json.NewEncoder(&b).Encode(p)
		}
		return io.NopCloser(strings.NewReader(b.String())), nil
	}
	if text, ok := h.logs[doc.Path]; ok {
		return io.NopCloser(strings.NewReader(text)), nil
	}
	if strings.HasPrefix(doc.Path, "logs/") {
		return nil, gapf(doc, NotCaptured, "")
	}
	return io.NopCloser(strings.NewReader("")), nil
}

func podWith(name, owner string, labels map[string]string, states ...corev1.ContainerStatus) *corev1.Pod {
	yes := true
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: labels, OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: owner, Controller: &yes}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: states},
	}
}

func TestLogs(t *testing.T) {
	h := held{logs: map[string]string{}}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	died := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, FinishedAt: metav1.NewTime(h.Now().Add(-time.Minute))}}
	crashing := corev1.ContainerStatus{Name: "app", RestartCount: 4, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}, LastTerminationState: died}
	healthy := corev1.ContainerStatus{Name: "app", Ready: true, State: running}
	for _, name := range []string{"api-0", "api-1", "api-2", "api-3"} {
		h.pods = append(h.pods, podWith(name, "api", nil, crashing))
	}
	h.pods = append(h.pods,
		podWith("web-0", "web", nil, healthy),
		podWith("slow-0", "slow", nil, corev1.ContainerStatus{Name: "app", State: running}),
		podWith("karpenter-0", "karpenter", map[string]string{"app.kubernetes.io/name": "karpenter"}, healthy),
		podWith("new-0", "new", nil, corev1.ContainerStatus{Name: "app", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}))
	h.logs["logs/shop/api-0/app.previous.log"] = "dial tcp: lookup pg on 10.100.0.10:53: no such host\n"
	h.logs["logs/shop/api-1/app.log"] = "dial tcp 10.0.0.1:5432: connect: connection refused\n" // only the present log was captured
	h.logs["logs/shop/web-0/app.log"] = "ERROR dial tcp 10.0.0.9:80: i/o timeout\n"
	h.logs["logs/shop/karpenter-0/app.log"] = `{"level":"ERROR","message":"x","error":"UnauthorizedOperation: You are not authorized to perform this operation."}` + "\n"

	facts := NewFacts(h)
	facts.Gather(context.Background(), Logs, AppLogs, KarpenterLogs, CoreDNSLogs)
	logs, err := Logs.Of(facts)
	if err != nil {
		t.Fatal(err)
	}
	for pod, want := range map[string]string{"api-0": "dns-nxdomain", "api-1": "tcp-refused"} {
		_, f := logs.Decisive("shop", pod)
		if f == nil || f.Meaning != want {
			t.Errorf("%s: decisive is %+v, want %s", pod, f, want)
		}
		for _, l := range logs.Of("shop", pod) {
			if l.Gap != nil {
				t.Errorf("%s: one log of the run that ended is enough, but there is the gap %v", pod, l.Gap)
			}
		}
	}
	if got := logs.Of("shop", "api-2"); len(got) != 2 || got[0].Gap == nil || !got[0].Previous {
		t.Errorf("api-2 has no log at all: want its gaps, got %+v", got)
	}
	if got := logs.Of("shop", "api-3"); got != nil || logs.Unread != 2 {
		t.Errorf("a fourth pod of a workload is left out and counted: got %d logs, %d unread", len(got), logs.Unread)
	}
	if got := logs.Of("shop", "slow-0"); len(got) != 1 || got[0].Previous || got[0].Gap == nil {
		t.Errorf("a container that is not ready has its present log read: got %+v", got)
	}
	for _, pod := range []string{"web-0", "new-0"} {
		if got := logs.Of("shop", pod); got != nil {
			t.Errorf("%s has no log to read, got %+v", pod, got)
		}
	}

	apps, err := AppLogs.Of(facts)
	if err != nil {
		t.Fatal(err)
	}
	if _, f := apps.Decisive("shop", "web-0"); f == nil || f.Meaning != "tcp-timeout" || f.Host != "10.0.0.9" || f.Port != "80" {
		t.Errorf("web-0 looks healthy and its client fails: got %+v", f)
	}
	if gaps := apps.Gaps(); len(gaps) != 0 {
		t.Errorf("healthy pods' logs that nobody captured are no gaps: %v", gaps)
	}

	karpenter, err := KarpenterLogs.Of(facts)
	if err != nil {
		t.Fatal(err)
	}
	if _, f := karpenter.Decisive("shop", "karpenter-0"); f == nil || f.Meaning != "aws-denied" {
		t.Errorf("karpenter: got %+v", f)
	}
	if none, err := CoreDNSLogs.Of(facts); err != nil || len(none.All()) != 0 {
		t.Errorf("no CoreDNS, no logs: got %v, %v", none, err)
	}
}
