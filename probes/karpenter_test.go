package probes

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
)

type oneDocument struct{ path, text string }

func (s oneDocument) Open(_ context.Context, doc Document) (io.ReadCloser, error) {
	if doc.Path != s.path {
		return nil, &Gap{Document: doc, Reason: NotCaptured}
	}
	return io.NopCloser(strings.NewReader(s.text)), nil
}

func (oneDocument) Now() time.Time { return time.Time{} }

func TestNodePoolOfBothVersions(t *testing.T) {
	src := oneDocument{"nodepools.karpenter.sh", `
{"apiVersion":"karpenter.sh/v1beta1","kind":"NodePool","metadata":{"name":"old"},"spec":{"limits":{"cpu":100},"weight":10,
 "disruption":{"consolidationPolicy":"WhenUnderutilized","expireAfter":"Never"},
 "template":{"metadata":{"labels":{"team":"a"}},"spec":{"nodeClassRef":{"apiVersion":"karpenter.k8s.aws/v1beta1","kind":"EC2NodeClass","name":"default"},
 "kubelet":{"maxPods":20},"requirements":[{"key":"karpenter.sh/capacity-type","operator":"In","values":["spot"]}]}}}}
{"apiVersion":"karpenter.sh/v1","kind":"NodePool","metadata":{"name":"new","generation":2},"spec":{
 "template":{"spec":{"expireAfter":"720h","terminationGracePeriod":"1h","nodeClassRef":{"group":"karpenter.k8s.aws","kind":"EC2NodeClass","name":"default"},
 "startupTaints":[{"key":"node.cilium.io/agent-not-ready","effect":"NoExecute"}],
 "requirements":[{"key":"karpenter.k8s.aws/instance-family","operator":"Exists","minValues":3}]}}},
 "status":{"resources":{"cpu":"12","nodes":"3"},"conditions":[{"type":"Ready","status":"False","reason":"UnhealthyDependents","message":"x","observedGeneration":2,"lastTransitionTime":"2026-01-27T02:43:06Z"}]}}`}
	facts := NewFacts(src)
	facts.Gather(context.Background(), NodePools, NodeClaims)
	pools, err := NodePools.Of(facts)
	if err != nil {
		t.Fatal(err)
	}
	old, fresh := pools.Get("", "old"), pools.Get("", "new")
	if old.Spec.Limits.Cpu().Value() != 100 || *old.Spec.Template.Spec.Kubelet.MaxPods != 20 || old.Spec.Template.Metadata.Labels["team"] != "a" || old.Spec.Template.Spec.NodeClassRef.APIVersion == "" {
		t.Errorf("v1beta1 is misread: %+v", old.Spec)
	}
	if !meta.IsStatusConditionFalse(fresh.Status.Conditions, "Ready") || fresh.Spec.Template.Spec.StartupTaints[0].Key == "" || *fresh.Spec.Template.Spec.Requirements[0].MinValues != 3 {
		t.Errorf("v1 is misread: %+v", fresh)
	}
	if n := fresh.Status.Resources["nodes"]; n.Value() != 3 {
		t.Errorf("nodes = %v", n.Value())
	}
	if _, err := NodeClaims.Of(facts); err == nil {
		t.Error("a document that wasn't captured must be a gap")
	}
}
