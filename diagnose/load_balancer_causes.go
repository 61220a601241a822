package diagnose

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

func byAWSController(b *balanced) bool { return b.maker == awsController }

// What the AWS Load Balancer Controller and the service controller say when
// the groups of an interface are not tagged as they need it.
// Sources: aws-load-balancer-controller pkg/networking/networking_manager.go;
// cloud-provider-aws pkg/providers/v1/aws.go, findSecurityGroupForInstance.
var taggedOnce = regexp.MustCompile(`expect(?:ed)? exactly one securityGroup tagged with (\S+) for eni (\S+?), got: \[([^\]]*)\]|Multiple (?:un)?tagged security groups found for instance (\S+?);.*?groups were (.+)`)

// groupsNotTaggedOnce: the interface that targets are on carries several
// groups that are tagged for the cluster, or several and none is.
var groupsNotTaggedOnce = ofBalanced("target-groups-not-tagged-once", "does not exactly one group of {where} carry the tag {tag}?", []probes.Any{probes.SecurityGroups, probes.EC2NodeClasses, probes.EKSCluster, probes.NetworkInterfaces, probes.Instances}, taggedOnce, nil,
	func(facts *probes.Facts, b *balanced, m []string, s *Suspect) Answer {
		tag, where, list := m[1], "interface "+m[2], m[3]
		if m[4] != "" {
			tag, where, list = "kubernetes.io/cluster/"+orDefault(clusterName(facts), "CLUSTER"), "instance "+m[4], m[5]
		}
		groups := groupID.FindAllString(list, -1)
		untagged := len(groups) == 0 || strings.Contains(m[0], "Multiple untagged")
		carried := groupsOn(facts, m[2], m[4])
		s.Vars["tag"], s.Vars["where"], s.Vars["groups"], s.Vars["count"] = tag, where, orDefault(strings.Join(groups, ", "), "none of "+orDefault(strings.Join(carried, ", "), "its groups")), fmt.Sprint(len(groups))
		s.Vars["fix"] = "take the tag off all of them but one; where a selector or launch template adds a group that the nodes don't need, take that out"
		if untagged {
			s.Vars["fix"] = "tag exactly one of the groups"
			s.Vars["count"] = "none"
		}
		evidence := slices.Clone(b.seen)
		var subjects []Ref
		if list, err := probes.SecurityGroups.Of(facts); err == nil {
			for _, id := range append(slices.Clone(groups), carried...) {
				if g := list.Get(id); g != nil && len(evidence) < 5 {
					has := "no tag " + tag
					if v := tagValue(g.Tags, tag); v != "" {
						has = tag + "=" + v
					}
					evidence = append(evidence, Saw("aws/ec2/describe-security-groups", []string{id}, "%s (%s) has %s", id, str(g.GroupName), has))
				}
			}
		}
		// A group beside the one that all nodes have was added to them.
		for _, id := range append(slices.Clone(groups), carried...) {
			subjects = appendNew(subjects, Ref{Kind: "SecurityGroup", Name: id})
		}
		if classes, err := probes.EC2NodeClasses.Of(facts); err == nil && len(groups) > 1 {
			for _, c := range classes.All() {
				if mine := classGroups(c); !slices.ContainsFunc(groups, func(g string) bool { return !slices.Contains(mine, g) }) {
					subjects = append([]Ref{{Kind: "EC2NodeClass", Name: c.Name}}, subjects...)
					evidence = append(evidence, SawObject("ec2nodeclasses.karpenter.k8s.aws", "", c.Name, "EC2NodeClass %s gives nodes %s by %s", c.Name, strings.Join(mine, ", "), selectorWords(c)))
					break
				}
			}
		}
		if len(subjects) > 0 {
			s.Subjects = append(subjects, b.ref)
		}
		return Answered(true, evidence...)
	})

var groupID = regexp.MustCompile(`sg-[0-9a-f]+`)

// groupsOn are the groups of an interface or of an instance's first one.
func groupsOn(facts *probes.Facts, eni, instance string) []string {
	var ids []string
	if list, err := probes.NetworkInterfaces.Of(facts); err == nil {
		if i := list.Get(eni); i != nil {
			for _, g := range i.Groups {
				ids = append(ids, str(g.GroupId))
			}
		}
	}
	if list, err := probes.Instances.Of(facts); err == nil && len(ids) == 0 {
		if i := list.Get(instance); i != nil {
			for _, g := range i.SecurityGroups {
				ids = append(ids, str(g.GroupId))
			}
		}
	}
	return ids
}

