package diagnose

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

var mountReasons = []string{"FailedMount", "FailedAttachVolume", "FailedMapVolume"}

// waitsForPod takes the containers that wait for what the whole pod needs:
// its volumes and its sandbox.
func waitsForPod(c container) bool {
	w := c.status.State.Waiting
	return w != nil && slices.Contains([]string{"ContainerCreating", "PodInitializing", ""}, w.Reason)
}

// volumeNotMounted: a pod waits for one of its volumes.
var volumeNotMounted = &Rule{
	ID:           "volume-not-mounted",
	Explains:     []*Rule{podNotStarting},
	Intermediate: true,
	Needs:        []probes.Any{probes.Pods},
	Suspects:     perContainer(waitsForPod),
	Tests: []Test{heard("does pod {pod} wait for a volume that can't be attached or mounted?", mountReasons,
		regexp.MustCompile(`(?s)(?:FailedMount|FailedAttachVolume|FailedMapVolume): (?P<why>.+)`))},
}

// sandboxNotCreated: the runtime can't make the pod's sandbox, which mostly
// means its network.
var sandboxNotCreated = &Rule{
	ID:           "sandbox-not-created",
	Explains:     []*Rule{podNotStarting},
	Intermediate: true,
	Needs:        []probes.Any{probes.Pods},
	Suspects:     perContainer(waitsForPod),
	Tests:        []Test{heard("could the runtime not make the sandbox of pod {pod}?", []string{"FailedCreatePodSandBox"}, regexp.MustCompile(`(?s)FailedCreatePodSandBox: (?P<why>.+)`))},
}

// hostPathMissing: a hostPath volume names a path that the node doesn't have,
// or that is of another type.
// Source: kubernetes pkg/volume/hostpath/host_path.go.
var hostPathMissing = &Rule{
	ID:       "host-path-missing",
	Explains: []*Rule{volumeNotMounted, containerNotCreated},
	Needs:    []probes.Any{probes.Pods},
	Suspects: perContainer(anyContainer),
	Tests: []Test{heard("does node {node} have no such path of that type?", append([]string{"Failed"}, mountReasons...),
		regexp.MustCompile(`hostPath type check failed: (?P<path>\S+) is not (?P<type>[^"]+)`),
		regexp.MustCompile(`failed to generate container "[^"]+" spec: failed to generate spec: failed to (?P<type>stat|mkdir) "(?P<path>[^"]+)"`))},
}

// noDriver recognises that a node lacks a CSI driver.
// Source: kubernetes pkg/volume/csi/{csi_plugin,csi_attacher}.go, pkg/controller/volume/attachdetach.
var noDriver = []*regexp.Regexp{
	regexp.MustCompile(`driver name (?P<driver>\S+) not found in the list of registered CSI drivers`),
	regexp.MustCompile(`CSINode \S+ does not contain driver (?P<driver>[^\s"]+)`),
}

// csiDriverMissing: the node has no such storage driver.
var csiDriverMissing = &Rule{
	ID:       "csi-driver-not-on-node",
	Explains: []*Rule{volumeNotMounted},
	Needs:    []probes.Any{probes.Pods, probes.DaemonSets, probes.Events},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		sets, err := probes.DaemonSets.Of(facts)
		if err != nil {
			return nil
		}
		byDriver := map[string]int{}
		var list []Suspect
		for _, s := range suspectsOf(effects, waitsForPod) {
			driver := driverOf(facts, s)
			if driver == "" {
				continue
			}
			if i, ok := byDriver[driver]; ok {
				list[i].Data = append(containers(list[i]), containers(s)...)
				for _, e := range s.Effects {
					if !slices.Contains(list[i].Effects, e) {
						list[i].Effects = append(list[i].Effects, e)
					}
				}
				continue
			}
			byDriver[driver] = len(list)
			subject := Ref{Kind: "CSIDriver", Name: driver}
			s.Vars["driver"] = driver
			for _, d := range sets.All() {
				if servesDriver(&d.Spec.Template.Spec, driver) || toldDriver(&d.Spec.Template.Spec, driver) {
					subject = daemonRef(d)
				}
			}
			s.Subjects = []Ref{subject}
			list = append(list, s)
		}
		return list
	},
	Tests: []Test{
		heard("does the kubelet of node {node} not know driver {driver}?", mountReasons, noDriver...),
		{
			Asks:  "does the node still have no driver {driver}?",
			Needs: []probes.Any{probes.CSINodes, probes.CSIDrivers},
			Run: func(facts *probes.Facts, s Suspect) Answer {
				nodes, err := probes.CSINodes.Of(facts)
				if err != nil {
					return CantTell(err)
				}
				name := s.Vars["node"]
				n := nodes.Get("", name)
				if n != nil && slices.ContainsFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == s.Vars["driver"] }) {
					return Answered(false, SawObject("csinodes.storage.k8s.io", "", name, "node %s has driver %s now", name, s.Vars["driver"]))
				}
				says := []Evidence{SawObject("csinodes.storage.k8s.io", "", name, "CSINode %s has no driver %s", name, s.Vars["driver"])}
				installed := "a DaemonSet of the cluster brings it to other nodes"
				if s.Subjects[0].Kind == "CSIDriver" {
					installed = "no DaemonSet of the cluster brings it"
				}
				return Answered(true, says...).With("installed", installed)
			},
		},
	},
}

