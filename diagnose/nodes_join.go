package diagnose

import (
	"fmt"
	"slices"
	"strings"
	"time"

	ec2 "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// notJoining are the effects of what keeps instances from being nodes.
var notJoining = []*Rule{nodeClaimNotRegistered, instanceWithoutNode, nodeNotReady, eksIssues, noNodeFromKarpenter, poolNotReady, nodesNotReady}

// A newcomer is instances that are to be nodes and are none, or no longer,
// with what they have in common: the class or node group that they are made
// from, and the role that they come with.
type newcomer struct {
	role    string // the name of the IAM role that they are to come with; empty where it isn't known
	profile string // the instance profile that they really have; empty where it isn't known
	has     string // the role in that profile; empty where it isn't known
	class   *probes.EC2NodeClass
	group   *probes.NodeGroup
	claims  []string
	nodes   []string // that were nodes, and say nothing any more
	ids     []string // of instances
	since   time.Time
	effects []*Finding
}

// joinFacts are what newcomers reads.
var joinFacts = []probes.Any{claims, classes, pools, probes.Nodes, knownInstances, probes.NodeGroups, probes.Roles}

// newcomers groups the effects by what the instances are made from.
func newcomers(facts *probes.Facts, effects []*Finding) []*newcomer {
	classList, err := classes.Of(facts)
	if err != nil {
		return nil
	}
	instances, _ := knownInstances.Of(facts)
	groupList, _ := probes.NodeGroups.Of(facts)
	byKey := map[string]*newcomer{}
	at := func(class, group, profile string, since time.Time, e *Finding) *newcomer {
		if e.Rule != nodeNotReady {
			profile = "" // only nodes that once joined can have lost their profile
		}
		key := class + "\n" + group + "\n" + profile
		n := byKey[key]
		if n == nil {
			n = &newcomer{class: classList.Get("", class), profile: profile, since: since}
			if groupList != nil {
				n.group = groupList.Get(group)
			}
			byKey[key] = n
		}
		if since.Before(n.since) {
			n.since = since
		}
		n.effects = appendNew(n.effects, e)
		return n
	}
	instanceOf := func(providerID string) *ec2.Instance {
		if instances == nil {
			return nil
		}
		return instances.Get(instanceID(providerID))
	}
	claim := func(c *probes.NodeClaim, e *Finding) {
		n := at(classRef(c.Spec.NodeClassRef), "", profileOf(instanceOf(c.Status.ProviderID)), c.CreationTimestamp.Time, e)
		n.claims, n.ids = appendNew(n.claims, c.Name), appendNew(n.ids, instanceID(c.Status.ProviderID))
	}
	for _, e := range effects {
		switch object := e.Data.(type) {
		case *probes.NodeClaim:
			claim(object, e)
		case *probes.NodePool:
			if e.Rule != nodeClaimNotRegistered {
				continue
			}
			since := object.CreationTimestamp.Time
			if e.Since != nil {
				since = *e.Since
			}
			at(classRef(object.Spec.Template.Spec.NodeClassRef), "", "", since, e)
		case *ec2.Instance:
			n := at("", tagValue(object.Tags, "eks:nodegroup-name"), profileOf(object), *object.LaunchTime, e)
			n.ids = appendNew(n.ids, str(object.InstanceId))
		case *corev1.Node:
			c := nodeCondition(object, corev1.NodeReady)
			if e.Rule != nodeNotReady || c == nil || !isAWS(object) || c.Status != corev1.ConditionUnknown && !strings.Contains(c.Message, "Unauthorized") {
				continue // its kubelet still speaks
			}
			n := at(object.Labels["karpenter.k8s.aws/ec2nodeclass"], object.Labels["eks.amazonaws.com/nodegroup"], profileOf(instanceOf(object.Spec.ProviderID)), c.LastTransitionTime.Time, e)
			n.nodes, n.ids = appendNew(n.nodes, object.Name), appendNew(n.ids, instanceID(object.Spec.ProviderID))
		case eksTrouble:
			if object.group != nil && slices.ContainsFunc(object.issues, func(i probes.EKSIssue) bool { return i.Code == "NodeCreationFailure" || i.Code == "AccessDenied" }) {
				n := at("", object.group.Name, "", object.group.CreatedAt, e)
				for _, i := range object.issues {
					n.ids = appendNew(n.ids, i.ResourceIDs...)
				}
			}
		}
	}
	var all []*newcomer
	for _, key := range sortedKeys(byKey) {
		n := byKey[key]
		n.role = roleOf(facts, n)
		if roles, err := probes.Roles.Of(facts); err == nil && n.profile != "" {
			if held, err := roles.Profile(n.profile); err == nil && len(held) == 1 {
				n.has = held[0]
			}
		}
		for _, c := range perClass(facts, effects) {
			if n.class != nil && c.name == n.class.Name && len(n.claims) > 0 {
				n.effects = appendNew(n.effects, c.effects...)
			}
		}
		for _, e := range effects { // pods that wait for nodes that are not ready
			if e.Rule == nodesNotReady && slices.ContainsFunc(e.Subjects, func(r Ref) bool { return r.Kind == "Node" && slices.Contains(n.nodes, r.Name) }) {
				n.effects = appendNew(n.effects, e)
			}
		}
		all = append(all, n)
	}
	return all
}

func profileOf(i *ec2.Instance) string {
	if i == nil || i.IamInstanceProfile == nil {
		return ""
	}
	return probes.RoleName(str(i.IamInstanceProfile.Arn))
}

// roleOf is the role that instances are to come with.
func roleOf(facts *probes.Facts, n *newcomer) string {
	switch {
	case n.class != nil && n.class.Spec.Role != "":
		return probes.RoleName(n.class.Spec.Role)
	case n.class != nil && n.class.Spec.InstanceProfile != "":
		if roles, err := probes.Roles.Of(facts); err == nil {
			if held, err := roles.Profile(n.class.Spec.InstanceProfile); err == nil && len(held) == 1 {
				return held[0]
			}
		}
	case n.group != nil:
		return probes.RoleName(n.group.NodeRole)
	}
	return ""
}

// who names the instances in a sentence.
func (n *newcomer) who() string {
	list := n.claims
	if len(list) == 0 {
		list = n.nodes
	}
	if len(list) == 0 {
		list = n.ids
	}
	more := ""
	if len(list) > maxExamples {
		more = fmt.Sprintf(" and %d more", len(list)-maxExamples)
	}
	return orDefault(strings.Join(list[:min(len(list), maxExamples)], ", ")+more, "its instances")
}

// made is what the instances are made from, as the object to change.
func (n *newcomer) made() Ref {
	switch {
	case n.class != nil:
		return Ref{Kind: "EC2NodeClass", Name: n.class.Name}
	case n.group != nil:
		return Ref{Kind: "NodeGroup", Name: n.group.Name}
	}
	return Ref{Kind: "Instance", Name: orDefault(strings.Join(n.ids[:min(1, len(n.ids))], ""), "unknown")}
}

// found says when the instances were asked for, or fell silent.
func (n *newcomer) found() []Evidence {
	var list []Evidence
	for _, c := range n.claims[:min(len(n.claims), maxExamples)] {
		list = append(list, SawObject("nodeclaims.karpenter.sh", "", c, "NodeClaim %s has an instance, and it has not registered as a node", c))
	}
	if len(n.nodes) > 0 {
		list = append(list, Saw("nodes", n.nodes[:1], "%d nodes have said nothing since %s: %s", len(n.nodes), stamp(n.since), n.who()))
	}
	return list
}

// joinRule is a rule for what keeps instances from being nodes, one suspect
// for each kind of newcomer that applies takes.
func joinRule(id, asks string, needs []probes.Any, applies func(*newcomer) bool, who func(*probes.Facts, *newcomer) []Ref, test func(*probes.Facts, *newcomer) Answer) *Rule {
	return &Rule{
		ID: id, Explains: notJoining, Needs: slices.Concat(joinFacts, needs),
		Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
			var found []Suspect
			for _, n := range newcomers(facts, effects) {
				if applies != nil && !applies(n) {
					continue
				}
				subjects := []Ref{n.made()}
				if who != nil {
					subjects = who(facts, n)
				}
				found = append(found, Suspect{
					Subjects: subjects, Effects: n.effects, Data: n, Found: n.found(),
					Vars: map[string]string{"claims": n.who(), "made": short(n.made()), "role": n.role},
				})
			}
			return found
		},
		Tests: []Test{{Asks: asks, Needs: needs, Run: func(facts *probes.Facts, s Suspect) Answer {
			return test(facts, s.Data.(*newcomer))
		}}},
	}
}
