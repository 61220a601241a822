package upstream

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"testing"
	_ "unsafe" // for linkname

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"

	"github.com/pposiraegi/ppodoctor/probes/network"
)

// A packet has the layout of upstream's unexported type (packet.go, v0.8.0).
type packet struct {
	id               uint32
	family           corev1.IPFamily
	srcIP, dstIP     net.IP
	proto            corev1.Protocol
	srcPort, dstPort int
	payload          []byte
}

//go:linkname evaluatePacket sigs.k8s.io/kube-network-policies/pkg/networkpolicy.(*Controller).evaluatePacket
func evaluatePacket(*networkpolicy.Controller, context.Context, packet) bool

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func ptr[T any](v T) *T { return &v }

func selector(r *rand.Rand, key string, values ...string) *metav1.LabelSelector {
	switch r.IntN(5) {
	case 0:
		return &metav1.LabelSelector{}
	case 1:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key:      key,
			Operator: pick(r, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn), Values: []string{pick(r, values...)},
		}}}
	case 2:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key:      key,
			Operator: pick(r, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist),
		}}}
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: pick(r, values...)}}
}

var ports = []int{53, 80, 8080, 9090}

func peers(r *rand.Rand) (all []networkingv1.NetworkPolicyPeer) {
	blocks := []string{"0.0.0.0/0", "10.0.0.0/24", "10.0.0.0/30", "10.0.0.2/32", "8.8.8.0/24"}
	for range r.IntN(3) {
		var p networkingv1.NetworkPolicyPeer
		switch r.IntN(4) {
		case 0:
			p.PodSelector = selector(r, "app", "web", "db")
		case 1:
			p.NamespaceSelector = selector(r, "env", "prod", "dev")
		case 2:
			p.PodSelector, p.NamespaceSelector = selector(r, "app", "web", "db"), selector(r, "env", "prod", "dev")
		case 3:
			p.IPBlock = &networkingv1.IPBlock{CIDR: pick(r, blocks...)}
			if r.IntN(2) == 0 {
				p.IPBlock.Except = []string{pick(r, blocks...)}
			}
		}
		all = append(all, p)
	}
	return all
}

func policyPorts(r *rand.Rand) (all []networkingv1.NetworkPolicyPort) {
	for range r.IntN(3) {
		p := networkingv1.NetworkPolicyPort{Protocol: ptr(pick(r, corev1.ProtocolTCP, corev1.ProtocolUDP))}
		switch r.IntN(4) {
		case 0:
		case 1:
			p.Port = ptr(intstr.FromString("web"))
		default:
			p.Port = ptr(intstr.FromInt(pick(r, ports...)))
			if r.IntN(3) == 0 {
				p.EndPort = ptr(p.Port.IntVal + int32(r.IntN(9000)))
			}
		}
		all = append(all, p)
	}
	return all
}

func policy(r *rand.Rand, name string) *networkingv1.NetworkPolicy {
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: pick(r, "red", "blue"), Name: name}}
	np.Spec.PodSelector = *selector(r, "app", "web", "db")
	np.Spec.PolicyTypes = pick(r, []networkingv1.PolicyType{"Ingress"}, []networkingv1.PolicyType{"Egress"}, []networkingv1.PolicyType{"Ingress", "Egress"})
	for range r.IntN(3) {
		np.Spec.Ingress = append(np.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: peers(r), Ports: policyPorts(r)})
	}
	for range r.IntN(3) {
		np.Spec.Egress = append(np.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: peers(r), Ports: policyPorts(r)})
	}
	return np
}

// TestAgainstUpstream asks upstream's evaluator and ours the same questions
// about random policies. Each pod has a node of its own and is never asked
// about itself: upstream exempts that traffic in nftables, not here.
func TestAgainstUpstream(t *testing.T) {
	seen := map[network.Truth]int{}
	for world := range uint64(400) {
		r := rand.New(rand.NewPCG(world, 1))
		w := &network.World{Enforced: network.Yes}
		informer := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
		controller, err := networkpolicy.NewController(fake.NewClientset(), informer.Networking().V1().NetworkPolicies(), informer.Core().V1().Namespaces(),
			informer.Core().V1().Pods(), informer.Core().V1().Nodes(), nil, nil, nil, networkpolicy.Config{NodeName: "n"})
		if err != nil {
			t.Fatal(err)
		}
		for _, ns := range []string{"red", "blue"} {
			o := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns, Labels: map[string]string{"env": pick(r, "prod", "dev")}}}
			w.Namespaces.All = append(w.Namespaces.All, o)
			if err := informer.Core().V1().Namespaces().Informer().GetStore().Add(o); err != nil {
				t.Fatal(err)
			}
		}
		ends := []struct {
			is network.Endpoint
			ip string
		}{{network.Address(netip.MustParseAddr("8.8.8.8")), "8.8.8.8"}}
		for n := range 4 {
			name, ip := "pod-"+strconv.Itoa(n), "10.0.0."+strconv.Itoa(n+1)
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pick(r, "red", "blue"), Name: name}}
			if r.IntN(5) > 0 {
				p.Labels = map[string]string{"app": pick(r, "web", "db")}
			}
			p.Spec.NodeName = "node-" + strconv.Itoa(n)
			p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: int32(pick(r, ports...)), Protocol: pick(r, corev1.ProtocolTCP, corev1.ProtocolUDP)}}}}
			p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}}
			w.Pods.All = append(w.Pods.All, p)
			if err := informer.Core().V1().Pods().Informer().GetStore().Add(p); err != nil {
				t.Fatal(err)
			}
			ends = append(ends, struct {
				is network.Endpoint
				ip string
			}{network.Pod(p.Namespace, name), ip})
		}
		for n := range 1 + r.IntN(4) {
			np := policy(r, "np-"+strconv.Itoa(n))
			w.Policies.All = append(w.Policies.All, np)
			if err := informer.Networking().V1().NetworkPolicies().Informer().GetStore().Add(np); err != nil {
				t.Fatal(err)
			}
		}
		for range 50 {
			from, to := pick(r, ends...), pick(r, ends...)
			if from.ip == to.ip {
				continue
			}
			proto, port := pick(r, corev1.ProtocolTCP, corev1.ProtocolUDP), pick(r, ports...)
			want := network.No
			if evaluatePacket(controller, context.Background(), packet{srcIP: net.ParseIP(from.ip), dstIP: net.ParseIP(to.ip), proto: proto, srcPort: 40000, dstPort: port}) {
				want = network.Yes
			}
			got := w.Path(from.is, to.is, network.Protocol(proto), port).On(network.NetworkPolicies)
			seen[want]++
			if got.Truth != want {
				t.Fatalf("world %d: %s → %s %s %d: %s, upstream says %s: %s", world, from.is, to.is, proto, port, got.Truth, want, got.Says())
			}
		}
	}
	t.Logf("compared: %v", seen)
	if seen[network.Yes] < 2000 || seen[network.No] < 2000 {
		t.Errorf("too few of one kind: %v", seen)
	}
}
