package diagnose

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/network"
)

// clusterDNS is the cluster's DNS Service with the pods behind it.
type clusterDNS struct {
	service *corev1.Service
	pods    []*corev1.Pod
}

// findDNS finds the Service that pods are given as their nameserver: kube-dns
// in kube-system, or whatever carries its label; distributions name it
// differently. Nil where there is none.
// Sources: kubernetes cluster/addons/dns/coredns (kube-dns, k8s-app=kube-dns);
// RKE2 (rke2-coredns-rke2-coredns); OpenShift (openshift-dns/dns-default).
func findDNS(facts *probes.Facts) (*clusterDNS, error) {
	services, err := probes.Services.Of(facts)
	if err != nil {
		return nil, err
	}
	pods, err := probes.Pods.Of(facts)
	if err != nil {
		return nil, err
	}
	candidates := services.Where(func(s *corev1.Service) bool {
		named := s.Name == "kube-dns" || s.Name == "coredns" || s.Name == "dns-default" || s.Labels["k8s-app"] == "kube-dns"
		return named && s.Spec.ClusterIP != "None" && s.Spec.ClusterIP != "" && slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == 53 })
	})
	if len(candidates) == 0 {
		return nil, nil
	}
	slices.SortStableFunc(candidates, func(a, b *corev1.Service) int {
		usual := func(s *corev1.Service) int {
			if s.Namespace == "kube-system" && s.Name == "kube-dns" {
				return 0
			}
			return 1
		}
		return cmp.Compare(usual(a), usual(b))
	})
	d := &clusterDNS{service: candidates[0]}
	d.pods = slices.Collect(pods.Selected(d.service.Namespace, d.service.Spec.Selector))
	return d, nil
}

var dnsFacts = []probes.Any{probes.Pods, probes.Services, probes.Nodes, probes.Network, probes.EC2NodeClasses}

// dnsCutOff: the security groups let nothing on port 53 through from some
// nodes to those of CoreDNS.
var dnsCutOff = &Rule{
	ID:       "dns-cut-off-by-security-groups",
	Explains: []*Rule{nameLookupsFail},
	Latent:   true,
	Needs:    dnsFacts,
	Suspects: suspectGroups,
	Tests: []Test{
		{
			Asks:  "Do the security groups let nothing through on port 53 from {where} to CoreDNS?",
			Needs: dnsFacts,
			Run:   askGroups,
		},
		{
			Asks: "Did the lookups get no answer at all?",
			Run: func(facts *probes.Facts, s Suspect) Answer {
				if len(s.Effects) == 0 {
					return Answered(true, Evidence{Says: "nothing looks names up from there yet"})
				}
				if quote, other := onlyTCPShut(facts, s); other {
					return Answered(false, Evidence{Says: "the groups stop TCP only, and the lookups that failed asked over UDP"}, quote)
				}
				return unanswered(s.Effects)
			},
		},
	},
}

// origin is where lookups come from, as the security groups see it: the nodes
// of one EC2NodeClass, or those that share a set of groups.
type origin struct {
	name  string               // of the EC2NodeClass; empty where Karpenter did not make the nodes
	class *probes.EC2NodeClass // nil where it can't be had, too
	pods  []*corev1.Pod        // whose lookups fail; none for a latent suspect
	nodes []string
	key   string
}

