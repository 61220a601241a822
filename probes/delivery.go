package probes

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// The kinds of Flux and KEDA, and Argo CD's projects.
var (
	FluxReleases       = actedOnBy[FluxRelease]("flux", "helmreleases.helm.toolkit.fluxcd.io", "Flux's Helm releases and what their controller says of them")
	Kustomizations     = actedOnBy[Kustomization]("flux", "kustomizations.kustomize.toolkit.fluxcd.io", "what Flux applies, from where and after what")
	GitRepositories    = actedOnBy[FluxSource]("flux", "gitrepositories.source.toolkit.fluxcd.io", "Git repositories that Flux reads, and whether it can")
	HelmRepositories   = actedOnBy[FluxSource]("flux", "helmrepositories.source.toolkit.fluxcd.io", "chart repositories that Flux reads, and whether it can")
	OCIRepositories    = actedOnBy[FluxSource]("flux", "ocirepositories.source.toolkit.fluxcd.io", "OCI artifacts that Flux reads, and whether it can")
	HelmCharts         = actedOnBy[FluxSource]("flux", "helmcharts.source.toolkit.fluxcd.io", "charts that Flux fetches, and whether it can")
	Buckets            = actedOnBy[FluxSource]("flux", "buckets.source.toolkit.fluxcd.io", "buckets that Flux reads, and whether it can")
	AppProjects        = actedOnBy[AppProject]("argocd", "appprojects.argoproj.io", "which sources and destinations Argo CD's applications may use")
	ScaledObjects      = actedOnBy[ScaledObject]("keda", "scaledobjects.keda.sh", "what KEDA scales by which trigger, and whether it can")
	TriggerAuths       = actedOnBy[TriggerAuthentication]("keda", "triggerauthentications.keda.sh", "how KEDA's triggers sign in")
	ClusterTriggerAuth = actedOnBy[TriggerAuthentication]("keda", "clustertriggerauthentications.keda.sh", "how KEDA's triggers sign in, for the whole cluster")
)

// A FluxRelease is Flux's HelmRelease. Source: fluxcd/helm-controller api/v2.
type FluxRelease struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Suspend   bool            `json:"suspend,omitempty"`
		DependsOn []FluxReference `json:"dependsOn,omitempty"`
		Chart     *struct {
			Spec struct {
				Chart     string        `json:"chart"`
				Version   string        `json:"version,omitempty"`
				SourceRef FluxReference `json:"sourceRef"`
			} `json:"spec"`
		} `json:"chart,omitempty"`
		ChartRef *FluxReference `json:"chartRef,omitempty"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions,omitempty"`
	} `json:"status"`
}

// A FluxReference names an object, by default in the namespace of what holds it.
type FluxReference struct {
	Kind      string `json:"kind,omitempty"`
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
}

// A Kustomization is Flux's. Source: fluxcd/kustomize-controller api/v1.
type Kustomization struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Suspend   bool            `json:"suspend,omitempty"`
		Path      string          `json:"path,omitempty"`
		DependsOn []FluxReference `json:"dependsOn,omitempty"`
		SourceRef FluxReference   `json:"sourceRef"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions,omitempty"`
	} `json:"status"`
}

// A FluxSource is one of Flux's sources. Source: fluxcd/source-controller api/v1.
type FluxSource struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Suspend bool   `json:"suspend,omitempty"`
		URL     string `json:"url,omitempty"`
		Chart   string `json:"chart,omitempty"`
		Version string `json:"version,omitempty"`
		Ref     *struct {
			Branch string `json:"branch,omitempty"`
			Tag    string `json:"tag,omitempty"`
			SemVer string `json:"semver,omitempty"`
			Commit string `json:"commit,omitempty"`
		} `json:"ref,omitempty"`
		SecretRef *FluxReference `json:"secretRef,omitempty"`
		SourceRef FluxReference  `json:"sourceRef"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions,omitempty"`
	} `json:"status"`
}

// An AppProject bounds Argo CD's applications. Source: argo-cd pkg/apis/application/v1alpha1.
type AppProject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		SourceRepos  []string `json:"sourceRepos,omitempty"`
		Destinations []struct {
			Namespace string `json:"namespace,omitempty"`
			Server    string `json:"server,omitempty"`
			Name      string `json:"name,omitempty"`
		} `json:"destinations,omitempty"`
	} `json:"spec"`
}

// A ScaledObject is KEDA's. Source: kedacore/keda apis/keda/v1alpha1.
type ScaledObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		ScaleTargetRef struct {
			Kind string `json:"kind,omitempty"` // Deployment if empty
			Name string `json:"name"`
		} `json:"scaleTargetRef"`
		Triggers []struct {
			Type              string `json:"type"`
			AuthenticationRef *struct {
				Kind string `json:"kind,omitempty"` // TriggerAuthentication if empty
				Name string `json:"name"`
			} `json:"authenticationRef,omitempty"`
		} `json:"triggers,omitempty"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions,omitempty"`
	} `json:"status"`
}

// A TriggerAuthentication says how a trigger of KEDA's signs in.
type TriggerAuthentication struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		SecretTargetRef []struct {
			Parameter string `json:"parameter"`
			Name      string `json:"name"`
			Key       string `json:"key"`
		} `json:"secretTargetRef,omitempty"`
	} `json:"spec"`
}
