package diagnose

import (
	"fmt"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/iampolicy"
)

// ecrReads are what the kubelet needs of ECR, with the node's role.
// Source: EKS User Guide, "Amazon EKS node IAM role".
var ecrReads = []string{"ecr:GetAuthorizationToken", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"}

// nodeRoleLacksECR: the nodes' role may not pull. ECR itself says so; or it
// refuses without a name, because the kubelet got no token and asked as
// nobody, and the role's policies allow no pull.
var nodeRoleLacksECR = &Rule{
	ID:       "node-role-lacks-ecr",
	Explains: []*Rule{imagePullDenied},
	Needs:    []probes.Any{probes.Pods, probes.Events, probes.Nodes, classes, knownNodeGroups, probes.Roles},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		var list []Suspect
		for _, s := range perRegistry(facts, effects) {
			fault, _, got, _ := pulled(facts, containers(s))
			role, action := got["role"], got["action"]
			if fault == denied && ecrHost.MatchString(s.Vars["registry"]) && len(pullSecrets(containers(s)[0].pod)) == 0 {
				if nodes, err := probes.Nodes.Of(facts); err == nil {
					if n := nodes.Get("", containers(s)[0].pod.Spec.NodeName); n != nil {
						role, action = nodeRoleOf(facts, n), "pull from ECR"
					}
				}
			} else if fault != noAWSPrincipal {
				continue
			}
			if role == "" {
				continue
			}
			s.Vars["role"], s.Vars["action"] = role, action
			s.Subjects = append([]Ref{{Kind: "IAMRole", Name: role}}, s.Subjects...)
			list = append(list, s)
		}
		return list
	},
	Tests: []Test{{
		Asks:  "may role {role} not {action}, by what ECR answered or by the role's policies?",
		Needs: []probes.Any{probes.Events, probes.Permissions},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			fault, r, _, err := pulled(facts, containers(s))
			switch {
			case err != nil:
				return CantTell(err)
			case fault == noAWSPrincipal:
				return Answered(true, r.from)
			}
			solver, err := probes.Permissions.Of(facts)
			if err != nil {
				return CantTell(err)
			}
			m := ecrHost.FindStringSubmatch(s.Vars["registry"])
			for _, action := range ecrReads {
				resource := "*"
				if action != ecrReads[0] {
					resource = fmt.Sprintf("arn:aws:ecr:%s:%s:repository/%s", m[2], m[1], s.Vars["repository"])
				}
				ruling, err := solver.May(s.Vars["role"], action, resource, nil)
				switch {
				case err != nil:
					return CantTell(err, r.from)
				case ruling.Effect != iampolicy.Allowed && ruling.Effect != iampolicy.Undecided:
					return Answered(true, r.from, Evidence{Says: ruling.Why(), Document: ruling.Document}).With("action", action)
				}
			}
			return Answered(false, Saw("aws/iam/get-role", []string{s.Vars["role"]}, "the policies of role %s allow pulls from ECR", s.Vars["role"]))
		},
	}},
}
