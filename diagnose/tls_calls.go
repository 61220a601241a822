package diagnose

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

var tlsCallFacts = slices.Concat([]probes.Any{probes.Secrets, probes.Certificates, probes.ConfigMaps, probes.Logs}, callFacts)

// A served is the certificate that a server's pods mount.
type served struct {
	secret      Ref // zero where none is mounted, or more than one
	certificate *probes.Certificate
	workload    Ref
}

// servedBy finds the certificate behind a call.
func servedBy(facts *probes.Facts, pods []*corev1.Pod) served {
	var s served
	var names []string
	secrets, secretsErr := probes.Secrets.Of(facts)
	certificates, certificatesErr := probes.Certificates.Of(facts)
	for _, p := range pods[:min(len(pods), 1)] {
		if workloads, err := probes.Workloads.Of(facts); err == nil {
			s.workload = workloads.Of(p)
		}
		for _, v := range p.Spec.Volumes {
			if v.Secret == nil || slices.Contains(names, v.Secret.SecretName) {
				continue
			}
			ofCertificate := false
			if certificatesErr == nil {
				for c := range certificates.In(p.Namespace) {
					if c.Spec.SecretName == v.Secret.SecretName {
						s.certificate, ofCertificate = c, true
					}
				}
			}
			tls := false
			if secretsErr == nil {
				if o := secrets.Get(p.Namespace, v.Secret.SecretName); o != nil {
					_, tls = o.Keys["tls.crt"]
				}
			}
			if ofCertificate || tls {
				names = append(names, v.Secret.SecretName)
			}
		}
		if len(names) == 1 {
			s.secret = Ref{Kind: "Secret", Namespace: p.Namespace, Name: names[0]}
		}
	}
	if len(names) > 1 {
		s.certificate = nil
	}
	return s
}

// ofTLSCalls makes a rule about calls that fail at TLS with one meaning. find
// says who is at fault; its subjects come first.
func ofTLSCalls(id, asks, meaning string, find func(*probes.Facts, *unreached, served, map[string]string) ([]Ref, []Evidence)) *Rule {
	return &Rule{
		ID: id, Explains: []*Rule{targetUnreachable}, Needs: tlsCallFacts,
		Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
			var list []Suspect
			for _, e := range effects {
				u, ok := e.Data.(*unreached)
				if !ok || u.tls != meaning {
					continue
				}
				vars := map[string]string{"client": short(u.client), "address": u.address(), "hint": "", "server": short(u.target.Ref)}
				if len(u.lines) > 0 {
					vars["line"] = clip(u.lines[0].Says, 300)
				}
				refs, evidence := find(facts, u, servedBy(facts, u.target.Pods), vars)
				list = append(list, Suspect{Subjects: appendRef(refs, u.client), Effects: []*Finding{e}, Vars: vars, Found: append(slices.Clone(u.lines), evidence...)})
			}
			return list
		},
		Tests: []Test{{Asks: asks, Run: func(_ *probes.Facts, s Suspect) Answer { return Answered(true, s.Found...) }}},
	}
}

// notByMesh leaves calls to the rules of the mesh for which a DestinationRule
// decides whether the proxy speaks TLS.
func notByMesh(r *Rule) *Rule {
	suspects := r.Suspects
	r.Suspects = func(facts *probes.Facts, effects []*Finding) []Suspect {
		list := suspects(facts, effects)
		for i := range list {
			list[i].Data = list[i].Effects[0].Data
		}
		return list
	}
	r.Tests = append(r.Tests, Test{Asks: "does no DestinationRule decide whether {client} speaks TLS to {address}?", Needs: meshFacts, Run: func(facts *probes.Facts, s Suspect) Answer {
		u := s.Data.(*unreached)
		if len(u.pods) == 0 || !inMesh(u.pods[0]) {
			return Answered(true, s.Found...)
		}
		rules, err := probes.DestinationRules.Of(facts)
		dir, err2 := callDirectory(facts)
		if err := cmp.Or(err, err2); err != nil {
			return CantTell(err)
		}
		for _, r := range rules.All() {
			if t := r.Spec.TrafficPolicy; t != nil && t.TLS != nil && u.target.Ref.Name != "" && serviceAt(dir, r.Namespace, r.Spec.Host) == u.target.Ref {
				return Answered(false, SawObject("destinationrules.networking.istio.io", r.Namespace, r.Name, "DestinationRule %s sets TLS mode %s for %s", r.Name, t.TLS.Mode, r.Spec.Host))
			}
		}
		return Answered(true, s.Found...)
	}})
	return r
}

// caHolders are the ConfigMaps and Secrets from which a client may have the
// authorities that it trusts.
func caHolders(u *unreached) []Ref {
	var list []Ref
	for _, p := range u.pods[:min(len(u.pods), 1)] {
		for _, v := range p.Spec.Volumes {
			name, kind := "", ""
			switch {
			case v.ConfigMap != nil:
				kind, name = "ConfigMap", v.ConfigMap.Name
			case v.Secret != nil:
				kind, name = "Secret", v.Secret.SecretName
			}
			if kind != "" && caName.MatchString(v.Name+" "+name) {
				list = appendRef(list, Ref{Kind: kind, Namespace: p.Namespace, Name: name})
			}
		}
	}
	return list
}

var caName = regexp.MustCompile(`(?i)(?:^|[ _.-])(?:ca|cacerts?|ca-?bundle|trust(?:ed|store)?|root-?ca|truststore)(?:$|[ _.-])`)

