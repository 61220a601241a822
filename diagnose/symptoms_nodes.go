package diagnose

import (
	"fmt"
	"slices"
	"strings"
	"time"

	ec2 "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// How long the steps to a node may take before anybody would ask why.
const (
	launchPatience   = time.Minute
	registerPatience = 4 * time.Minute // a node is there one or two minutes after its launch
	initPatience     = 5 * time.Minute
	classPatience    = 2 * time.Minute
	joinPatience     = 10 * time.Minute // of instances that no NodeClaim dates
	removalPatience  = 15 * time.Minute
)

// nodeNotReady: a node's kubelet says that it can't run pods, or says nothing.
var nodeNotReady = &Rule{
	ID:    "node-not-ready",
	Needs: []probes.Any{probes.Nodes},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		nodes, err := probes.Nodes.Of(facts)
		if err != nil {
			return nil
		}
		now := facts.Source().Now()
		var found []Suspect
		for _, n := range nodes.All() {
			c := nodeCondition(n, corev1.NodeReady)
			if c == nil || c.Status == corev1.ConditionTrue || n.DeletionTimestamp != nil || now.Sub(c.LastTransitionTime.Time) < patience || now.Sub(n.CreationTimestamp.Time) < 2*patience {
				continue
			}
			found = append(found, Suspect{
				Subjects: []Ref{{Kind: "Node", Name: n.Name}}, Since: &c.LastTransitionTime.Time, Data: n,
				Vars:  map[string]string{"status": string(c.Status), "reason": c.Reason, "message": c.Message},
				Found: []Evidence{sawNodeCondition(n, c)},
			})
		}
		return found
	},
}

func nodeCondition(n *corev1.Node, t corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == t {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

func sawNodeCondition(n *corev1.Node, c *corev1.NodeCondition) Evidence {
	at := c.LastTransitionTime.Time
	e := SawObject("nodes", "", n.Name, "node %s: %s=%s, %s: %s", n.Name, c.Type, c.Status, c.Reason, c.Message)
	e.At = &at
	return e
}

// nodePressed: a node reports that its memory, disk or processes run out.
var nodePressed = &Rule{
	ID:    "node-under-pressure",
	Needs: []probes.Any{probes.Nodes},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		nodes, err := probes.Nodes.Of(facts)
		if err != nil {
			return nil
		}
		var found []Suspect
		for _, n := range nodes.All() {
			for _, t := range []corev1.NodeConditionType{corev1.NodeDiskPressure, corev1.NodeMemoryPressure, corev1.NodePIDPressure} {
				if c := nodeCondition(n, t); c != nil && c.Status == corev1.ConditionTrue && n.DeletionTimestamp == nil {
					found = append(found, Suspect{
						Subjects: []Ref{{Kind: "Node", Name: n.Name}}, Since: &c.LastTransitionTime.Time, Data: n,
						Vars: map[string]string{"pressure": string(t)}, Found: []Evidence{sawNodeCondition(n, c)},
					})
				}
			}
		}
		return found
	},
}

// claimStep is how far a NodeClaim came: the condition that is not true yet,
// or nil. Before Karpenter v1 a pending condition is False, since then Unknown.
func claimStep(c *probes.NodeClaim, t string) *metav1.Condition {
	k := meta.FindStatusCondition(c.Status.Conditions, t)
	if k == nil {
		return &metav1.Condition{Type: t, Status: metav1.ConditionUnknown, LastTransitionTime: c.CreationTimestamp}
	}
	if k.Status == metav1.ConditionTrue {
		return nil
	}
	return k
}

// lateClaims makes a symptom of the NodeClaims that have waited too long for a
// step after the one before it was done.
func lateClaims(step, before string, patience time.Duration) func(*probes.Facts, []*Finding) []Suspect {
	return func(facts *probes.Facts, _ []*Finding) []Suspect {
		list, err := claims.Of(facts)
		if err != nil {
			return nil
		}
		var found []Suspect
		for _, c := range list.All() {
			k := claimStep(c, step)
			if k == nil || c.DeletionTimestamp != nil {
				continue
			}
			since := c.CreationTimestamp.Time
			if before != "" {
				if claimStep(c, before) != nil {
					continue
				}
				since = meta.FindStatusCondition(c.Status.Conditions, before).LastTransitionTime.Time
			}
			// A step that Karpenter itself calls failed needs no patience.
			failed := before == "" && k.Reason != "" && k.Reason != "AwaitingReconciliation" && k.Message != ""
			if !failed && facts.Source().Now().Sub(since) < patience {
				continue
			}
			at := since
			e := SawObject("nodeclaims.karpenter.sh", "", c.Name, "NodeClaim %s (NodePool %s) is not %s since %s: %s=%s, %s: %s", c.Name, c.Labels["karpenter.sh/nodepool"], step, at.UTC().Format(time.RFC3339), step, k.Status, k.Reason, k.Message)
			e.At = &at
			found = append(found, Suspect{
				Subjects: []Ref{{Kind: "NodeClaim", Name: c.Name}}, Since: &at, Data: c, Found: []Evidence{e},
				Vars: map[string]string{"pool": c.Labels["karpenter.sh/nodepool"], "reason": k.Reason, "message": k.Message},
			})
		}
		return found
	}
}

// nodeClaimNotLaunched: Karpenter asked for a node and has got no instance.
var nodeClaimNotLaunched = &Rule{
	ID: "nodeclaim-not-launched", Needs: []probes.Any{claims, pools},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		return append(lateClaims("Launched", "", launchPatience)(facts, effects), registrationFailures(facts, false)...)
	},
}

