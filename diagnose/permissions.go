package diagnose

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/knowledge"
	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/iampolicy"
)

// awsCallsRefused: AWS refuses calls without which a component's main work
// fails, and its last attempts were refused.
var awsCallsRefused = &Rule{
	ID: "aws-calls-refused", Needs: []probes.Any{probes.Denials},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		denials, err := probes.Denials.Of(facts)
		if err != nil {
			return nil
		}
		var found []Suspect
		for _, d := range denials {
			// Of a program that isn't known only what AWS itself words counts.
			if d.Component == nil && (d.Kind != probes.Denied || d.Principal == "") || !d.Blocks() || bygone(d, facts.Source().Now()) {
				continue
			}
			i := slices.IndexFunc(found, func(s Suspect) bool { return s.Subjects[0] == d.Workload })
			if i < 0 {
				found = append(found, Suspect{Subjects: []Ref{d.Workload}, Count: 1, Vars: map[string]string{"component": short(d.Workload), "about": "a program that calls AWS"}})
				i = len(found) - 1
			}
			s := &found[i]
			if d.Pod != "" {
				s.Subjects = appendNew(s.Subjects, Ref{Kind: "Pod", Namespace: d.Namespace, Name: d.Pod})
			}
			if d.Component != nil {
				s.Vars["component"], s.Vars["about"] = d.Component.ID, d.Component.About
			}
			if len(s.Found) < maxExamples {
				s.Found = append(s.Found, sawDenial(d))
			}
			if !d.At.IsZero() && (s.Since == nil || d.At.Before(*s.Since)) {
				s.Since = &d.At
			}
		}
		return found
	},
}

// bygone is whether a denial is so old that it may well be over: a controller
// tries again every few minutes.
func bygone(d *probes.Denial, now time.Time) bool {
	return !d.At.IsZero() && now.Sub(d.At) > recent
}

func sawDenial(d *probes.Denial) Evidence {
	e := Evidence{Says: clip(d.Text, 420), Document: d.Document}
	if !d.At.IsZero() {
		e.At = &d.At
	}
	return e
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func clip(s string, most int) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + " …"
}

// A roleRefusal is the denials of one role.
type roleRefusal struct {
	role    string
	denials []*probes.Denial
}

// byRole groups denials by the role that made the call; those made with the
// node's role by a component that should have its own are another fault.
func byRole(facts *probes.Facts) []roleRefusal {
	denials, err := probes.Denials.Of(facts)
	if err != nil {
		return nil
	}
	accounts, _ := probes.ServiceAccounts.Of(facts) // only names the role where the line doesn't
	var all []roleRefusal
	for _, d := range denials {
		var account *corev1.ServiceAccount
		if accounts != nil {
			account = accounts.Get(d.Namespace, d.ServiceAccount)
		}
		if d.Kind != probes.Denied || bygone(d, facts.Source().Now()) || lacksOwnRole(d, account) {
			continue
		}
		role := probes.RoleName(d.Principal)
		if d.Principal == "" && account != nil {
			role = probes.RoleName(account.Annotations[probes.RoleAnnotation])
		}
		if role == "" {
			continue
		}
		i := slices.IndexFunc(all, func(r roleRefusal) bool { return r.role == role })
		if i < 0 {
			all, i = append(all, roleRefusal{role: role}), len(all)
		}
		all[i].denials = append(all[i].denials, d)
	}
	return all
}

// lacksOwnRole is whether a call was made with the node's role, though the
// program needs one of its own or its service account (nil if it isn't known)
// names one.
func lacksOwnRole(d *probes.Denial, account *corev1.ServiceAccount) bool {
	return d.AsNode() && (d.Component == nil || d.Component.Identity == "role" || account != nil && account.Annotations[probes.RoleAnnotation] != "")
}

// iamActionDenied: the policies that bind a role don't allow a call that a
// program makes with it.
var iamActionDenied = &Rule{
	ID: "iam-action-denied", Latent: true,
	Explains: refusalHurts,
	Needs:    []probes.Any{probes.Denials, probes.ServiceAccounts},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		var suspects []Suspect
		for _, r := range byRole(facts) {
			s := Suspect{Subjects: []Ref{{Kind: "IAMRole", Name: r.role}}, Data: r, Vars: map[string]string{"role": r.role, "why": "AWS says so", "statement": "", "policyKind": "policy"}}
			s.Vars["simulate"] = simulateCommand(r.role, []callRequest{bareRequest(r.denials[0])})
			var actions, breaks []string
			for _, d := range r.denials {
				s.Subjects = appendNew(s.Subjects, d.Workload)
				s.Found = append(s.Found, sawDenial(d))
				on := ""
				if d.Resource != "" && d.Resource != "*" {
					on = " on " + d.Resource
				}
				actions = appendNew(actions, d.Action+on)
				for _, c := range d.Calls() {
					breaks = appendNew(breaks, "without "+d.Action+" "+c.Breaks)
				}
				s.Effects = appendNew(s.Effects, refusedEffects(d, effects)...)
			}
			s.Vars["actions"], s.Vars["breaks"] = strings.Join(actions, ", "), strings.Join(breaks[:min(3, len(breaks))], "; ")
			if len(breaks) == 0 {
				s.Vars["breaks"] = "the call fails each time"
			}
			s.Vars["who"] = short(r.denials[0].Workload)
			suspects = append(suspects, s)
		}
		return suspects
	},
	Tests: []Test{{
		Asks: "do the policies that bind role {role}, as far as they are known, still refuse {actions}?", Needs: []probes.Any{probes.Permissions, refusedSimulated, probes.EKSCluster, probes.EC2NodeClasses},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			r := s.Data.(roleRefusal)
			return stillRefused(facts, r).With("simulate", simulateCommand(r.role, requestsOf(facts, r.denials[0])))
		},
	}},
}

