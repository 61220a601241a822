package probes

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/knowledge"
)

// A Denial is AWS refusing a call, as the caller's log, an event or a status
// tells it.
type Denial struct {
	Kind           DenialKind
	Component      *knowledge.Component // nil: not one of permissions.yaml
	Version        string               // of the component's image; empty: not known
	Workload       Ref
	Namespace, Pod string // whose call it was; Pod is empty where only the workload is known
	ServiceAccount string
	Principal      string // the caller as AWS names it; empty: not told
	Action         string // "ec2:CreateFleet"; empty for anything but Denied
	Resource       string // an ARN; empty: not told
	By             string // "identity-based policy", "permissions boundary", "service control policy" …; empty: not told
	Explicit       bool   // a statement denies it
	Text           string // the line
	At             time.Time
	Document       Document
}

// A DenialKind is what was refused.
type DenialKind string

// The kinds.
const (
	Denied        DenialKind = "denied"          // IAM refuses an action
	NoWebIdentity DenialKind = "no-web-identity" // the role doesn't take the service account's token, or doesn't exist
	TokenInvalid  DenialKind = "token-invalid"   // the account doesn't know the token's issuer, or its audience is wrong
	NoCredentials DenialKind = "no-credentials"  // the SDK found none
	NoAgent       DenialKind = "no-agent"        // the Pod Identity agent doesn't answer
	BadRoleARN    DenialKind = "bad-role-arn"    // what the pod names as its role is no ARN
	NoPodIdentity DenialKind = "no-pod-identity" // EKS may not assume the associated role
)

// Session is the name of the session in the principal's ARN: an instance id
// where the call used the node's role.
func (d *Denial) Session() string {
	if i := strings.LastIndex(d.Principal, "/"); strings.Contains(d.Principal, ":assumed-role/") && i > 0 {
		return d.Principal[i+1:]
	}
	return ""
}

var instanceID = regexp.MustCompile(`^i-[0-9a-f]{8,17}$`)

// AsNode reports whether the call was made with the node's role.
func (d *Denial) AsNode() bool { return instanceID.MatchString(d.Session()) }

// Blocks reports whether the component's main work fails by it.
func (d *Denial) Blocks() bool {
	if d.Kind != Denied || d.Component == nil {
		return true
	}
	calls := d.Calls()
	return len(calls) == 0 || slices.ContainsFunc(calls, func(c *knowledge.Call) bool { return c.Blocks })
}

// Calls are the component's calls that it can be: of that action, on that kind
// of resource.
func (d *Denial) Calls() []*knowledge.Call {
	if d.Component == nil {
		return nil
	}
	all := d.Component.CallsOf(d.Action, d.Version)
	var fit []*knowledge.Call
	for _, c := range all {
		if d.Resource == "" || slices.ContainsFunc(c.Resources, func(r string) bool { return r == "*" || resourceKind(r) == resourceKind(d.Resource) || r[0] == '{' }) {
			fit = append(fit, c)
		}
	}
	if len(fit) == 0 {
		return all
	}
	return fit
}

// resourceKind is service and type of an ARN: "ec2 instance".
func resourceKind(arn string) string {
	parts := strings.SplitN(arn, ":", 6)
	if len(parts) != 6 {
		return arn
	}
	kind, _, _ := strings.Cut(parts[5], "/")
	return parts[2] + " " + kind
}

// Denials are the calls to AWS that were refused, by the logs of controllers
// and of containers in trouble, by events and by what containers wait for.
var Denials = &Probe[[]*Denial]{
	Name:  "denials",
	About: "calls to AWS that were refused",
	After: []Any{
		Pods, Workloads, Events, Logs, AppLogs, KarpenterLogs, LoadBalancerControllerLogs, ExternalSecretsLogs,
		EBSControllerLogs, CertManagerLogs, ClusterAutoscalerLogs, ExternalDNSLogs,
	},
	Gather: func(_ context.Context, _ Source, known *Facts) ([]*Denial, error) {
		pods, err := Pods.Of(known)
		if err != nil {
			return nil, err
		}
		workloads, err := Workloads.Of(known)
		if err != nil {
			return nil, err
		}
		k, err := known.knowledge()
		if err != nil {
			return nil, err
		}
		g := &denialReader{pods: pods, workloads: workloads, knowledge: k, seen: map[string]int{}}
		for _, p := range []*Probe[*LogSet]{KarpenterLogs, LoadBalancerControllerLogs, ExternalSecretsLogs, EBSControllerLogs, CertManagerLogs, ClusterAutoscalerLogs, ExternalDNSLogs, Logs, AppLogs} {
			set, err := p.Of(known)
			if err != nil {
				continue // the others still tell theirs
			}
			for _, l := range set.All() {
				g.log(l)
			}
		}
		g.statuses()
		if events, err := Events.Of(known); err == nil {
			g.events(events)
		}
		return g.all, nil
	},
}

