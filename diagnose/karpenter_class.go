package diagnose

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	ec2 "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// noNodesOf are the effects of an EC2NodeClass that can't be used.
var noNodesOf = []*Rule{classNotReady, poolUnusable, poolNotReady, noNodeFromKarpenter, nodeClaimNotLaunched}

// classRule is a rule for EC2NodeClasses, one suspect for each that hurts.
func classRule(id, asks string, needs []probes.Any, test func(*probes.Facts, classCase) Answer) *Rule {
	return &Rule{
		ID: id, Explains: noNodesOf, Needs: []probes.Any{pools, classes, claims},
		Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
			var found []Suspect
			for _, c := range perClass(facts, effects) {
				if c.class == nil {
					continue
				}
				found = append(found, Suspect{Subjects: []Ref{c.ref()}, Effects: c.effects, Data: c, Vars: map[string]string{
					"class": c.name, "profile": c.class.Spec.InstanceProfile, "role": c.class.Spec.Role, "near": "whether it exists is not known",
				}})
			}
			return found
		},
		Tests: []Test{{Asks: asks, Needs: append([]probes.Any{classes}, needs...), Run: func(facts *probes.Facts, s Suspect) Answer {
			return test(facts, s.Data.(classCase))
		}}},
	}
}

// matchesNothing asks whether a selector of an EC2NodeClass matches nothing. Karpenter
// says so with a False condition; up to v0.36, which has none, its status list
// is empty, and its log says it.
func matchesNothing(condition, field string, terms func(*probes.EC2NodeClass) []probes.SelectorTerm, found func(*probes.EC2NodeClass) int, words *regexp.Regexp,
	things func(*probes.Facts) (list []tagged, what, document string, err error),
) func(*probes.Facts, classCase) Answer {
	return func(facts *probes.Facts, c classCase) Answer {
		k := c.condition(condition)
		says, err := karpenterSays.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		var asked []string
		for _, t := range terms(c.class) {
			asked = append(asked, termWords(t))
		}
		selector := orDefault(strings.Join(asked, ", or "), "empty")
		var evidence []Evidence
		switch {
		case k != nil && k.Status == metav1.ConditionFalse && strings.HasSuffix(k.Reason, "NotFound"):
			evidence = append(evidence, c.sawCondition(k))
		case k != nil && k.Status == metav1.ConditionTrue:
			return Answered(false, c.saw("EC2NodeClass %s: %s=True; it has found %d", c.name, condition, found(c.class)))
		case found(c.class) > 0:
			return Answered(false, c.saw("EC2NodeClass %s has found %d for its %s", c.name, found(c.class), field))
		default:
			// Nothing was found, and no condition says whether it was looked for.
			for _, s := range says.of(c.name) {
				if words.MatchString(s.text) {
					evidence = append(evidence, s.from)
					break
				}
			}
			if len(evidence) == 0 {
				if len(says.errs) > 0 {
					return CantTell(says.err()).With("selector", selector).With("field", "spec."+field).With("near", "whether it was looked for is not known")
				}
				return Answered(false, c.saw("nothing says that the %s of EC2NodeClass %s matches nothing", field, c.name))
			}
		}
		evidence = append(evidence, c.saw("EC2NodeClass %s: spec.%s is %s", c.name, field, selector))
		list, what, document, err := things(facts)
		near := ""
		if err == nil {
			var saw []Evidence
			near, saw = nearestTagged(terms(c.class), list, what, document)
			evidence = append(evidence, saw...)
		}
		if near == "" {
			near = "nothing like it is among what was captured"
		}
		return Answered(true, evidence...).With("selector", selector).With("field", "spec."+field).With("near", near)
	}
}

// A tagged is a thing of AWS that a selector may match.
type tagged struct {
	id   string
	name string
	tags []ec2.Tag
}

