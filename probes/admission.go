package probes

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
)

// The webhooks that the API server asks before it stores an object.
var (
	ValidatingWebhooks = listing[admissionv1.ValidatingWebhookConfiguration]("validatingwebhookconfigurations.admissionregistration.k8s.io", "webhooks that may refuse objects")
	MutatingWebhooks   = listing[admissionv1.MutatingWebhookConfiguration]("mutatingwebhookconfigurations.admissionregistration.k8s.io", "webhooks that may change objects")
)