// What is said of targets that are instances where the Service has no node port.
// Source: aws-load-balancer-controller pkg/ingress/model_build_target_group.go.
var needsNodePort = regexp.MustCompile(`TargetGroup port is empty|must be (?:either )?(?:with type|of type) '?NodePort'? or|CreateTargetGroupInput\.Port`)

// instanceTargets: targets are to be instances, by default or by annotation,
// and the Service has no port on nodes.
var instanceTargets = ofBalanced("instance-targets-without-node-port", "are the targets of {object} to be instances, though a Service behind it has no node port?", []probes.Any{probes.Services, probes.Deployments}, needsNodePort,
	func(b *balanced) bool { return byAWSController(b) && b.ingress != nil && b.says == "" },
	func(facts *probes.Facts, b *balanced, m []string, s *Suspect) Answer {
		s.Vars["service"], s.Vars["set"] = "a Service", "that is the default"
		if b.ingress == nil {
			return Answered(true, b.seen...)
		}
		services, err := probes.Services.Of(facts)
		if err != nil {
			return CantTell(err, b.seen...)
		}
		annotation := b.meta.Annotations["alb.ingress.kubernetes.io/target-type"]
		if annotation != "" {
			s.Vars["set"] = "alb.ingress.kubernetes.io/target-type: " + annotation
		} else if d, err := controllerDeployment(facts); err == nil && d != nil && flagIs(d.Spec.Template.Spec.Containers, "default-target-type", "ip") {
			annotation = "ip"
		}
		for _, back := range ingressBackends(b.ingress) {
			svc := services.Get(b.ref.Namespace, back.service)
			if svc == nil || svc.Spec.Type != corev1.ServiceTypeClusterIP && svc.Spec.Type != "" {
				continue
			}
			if annotation == "ip" || svc.Annotations["alb.ingress.kubernetes.io/target-type"] == "ip" {
				continue
			}
			s.Vars["service"] = svc.Name
			s.Subjects = []Ref{b.ref, {Kind: "Service", Namespace: svc.Namespace, Name: svc.Name}}
			return Answered(true, append(slices.Clone(b.seen),
				SawObject("ingresses.networking.k8s.io", b.ref.Namespace, b.ref.Name, "Ingress %s: targets are instances (%s)", b.ref.Name, s.Vars["set"]),
				SawObject("services", svc.Namespace, svc.Name, "Service %s is of type ClusterIP, so no node has a port for it", svc.Name))...)
		}
		return Answered(m != nil, append(slices.Clone(b.seen), SawObject("ingresses.networking.k8s.io", b.ref.Namespace, b.ref.Name, "the Services of Ingress %s fit its target type", b.ref.Name))...)
	})

func flagIs(containers []corev1.Container, flag, value string) bool {
	return flagOf(containers, flag) == value
}

// flagOf is the value of a flag in the arguments of containers, or "".
func flagOf(containers []corev1.Container, flag string) string {
	for _, c := range containers {
		args := slices.Concat(c.Command, c.Args)
		for i, a := range args {
			name, value, inline := strings.Cut(strings.TrimLeft(a, "-"), "=")
			switch {
			case name != flag:
			case inline:
				return value
			case i+1 < len(args):
				return args[i+1]
			}
		}
	}
	return ""
}

// What is said of certificates. Sources: ELBv2 API Reference, CreateListener;
// aws-load-balancer-controller pkg/ingress/cert_discovery.go.
var certificateSays = regexp.MustCompile(`(?i)no certificate found for host: (\S+)|certificate (?:arn )?'?(arn:[\w-]+:(?:acm|iam):[^\s']+)'? (?:is not valid|not found)|(CertificateNotFound|UnsupportedCertificate)`)