type denialReader struct {
	pods      *PodList
	workloads *WorkloadIndex
	knowledge *knowledge.Knowledge
	all       []*Denial
	seen      map[string]int // of all, by what was refused
}

func (g *denialReader) add(d *Denial) {
	key := strings.Join([]string{string(d.Kind), d.Workload.String(), RoleName(d.Principal), d.Action, resourceKind(d.Resource)}, "|")
	if i, ok := g.seen[key]; ok {
		if g.all[i].At.Before(d.At) && !g.all[i].At.IsZero() {
			g.all[i].At = d.At // it is refused still
		}
		return
	}
	g.seen[key] = len(g.all)
	g.all = append(g.all, d)
}

var denialKinds = map[string]DenialKind{
	"aws-denied": Denied, "aws-web-identity-denied": NoWebIdentity, "aws-identity-token-invalid": TokenInvalid,
	"aws-no-credentials": NoCredentials, "pod-identity-unreachable": NoAgent,
}

func (g *denialReader) log(l *ContainerLog) {
	if l.Excerpt == nil {
		return
	}
	p := g.pods.Get(l.Namespace, l.Pod)
	if p == nil {
		return
	}
	for _, f := range l.Excerpt.Failures {
		kind, ok := denialKinds[f.Meaning]
		if badRoleARN.MatchString(f.Text) {
			kind, ok = BadRoleARN, true
		}
		if !ok {
			for _, also := range f.Also {
				if kind, ok = denialKinds[also]; ok {
					break
				}
			}
		}
		if !ok {
			continue
		}
		if kind == NoWebIdentity && f.Signature != nil && f.Signature.Runtime == "pod-identity" {
			kind = NoPodIdentity
		}
		d := &Denial{Kind: kind, Text: f.Text, At: f.LastAt, Document: l.Document()}
		g.of(d, p, l.Container)
		if kind == Denied && !d.parse(f.Text) && !d.infer(f.Text) {
			continue // it doesn't say what was refused
		}
		g.add(d)
	}
}

// of fills in whose call it was.
func (g *denialReader) of(d *Denial, p *corev1.Pod, container string) {
	d.Workload, d.Namespace, d.Pod, d.ServiceAccount = g.workloads.Of(p), p.Namespace, p.Name, p.Spec.ServiceAccountName
	if d.ServiceAccount == "" {
		d.ServiceAccount = "default"
	}
	c := ContainerOf(p, container)
	if c == nil && len(p.Spec.Containers) > 0 {
		c = &p.Spec.Containers[0]
	}
	if c == nil {
		return
	}
	for _, each := range append([]corev1.Container{*c}, p.Spec.Containers...) {
		if d.Component = g.knowledge.ComponentOf(each.Image); d.Component != nil {
			d.Version = imageVersion(each.Image)
			return
		}
	}
}

// imageVersion is the tag of an image, if it is a release's.
func imageVersion(image string) string {
	image, _, _ = strings.Cut(image, "@")
	tag := image[strings.LastIndexByte(image, ':')+1:]
	if !versionTag.MatchString(tag) {
		return ""
	}
	return tag
}

var versionTag = regexp.MustCompile(`^v?\d+\.\d+`)

// What AWS says of a denial. A resource may have spaces ("instance profile x").
// Source: IAM User Guide, "Troubleshoot access denied error messages".
var (
	deniedText = regexp.MustCompile(`(?:User: (arn:aws[\w-]*:\S+) )?is not authorized to perform: ([a-z0-9-]+:[A-Za-z0-9]+)(?: on resource: (?:\\*"([^"\\\n]+)\\*"|((?:(?:instance profile|role|user|group|policy|policy path|key) )?[^\s"\\]+)))?[.,;]?(?: because no ([a-z -]+?) allows| with an explicit deny in an? ([a-z -]+?)(?:[:.,"\\\n]|$))?`)
	// Secrets Manager and SSM say no more than this of a key that they may not use.
	keyRefused   = regexp.MustCompile(`Access to KMS is not allowed|ciphertext refers to a customer master key that does not exist`)
	noController = regexp.MustCompile(`Controller isn't authorized to call ([a-z0-9-]+:[A-Za-z]+)`)
)

