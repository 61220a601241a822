package diagnose

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/pposiraegi/ppodoctor/knowledge"
	"github.com/pposiraegi/ppodoctor/probes"
)

// PreflightSchema names the shape of [Preflight] as JSON.
const PreflightSchema = "ppodoctor-preflight/v1"

// A Preflight is whether a cluster has what components need.
type Preflight struct {
	Schema string    `json:"schema"`
	At     time.Time `json:"at"`
	Lines  []Need    `json:"needs"`
}

// A Need is one thing that a component needs.
type Need struct {
	Component string `json:"component"`
	Need      string `json:"need"`  // "StorageClass that is the default"
	State     string `json:"state"` // one of ok, wrong, unknown
	Says      string `json:"says"`
	Remedy    string `json:"remedy,omitempty"`  // where it is wrong
	Settles   string `json:"settles,omitempty"` // where it is unknown: the command that would tell
}

// The states of a need.
const (
	NeedMet     = "ok"
	NeedUnmet   = "wrong"
	NeedUnknown = "unknown"
)

// ExitCode is that of a diagnosis: 1 something is wrong, 3 not all could be
// seen, 0 all is well.
func (p *Preflight) ExitCode() int {
	code := 0
	for _, n := range p.Lines {
		switch n.State {
		case NeedUnmet:
			return 1
		case NeedUnknown:
			code = 3
		}
	}
	return code
}

