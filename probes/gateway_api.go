package probes

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

const gatewayGroup = ".gateway.networking.k8s.io"

// gatewayControllers are those that serve Gateways, as far as they are recognised.
var gatewayControllers = []string{"istiod", "envoy-gateway"}

// The kinds of the Gateway API.
var (
	Gateways        = actedOnByAny[Gateway](gatewayControllers, "gateways"+gatewayGroup, "gateways of the Gateway API and whether anything serves them")
	GatewayClasses  = actedOnByAny[GatewayClass](gatewayControllers, "gatewayclasses"+gatewayGroup, "classes of gateways and the controllers that serve them")
	HTTPRoutes      = actedOnByAny[Route](gatewayControllers, "httproutes"+gatewayGroup, "HTTP routes and whether their gateways take them")
	GRPCRoutes      = actedOnByAny[Route](gatewayControllers, "grpcroutes"+gatewayGroup, "gRPC routes and whether their gateways take them")
	ReferenceGrants = actedOnByAny[ReferenceGrant](gatewayControllers, "referencegrants"+gatewayGroup, "which namespaces may refer to objects of another")
)

// A Gateway is the Gateway API's. Source: sigs.k8s.io/gateway-api apis/v1.
type Gateway struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		GatewayClassName string     `json:"gatewayClassName"`
		Listeners        []Listener `json:"listeners,omitempty"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions,omitempty"`
		Listeners  []struct {
			Name       string             `json:"name"`
			Conditions []metav1.Condition `json:"conditions,omitempty"`
		} `json:"listeners,omitempty"`
	} `json:"status"`
}

// A Listener is one port of a Gateway.
type Listener struct {
	Name     string `json:"name"`
	Hostname string `json:"hostname,omitempty"` // empty: any
	Port     int32  `json:"port"`
	Protocol string `json:"protocol"`
	TLS      *struct {
		CertificateRefs []ObjectReference `json:"certificateRefs,omitempty"`
	} `json:"tls,omitempty"`
	AllowedRoutes *struct {
		Namespaces *struct {
			From     string                `json:"from,omitempty"` // Same if empty
			Selector *metav1.LabelSelector `json:"selector,omitempty"`
		} `json:"namespaces,omitempty"`
		Kinds []struct {
			Kind string `json:"kind"`
		} `json:"kinds,omitempty"`
	} `json:"allowedRoutes,omitempty"`
}

// An ObjectReference names an object, by default in the namespace of what holds it.
type ObjectReference struct {
	Group     string `json:"group,omitempty"`
	Kind      string `json:"kind,omitempty"`
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
	Port      int32  `json:"port,omitempty"`
}

// A GatewayClass says which controller serves the Gateways of it.
type GatewayClass struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		ControllerName string           `json:"controllerName"`
		ParametersRef  *ObjectReference `json:"parametersRef,omitempty"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions,omitempty"`
	} `json:"status"`
}

// A Route is an HTTPRoute or a GRPCRoute.
type Route struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Hostnames  []string    `json:"hostnames,omitempty"`
		ParentRefs []ParentRef `json:"parentRefs,omitempty"`
		Rules      []struct {
			BackendRefs []ObjectReference `json:"backendRefs,omitempty"`
		} `json:"rules,omitempty"`
	} `json:"spec"`
	Status struct {
		Parents []struct {
			ControllerName string             `json:"controllerName"`
			ParentRef      ParentRef          `json:"parentRef"`
			Conditions     []metav1.Condition `json:"conditions,omitempty"`
		} `json:"parents,omitempty"`
	} `json:"status"`
}

// A ParentRef is the Gateway, or the Service of a mesh, that a route is for.
type ParentRef struct {
	Group       string `json:"group,omitempty"`
	Kind        string `json:"kind,omitempty"` // Gateway if empty
	Name        string `json:"name"`
	Namespace   string `json:"namespace,omitempty"`
	SectionName string `json:"sectionName,omitempty"`
	Port        int32  `json:"port,omitempty"`
}

// A ReferenceGrant lets objects of other namespaces refer to some of its own.
type ReferenceGrant struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		From []struct {
			Kind      string `json:"kind"`
			Namespace string `json:"namespace"`
		} `json:"from"`
		To []struct {
			Kind string `json:"kind"`
			Name string `json:"name,omitempty"` // empty: all
		} `json:"to"`
	} `json:"spec"`
}
