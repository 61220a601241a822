package diagnose

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// pullReasons are the reasons for which a container waits for its image.
// Source: kubernetes pkg/kubelet/images/types.go, pkg/kubelet/images/image_manager.go.
var pullReasons = []string{"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed"}

var waitsForImage = waitsFor(pullReasons...)

// imageNotPulled: a container waits for its image.
var imageNotPulled = &Rule{
	ID:           "image-not-pulled",
	Explains:     []*Rule{podNotStarting},
	Intermediate: true,
	Needs:        []probes.Any{probes.Pods},
	Suspects:     perContainer(waitsForImage),
	Tests: []Test{{
		Asks: "does container {container} wait for its image {image}?",
		Run: func(_ *probes.Facts, s Suspect) Answer {
			c := containers(s)[0]
			return Answered(true, SawObject("pods", c.pod.Namespace, c.pod.Name, "pod %s: container %s can't get image %s", c.pod.Name, c.spec.Name, c.spec.Image))
		},
	}},
}

// A pullFault is a kind of answer to a pull; one pull has one.
type pullFault string

const (
	badReference   pullFault = "bad reference"
	neverPulled    pullFault = "never pulled"
	rateLimited    pullFault = "rate limited"
	otherPlatform  pullFault = "other platform"
	notThere       pullFault = "not there"
	denied         pullFault = "denied"
	thereOrDenied  pullFault = "not there or denied" // Docker Hub tells strangers no difference
	hostUnknown    pullFault = "host unknown"
	hostUnreached  pullFault = "host unreached"
	plainHTTP      pullFault = "plain http"
	untrustedCert  pullFault = "untrusted certificate"
	nodeDiskFull   pullFault = "node disk full"
	noAWSPrincipal pullFault = "principal denied" // ECR said who
)

// pullFaults recognises what containerd, Docker, CRI-O and registries answer;
// the first row that matches decides.
// Sources: containerd core/remotes/docker (errors, fetcher), moby distribution/errors.go,
// distribution registry/api/errcode, kubernetes pkg/kubelet/images, docs.aws.amazon.com ECR "common errors".
var pullFaults = []struct {
	fault pullFault
	re    *regexp.Regexp
}{
	{badReference, regexp.MustCompile(`(?i)InvalidImageName|couldn't parse image (?:name|reference)|invalid reference format`)},
	{neverPulled, regexp.MustCompile(`ErrImageNeverPull|is not present with pull policy of Never`)},
	{rateLimited, regexp.MustCompile(`(?i)toomanyrequests|429 Too Many Requests|pull rate limit`)},
	{otherPlatform, regexp.MustCompile(`(?i)no match for platform in manifest|no matching manifest for (?P<platform>\S+)|image operating system "\S+" cannot be used|no image found in (?:image index|manifest list) for architecture "?(?P<platform2>[a-z0-9]+)`)},
	{nodeDiskFull, regexp.MustCompile(`(?i)no space left on device`)},
	{noAWSPrincipal, regexp.MustCompile(`User: arn:aws[\w-]*:sts::\d+:assumed-role/(?P<role>[^/\s]+)/\S+ is not authorized to perform: (?P<action>ecr:\w+)`)},
	{plainHTTP, regexp.MustCompile(`(?i)server gave HTTP response to HTTPS client`)},
	{untrustedCert, regexp.MustCompile(`(?i)x509: [^"]*`)},
	{hostUnknown, regexp.MustCompile(`(?i)lookup (?P<host>[^\s:]+)(?: on \S+)?: no such host`)},
	{hostUnreached, regexp.MustCompile(`(?i)(?P<why>i/o timeout|connection refused|no route to host|network is unreachable|context deadline exceeded|TLS handshake timeout|server misbehaving|Client\.Timeout|Temporary failure in name resolution|503 Service Unavailable|502 Bad Gateway|EOF)`)},
	{thereOrDenied, regexp.MustCompile(`(?i)pull access denied|insufficient_scope|may require (?:authorization|'docker login')`)},
	{denied, regexp.MustCompile(`(?i)no basic auth credentials|40[13] (?:Unauthorized|Forbidden)|\b(?:unauthorized|forbidden|denied)\b|authentication required|failed to authorize|access forbidden|incorrect username or password`)},
	{notThere, regexp.MustCompile(`(?i)manifest unknown|name unknown|does not exist|not[ _]?found`)},
}

// pulled is how the latest pull for any of the containers ended.
func pulled(facts *probes.Facts, list []container) (pullFault, remark, map[string]string, error) {
	var unread error
	for _, c := range list {
		heard, err := remarks(facts, c)
		if err != nil {
			unread = err
		}
		for _, r := range heard {
			if !strings.Contains(r.text, "mage") && !strings.Contains(r.text, "pull") {
				continue
			}
			if strings.Contains(r.text, "FailedToRetrieveImagePullSecret") {
				continue
			}
			for _, row := range pullFaults {
				if got := groups(row.re, r.text); got != nil {
					return row.fault, r, got, nil
				}
			}
		}
	}
	return "", remark{}, nil, unread
}

