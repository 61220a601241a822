package diagnose

import (
	"cmp"
	"regexp"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

var cniRefused = regexp.MustCompile(`MissingIAMPermissions|UnauthorizedOperation|is not authorized to perform: ec2:|AccessDenied`)

var assumedRole = regexp.MustCompile(`assumed-role/([\w+=,.@-]+)/`)

// cniNotPermitted: AWS refuses the calls of the VPC CNI that get addresses.
var cniNotPermitted = withRefusedCalls(sandboxRule("network-plugin-not-permitted", "does AWS refuse the calls of pod {cni} that get addresses?", []probes.Any{probes.VPCCNILogs, probes.ServiceAccounts, claims, classes, pools, knownInstances, knownNodeGroups, probes.Roles},
	sandboxReason, noAddressForPod, func(facts *probes.Facts, c sandboxCase) ([]Ref, map[string]string) {
		word, heard, _ := cniSays(facts, c, cniRefused)
		if !heard || lacksInjection(facts, c.cni) {
			return nil, nil
		}
		role := ""
		if m := assumedRole.FindStringSubmatch(word.Says); m != nil {
			role = m[1]
		}
		if role = cmp.Or(role, annotatedRole(facts, c.cni), nodeRoleOf(facts, c.node)); role == "" {
			return []Ref{{Kind: "DaemonSet", Namespace: c.cni.Namespace, Name: "aws-node"}}, map[string]string{"cni": c.cni.Name, "role": "of the VPC CNI"}
		}
		return []Ref{{Kind: "IAMRole", Name: role}, {Kind: "DaemonSet", Namespace: c.cni.Namespace, Name: "aws-node"}}, map[string]string{"cni": c.cni.Name, "role": role}
	}, func(facts *probes.Facts, c sandboxCase) Answer {
		word, _, _ := cniSays(facts, c, cniRefused)
		return Answered(true, word)
	}))

// withRefusedCalls lets a rule about the VPC CNI explain, too, that AWS refuses
// the plug-in's calls: the same refusal, seen from its log.
func withRefusedCalls(r *Rule) *Rule {
	find := r.Suspects
	r.Explains = append(r.Explains, awsCallsRefused)
	r.Suspects = func(facts *probes.Facts, effects []*Finding) []Suspect {
		var refused, others []*Finding
		for _, e := range effects {
			switch {
			case e.Rule != awsCallsRefused:
				others = append(others, e)
			case e.Subjects[0] == awsNodeRef:
				refused = append(refused, e)
			}
		}
		found := find(facts, others)
		for i := range found {
			found[i].Effects = appendNew(found[i].Effects, refused...)
		}
		return found
	}
	return r
}

func annotatedRole(facts *probes.Facts, p *corev1.Pod) string {
	accounts, err := probes.ServiceAccounts.Of(facts)
	if err != nil || p == nil {
		return ""
	}
	if sa := accounts.Get(p.Namespace, p.Spec.ServiceAccountName); sa != nil {
		return probes.RoleName(sa.Annotations[probes.RoleAnnotation])
	}
	return ""
}

// lacksInjection reports whether a pod was made without the role that its
// ServiceAccount names.
func lacksInjection(facts *probes.Facts, p *corev1.Pod) bool {
	if p == nil || annotatedRole(facts, p) == "" {
		return false
	}
	for _, k := range p.Spec.Containers {
		for _, e := range k.Env {
			if e.Name == "AWS_ROLE_ARN" || e.Name == "AWS_CONTAINER_CREDENTIALS_FULL_URI" {
				return false
			}
		}
	}
	return true
}

// nodeRoleOf is the role that a node comes with, or "".
func nodeRoleOf(facts *probes.Facts, node *corev1.Node) string {
	n := &newcomer{}
	if list, err := classes.Of(facts); err == nil {
		n.class = list.Get("", node.Labels["karpenter.k8s.aws/ec2nodeclass"])
	}
	if list, err := knownNodeGroups.Of(facts); err == nil && list != nil {
		n.group = list.Get(node.Labels["eks.amazonaws.com/nodegroup"])
	}
	return roleOf(facts, n)
}

// cniWithoutRole: the VPC CNI's pod on the node was made without the role that
// its ServiceAccount names, and the node's own may not do its work.
// Source: incident cni-irsa-injection.
var cniWithoutRole = sandboxRule("network-plugin-without-its-role", "was pod {cni} made without the role that its ServiceAccount names, and does AWS refuse its calls?", []probes.Any{probes.VPCCNILogs, probes.ServiceAccounts},
	sandboxReason, noAddressForPod, func(facts *probes.Facts, c sandboxCase) ([]Ref, map[string]string) {
		if !lacksInjection(facts, c.cni) {
			return nil, nil
		}
		return []Ref{podRef(c.cni), {Kind: "DaemonSet", Namespace: c.cni.Namespace, Name: "aws-node"}}, map[string]string{"cni": c.cni.Name, "role": annotatedRole(facts, c.cni)}
	}, func(facts *probes.Facts, c sandboxCase) Answer {
		lacks := SawObject("pods", c.cni.Namespace, c.cni.Name, "pod %s, made %s, has no AWS_ROLE_ARN in its environment, though its ServiceAccount names role %s", c.cni.Name, stamp(c.cni.CreationTimestamp.Time), annotatedRole(facts, c.cni))
		word, heard, unread := cniSays(facts, c, cniRefused)
		if !heard {
			return CantTell(unread, lacks)
		}
		return Answered(true, lacks, word)
	})
