package diagnose

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/network"
)

// stoppers are the hops of the layers that stop all that is sent to each of
// the endpoints, and the object that the first belongs to; no object where
// something gets through. Where the network was captured and the document that
// decides was not, that is said, of an object that isn't known.
func stoppers(facts *probes.Facts, world *network.World, from network.Endpoint, to []network.Endpoint, port int, layers ...network.Layer) (r Ref, hops []network.Hop, unknown error) {
	for _, each := range to {
		a := world.Path(from, each, network.TCP, port).On(layers...)
		switch {
		case a.Truth == network.No && !a.Partly:
			hops = a.Decisive()
		case a.Truth == network.Unknown && facts.Err(probes.NetworkInterfaces) == nil && lacksDocument(a.Err()):
			unknown = a.Err()
		case a.Truth == network.Unknown && facts.Err(probes.NetworkInterfaces) == nil && facts.Err(probes.Subnets) != nil:
			unknown = facts.Err(probes.Subnets)
		default:
			return Ref{}, nil, nil
		}
	}
	switch {
	case unknown != nil:
		return Ref{Kind: layerKinds[layers[0]], Name: "(not known)"}, nil, unknown
	case len(hops) > 0:
		return refOf(hops[0]), hops, nil
	}
	return Ref{}, nil, nil
}

var layerKinds = map[network.Layer]string{network.SecurityGroups: "SecurityGroup", network.Routes: "RouteTable"}

// lacksDocument is whether what decides a path was not captured at all. ACLs
// are rarely captured, and as rarely the reason.
func lacksDocument(err error) bool {
	return slices.ContainsFunc(probes.GapsIn(err), func(g *probes.Gap) bool {
		return slices.Contains([]string{"aws/ec2/describe-security-groups", "aws/ec2/describe-route-tables", "aws/ec2/describe-subnets"}, g.Document.Path)
	})
}

// endpointsOf are where an address that wasn't reached may be on the network:
// of a managed database or cache whose address no log tells, each interface
// that AWS made for one.
func endpointsOf(facts *probes.Facts, u *unreached) []network.Endpoint {
	switch u.target.Kind {
	case probes.TargetService:
		return []network.Endpoint{network.Service(u.target.Ref.Namespace, u.target.Ref.Name)}
	case probes.TargetPod:
		return []network.Endpoint{network.Pod(u.target.Ref.Namespace, u.target.Ref.Name)}
	}
	for _, address := range []string{u.host, u.ip} {
		if ip, err := netip.ParseAddr(address); err == nil {
			return []network.Endpoint{network.Address(ip)}
		}
	}
	var all []network.Endpoint
	interfaces, err := probes.NetworkInterfaces.Of(facts)
	if mark := ownInterfaces[u.target.AWSService]; err == nil && mark != "" {
		for _, i := range interfaces.All() {
			if ip, err := netip.ParseAddr(str(i.PrivateIpAddress)); err == nil && strings.HasPrefix(str(i.Description), mark) {
				all = append(all, network.Address(ip))
			}
		}
	}
	return all
}

// ownInVPC are the AWS services whose resources have addresses in the VPC, by
// the label in their host names; ownInterfaces is how the descriptions of
// their interfaces begin.
var (
	ownInVPC      = []string{"rds", "docdb", "neptune", "redshift", "cache", "kafka", "es", "aoss", "mq", "memorydb", "elb"}
	ownInterfaces = map[string]string{"rds": "RDSNetworkInterface", "cache": "ElastiCache ", "kafka": "DO NOT DELETE - Amazon MSK", "es": "ES ", "redshift": "RedshiftNetworkInterface"}
)

// dialled finds the address that a name was resolved to, beside a failure.
// Sources: Go net, libpq, the JDK's InetSocketAddress, Node.js net.
var dialled = regexp.MustCompile(`(?:dial tcp |at "[^"]+" \(|[\w-]\.[\w.-]+/|ETIMEDOUT |ECONNREFUSED )((?:\d+\.){3}\d+)\b`)

// A cutTraffic is traffic that a security group or network ACL drops.
type cutTraffic struct {
	effects      []*Finding
	hops         []network.Hop
	found        []Evidence
	client, what string
	port         int
	unknown      error // why it isn't known what stops it; nil: hops do
}