// pullEndedWith asks whether the latest pull ended with one of the faults.
func pullEndedWith(asks string, faults ...pullFault) Test {
	return Test{Asks: asks, Needs: []probes.Any{probes.Events}, Run: func(facts *probes.Facts, s Suspect) Answer {
		fault, r, got, err := pulled(facts, containers(s))
		if err != nil {
			return CantTell(err)
		}
		if !slices.Contains(faults, fault) {
			return Answered(false)
		}
		a := Answered(true, r.from)
		for k, v := range got {
			a = a.With(k, v)
		}
		return a
	}}
}

// An imageName is an image reference taken apart.
type imageName struct{ registry, repository, tag string }

// splitImage takes a reference apart as Docker does: without a host it is
// Docker Hub, and there without a folder in library/.
// Source: distribution/reference normalize.go.
func splitImage(ref string) imageName {
	name, digest, _ := strings.Cut(ref, "@")
	n := imageName{registry: "docker.io", tag: "latest"}
	if i := strings.LastIndex(name, ":"); i > strings.LastIndex(name, "/") {
		name, n.tag = name[:i], name[i+1:]
	}
	if digest != "" {
		n.tag = digest
	}
	host, rest, ok := strings.Cut(name, "/")
	if ok && (strings.ContainsAny(host, ".:") || host == "localhost") {
		n.registry, name = host, rest
	}
	if n.registry == "index.docker.io" || n.registry == "registry-1.docker.io" {
		n.registry = "docker.io"
	}
	if n.registry == "docker.io" && !strings.Contains(name, "/") {
		name = "library/" + name
	}
	n.repository = name
	return n
}

func imageVars(s Suspect) Suspect {
	n := splitImage(s.Vars["image"])
	s.Vars["registry"], s.Vars["repository"], s.Vars["tag"] = n.registry, n.repository, n.tag
	return s
}

// perImage proposes the containers that wait for an image.
func perImage(facts *probes.Facts, effects []*Finding) []Suspect {
	list := suspectsOf(effects, waitsForImage)
	for i := range list {
		list[i] = imageVars(list[i])
	}
	return list
}

// perRegistry proposes one suspect for each registry that images don't come
// from: a fault of the registry or of the way to it has all as effects.
func perRegistry(facts *probes.Facts, effects []*Finding) []Suspect {
	var merged []Suspect
	for _, s := range perImage(facts, effects) {
		i := slices.IndexFunc(merged, func(m Suspect) bool { return m.Vars["registry"] == s.Vars["registry"] })
		if i < 0 {
			merged = append(merged, s)
			continue
		}
		m := &merged[i]
		m.Data = append(containers(*m), containers(s)...)
		for _, r := range s.Subjects {
			if !slices.Contains(m.Subjects, r) {
				m.Subjects = append(m.Subjects, r)
			}
		}
		for _, e := range s.Effects {
			if !slices.Contains(m.Effects, e) {
				m.Effects = append(m.Effects, e)
			}
		}
	}
	return merged
}

// runningImages are the images that containers of the cluster run, each with
// a pod that runs it.
func runningImages(facts *probes.Facts) (map[string]*corev1.Pod, error) {
	pods, err := probes.Pods.Of(facts)
	if err != nil {
		return nil, err
	}
	images := map[string]*corev1.Pod{}
	for _, p := range pods.All() {
		for _, c := range containersOf(p) {
			if c.status.State.Running != nil || c.status.State.Terminated != nil && c.status.State.Terminated.ExitCode == 0 {
				if images[c.spec.Image] == nil {
					images[c.spec.Image] = p
				}
			}
		}
	}
	return images, nil
}

// meantImage is an image of the same registry that runs in the cluster and
// is evidently what a missing one stands for, or "".
func meantImage(image string, running map[string]*corev1.Pod) string {
	want := splitImage(image)
	var sameRepository, repositories []string
	full := map[string]string{}
	for ref := range running {
		n := splitImage(ref)
		if n.registry != want.registry {
			continue
		}
		if n.repository == want.repository {
			if n.tag != want.tag {
				sameRepository = append(sameRepository, ref)
			}
			continue
		}
		repositories = append(repositories, n.repository)
		if full[n.repository] == "" || ref < full[n.repository] {
			full[n.repository] = ref
		}
	}
	if len(sameRepository) > 0 {
		return slices.Min(sameRepository)
	}
	slices.Sort(repositories)
	for _, r := range slices.Compact(repositories) {
		if distance(r, want.repository) <= 2 && len(r) > 5 {
			return full[r]
		}
	}
	return ""
}

var imageNameInvalid = &Rule{
	ID:       "image-name-invalid",
	Explains: []*Rule{imageNotPulled},
	Needs:    []probes.Any{probes.Pods},
	Suspects: perImage,
	Tests:    []Test{pullEndedWith("can {image} not be read as the name of an image?", badReference)},
}