// certificateWrong: the certificate that a listener is to have is not there.
var certificateWrong = ofBalanced("load-balancer-certificate-wrong", "is the certificate for {object} not there?", []probes.Any{probes.EKSCluster}, certificateSays, nil,
	func(facts *probes.Facts, b *balanced, m []string, s *Suspect) Answer {
		arn := m[2]
		if arn == "" {
			for _, key := range []string{"alb.ingress.kubernetes.io/certificate-arn", "service.beta.kubernetes.io/aws-load-balancer-ssl-cert"} {
				arn = orDefault(arn, b.meta.Annotations[key])
			}
		}
		evidence := slices.Clone(b.seen)
		region := clusterRegion(facts)
		switch parts := strings.Split(arn, ":"); {
		case m[1] != "":
			s.Vars["why"] = fmt.Sprintf("no certificate of ACM in this region covers %s, and no annotation names one", m[1])
			s.Vars["fix"] = fmt.Sprintf("issue a certificate for %s in ACM, in the load balancer's region, or name one with the annotation alb.ingress.kubernetes.io/certificate-arn; or correct the host", m[1])
		case len(parts) > 4 && region != "" && parts[3] != region && parts[2] == "acm":
			s.Vars["why"] = fmt.Sprintf("%s is of region %s, and the load balancer is in %s", arn, parts[3], region)
			s.Vars["fix"] = fmt.Sprintf("name a certificate of region %s", region)
			evidence = append(evidence, SawObject(probes.ResourceOf("", b.ref.Kind), b.ref.Namespace, b.ref.Name, "%s names certificate %s; the cluster is in %s", short(b.ref), arn, region))
		default:
			s.Vars["why"] = fmt.Sprintf("%s is not there, or can't be used", orDefault(arn, "the certificate"))
			s.Vars["fix"] = "name a certificate that exists and is issued, in the load balancer's region and account"
		}
		return Answered(true, evidence...)
	})

// clusterRegion is the AWS region of the cluster, or "".
func clusterRegion(facts *probes.Facts) string {
	if c, err := probes.EKSCluster.Of(facts); err == nil {
		if parts := strings.Split(c.ARN, ":"); len(parts) > 4 {
			return parts[3]
		}
	}
	if m, ok := facts.Source().(interface{ ClusterMeta() probes.SnapshotMeta }); ok && m.ClusterMeta().Region != "" {
		return m.ClusterMeta().Region
	}
	if nodes, err := probes.Nodes.Of(facts); err == nil {
		for _, n := range nodes.All() {
			if r := n.Labels["topology.kubernetes.io/region"]; r != "" {
				return r
			}
		}
	}
	return ""
}

// classNotNamed: an Ingress names no class, and none is the default, so no
// controller takes it.
var classNotNamed = ofBalanced("ingress-class-not-named", "does {object} name no class, and is none the default?", nil, nil,
	func(b *balanced) bool { return b.ingress != nil && b.class == "" && b.unmade },
	func(facts *probes.Facts, b *balanced, _ []string, s *Suspect) Answer {
		classes, err := probes.IngressClassesInUse.Of(facts)
		if err != nil {
			s.Vars["classes"] = "not known"
			return CantTell(err)
		}
		var names []string
		for _, c := range classes.All() {
			names = append(names, c.Name)
		}
		s.Vars["classes"] = listed(names)
		return Answered(true, SawObject("ingresses.networking.k8s.io", b.ref.Namespace, b.ref.Name, "Ingress %s has no ingressClassName and no annotation kubernetes.io/ingress.class", b.ref.Name),
			Saw("ingressclasses.networking.k8s.io", nil, "the IngressClasses are %s, and none is annotated as the default", listed(names)))
	})

// balancerRefused: what the controller says where no other rule knows it.
var balancerRefused = func() *Rule {
	r := ofBalanced("load-balancer-refused", "does the controller refuse {object}?", nil, regexp.MustCompile(`\S`), nil,
		func(_ *probes.Facts, b *balanced, _ []string, _ *Suspect) Answer {
			if strings.Contains(b.says, "is not authorized to perform") || passing.MatchString(b.says) {
				return CantTell(nil, b.seen...) // whose fault that is another rule tells, or it passes
			}
			return Answered(true, b.seen...)
		})
	r.LastResort = true
	return r
}()

// passing are complaints that go by themselves.
var passing = regexp.MustCompile(`Throttling|Rate exceeded|RequestLimitExceeded|the object has been modified|context (?:canceled|deadline exceeded)|connection reset|i/o timeout`)
