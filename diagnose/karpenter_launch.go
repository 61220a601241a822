package diagnose

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// A launchFault is why EC2 makes no instance.
type launchFault string

const (
	refusedCall     launchFault = "refused"
	noSpotRole      launchFault = "spot role"
	noKey           launchFault = "encryption key"
	profileUnknown  launchFault = "instance profile"
	otherNetworks   launchFault = "other networks"
	tooManyGroups   launchFault = "too many groups"
	imageUnusable   launchFault = "image"
	templateMissing launchFault = "launch template"
	quotaReached    launchFault = "quota"
	noAddresses     launchFault = "addresses"
	noCapacity      launchFault = "capacity"
	notOffered      launchFault = "not offered"
	accountHeld     launchFault = "account"
	throttled       launchFault = "throttled"
	dataRefused     launchFault = "launch data"
	vague           launchFault = "vague"
)

// launchFaults recognises what AWS says when it makes no instance. Of a
// message that says several things the first row that matches decides: what
// will not pass by itself comes before what may.
// Sources: EC2 API error codes; karpenter-provider-aws pkg/errors/errors.go.
var launchFaults = []struct {
	fault launchFault
	re    *regexp.Regexp
}{
	{noSpotRole, regexp.MustCompile(`ServiceLinkedRoleCreationNotPermitted|SpotSLRCreationFailed|SpotServiceLinkedRoleCreationFailure|service-linked role for EC2 Spot`)},
	{otherNetworks, regexp.MustCompile(`SecurityGroupSubnetVPCMismatch|Security group (?P<group>sg-\w+) and subnet (?P<subnet>subnet-\w+) belong to different networks|belong to different networks`)},
	{tooManyGroups, regexp.MustCompile(`SecurityGroupsPerInterfaceLimitExceeded|SecurityGroupsPerInstanceLimitExceeded|maximum number of security groups per (?:interface|instance)`)},
	{profileUnknown, regexp.MustCompile(`Invalid IAM Instance Profile|InstanceProfileNameInvalid`)},
	{imageUnusable, regexp.MustCompile(`InvalidAMIID|AMINotFound|AMIAuthorizationFailure|The image id '\[?(?P<image>ami-\w+)\]?' does not exist|Not authorized for images: \[(?P<image2>ami-\w+)\]`)},
	{dataRefused, regexp.MustCompile(`InvalidBlockDeviceMapping|InvalidUserData|UserDataSizeLimitExceeded|InvalidParameterDependency|UnknownVolumeType|InvalidVolume\w*\.\w+|User data is limited to`)},
	{noKey, regexp.MustCompile(`InvalidKMSKey|KMSKey\w*NotFound|KmsKey|Client\.InternalError|Client\.InvalidKMSKey`)},
	{refusedCall, regexp.MustCompile(`UnauthorizedOperation|AccessDenied|not authorized to perform|isn't authorized to call|Reason: Unauthorized|^Unauthorized:`)},
	{templateMissing, regexp.MustCompile(`LaunchTemplateNotFound|InvalidLaunchTemplate\w*\.NotFound`)},
	{accountHeld, regexp.MustCompile(`AccountPendingVerification|PendingVerification|FreeTierIneligible|account is currently blocked|Blocked:`)},
	{quotaReached, regexp.MustCompile(`(?P<code>MaxSpotInstanceCountExceeded|VcpuLimitExceeded|VCPULimitExceeded|SpotQuotaExceeded|InstanceLimitExceeded|FleetQuotaExceeded|MaxFleetCountExceeded|VolumeLimitExceeded|MaxIOPSLimitExceeded|NetworkInterfaceLimitExceeded|SpotMaxPriceTooLow)`)},
	{noAddresses, regexp.MustCompile(`InsufficientFreeAddressesInSubnet|not enough free addresses in subnet`)},
	{notOffered, regexp.MustCompile(`(?P<code>Unsupported): .*not supported in your requested Availability Zone`)},
	{noCapacity, regexp.MustCompile(`InsufficientInstanceCapacity|InsufficientHostCapacity|InsufficientReservedInstanceCapacity|ReservationCapacityExceeded|UnfulfillableCapacity|sufficient \S+ capacity in the Availability Zone`)},
	{throttled, regexp.MustCompile(`RequestLimitExceeded|Throttling`)},
	{vague, regexp.MustCompile(`InsufficientCapacityError|all requested instance types were unavailable|unable to fulfill capacity|insufficient capacity`)},
}