var imageNotFound = &Rule{
	ID:       "image-not-found",
	Explains: []*Rule{imageNotPulled},
	Needs:    []probes.Any{probes.Pods},
	Suspects: perImage,
	Tests: []Test{
		{
			Asks:  "did registry {registry} answer that it has no {repository}:{tag}?",
			Needs: []probes.Any{probes.Events, probes.Pods},
			Run: func(facts *probes.Facts, s Suspect) Answer {
				fault, r, _, err := pulled(facts, containers(s))
				if err != nil {
					return CantTell(err)
				}
				running, err := runningImages(facts)
				if err != nil {
					return CantTell(err)
				}
				image := s.Vars["image"]
				meant := meantImage(image, running)
				// Docker's library is public, and a near name that runs says
				// that the registry can be read: then "denied" means "not there".
				public := strings.HasPrefix(s.Vars["repository"], "library/") && s.Vars["registry"] == "docker.io"
				near := meant != "" && splitImage(meant).repository != s.Vars["repository"]
				if fault != notThere && !(fault == thereOrDenied && (public || near)) {
					return Answered(false)
				}
				a := Answered(true, r.from)
				if meant != "" {
					p := running[meant]
					a = a.With("hint", fmt.Sprintf(" Image %s runs in the cluster (pod %s/%s).", meant, p.Namespace, p.Name))
				}
				return a
			},
		},
		{
			Asks: "is it something else than a removed Bitnami image?",
			Run:  func(_ *probes.Facts, s Suspect) Answer { return Answered(!removedBitnami(s.Vars["image"]), imageOf(s)) },
		},
	},
}

func imageOf(s Suspect) Evidence {
	c := containers(s)[0]
	return SawObject("pods", c.pod.Namespace, c.pod.Name, "%s is %s", c.field("image"), c.spec.Image)
}

// removedBitnami reports whether an image is one of those that left
// docker.io/bitnami on 2025-08-28; what stays there has only the tag latest.
// Source: github.com/bitnami/containers/issues/83267.
func removedBitnami(image string) bool {
	n := splitImage(image)
	return n.registry == "docker.io" && strings.HasPrefix(n.repository, "bitnami/") && n.tag != "latest"
}

var imageMovedByBitnami = &Rule{
	ID:       "image-moved-by-bitnami",
	Explains: []*Rule{imageNotPulled},
	Needs:    []probes.Any{probes.Pods},
	Suspects: perImage,
	Tests: []Test{
		{
			Asks: "is {image} a versioned image of docker.io/bitnami?",
			Run:  func(_ *probes.Facts, s Suspect) Answer { return Answered(removedBitnami(s.Vars["image"]), imageOf(s)) },
		},
		pullEndedWith("did the registry answer that it is not there?", notThere, thereOrDenied),
	},
}

var imageNeverPulled = &Rule{
	ID:       "image-never-pulled",
	Explains: []*Rule{imageNotPulled},
	Needs:    []probes.Any{probes.Pods},
	Suspects: perImage,
	Tests:    []Test{pullEndedWith("is imagePullPolicy Never, and the image not on node {node}?", neverPulled)},
}

var registryRateLimited = &Rule{
	ID:       "registry-rate-limited",
	Explains: []*Rule{imageNotPulled},
	Needs:    []probes.Any{probes.Pods},
	Suspects: perRegistry,
	Tests:    []Test{pullEndedWith("did registry {registry} refuse because of too many pulls (429)?", rateLimited)},
}

var imageOfOtherPlatform = &Rule{
	ID:       "image-lacks-platform",
	Explains: []*Rule{imageNotPulled},
	Needs:    []probes.Any{probes.Pods},
	Suspects: perImage,
	Tests: []Test{
		pullEndedWith("does image {image} have no variant for the node's platform?", otherPlatform),
		{
			Asks:  "which platform does node {node} have?",
			Needs: []probes.Any{probes.Nodes},
			Run: func(facts *probes.Facts, s Suspect) Answer {
				nodes, err := probes.Nodes.Of(facts)
				if err != nil {
					return CantTell(err)
				}
				n := nodes.Get("", s.Vars["node"])
				if n == nil {
					return Answered(true).With("platform", "another platform")
				}
				arch := nodeArch(n)
				return Answered(true, SawObject("nodes", "", n.Name, "node %s has architecture %s", n.Name, arch)).With("platform", arch)
			},
		},
	},
}

func nodeArch(n *corev1.Node) string {
	if a := n.Status.NodeInfo.Architecture; a != "" {
		return a
	}
	return n.Labels[corev1.LabelArchStable]
}

var imageRules = []*Rule{
	imageNotPulled, imageNameInvalid, imageNotFound, imageMovedByBitnami, imageNeverPulled, registryRateLimited, imageOfOtherPlatform,
	imagePullDenied, imagePullSecretMissing, imagePullSecretUnfit, nodeRoleLacksECR, registryHostUnknown, registryUnreachable, registryNotTrusted,
}
