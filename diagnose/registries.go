package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// imagePullDenied: the registry knows the image and does not give it to this
// pod. Others explain it by the secret or the role that is at fault.
var imagePullDenied = &Rule{
	ID:       "image-pull-denied",
	Explains: []*Rule{imageNotPulled},
	Needs:    []probes.Any{probes.Pods},
	Suspects: perImage,
	Tests: []Test{
		pullEndedWith("did registry {registry} refuse to give image {image} to who asked?", denied, thereOrDenied, noAWSPrincipal),
		{
			Asks:  "would the image be there for somebody else?",
			Needs: []probes.Any{probes.Pods, probes.Events},
			Run: func(facts *probes.Facts, s Suspect) Answer {
				fault, _, _, err := pulled(facts, containers(s))
				if err != nil {
					return CantTell(err)
				}
				if removedBitnami(s.Vars["image"]) {
					return Answered(false, imageOf(s))
				}
				running, err := runningImages(facts)
				if err != nil {
					return CantTell(err)
				}
				meant := meantImage(s.Vars["image"], running)
				if fault == thereOrDenied && (strings.HasPrefix(s.Vars["repository"], "library/") || meant != "" && splitImage(meant).repository != s.Vars["repository"]) {
					return Answered(false, imageOf(s))
				}
				return Answered(true, credentialsOf(s)).With("hint", deniedHint(facts, s, fault))
			},
		},
	},
}

// credentialsOf says which pull secrets a pod brings.
func credentialsOf(s Suspect) Evidence {
	p := containers(s)[0].pod
	names := pullSecrets(p)
	if len(names) == 0 {
		return SawObject("pods", p.Namespace, p.Name, "pod %s has no imagePullSecrets: it asks registry %s without credentials", p.Name, s.Vars["registry"])
	}
	return SawObject("pods", p.Namespace, p.Name, "pod %s asks with imagePullSecrets %s", p.Name, strings.Join(names, ", "))
}

func pullSecrets(p *corev1.Pod) []string {
	var names []string
	for _, s := range p.Spec.ImagePullSecrets {
		names = append(names, s.Name)
	}
	return names
}

// ecrHost is a private registry of Amazon ECR.
var ecrHost = regexp.MustCompile(`^(\d{12})\.dkr\.ecr(?:-fips)?\.([a-z0-9-]+)\.amazonaws\.com`)

func deniedHint(facts *probes.Facts, s Suspect, fault pullFault) string {
	p := containers(s)[0].pod
	var hint strings.Builder
	if len(p.Spec.ImagePullSecrets) == 0 {
		fmt.Fprintf(&hint, " The pod (service account %s) has no imagePullSecrets.", cmp.Or(p.Spec.ServiceAccountName, "default"))
	}
	if fault == thereOrDenied {
		hint.WriteString(" The registry does not tell a private repository from one that does not exist.")
	}
	if m := ecrHost.FindStringSubmatch(s.Vars["registry"]); m != nil {
		fmt.Fprintf(&hint, " It is an ECR registry of account %s in region %s: the kubelet asks with the node's role.", m[1], m[2])
	}
	// A workload that gets images from there shows what this one lacks.
	pods, err := probes.Pods.Of(facts)
	if err != nil {
		return hint.String()
	}
	for _, o := range pods.All() {
		if len(o.Spec.ImagePullSecrets) == 0 || len(p.Spec.ImagePullSecrets) > 0 {
			continue
		}
		for _, c := range containersOf(o) {
			if c.status.State.Running != nil && splitImage(c.spec.Image).registry == s.Vars["registry"] {
				fmt.Fprintf(&hint, " Pod %s/%s gets images of this registry with imagePullSecrets %s.", o.Namespace, o.Name, strings.Join(pullSecrets(o), ", "))
				return hint.String()
			}
		}
	}
	return hint.String()
}

var unretrieved = regexp.MustCompile(`Unable to retrieve some image pull secrets \((?P<secrets>[^)]*)\)`)

