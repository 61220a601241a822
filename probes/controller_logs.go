package probes

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// The logs of controllers, in whatever namespace they run: the present log and,
// where a container has died, the one before. Each is empty where the
// controller isn't installed.
var (
	KarpenterLogs              = controllerLogs("karpenter", "Karpenter")
	LoadBalancerControllerLogs = controllerLogs("aws-load-balancer-controller", "the AWS Load Balancer Controller")
	ExternalSecretsLogs        = controllerLogs("external-secrets", "External Secrets")
	EBSControllerLogs          = controllerLogs("ebs-csi-controller", "the EBS CSI controller")
	VPCCNILogs                 = controllerLogs("aws-node", "the VPC CNI")
	CoreDNSLogs                = controllerLogs("coredns", "CoreDNS")
	IstiodLogs                 = controllerLogs("istiod", "istiod")
	MetricsServerLogs          = controllerLogs("metrics-server", "metrics-server")
	CertManagerLogs            = controllerLogs("cert-manager", "cert-manager")
	ArgoCDLogs                 = controllerLogs("argocd", "Argo CD")
	ClusterAutoscalerLogs      = controllerLogs("cluster-autoscaler", "the Cluster Autoscaler")
	ExternalDNSLogs            = controllerLogs("external-dns", "external-dns")
	KubeProxyLogs              = controllerLogs("kube-proxy", "kube-proxy")
	SchedulerLogs              = controllerLogs("kube-scheduler", "the scheduler")
	ControllerManagerLogs      = controllerLogs("kube-controller-manager", "the controller manager")
)

// controllers is how each is recognised: by a label that its charts and add-ons
// give its pods, or by the last part of its image's name.
// Sources: the charts and manifests of each project; EKS add-on manifests.
var controllers = map[string]struct{ labels, images []string }{
	"karpenter":                    {[]string{"karpenter"}, []string{"karpenter", "karpenter/controller"}},
	"aws-load-balancer-controller": {[]string{"aws-load-balancer-controller"}, []string{"aws-load-balancer-controller"}},
	"external-secrets":             {[]string{"external-secrets"}, []string{"external-secrets"}},
	"ebs-csi-controller":           {[]string{"ebs-csi-controller"}, nil},
	"aws-node":                     {[]string{"aws-node"}, []string{"amazon-k8s-cni"}},
	"coredns":                      {[]string{"kube-dns", "coredns"}, []string{"coredns"}},
	"istiod":                       {[]string{"istiod"}, []string{"pilot"}},
	"metrics-server":               {[]string{"metrics-server"}, []string{"metrics-server"}},
	"cert-manager":                 {[]string{"cert-manager"}, []string{"cert-manager-controller"}},
	"argocd":                       {[]string{"argocd-application-controller", "argocd-repo-server", "argocd-server"}, []string{"argocd"}},
	"helm-controller":              {[]string{"helm-controller"}, []string{"helm-controller"}},
	"flux":                         {[]string{"source-controller", "kustomize-controller", "helm-controller"}, []string{"fluxcd/source-controller", "fluxcd/kustomize-controller", "fluxcd/helm-controller"}},
	"envoy-gateway":                {[]string{"envoy-gateway", "gateway-helm"}, []string{"envoyproxy/gateway"}},
	"keda":                         {[]string{"keda-operator"}, []string{"kedacore/keda"}},
	"cluster-autoscaler":           {[]string{"cluster-autoscaler", "aws-cluster-autoscaler"}, []string{"cluster-autoscaler"}},
	"external-dns":                 {[]string{"external-dns"}, []string{"external-dns"}},
	"kube-proxy":                   {[]string{"kube-proxy"}, []string{"kube-proxy", "kube-proxy-minimal"}},
	"kube-scheduler":               {[]string{"kube-scheduler"}, []string{"kube-scheduler"}},
	"kube-controller-manager":      {[]string{"kube-controller-manager"}, []string{"kube-controller-manager"}},
	"chaos-mesh":                   {[]string{"chaos-mesh"}, []string{"chaos-mesh/chaos-mesh"}},
	"chaos-operator":               {[]string{"chaos-operator"}, []string{"litmuschaos/chaos-operator"}},
	"loki":                         {[]string{"loki"}, []string{"grafana/loki"}},
	"strimzi":                      {[]string{"strimzi-cluster-operator"}, []string{"strimzi/operator"}},
	"cloudnative-pg":               {[]string{"cloudnative-pg"}, []string{"cloudnative-pg/cloudnative-pg"}},
	"rabbitmq-cluster-operator":    {[]string{"rabbitmq-cluster-operator"}, []string{"rabbitmqoperator/cluster-operator"}},
	"prometheus-operator":          {nil, []string{"prometheus-operator/prometheus-operator"}},
	"mongodb-kubernetes-operator":  {[]string{"mongodb-kubernetes-operator"}, []string{"mongodb-kubernetes-operator"}},
	"elastic-operator":             {[]string{"elastic-operator"}, []string{"eck/eck-operator"}},
	"knative":                      {nil, []string{"knative.dev/serving/cmd/controller"}},
}