// refusalHurts are the effects of a call that AWS refuses.
var refusalHurts = []*Rule{
	awsCallsRefused, noNodeFromKarpenter, poolNotReady, classNotReady, poolUnusable, nodeClaimNotLaunched, karpenterDown, karpenterFailing, networkNotReady,
	claimNotBound, volumeNotMounted, podCrashLooping, podNotReady, podNotStarting, loadBalancerNotReady, stuckTerminating,
	externalSecretNotSynced, secretStoreNotReady, claimNotResized,
}

// refusedEffects are the effects that a denial can have.
func refusedEffects(d *probes.Denial, effects []*Finding) []*Finding {
	var list []*Finding
	for _, e := range effects {
		id := ""
		if d.Component != nil {
			id = d.Component.ID
		}
		switch e.Rule {
		case noNodeFromKarpenter, poolNotReady, classNotReady, poolUnusable, nodeClaimNotLaunched:
			if id == "karpenter" && d.Blocks() {
				list = append(list, e)
			}
		case claimNotBound:
			if id == "aws-ebs-csi-driver" && d.Blocks() {
				list = append(list, e)
			}
		case volumeNotMounted, claimNotResized: // the event quotes what the driver was refused
			if slices.ContainsFunc(e.Evidence(), func(x Evidence) bool { return strings.Contains(x.Says, d.Action) }) {
				list = append(list, e)
			}
		case loadBalancerNotReady:
			if id == "aws-load-balancer-controller" {
				list = append(list, e)
			}
		case externalSecretNotSynced, secretStoreNotReady:
			if e.Data.(unsynced).refusedBy(d) {
				list = append(list, e)
			}
		case stuckTerminating:
			if id == "aws-load-balancer-controller" && finalizingOf(e) != nil {
				list = append(list, e)
			}
		default:
			if e.Subject() == d.Workload && d.Blocks() {
				list = append(list, e)
			}
		}
	}
	return list
}

func appendNew[T comparable](list []T, more ...T) []T {
	for _, m := range more {
		if !slices.Contains(list, m) {
			list = append(list, m)
		}
	}
	return list
}

// stillRefused evaluates the captured policies: what they allow by now is no
// fault any more. What they don't tell, AWS itself has said.
func stillRefused(facts *probes.Facts, r roleRefusal) Answer {
	solver, err := probes.Permissions.Of(facts)
	if err != nil {
		return CantTell(err)
	}
	// Whether the program was to use the node's role its service account says.
	if _, err := probes.ServiceAccounts.Of(facts); err != nil && slices.ContainsFunc(r.denials, (*probes.Denial).AsNode) {
		return CantTell(err)
	}
	if sims, err := refusedSimulated.Of(facts); err == nil {
		solver = solver.With(sims)
	}
	var why, statements []string
	var evidence []Evidence
	kind := "policy"
	allowed := 0
	for _, d := range r.denials {
		judged := judgedByPolicies(d)
		requests := requestsOf(facts, d)
		var worst *probes.Ruling
		known := judged
		for _, q := range requests {
			ruling, err := solver.May(r.role, q.Action, q.Resource, q.Context)
			if err != nil || ruling.Effect == iampolicy.Undecided {
				known = false
				continue
			}
			if ruling.Effect != iampolicy.Allowed && (worst == nil || worst.Effect == iampolicy.ImplicitDeny && ruling.Effect == iampolicy.ExplicitDeny) {
				worst = &ruling
			}
		}
		switch {
		case judged && worst != nil:
			why = appendNew(why, worst.Why())
			evidence = append(evidence, Evidence{Says: worst.Why(), Document: worst.Document})
			kind = worst.Kind
			if st, ok := worst.StatementToAdd(); ok {
				statements = appendNew(statements, st.JSON())
			}
		case known && strings.HasPrefix(d.By, "key policy"):
			// The key's own policy isn't in any document that is read here.
			why = appendNew(why, fmt.Sprintf("the policies of role %s allow %s, so the key's own policy refuses it: its Principal must name the role, or the account with IAM policies in force", r.role, d.Action))
			kind = "key policy"
		case known:
			allowed++
			evidence = append(evidence, Saw("aws/iam/get-role", []string{r.role}, "the policies of role %s allow %s by now", r.role, d.Action))
		default:
			said := fmt.Sprintf("AWS says that %s", deniedBy(d))
			why = appendNew(why, said)
			if d.By != "" && !strings.Contains(d.By, "identity") {
				kind = d.By
			}
			if !d.Explicit {
				if st, ok := iampolicy.Evaluate(requests[0].Request, iampolicy.Policies{}).StatementToAdd(); ok {
					statements = appendNew(statements, st.JSON())
				}
			}
		}
	}
	if allowed == len(r.denials) {
		return Answered(false, evidence...)
	}
	statement := strings.Join(statements, ",\n")
	if statement == "" {
		statement = "(no statement helps: one with Effect Deny must be changed)"
	}
	// The denial itself is evidence: AWS said so.
	evidence = append(evidence, sawDenial(r.denials[0]))
	return Answered(true, evidence...).With("why", strings.Join(why, "; ")).With("statement", statement).With("policyKind", kind)
}