// imagePullSecretMissing: the pod names a pull secret that its namespace does
// not have.
var imagePullSecretMissing = &Rule{
	ID:       "image-pull-secret-missing",
	Explains: []*Rule{imagePullDenied, imageNotFound},
	Needs:    []probes.Any{probes.Pods},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		var list []Suspect
		for _, s := range perImage(facts, effects) {
			p := containers(s)[0].pod
			for _, name := range pullSecrets(p) {
				one := s
				one.Subjects = []Ref{{Kind: "Secret", Namespace: p.Namespace, Name: name}, s.Subjects[0]}
				one.Vars = map[string]string{"secret": name, "workload": short(s.Subjects[0])}
				for k, v := range s.Vars {
					one.Vars[k] = v
				}
				list = append(list, one)
			}
		}
		return list
	},
	Tests: []Test{{
		Asks:  "does namespace {namespace} have no secret {secret}, which the pod names in imagePullSecrets?",
		Needs: []probes.Any{probes.Secrets, probes.Events},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			p, name := containers(s)[0].pod, s.Vars["secret"]
			secrets, err := probes.Secrets.Of(facts)
			if err == nil {
				if secrets.Get(p.Namespace, name) != nil {
					return Answered(false, SawObject("secrets", p.Namespace, name, "secret %s is there", name))
				}
				a := Answered(true, SawObject("secrets", p.Namespace, name, "namespace %s has no secret %s", p.Namespace, name))
				return a.With("hint", secretHint(secrets, p.Namespace, name, func(s *probes.Secret) bool { return strings.HasPrefix(s.Type, "kubernetes.io/docker") }))
			}
			r, got, eventsErr := said(facts, containers(s), nil, unretrieved)
			if eventsErr != nil {
				return CantTell(eventsErr)
			}
			if got != nil && slices.Contains(strings.Split(strings.ReplaceAll(got["secrets"], " ", ""), ","), name) {
				return Answered(true, r.from)
			}
			return CantTell(err)
		},
	}},
}

// secretHint says where a missing secret, or one of a similar name, is.
func secretHint(secrets *probes.List[probes.Secret], namespace, name string, fits func(*probes.Secret) bool) string {
	var names []string
	for _, s := range secrets.All() {
		if !fits(s) {
			continue
		}
		if s.Name == name && s.Namespace != namespace {
			return fmt.Sprintf(" Namespace %s has a secret of that name; a pod can't use the secrets of another namespace.", s.Namespace)
		}
		if s.Namespace == namespace {
			names = append(names, s.Name)
		}
	}
	if near := nearest(name, names); near != "" {
		return fmt.Sprintf(" There is a secret %s.", near)
	}
	return ""
}

// imagePullSecretUnfit: the pull secrets are there, and none of them is for
// the registry.
var imagePullSecretUnfit = &Rule{
	ID:       "image-pull-secret-unfit",
	Explains: []*Rule{imagePullDenied},
	Needs:    []probes.Any{probes.Pods},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		var list []Suspect
		for _, s := range perImage(facts, effects) {
			p := containers(s)[0].pod
			if names := pullSecrets(p); len(names) > 0 {
				s.Vars["secret"], s.Vars["workload"] = strings.Join(names, ", "), short(s.Subjects[0])
				s.Subjects = append([]Ref{{Kind: "Secret", Namespace: p.Namespace, Name: names[0]}}, s.Subjects...)
				list = append(list, s)
			}
		}
		return list
	},
	Tests: []Test{{
		Asks:  "does none of the pod's pull secrets ({secret}) hold credentials for {registry}?",
		Needs: []probes.Any{probes.Secrets},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			secrets, err := probes.Secrets.Of(facts)
			if err != nil {
				return CantTell(err)
			}
			p := containers(s)[0].pod
			var says []Evidence
			for _, name := range pullSecrets(p) {
				secret := secrets.Get(p.Namespace, name)
				switch {
				case secret == nil:
					return Answered(false) // another rule says that it is missing
				case !strings.HasPrefix(secret.Type, "kubernetes.io/docker"):
					says = append(says, SawObject("secrets", p.Namespace, name, "secret %s has type %s, not kubernetes.io/dockerconfigjson", name, secret.Type))
				case secret.Registries == nil:
					return Answered(false) // its hosts are not known
				case slices.ContainsFunc(secret.Registries, func(h string) bool { return sameRegistry(h, s.Vars["registry"]) }):
					return Answered(false, SawObject("secrets", p.Namespace, name, "secret %s has credentials for %s", name, s.Vars["registry"]))
				default:
					says = append(says, SawObject("secrets", p.Namespace, name, "secret %s has credentials for %s only", name, strings.Join(secret.Registries, ", ")))
				}
			}
			var has []string
			for _, e := range says {
				has = append(has, e.Says)
			}
			return Answered(len(says) > 0, says...).With("has", strings.Join(has, "; "))
		},
	}},
}

