package probes

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Definitions are the CustomResourceDefinitions without their schemas, which
// are most of them.
var Definitions = listing[apiextensionsv1.CustomResourceDefinition](crdResource, "which custom kinds are installed, and in which versions", dropSchemas)

func dropSchemas(d *apiextensionsv1.CustomResourceDefinition) {
	for i := range d.Spec.Versions {
		d.Spec.Versions[i].Schema = nil
	}
}

// ResourceOf is the path of the document of a kind: its plural and group, as
// Kubernetes' own naming has them.
func ResourceOf(apiVersion, kind string) string { return resourceOf(apiVersion, kind) }

// What installs and feeds the platform. Each is acted on by one controller
// only: where no pod of it runs and nobody captured them, there are none that
// do anything.
var (
	Applications        = actedOnBy[Application]("argocd", "applications.argoproj.io", "Argo CD's applications with their source and how the last sync went")
	ExternalSecrets     = actedOnBy[ExternalSecret]("external-secrets", "externalsecrets.external-secrets.io", "which Secrets External Secrets makes, and whether it can")
	SecretStores        = actedOnBy[SecretStore]("external-secrets", "secretstores.external-secrets.io", "stores that External Secrets reads, of a namespace")
	ClusterSecretStores = actedOnBy[SecretStore]("external-secrets", "clustersecretstores.external-secrets.io", "stores that External Secrets reads, of the whole cluster")
	TargetGroupBindings = actedOnBy[TargetGroupBinding]("aws-load-balancer-controller", "targetgroupbindings.elbv2.k8s.aws", "which Services fill which target groups")
)

// actedOnBy lists objects of a custom kind that only a controller acts on.
func actedOnBy[T any](controller, resource, about string) *Probe[*List[T]] {
	return actedOnByAny[T]([]string{controller}, resource, about)
}

// actedOnByAny is the same of a kind that several controllers act on.
func actedOnByAny[T any](controllers []string, resource, about string) *Probe[*List[T]] {
	p := listing[T](resource, about)
	read := p.Gather
	p.After = []Any{Pods}
	p.Gather = func(ctx context.Context, src Source, known *Facts) (*List[T], error) {
		list, err := read(ctx, src, known)
		var gap *Gap
		if !errors.As(err, &gap) || gap.Reason != NotCaptured {
			return list, err
		}
		if installed(ctx, src, resource) {
			return nil, err
		}
		pods, podsErr := Pods.Of(known)
		if podsErr != nil || slices.ContainsFunc(pods.All(), func(p *corev1.Pod) bool {
			return slices.ContainsFunc(controllers, func(c string) bool { return IsController(p, c) })
		}) {
			return nil, err
		}
		return NewList[T](nil), nil
	}
	return p
}

// installed reports whether a custom kind is known to be served.
func installed(ctx context.Context, src Source, resource string) bool {
	for d, err := range Items[apiextensionsv1.CustomResourceDefinition](ctx, src, Document{Path: crdResource}) {
		if err == nil && d.Name == resource {
			return true
		}
	}
	return false
}

// An Application is Argo CD's, as far as a diagnosis reads it.
// Source: argo-cd pkg/apis/application/v1alpha1/types.go.
type Application struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Source      *ApplicationSource  `json:"source,omitempty"`
		Sources     []ApplicationSource `json:"sources,omitempty"`
		Project     string              `json:"project,omitempty"`
		Destination struct {
			Namespace string `json:"namespace,omitempty"`
			Server    string `json:"server,omitempty"`
			Name      string `json:"name,omitempty"`
		} `json:"destination"`
		SyncPolicy *struct {
			Automated *struct {
				SelfHeal bool `json:"selfHeal,omitempty"`
			} `json:"automated,omitempty"`
		} `json:"syncPolicy,omitempty"`
		IgnoreDifferences []struct {
			Group        string   `json:"group,omitempty"`
			Kind         string   `json:"kind"`
			Name         string   `json:"name,omitempty"`
			JSONPointers []string `json:"jsonPointers,omitempty"`
		} `json:"ignoreDifferences,omitempty"`
	} `json:"spec"`
	Status struct {
		Sync struct {
			Status     string `json:"status,omitempty"`
			Revision   string `json:"revision,omitempty"`
			ComparedTo struct {
				Source  *ApplicationSource  `json:"source,omitempty"`
				Sources []ApplicationSource `json:"sources,omitempty"`
			} `json:"comparedTo"`
		} `json:"sync"`
		ReconciledAt *metav1.Time `json:"reconciledAt,omitempty"`
		Resources    []struct {
			Group     string `json:"group,omitempty"`
			Kind      string `json:"kind"`
			Namespace string `json:"namespace,omitempty"`
			Name      string `json:"name"`
			Status    string `json:"status,omitempty"` // Synced, OutOfSync
		} `json:"resources,omitempty"`
		Conditions []struct {
			Type               string       `json:"type"`
			Message            string       `json:"message"`
			LastTransitionTime *metav1.Time `json:"lastTransitionTime,omitempty"`
		} `json:"conditions,omitempty"`
		OperationState *struct {
			Phase      string       `json:"phase"` // Running, Succeeded, Failed, Error, Terminating
			Message    string       `json:"message,omitempty"`
			StartedAt  metav1.Time  `json:"startedAt"`
			FinishedAt *metav1.Time `json:"finishedAt,omitempty"`
			SyncResult *struct {
				Resources []struct {
					Group     string `json:"group"`
					Version   string `json:"version"`
					Kind      string `json:"kind"`
					Namespace string `json:"namespace"`
					Name      string `json:"name"`
					Status    string `json:"status"` // Synced, SyncFailed, Pruned …
					Message   string `json:"message"`
				} `json:"resources,omitempty"`
			} `json:"syncResult,omitempty"`
		} `json:"operationState,omitempty"`
	} `json:"status"`
}