// judgedByPolicies is whether a role's own policies can answer a denial: what
// they say is no answer to one by another kind of policy.
func judgedByPolicies(d *probes.Denial) bool {
	return d.By == "" || strings.Contains(d.By, "identity") || strings.Contains(d.By, "boundary")
}

func deniedBy(d *probes.Denial) string {
	switch {
	case d.By == "":
		return "it is not authorized to perform " + d.Action
	case d.Explicit:
		return "a statement in a " + d.By + " denies " + d.Action
	}
	return "no " + d.By + " allows " + d.Action
}

// A callRequest is a request whose context may be unknown, which nil says.
type callRequest struct {
	iampolicy.Request
}

// requestsOf are the requests that a denial can have been: of a component
// that is known, with the keys that it sends; else the call alone.
func requestsOf(facts *probes.Facts, d *probes.Denial) []callRequest {
	bare := bareRequest(d)
	if d.Component == nil {
		return []callRequest{bare}
	}
	vars := placeholders(facts, d)
	var all []callRequest
	for _, c := range d.Calls() {
		context := d.Component.Context(c, d.Version, vars)
		if unfilled(context) {
			context = nil // what the request carries depends on a name that isn't known
		}
		if d.Resource != "" && d.Resource != "*" {
			all = append(all, callRequest{iampolicy.Request{Action: d.Action, Resource: d.Resource, Context: context}})
			continue
		}
		for _, r := range c.Resources {
			if r = knowledge.Fill(r, vars); !strings.Contains(r, "{") {
				all = append(all, callRequest{iampolicy.Request{Action: d.Action, Resource: r, Context: context}})
			}
		}
	}
	if len(all) == 0 {
		all = append(all, bare)
	}
	return all
}

func bareRequest(d *probes.Denial) callRequest {
	return callRequest{iampolicy.Request{Action: d.Action, Resource: orDefault(d.Resource, "*")}}
}

func unfilled(context map[string][]string) bool {
	for key, values := range context {
		if strings.Contains(key, "{") || slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, "{") }) {
			return true
		}
	}
	return false
}

// placeholders are the names in ARN templates and condition keys.
func placeholders(facts *probes.Facts, d *probes.Denial) map[string]string {
	vars := map[string]string{"partition": "aws", "nodepool": "default", "nodeclass": "default", "uid": "00000000-0000-0000-0000-000000000000", "id": "0"}
	if parts := strings.SplitN(d.Principal, ":", 6); len(parts) == 6 {
		vars["partition"], vars["account"] = parts[1], parts[4]
	}
	if c, err := probes.EKSCluster.Of(facts); err == nil {
		vars["cluster"] = c.Name
		if parts := strings.SplitN(c.ARN, ":", 6); len(parts) == 6 {
			vars["region"], vars["account"] = parts[3], parts[4]
		}
	}
	if m, ok := facts.Source().(interface{ ClusterMeta() probes.SnapshotMeta }); ok {
		meta := m.ClusterMeta()
		for name, value := range map[string]string{"cluster": meta.Cluster, "region": meta.Region, "account": meta.Account} {
			if vars[name] == "" && value != "" {
				vars[name] = value
			}
		}
	}
	if vars["region"] == "" {
		if parts := strings.SplitN(d.Resource, ":", 6); len(parts) == 6 && parts[3] != "" {
			vars["region"] = parts[3]
		}
	}
	if classes, err := probes.EC2NodeClasses.Of(facts); err == nil {
		for _, c := range classes.All() {
			if c.Spec.Role != "" && vars["account"] != "" {
				vars["nodeRole"] = "arn:" + vars["partition"] + ":iam::" + vars["account"] + ":role/" + probes.RoleName(c.Spec.Role)
			}
		}
	}
	for name, value := range vars {
		if value == "" {
			delete(vars, name)
		}
	}
	return vars
}

var permissionRules = []*Rule{
	iamActionDenied, irsaNotARole, irsaRoleMissing, irsaTrust, oidcProviderMissing, irsaAnnotationMissing, irsaNotInjected,
	podIdentityRoleMissing, podIdentityTrust, podIdentityNotInjected, nodeRoleNotMapped, accessEntryWrongType, awsAuthUnreadable,
}
