package diagnose

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	ec2 "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/pposiraegi/ppodoctor/probes"
)

// drifted are the NodeClaims that Karpenter is to replace, for a reason.
func drifted(list *probes.List[probes.NodeClaim], class, reason string) []*probes.NodeClaim {
	return list.Where(func(c *probes.NodeClaim) bool {
		k := meta.FindStatusCondition(c.Status.Conditions, "Drifted")
		return classRef(c.Spec.NodeClassRef) == class && k != nil && k.Status == "True" && strings.Contains(k.Reason, reason)
	})
}

// groupDrift: something outside puts a security group on instances that their
// class does not select, so that each is replaced as soon as it is there. The
// quota or capacity that runs out by it is only how it shows.
// Source: incident spot-quota-vs-sgdrift.
var groupDrift = &Rule{
	ID: "nodes-drift-again-and-again", Latent: true, Explains: []*Rule{quotaRule, capacityMissing}, Needs: []probes.Any{classes, claims, knownInstances},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		classList, err := classes.Of(facts)
		claimList, claimErr := claims.Of(facts)
		instances, _ := knownInstances.Of(facts)
		if err != nil || claimErr != nil {
			return nil
		}
		var found []Suspect
		for _, c := range classList.All() {
			list := drifted(claimList, c.Name, "SecurityGroupDrift")
			if len(list) == 0 {
				continue
			}
			var extra []string
			s := Suspect{Subjects: []Ref{{Kind: "EC2NodeClass", Name: c.Name}}, Vars: map[string]string{"class": c.Name, "claims": fmt.Sprint(len(list))}}
			for _, n := range list {
				s.Found = append(s.Found, SawObject("nodeclaims.karpenter.sh", "", n.Name, "NodeClaim %s (made %s) is Drifted: SecurityGroupDrift", n.Name, stamp(n.CreationTimestamp.Time)))
				if instances == nil {
					continue
				}
				if i := instances.Get(instanceID(n.Status.ProviderID)); i != nil {
					for _, g := range i.SecurityGroups {
						if !slices.Contains(classGroups(c), str(g.GroupId)) {
							extra = appendNew(extra, str(g.GroupId))
							s.Found = append(s.Found, Saw("aws/ec2/describe-instances", []string{str(i.InstanceId)}, "instance %s carries %s (%s), which EC2NodeClass %s does not select", str(i.InstanceId), str(g.GroupId), str(g.GroupName), c.Name))
						}
					}
				}
			}
			s.Found = s.Found[:min(len(s.Found), 2*maxExamples)]
			s.Data, s.Vars["extra"] = extra, orDefault(strings.Join(extra, ", "), "other groups")
			for _, e := range effects {
				if d, ok := e.Data.(launchCase); ok && d.name == c.Name && len(list) > 1 {
					s.Effects = append(s.Effects, e)
				}
			}
			found = append(found, s)
		}
		return found
	},
	Tests: []Test{{Asks: "do instances carry groups that EC2NodeClass {class} does not select?", Needs: []probes.Any{knownInstances}, Run: func(facts *probes.Facts, s Suspect) Answer {
		if instances, err := knownInstances.Of(facts); err != nil || instances == nil {
			return CantTell(err)
		}
		return Answered(len(s.Data.([]string)) > 0, s.Found...)
	}}},
}

// amiDriftFixed are the patches that mend the comparison of images.
// Source: incident ami-drift-defect (aws/karpenter-provider-aws PR 6167).
var amiDriftFixed = map[string]int{"0.31": 5, "0.32": 10, "0.33": 5, "0.34": 6, "0.35": 5, "0.36": 2}

// amiDriftDefect: this release of Karpenter takes the right image for a wrong one.
var amiDriftDefect = &Rule{
	ID: "ami-drift-defect", Latent: true, Needs: []probes.Any{classes, claims, probes.Pods, probes.Workloads},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		classList, err := classes.Of(facts)
		claimList, claimErr := claims.Of(facts)
		workloads, workloadsErr := probes.Workloads.Of(facts)
		pods := karpenterPods(facts)
		if err != nil || claimErr != nil || workloadsErr != nil || len(pods) == 0 {
			return nil
		}
		version := karpenterVersion(pods)
		parts := strings.SplitN(version, ".", 3)
		if len(parts) < 3 {
			return nil
		}
		patch, known := amiDriftFixed[parts[0]+"."+parts[1]]
		if mine, err := strconv.Atoi(parts[2]); !known || err != nil || mine >= patch {
			return nil
		}
		for _, c := range classList.All() {
			for _, n := range drifted(claimList, c.Name, "AMIDrift") {
				for _, a := range c.Status.AMIs {
					if a.ID == n.Status.ImageID {
						return []Suspect{{Subjects: []Ref{workloads.Of(pods[0])}, Vars: map[string]string{"version": version, "fixed": fmt.Sprintf("%s.%s.%d", parts[0], parts[1], patch), "claim": n.Name, "image": a.ID}}}
					}
				}
			}
		}
		return nil
	},
	Tests: []Test{{Asks: "is NodeClaim {claim} Drifted though its image {image} is one of its class's?", Run: func(_ *probes.Facts, s Suspect) Answer {
		return Answered(true, SawObject("nodeclaims.karpenter.sh", "", s.Vars["claim"], "NodeClaim %s is Drifted (AMIDrift) with image %s, which is in status.amis of its class; Karpenter is %s", s.Vars["claim"], s.Vars["image"], s.Vars["version"]))
	}}},
}