// asideCalls are calls that Karpenter does without; a denial of theirs is not
// why it makes no node. Source: knowledge/README.md part A, "Non-blocking denials".
var asideCalls = regexp.MustCompile(`pricing:GetProducts|ec2:DescribeSpotPriceHistory|ec2:DescribeInstanceStatus|ec2:DeleteLaunchTemplate|iam:ListInstanceProfiles|sqs:\w+|GetProducts|DescribeSpotPriceHistory|api\.pricing|pricing data|AssumeRoleWithWebIdentity`)

// launchSaying is a saying with what it means.
type launchSaying struct {
	saying
	fault launchFault
	got   map[string]string
}

// launchSayings are what was said of launching from a class, the latest first.
func launchSayings(s *sayings, class string) []launchSaying {
	var list []launchSaying
	for _, one := range s.of(class) {
		if asideCalls.MatchString(one.text) {
			continue
		}
		for _, row := range launchFaults {
			if got := groups(row.re, one.text); got != nil {
				list = append(list, launchSaying{one, row.fault, got})
				break
			}
		}
	}
	return list
}

// latestFault is why the last launch failed, with all that was said of it. The
// last error wins over the first: what was mended is not why it fails now. Only
// a vague word gives way to what is more precise.
func latestFault(list []launchSaying) (launchFault, []launchSaying) {
	fault := launchFault("")
	for _, s := range list {
		if s.fault != vague {
			fault = s.fault
			break
		}
	}
	if fault == "" && len(list) > 0 {
		fault = list[0].fault
	}
	var same []launchSaying
	for _, s := range list {
		if s.fault == fault {
			same = append(same, s)
		}
	}
	return fault, same
}

var launchNeeds = []probes.Any{karpenterSays}

// launchRule is a rule for one kind of refusal by EC2. tell says who is at
// fault and adds words; nil: the EC2NodeClass.
func launchRule(id, asks string, fault launchFault, needs []probes.Any, who func(*probes.Facts, classCase, []launchSaying) ([]Ref, map[string]string, []Evidence)) *Rule {
	return &Rule{
		ID: id, Explains: noNodesOf, Needs: slices.Concat([]probes.Any{pools, classes, claims}, launchNeeds, needs),
		Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
			says, err := karpenterSays.Of(facts)
			if err != nil {
				return nil
			}
			var found []Suspect
			for _, c := range perClass(facts, effects) {
				list := launchSayings(says, c.name)
				if k := c.condition("AMIsReady"); fault == imageUnusable && k != nil && k.Status == metav1.ConditionFalse {
					continue // EC2 was not asked: the class selects none
				}
				if !slices.ContainsFunc(list, func(s launchSaying) bool { return s.fault == fault }) {
					continue
				}
				latest, same := latestFault(list)
				s := Suspect{Subjects: []Ref{c.ref()}, Effects: c.effects, Vars: map[string]string{"class": c.name, "pools": poolNames(c.pools)}}
				data := launchCase{classCase: c, fault: latest, says: same}
				if latest == fault {
					refs, vars, evidence := who(facts, c, same)
					if len(refs) > 0 {
						s.Subjects = refs
					}
					for k, v := range vars {
						s.Vars[k] = v
					}
					data.evidence = evidence
				}
				s.Data = data
				found = append(found, s)
			}
			return found
		},
		Tests: []Test{{Asks: asks, Run: func(_ *probes.Facts, s Suspect) Answer {
			d := s.Data.(launchCase)
			var evidence []Evidence
			for _, one := range d.says[:min(len(d.says), maxExamples)] {
				evidence = append(evidence, one.from)
			}
			if d.fault != fault {
				return Answered(false, evidence...)
			}
			return Answered(true, append(evidence, d.evidence...)...)
		}}},
	}
}

type launchCase struct {
	classCase
	fault    launchFault
	says     []launchSaying
	evidence []Evidence
}

func poolNames(list []*probes.NodePool) string {
	var names []string
	for _, p := range list {
		names = append(names, p.Name)
	}
	return strings.Join(names, ", ")
}

func capturedIn(list []launchSaying, name string) string {
	for _, s := range list {
		if s.got[name] != "" {
			return s.got[name]
		}
	}
	return ""
}

const asksLast = "is the last thing that AWS said of launching from EC2NodeClass {class} that "

// spotRoleMissing: the account never used spot, and Karpenter may not create
// the role that EC2 needs for it.
var spotRoleMissing = launchRule("spot-service-linked-role-missing", asksLast+"the service-linked role for spot is missing?", noSpotRole, nil,
	func(_ *probes.Facts, c classCase, _ []launchSaying) ([]Ref, map[string]string, []Evidence) {
		refs := []Ref{{Kind: "IAMRole", Name: "AWSServiceRoleForEC2Spot"}}
		for _, p := range c.pools {
			refs = append(refs, Ref{Kind: "NodePool", Name: p.Name})
		}
		return refs, nil, nil
	})