func driverOf(facts *probes.Facts, s Suspect) string {
	_, got, _ := said(facts, containers(s), mountReasons, noDriver...)
	return got["driver"]
}

// servesDriver reports whether a pod is the node part of a storage driver: it
// has the driver's folder of the kubelet.
func servesDriver(p *corev1.PodSpec, driver string) bool {
	return slices.ContainsFunc(p.Volumes, func(v corev1.Volume) bool {
		return v.HostPath != nil && strings.Contains(v.HostPath.Path, "/plugins/"+driver)
	})
}

// toldDriver reports whether a container is told the driver's name.
func toldDriver(p *corev1.PodSpec, driver string) bool {
	return slices.ContainsFunc(p.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(slices.Concat(c.Command, c.Args), func(a string) bool { return strings.HasSuffix(a, "="+driver) || a == driver }) ||
			slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Value == driver })
	})
}

// A shared is a claim that is mounted elsewhere: the Data of volumeInUse.
type shared struct {
	containers []container
	claim      string
}

// heldElsewhere recognises a volume that another node has.
// Source: kubernetes pkg/volume/util/operationexecutor/operation_generator.go.
var heldElsewhere = regexp.MustCompile(`Multi-Attach error for volume "(?P<volume>[^"]+)"`)

// volumeInUse: another live pod, on another node, has the volume, which only
// one node may have.
var volumeInUse = &Rule{
	ID:       "volume-in-use-elsewhere",
	Explains: []*Rule{volumeNotMounted},
	Needs:    []probes.Any{probes.Pods, probes.Workloads},
	Suspects: perClaim,
	Tests: []Test{
		sharedHeard("does the attach controller say that another node has the volume?"),
		{
			Asks:  "does a running pod on another node use claim {claim}?",
			Needs: []probes.Any{probes.Pods, probes.Workloads},
			Run: func(facts *probes.Facts, s Suspect) Answer {
				pods, err := probes.Pods.Of(facts)
				if err != nil {
					return CantTell(err)
				}
				d := s.Data.(shared)
				user := otherUser(pods, d)
				if user == nil {
					return Answered(false)
				}
				a := Answered(true, SawObject("pods", user.Namespace, user.Name, "pod %s on node %s uses claim %s", user.Name, user.Spec.NodeName, d.claim),
					SawObject("pods", user.Namespace, d.containers[0].pod.Name, "pod %s on node %s waits for the same claim", d.containers[0].pod.Name, d.containers[0].pod.Spec.NodeName))
				workloads, err := probes.Workloads.Of(facts)
				if err != nil {
					return CantTell(err)
				}
				hint := fmt.Sprintf("%s is another workload", short(workloads.Of(user)))
				if workloads.Of(user) == s.Subjects[0] {
					hint = "it is a pod of the same workload: a roll-out that starts the new pod before the old one ends (RollingUpdate), or more than one replica, can't work with a ReadWriteOnce volume"
				}
				return a.With("user", user.Name).With("userNode", user.Spec.NodeName).With("hint", hint)
			},
		},
	},
}

// perClaim proposes the claims of pods that wait for a volume.
func perClaim(_ *probes.Facts, effects []*Finding) []Suspect {
	var list []Suspect
	done := map[Ref]bool{}
	for _, s := range suspectsOf(effects, waitsForPod) {
		for _, c := range containers(s) {
			for _, v := range c.pod.Spec.Volumes {
				if v.PersistentVolumeClaim == nil {
					continue
				}
				claim := Ref{Kind: "PersistentVolumeClaim", Namespace: c.pod.Namespace, Name: v.PersistentVolumeClaim.ClaimName}
				if done[claim] {
					continue
				}
				done[claim] = true
				one := s
				one.Subjects = []Ref{s.Subjects[0], claim}
				one.Data = shared{[]container{c}, claim.Name}
				one.Vars = containerVars(c)
				one.Vars["claim"] = claim.Name
				list = append(list, one)
			}
		}
	}
	return list
}