var (
	// callUnknownAuthority: the client does not trust who signed the server's certificate.
	callUnknownAuthority = ofTLSCalls("tls-authority-not-trusted", "does {client} not trust who signed the certificate of {address}?", "tls-unknown-authority", func(facts *probes.Facts, u *unreached, s served, vars map[string]string) ([]Ref, []Evidence) {
		var evidence []Evidence
		if s.certificate != nil {
			issuer := issuerOf(s.certificate.Spec.IssuerRef, s.certificate.Namespace)
			vars["hint"] = fmt.Sprintf(" Certificate %s of the server is signed by %s.", s.certificate.Name, short(issuer))
			evidence = append(evidence, SawObject(certificatesResource, s.certificate.Namespace, s.certificate.Name, "Certificate %s, which the server uses, is signed by %s", s.certificate.Name, short(issuer)))
		}
		if holders := caHolders(u); len(holders) == 1 {
			vars["hint"] += fmt.Sprintf(" The client trusts what is in %s.", short(holders[0]))
			return holders, append(evidence, SawObject("pods", u.pods[0].Namespace, u.pods[0].Name, "%s mounts %s as its authorities", short(u.client), short(holders[0])))
		}
		return []Ref{u.client}, evidence
	})
	// callExpired: the server shows a certificate that has expired.
	callExpired = ofTLSCalls("tls-certificate-expired", "has the certificate that {address} shows expired?", "tls-expired", func(facts *probes.Facts, u *unreached, s served, vars map[string]string) ([]Ref, []Evidence) {
		now := facts.Source().Now()
		switch c := s.certificate; {
		case c != nil && c.Status.NotAfter != nil && now.Before(c.Status.NotAfter.Time):
			vars["hint"] = fmt.Sprintf(" Certificate %s was renewed and is valid until %s: the server still uses the one before, and is to be restarted.", c.Name, stampOf(c.Status.NotAfter.Time))
			return appendRef([]Ref{s.workload}, certificateRef(c), s.secret), []Evidence{SawObject(certificatesResource, c.Namespace, c.Name, "Certificate %s is valid until %s", c.Name, stampOf(c.Status.NotAfter.Time))}
		case c != nil:
			vars["hint"] = fmt.Sprintf(" It is that of Certificate %s.", c.Name)
			return []Ref{certificateRef(c), s.secret}, nil
		case s.secret.Name != "":
			vars["hint"] = fmt.Sprintf(" It is that of Secret %s.", s.secret.Name)
			return appendRef([]Ref{s.secret}, s.workload), []Evidence{SawObject("secrets", s.secret.Namespace, s.secret.Name, "%s mounts Secret %s, and no Certificate renews it", short(s.workload), s.secret.Name)}
		case s.workload.Name != "":
			return []Ref{s.workload}, nil
		}
		return []Ref{u.client}, nil
	})
	// callNameMismatch: the server's certificate is for other names.
	callNameMismatch = ofTLSCalls("tls-name-not-covered", "is the certificate of {address} for other names?", "tls-name-mismatch", func(_ *probes.Facts, u *unreached, s served, vars map[string]string) ([]Ref, []Evidence) {
		switch c := s.certificate; {
		case c != nil:
			vars["hint"] = fmt.Sprintf(" It is that of Certificate %s, for %s.", c.Name, listed(c.Spec.DNSNames))
			return []Ref{certificateRef(c), s.secret}, []Evidence{SawObject(certificatesResource, c.Namespace, c.Name, "Certificate %s is for %s", c.Name, strings.Join(c.Spec.DNSNames, ", "))}
		case s.secret.Name != "":
			vars["hint"] = fmt.Sprintf(" It is that of Secret %s.", s.secret.Name)
			return []Ref{s.secret}, nil
		}
		return []Ref{u.client}, nil
	})
	// callPlain: one side speaks TLS and the other does not.
	callPlain = lastResort(notByMesh(ofTLSCalls("tls-on-one-side", "does only one of {client} and {address} speak TLS?", "tls-protocol", func(_ *probes.Facts, u *unreached, _ served, vars map[string]string) ([]Ref, []Evidence) {
		if len(u.mentions) > 0 {
			m := u.mentions[0]
			vars["hint"] = fmt.Sprintf(" The address is from %s=%s.", m.where, m.value)
			if m.holder.Kind == "ConfigMap" {
				return []Ref{m.holder}, []Evidence{m.seen}
			}
			return []Ref{u.client}, []Evidence{m.seen}
		}
		return []Ref{u.client}, nil
	})))
)

var tlsCallRules = []*Rule{callUnknownAuthority, callExpired, callNameMismatch, callPlain, ownCertificateExpired}

// ownCertificateExpired: a program ends as a certificate that it reads itself
// (its own, or its authority's) has expired: it called nobody.
var ownCertificateExpired = &Rule{
	ID: "own-certificate-expired", Explains: []*Rule{podCrashLooping, podRestarting}, Needs: []probes.Any{probes.Pods, probes.Logs},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		var list []Suspect
		for _, s := range suspectsOf(effects, func(container) bool { return true }) {
			f, _ := decisive(facts, containers(s))
			if f == nil || f.failure.Meaning != "tls-expired" || f.failure.Host != "" {
				continue
			}
			c := containers(s)[0]
			s.Vars["line"], s.Vars["hint"] = f.line(), ""
			var names []string
			for _, v := range c.pod.Spec.Volumes {
				if v.Secret != nil {
					names = append(names, v.Secret.SecretName)
				}
			}
			if len(names) > 0 {
				s.Vars["hint"] = fmt.Sprintf(" It mounts the Secrets %s.", listed(names))
			}
			s.Found = append(s.Found, f.evidence())
			list = append(list, s)
		}
		return list
	},
	Tests: []Test{{Asks: "does {container} end as a certificate that it reads has expired?", Run: func(_ *probes.Facts, s Suspect) Answer { return Answered(true, s.Found...) }}},
}