func stoppedSuspects(by map[Ref]*cutTraffic, facts *probes.Facts) []Suspect {
	var found []Suspect
	for _, r := range sortedRefs(by) {
		d := by[r]
		says, fix := "what stops it could not be read", "(see the rule that denies it)"
		if len(d.hops) > 0 {
			says, fix = hopWords(d.hops), orDefault(d.hops[0].Fix, fix)
		}
		found = append(found, Suspect{Subjects: []Ref{r}, Effects: d.effects, Found: d.found, Data: d, Vars: map[string]string{
			"client": d.client, "address": d.what, "port": fmt.Sprint(d.port), "says": says, "fix": fix, "endpoint": endpointWords(facts, d.what),
		}})
	}
	return found
}

// endpointWords says of an address that is a VPC endpoint's which one it is.
func endpointWords(facts *probes.Facts, address string) string {
	interfaces, err := probes.NetworkInterfaces.Of(facts)
	if err != nil {
		return ""
	}
	host, _, _ := strings.Cut(address, ":")
	for _, i := range interfaces.All() {
		if str(i.PrivateIpAddress) != host || i.InterfaceType != "vpc_endpoint" {
			continue
		}
		if endpoints, err := probes.VPCEndpoints.Of(facts); err == nil {
			for _, v := range endpoints.All() {
				if slices.Contains(v.NetworkInterfaceIds, str(i.NetworkInterfaceId)) {
					return fmt.Sprintf(" %s is the VPC endpoint %s of %s: with private DNS it is the only way to that service.", host, str(v.VpcEndpointId), str(v.ServiceName))
				}
			}
		}
		return fmt.Sprintf(" %s is an interface of a VPC endpoint (%s).", host, str(i.Description))
	}
	return ""
}

var stoppedTest = Test{
	Asks: "do security groups or network ACLs drop what {client} sends to {address}?", Needs: []probes.Any{probes.Network},
	Run: func(_ *probes.Facts, s Suspect) Answer {
		d := s.Data.(*cutTraffic)
		if d.unknown != nil {
			return CantTell(d.unknown)
		}
		return Answered(true, fromHops(d.hops, 2)...)
	},
}

// blockedByGroup: security groups drop what a pod sends to another pod, a
// node, a VPC endpoint or anything else in the VPC.
var blockedByGroup = droppedRule("traffic-blocked-by-security-group", stoppedTest, network.SecurityGroups, network.NetworkACLs)

// noRouteOut: the route table of the pod's subnet leads nowhere for the
// address that it calls: no route, or one whose gateway is gone.
var noRouteOut = droppedRule("traffic-without-route", Test{Asks: "does no route lead from {client} to {address}?", Needs: stoppedTest.Needs, Run: stoppedTest.Run}, network.Routes)

func droppedRule(id string, test Test, layers ...network.Layer) *Rule {
	return &Rule{
		ID: id, Explains: []*Rule{targetUnreachable},
		Needs: append([]probes.Any{probes.NetworkInterfaces, probes.VPCEndpoints}, callFacts...),
		Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
			world, err := probes.Network.Of(facts)
			if err != nil {
				return nil
			}
			by := map[Ref]*cutTraffic{}
			for _, e := range effects {
				u, ok := e.Data.(*unreached)
				if !ok || u.portNumber() == 0 || u.refused && !u.dropped || len(u.lines) == 0 {
					continue // what is refused arrived
				}
				to := endpointsOf(facts, u)
				for _, p := range u.pods[:min(len(u.pods), maxExamples)] {
					r, hops, unknown := stoppers(facts, world, network.Pod(p.Namespace, p.Name), to, u.portNumber(), layers...)
					if r == (Ref{}) {
						continue
					}
					if by[r] == nil {
						by[r] = &cutTraffic{hops: hops, unknown: unknown, client: short(u.client), what: u.address(), port: u.portNumber()}
					}
					by[r].effects = appendOnce(by[r].effects, e)
					break
				}
			}
			return stoppedSuspects(by, facts)
		},
		Tests: []Test{test},
	}
}

// pullTimesOut finds the address that a node could not reach for an image.
// Source: containerd remotes/docker, Go net.
var pullTimesOut = regexp.MustCompile(`dial tcp ((?:\d+\.){3}\d+):(443|80|5000): (?:connect: )?(?:i/o timeout|connection timed out|no route to host)`)

// registryClosedToNodes: the registry's address is one of the VPC (an
// endpoint, a registry of one's own), and does not let the nodes in.
var registryClosedToNodes = pullDropped("registry-closed-to-nodes", stoppedTest, network.SecurityGroups, network.NetworkACLs)

