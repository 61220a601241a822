package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pposiraegi/ppodoctor/probes"
)

// eksTrouble is a node group or an add-on of which EKS itself says what is
// wrong; one of the two is set.
type eksTrouble struct {
	group  *probes.NodeGroup
	addon  *probes.Addon
	issues []probes.EKSIssue
}

// eksIssues: EKS says that a node group or an add-on has issues.
var eksIssues = &Rule{
	ID: "eks-reports-issues", Needs: []probes.Any{knownNodeGroups, knownAddons},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		var found []Suspect
		add := func(ref Ref, document, status string, t eksTrouble) {
			failed := strings.HasSuffix(status, "FAILED") || status == "DEGRADED"
			if !failed && len(t.issues) == 0 {
				return
			}
			s := Suspect{Subjects: []Ref{ref}, Data: t}
			var says []string
			for _, i := range t.issues {
				says = append(says, fmt.Sprintf("%s: %s", i.Code, i.Message))
				s.Found = append(s.Found, Saw(document, []string{ref.Name}, "EKS says of %s (%s): %s: %s [%s]", short(ref), status, i.Code, i.Message, strings.Join(i.ResourceIDs, ", ")))
			}
			if len(says) == 0 {
				says = []string{"its status is " + status}
				s.Found = append(s.Found, Saw(document, []string{ref.Name}, "%s has status %s", short(ref), status))
			}
			s.Vars = map[string]string{"says": strings.Join(says, "; ")}
			found = append(found, s)
		}
		if groups, err := knownNodeGroups.Of(facts); err == nil && groups != nil {
			for i, g := range groups.All() {
				add(Ref{Kind: "NodeGroup", Name: g.Name}, "aws/eks/describe-nodegroup", g.Status, eksTrouble{group: &groups.All()[i], issues: g.Health.Issues})
			}
		}
		if addons, err := knownAddons.Of(facts); err == nil && addons != nil {
			for i, a := range addons.All() {
				add(Ref{Kind: "Addon", Name: a.Name}, "aws/eks/describe-addon", a.Status, eksTrouble{addon: &addons.All()[i], issues: a.Health.Issues})
			}
		}
		return found
	},
}

// plainIssues are the codes that name the fault themselves, with the kind of
// what they point at. Source: EKS API reference, Issue and AddonIssue.
var plainIssues = map[string]string{
	"AutoScalingGroupNotFound": "AutoScalingGroup", "Ec2LaunchTemplateNotFound": "LaunchTemplate", "Ec2LaunchTemplateVersionMismatch": "LaunchTemplate",
	"Ec2SecurityGroupNotFound": "SecurityGroup", "Ec2SecurityGroupDeletionFailure": "SecurityGroup", "Ec2SubnetNotFound": "Subnet",
	"Ec2SubnetInvalidConfiguration": "Subnet", "Ec2SubnetMissingIpv6Assignment": "Subnet", "IamInstanceProfileNotFound": "InstanceProfile",
	"IamNodeRoleNotFound": "IAMRole", "IamLimitExceeded": "ServiceQuota", "InstanceLimitExceeded": "ServiceQuota", "InsufficientFreeAddresses": "Subnet",
	"SourceEc2LaunchTemplateNotFound": "LaunchTemplate", "Ec2LaunchTemplateDeletionFailure": "LaunchTemplate", "Ec2LaunchTemplateMaxLimitExceeded": "LaunchTemplate",
	"Ec2LaunchTemplateInvalidConfiguration": "LaunchTemplate", "Ec2SubnetListTooLong": "Subnet", "Ec2InstanceTypeDoesNotExist": "NodeGroup", "KubernetesLabelInvalid": "NodeGroup",
	"AutoScalingGroupInvalidConfiguration": "AutoScalingGroup", "AutoScalingGroupOptInRequired": "AutoScalingGroup", "AutoScalingGroupRateLimitExceeded": "ServiceQuota",
	"LimitExceeded": "ServiceQuota", "AmiIdNotFound": "Image", "ConfigurationConflict": "Addon", "UnsupportedAddonModification": "Addon", "AdmissionRequestDenied": "Addon",
	"AddonSubscriptionNeeded": "Addon", "AddonPermissionFailure": "Addon",
}

// eksSaysWhy: the code of the issue is the fault.
var eksSaysWhy = &Rule{
	ID: "eks-names-the-fault", Explains: []*Rule{eksIssues},
	Suspects: func(_ *probes.Facts, effects []*Finding) []Suspect {
		var found []Suspect
		for _, e := range effects {
			t, ok := e.Data.(eksTrouble)
			if !ok {
				continue
			}
			for _, i := range t.issues {
				kind, plain := plainIssues[i.Code]
				if !plain {
					continue
				}
				subjects := []Ref{e.Subject()}
				if kind != "Addon" && kind != "NodeGroup" && len(i.ResourceIDs) > 0 && i.ResourceIDs[0] != e.Subject().Name {
					subjects = append([]Ref{{Kind: kind, Name: probes.RoleName(i.ResourceIDs[0])}}, subjects...)
				}
				found = append(found, Suspect{Subjects: subjects, Effects: []*Finding{e}, Data: i, Vars: map[string]string{"code": i.Code, "says": i.Message, "of": short(e.Subject()), "what": strings.Join(i.ResourceIDs, ", ")}})
			}
		}
		return found
	},
	Tests: []Test{{Asks: "does EKS say {code} of {of}?", Run: func(_ *probes.Facts, s Suspect) Answer {
		i := s.Data.(probes.EKSIssue)
		return Answered(true, Saw("aws/eks/describe-nodegroup", nil, "%s: %s [%s]", i.Code, i.Message, strings.Join(i.ResourceIDs, ", ")))
	}}},
}