func sharedHeard(asks string) Test {
	return Test{Asks: asks, Needs: []probes.Any{probes.Events, probes.Claims}, Run: func(facts *probes.Facts, s Suspect) Answer {
		d := s.Data.(shared)
		a := hears(facts, d.containers, mountReasons, heldElsewhere)
		if a.Truth != Yes {
			return a
		}
		claims, err := probes.Claims.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		claim := claims.Get(d.containers[0].pod.Namespace, d.claim)
		if claim != nil && claim.Spec.VolumeName != "" && claim.Spec.VolumeName != a.Vars["volume"] {
			return Answered(false)
		}
		if claim != nil {
			a.Evidence = append(a.Evidence, SawObject("persistentvolumeclaims", claim.Namespace, claim.Name, "claim %s has access modes %v", claim.Name, claim.Spec.AccessModes))
		}
		return a
	}}
}

// otherUser is a live pod on another node that uses the same claim, or nil.
func otherUser(pods *probes.PodList, d shared) *corev1.Pod {
	waiting := d.containers[0].pod
	for p := range pods.In(waiting.Namespace) {
		if p == waiting || probes.Finished(p) || p.Spec.NodeName == "" || p.Spec.NodeName == waiting.Spec.NodeName {
			continue
		}
		for _, v := range p.Spec.Volumes {
			if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == d.claim {
				return p
			}
		}
	}
	return nil
}

// volumeNotDetached: no pod elsewhere uses the volume any more, yet it is
// still attached to a node that is gone or not ready.
var volumeNotDetached = &Rule{
	ID:       "volume-not-detached",
	Explains: []*Rule{volumeNotMounted},
	Needs:    []probes.Any{probes.Pods, probes.Workloads, probes.VolumeAttachments, probes.Claims},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		attachments, err := probes.VolumeAttachments.Of(facts)
		if err != nil {
			return nil
		}
		claims, err := probes.Claims.Of(facts)
		if err != nil {
			return nil
		}
		var list []Suspect
		for _, s := range perClaim(facts, effects) {
			d := s.Data.(shared)
			pod := d.containers[0].pod
			claim := claims.Get(pod.Namespace, d.claim)
			if claim == nil {
				continue
			}
			for _, a := range attachments.All() {
				if a.Spec.Source.PersistentVolumeName == nil || *a.Spec.Source.PersistentVolumeName != claim.Spec.VolumeName || a.Spec.NodeName == pod.Spec.NodeName {
					continue
				}
				one := s
				one.Vars["attachment"], one.Vars["oldNode"] = a.Name, a.Spec.NodeName
				one.Subjects = []Ref{{Kind: "VolumeAttachment", Name: a.Name}, s.Subjects[0], s.Subjects[1]}
				list = append(list, one)
			}
		}
		return list
	},
	Tests: []Test{
		sharedHeard("does the attach controller say that another node has the volume?"),
		{
			Asks:  "does no pod on node {oldNode} use claim {claim} any more?",
			Needs: []probes.Any{probes.Pods, probes.Nodes},
			Run: func(facts *probes.Facts, s Suspect) Answer {
				pods, err := probes.Pods.Of(facts)
				if err != nil {
					return CantTell(err)
				}
				nodes, err := probes.Nodes.Of(facts)
				if err != nil {
					return CantTell(err)
				}
				d := s.Data.(shared)
				if u := otherUser(pods, d); u != nil {
					return Answered(false, SawObject("pods", u.Namespace, u.Name, "pod %s uses it", u.Name))
				}
				node := s.Vars["oldNode"]
				state := "the node does not exist any more"
				if n := nodes.Get("", node); n != nil {
					state = "the node is still there"
					for _, c := range n.Status.Conditions {
						if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
							state = "the node is not ready"
						}
					}
				}
				return Answered(true, SawObject("volumeattachments.storage.k8s.io", "", s.Vars["attachment"], "VolumeAttachment %s still ties the volume to node %s; %s", s.Vars["attachment"], node, state)).With("state", state)
			},
		},
	},
}

// volumeServerRefuses: the file server behind a volume answers that it won't
// or can't serve it, or does not answer.
// Source: util-linux and nfs-utils mount(8), mount.nfs(8).
var volumeServerRefuses = &Rule{
	ID:       "volume-server-refuses",
	Explains: []*Rule{volumeNotMounted},
	Needs:    []probes.Any{probes.Pods},
	Suspects: perContainer(waitsForPod),
	Tests: []Test{heard("does the file server behind the volume refuse or not answer?", mountReasons,
		regexp.MustCompile(`(?s)for volume "(?P<volume>[^"]+)".*?(?P<why>mount\.nfs4?: [^\n]+|mount error\(\d+\): [^\n]+|mount\.nfs4?:? [^\n]*(?:access denied|timed out|No such file)[^\n]*)`),
		regexp.MustCompile(`(?s)for volume "(?P<volume>[^"]+)".*?(?P<why>bad option; for several filesystems \(e\.g\. nfs, cifs\) you might need a /sbin/mount\.<type> helper program)`))},
}

var mountRules = slices.Concat(volumeFaultRules, []*Rule{volumeNotMounted, sandboxNotCreated, hostPathMissing, csiDriverMissing, volumeInUse, volumeNotDetached, volumeSlotsGone, volumeServerRefuses})