// pullWithoutRoute: no route leads from the node's subnet to the registry.
var pullWithoutRoute = pullDropped("nodes-without-route-to-registry", noRouteOut.Tests[0], network.Routes)

func pullDropped(id string, test Test, layers ...network.Layer) *Rule {
	return &Rule{
		ID: id, Explains: []*Rule{registryUnreachable, imageNotPulled}, Needs: []probes.Any{probes.Pods, probes.Events, probes.NetworkInterfaces, probes.VPCEndpoints, probes.Network},
		Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
			world, err := probes.Network.Of(facts)
			events, eventsErr := probes.Events.Of(facts)
			if err != nil {
				return nil
			}
			by := map[Ref]*cutTraffic{}
			for _, e := range effects {
				list, _ := e.Data.([]container)
				for _, c := range list {
					p := c.pod
					says, from := waitingMessage(p), probes.Document{Path: "pods", Only: []string{p.Namespace + "/" + p.Name}}
					if !pullTimesOut.MatchString(says) && eventsErr == nil {
						for _, ev := range events.About(podRef(p)) {
							if pullTimesOut.MatchString(ev.Message) {
								says, from = ev.Message, probes.Document{Path: "events"}
							}
						}
					}
					m := pullTimesOut.FindStringSubmatch(says)
					if m == nil {
						continue
					}
					ip, err := netip.ParseAddr(m[1])
					if err != nil {
						continue
					}
					var port int
					_, _ = fmt.Sscan(m[2], &port)
					r, hops, unknown := stoppers(facts, world, network.Node(p.Spec.NodeName), []network.Endpoint{network.Address(ip)}, port, layers...)
					if r == (Ref{}) {
						continue
					}
					if by[r] == nil {
						by[r] = &cutTraffic{hops: hops, client: "node " + p.Spec.NodeName, what: m[1] + ":" + m[2], port: port, unknown: unknown, found: []Evidence{{Says: fmt.Sprintf("pod %s: %s", p.Name, clip(says, 320)), Document: from}}}
					}
					by[r].effects = appendOnce(by[r].effects, e)
					break
				}
			}
			return stoppedSuspects(by, facts)
		},
		Tests: []Test{test},
	}
}

func waitingMessage(p *corev1.Pod) string {
	for _, s := range probes.Statuses(p) {
		if w := s.State.Waiting; w != nil && w.Message != "" {
			return w.Message
		}
	}
	return ""
}

// kubeletTimeout is how kubectl and the API server word that a kubelet was not
// reached. Sources: kubernetes pkg/registry/core/pod/rest, kubectl.
var kubeletTimeout = regexp.MustCompile(`(?:error dialing backend: |Get "?https://[^"\s]+:10250/(?:containerLogs|exec|attach|portForward|run|stats|pods|configz)\S*: ?)dial tcp ((?:\d+\.){3}\d+):10250: (?:connect: )?(?:i/o timeout|connection timed out|no route to host)`)

