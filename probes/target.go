package probes

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// A TargetKind is what a host that a client names turns out to be.
type TargetKind string

// The kinds of a [Target].
const (
	TargetService  TargetKind = "service"
	TargetPod      TargetKind = "pod"
	TargetNode     TargetKind = "node"
	TargetAWS      TargetKind = "aws"      // an endpoint of an AWS service
	TargetExternal TargetKind = "external" // a name or address outside the cluster
	TargetMetadata TargetKind = "metadata" // the instance metadata service
	TargetIdentity TargetKind = "identity" // the EKS Pod Identity agent
	TargetSelf     TargetKind = "self"     // the pod itself: localhost
	TargetUnknown  TargetKind = "unknown"  // it can't be told
)

// A Target is what a host and port in a log line, an environment variable or
// an argument stand for.
type Target struct {
	Host, Port string
	Kind       TargetKind
	Ref        Ref           // the Service, Pod or Node; the Service that a missing one would be
	Missing    bool          // the cluster has no such object
	Backend    bool          // the address is that of an endpoint, not the Service's own
	Pods       []*corev1.Pod // behind the Service, ready or not; or the pod
	External   string        // the name that an ExternalName Service stands for
	AWSService string        // "sts", "s3", "rds": see TargetAWS
	Region     string
}

// A Directory is what names and addresses are looked up in. All lists must be
// complete: what they don't hold is taken not to exist. Nodes may be nil.
type Directory struct {
	Services   *List[corev1.Service]
	Slices     *List[discoveryv1.EndpointSlice]
	Pods       *PodList
	Nodes      *List[corev1.Node]
	Namespaces *List[corev1.Namespace] // may be nil: then those that hold something
}

// Lookup is what host and port stand for in a pod of a namespace.
func (d *Directory) Lookup(namespace, host, port string) Target {
	t := Target{Host: strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), ".")), Port: port, Kind: TargetUnknown}
	switch {
	case t.Host == "":
	case t.Host == "localhost":
		t.Kind = TargetSelf
	default:
		if ip, err := netip.ParseAddr(t.Host); err == nil {
			d.byAddress(&t, ip)
		} else {
			d.byName(&t, namespace)
		}
	}
	return t
}

func (d *Directory) byAddress(t *Target, ip netip.Addr) {
	switch {
	case ip.IsLoopback() || ip.IsUnspecified():
		t.Kind = TargetSelf
		return
	case t.Host == "169.254.169.254" || t.Host == "fd00:ec2::254":
		t.Kind = TargetMetadata
		return
	case t.Host == "169.254.170.23" || t.Host == "fd00:ec2::23":
		t.Kind = TargetIdentity
		return
	}
	for _, s := range d.Services.All() {
		own := slices.Concat([]string{s.Spec.ClusterIP}, s.Spec.ClusterIPs, s.Spec.ExternalIPs)
		for _, in := range s.Status.LoadBalancer.Ingress {
			own = append(own, in.IP)
		}
		if slices.Contains(own, t.Host) {
			d.service(t, s)
			return
		}
	}
	if p := d.Pods.At(t.Host); p != nil {
		t.pod(p)
		return
	}
	if d.Nodes != nil {
		for _, n := range d.Nodes.All() {
			if hasAddress(n, t.Host) {
				t.Kind, t.Ref = TargetNode, Ref{Kind: "Node", Name: n.Name}
				return
			}
		}
	}
	for _, s := range d.Slices.All() {
		for _, e := range s.Endpoints {
			if slices.Contains(e.Addresses, t.Host) {
				if svc := d.Services.Get(s.Namespace, s.Labels[discoveryv1.LabelServiceName]); svc != nil {
					d.service(t, svc)
					t.Backend = true
					return
				}
			}
		}
	}
	if !ip.IsPrivate() {
		t.Kind = TargetExternal
	}
}

func hasAddress(n *corev1.Node, address string) bool {
	return strings.EqualFold(n.Name, address) || slices.ContainsFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool { return strings.EqualFold(a.Address, address) })
}