// nearestTagged says what a selector that matches nothing was probably meant
// to match: things that have its tag key with another value, or its value
// under another key.
func nearestTagged(terms []probes.SelectorTerm, list []tagged, what, document string) (string, []Evidence) {
	var says []string
	var ids []string
	for _, t := range terms {
		for _, key := range slices.Sorted(maps.Keys(t.Tags)) {
			want := t.Tags[key]
			byValue := map[string][]string{}
			for _, one := range list {
				for _, tag := range one.tags {
					k, v := str(tag.Key), str(tag.Value)
					switch {
					case k == key && v != want:
						byValue[k+"="+v] = append(byValue[k+"="+v], one.id)
					case k != key && (strings.EqualFold(k, key) || likeness(k, key) >= 70) && (v == want || want == "*"):
						byValue[k+"="+v] = append(byValue[k+"="+v], one.id)
					}
				}
			}
			for _, pair := range sortedKeys(byValue) {
				says = append(says, fmt.Sprintf("%s carry %s", strings.Join(byValue[pair], ", "), pair))
				ids = append(ids, byValue[pair]...)
			}
			if len(byValue) == 0 && len(list) > 0 {
				says = append(says, fmt.Sprintf("none of the %d %s that were captured carries the tag key %s", len(list), what, key))
			}
		}
		if t.ID != "" && !slices.ContainsFunc(list, func(o tagged) bool { return o.id == t.ID }) && len(list) > 0 {
			says = append(says, fmt.Sprintf("there is no %s among the %s that were captured", t.ID, what))
		}
		if t.Name != "" {
			var names []string
			for _, o := range list {
				names = append(names, o.name)
			}
			if n := nearest(t.Name, names); n != "" {
				says = append(says, fmt.Sprintf("the nearest name is %s", n))
			}
		}
	}
	if len(says) == 0 {
		return "", nil
	}
	text := strings.Join(says, "; ")
	return text, []Evidence{Saw(document, slices.Compact(slices.Sorted(slices.Values(ids))), "%s: %s", what, text)}
}

// termWords is a selector term as a person would write it.
func termWords(t probes.SelectorTerm) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(t.Tags)) {
		parts = append(parts, "tag "+key+"="+t.Tags[key])
	}
	for _, f := range []struct{ name, value string }{{"id", t.ID}, {"name", t.Name}, {"owner", t.Owner}, {"alias", t.Alias}, {"ssmParameter", t.SSMParameter}, {"ownerID", t.OwnerID}} {
		if f.value != "" {
			parts = append(parts, f.name+" "+f.value)
		}
	}
	return strings.Join(parts, " and ")
}

var subnetsNotFound = classRule("nodeclass-subnets-not-found", "does the subnet selector of EC2NodeClass {class} match nothing?",
	[]probes.Any{karpenterSays, probes.Subnets},
	matchesNothing("SubnetsReady", "subnetSelectorTerms",
		func(c *probes.EC2NodeClass) []probes.SelectorTerm { return c.Spec.SubnetSelectorTerms },
		func(c *probes.EC2NodeClass) int { return len(c.Status.Subnets) },
		regexp.MustCompile(`(?i)no subnets (?:found|matched|exist)|SubnetSelector did not match|failed to resolve subnets`),
		func(facts *probes.Facts) ([]tagged, string, string, error) {
			subnets, err := probes.Subnets.Of(facts)
			var list []tagged
			if err == nil {
				for _, s := range subnets.All() {
					list = append(list, tagged{str(s.SubnetId), tagValue(s.Tags, "Name"), s.Tags})
				}
			}
			return list, "subnets", "aws/ec2/describe-subnets", err
		}))

var groupsNotFound = classRule("nodeclass-security-groups-not-found", "does the security group selector of EC2NodeClass {class} match nothing?",
	[]probes.Any{karpenterSays, probes.SecurityGroups},
	matchesNothing("SecurityGroupsReady", "securityGroupSelectorTerms",
		func(c *probes.EC2NodeClass) []probes.SelectorTerm { return c.Spec.SecurityGroupSelectorTerms },
		func(c *probes.EC2NodeClass) int { return len(c.Status.SecurityGroups) },
		regexp.MustCompile(`(?i)no security groups? (?:found|matched|exist)|SecurityGroupSelector did not match|failed to resolve security groups`),
		func(facts *probes.Facts) ([]tagged, string, string, error) {
			groups, err := probes.SecurityGroups.Of(facts)
			var list []tagged
			if err == nil {
				for _, g := range groups.All() {
					list = append(list, tagged{str(g.GroupId), str(g.GroupName), g.Tags})
				}
			}
			return list, "security groups", "aws/ec2/describe-security-groups", err
		}))

