package diagnose

import (
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// registering is how long an instance may take to become a node. Karpenter
// gives it 15 minutes; a healthy one takes one or two.
// Source: karpenter pkg/controllers/nodeclaim/lifecycle/liveness.go.
const registering = 5 * time.Minute

// A newcomer is a node role whose instances run and don't become nodes.
type newcomer struct {
	role    string // its name
	claims  []string
	classes []string
	since   time.Time
}

// newcomers are the roles of Karpenter's instances that don't register.
func newcomers(facts *probes.Facts) []newcomer {
	claims, err := probes.NodeClaims.Of(facts)
	if err != nil {
		return nil
	}
	classes, err := probes.EC2NodeClasses.Of(facts)
	if err != nil {
		return nil
	}
	var all []newcomer
	for _, c := range claims.All() {
		if c.Status.ProviderID == "" || c.Status.NodeName != "" || c.DeletionTimestamp != nil || facts.Source().Now().Sub(c.CreationTimestamp.Time) < registering {
			continue
		}
		if slices.ContainsFunc(c.Status.Conditions, func(x metav1.Condition) bool { return x.Type == "Registered" && x.Status == "True" }) {
			continue
		}
		class := classes.Get("", c.Spec.NodeClassRef.Name)
		if class == nil || class.Spec.Role == "" {
			continue
		}
		name := probes.RoleName(class.Spec.Role)
		i := slices.IndexFunc(all, func(n newcomer) bool { return n.role == name })
		if i < 0 {
			all, i = append(all, newcomer{role: name, since: c.CreationTimestamp.Time}), len(all)
		}
		all[i].claims = append(all[i].claims, c.Name)
		all[i].classes = appendNew(all[i].classes, class.Name)
	}
	return all
}

// accessRule is a rule for node roles that the cluster doesn't let in.
func accessRule(id, asks string, at probes.StepName) *Rule {
	return &Rule{
		ID: id, Explains: []*Rule{noNodeFromKarpenter, poolNotReady},
		Needs: []probes.Any{probes.NodeClaims, probes.EC2NodeClasses},
		Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
			var suspects []Suspect
			for _, n := range newcomers(facts) {
				s := Suspect{Subjects: []Ref{{Kind: "IAMRole", Name: n.role}}, Effects: effects, Data: n, Vars: map[string]string{"role": n.role, "says": "what lets it in could not be read", "cluster": "CLUSTER", "roleARN": n.role, "claims": strings.Join(n.claims[:min(3, len(n.claims))], ", ")}}
				for _, c := range n.classes {
					s.Subjects = append(s.Subjects, Ref{Kind: "EC2NodeClass", Name: c})
				}
				for _, c := range n.claims[:min(3, len(n.claims))] {
					s.Found = append(s.Found, SawObject("nodeclaims.karpenter.sh", "", c, "NodeClaim %s has an instance since %s, and it has not registered as a node", c, stamp(n.since)))
				}
				suspects = append(suspects, s)
			}
			return suspects
		},
		Tests: []Test{{
			Asks: asks, Needs: []probes.Any{probes.AccessEntries, probes.EKSCluster, probes.ConfigMaps, probes.Roles, probes.Nodes},
			Run: func(facts *probes.Facts, s Suspect) Answer {
				a := answerOf(mapping(facts, s.Data.(newcomer).role), at)
				if a.Truth == Yes {
					cluster := "CLUSTER"
					if c, err := probes.EKSCluster.Of(facts); err == nil {
						cluster = c.Name
					}
					a = a.With("cluster", cluster).With("roleARN", arnOf(facts, s.Data.(newcomer).role))
				}
				return a
			},
		}},
	}
}

// arnOf is the ARN of a node's role, from whichever document names it.
func arnOf(facts *probes.Facts, name string) string {
	if roles, err := probes.Roles.Of(facts); err == nil {
		if r := roles.Named(name); r != nil && r.ARN != "" {
			return r.ARN
		}
	}
	if entries, err := probes.AccessEntries.Of(facts); err == nil {
		for _, e := range entries.All() {
			if probes.RoleName(e.PrincipalARN) == name {
				return e.PrincipalARN
			}
		}
	}
	if c, err := probes.EKSCluster.Of(facts); err == nil {
		if parts := strings.SplitN(c.ARN, ":", 6); len(parts) == 6 {
			return "arn:" + parts[1] + ":iam::" + parts[4] + ":role/" + name
		}
	}
	return name
}

// mapping is the chain from a node's role into the cluster. Of access entries
// that were captured one by one, those are taken for all if there is one for
// the role of every node that did join: whoever captured them, captured nodes'.
func mapping(facts *probes.Facts, role string) []probes.Step {
	cluster, _ := probes.EKSCluster.Of(facts)
	entries, entriesErr := probes.AccessEntries.Of(facts)
	mapped, mappedErr := probes.MappedRoles(facts)
	if entriesErr == nil && !entries.Listed {
		nodeEntries := slices.ContainsFunc(entries.All(), func(e probes.AccessEntry) bool { return strings.HasPrefix(e.Type, "EC2") })
		nodes, err := probes.Nodes.Of(facts)
		if err == nil && nodes.Len() > 0 && nodeEntries {
			entries = &probes.AccessList{AWSList: entries.AWSList, Listed: true}
		}
	}
	return probes.NodeMapping(cluster, entries, entriesErr, mapped, mappedErr, arnOf(facts, role))
}

// nodeRoleNotMapped: the cluster lets nobody in with the node's role.
var nodeRoleNotMapped = accessRule("node-role-not-mapped",
	"does neither an access entry nor aws-auth let role {role} into the cluster?", probes.StepMapped)

// accessEntryWrongType: the cluster lets the role in, but not as a node.
var accessEntryWrongType = accessRule("access-entry-wrong-type",
	"is role {role} let into the cluster, but not as a node?", probes.StepMappedAsNode)
