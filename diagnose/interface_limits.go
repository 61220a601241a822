package diagnose

import "strings"

// interfaceLimit is how many network interfaces an instance type has, and how
// many IPv4 addresses each.
type interfaceLimit struct{ interfaces, addresses int }

// sizeLimits are those of the general families (m, c, r from the fifth
// generation on) by size; burstLimits those of t2 to t4g.
// Source: docs.aws.amazon.com/ec2/latest/instancetypes (network specifications).
var (
	sizeLimits = map[string]interfaceLimit{
		"medium": {2, 4}, "large": {3, 10}, "xlarge": {4, 15}, "2xlarge": {4, 15}, "4xlarge": {8, 30}, "8xlarge": {8, 30}, "9xlarge": {8, 30},
		"12xlarge": {8, 30}, "16xlarge": {15, 50}, "18xlarge": {15, 50}, "24xlarge": {15, 50},
	}
	burstLimits = map[string]interfaceLimit{
		"nano": {2, 2}, "micro": {2, 2}, "small": {3, 4}, "medium": {3, 6}, "large": {3, 12}, "xlarge": {4, 15}, "2xlarge": {4, 15},
	}
)

// interfaceLimits are the limits of an instance type, where they are known.
func interfaceLimits(instanceType string) (interfaceLimit, bool) {
	family, size, ok := strings.Cut(instanceType, ".")
	if !ok || len(family) < 2 {
		return interfaceLimit{}, false
	}
	switch {
	case family == "t2" && strings.HasSuffix(size, "xlarge"):
		return interfaceLimit{3, 15}, true
	case family == "t3a" && size == "small":
		return interfaceLimit{2, 4}, true
	case family[0] == 't':
		l, ok := burstLimits[size]
		return l, ok
	case strings.ContainsRune("mcr", rune(family[0])) && family[1] >= '5' && family[1] <= '9':
		if strings.HasPrefix(family, "c5n") || strings.HasSuffix(family, "zn") || strings.HasSuffix(family, "en") {
			return interfaceLimit{}, false
		}
		l, ok := sizeLimits[size]
		return l, ok
	}
	return interfaceLimit{}, false
}
