package diagnose

import (
	"maps"
	"slices"
	"strings"

	"github.com/pposiraegi/ppodoctor/probes"
)

// dnsCutOffPodGroups: pods that carry security groups of their own reach no
// CoreDNS. What cuts them off is their SecurityGroupPolicy's groups, whatever
// node they are on; so the node's class is not at fault.
// Source: EKS user guide, "Security groups for Pods" (the pods' group needs
// port 53, UDP and TCP, to the group of CoreDNS's nodes, which must admit it).
var dnsCutOffPodGroups = &Rule{
	ID:       "dns-cut-off-from-pod-groups",
	Explains: []*Rule{nameLookupsFail},
	Needs:    slices.Concat(dnsFacts, []probes.Any{probes.SecurityGroupPolicies, probes.ServiceAccounts}),
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		dns, err := findDNS(facts)
		world, worldErr := probes.Network.Of(facts)
		if err != nil || worldErr != nil || dns == nil || len(dns.pods) == 0 {
			return nil
		}
		origins, hurt, policies := map[string]*origin{}, map[string][]*Finding{}, map[string][]Ref{}
		for _, e := range effects {
			t := e.Data.(*lookupTrouble)
			for _, p := range slices.Concat(t.pods, t.unread) {
				if !hasBranch(p) {
					continue
				}
				groups, _, _ := world.GroupsOfPod(p)
				key := p.Namespace + " " + strings.Join(groups, " ")
				if origins[key] == nil {
					origins[key] = &origin{key: key}
				}
				o := origins[key]
				o.pods = append(o.pods, p)
				o.nodes = appendNew(o.nodes, p.Spec.NodeName)
				hurt[key] = appendNew(hurt[key], e)
				named, _ := branchPolicies(facts, p)
				for _, s := range named {
					policies[key] = appendNew(policies[key], Ref{Kind: "SecurityGroupPolicy", Namespace: s.Namespace, Name: s.Name})
				}
			}
		}
		var found []Suspect
		for _, key := range slices.Sorted(maps.Keys(origins)) {
			o := origins[key]
			s := Suspect{Effects: hurt[key], Data: o, Vars: map[string]string{"policies": "its SecurityGroupPolicy", "from": "pod " + o.pods[0].Name, "pod": o.pods[0].Name, "podNamespace": o.pods[0].Namespace}}
			if subject := groupSubject(world, dns, o); subject.Kind == "SecurityGroup" {
				s.Subjects = []Ref{subject}
			}
			s.Subjects = append(s.Subjects, policies[key]...)
			if len(s.Subjects) == 0 {
				s.Subjects = []Ref{podRef(o.pods[0])}
			}
			var names []string
			for _, r := range policies[key] {
				names = append(names, r.Name)
			}
			if len(names) > 0 {
				s.Vars["policies"] = "SecurityGroupPolicy " + strings.Join(names, ", ")
			}
			s.Vars["mine"], s.Vars["theirs"] = nameGroups(world, originGroups(world, o)), nameGroups(world, dnsGroups(world, dns))
			s.Vars["rule"] = "aws ec2 authorize-security-group-ingress --group-id GROUP-OF-COREDNS --ip-permissions IpProtocol=udp,FromPort=53,ToPort=53,UserIdGroupPairs=[{GroupId=GROUP-OF-THE-PODS}]"
			found = append(found, s)
		}
		return found
	},
	Tests: []Test{
		{Asks: "do the security groups let nothing through on port 53 from {from}, which carries groups of its own, to CoreDNS?", Needs: dnsFacts, Run: askGroups},
		{Asks: "did these lookups get no answer at all?", Run: func(_ *probes.Facts, s Suspect) Answer { return unanswered(s.Effects) }},
	},
}
