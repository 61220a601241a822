package diagnose

import "slices"

// Rules are all rules, symptoms first. Each area's file ends with its list.
func Rules() []*Rule {
	return slices.Concat(
		symptomRules,
		[]*Rule{awsCallsRefused},
		nodeSymptoms,
		schedulingRules,
		jobSymptoms,
		evictionSymptoms,
		restartSymptoms,
		imageRules,
		configRules,
		startRules,
		mountRules,
		programRules,
		fileRules,
		databaseRules,
		memoryRules,
		healthcheckRules,
		crashRules,
		jobRules,
		autoscalingRules,
		deletionRules,
		rolloutRules,
		claimRules,
		serviceRules,
		infrastructureRules,
		dnsRules,
		admissionRules,
		permissionRules,
		installRules,
		externalSecretRules,
		grafanaRules,
		gatewayRules,
		installRiskRules,
		poolRoleRules,
		meshPolicyRules,
		karpenterRules,
		joinRules,
		eksRules,
		setupRules,
		removalRules,
		vanishRules,
	)
}