var amisNotFound = classRule("nodeclass-amis-not-found", "does the AMI selector of EC2NodeClass {class} match nothing?",
	[]probes.Any{karpenterSays, images},
	matchesNothing("AMIsReady", "amiSelectorTerms",
		func(c *probes.EC2NodeClass) []probes.SelectorTerm { return c.Spec.AMISelectorTerms },
		func(c *probes.EC2NodeClass) int { return len(c.Status.AMIs) },
		regexp.MustCompile(`(?i)no amis? (?:exist|found|matched)|AMISelector did not match|failed to (?:discover any|resolve) amis`),
		func(facts *probes.Facts) ([]tagged, string, string, error) {
			list, err := images.Of(facts)
			if err != nil || list == nil {
				return nil, "", "", errors.Join(err, errors.New("no images were captured"))
			}
			var all []tagged
			for _, i := range list.All() {
				all = append(all, tagged{str(i.ImageId), str(i.Name), i.Tags})
			}
			return all, "images", "aws/ec2/describe-images", nil
		}))

// images are the machine images that were captured, if any were: they only
// sharpen what a selector says.
var images = whereCaptured(probes.Images)

// aliasUnsupported: no image is published for the alias at this version of
// Kubernetes; Karpenter does not try again until the spec changes.
var aliasUnsupported = classRule("nodeclass-ami-alias-unsupported", "does Karpenter refuse the AMI alias of EC2NodeClass {class}?", nil,
	func(_ *probes.Facts, c classCase) Answer {
		k := c.condition("AMIsReady")
		var aliases []string
		for _, t := range c.class.Spec.AMISelectorTerms {
			if t.Alias != "" {
				aliases = append(aliases, t.Alias)
			}
		}
		if k == nil || k.Status == metav1.ConditionTrue || k.Reason != "UnsupportedAlias" && !strings.Contains(k.Message, "is not supported at v1") {
			return Answered(false, c.saw("EC2NodeClass %s: no condition refuses its alias", c.name))
		}
		return Answered(true, c.sawCondition(k)).With("alias", cmp.Or(strings.Join(aliases, ", "), c.class.Spec.AMIFamily)).With("says", k.Message)
	})

// profileIsARN: spec.instanceProfile and spec.role are names; EC2 takes no ARN
// there, and Karpenter's validation never ends.
// Source: incident profile-arn-not-name.
var profileIsARN = classRule("nodeclass-arn-for-name", "does EC2NodeClass {class} give an ARN where a name is asked for?", nil,
	func(_ *probes.Facts, c classCase) Answer {
		for _, f := range []struct{ field, value string }{{"spec.instanceProfile", c.class.Spec.InstanceProfile}, {"spec.role", c.class.Spec.Role}} {
			if strings.HasPrefix(f.value, "arn:") {
				return Answered(true, c.saw("EC2NodeClass %s: %s is %s, an ARN", c.name, f.field, f.value)).
					With("field", f.field).With("value", f.value).With("right", f.value[strings.LastIndex(f.value, "/")+1:])
			}
		}
		return Answered(false, c.saw("EC2NodeClass %s: spec.role is %q, spec.instanceProfile is %q", c.name, c.class.Spec.Role, c.class.Spec.InstanceProfile))
	})

var (
	noProfile = regexp.MustCompile(`(?i)Instance profile "?([\w+=,.@/-]+)"? (?:not found|cannot be found)|InstanceProfileNotFound|NoSuchEntity[^\n]*Instance Profile ([\w+=,.@-]+) cannot be found|Invalid IAM Instance Profile name|InstanceProfileNameInvalid`)
	noRole    = regexp.MustCompile(`(?i)NoSuchEntity[^\n]*role with name ([\w+=,.@-]+) cannot be found|role ([\w+=,.@-]+) (?:does not exist|not found)`)
)

