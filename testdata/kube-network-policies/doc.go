// Package upstream compares our reading of NetworkPolicies with that of
// sigs.k8s.io/kube-network-policies. It is a module of its own, so that its
// dependencies stay out of the program's.
package upstream
