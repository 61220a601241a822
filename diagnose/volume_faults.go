package diagnose

import (
	"fmt"
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// tryAgain is how far apart a kubelet's or a provisioner's attempts may lie,
// with room to spare.
const tryAgain = 10 * time.Minute

// noVolumeSecret recognises that a secret which a storage driver needs is not
// there. Sources: kubernetes pkg/volume/csi/{csi_attacher,csi_client,csi_util}.go,
// kubernetes-csi/external-provisioner pkg/controller (getCredentials).
var noVolumeSecret = []*regexp.Regexp{
	regexp.MustCompile(`failed to find the secret (?P<secret>\S+) in the namespace (?P<secretNamespace>\S+) with error: secrets "[^"]+" not found`),
	regexp.MustCompile(`error getting secret (?P<secret>\S+) in namespace (?P<secretNamespace>[^\s:]+): secrets "[^"]+" not found`),
	regexp.MustCompile(`[Cc]ouldn'?t get secret (?P<secretNamespace>[a-z0-9.-]+)/(?P<secret>[a-z0-9.-]+)`),
}

// volumeSecretMissing: a volume or its StorageClass names a Secret that does
// not exist, so the driver has nothing to log in with.
var volumeSecretMissing = &Rule{
	ID:       "volume-secret-missing",
	Explains: []*Rule{volumeNotMounted, provisioningFails, claimNotBound},
	Needs:    []probes.Any{probes.Events, probes.Pods, probes.Claims, probes.Volumes},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		var list []Suspect
		for _, f := range volumeFailures(facts, effects, noVolumeSecret) {
			s := f.suspect
			s.Subjects = []Ref{{Kind: "Secret", Namespace: s.Vars["secretNamespace"], Name: s.Vars["secret"]}}
			s.Subjects = append(s.Subjects, f.named...)
			list = append(list, s)
		}
		return joined(list)
	},
	Tests: []Test{{
		Asks: "does Secret {secretNamespace}/{secret}, with which the storage driver logs in, still not exist?", Needs: []probes.Any{probes.Secrets},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			secrets, err := probes.Secrets.Of(facts)
			if from := s.Data.(Evidence); err != nil {
				if from.At != nil && facts.Source().Now().Sub(*from.At) < tryAgain {
					return Answered(true, from) // the driver's own look-up is as good
				}
				return CantTell(err, from)
			}
			if secrets.Get(s.Vars["secretNamespace"], s.Vars["secret"]) != nil {
				return Answered(false, SawObject("secrets", s.Vars["secretNamespace"], s.Vars["secret"], "Secret %s/%s exists", s.Vars["secretNamespace"], s.Vars["secret"]))
			}
			near := ""
			var have []string
			for _, x := range secrets.All() {
				if x.Namespace == s.Vars["secretNamespace"] {
					have = append(have, x.Name)
				} else if x.Name == s.Vars["secret"] {
					near = fmt.Sprintf(" Namespace %s has one of that name.", x.Namespace)
				}
			}
			if n := nearest(s.Vars["secret"], have); n != "" {
				near += fmt.Sprintf(" The nearest is %s.", n)
			}
			return Answered(true, s.Data.(Evidence), SawObject("secrets", s.Vars["secretNamespace"], s.Vars["secret"], "there is no Secret %s/%s.%s", s.Vars["secretNamespace"], s.Vars["secret"], near)).With("near", near)
		},
	}},
}

// wrongFileSystem recognises a file system that the node can't make or mount.
// Sources: util-linux mount(8), kubernetes/mount-utils mount_linux.go.
var wrongFileSystem = []*regexp.Regexp{
	regexp.MustCompile(`(?P<why>mkfs\.(?P<type>[a-z0-9]+)["']?: executable file not found)`),
	regexp.MustCompile(`(?P<why>unknown filesystem type '(?P<type>[^']+)')`),
	regexp.MustCompile(`(?s)-t (?P<type>[a-z0-9]+) .*?(?P<why>wrong fs type, bad option, bad superblock[^\n]*)`),
	regexp.MustCompile(`(?P<why>failed to mount the volume as "(?P<type>[a-z0-9]+)", it already contains \S+)`),
}

