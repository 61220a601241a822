package diagnose

import (
	"fmt"
	"strings"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/userdata"
)

// told is the user data of newcomers, with where it stands.
func (n *newcomer) told(facts *probes.Facts) (text string, subject Ref, from Evidence, merged bool, err error) {
	switch {
	case n.class != nil:
		family := familyOf(n)
		return n.class.Spec.UserData, n.made(), SawObject("ec2nodeclasses.karpenter.k8s.aws", "", n.class.Name, "EC2NodeClass %s: spec.userData", n.class.Name), family != "Custom", nil
	case n.group != nil && n.group.LaunchTemplate != nil:
		versions, err := probes.LaunchTemplateVersions.Of(facts)
		if err != nil {
			return "", n.made(), Evidence{}, true, err
		}
		lt := n.group.LaunchTemplate
		for _, v := range versions.All() {
			if (str(v.LaunchTemplateId) == lt.ID || str(v.LaunchTemplateName) == lt.Name) && v.VersionNumber != nil && fmt.Sprint(*v.VersionNumber) == lt.Version && v.LaunchTemplateData != nil {
				ref := Ref{Kind: "LaunchTemplate", Name: orDefault(str(v.LaunchTemplateName), lt.ID)}
				return str(v.LaunchTemplateData.UserData), ref, Saw("aws/ec2/describe-launch-template-versions", []string{lt.ID}, "launch template %s version %s: its user data", ref.Name, lt.Version), str(v.LaunchTemplateData.ImageId) == "", nil
			}
		}
	}
	return "", n.made(), Evidence{}, true, nil
}

// familyOf is the image family of newcomers, or "".
func familyOf(n *newcomer) string {
	if n.class != nil {
		for _, t := range n.class.Spec.AMISelectorTerms {
			if name, _, ok := strings.Cut(t.Alias, "@"); ok {
				return map[string]string{"al2": "AL2", "al2023": "AL2023", "bottlerocket": "Bottlerocket"}[name]
			}
		}
		return n.class.Spec.AMIFamily
	}
	if n.group != nil {
		for prefix, family := range map[string]string{"AL2_": "AL2", "AL2023": "AL2023", "BOTTLEROCKET": "Bottlerocket", "WINDOWS": "Windows", "CUSTOM": "Custom"} {
			if strings.HasPrefix(n.group.AMIType, prefix) {
				return family
			}
		}
	}
	return ""
}

var userDataNeeds = []probes.Any{probes.LaunchTemplateVersions, probes.EKSCluster}

func userDataSubjects(facts *probes.Facts, n *newcomer) []Ref {
	_, subject, _, _, _ := n.told(facts)
	if subject != n.made() {
		return []Ref{subject, n.made()}
	}
	return []Ref{subject}
}

// userDataBroken: what the instances are told when they boot can't be read as
// it is meant, so that no kubelet starts. Sources: incidents
// join-userdata-newline, join-nodeconfig-shape.
var userDataBroken = joinRule("user-data-broken", "does the user data of {made} keep the kubelet from starting?", userDataNeeds, newcomersOnly, userDataSubjects,
	func(facts *probes.Facts, n *newcomer) Answer {
		text, subject, from, merged, err := n.told(facts)
		if err != nil {
			return CantTell(err).With("says", "it could not be read")
		}
		r := userdata.Parse(text, merged)
		problems := r.Problems
		family := familyOf(n)
		if r.Family != userdata.Unknown && family != "" && family != "Custom" && string(r.Family) != family {
			problems = append(problems, fmt.Sprintf("it is written for %s, and the images are %s", familyWords[r.Family], family))
		}
		if len(problems) == 0 {
			from.Says += orDefault(map[bool]string{true: " is empty"}[text == ""], " reads as it is meant")
			return Answered(false, from)
		}
		says := strings.Join(problems, "; ")
		from.Says += ": " + says
		return Answered(true, from).With("says", says).With("subjectUserData", short(subject))
	})

var familyWords = map[userdata.Family]string{
	userdata.AL2: "AL2 (/etc/eks/bootstrap.sh)", userdata.AL2023: "AL2023 (a NodeConfig for nodeadm)", userdata.Bottlerocket: "Bottlerocket (TOML settings)", userdata.Windows: "Windows",
}

// userDataOfOtherCluster: the user data names another cluster, endpoint or
// certificate.
var userDataOfOtherCluster = joinRule("user-data-names-another-cluster", "does the user data of {made} name another cluster than this?", userDataNeeds, newcomersOnly, userDataSubjects,
	func(facts *probes.Facts, n *newcomer) Answer {
		text, _, from, merged, err := n.told(facts)
		if err != nil {
			return CantTell(err).With("says", "it could not be read")
		}
		told := userdata.Parse(text, merged).Cluster
		if told == (userdata.Cluster{}) {
			from.Says += " names no cluster"
			return Answered(false, from)
		}
		cluster, err := probes.EKSCluster.Of(facts)
		if err != nil {
			return CantTell(err).With("says", "the cluster was not described")
		}
		var wrong []string
		for _, f := range []struct{ what, told, right string }{
			{"the cluster's name", told.Name, cluster.Name}, {"the endpoint", told.Endpoint, cluster.Endpoint}, {"the service CIDR", told.CIDR, orDefault(cluster.Network.ServiceIPv4CIDR, cluster.Network.ServiceIPv6CIDR)},
		} {
			if f.told != "" && f.right != "" && !strings.Contains(f.told, "$") && !strings.EqualFold(strings.TrimSuffix(f.told, "/"), f.right) {
				wrong = append(wrong, fmt.Sprintf("%s is %s there; the cluster has %s", f.what, f.told, f.right))
			}
		}
		says := strings.Join(wrong, "; ")
		from.Says += ": " + orDefault(says, "it names this cluster")
		return Answered(len(wrong) > 0, from).With("says", says)
	})