// An ApplicationSource is where an Application's manifests come from.
type ApplicationSource struct {
	RepoURL        string `json:"repoURL"`
	Path           string `json:"path,omitempty"`
	Chart          string `json:"chart,omitempty"`
	TargetRevision string `json:"targetRevision,omitempty"` // empty: HEAD
}

// Sources are those of the Application, however many it has.
func (a *Application) Sources() []ApplicationSource {
	if a.Spec.Source != nil && len(a.Spec.Sources) == 0 {
		return []ApplicationSource{*a.Spec.Source}
	}
	return a.Spec.Sources
}

// An ExternalSecret says which Secret is made out of what in a store.
// Source: external-secrets apis/externalsecrets/v1.
type ExternalSecret struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		SecretStoreRef struct {
			Kind string `json:"kind,omitempty"` // SecretStore if empty
			Name string `json:"name"`
		} `json:"secretStoreRef"`
		Target struct {
			Name           string `json:"name,omitempty"` // the ExternalSecret's own if empty
			CreationPolicy string `json:"creationPolicy,omitempty"`
		} `json:"target"`
		Data []struct {
			SecretKey string    `json:"secretKey"`
			RemoteRef RemoteRef `json:"remoteRef"`
		} `json:"data,omitempty"`
		DataFrom []struct {
			Extract *RemoteRef      `json:"extract,omitempty"`
			Find    json.RawMessage `json:"find,omitempty"`
		} `json:"dataFrom,omitempty"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions,omitempty"`
	} `json:"status"`
}

// A RemoteRef is an entry of a store.
type RemoteRef struct {
	Key      string `json:"key"`
	Property string `json:"property,omitempty"`
}

// Makes is the name of the Secret that it makes.
func (e *ExternalSecret) Makes() string {
	if e.Spec.Target.Name != "" {
		return e.Spec.Target.Name
	}
	return e.Name
}

// Store is the store that it reads from.
func (e *ExternalSecret) Store() Ref {
	if e.Spec.SecretStoreRef.Kind == "ClusterSecretStore" {
		return Ref{Kind: "ClusterSecretStore", Name: e.Spec.SecretStoreRef.Name}
	}
	return Ref{Kind: "SecretStore", Namespace: e.Namespace, Name: e.Spec.SecretStoreRef.Name}
}

// A SecretStore says where secrets are read and as whom. ClusterSecretStore is
// the same without a namespace.
type SecretStore struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Provider struct {
			AWS *struct {
				Service string `json:"service"`
				Region  string `json:"region"`
				Role    string `json:"role,omitempty"`
				Auth    struct {
					JWT *struct {
						ServiceAccountRef struct {
							Name      string `json:"name"`
							Namespace string `json:"namespace,omitempty"`
						} `json:"serviceAccountRef"`
					} `json:"jwt,omitempty"`
				} `json:"auth"`
			} `json:"aws,omitempty"`
		} `json:"provider"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions,omitempty"`
	} `json:"status"`
}

// A TargetGroupBinding is the AWS Load Balancer Controller's.
type TargetGroupBinding struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		TargetGroupARN string `json:"targetGroupARN"`
		TargetType     string `json:"targetType,omitempty"` // instance, ip
		ServiceRef     struct {
			Name string             `json:"name"`
			Port intstr.IntOrString `json:"port"`
		} `json:"serviceRef"`
		Networking *TargetNetworking `json:"networking,omitempty"`
	} `json:"spec"`
}

// TargetNetworking is from where targets are to be opened; nil leaves that to
// whoever made the target group.
type TargetNetworking struct {
	Ingress []struct {
		From []struct {
			SecurityGroup *struct {
				GroupID string `json:"groupID"`
			} `json:"securityGroup,omitempty"`
		} `json:"from,omitempty"`
		Ports []struct {
			Port *intstr.IntOrString `json:"port,omitempty"`
		} `json:"ports,omitempty"`
	} `json:"ingress,omitempty"`
}
