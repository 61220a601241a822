package probes

import (
	"context"

	networkingv1 "k8s.io/api/networking/v1"
)

// IngressClassesInUse are the ingress classes, asked for only where there is an
// Ingress; IngressSecrets are the secrets, only where one names a certificate.
var (
	IngressClassesInUse = whereIngress("ingress-classes-in-use", "ingress classes, where there are Ingresses", IngressClasses,
		func(*networkingv1.Ingress) bool { return true })
	IngressSecrets = whereIngress("ingress-secrets", "names of secrets, where an Ingress names one", Secrets,
		func(in *networkingv1.Ingress) bool { return len(in.Spec.TLS) > 0 })
)

// whereIngress is a list that is empty, unread, unless some Ingress wants it.
func whereIngress[T any](name, about string, of *Probe[*List[T]], wants func(*networkingv1.Ingress) bool) *Probe[*List[T]] {
	return &Probe[*List[T]]{
		Name: name, About: about, Reads: of.Reads, After: []Any{Ingresses},
		Gather: func(ctx context.Context, _ Source, known *Facts) (*List[T], error) {
			list, err := Ingresses.Of(known)
			if err != nil {
				return nil, err
			}
			if len(list.Where(wants)) == 0 {
				return NewList[T](nil), nil
			}
			return of.Ask(ctx, known)
		},
	}
}