var groupsOfOtherVPC = launchRule("nodeclass-groups-of-other-vpc", asksLast+"its security groups and subnets belong to different networks?", otherNetworks, []probes.Any{probes.SecurityGroups, probes.Subnets},
	func(facts *probes.Facts, c classCase, says []launchSaying) ([]Ref, map[string]string, []Evidence) {
		vars := map[string]string{"selector": "", "where": ""}
		var evidence []Evidence
		if c.class == nil {
			return nil, vars, nil
		}
		byVPC := map[string][]string{}
		if groupList, err := probes.SecurityGroups.Of(facts); err == nil {
			for _, g := range c.class.Status.SecurityGroups {
				if one := groupList.Get(g.ID); one != nil {
					byVPC[str(one.VpcId)] = append(byVPC[str(one.VpcId)], fmt.Sprintf("%s (%s)", g.ID, str(one.GroupName)))
				}
			}
		}
		if subnets, err := probes.Subnets.Of(facts); err == nil {
			for _, s := range c.class.Status.Subnets {
				if one := subnets.Get(s.ID); one != nil {
					byVPC[str(one.VpcId)] = append(byVPC[str(one.VpcId)], s.ID)
				}
			}
		}
		var words []string
		for _, vpc := range sortedKeys(byVPC) {
			words = append(words, fmt.Sprintf("%s in %s", strings.Join(byVPC[vpc], ", "), vpc))
		}
		if len(words) > 0 {
			evidence = append(evidence, c.saw("EC2NodeClass %s selects %s", c.name, strings.Join(words, "; ")))
		}
		vars["where"] = orDefault(strings.Join(words, "; "), orDefault(capturedIn(says, "group")+" "+capturedIn(says, "subnet"), "groups and subnets of two VPCs"))
		var terms []string
		for _, t := range c.class.Spec.SecurityGroupSelectorTerms {
			terms = append(terms, termWords(t))
		}
		vars["selector"] = strings.Join(terms, ", or ")
		return nil, vars, evidence
	})

var groupsTooMany = launchRule("nodeclass-selects-too-many-groups", asksLast+"it has too many security groups?", tooManyGroups, nil,
	func(_ *probes.Facts, c classCase, _ []launchSaying) ([]Ref, map[string]string, []Evidence) {
		if c.class == nil {
			return nil, map[string]string{"groups": "too many"}, nil
		}
		ids := []string{}
		for _, g := range c.class.Status.SecurityGroups {
			ids = append(ids, g.ID)
		}
		return nil, map[string]string{"groups": fmt.Sprint(len(ids))}, []Evidence{c.saw("EC2NodeClass %s selects %d security groups: %s", c.name, len(ids), strings.Join(ids, ", "))}
	})

var profileInvalid = launchRule("nodeclass-instance-profile-invalid", asksLast+"its instance profile is not valid?", profileUnknown, nil,
	func(_ *probes.Facts, c classCase, _ []launchSaying) ([]Ref, map[string]string, []Evidence) {
		if c.class == nil {
			return nil, map[string]string{"profile": ""}, nil
		}
		name := orDefault(c.class.Spec.InstanceProfile, c.class.Status.InstanceProfile)
		return nil, map[string]string{"profile": name}, []Evidence{c.saw("EC2NodeClass %s: spec.instanceProfile %q, spec.role %q, status.instanceProfile %q", c.name, c.class.Spec.InstanceProfile, c.class.Spec.Role, c.class.Status.InstanceProfile)}
	})

var imageRefused = launchRule("nodeclass-image-unusable", asksLast+"its image does not exist or may not be used?", imageUnusable, nil,
	func(_ *probes.Facts, c classCase, says []launchSaying) ([]Ref, map[string]string, []Evidence) {
		image := orDefault(capturedIn(says, "image"), capturedIn(says, "image2"))
		return nil, map[string]string{"image": orDefault(image, "its image")}, nil
	})

// keyUnusable: EC2 may not use the key that the volume is to be encrypted with.
var keyUnusable = launchRule("launch-encryption-key-unusable", asksLast+"it can't use the encryption key of the volume?", noKey, nil,
	func(_ *probes.Facts, c classCase, _ []launchSaying) ([]Ref, map[string]string, []Evidence) {
		return keySubject(c)
	})

