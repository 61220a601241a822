package probes

import (
	"slices"
	"strings"
)

// awsKeys maps the top-level key of an AWS CLI v2 document to the command
// that prints it. Source: the AWS CLI v2 command reference.
var awsKeys = map[string]string{
	"Reservations":              "ec2/describe-instances",
	"SecurityGroups":            "ec2/describe-security-groups",
	"SecurityGroupRules":        "ec2/describe-security-group-rules",
	"NetworkInterfaces":         "ec2/describe-network-interfaces",
	"Subnets":                   "ec2/describe-subnets",
	"RouteTables":               "ec2/describe-route-tables",
	"NetworkAcls":               "ec2/describe-network-acls",
	"VpcEndpoints":              "ec2/describe-vpc-endpoints",
	"Vpcs":                      "ec2/describe-vpcs",
	"NatGateways":               "ec2/describe-nat-gateways",
	"DhcpOptions":               "ec2/describe-dhcp-options",
	"PrefixLists":               "ec2/describe-managed-prefix-lists",
	"LaunchTemplateVersions":    "ec2/describe-launch-template-versions",
	"LaunchTemplates":           "ec2/describe-launch-templates",
	"SpotInstanceRequests":      "ec2/describe-spot-instance-requests",
	"Volumes":                   "ec2/describe-volumes",
	"Images":                    "ec2/describe-images",
	"InstanceTypes":             "ec2/describe-instance-types",
	"InstanceTypeOfferings":     "ec2/describe-instance-type-offerings",
	"InstanceStatuses":          "ec2/describe-instance-status",
	"Output":                    "ec2/get-console-output",
	"AutoScalingGroups":         "autoscaling/describe-auto-scaling-groups",
	"cluster":                   "eks/describe-cluster",
	"nodegroup":                 "eks/describe-nodegroup",
	"addon":                     "eks/describe-addon",
	"accessEntry":               "eks/describe-access-entry",
	"accessEntries":             "eks/list-access-entries",
	"association":               "eks/describe-pod-identity-association",
	"associations":              "eks/list-pod-identity-associations",
	"fargateProfile":            "eks/describe-fargate-profile",
	"nodegroups":                "eks/list-nodegroups",
	"addons":                    "eks/list-addons",
	"insights":                  "eks/list-insights",
	"UserDetailList":            "iam/get-account-authorization-details",
	"RoleDetailList":            "iam/get-account-authorization-details",
	"GroupDetailList":           "iam/get-account-authorization-details",
	"Policies":                  "iam/get-account-authorization-details",
	"Role":                      "iam/get-role",
	"Roles":                     "iam/list-roles",
	"InstanceProfile":           "iam/get-instance-profile",
	"InstanceProfiles":          "iam/list-instance-profiles",
	"AttachedPolicies":          "iam/list-attached-role-policies",
	"PolicyNames":               "iam/list-role-policies",
	"PolicyDocument":            "iam/get-role-policy",
	"PolicyVersion":             "iam/get-policy-version",
	"Policy":                    "iam/get-policy",
	"OpenIDConnectProviderList": "iam/list-open-id-connect-providers",
	"EvaluationResults":         "iam/simulate-principal-policy",
	"LoadBalancers":             "elbv2/describe-load-balancers",
	"TargetGroups":              "elbv2/describe-target-groups",
	"TargetHealthDescriptions":  "elbv2/describe-target-health",
	"Listeners":                 "elbv2/describe-listeners",
	"Quotas":                    "service-quotas/list-service-quotas",
	"Quota":                     "service-quotas/get-service-quota",
}

// roleless are the IAM documents that may not name their role; the folder
// that they are in does. `simulate-principal-policy` names it by file too.
var roleless = []string{"AttachedPolicies", "PolicyNames", "EvaluationResults", "PolicyVersion"}

// irregular are the kinds whose resource is not their plural.
var irregular = map[string]string{
	"Endpoints":   "endpoints",
	"NodeMetrics": "nodes",
	"PodMetrics":  "pods",
}

// moved are API groups whose kinds are read from the group that has them now.
var moved = map[string]map[string]string{
	"events.k8s.io": {"Event": ""},
	"extensions":    {"Ingress": "networking.k8s.io", "NetworkPolicy": "networking.k8s.io", "": "apps"},
}

// resourceOf is the Document path of a kind: its plural and its group.
func resourceOf(apiVersion, kind string) string {
	group, _, ok := strings.Cut(apiVersion, "/")
	if !ok {
		group = ""
	}
	if to, ok := moved[group]; ok {
		if g, ok := to[kind]; ok {
			group = g
		} else if g, ok := to[""]; ok {
			group = g
		}
	}
	plural := plural(kind)
	if group == "" {
		return plural
	}
	return plural + "." + group
}

func plural(kind string) string {
	if p, ok := irregular[kind]; ok {
		return p
	}
	s := strings.ToLower(kind)
	switch {
	case strings.HasSuffix(s, "chaos"): // Chaos Mesh's kinds have no plural
		return s
	case strings.HasSuffix(s, "s"), strings.HasSuffix(s, "x"), strings.HasSuffix(s, "ch"), strings.HasSuffix(s, "sh"):
		return s + "es"
	case strings.HasSuffix(s, "y") && len(s) > 1 && !strings.ContainsRune("aeiou", rune(s[len(s)-2])):
		return s[:len(s)-1] + "ies"
	}
	return s + "s"
}

// shortNames are kubectl's, for `captured:` and file names.
// Source: kubectl api-resources.
var shortNames = map[string]string{
	"po": "pods", "no": "nodes", "ns": "namespaces", "svc": "services", "ep": "endpoints", "ev": "events",
	"cm": "configmaps", "sa": "serviceaccounts", "quota": "resourcequotas", "limits": "limitranges",
	"pvc": "persistentvolumeclaims", "pv": "persistentvolumes", "deploy": "deployments", "rs": "replicasets",
	"sts": "statefulsets", "ds": "daemonsets", "cj": "cronjobs", "hpa": "horizontalpodautoscalers",
	"pdb": "poddisruptionbudgets", "ing": "ingresses", "netpol": "networkpolicies", "sc": "storageclasses",
	"pc": "priorityclasses", "crd": "customresourcedefinitions", "crds": "customresourcedefinitions",
}

// namesResource reports whether a loose name (in `captured:`, or of a file)
// means the resource: its plural, its kind, kubectl's short name, or a plural
// made by adding an s; a group, if given, must agree.
func namesResource(name, path string) bool {
	name = strings.ToLower(name)
	if i := strings.LastIndex(name, "/"); i >= 0 { // "apps/deployments", "pods/log"
		if head := name[:i]; strings.Contains(path, "."+head) || strings.HasPrefix(head, "apps") {
			name = name[i+1:]
		} else {
			return false
		}
	}
	name, group, grouped := strings.Cut(name, ".")
	resource, pathGroup, _ := strings.Cut(path, ".")
	if grouped && group != pathGroup && !strings.HasSuffix(group, "."+pathGroup) {
		return false
	}
	if short, ok := shortNames[name]; ok {
		name = short
	}
	return slices.Contains(looseNames(resource), name)
}

func looseNames(resource string) []string {
	names := []string{resource}
	if s, ok := strings.CutSuffix(resource, "ies"); ok {
		names = append(names, s+"y", s+"ys")
	}
	if s, ok := strings.CutSuffix(resource, "es"); ok {
		names = append(names, s, s+"s")
	}
	if s, ok := strings.CutSuffix(resource, "s"); ok {
		names = append(names, s)
	}
	return names
}
