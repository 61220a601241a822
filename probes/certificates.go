package probes

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The kinds of cert-manager. Source: cert-manager pkg/apis/{certmanager,acme}/v1.
var (
	Certificates        = actedOnBy[Certificate]("cert-manager", "certificates.cert-manager.io", "which Secrets cert-manager makes, and whether it can")
	CertificateRequests = actedOnBy[CertificateRequest]("cert-manager", "certificaterequests.cert-manager.io", "what became of each request for a certificate")
	Issuers             = actedOnBy[Issuer]("cert-manager", "issuers.cert-manager.io", "who signs certificates in a namespace")
	ClusterIssuers      = actedOnBy[Issuer]("cert-manager", "clusterissuers.cert-manager.io", "who signs certificates in the whole cluster")
	Orders              = actedOnBy[Order]("cert-manager", "orders.acme.cert-manager.io", "what became of each order at an ACME server")
	Challenges          = actedOnBy[Challenge]("cert-manager", "challenges.acme.cert-manager.io", "how cert-manager proves to an ACME server that a name is its own")
)

// An IssuerRef names who signs.
type IssuerRef struct {
	Name  string `json:"name"`
	Kind  string `json:"kind,omitempty"`  // Issuer if empty
	Group string `json:"group,omitempty"` // cert-manager.io if empty
}

// A Certificate says which Secret is to hold a certificate for which names.
type Certificate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		SecretName string    `json:"secretName"`
		DNSNames   []string  `json:"dnsNames,omitempty"`
		CommonName string    `json:"commonName,omitempty"`
		IssuerRef  IssuerRef `json:"issuerRef"`
	} `json:"spec"`
	Status struct {
		Conditions  []metav1.Condition `json:"conditions,omitempty"`
		NotBefore   *metav1.Time       `json:"notBefore,omitempty"`
		NotAfter    *metav1.Time       `json:"notAfter,omitempty"`
		RenewalTime *metav1.Time       `json:"renewalTime,omitempty"`
	} `json:"status"`
}

// A CertificateRequest is one attempt to get a certificate.
type CertificateRequest struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		IssuerRef IssuerRef `json:"issuerRef"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions,omitempty"`
	} `json:"status"`
}

// An Issuer says how certificates are signed. ClusterIssuer is the same
// without a namespace.
type Issuer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		CA *struct {
			SecretName string `json:"secretName"`
		} `json:"ca,omitempty"`
		ACME *struct {
			Server string `json:"server"`
		} `json:"acme,omitempty"`
		Vault json.RawMessage `json:"vault,omitempty"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions,omitempty"`
	} `json:"status"`
}

// An Order is what cert-manager asked of an ACME server.
type Order struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Status            struct {
		State  string `json:"state,omitempty"` // pending, ready, valid, invalid, errored, expired
		Reason string `json:"reason,omitempty"`
	} `json:"status"`
}

// A Challenge is one proof that a name is the issuer's own.
type Challenge struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		DNSName string `json:"dnsName"`
		Type    string `json:"type"` // HTTP-01, DNS-01
		Solver  struct {
			HTTP01 *struct {
				Ingress *struct {
					Class            string `json:"class,omitempty"`
					IngressClassName string `json:"ingressClassName,omitempty"`
				} `json:"ingress,omitempty"`
			} `json:"http01,omitempty"`
		} `json:"solver"`
	} `json:"spec"`
	Status struct {
		State  string `json:"state,omitempty"`
		Reason string `json:"reason,omitempty"`
	} `json:"status"`
}