func suspectGroups(facts *probes.Facts, effects []*Finding) []Suspect {
	dns, err := findDNS(facts)
	if err != nil || dns == nil || len(dns.pods) == 0 {
		return nil
	}
	nodes, err := probes.Nodes.Of(facts)
	if err != nil {
		return nil
	}
	world, err := probes.Network.Of(facts)
	if err != nil {
		return nil
	}
	classes, _ := probes.EC2NodeClasses.Of(facts)
	origins := map[string]*origin{}
	from := func(p *corev1.Pod) *origin {
		node := nodes.Get("", p.Spec.NodeName)
		if node == nil || !isAWS(node) {
			return nil
		}
		o := &origin{key: "the nodes of other groups"}
		if name := node.Labels["karpenter.k8s.aws/ec2nodeclass"]; name != "" {
			o.name, o.key = name, "EC2NodeClass/"+name
			if classes != nil {
				o.class = classes.Get("", name)
			}
		} else if groups, _, err := world.GroupsOfPod(p); err == nil {
			o.key = strings.Join(groups, " ")
		}
		if origins[o.key] == nil {
			origins[o.key] = o
		}
		o = origins[o.key]
		o.pods = append(o.pods, p)
		if !slices.Contains(o.nodes, node.Name) {
			o.nodes = append(o.nodes, node.Name)
		}
		return o
	}
	hurt := map[*origin][]*Finding{}
	for _, e := range effects {
		t := e.Data.(*lookupTrouble)
		for _, p := range slices.Concat(t.pods, t.unread) {
			if hasBranch(p) {
				continue // its own groups decide, not the node's
			}
			if o := from(p); o != nil && !slices.Contains(hurt[o], e) {
				hurt[o] = append(hurt[o], e)
			}
		}
	}
	if classes != nil {
		for _, c := range classes.All() {
			if key := "EC2NodeClass/" + c.Name; origins[key] == nil {
				origins[key] = &origin{name: c.Name, class: c, key: key}
			}
		}
	}
	var found []Suspect
	for _, key := range slices.Sorted(maps.Keys(origins)) {
		o := origins[key]
		s := Suspect{Effects: hurt[o], Data: o, Vars: map[string]string{"where": "its nodes"}}
		switch {
		case o.name == "":
			s.Subjects = []Ref{groupSubject(world, dns, o)}
			s.Vars["where"] = "nodes " + strings.Join(o.nodes, ", ")
		case ruleIsMissing(world, dns, o):
			s.Subjects = []Ref{groupSubject(world, dns, o), {Kind: "EC2NodeClass", Name: o.name}}
		default:
			s.Subjects = []Ref{{Kind: "EC2NodeClass", Name: o.name}}
		}
		s.Vars["barrier"], s.Vars["lookups"] = "if no rule admits the one to the other on port 53, nothing gets through", "Then every lookup"
		s.Vars["carry"], s.Vars["from"] = "These nodes carry", strings.Join(o.nodes, ", ")
		if o.name != "" {
			s.Vars["from"] = "the nodes of EC2NodeClass " + o.name
			s.Vars["carry"] = "Nodes of EC2NodeClass " + o.name + " carry"
		}
		if o.class != nil {
			s.Vars["carry"] = "EC2NodeClass " + o.name + " selects security groups by " + selectorWords(o.class) + ", so its nodes carry"
		}
		s.Vars["mine"], s.Vars["theirs"] = nameGroups(world, originGroups(world, o)), nameGroups(world, dnsGroups(world, dns))
		s.Vars["nodes"] = cmp.Or(strings.Join(o.nodes, ", "), "the next node that it makes")
		found = append(found, s)
	}
	return found
}

// groupSubject is what a person would change where no EC2NodeClass is at
// fault: the group on CoreDNS's side that lacks the rule.
func groupSubject(world *network.World, dns *clusterDNS, o *origin) Ref {
	for _, hop := range groupHops(world, dns, o) {
		if hop.Truth == network.No && len(hop.Names) > 0 {
			return Ref{Kind: "SecurityGroup", Name: hop.Names[0]}
		}
	}
	if len(o.nodes) == 0 {
		return Ref{Kind: "EC2NodeClass", Name: o.name}
	}
	return Ref{Kind: "Node", Name: o.nodes[0]}
}

// ruleIsMissing reports whether the groups are meant to talk: they share a
// group, or CoreDNS's side admits the other one on some port. Then a rule is
// lacking; else the nodes carry the wrong groups.
func ruleIsMissing(world *network.World, dns *clusterDNS, o *origin) bool {
	mine := originGroups(world, o)
	for _, id := range dnsGroups(world, dns) {
		if slices.Contains(mine, id) {
			return true
		}
		rules, _ := world.RulesOf(id, network.Ingress)
		if slices.ContainsFunc(rules, func(r network.Rule) bool { return slices.Contains(mine, r.PeerGroup) }) {
			return true
		}
	}
	return false
}

// groupHops are the security groups' decisions on port 53 from an origin to
// each CoreDNS pod, over UDP and TCP.
func groupHops(world *network.World, dns *clusterDNS, o *origin) []network.Hop {
	var hops []network.Hop
	for _, a := range groupAnswers(world, dns, o) {
		hops = append(hops, a.Decisive()...)
	}
	return hops
}

func groupAnswers(world *network.World, dns *clusterDNS, o *origin) []network.Answer {
	var sources []network.Endpoint
	for _, p := range o.pods[:min(len(o.pods), 2*maxExamples)] {
		sources = append(sources, network.Pod(p.Namespace, p.Name))
	}
	if len(sources) == 0 {
		sources = append(sources, network.Attached("the next node of EC2NodeClass/"+o.name, classGroups(o.class)...))
	}
	var answers []network.Answer
	for _, from := range sources {
		for _, to := range dns.pods {
			for _, proto := range []network.Protocol{network.UDP, network.TCP} {
				a := world.Path(from, network.Pod(to.Namespace, to.Name), proto, dnsPort(dns.service, to, proto))
				answers = append(answers, a.On(network.SecurityGroups))
			}
		}
	}
	return answers
}

func classGroups(c *probes.EC2NodeClass) []string {
	var ids []string
	for _, g := range c.Status.SecurityGroups {
		ids = append(ids, g.ID)
	}
	return ids
}

