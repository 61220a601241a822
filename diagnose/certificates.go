package diagnose

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

const certificatesResource = "certificates.cert-manager.io"

var certificateFacts = append([]probes.Any{
	probes.Certificates, probes.CertificateRequests, probes.Issuers, probes.ClusterIssuers, probes.Orders, probes.Challenges, probes.Secrets, probes.IngressClasses,
}, controllerFacts...)

// issuePatience is how long an issuer may take: an ACME order takes minutes.
const issuePatience = 10 * time.Minute

// certificateNotReady: a certificate is not issued, or not renewed in time.
var certificateNotReady = &Rule{
	ID: "certificate-not-ready", Needs: certificateFacts,
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		list, err := probes.Certificates.Of(facts)
		if err != nil {
			return nil
		}
		var found []Suspect
		for _, c := range list.All() {
			if says, since := certificateState(c, facts.Source().Now()); says != "" {
				s := objectSymptom(certificateRef(c), certificatesResource, says, &objectTrouble{fault: certificateFault(facts, c), makes: Ref{Kind: "Secret", Namespace: c.Namespace, Name: c.Spec.SecretName}})
				s.Since, s.Vars["secret"] = since, c.Spec.SecretName
				found = append(found, s)
			}
		}
		return found
	},
}

func certificateRef(c *probes.Certificate) Ref {
	return Ref{Kind: "Certificate", Namespace: c.Namespace, Name: c.Name}
}

// certificateState says what is wrong with a certificate; "" if nothing is.
func certificateState(c *probes.Certificate, now time.Time) (string, *time.Time) {
	ready, issuing := meta.FindStatusCondition(c.Status.Conditions, "Ready"), meta.FindStatusCondition(c.Status.Conditions, "Issuing")
	switch {
	case c.DeletionTimestamp != nil:
	case c.Status.NotAfter != nil && now.After(c.Status.NotAfter.Time):
		return "it expired at " + stampOf(c.Status.NotAfter.Time), &c.Status.NotAfter.Time
	case c.Status.RenewalTime != nil && now.Sub(c.Status.RenewalTime.Time) > time.Hour:
		return "it was to be renewed at " + stampOf(c.Status.RenewalTime.Time) + ", and was not", &c.Status.RenewalTime.Time
	case ready == nil && now.Sub(c.CreationTimestamp.Time) > issuePatience:
		return "nothing has acted on it: it has no Ready condition", &c.CreationTimestamp.Time
	case ready != nil && ready.Status != metav1.ConditionTrue && now.Sub(ready.LastTransitionTime.Time) > issuePatience:
		says := conditionWords(ready)
		if issuing != nil && issuing.Reason == "Failed" {
			says += "; " + issuing.Message
		}
		return says, &ready.LastTransitionTime.Time
	}
	return "", nil
}

func issuerOf(ref probes.IssuerRef, namespace string) Ref {
	if ref.Kind == "ClusterIssuer" {
		return Ref{Kind: "ClusterIssuer", Name: ref.Name}
	}
	return Ref{Kind: cmp.Or(ref.Kind, "Issuer"), Namespace: namespace, Name: ref.Name}
}

func issuersOf(facts *probes.Facts, kind string) (*probes.List[probes.Issuer], error) {
	if kind == "ClusterIssuer" {
		return probes.ClusterIssuers.Of(facts)
	}
	return probes.Issuers.Of(facts)
}

// certificateFault walks from a certificate to what keeps it from being
// issued: cert-manager itself, its issuer, or what the issuer answered.
func certificateFault(facts *probes.Facts, c *probes.Certificate) *objectFault {
	if f := controllerDown(facts, "Certificates", "cert-manager-controller"); f != nil {
		return f
	}
	ref := issuerOf(c.Spec.IssuerRef, c.Namespace)
	saw := SawObject(certificatesResource, c.Namespace, c.Name, "Certificate %s makes Secret %s, signed by %s", c.Name, c.Spec.SecretName, short(ref))
	if group := c.Spec.IssuerRef.Group; group == "" || group == "cert-manager.io" {
		list, err := issuersOf(facts, ref.Kind)
		if err == nil {
			i := list.Get(ref.Namespace, ref.Name)
			if i == nil {
				f := issuerMissing(facts, ref, saw)
				f.subject = certificateRef(c)
				return f
			}
			if f := issuerFault(facts, ref, i); f != nil {
				f.found = append([]Evidence{saw}, f.found...)
				return f
			}
		}
	}
	if f := challengeFault(facts, c, ref); f != nil {
		f.found = append([]Evidence{saw}, f.found...)
		return f
	}
	return requestFault(facts, c, saw)
}