// nodeClaimNotRegistered: an instance runs, and no node came of it.
var nodeClaimNotRegistered = &Rule{
	ID: "nodeclaim-not-registered", Needs: []probes.Any{claims, pools},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		return append(lateClaims("Registered", "Launched", registerPatience)(facts, effects), registrationFailures(facts, true)...)
	},
}

// nodeClaimNotInitialized: a node is there, and Karpenter still waits for it.
var nodeClaimNotInitialized = &Rule{
	ID: "nodeclaim-not-initialized", Needs: []probes.Any{claims},
	Suspects: lateClaims("Initialized", "Registered", initPatience),
}

// registrationFailures are the NodePools of which Karpenter says that their
// latest nodes failed, though the NodeClaims are gone: it deletes them after
// 15 minutes, and that condition outlives them.
func registrationFailures(facts *probes.Facts, launched bool) []Suspect {
	list, err := pools.Of(facts)
	claimList, claimErr := claims.Of(facts)
	if err != nil || claimErr != nil {
		return nil
	}
	var found []Suspect
	for _, p := range list.All() {
		k := meta.FindStatusCondition(p.Status.Conditions, "NodeRegistrationHealthy")
		if k == nil || k.Status != metav1.ConditionFalse || launched != (k.Reason == "RegistrationFailed") {
			continue
		}
		waits := slices.ContainsFunc(claimList.All(), func(c *probes.NodeClaim) bool {
			return c.Labels["karpenter.sh/nodepool"] == p.Name && claimStep(c, "Registered") != nil &&
				(launched == (claimStep(c, "Launched") == nil))
		})
		if waits && !launched {
			continue
		}
		at := k.LastTransitionTime.Time
		e := SawObject("nodepools.karpenter.sh", "", p.Name, "NodePool %s: NodeRegistrationHealthy=False, %s: %s", p.Name, k.Reason, k.Message)
		e.At = &at
		found = append(found, Suspect{
			Subjects: []Ref{{Kind: "NodePool", Name: p.Name}}, Since: &at, Data: p, Found: []Evidence{e},
			Vars: map[string]string{"pool": p.Name, "reason": k.Reason, "message": k.Message},
		})
	}
	return found
}

// classNotReady: Karpenter can't make nodes from an EC2NodeClass.
var classNotReady = &Rule{
	ID: "nodeclass-not-ready", Needs: []probes.Any{classes},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		list, err := classes.Of(facts)
		if err != nil {
			return nil
		}
		var found []Suspect
		for _, c := range list.All() {
			says, since := classTrouble(c, facts.Source().Now())
			if says == "" {
				continue
			}
			found = append(found, Suspect{
				Subjects: []Ref{{Kind: "EC2NodeClass", Name: c.Name}}, Since: &since, Data: c,
				Found: []Evidence{SawObject("ec2nodeclasses.karpenter.k8s.aws", "", c.Name, "EC2NodeClass %s %s", c.Name, says)},
				Vars:  map[string]string{"says": says},
			})
		}
		return found
	},
}