// kubeletUnreached: the API server did not reach the kubelet of a node, so
// that logs, exec and port-forward fail there.
var kubeletUnreached = &Rule{
	ID: "kubelet-not-reached", Needs: []probes.Any{probes.Nodes, probes.Logs, probes.AppLogs, probes.Events, probes.Workloads},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		nodes, err := probes.Nodes.Of(facts)
		if err != nil {
			return nil
		}
		by := map[string]*Suspect{}
		see := func(text string, e Evidence) {
			m := kubeletTimeout.FindStringSubmatch(text)
			if m == nil {
				return
			}
			for _, n := range nodes.All() {
				if !slices.ContainsFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool { return a.Address == m[1] }) {
					continue
				}
				if by[n.Name] == nil {
					by[n.Name] = &Suspect{Subjects: []Ref{{Kind: "Node", Name: n.Name}}, Data: n, Vars: map[string]string{"address": m[1]}}
				}
				if len(by[n.Name].Found) < maxExamples {
					by[n.Name].Found = append(by[n.Name].Found, e)
				}
			}
		}
		if m, ok := facts.Source().(interface{ ClusterMeta() probes.SnapshotMeta }); ok {
			for _, n := range m.ClusterMeta().NotCaptured {
				see(n.Why, Evidence{Says: fmt.Sprintf("%s could not be read: %s", n.What, clip(n.Why, 300)), Document: probes.Document{Path: n.What}})
			}
		}
		if src, ok := facts.Source().(interface{ Gaps() []*probes.Gap }); ok {
			for _, g := range src.Gaps() {
				see(g.Detail, Evidence{Says: fmt.Sprintf("%s could not be read: %s", g.Document.Path, clip(g.Detail, 300)), Document: g.Document})
			}
		}
		for _, probe := range []*probes.Probe[*probes.LogSet]{probes.Logs, probes.AppLogs} {
			logs, err := probe.Of(facts)
			if err != nil {
				continue
			}
			for _, l := range logs.All() {
				if l.Gap != nil {
					see(l.Gap.Detail, Evidence{Says: fmt.Sprintf("%s could not be read: %s", l.Document().Path, clip(l.Gap.Detail, 300)), Document: l.Document()})
				}
				if l.Excerpt == nil {
					continue
				}
				for _, f := range l.Excerpt.Failures {
					see(f.Text, Evidence{Says: fmt.Sprintf("log of %s: %s", l.Pod, clip(f.Text, 300)), Document: l.Document()})
				}
			}
		}
		if events, err := probes.Events.Of(facts); err == nil {
			for _, e := range events.All() {
				if facts.Source().Now().Sub(probes.EventTime(e)) < 2*recent {
					at := probes.EventTime(e)
					see(e.Message, Evidence{Says: "event " + e.Reason + ": " + clip(e.Message, 300), Document: probes.Document{Path: "events"}, At: &at})
				}
			}
		}
		var found []Suspect
		for _, name := range sortedKeys(by) {
			found = append(found, *by[name])
		}
		return found
	},
}

// kubeletCutOff: security groups or network ACLs drop what the API server
// sends to kubelets.
var kubeletCutOff = &Rule{
	ID: "kubelet-unreachable-from-control-plane", Explains: []*Rule{kubeletUnreached, podCrashLooping, jobFailing}, Needs: []probes.Any{probes.Nodes, probes.Logs},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		logs, _ := probes.Logs.Of(facts)
		s := Suspect{Vars: map[string]string{"nodes": "", "says": "what stops it could not be read", "fix": "aws ec2 authorize-security-group-ingress --group-id NODE-GROUP --protocol tcp --port 10250 --source-group CLUSTER-GROUP"}}
		var nodes []string
		for _, e := range effects {
			if e.Rule == kubeletUnreached {
				nodes = append(nodes, e.Subject().Name)
				s.Subjects, s.Effects = append(s.Subjects, e.Subject()), append(s.Effects, e)
			}
		}
		for _, e := range effects { // a program that runs kubectl exec
			for _, p := range troubled(e) {
				if logs == nil || e.Rule == kubeletUnreached {
					break
				}
				for _, l := range logs.Of(p.Namespace, p.Name) {
					if l.Excerpt != nil && l.Excerpt.Decisive != nil && kubeletTimeout.MatchString(l.Excerpt.Decisive.Text) {
						s.Effects = appendOnce(s.Effects, e)
					}
				}
			}
		}
		if len(nodes) == 0 {
			return nil
		}
		s.Data, s.Vars["nodes"] = nodes, listed(nodes)
		return []Suspect{s}
	},
	Tests: []Test{{
		Asks: "do security groups or network ACLs stop the API server before port 10250 of {nodes}?", Needs: []probes.Any{probes.Network, probes.EKSCluster, probes.Instances, probes.SecurityGroups},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			world, err := probes.Network.Of(facts)
			if err != nil {
				return CantTell(err)
			}
			var unknown []error
			for _, n := range s.Data.([]string) {
				a := world.Path(network.APIServer(), network.Node(n), network.TCP, 10250).On(network.SecurityGroups, network.NetworkACLs)
				switch a.Truth {
				case network.No:
					hops := a.Decisive()
					s.Subjects[0] = refOf(hops[0])
					return Answered(true, fromHops(hops, 2)...).With("says", hopWords(hops)).With("fix", hops[0].Fix)
				case network.Unknown:
					unknown = append(unknown, a.Err())
				}
			}
			if len(unknown) > 0 {
				return CantTell(orErr(append(unknown, missingGroups(facts)...)...))
			}
			return Answered(false, Saw("aws/ec2/describe-security-groups", nil, "security groups and network ACLs let the API server reach port 10250 of %s", s.Vars["nodes"]))
		},
	}},
}

var trafficRules = []*Rule{kubeletUnreached, blockedByGroup, noRouteOut, pullWithoutRoute, registryClosedToNodes, kubeletCutOff}
