package diagnose

import "slices"

// Rules are all rules, symptoms first. Each area's file ends with its list.
func Rules() []*Rule {
	return slices.Concat(
		symptomRules,
		[]*Rule{awsCallsRefused},
		schedulingRules,
		jobSymptoms,
		imageRules,
		configRules,
		startRules,
		mountRules,
		claimRules,
		dnsRules,
		admissionRules,
		permissionRules,
	)
}