// keySubject is the key that a class names for its volumes; without one it is
// the account's default key for EBS.
func keySubject(c classCase) ([]Ref, map[string]string, []Evidence) {
	if c.class != nil {
		for _, m := range c.class.Spec.BlockDeviceMappings {
			if m.EBS != nil && m.EBS.KMSKeyID != "" {
				id := m.EBS.KMSKeyID[strings.LastIndex(m.EBS.KMSKeyID, "/")+1:]
				return []Ref{{Kind: "KMSKey", Name: id}, c.ref()}, map[string]string{"key": m.EBS.KMSKeyID},
					[]Evidence{c.saw("EC2NodeClass %s: spec.blockDeviceMappings has %s with kmsKeyID %s", c.name, m.DeviceName, m.EBS.KMSKeyID)}
			}
		}
	}
	return []Ref{{Kind: "KMSKey", Name: "default for EBS"}, c.ref()}, map[string]string{"key": "the account's default key for EBS (aws ec2 get-ebs-default-kms-key-id)"}, nil
}

var quotaRule = launchRule("ec2-quota-reached", asksLast+"a quota of the account is used up?", quotaReached, []probes.Any{claims},
	func(_ *probes.Facts, c classCase, says []launchSaying) ([]Ref, map[string]string, []Evidence) {
		code := capturedIn(says, "code")
		quota := "Running On-Demand instances (L-1216C47A for standard families)"
		if strings.Contains(strings.ToLower(code), "spot") {
			quota = "All Spot Instance Requests (L-34B43A08 for standard families, L-3819A6DF for G and VT)"
		} else if strings.Contains(code, "Fleet") {
			quota = "EC2 Fleet requests"
		} else if strings.Contains(code, "Volume") || strings.Contains(code, "IOPS") {
			quota = "storage or IOPS of EBS volumes of that type (aws service-quotas list-service-quotas --service-code ebs)"
		} else if strings.Contains(code, "NetworkInterface") {
			quota = "network interfaces per Region (L-DF5E4CA3, service vpc)"
		}
		refs := []Ref{{Kind: "ServiceQuota", Name: orDefault(code, "EC2")}}
		for _, p := range c.pools {
			refs = append(refs, Ref{Kind: "NodePool", Name: p.Name})
		}
		return refs, map[string]string{"code": orDefault(code, "a quota"), "quota": quota}, nil
	})

var subnetIn = regexp.MustCompile(`subnet-[0-9a-f]+`)

// subnetFull: launches fail in the zone whose subnet has no address left.
var subnetFull = launchRule("subnet-has-no-addresses", asksLast+"a subnet has not enough free addresses?", noAddresses, []probes.Any{probes.Subnets},
	func(facts *probes.Facts, c classCase, says []launchSaying) ([]Ref, map[string]string, []Evidence) {
		named := map[string]bool{}
		for _, s := range says {
			for _, id := range subnetIn.FindAllString(s.text, -1) {
				named[id] = true
			}
		}
		ids := sortedKeys(named)
		subnets, err := probes.Subnets.Of(facts)
		var evidence []Evidence
		if len(ids) == 0 && err == nil && c.class != nil {
			for _, s := range c.class.Status.Subnets {
				if one := subnets.Get(s.ID); one != nil && one.AvailableIpAddressCount != nil && *one.AvailableIpAddressCount < 10 {
					ids = append(ids, s.ID)
				}
			}
		}
		var refs []Ref
		for _, id := range ids {
			refs = append(refs, Ref{Kind: "Subnet", Name: id})
			if err == nil {
				if one := subnets.Get(id); one != nil && one.AvailableIpAddressCount != nil {
					evidence = append(evidence, Saw("aws/ec2/describe-subnets", []string{id}, "subnet %s (%s, %s) has %d free addresses", id, str(one.AvailabilityZone), str(one.CidrBlock), *one.AvailableIpAddressCount))
				}
			}
		}
		refs = append(refs, c.ref())
		return refs, map[string]string{"subnets": orDefault(strings.Join(ids, ", "), "a subnet of EC2NodeClass "+c.name)}, evidence
	})

var offeringIn = regexp.MustCompile(`sufficient (\S+) capacity in the Availability Zone you requested \((\S+?)\)`)