func issuerMissing(facts *probes.Facts, ref Ref, saw Evidence) *objectFault {
	vars := map[string]string{"issuer": short(ref)}
	other := "ClusterIssuer"
	if ref.Kind == "ClusterIssuer" {
		other = "Issuer"
	}
	if list, err := issuersOf(facts, other); err == nil {
		for _, o := range list.All() {
			if o.Name == ref.Name {
				vars["hint"] = fmt.Sprintf(" There is %s: issuerRef.kind is wrong.", short(Ref{Kind: other, Namespace: o.Namespace, Name: o.Name}))
			}
		}
	}
	if list, err := issuersOf(facts, ref.Kind); err == nil && vars["hint"] == "" {
		var names []string
		for o := range list.In(ref.Namespace) {
			names = append(names, o.Name)
		}
		vars["hint"] = isHint(ref.Kind, ref.Name, names)
	}
	return &objectFault{rule: "certificate-issuer-missing", vars: vars, found: []Evidence{saw, Saw(strings.ToLower(ref.Kind)+"s.cert-manager.io", nil, "there is no %s", short(ref))}}
}

var secretNamed = regexp.MustCompile(`(?i)secrets? "(?:(?P<ns>[a-z0-9-]+)/)?(?P<name>[a-z0-9.-]+)" not found|secret (?:(?P<ns2>[a-z0-9-]+)/)?(?P<name2>[a-z0-9.-]+) (?:not found|does not exist)|failed to get secret '(?:(?P<ns3>[a-z0-9-]+)/)?(?P<name3>[a-z0-9.-]+)'`)

// missingSecret is the Secret that a controller says is not there.
func missingSecret(says, namespace string) (Ref, bool) {
	got := groups(secretNamed, says)
	name := cmp.Or(got["name"], got["name2"], got["name3"])
	if name == "" {
		return Ref{}, false
	}
	return Ref{Kind: "Secret", Namespace: cmp.Or(got["ns"], got["ns2"], got["ns3"], namespace), Name: name}, true
}

// issuerNamespace is where an issuer's Secrets are: cert-manager's own
// namespace for a ClusterIssuer.
// Source: https://cert-manager.io/docs/configuration/#cluster-resource-namespace
func issuerNamespace(facts *probes.Facts, ref Ref) string {
	if ref.Namespace != "" {
		return ref.Namespace
	}
	if list := programsOf(facts, "cert-manager-controller"); len(list) > 0 {
		return list[0].ref.Namespace
	}
	return "cert-manager"
}

// issuerFault says why an issuer can't sign; nil if it can, or is young.
func issuerFault(facts *probes.Facts, ref Ref, i *probes.Issuer) *objectFault {
	ready := meta.FindStatusCondition(i.Status.Conditions, "Ready")
	if ready != nil && ready.Status == metav1.ConditionTrue || facts.Source().Now().Sub(changedAt(i)) < 2*patience {
		return nil
	}
	says := conditionWords(ready)
	vars := map[string]string{"issuer": short(ref), "says": clip(says, 420)}
	f := &objectFault{rule: "issuer-not-ready", subject: ref, vars: vars, found: []Evidence{SawObject(strings.ToLower(ref.Kind)+"s.cert-manager.io", ref.Namespace, ref.Name, "%s: %s", short(ref), clip(says, 420))}}
	if secret, ok := missingSecret(says, issuerNamespace(facts, ref)); ok {
		secretOf(facts, f, secret)
	}
	return f
}

// secretOf makes a fault one of a Secret that a controller looks for in vain.
func secretOf(facts *probes.Facts, f *objectFault, secret Ref) {
	list, err := probes.Secrets.Of(facts)
	if err == nil && list.Get(secret.Namespace, secret.Name) != nil {
		return // it is there by now
	}
	f.vars["user"] = short(f.subject)
	f.rule, f.subject, f.vars["secret"], f.vars["in"] = "controller-secret-missing", secret, secret.Name, secret.Namespace
	if err != nil {
		return
	}
	f.found = append(f.found, SawObject("secrets", secret.Namespace, secret.Name, "namespace %s has no Secret %s", secret.Namespace, secret.Name))
	for _, s := range list.All() {
		if s.Name == secret.Name {
			f.vars["hint"] = fmt.Sprintf(" A Secret of that name is in namespace %s.", s.Namespace)
		}
	}
}

// issuerNotReady: an issuer that no certificate waits for can't sign either.
var issuerNotReady = &Rule{
	ID: "issuer-unusable", Needs: certificateFacts,
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		var found []Suspect
		for _, kind := range []string{"ClusterIssuer", "Issuer"} {
			list, err := issuersOf(facts, kind)
			if err != nil {
				continue
			}
			for _, i := range list.All() {
				ref := Ref{Kind: kind, Namespace: i.Namespace, Name: i.Name}
				if f := issuerFault(facts, ref, i); f != nil && allDown(facts, "cert-manager-controller") == nil {
					found = append(found, objectSymptom(ref, strings.ToLower(kind)+"s.cert-manager.io", conditionWords(meta.FindStatusCondition(i.Status.Conditions, "Ready")), &objectTrouble{fault: f}))
				}
			}
		}
		return found
	},
}

var awsDeniedRole = regexp.MustCompile(`arn:aws[\w-]*:sts::\d+:assumed-role/(?P<role>[\w+=,.@-]+)/\S* is not authorized to perform: (?P<action>[\w:]+)`)