// sameRegistry compares a key of a docker config with a registry's host.
// Source: kubernetes pkg/credentialprovider/keyring.go.
func sameRegistry(key, registry string) bool {
	host := strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	host, _, _ = strings.Cut(host, "/")
	if host == "index.docker.io" || host == "registry-1.docker.io" || host == "hub.docker.com" {
		host = "docker.io"
	}
	if suffix, ok := strings.CutPrefix(host, "*."); ok {
		return strings.HasSuffix(registry, "."+suffix)
	}
	return host == registry
}

// registryHostUnknown: DNS has no such registry.
var registryHostUnknown = &Rule{
	ID:       "registry-host-unknown",
	Explains: []*Rule{imageNotPulled},
	Needs:    []probes.Any{probes.Pods},
	Suspects: perImage,
	Tests: []Test{
		pullEndedWith("did DNS answer that registry {registry} does not exist?", hostUnknown),
		{
			Asks:  "does no container in the cluster run an image from {registry}?",
			Needs: []probes.Any{probes.Pods},
			Run: func(facts *probes.Facts, s Suspect) Answer {
				running, err := runningImages(facts)
				if err != nil {
					return CantTell(err)
				}
				var hosts []string
				for _, image := range slices.Sorted(maps.Keys(running)) {
					p := running[image]
					host := splitImage(image).registry
					if host == s.Vars["registry"] {
						return Answered(false, SawObject("pods", p.Namespace, p.Name, "pod %s/%s runs an image from %s", p.Namespace, p.Name, host))
					}
					hosts = append(hosts, host)
				}
				slices.Sort(hosts)
				a := Answered(true, imageOf(s))
				for _, host := range slices.Compact(hosts) {
					if distance(host, s.Vars["registry"]) <= 3 {
						return a.With("hint", fmt.Sprintf(" Other pods run images from %s.", host))
					}
				}
				return a
			},
		},
	},
}

// registryUnreachable: the registry's address does not answer.
var registryUnreachable = &Rule{
	ID:       "registry-unreachable",
	Explains: []*Rule{imageNotPulled},
	Needs:    []probes.Any{probes.Pods},
	Suspects: perRegistry,
	Tests: []Test{
		pullEndedWith("did registry {registry} not answer?", hostUnreached, hostUnknown),
		{
			Asks:  "is it this registry alone that nodes can't reach?",
			Needs: []probes.Any{probes.Events, probes.Pods},
			Run: func(facts *probes.Facts, s Suspect) Answer {
				fault, _, _, err := pulled(facts, containers(s))
				if err != nil {
					return CantTell(err)
				}
				running, err := runningImages(facts)
				if err != nil {
					return CantTell(err)
				}
				used := false
				for image := range running {
					used = used || splitImage(image).registry == s.Vars["registry"]
				}
				if fault == hostUnknown && !used {
					return Answered(false) // the name itself is wrong
				}
				events, err := probes.Events.Of(facts)
				if err != nil {
					return CantTell(err)
				}
				onNodes := map[string]bool{}
				for _, c := range containers(s) {
					onNodes[c.pod.Spec.NodeName] = true
				}
				for _, e := range slices.Backward(events.All()) {
					image, ok := strings.CutPrefix(e.Message, "Successfully pulled image \"")
					if !ok || !onNodes[e.Source.Host] {
						continue
					}
					image, _, _ = strings.Cut(image, "\"")
					if host := splitImage(image).registry; host != s.Vars["registry"] {
						return Answered(true, SawObject("events", e.Namespace, e.Name, "node %s pulls images from %s", e.Source.Host, host))
					}
				}
				if r, got, _ := said(facts, containers(s), nil, refusedPull); got != nil {
					return Answered(true, r.from)
				}
				if !used {
					return Answered(true, imageOf(s))
				}
				return CantTell(nil)
			},
		},
	},
}

var refusedPull = regexp.MustCompile(`(?i)dial tcp (?P<address>\S+): connect: connection refused`)

// registryNotTrusted: the registry speaks plain HTTP, or shows a certificate
// that nodes don't trust.
var registryNotTrusted = &Rule{
	ID:       "registry-not-trusted",
	Explains: []*Rule{imageNotPulled},
	Needs:    []probes.Any{probes.Pods},
	Suspects: perRegistry,
	Tests:    []Test{pullEndedWith("does registry {registry} speak plain HTTP or show a certificate that the node doesn't trust?", plainHTTP, untrustedCert)},
}
