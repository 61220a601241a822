package probes

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func directory() *Directory {
	meta := func(ns, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{"app": name}}
	}
	pod := func(ns, name, app, ip string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: meta(ns, name)}
		p.Labels["app"] = app
		p.Status.PodIP = ip
		return p
	}
	svc := func(ns, name, ip string, selector map[string]string) *corev1.Service {
		return &corev1.Service{ObjectMeta: meta(ns, name), Spec: corev1.ServiceSpec{ClusterIP: ip, Selector: selector}}
	}
	manual := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "legacy-1", Labels: map[string]string{discoveryv1.LabelServiceName: "legacy"}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.9.9.9"}}}}
	named := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "picked-1", Labels: map[string]string{discoveryv1.LabelServiceName: "picked"}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.1.7"}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "api-1"}}}}
	external := svc("shop", "partner", "", nil)
	external.Spec.ExternalName = "api.partner.example"
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "ip-10-0-1-2.eu-west-1.compute.internal"}}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.1.2"}}
	return &Directory{
		Services: NewList([]*corev1.Service{
			svc("shop", "api", "172.20.1.1", map[string]string{"app": "api"}), svc("redis", "redis-headless", "None", map[string]string{"app": "redis"}),
			svc("shop", "cache", "None", map[string]string{"app": "cache"}), svc("default", "kubernetes", "172.20.0.1", nil), external, svc("shop", "legacy", "172.20.1.9", nil), svc("shop", "picked", "172.20.1.8", nil),
		}),
		Slices: NewList([]*discoveryv1.EndpointSlice{manual, named}),
		Pods:   NewPodList([]*corev1.Pod{pod("shop", "api-1", "api", "10.0.1.7"), pod("shop", "api-2", "api", "10.0.1.8"), pod("redis", "redis-master-0", "redis", "10.0.2.1"), pod("shop", "cache-0", "cache", "10.0.2.2")}),
		Nodes:  NewList([]*corev1.Node{node}),
	}
}

func TestLookup(t *testing.T) {
	d := directory()
	for _, test := range []struct {
		host    string
		kind    TargetKind
		ref     string
		missing bool
		pods    int
		more    string // external name, or AWS service and region
	}{
		{host: "api", kind: TargetService, ref: "Service/shop/api", pods: 2},
		{host: "api.shop", kind: TargetService, ref: "Service/shop/api", pods: 2},
		{host: "API.shop.svc.cluster.local.", kind: TargetService, ref: "Service/shop/api", pods: 2},
		{host: "api.shop.svc.corp.example", kind: TargetService, ref: "Service/shop/api", pods: 2},
		{host: "172.20.1.1", kind: TargetService, ref: "Service/shop/api", pods: 2},
		{host: "apii", kind: TargetService, ref: "Service/shop/apii", missing: true},
		{host: "api.redis", kind: TargetService, ref: "Service/redis/api", missing: true},
		{host: "api.gone.svc", kind: TargetService, ref: "Service/gone/api", missing: true},
		{host: "redis-master-0.redis-headless.redis.svc.cluster.local", kind: TargetPod, ref: "Pod/redis/redis-master-0", pods: 1},
		{host: "redis-master-0.redis-headless.redis", kind: TargetPod, ref: "Pod/redis/redis-master-0", pods: 1},
		{host: "redis-master-1.redis-headless.redis.svc", kind: TargetPod, ref: "Pod/redis/redis-master-1", missing: true},
		{host: "cache-0.cache", kind: TargetPod, ref: "Pod/shop/cache-0", pods: 1},
		{host: "10.0.2.1", kind: TargetPod, ref: "Pod/redis/redis-master-0", pods: 1},
		{host: "10.0.1.2", kind: TargetNode, ref: "Node/ip-10-0-1-2.eu-west-1.compute.internal"},
		{host: "ip-10-0-1-2.eu-west-1.compute.internal", kind: TargetNode, ref: "Node/ip-10-0-1-2.eu-west-1.compute.internal"},
		{host: "10.9.9.9", kind: TargetService, ref: "Service/shop/legacy"},
		{host: "picked", kind: TargetService, ref: "Service/shop/picked", pods: 1},
		{host: "partner", kind: TargetService, ref: "Service/shop/partner", more: "api.partner.example"},
		{host: "api.stripe.com", kind: TargetExternal},
		{host: "example.com", kind: TargetExternal},
		{host: "54.1.2.3", kind: TargetExternal},
		{host: "10.250.0.1", kind: TargetUnknown}, // in the VPC or beyond: whose is not known
		{host: "169.254.169.254", kind: TargetMetadata},
		{host: "169.254.170.23", kind: TargetIdentity},
		{host: "localhost", kind: TargetSelf},
		{host: "::1", kind: TargetSelf},
		{host: "sts.amazonaws.com", kind: TargetAWS, more: "sts "},
		{host: "sts.eu-west-1.amazonaws.com", kind: TargetAWS, more: "sts eu-west-1"},
		{host: "bucket.s3.ap-northeast-2.amazonaws.com", kind: TargetAWS, more: "s3 ap-northeast-2"},
		{host: "bucket.s3.amazonaws.com", kind: TargetAWS, more: "s3 "},
		{host: "111122223333.dkr.ecr.us-gov-west-1.amazonaws.com", kind: TargetAWS, more: "ecr us-gov-west-1"},
		{host: "orders.abc.eu-west-1.rds.amazonaws.com", kind: TargetAWS, more: "rds eu-west-1"},
		{host: "", kind: TargetUnknown},
	} {
		got := d.Lookup("shop", test.host, "80")
		if got.Kind != test.kind {
			t.Errorf("%s is %s, want %s", test.host, got.Kind, test.kind)
		}
		if ref := got.Ref.String(); test.ref != "" && ref != test.ref {
			t.Errorf("%s is %s, want %s", test.host, ref, test.ref)
		}
		if got.Missing != test.missing || len(got.Pods) != test.pods {
			t.Errorf("%s: missing %v with %d pods, want %v with %d", test.host, got.Missing, len(got.Pods), test.missing, test.pods)
		}
		if more := got.AWSService + " " + got.Region; test.more != "" && more != test.more && got.External != test.more {
			t.Errorf("%s: %q or %q, want %q", test.host, more, got.External, test.more)
		}
	}
}
