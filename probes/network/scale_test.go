package network

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// BenchmarkPath asks for a path in a cluster of 2,000 nodes and 40,000 pods.
func BenchmarkPath(b *testing.B) {
	w := smallWorld()
	for n := range 2000 {
		node := fmt.Sprintf("node-x%d", n)
		w.Nodes.All = append(w.Nodes.All, &corev1.Node{})
		w.Nodes.All[len(w.Nodes.All)-1].Name = node
		w.Nodes.All[len(w.Nodes.All)-1].Spec.ProviderID = "aws:///z/i-" + node
		var ips []string
		for k := range 20 {
			ips = append(ips, fmt.Sprintf("10.%d.%d.%d", 1+n/200, n%200, k+1))
			w.Pods.All = append(w.Pods.All, testPod("load", fmt.Sprintf("p-%d-%d", n, k), node, ips[k]))
		}
		w.Interfaces.All = append(w.Interfaces.All, eni("eni-"+node, "i-"+node, 0, 1, []string{"sg-node"}, ips...))
	}
	if a := w.Path(Pod("load", "p-7-7"), Service("kube-system", "hook"), TCP, 443); a.Truth != Yes {
		b.Fatal(a.Says())
	}
	n := 0
	for b.Loop() {
		p := w.Pods.All[n%len(w.Pods.All)]
		w.Path(Pod(p.Namespace, p.Name), Service("kube-system", "hook"), TCP, 443)
		n++
	}
}