// dnsPort is the port that the DNS pod itself listens on behind port 53 of the
// Service; distributions use 53, 8053 or 5353.
func dnsPort(s *corev1.Service, pod *corev1.Pod, proto network.Protocol) int {
	for _, p := range s.Spec.Ports {
		if p.Port != 53 || string(p.Protocol) != string(proto) {
			continue
		}
		if p.TargetPort.StrVal == "" {
			return cmp.Or(p.TargetPort.IntValue(), 53)
		}
		for _, c := range pod.Spec.Containers {
			for _, cp := range c.Ports {
				if cp.Name == p.TargetPort.StrVal {
					return int(cp.ContainerPort)
				}
			}
		}
	}
	return 53
}

func askGroups(facts *probes.Facts, s Suspect) Answer {
	o := s.Data.(*origin)
	world, err := probes.Network.Of(facts)
	if err != nil {
		return CantTell(err)
	}
	dns, err := findDNS(facts)
	if err != nil || dns == nil {
		return CantTell(err)
	}
	if o.class != nil && len(o.pods) == 0 && len(classGroups(o.class)) == 0 {
		return Answered(false, SawObject("ec2nodeclasses.karpenter.k8s.aws", "", o.class.Name, "EC2NodeClass/%s has found no security group, so it makes no nodes", o.class.Name))
	}
	var blocked, open []network.Answer
	var lacking []error
	for _, a := range groupAnswers(world, dns, o) {
		switch a.Truth {
		case network.No:
			blocked = append(blocked, a)
		case network.Yes:
			open = append(open, a)
		default:
			for _, h := range a.Decisive() {
				lacking = append(lacking, h.Err)
			}
		}
	}
	switch {
	case len(blocked) == 0 && len(lacking) > 0:
		return CantTell(errors.Join(append(lacking, missingGroups(facts)...)...))
	case len(blocked) == 0:
		return Answered(false, fromHops(open[0].Decisive(), 2)...)
	}
	evidence := describeGroups(facts, world, dns, o)
	for _, a := range blocked[:min(len(blocked), 2)] {
		evidence = append(evidence, fromHops(a.Decisive(), 1)...)
	}
	a := Answered(true, evidence...)
	a.Vars = groupVars(facts, world, dns, o, blocked[0])
	a.Vars["barrier"], a.Vars["lookups"] = barrierWords(blocked), shutTime(blocked)
	a.Paths = []Path{{From: strings.Join(originGroups(world, o), " "), To: strings.Join(dnsGroups(world, dns), " "), What: portsOf(blocked), Blocked: true}}
	if len(open) > 0 {
		a.Vars["share"] = fmt.Sprintf("%d of %d", len(blocked), len(blocked)+len(open))
	}
	return a
}

// portsOf names what was asked for, each once: "UDP 53, TCP 53".
func portsOf(answers []network.Answer) string {
	var ports []string
	for _, a := range answers {
		if port := fmt.Sprintf("%s %d", a.Protocol, a.Port); !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
	}
	return strings.Join(ports, ", ")
}

// missingGroups are the gaps of the documents that tell which groups a node
// carries and what they admit: without one the others don't settle it.
func missingGroups(facts *probes.Facts) []error {
	var errs []error
	for _, p := range []probes.Any{probes.Instances, probes.SecurityGroups} {
		errs = append(errs, facts.Err(p))
	}
	return errs
}

// fromHops turns the first hops of a path into evidence.
func fromHops(hops []network.Hop, most int) []Evidence {
	var list []Evidence
	for _, h := range hops {
		if len(list) == most || h.Says == "" {
			break
		}
		e := Evidence{Says: h.Says}
		// What decides is shown before what led there.
		for _, d := range h.Documents {
			if doc := probes.Document(d); e.Document.Path == "" || doc.IsAWS() {
				e.Document = doc
			}
		}
		list = append(list, e)
	}
	return list
}

// unanswered asks of failed lookups whether they got no answer at all.
func unanswered(effects []*Finding) Answer {
	var evidence []Evidence
	unknown, answered := true, 0
	for _, e := range effects {
		t := e.Data.(*lookupTrouble)
		if t.noAnswer || t.vague {
			answered++
			evidence = append(evidence, t.lines...)
		}
		unknown = unknown && len(t.pods) == 0
	}
	switch {
	case len(evidence) > 0:
		// Each quote stands with its own step of the chain.
		return Answered(true, Evidence{Says: fmt.Sprintf("%d of %d workloads with failed lookups got no answer from any DNS server", answered, len(effects))})
	case unknown:
		var errs []error
		for _, e := range effects {
			errs = append(errs, e.Data.(*lookupTrouble).err)
		}
		return CantTell(errors.Join(errs...))
	}
	for _, e := range effects {
		evidence = append(evidence, e.Data.(*lookupTrouble).lines...)
	}
	return Answered(false, evidence...)
}

func isAWS(n *corev1.Node) bool {
	return strings.HasPrefix(n.Spec.ProviderID, "aws://") || strings.HasSuffix(n.Name, ".compute.internal") ||
		n.Labels["eks.amazonaws.com/nodegroup"] != "" || n.Labels["karpenter.k8s.aws/ec2nodeclass"] != ""
}