// Installed are the IDs of the components whose controller runs.
func Installed(ctx context.Context, facts *probes.Facts, k *knowledge.Knowledge) []string {
	facts.Gather(ctx, probes.Pods)
	pods, err := probes.Pods.Of(facts)
	if err != nil {
		return nil
	}
	var ids []string
	for _, c := range k.Installations {
		if c.Controller != "" && slices.ContainsFunc(pods.All(), func(p *corev1.Pod) bool { return probes.IsController(p, c.Controller) }) {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// PreflightFor asks for each component what it needs, in the order of the file.
func PreflightFor(ctx context.Context, facts *probes.Facts, k *knowledge.Knowledge, ids []string) *Preflight {
	facts.Gather(ctx, slices.Concat([]probes.Any{
		probes.Pods, probes.Namespaces, probes.Definitions, probes.StorageClasses, probes.CSIDrivers, probes.ServiceAccounts, probes.EC2NodeClasses,
		probes.NodePools, probes.Subnets, probes.SecurityGroups, probes.AccessEntries, probes.ConfigMaps, probes.Nodes, probes.Network, probes.Permissions,
	}, probes.IdentityNeeds)...)
	p := &preflight{Preflight: Preflight{Schema: PreflightSchema, At: facts.Source().Now(), Lines: []Need{}}, facts: facts, knowledge: k}
	for _, c := range k.Installations {
		if slices.Contains(ids, c.ID) {
			p.of = c
			p.namespace()
			p.kinds()
			p.storage()
			p.account()
			p.nodes()
			p.loadBalancers()
			p.webhook()
		}
	}
	return &p.Preflight
}

type preflight struct {
	Preflight
	facts     *probes.Facts
	knowledge *knowledge.Knowledge
	of        *knowledge.Installation
}

func (p *preflight) add(need, state, says, remedy string) {
	p.Lines = append(p.Lines, Need{Component: p.of.ID, Need: need, State: state, Says: says, Remedy: remedy})
}

// decide adds a line that is ok or wrong.
func (p *preflight) decide(ok bool, need, says, remedy string) {
	if ok {
		p.add(need, NeedMet, says, "")
		return
	}
	p.add(need, NeedUnmet, says, remedy)
}

// cantTell adds a line for what can't be seen, with what would settle it.
func (p *preflight) cantTell(need string, err error) {
	n := Need{Component: p.of.ID, Need: need, State: NeedUnknown, Says: err.Error()}
	if gaps := probes.GapsIn(err); len(gaps) > 0 {
		n.Says, n.Settles = fmt.Sprintf("%s: %s", gaps[0].Document.Path, cmp.Or(gaps[0].Detail, string(gaps[0].Reason))), gaps[0].Document.Command()
	}
	p.Lines = append(p.Lines, n)
}

func (p *preflight) clusterName() string { return cmp.Or(clusterName(p.facts), "CLUSTER") }

// where is the namespace that the component is or would be in.
func (p *preflight) where() string {
	if pod := p.pod(); pod != nil {
		return pod.Namespace
	}
	if list, err := probes.Namespaces.Of(p.facts); err == nil {
		for _, n := range p.of.Namespaces {
			if list.Get("", n) != nil {
				return n
			}
		}
	}
	return p.of.Namespaces[0]
}

func (p *preflight) pod() *corev1.Pod {
	pods, err := probes.Pods.Of(p.facts)
	if err != nil || p.of.Controller == "" {
		return nil
	}
	for _, pod := range pods.All() {
		if probes.IsController(pod, p.of.Controller) && !probes.Finished(pod) {
			return pod
		}
	}
	return nil
}

func (p *preflight) namespace() {
	list, err := probes.Namespaces.Of(p.facts)
	if err != nil {
		p.cantTell("namespace", err)
		return
	}
	n := p.where()
	found := list.Get("", n)
	switch {
	case found == nil:
		p.add("namespace", NeedUnmet, fmt.Sprintf("there is no namespace %s", strings.Join(p.of.Namespaces, " or ")), "kubectl create namespace "+n)
	case found.DeletionTimestamp != nil:
		p.add("namespace", NeedUnmet, fmt.Sprintf("namespace %s is being deleted", n), "wait until it is gone, or see what holds it: kubectl get namespace "+n+" -o yaml")
	default:
		p.add("namespace", NeedMet, "namespace "+n+" is there", "")
	}
}

// kinds asks about custom kinds: those of others must be there; those that the
// component brings itself may be left of an older release, whose version it
// does not speak.
func (p *preflight) kinds() {
	list, err := probes.Definitions.Of(p.facts)
	for i, k := range slices.Concat(p.of.Kinds, p.of.Own) {
		own := i >= len(p.of.Kinds)
		need := "kind " + k.Name
		if err != nil {
			p.cantTell(need, err)
			continue
		}
		d := list.Get("", k.Name)
		switch {
		case d == nil && own && p.pod() == nil:
			p.add(need, NeedMet, "it is not there yet, and comes with the component", "")
			continue
		case d == nil && own:
			p.add(need, NeedUnmet, "it is not installed, though the component runs", k.From)
			continue
		case d == nil:
			p.add(need, NeedUnmet, "it is not installed", k.From)
			continue
		case k.Version != "" && !serves(d, k.Version):
			says := fmt.Sprintf("it serves %s, not %s", strings.Join(servedVersions(d), ", "), k.Version)
			if own {
				says = "an older release has left it: " + says + ", and Helm does not upgrade it"
			}
			p.add(need, NeedUnmet, says, k.From)
			continue
		}
		have, parseErr := version.ParseGeneric(d.Annotations[bundleVersion])
		if k.Least != "" && parseErr == nil && have.LessThan(version.MustParseGeneric(k.Least)) {
			p.add(need, NeedUnmet, fmt.Sprintf("it is %s; %s or later is needed", have, k.Least), k.From)
			continue
		}
		p.add(need, NeedMet, "it serves "+strings.Join(servedVersions(d), ", "), "")
	}
}

func (p *preflight) storage() {
	if !p.of.Storage {
		return
	}
	classes, err := probes.StorageClasses.Of(p.facts)
	if err != nil {
		p.cantTell("StorageClass", err)
		return
	}
	manifest := "a StorageClass gp3: provisioner ebs.csi.aws.com, parameters type: gp3, volumeBindingMode: WaitForFirstConsumer, annotation storageclass.kubernetes.io/is-default-class: \"true\""
	var byDefault []string
	provisioner := ""
	for _, c := range classes.All() {
		if c.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" {
			byDefault = append(byDefault, c.Name)
			provisioner = c.Provisioner
		}
	}
	p.decide(len(byDefault) > 0, "default StorageClass", fmt.Sprintf("of the %d StorageClasses the default is: %s", classes.Len(), listed(byDefault)), "apply "+manifest+"; or name a class in the chart's values")
	drivers, err := probes.CSIDrivers.Of(p.facts)
	provisioner = cmp.Or(provisioner, "ebs.csi.aws.com")
	if provisioner == "kubernetes.io/aws-ebs" {
		provisioner = "ebs.csi.aws.com" // migrated since Kubernetes 1.23
	}
	switch {
	case !strings.Contains(provisioner, "csi"):
	case err != nil:
		p.cantTell("CSI driver", err)
	default:
		p.decide(drivers.Get("", provisioner) != nil, "CSI driver", "driver "+provisioner+map[bool]string{true: " is", false: " is not"}[drivers.Get("", provisioner) != nil]+" installed",
			fmt.Sprintf("aws eks create-addon --cluster-name %s --addon-name aws-ebs-csi-driver --service-account-role-arn ROLE", p.clusterName()))
	}
}