// challengeFault says what an ACME server, or cert-manager on the way to it,
// waits for.
func challengeFault(facts *probes.Facts, c *probes.Certificate, issuer Ref) *objectFault {
	list, err := probes.Challenges.Of(facts)
	if err != nil {
		return nil
	}
	for ch := range list.In(c.Namespace) {
		if ch.Status.State == "valid" || ch.Status.Reason == "" || !strings.HasPrefix(ch.Name, c.Name+"-") && !slices.Contains(c.Spec.DNSNames, ch.Spec.DNSName) {
			continue
		}
		says := clip(ch.Status.Reason, 420)
		vars := map[string]string{"host": ch.Spec.DNSName, "type": ch.Spec.Type, "says": says, "challenge": ch.Name, "issuer": short(issuer), "why": ""}
		f := &objectFault{rule: "acme-challenge-failing", subject: certificateRef(c), vars: vars, found: []Evidence{SawObject("challenges.acme.cert-manager.io", ch.Namespace, ch.Name, "Challenge %s (%s for %s): %s", ch.Name, ch.Spec.Type, ch.Spec.DNSName, says)}}
		if secret, ok := missingSecret(ch.Status.Reason, issuerNamespace(facts, issuer)); ok {
			f.subject = issuer
			secretOf(facts, f, secret)
			return f
		}
		if got := groups(awsDeniedRole, ch.Status.Reason); got != nil {
			f.subject, vars["why"] = Ref{Kind: "IAMRole", Name: got["role"]}, fmt.Sprintf(" IAM role %s lacks %s.", got["role"], got["action"])
			return f
		}
		if h := ch.Spec.Solver.HTTP01; h != nil && h.Ingress != nil {
			class := cmp.Or(h.Ingress.IngressClassName, h.Ingress.Class)
			if classes, err := probes.IngressClasses.Of(facts); err == nil && class != "" && classes.Get("", class) == nil {
				f.subject, vars["why"] = issuer, fmt.Sprintf(" Its solver uses ingress class %s, and there is no such IngressClass (there are: %s).", class, listed(namesOf(probes.IngressClasses, facts, "")))
				f.found = append(f.found, Saw("ingressclasses.networking.k8s.io", nil, "there is no IngressClass %s", class))
				return f
			}
		}
		return f
	}
	return nil
}

// requestFault says what the issuer answered to the newest request.
func requestFault(facts *probes.Facts, c *probes.Certificate, saw Evidence) *objectFault {
	var says string
	if i := meta.FindStatusCondition(c.Status.Conditions, "Issuing"); i != nil && i.Reason == "Failed" {
		says = i.Message
	}
	if list, err := probes.CertificateRequests.Of(facts); err == nil && says == "" {
		for r := range list.In(c.Namespace) {
			for _, o := range r.OwnerReferences {
				if ready := unmet(r.Status.Conditions, "Ready"); o.Kind == "Certificate" && o.Name == c.Name && ready != nil && (ready.Reason == "Failed" || ready.Reason == "Denied") {
					says = ready.Message
				}
			}
		}
	}
	if list, err := probes.Orders.Of(facts); err == nil && says == "" {
		for o := range list.In(c.Namespace) {
			if strings.HasPrefix(o.Name, c.Name+"-") && slices.Contains([]string{"invalid", "errored", "expired"}, o.Status.State) {
				says = fmt.Sprintf("Order %s is %s: %s", o.Name, o.Status.State, o.Status.Reason)
			}
		}
	}
	if says == "" {
		return nil
	}
	return &objectFault{
		rule: "certificate-refused", subject: certificateRef(c), vars: map[string]string{"says": clip(says, 420), "names": listed(append(c.Spec.DNSNames, c.Spec.CommonName)), "issuer": short(issuerOf(c.Spec.IssuerRef, c.Namespace))},
		found: []Evidence{saw, SawObject(certificatesResource, c.Namespace, c.Name, "the issuer's answer: %s", clip(says, 420))},
	}
}

// waitsForCertificate are what may be wrong because a certificate is lacking.
var waitsForCertificate = []*Rule{certificateNotReady, secretMissing, ingressSecretMissing, gatewaySecretMissing, callExpired}

var (
	certificateIssuerMissing = ofObject("certificate-issuer-missing", "is {issuer} not there?", waitsForCertificate...)
	issuerBroken             = ofObject("issuer-not-ready", "is {issuer} not ready?", append([]*Rule{issuerNotReady}, waitsForCertificate...)...)
	controllerSecretMissing  = ofObject("controller-secret-missing", "is Secret {secret}, which {user} needs, not there?", append([]*Rule{issuerNotReady, fluxNotReady, scaledObjectNotReady}, waitsForCertificate...)...)
	challengeFailing         = ofObject("acme-challenge-failing", "does the ACME challenge for {host} fail?", waitsForCertificate...)
	certificateRefused       = ofObject("certificate-refused", "does the issuer refuse the request?", waitsForCertificate...)
)

var certificateRules = []*Rule{certificateNotReady, issuerNotReady, certificateIssuerMissing, issuerBroken, controllerSecretMissing, challengeFailing, certificateRefused}