// capacityMissing: AWS has no instance of the types that the pools allow.
var capacityMissing = launchRule("ec2-has-no-capacity", asksLast+"EC2 has no capacity for what was asked?", noCapacity, nil,
	func(_ *probes.Facts, c classCase, says []launchSaying) ([]Ref, map[string]string, []Evidence) {
		var refs []Ref
		var evidence []Evidence
		for _, p := range c.pools {
			if slices.ContainsFunc(says, func(s launchSaying) bool { return s.pool == p.Name || s.pool == "" }) {
				refs = append(refs, Ref{Kind: "NodePool", Name: p.Name})
				evidence = append(evidence, sawPool(p, "NodePool %s asks for %s", p.Name, requirementWords(p.Spec.Template.Spec.Requirements)))
			}
		}
		offerings := map[string]bool{}
		for _, s := range says {
			for _, m := range offeringIn.FindAllStringSubmatch(s.text, -1) {
				offerings[m[1]+" in "+m[2]] = true
			}
		}
		return refs, map[string]string{"offerings": orDefault(strings.Join(sortedKeys(offerings), ", "), "the instance types that were asked for")}, evidence
	})

func requirementWords(list []probes.Requirement) string {
	var parts []string
	for _, r := range list {
		parts = append(parts, strings.TrimSpace(fmt.Sprintf("%s %s %s", r.Key, r.Operator, strings.Join(r.Values, ", "))))
	}
	return strings.Join(parts, "; ")
}

var typeNotOffered = launchRule("instance-type-not-offered", asksLast+"the instance type is not offered in the zone?", notOffered, nil,
	func(_ *probes.Facts, c classCase, _ []launchSaying) ([]Ref, map[string]string, []Evidence) {
		var refs []Ref
		for _, p := range c.pools {
			refs = append(refs, Ref{Kind: "NodePool", Name: p.Name})
		}
		return refs, nil, nil
	})

var accountBlocked = launchRule("aws-account-held-back", asksLast+"AWS holds the account back?", accountHeld, nil,
	func(_ *probes.Facts, c classCase, _ []launchSaying) ([]Ref, map[string]string, []Evidence) {
		return []Ref{{Kind: "AWSAccount", Name: "this account"}, c.ref()}, nil, nil
	})

// launchVague: EC2 made no instance, and its words head several causes.
var launchVague = &Rule{
	ID: "launch-fails-for-unclear-reason", Explains: []*Rule{noNodeFromKarpenter, nodeClaimNotLaunched}, Intermediate: true,
	Needs: slices.Concat([]probes.Any{pools, classes, claims}, launchNeeds),
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		says, err := karpenterSays.Of(facts)
		if err != nil {
			return nil
		}
		var found []Suspect
		for _, c := range perClass(facts, effects) {
			list := launchSayings(says, c.name)
			fault, same := latestFault(list)
			if fault != vague && fault != throttled && fault != templateMissing {
				continue
			}
			s := Suspect{Subjects: []Ref{c.ref()}, Effects: c.effects, Vars: map[string]string{"class": c.name}, Data: says}
			for _, one := range same[:min(len(same), maxExamples)] {
				s.Found = append(s.Found, one.from)
			}
			found = append(found, s)
		}
		return found
	},
	Tests: []Test{{Asks: "does EC2 make no instance for EC2NodeClass {class}, in words that head several causes?", Run: func(_ *probes.Facts, s Suspect) Answer {
		return Answered(true, Evidence{Says: "neither conditions, events nor the controller's log name the error itself; CloudTrail has it (CreateFleet, RunInstances)"})
	}}},
}

// launchUnread: nodes are asked for and don't come, and what Karpenter said of
// it can't be read.
var launchUnread = &Rule{
	ID: "karpenter-not-heard", Explains: []*Rule{noNodeFromKarpenter, nodeClaimNotLaunched, classNotReady},
	Needs: slices.Concat([]probes.Any{pools, classes, claims}, launchNeeds),
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		says, err := karpenterSays.Of(facts)
		if err != nil {
			return nil
		}
		var found []Suspect
		for _, c := range perClass(facts, effects) {
			if len(launchSayings(says, c.name)) == 0 && len(says.errs) > 0 {
				refs := []Ref{c.ref()}
				if c.effects[0].Subject().Kind == "NodePool" {
					refs = appendNew([]Ref{c.effects[0].Subject()}, refs...)
				}
				found = append(found, Suspect{Subjects: refs, Effects: c.effects, Data: says.err(), Vars: map[string]string{"class": c.name}})
			}
		}
		return found
	},
	Tests: []Test{{Asks: "what did Karpenter say of making nodes from EC2NodeClass {class}?", Run: func(_ *probes.Facts, s Suspect) Answer {
		return CantTell(s.Data.(error))
	}}},
}

var launchRules = []*Rule{
	spotRoleMissing, groupsOfOtherVPC, groupsTooMany, profileInvalid, imageRefused, keyUnusable, quotaRule, subnetFull, capacityMissing, typeNotOffered, accountBlocked, launchDataWrong, launchVague, launchUnread,
}
