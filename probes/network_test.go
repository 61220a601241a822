package probes

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes/network"
)

func worldOf(t *testing.T, src Source) *network.World {
	t.Helper()
	facts := NewFacts(src)
	facts.Gather(context.Background(), Network)
	w, err := Network.Of(facts)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// TestHealthyPaths asks for every path that a healthy cluster lives on: none
// may be stopped by a group or a policy, and each must be known.
func TestHealthyPaths(t *testing.T) {
	archives, _ := filepath.Glob("../testdata/*.tar.gz")
	folders, _ := filepath.Glob("../testdata/healthy-*")
	archives = append(archives, folders...)
	if len(archives) == 0 {
		t.Fatal("no healthy clusters")
	}
	for _, archive := range archives {
		src, err := OpenSnapshot(archive)
		if err != nil {
			t.Fatal(err)
		}
		w := worldOf(t, src)
		paths := 0
		hasDNS := slices.ContainsFunc(w.Services.All, func(s *corev1.Service) bool { return s.Name == "kube-dns" })
		expect := func(a network.Answer) {
			t.Helper()
			paths++
			got := a.On(network.Services, network.SecurityGroups, network.NetworkPolicies)
			if got.Truth != network.Yes {
				t.Errorf("%s: %s → %s %d: %s: %s (%v)", filepath.Base(archive), a.From, a.To, a.Port, got.Truth, got.Says(), got.Err())
			}
			// Nobody captured the ACLs: the whole answer can't be a Yes between
			// subnets, and says so.
			var gap *Gap
			if a.Truth == network.Unknown && (!errors.As(a.Err(), &gap) || gap.Document.Path != "aws/ec2/describe-network-acls") {
				t.Errorf("%s → %s: unknown for another reason: %v", a.From, a.To, a.Err())
			}
		}
		for _, n := range w.Nodes.All {
			expect(w.Path(network.Node(n.Name), network.APIServer(), network.TCP, 443))
			expect(w.Path(network.APIServer(), network.Node(n.Name), network.TCP, 10250))
		}
		for _, p := range w.Pods.All {
			if p.Status.Phase != "Running" {
				continue
			}
			for _, proto := range []network.Protocol{network.TCP, network.UDP} {
				if !hasDNS { // Auto Mode answers on each node
					break
				}
				expect(w.Path(network.Pod(p.Namespace, p.Name), network.Service("kube-system", "kube-dns"), proto, 53))
			}
			expect(w.Path(network.Pod(p.Namespace, p.Name), network.Service("default", "kubernetes"), network.TCP, 443))
		}
		for _, s := range w.Services.All {
			if s.Name == "cert-manager-webhook" || s.Name == "metrics-server" || s.Name == "aws-load-balancer-webhook-service" {
				expect(w.Path(network.APIServer(), network.Service(s.Namespace, s.Name), network.TCP, int(s.Spec.Ports[0].Port)))
			}
		}
		t.Logf("%s: %d paths", filepath.Base(archive), paths)
	}
}

// TestIncidentPaths asks whether each pod reaches CoreDNS in the clusters
// where that is, or looks like, the fault.
func TestIncidentPaths(t *testing.T) {
	for folder, want := range map[string]struct {
		layer network.Layer
		truth network.Truth // of the worst path
		codes []network.Code
	}{
		"dns-security-groups":            {network.SecurityGroups, network.No, []network.Code{network.SGRulesMismatch}},
		"dns-security-groups-egress":     {network.SecurityGroups, network.No, []network.Code{network.SGRulesMismatch, network.SGHasNoRules}},
		"dns-security-groups-repaired":   {network.SecurityGroups, network.Yes, nil},
		"dns-groups-differ-but-admitted": {network.SecurityGroups, network.Yes, nil},
		"dns-network-acl":                {network.NetworkACLs, network.No, []network.Code{network.ACLRestriction}},
		"dns-network-policy":             {network.NetworkPolicies, network.No, []network.Code{network.PolicyDenies}},
		"dns-cloud-not-captured":         {network.SecurityGroups, network.Unknown, []network.Code{network.NotKnown}},
	} {
		t.Run(folder, func(t *testing.T) {
			src, err := OpenSnapshot("../testdata/" + folder)
			if err != nil {
				t.Fatal(err)
			}
			w := worldOf(t, src)
			worst := network.Yes
			others := slices.DeleteFunc([]network.Layer{network.SecurityGroups, network.NetworkPolicies, network.NetworkACLs}, func(l network.Layer) bool { return l == want.layer })
			for _, p := range w.Pods.All {
				if p.Spec.HostNetwork || p.Status.PodIP == "" {
					continue
				}
				a := w.Path(network.Pod(p.Namespace, p.Name), network.Service("kube-system", "kube-dns"), network.UDP, 53)
				got := a.On(want.layer)
				if got.Truth == network.No || worst == network.Yes {
					worst = got.Truth
				}
				if got.Truth != network.Yes {
					for _, h := range got.Decisive() {
						if !slices.Contains(want.codes, h.Code) {
							t.Errorf("%s: code %s: %s", a.From, h.Code, h.Says)
						}
					}
					t.Logf("%s: %s: %s", a.From, got.Truth, got.Says())
				}
				if rest := a.On(others...); rest.Truth == network.No {
					t.Errorf("%s: also stopped: %s", a.From, rest.Says())
				}
			}
			if worst != want.truth {
				t.Errorf("%s on %s, want %s", worst, want.layer, want.truth)
			}
		})
	}
}