// profileMissing: spec.instanceProfile names a profile that does not exist.
// Karpenter says so since v1.15; before, the class awaits reconciliation for
// ever. Source: incident profile-awaiting-reconciliation.
var profileMissing = classRule("nodeclass-instance-profile-missing", "does the instance profile that EC2NodeClass {class} names not exist?",
	[]probes.Any{karpenterSays, probes.Roles},
	func(facts *probes.Facts, c classCase) Answer {
		name := c.class.Spec.InstanceProfile
		if name == "" || strings.HasPrefix(name, "arn:") {
			return Answered(false, c.saw("EC2NodeClass %s names no instance profile of its own", c.name))
		}
		says, err := karpenterSays.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		for _, s := range says.of(c.name) {
			if noProfile.MatchString(s.text) {
				return Answered(true, s.from, c.saw("EC2NodeClass %s: spec.instanceProfile is %s", c.name, name)).With("profile", name).With("near", nearProfile(facts, name))
			}
		}
		roles, err := probes.Roles.Of(facts)
		if err != nil {
			return CantTell(errors.Join(says.err(), err))
		}
		if held, err := roles.Profile(name); err == nil {
			if len(held) == 0 {
				return Answered(true, Saw("aws/iam/get-instance-profile", []string{name}, "instance profile %s holds no role", name)).With("profile", name).With("near", "it exists, and holds no role")
			}
			return Answered(false, Saw("aws/iam/get-instance-profile", []string{name}, "instance profile %s exists, with role %s", name, strings.Join(held, ", ")))
		} else if all := roles.ProfileNames(); len(all) > 0 && c.condition("Ready") != nil && c.condition("Ready").Reason != "" && len(c.effects) > 0 && waitsForProfile(c) {
			// Others were captured and this one was not, and Karpenter waits for it.
			return CantTell(err, Saw("aws/iam/get-instance-profile", nil, "instance profile %s is not among those captured: %s", name, strings.Join(all, ", ")))
		} else if waitsForProfile(c) {
			return CantTell(err)
		}
		return Answered(false, c.saw("EC2NodeClass %s does not wait for its instance profile", c.name))
	})

// waitsForProfile reports whether the class hangs where an instance profile
// that can't be used makes it hang.
func waitsForProfile(c classCase) bool {
	for _, t := range []string{"InstanceProfileReady", "ValidationSucceeded"} {
		if k := c.condition(t); k != nil && k.Status == metav1.ConditionUnknown {
			return true
		}
	}
	return false
}

func nearProfile(facts *probes.Facts, name string) string {
	roles, err := probes.Roles.Of(facts)
	if err != nil {
		return "the profiles of the account were not captured"
	}
	if n := nearest(name, roles.ProfileNames()); n != "" {
		return "the nearest that exists is " + n
	}
	return "no profile with a name like it was captured"
}

// nodeRoleMissing: spec.role names a role that does not exist.
var nodeRoleMissing = classRule("nodeclass-role-missing", "does the role that EC2NodeClass {class} names not exist?",
	[]probes.Any{karpenterSays, probes.Roles},
	func(facts *probes.Facts, c classCase) Answer {
		name := c.class.Spec.Role
		if name == "" || strings.HasPrefix(name, "arn:") {
			return Answered(false, c.saw("EC2NodeClass %s names no role", c.name))
		}
		says, err := karpenterSays.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		roles, rolesErr := probes.Roles.Of(facts)
		yes := func(evidence ...Evidence) Answer {
			near := "no role with a name like it was captured"
			if rolesErr == nil {
				var names []string
				for _, r := range roles.All() {
					names = append(names, r.Name)
				}
				if n := nearest(name, names); n != "" {
					near = "the nearest that exists is " + n
				}
			}
			return Answered(true, append(evidence, c.saw("EC2NodeClass %s: spec.role is %s", c.name, name))...).With("role", name).With("near", near)
		}
		for _, s := range says.of(c.name) {
			if m := noRole.FindStringSubmatch(s.text); m != nil && (m[1] == name || m[2] == name) {
				return yes(s.from)
			}
		}
		if rolesErr == nil {
			role, err := roles.Get(name)
			switch {
			case err == nil && role == nil:
				return yes(Saw("aws/iam/get-role", []string{name}, "there is no role %s in the account", name))
			case role != nil:
				return Answered(false, Saw("aws/iam/get-role", []string{name}, "role %s exists", name))
			case waitsForProfile(c):
				return CantTell(errors.Join(err, says.err()))
			}
		} else if k := c.condition("InstanceProfileReady"); k != nil && k.Status == metav1.ConditionUnknown {
			return CantTell(errors.Join(rolesErr, says.err()))
		}
		return Answered(false, c.saw("nothing says that role %s does not exist", name))
	})