func (d *Directory) byName(t *Target, namespace string) {
	if d.awsName(t) {
		return
	}
	if d.Nodes != nil {
		for _, n := range d.Nodes.All() {
			if hasAddress(n, t.Host) {
				t.Kind, t.Ref = TargetNode, Ref{Kind: "Node", Name: n.Name}
				return
			}
		}
	}
	labels := strings.Split(t.Host, ".")
	if i := slices.Index(labels, "svc"); i >= 2 {
		d.inCluster(t, labels[:i-1], labels[i-1])
		return
	}
	switch n := len(labels); {
	case n == 1:
		d.inCluster(t, labels, namespace)
	case d.has(labels[n-1]) && n <= 3:
		d.inCluster(t, labels[:n-1], labels[n-1])
	case n == 2 && d.Services.Get(namespace, labels[1]) != nil:
		d.inCluster(t, labels, namespace) // POD.HEADLESS, completed by the search list
	case n == 3 && d.Services.Get(labels[2], labels[1]) != nil:
		d.inCluster(t, labels[:2], labels[2])
	default:
		t.Kind = TargetExternal
	}
}

// has reports whether a namespace exists.
func (d *Directory) has(namespace string) bool {
	if d.Namespaces != nil {
		return d.Namespaces.Get("", namespace) != nil
	}
	for range d.Services.In(namespace) {
		return true
	}
	for range d.Pods.In(namespace) {
		return true
	}
	return false
}

// inCluster looks up SERVICE, or POD.SERVICE of a headless Service.
func (d *Directory) inCluster(t *Target, labels []string, namespace string) {
	name := labels[len(labels)-1]
	s := d.Services.Get(namespace, name)
	t.Kind, t.Ref = TargetService, Ref{Kind: "Service", Namespace: namespace, Name: name}
	if s == nil {
		t.Missing = true
		return
	}
	if len(labels) == 1 {
		d.service(t, s)
		return
	}
	pod := labels[len(labels)-2]
	if p := d.Pods.Get(namespace, pod); p != nil {
		t.pod(p)
		return
	}
	for p := range d.Pods.In(namespace) {
		if p.Spec.Hostname == pod && p.Spec.Subdomain == name {
			t.pod(p)
			return
		}
	}
	t.Kind, t.Ref, t.Missing = TargetPod, Ref{Kind: "Pod", Namespace: namespace, Name: pod}, true
}

func (t *Target) pod(p *corev1.Pod) {
	t.Kind, t.Ref, t.Pods = TargetPod, Ref{Kind: "Pod", Namespace: p.Namespace, Name: p.Name}, []*corev1.Pod{p}
}

func (d *Directory) service(t *Target, s *corev1.Service) {
	t.Kind, t.Ref, t.External = TargetService, Ref{Kind: "Service", Namespace: s.Namespace, Name: s.Name}, s.Spec.ExternalName
	t.Pods = d.Behind(s)
}

// Behind are the pods behind a Service, ready or not: those that its
// EndpointSlices name and those that its selector matches, by name.
func (d *Directory) Behind(s *corev1.Service) []*corev1.Pod {
	pods := slices.Collect(d.Pods.Selected(s.Namespace, s.Spec.Selector))
	for slice := range d.Slices.In(s.Namespace) {
		if slice.Labels[discoveryv1.LabelServiceName] != s.Name {
			continue
		}
		for _, e := range slice.Endpoints {
			if e.TargetRef == nil || e.TargetRef.Kind != "Pod" {
				continue
			}
			if p := d.Pods.Get(s.Namespace, e.TargetRef.Name); p != nil && !slices.Contains(pods, p) {
				pods = append(pods, p)
			}
		}
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return pods
}

var (
	awsSuffix = regexp.MustCompile(`^(.+)\.(?:amazonaws\.com(?:\.cn)?|api\.aws|on\.aws)$`)
	awsRegion = regexp.MustCompile(`^(?:af|ap|ca|cn|eu|il|me|mx|sa|us)(?:-gov|-iso\w?)?-(?:north|south|east|west|central)(?:east|west)?-\d$`)
)

// awsName takes an AWS endpoint's name apart: SERVICE.REGION.amazonaws.com, or
// NAME.REGION.SERVICE.amazonaws.com of resources that have names of their own.
func (d *Directory) awsName(t *Target) bool {
	m := awsSuffix.FindStringSubmatch(t.Host)
	if m == nil {
		return false
	}
	t.Kind = TargetAWS
	labels := strings.Split(m[1], ".")
	at := slices.IndexFunc(labels, awsRegion.MatchString)
	switch {
	case at < 0 && slices.Contains(labels, "s3"):
		t.AWSService = "s3"
	case at < 0:
		t.AWSService = labels[len(labels)-1]
	default:
		t.Region = labels[at]
		if at+1 < len(labels) {
			t.AWSService = labels[at+1] // DB.ID.eu-west-1.rds
		} else if at > 0 {
			t.AWSService = labels[at-1]
		}
	}
	return true
}