// volumeFileSystemWrong: the file system that a volume names is not one that
// its node can make or mount there.
var volumeFileSystemWrong = &Rule{
	ID:       "volume-file-system-wrong",
	Explains: []*Rule{volumeNotMounted},
	Needs:    []probes.Any{probes.Events, probes.Pods, probes.Claims, probes.Volumes},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		var list []Suspect
		for _, f := range volumeFailures(facts, effects, wrongFileSystem) {
			list = append(list, f.about(f.named))
		}
		return joined(list)
	},
	Tests: []Test{{
		Asks: "can the node not make or mount file system {type}, which {object} asks for?", Needs: []probes.Any{probes.Events},
		Run: func(_ *probes.Facts, s Suspect) Answer { return Answered(true, s.Data.(Evidence)) },
	}},
}

// volumeNotThere recognises that the storage does not know a volume: by CSI's
// rules NOT_FOUND is said of the volume, not of the node.
// Source: container-storage-interface/spec spec.md (ControllerPublishVolume,
// NodeStageVolume Errors).
var volumeNotThere = []*regexp.Regexp{
	regexp.MustCompile(`(?:AttachVolume\.Attach|MountVolume\.\w+) failed for volume "[^"]+" : rpc error: code = NotFound desc = (?P<why>(?i:[^\n]*\b(?:volume|disk|share|image|lun)\b[^\n]*))`),
	regexp.MustCompile(`AttachVolume\.Attach failed for volume "[^"]+" : (?P<why>[^\n]*InvalidVolume\.NotFound[^\n]*)`),
}

// volumeGone: a PersistentVolume stands for a volume that the storage does not
// have any more, or never had under that handle.
var volumeGone = &Rule{
	ID:       "volume-behind-claim-gone",
	Explains: []*Rule{volumeNotMounted},
	Needs:    []probes.Any{probes.Events, probes.Pods, probes.Claims, probes.Volumes},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		var list []Suspect
		for _, f := range volumeFailures(facts, effects, volumeNotThere) {
			list = append(list, f.about(f.named[:min(1, len(f.named))]))
		}
		return joined(list)
	},
	Tests: []Test{{
		Asks: "does the storage say that it has no such volume as {object} names?", Needs: []probes.Any{probes.Volumes},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			evidence := []Evidence{s.Data.(Evidence)}
			if volumes, err := probes.Volumes.Of(facts); err == nil {
				if v := volumes.Get("", s.Subjects[0].Name); v != nil && v.Spec.CSI != nil {
					evidence = append(evidence, SawObject("persistentvolumes", "", v.Name, "PersistentVolume %s has csi.driver %s and csi.volumeHandle %s", v.Name, v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle))
				}
			}
			return Answered(true, evidence...)
		},
	}},
}

// classRefused recognises that a driver refuses what a StorageClass asks for:
// by CSI's rules INVALID_ARGUMENT is a fault of the request, not of the storage.
// Source: container-storage-interface/spec spec.md (CreateVolume Errors).
var classRefused = []*regexp.Regexp{
	regexp.MustCompile(`failed to provision volume with StorageClass "(?P<class>[^"]+)": rpc error: code = InvalidArgument desc = (?P<why>.+)`),
	regexp.MustCompile(`failed to provision volume with StorageClass "(?P<class>[^"]+)": (?P<why>(?:invalid|unknown|unsupported|failed to parse)[^\n]*(?:parameter|option|fstype|type)[^\n]*)`),
}

// classParametersRefused: the provisioner refuses the parameters of a class.
var classParametersRefused = &Rule{
	ID:       "storage-class-parameters-refused",
	Explains: []*Rule{provisioningFails, claimNotBound},
	Needs:    []probes.Any{probes.Events, probes.Pods, probes.Claims, probes.Volumes},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		var list []Suspect
		for _, f := range volumeFailures(facts, effects, classRefused) {
			s := f.suspect
			s.Subjects = append([]Ref{{Kind: "StorageClass", Name: s.Vars["class"]}}, s.Subjects...)
			list = append(list, s)
		}
		return joined(list)
	},
	Tests: []Test{{
		Asks: "does the storage driver refuse what StorageClass {class} asks for?", Needs: []probes.Any{probes.StorageClasses},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			classes, err := probes.StorageClasses.Of(facts)
			if err != nil {
				return CantTell(err, s.Data.(Evidence))
			}
			evidence := []Evidence{s.Data.(Evidence)}
			if c := classes.Get("", s.Vars["class"]); c != nil {
				evidence = append(evidence, SawObject("storageclasses.storage.k8s.io", "", c.Name, "StorageClass %s: provisioner %s, parameters %s", c.Name, c.Provisioner, selectorText(c.Parameters)))
			}
			return Answered(true, evidence...)
		},
	}},
}