// What STS says of a RoleArn parameter that is no ARN.
// Source: AWS STS API Reference, AssumeRoleWithWebIdentity: parameter validation.
var badRoleARN = regexp.MustCompile(`Request ARN is invalid|is invalid: (?:arn|ARN)|[Vv]alue .{0,200} at 'roleArn' failed to satisfy constraint|is not a valid ARN`)

func (d *Denial) parse(text string) bool {
	if m := deniedText.FindStringSubmatch(text); m != nil {
		d.Principal, d.Action, d.Resource = m[1], m[2], m[3]+strings.TrimRight(m[4], ".,;:)")
		d.By, d.Explicit = m[5], m[6] != ""
		if d.Explicit {
			d.By = strings.TrimSpace(m[6])
		}
		if name, ok := strings.CutPrefix(d.Resource, "instance profile "); ok && account(d.Principal) != "" {
			partition := strings.SplitN(d.Principal, ":", 3)[1]
			d.Resource = "arn:" + partition + ":iam::" + account(d.Principal) + ":instance-profile/" + name
		}
		return true
	}
	if keyRefused.MatchString(text) {
		d.Action, d.By = "kms:Decrypt", "key policy or identity-based policy"
		return true
	}
	if m := noController.FindStringSubmatch(text); m != nil {
		d.Action = m[1]
		return true
	}
	return false
}

// statuses reads what containers wait for: a kubelet that may not pull says so.
func (g *denialReader) statuses() {
	for _, p := range g.pods.All() {
		for _, s := range Statuses(p) {
			if w := s.State.Waiting; w != nil && strings.Contains(w.Message, "is not authorized to perform") {
				d := &Denial{Kind: Denied, Text: w.Message, Document: Document{Path: "pods", Only: []string{p.Namespace + "/" + p.Name}}}
				g.of(d, p, s.Name)
				d.Component, d.Version = g.knowledge.Component("kubelet"), ""
				if d.parse(w.Message) {
					g.add(d)
				}
			}
		}
	}
}

// eventOf is the component that works on a kind of object.
var eventOf = map[string]string{
	"PersistentVolumeClaim": "aws-ebs-csi-driver", "ExternalSecret": "external-secrets", "SecretStore": "external-secrets", "ClusterSecretStore": "external-secrets",
	"Ingress": "aws-load-balancer-controller", "Service": "aws-load-balancer-controller", "TargetGroupBinding": "aws-load-balancer-controller",
	"EC2NodeClass": "karpenter", "NodeClaim": "karpenter", "NodePool": "karpenter", "Challenge": "cert-manager",
}

func (g *denialReader) events(events *EventList) {
	for _, e := range events.All() {
		if !strings.Contains(e.Message, "is not authorized to perform") && !strings.Contains(e.Message, "isn't authorized to call") && !keyRefused.MatchString(e.Message) {
			continue
		}
		component := g.knowledge.Component(eventOf[e.InvolvedObject.Kind])
		d := &Denial{Kind: Denied, Text: e.Message, At: EventTime(e), Document: Document{Path: "events"}}
		if component == nil || !d.parse(e.Message) {
			continue
		}
		if p := g.podOf(component); p != nil {
			g.of(d, p, "")
			g.add(d)
		}
	}
}

// podOf is a pod of a component: one with the account of its controller
// before one that only shares its image.
func (g *denialReader) podOf(c *knowledge.Component) *corev1.Pod {
	var any *corev1.Pod
	for _, p := range g.pods.All() {
		if Finished(p) || !slices.ContainsFunc(p.Spec.Containers, func(x corev1.Container) bool { return g.knowledge.ComponentOf(x.Image) == c }) {
			continue
		}
		if slices.Contains(c.ServiceAccounts, p.Spec.ServiceAccountName) {
			return p
		}
		if any == nil {
			any = p
		}
	}
	return any
}
