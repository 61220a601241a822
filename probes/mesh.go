package probes

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What decides over traffic in an Istio mesh.
var (
	AuthorizationRules  = actedOnBy[AuthorizationPolicy]("istiod", "authorizationpolicies.security.istio.io", "Istio's policies of who may call what")
	PeerAuthentications = actedOnBy[PeerAuthentication]("istiod", "peerauthentications.security.istio.io", "which pods take only mutual TLS")
	DestinationRules    = actedOnBy[DestinationRule]("istiod", "destinationrules.networking.istio.io", "how proxies call a host, and its subsets")
	ServiceEntries      = actedOnBy[ServiceEntry]("istiod", "serviceentries.networking.istio.io", "hosts that the mesh knows besides the cluster's Services")
	Sidecars            = actedOnBy[Sidecar]("istiod", "sidecars.networking.istio.io", "what the sidecars of pods let out")
	IstioGateways       = actedOnBy[IstioGateway]("istiod", "gateways.networking.istio.io", "which gateway pods serve which hosts, with which certificate")
	VirtualServices     = actedOnBy[VirtualService]("istiod", "virtualservices.networking.istio.io", "where proxies send the requests for a host")
)

// An AuthorizationPolicy is Istio's. Source: istio.io/api security/v1.
type AuthorizationPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Action   string `json:"action,omitempty"` // ALLOW if empty
		Selector *struct {
			MatchLabels map[string]string `json:"matchLabels,omitempty"`
		} `json:"selector,omitempty"`
		TargetRef  *PolicyTarget       `json:"targetRef,omitempty"`
		TargetRefs []PolicyTarget      `json:"targetRefs,omitempty"`
		Rules      []AuthorizationRule `json:"rules,omitempty"`
	} `json:"spec"`
}

// A PolicyTarget is a Gateway or Service that a policy is attached to.
type PolicyTarget struct {
	Group string `json:"group,omitempty"`
	Kind  string `json:"kind"`
	Name  string `json:"name"`
}

// An AuthorizationRule matches a request that meets one of From, one of To
// and all of When; what is empty asks for nothing.
type AuthorizationRule struct {
	From []struct {
		Source map[string][]string `json:"source,omitempty"`
	} `json:"from,omitempty"`
	To []struct {
		Operation map[string][]string `json:"operation,omitempty"`
	} `json:"to,omitempty"`
	When []json.RawMessage `json:"when,omitempty"`
}

// A PeerAuthentication says whether pods take only mutual TLS.
// Source: istio.io/api security/v1 PeerAuthentication.
type PeerAuthentication struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector *struct {
			MatchLabels map[string]string `json:"matchLabels,omitempty"`
		} `json:"selector,omitempty"`
		MTLS          MTLS            `json:"mtls"`
		PortLevelMTLS map[string]MTLS `json:"portLevelMtls,omitempty"` // by the pod's port
	} `json:"spec"`
}

// MTLS is a mode: STRICT, PERMISSIVE, DISABLE, or empty (what the wider scope says).
type MTLS struct {
	Mode string `json:"mode,omitempty"`
}

// A DestinationRule says how proxies call a host.
// Source: istio.io/api networking/v1 DestinationRule.
type DestinationRule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Host          string `json:"host"`
		TrafficPolicy *struct {
			TLS *struct {
				Mode string `json:"mode,omitempty"` // DISABLE, SIMPLE, MUTUAL, ISTIO_MUTUAL
			} `json:"tls,omitempty"`
		} `json:"trafficPolicy,omitempty"`
		Subsets []struct {
			Name   string            `json:"name"`
			Labels map[string]string `json:"labels,omitempty"`
		} `json:"subsets,omitempty"`
	} `json:"spec"`
}

// A VirtualService says where requests for its hosts go.
// Source: istio.io/api networking/v1 VirtualService.
type VirtualService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Hosts    []string    `json:"hosts"`
		Gateways []string    `json:"gateways,omitempty"`
		HTTP     []MeshRoute `json:"http,omitempty"`
		TCP      []MeshRoute `json:"tcp,omitempty"`
		TLS      []MeshRoute `json:"tls,omitempty"`
	} `json:"spec"`
}

// A MeshRoute is one rule of a VirtualService.
type MeshRoute struct {
	Match []json.RawMessage `json:"match,omitempty"` // empty: all that no earlier rule has
	Fault *struct {
		Abort *struct {
			HTTPStatus int32  `json:"httpStatus,omitempty"`
			GRPCStatus string `json:"grpcStatus,omitempty"`
			Percentage *struct {
				Value float64 `json:"value"`
			} `json:"percentage,omitempty"` // all requests if nil
		} `json:"abort,omitempty"`
	} `json:"fault,omitempty"`
	Route []struct {
		Destination struct {
			Host   string `json:"host"`
			Subset string `json:"subset,omitempty"`
			Port   struct {
				Number int32 `json:"number,omitempty"`
			} `json:"port"`
		} `json:"destination"`
		Weight *int32 `json:"weight,omitempty"`
	} `json:"route,omitempty"`
}

// An IstioGateway says what the proxies of gateway pods serve. Source: istio.io/api networking/v1 Gateway.
type IstioGateway struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector map[string]string `json:"selector,omitempty"` // of pods in any namespace
		Servers  []struct {
			Hosts []string `json:"hosts"`
			TLS   *struct {
				CredentialName string `json:"credentialName,omitempty"` // a Secret in the namespace of the gateway pods
			} `json:"tls,omitempty"`
		} `json:"servers,omitempty"`
	} `json:"spec"`
}

// A Sidecar says what the sidecars of pods let out. Source: istio.io/api networking/v1 Sidecar.
type Sidecar struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		WorkloadSelector *struct {
			Labels map[string]string `json:"labels,omitempty"`
		} `json:"workloadSelector,omitempty"`
		OutboundTrafficPolicy *OutboundTrafficPolicy `json:"outboundTrafficPolicy,omitempty"`
	} `json:"spec"`
}

// An OutboundTrafficPolicy says what becomes of traffic to hosts that the mesh
// does not know: ALLOW_ANY, or REGISTRY_ONLY.
type OutboundTrafficPolicy struct {
	Mode string `json:"mode,omitempty"`
}

// A ServiceEntry adds hosts to the mesh. Source: istio.io/api networking/v1 ServiceEntry.
type ServiceEntry struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Hosts []string `json:"hosts"`
	} `json:"spec"`
}