// classTrouble is why an EC2NodeClass can't be used, or "". Up to Karpenter
// v0.36 it has no conditions: there, what its selectors found is all that says.
func classTrouble(c *probes.EC2NodeClass, now time.Time) (string, time.Time) {
	if c.DeletionTimestamp != nil {
		return fmt.Sprintf("is being deleted since %s", c.DeletionTimestamp.UTC().Format(time.RFC3339)), c.DeletionTimestamp.Time
	}
	ready := meta.FindStatusCondition(c.Status.Conditions, "Ready")
	if ready == nil {
		if len(c.Status.Conditions) > 0 || now.Sub(c.CreationTimestamp.Time) < classPatience || len(c.Status.Subnets)+len(c.Status.SecurityGroups)+len(c.Status.AMIs) == 0 && c.Status.InstanceProfile == "" && len(c.Spec.SubnetSelectorTerms) == 0 {
			return "", time.Time{}
		}
		var empty []string
		for _, f := range []struct {
			name string
			n    int
		}{{"subnets", len(c.Status.Subnets)}, {"securityGroups", len(c.Status.SecurityGroups)}, {"amis", len(c.Status.AMIs)}} {
			if f.n == 0 {
				empty = append(empty, "status."+f.name)
			}
		}
		if len(empty) == 0 || len(empty) == 3 && c.Status.InstanceProfile == "" {
			return "", time.Time{} // a stripped manifest says nothing
		}
		return "has an empty " + strings.Join(empty, ", "), c.CreationTimestamp.Time
	}
	since := ready.LastTransitionTime.Time
	if ready.Status == metav1.ConditionTrue || now.Sub(since) < classPatience {
		return "", since
	}
	says := fmt.Sprintf("is not Ready: Ready=%s, %s: %s", ready.Status, ready.Reason, ready.Message)
	for _, k := range c.Status.Conditions {
		if k.Type != "Ready" && k.Status != metav1.ConditionTrue && k.Reason != "DependenciesNotReady" {
			says += fmt.Sprintf("; %s=%s, %s: %s", k.Type, k.Status, k.Reason, k.Message)
		}
	}
	return says, since
}

// poolUnusable: Karpenter takes no NodePool that is not Ready.
var poolUnusable = &Rule{
	ID: "nodepool-unusable", Needs: []probes.Any{pools},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		list, err := pools.Of(facts)
		if err != nil {
			return nil
		}
		var found []Suspect
		for _, p := range list.All() {
			k := meta.FindStatusCondition(p.Status.Conditions, "Ready")
			if k == nil || k.Status == metav1.ConditionTrue || p.DeletionTimestamp != nil || facts.Source().Now().Sub(k.LastTransitionTime.Time) < classPatience {
				continue
			}
			says := fmt.Sprintf("Ready=%s, %s: %s", k.Status, k.Reason, k.Message)
			for _, other := range p.Status.Conditions {
				if other.Type != "Ready" && other.Type != "NodeRegistrationHealthy" && other.Status != metav1.ConditionTrue {
					says += fmt.Sprintf("; %s=%s, %s: %s", other.Type, other.Status, other.Reason, other.Message)
				}
			}
			at := k.LastTransitionTime.Time
			found = append(found, Suspect{
				Subjects: []Ref{{Kind: "NodePool", Name: p.Name}}, Since: &at, Data: p,
				Found: []Evidence{SawObject("nodepools.karpenter.sh", "", p.Name, "NodePool %s: %s", p.Name, says)}, Vars: map[string]string{"says": says},
			})
		}
		return found
	},
}