// minor is the minor version in "v1.33.5-eks-113cf36" or "1.33", or -1.
func minor(version string) int {
	parts := strings.Split(strings.TrimPrefix(version, "v"), ".")
	if len(parts) < 2 {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimRight(parts[1], "+"))
	if err != nil {
		return -1
	}
	return n
}

// versionSkew: a kubelet is newer than the control plane, or too old for it.
// Source: kubernetes.io version skew policy.
var versionSkew = &Rule{
	ID: "kubelet-version-skew", Latent: true, Explains: []*Rule{nodeNotReady, nodeClaimNotInitialized}, Needs: []probes.Any{probes.Nodes, probes.EKSCluster},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		nodes, err := probes.Nodes.Of(facts)
		cluster, clusterErr := probes.EKSCluster.Of(facts)
		if err != nil || clusterErr != nil || minor(cluster.Version) < 0 {
			return nil
		}
		byKubelet := map[string][]*corev1.Node{}
		for _, n := range nodes.All() {
			if minor(n.Status.NodeInfo.KubeletVersion) >= 0 {
				byKubelet[n.Status.NodeInfo.KubeletVersion] = append(byKubelet[n.Status.NodeInfo.KubeletVersion], n)
			}
		}
		var found []Suspect
		for _, kubelet := range sortedKeys(byKubelet) {
			list := byKubelet[kubelet]
			skew := minor(cluster.Version) - minor(kubelet)
			oldest := 3
			if minor(cluster.Version) < 28 {
				oldest = 2
			}
			if skew >= 0 && skew <= oldest {
				continue
			}
			why := "It is newer than the API server, which is not supported"
			if skew > 0 {
				why = fmt.Sprintf("It is %d minor versions behind, and %d are supported", skew, oldest)
			}
			s := Suspect{Vars: map[string]string{"kubelet": kubelet, "version": cluster.Version, "nodes": fmt.Sprintf("%d nodes", len(list)), "why": why}}
			for _, n := range list {
				s.Subjects = append(s.Subjects, Ref{Kind: "Node", Name: n.Name})
			}
			found = append(found, s)
		}
		return found
	},
	Tests: []Test{{Asks: "is kubelet {kubelet} outside what control plane {version} supports?", Run: func(_ *probes.Facts, s Suspect) Answer {
		return Answered(true, SawObject("nodes", "", s.Subjects[0].Name, "node %s has kubelet %s", s.Subjects[0].Name, s.Vars["kubelet"]), Saw("aws/eks/describe-cluster", nil, "the control plane is %s", s.Vars["version"]))
	}}},
}

// instanceLost: an instance that Karpenter made runs on without NodeClaim and
// node. Source: incident destroy-karpenter-nodes.
var instanceLost = &Rule{
	ID: "instance-karpenter-lost", Latent: true, Needs: []probes.Any{probes.Nodes, probes.EKSCluster, claims, knownInstances},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		nodes, err := probes.Nodes.Of(facts)
		claimList, claimErr := claims.Of(facts)
		instances, _ := knownInstances.Of(facts)
		cluster := clusterName(facts)
		if err != nil || claimErr != nil || instances == nil || cluster == "" {
			return nil
		}
		taken := map[string]bool{}
		for _, n := range nodes.All() {
			taken[instanceID(n.Spec.ProviderID)] = true
		}
		for _, c := range claimList.All() {
			taken[instanceID(c.Status.ProviderID)] = true
		}
		s := Suspect{}
		for _, i := range instances.All() {
			running := i.State != nil && i.State.Name == ec2.InstanceStateNameRunning
			if !running || taken[str(i.InstanceId)] || tagValue(i.Tags, "karpenter.sh/nodepool") == "" || !madeAsNode(i, cluster) || i.LaunchTime == nil || facts.Source().Now().Sub(*i.LaunchTime) < joinPatience {
				continue
			}
			s.Subjects = append(s.Subjects, Ref{Kind: "Instance", Name: str(i.InstanceId)})
			s.Found = append(s.Found, Saw("aws/ec2/describe-instances", []string{str(i.InstanceId)}, "instance %s of NodePool %s runs since %s; no node and no NodeClaim has it", str(i.InstanceId), tagValue(i.Tags, "karpenter.sh/nodepool"), stamp(*i.LaunchTime)))
		}
		if len(s.Subjects) == 0 {
			return nil
		}
		var ids []string
		for _, r := range s.Subjects {
			ids = append(ids, r.Name)
		}
		s.Count, s.Vars = len(ids), map[string]string{"ids": strings.Join(ids[:min(len(ids), 2*maxExamples)], " ")}
		return []Suspect{s}
	},
	Tests: []Test{{Asks: "do they run without NodeClaim and node?", Run: func(_ *probes.Facts, s Suspect) Answer {
		return Answered(true, s.Found[:min(len(s.Found), maxExamples)]...)
	}}},
}

var vanishRules = []*Rule{groupDrift, amiDriftDefect, versionSkew, instanceLost}