// selfEvident are the reasons of conditions that name the fault in the spec
// themselves. Source: karpenter-provider-aws pkg/controllers/nodeclass/validation.go.
var selfEvident = []string{
	"TagValidationFailed", "UserDataSizeLimitExceeded", "InvalidKubeletConfiguration", "KubeletExpressionInvalid", "KubeletExpressionEvaluationFailed",
	"KubeletExpressionsDisabled", "UnsupportedKubeletConfiguration", "NVIDIAConsumableCapacityInvalid", "DRADisabled", "PlacementGroupNotFound",
}

// classInvalid: Karpenter itself says what is wrong with the spec.
var classInvalid = classRule("nodeclass-spec-invalid", "does Karpenter refuse the spec of EC2NodeClass {class}?", nil,
	func(_ *probes.Facts, c classCase) Answer {
		for _, k := range c.class.Status.Conditions {
			if k.Status == metav1.ConditionFalse && slices.Contains(selfEvident, k.Reason) {
				return Answered(true, c.sawCondition(&k)).With("reason", k.Reason).With("says", k.Message)
			}
		}
		return Answered(false, c.saw("no condition of EC2NodeClass %s refuses its spec", c.name))
	})

// classTerminating: an EC2NodeClass that is being deleted makes no nodes, and
// goes only when its NodeClaims are gone.
var classTerminating = classRule("nodeclass-being-deleted", "is EC2NodeClass {class} being deleted?", []probes.Any{claims},
	func(facts *probes.Facts, c classCase) Answer {
		if c.class.DeletionTimestamp == nil {
			return Answered(false, c.saw("EC2NodeClass %s is not being deleted", c.name))
		}
		held := 0
		if list, err := claims.Of(facts); err == nil {
			held = len(list.Where(func(n *probes.NodeClaim) bool { return classRef(n.Spec.NodeClassRef) == c.name }))
		}
		return Answered(true, c.saw("EC2NodeClass %s is being deleted since %s; %d NodeClaims are of it; its finalizers: %s", c.name, c.class.DeletionTimestamp.UTC().Format("2006-01-02T15:04:05Z"), held, strings.Join(c.class.Finalizers, ", "))).
			With("claims", fmt.Sprint(held))
	})

// classUnexplained: the class is not ready, and what is here doesn't say why.
var classUnexplained = &Rule{
	ID: "nodeclass-not-resolved", Explains: []*Rule{classNotReady}, Needs: []probes.Any{pools, classes, claims},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		var found []Suspect
		for _, c := range perClass(facts, effects) {
			if c.class != nil {
				found = append(found, Suspect{Subjects: []Ref{c.ref()}, Effects: c.effects, Data: c, Vars: map[string]string{"class": c.name, "says": "its conditions name no cause"}})
			}
		}
		return found
	},
	Tests: []Test{{Asks: "what does Karpenter's log say of EC2NodeClass {class}?", Needs: []probes.Any{karpenterSays}, Run: func(facts *probes.Facts, s Suspect) Answer {
		says, err := karpenterSays.Of(facts)
		if err != nil {
			return CantTell(err)
		}
		var evidence []Evidence
		for _, one := range says.of(s.Data.(classCase).name) {
			if len(evidence) < maxExamples {
				evidence = append(evidence, one.from)
			}
		}
		return CantTell(says.err(), evidence...)
	}}},
}

var classRules = []*Rule{
	subnetsNotFound, groupsNotFound, amisNotFound, aliasUnsupported, profileIsARN, profileMissing, nodeRoleMissing, classInvalid, classTerminating, classUnexplained,
}