// instanceWithoutNode: an instance that was made to be a node of the cluster
// runs, and no Node and no NodeClaim is for it.
var instanceWithoutNode = &Rule{
	ID: "instance-without-node", Needs: []probes.Any{probes.Nodes, probes.EKSCluster, claims, knownInstances},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		nodes, err := probes.Nodes.Of(facts)
		claimList, claimErr := claims.Of(facts)
		instances, _ := knownInstances.Of(facts)
		if err != nil || claimErr != nil || instances == nil || nodes.Len() == 0 && claimList.Len() > 0 {
			return nil
		}
		cluster := clusterName(facts)
		taken := map[string]bool{}
		for _, n := range nodes.All() {
			taken[instanceID(n.Spec.ProviderID)] = true
		}
		for _, c := range claimList.All() {
			taken[instanceID(c.Status.ProviderID)] = true
		}
		var found []Suspect
		for _, i := range instances.All() {
			id := str(i.InstanceId)
			running := i.State != nil && i.State.Name == ec2.InstanceStateNameRunning
			if taken[id] || !running || i.LaunchTime == nil || facts.Source().Now().Sub(*i.LaunchTime) < joinPatience || !madeAsNode(i, cluster) {
				continue
			}
			group := tagValue(i.Tags, "eks:nodegroup-name")
			if pool := tagValue(i.Tags, "karpenter.sh/nodepool"); pool != "" {
				continue // an instance that Karpenter lost is another matter
			}
			at := *i.LaunchTime
			found = append(found, Suspect{
				Subjects: []Ref{{Kind: "Instance", Name: id}}, Since: &at, Data: &i, Vars: map[string]string{"group": orDefault(group, "none")},
				Found: []Evidence{Saw("aws/ec2/describe-instances", []string{id}, "instance %s (%s, node group %s) runs since %s, and no node has its provider ID", id, i.InstanceType, orDefault(group, "none"), at.UTC().Format(time.RFC3339))},
			})
		}
		return found
	},
}

// madeAsNode reports whether an instance's tags say that it is to be a node.
func madeAsNode(i ec2.Instance, cluster string) bool {
	if name := tagValue(i.Tags, "eks:cluster-name"); name != "" {
		return cluster == "" || name == cluster
	}
	return cluster != "" && (tagValue(i.Tags, "kubernetes.io/cluster/"+cluster) == "owned" || tagValue(i.Tags, "eks:eks-cluster-name") == cluster)
}

// nodeNotRemoved: a node that is to go stays.
var nodeNotRemoved = &Rule{
	ID: "node-not-removed", Needs: []probes.Any{probes.Nodes, claims},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		nodes, err := probes.Nodes.Of(facts)
		claimList, claimErr := claims.Of(facts)
		if err != nil || claimErr != nil {
			return nil
		}
		now := facts.Source().Now()
		var found []Suspect
		seen := map[string]bool{}
		add := func(ref Ref, resource string, o metav1.Object, data any) {
			at := o.GetDeletionTimestamp().Time
			if now.Sub(at) < removalPatience {
				return
			}
			e := SawObject(resource, "", o.GetName(), "%s %s is being deleted since %s and is still there; its finalizers: %s", ref.Kind, ref.Name, at.UTC().Format(time.RFC3339), strings.Join(o.GetFinalizers(), ", "))
			e.At = &at
			found = append(found, Suspect{Subjects: []Ref{ref}, Since: &at, Data: data, Found: []Evidence{e}, Vars: map[string]string{"since": at.UTC().Format(time.RFC3339)}})
		}
		for _, n := range nodes.All() {
			if n.DeletionTimestamp != nil {
				seen[n.Name] = true
				add(Ref{Kind: "Node", Name: n.Name}, "nodes", n, n)
			}
		}
		for _, c := range claimList.All() {
			if c.DeletionTimestamp != nil && !seen[c.Status.NodeName] {
				add(Ref{Kind: "NodeClaim", Name: c.Name}, "nodeclaims.karpenter.sh", c, c)
			}
		}
		return found
	},
}

var nodeSymptoms = []*Rule{
	nodeNotReady, nodePressed, nodeClaimNotLaunched, nodeClaimNotRegistered, nodeClaimNotInitialized, classNotReady, poolUnusable,
	instanceWithoutNode, nodeNotRemoved, eksIssues,
}