// maxControllerPods bounds what is read of a DaemonSet; pods in trouble come first.
const maxControllerPods = 30

func controllerLogs(name, title string) *Probe[*LogSet] {
	return &Probe[*LogSet]{
		Name:  name + "-logs",
		About: "what failed in the logs of " + title,
		Reads: []Permission{{Verb: "get", Resource: "pods/log"}},
		After: []Any{Pods},
		Gather: func(ctx context.Context, src Source, known *Facts) (*LogSet, error) {
			pods, err := Pods.Of(known)
			if err != nil {
				return nil, err
			}
			signatures, err := known.signatures()
			if err != nil {
				return nil, err
			}
			mine := pods.Where(func(p *corev1.Pod) bool { return !Finished(p) && IsController(p, name) })
			troubled := func(p *corev1.Pod) int {
				if len(troubledLogs(p, src.Now())) > 0 {
					return 0
				}
				return 1
			}
			slices.SortStableFunc(mine, func(a, b *corev1.Pod) int { return troubled(a) - troubled(b) })
			set := &LogSet{byPod: map[string][]*ContainerLog{}}
			var wanted []*ContainerLog
			for i, p := range mine {
				logs := troubledLogs(p, src.Now())
				for _, l := range presentLogs(p) {
					if !slices.ContainsFunc(logs, func(o *ContainerLog) bool { return o.Container == l.Container && !o.Previous }) {
						logs = append(logs, l)
					}
				}
				if i >= maxControllerPods {
					set.Unread += len(logs)
					continue
				}
				wanted = append(wanted, logs...)
			}
			readLogs(ctx, src, known, signatures, wanted)
			set.keep(wanted, false)
			return set, nil
		},
	}
}

// Repository is an image without its tag and digest.
func Repository(image string) string {
	image, _, _ = strings.Cut(image, "@")
	if i := strings.LastIndexByte(image, ':'); i > strings.LastIndexByte(image, '/') {
		return image[:i]
	}
	return image
}

// IsController reports whether a pod is one of a controller, under the name
// that [KarpenterLogs] and its siblings have for it.
func IsController(p *corev1.Pod, name string) bool {
	c := controllers[name]
	for _, key := range []string{"app.kubernetes.io/name", "k8s-app", "app", "component", "app.kubernetes.io/component"} {
		if v := p.Labels[key]; v != "" && slices.Contains(c.labels, v) {
			// A chart labels all its parts alike; the agents on nodes are not it.
			return name != "external-secrets" || p.Labels["app.kubernetes.io/name"] == "external-secrets"
		}
	}
	if v := p.Labels["app.kubernetes.io/name"]; v != "" && name == "external-secrets" {
		return false // its webhook and certificate controller share the image
	}
	for _, container := range p.Spec.Containers {
		image := Repository(container.Image)
		for _, known := range c.images {
			if image == known || strings.HasSuffix(image, "/"+known) {
				return true
			}
		}
	}
	return false
}