// groupLaunchFault: the Auto Scaling group can't launch, and says in EC2's
// words why.
var groupLaunchFault = &Rule{
	ID: "node-group-launch-refused", Explains: []*Rule{eksIssues},
	Suspects: func(_ *probes.Facts, effects []*Finding) []Suspect {
		var found []Suspect
		for _, e := range effects {
			t, ok := e.Data.(eksTrouble)
			if !ok || t.group == nil {
				continue
			}
			for _, i := range t.issues {
				if i.Code != "AsgInstanceLaunchFailures" && i.Code != "Unknown" && i.Code != "InternalFailure" {
					continue
				}
				for _, row := range launchFaults {
					got := groups(row.re, i.Message)
					if got == nil || row.fault == vague {
						continue
					}
					s := Suspect{Subjects: []Ref{e.Subject()}, Effects: []*Finding{e}, Data: i, Vars: map[string]string{"says": i.Message, "group": t.group.Name, "fault": launchWords[row.fault]}}
					switch row.fault {
					case noSpotRole:
						s.Subjects = append([]Ref{{Kind: "IAMRole", Name: "AWSServiceRoleForEC2Spot"}}, s.Subjects...)
					case quotaReached:
						s.Subjects = append([]Ref{{Kind: "ServiceQuota", Name: got["code"]}}, s.Subjects...)
					case noAddresses:
						if id := subnetIn.FindString(i.Message); id != "" {
							s.Subjects = append([]Ref{{Kind: "Subnet", Name: id}}, s.Subjects...)
						}
					case noKey:
						s.Subjects = append(s.Subjects, Ref{Kind: "KMSKey", Name: "of the volumes"})
					}
					found = append(found, s)
					break
				}
			}
		}
		return found
	},
	Tests: []Test{{Asks: "does EC2 refuse the launches of node group {group}?", Run: func(_ *probes.Facts, s Suspect) Answer {
		i := s.Data.(probes.EKSIssue)
		return Answered(true, Saw("aws/eks/describe-nodegroup", []string{s.Vars["group"]}, "%s: %s", i.Code, i.Message))
	}}},
}

// launchWords say a fault of launching in a few words.
var launchWords = map[launchFault]string{
	refusedCall: "a call is not allowed", noSpotRole: "the service-linked role for spot is missing", noKey: "the key of the volume may not be used",
	profileUnknown: "the instance profile is not valid", otherNetworks: "groups and subnets are of different VPCs", tooManyGroups: "there are too many security groups",
	imageUnusable: "the image can't be used", templateMissing: "the launch template does not exist", quotaReached: "a quota is used up",
	dataRefused: "the disks or the user data are not valid", noAddresses: "the subnet has no free addresses", noCapacity: "EC2 has no capacity", notOffered: "the zone does not have the type",
	accountHeld: "AWS holds the account back", throttled: "EC2 is called too often",
}

// addonShort: an add-on's pods find no node that they may use.
// Source: incident addon-degraded-tainted.
var addonShort = &Rule{
	ID: "addon-finds-no-node", Explains: []*Rule{eksIssues, podPending}, Needs: []probes.Any{probes.Nodes, probes.Addons},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		nodes, err := probes.Nodes.Of(facts)
		if err != nil {
			return nil
		}
		var found []Suspect
		for _, e := range effects {
			t, ok := e.Data.(eksTrouble)
			if !ok || t.addon == nil || !slices.ContainsFunc(t.issues, func(i probes.EKSIssue) bool { return i.Code == "InsufficientNumberOfReplicas" }) {
				continue
			}
			s := Suspect{Subjects: []Ref{{Kind: "Addon", Name: t.addon.Name}}, Effects: []*Finding{e}, Data: nodes, Vars: map[string]string{"addon": t.addon.Name, "why": "there is no node", "taints": ""}}
			var taints []string
			for _, n := range nodes.All() {
				for _, taint := range n.Spec.Taints {
					taints = appendNew(taints, taint.ToString())
				}
			}
			for _, other := range effects {
				if other.Rule == podPending && other.Subject().Namespace == "kube-system" && other.Subject().Name == t.addon.Name {
					s.Effects = append(s.Effects, other)
				}
			}
			if nodes.Len() > 0 {
				s.Vars["why"], s.Vars["taints"] = "every node has a taint: "+strings.Join(taints, ", "), strings.Join(taints, ", ")
			}
			found = append(found, s)
		}
		return found
	},
	Tests: []Test{{Asks: "is there no node for add-on {addon} without a taint?", Needs: []probes.Any{probes.Nodes}, Run: func(facts *probes.Facts, s Suspect) Answer {
		nodes, err := probes.Nodes.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		free := 0
		for _, n := range nodes.All() {
			if len(n.Spec.Taints) == 0 {
				free++
			}
		}
		return Answered(free == 0, Saw("nodes", nil, "%d of %d nodes have no taint; %s", free, nodes.Len(), s.Vars["why"]))
	}}},
}

var eksRules = []*Rule{eksSaysWhy, groupLaunchFault, addonShort}