// A volumeFailure is what a kubelet or a provisioner said about a volume, and
// the objects that say how the volume is: its PersistentVolume or class.
type volumeFailure struct {
	suspect Suspect
	named   []Ref
}

// about makes the objects that say how the volume is, if any are known, what a
// person would change.
func (f volumeFailure) about(named []Ref) Suspect {
	s := f.suspect
	s.Subjects = slices.Concat(named, s.Subjects)
	s.Vars["object"] = short(s.Subjects[0])
	return s
}

// volumeFailures are the suspects about which one of the patterns was said, of
// pods that wait for a volume and of claims that wait for one.
func volumeFailures(facts *probes.Facts, effects []*Finding, patterns []*regexp.Regexp) []volumeFailure {
	var list []volumeFailure
	for _, s := range suspectsOf(effects, waitsForPod) {
		r, got, _ := said(facts, containers(s), mountReasons, patterns...)
		if got == nil {
			continue
		}
		pod := containers(s)[0].pod
		vars := containerVars(containers(s)[0])
		for k, v := range got {
			vars[k] = v
		}
		vars["podNamespace"], vars["near"] = pod.Namespace, ""
		s.Vars, s.Data = vars, r.from
		list = append(list, volumeFailure{s, volumesIn(facts, pod, r.text)})
	}
	events, err := probes.Events.Of(facts)
	if err != nil {
		return list
	}
	for _, e := range effects {
		claim := e.Subject()
		if claim.Kind != "PersistentVolumeClaim" {
			continue
		}
	said:
		for _, event := range slices.Backward(events.About(claim)) {
			if event.Reason != "ProvisioningFailed" {
				continue
			}
			for _, re := range patterns {
				if got := groups(re, event.Message); got != nil {
					got["podNamespace"], got["near"] = claim.Namespace, ""
					at := probes.EventTime(event)
					from := SawObject("events", event.Namespace, event.Name, "ProvisioningFailed about claim %s: %s", claim.Name, event.Message)
					from.At = &at
					f := volumeFailure{suspect: Suspect{Subjects: []Ref{claim}, Effects: []*Finding{e}, Vars: got, Data: from}}
					if claims, err := probes.Claims.Of(facts); err == nil {
						if c := claims.Get(claim.Namespace, claim.Name); c != nil && c.Spec.StorageClassName != nil {
							f.named = []Ref{{Kind: "StorageClass", Name: *c.Spec.StorageClassName}}
						}
					}
					list = append(list, f)
					break said
				}
			}
		}
	}
	return list
}

var volumeInMessage = regexp.MustCompile(`for volume "([^"]+)"`)

// volumesIn are the PersistentVolume that a message is about, and the class it
// was made for.
func volumesIn(facts *probes.Facts, pod *corev1.Pod, message string) []Ref {
	m := volumeInMessage.FindStringSubmatch(message)
	if m == nil {
		return nil
	}
	volumes, err := probes.Volumes.Of(facts)
	if err != nil {
		return nil
	}
	v := volumes.Get("", m[1])
	if v == nil {
		return nil
	}
	refs := []Ref{{Kind: "PersistentVolume", Name: v.Name}}
	if v.Spec.StorageClassName != "" {
		refs = append(refs, Ref{Kind: "StorageClass", Name: v.Spec.StorageClassName})
	}
	return refs
}

// joined makes one suspect of those about the same object.
func joined(list []Suspect) []Suspect {
	var out []Suspect
next:
	for _, s := range list {
		for i := range out {
			if out[i].Subjects[0] == s.Subjects[0] {
				out[i].Effects = appendNew(out[i].Effects, s.Effects...)
				out[i].Subjects = appendNew(out[i].Subjects, s.Subjects...)
				continue next
			}
		}
		out = append(out, s)
	}
	return out
}

var volumeFaultRules = []*Rule{volumeSecretMissing, volumeFileSystemWrong, volumeGone, classParametersRefused}
