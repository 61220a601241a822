package diagnose

import (
	"fmt"
	"strings"

	"github.com/pposiraegi/ppodoctor/probes"
)

// deniedFile finds the path in a line whose signature did not.
func deniedFile(f *logFault) string {
	if file := f.failure.Captures["file"]; file != "" {
		return file
	}
	for word := range strings.FieldsSeq(f.line()) {
		word = strings.Trim(word, `"'():,;[]`)
		if strings.HasPrefix(word, "/") && len(word) > 2 {
			return word
		}
	}
	return ""
}

// volumeKind says what a volume is, for the texts.
func volumeKind(f *logFault, file string) (kind, name, at string) {
	v, m := mountOf(f.container, file)
	if v == nil {
		return "", "", ""
	}
	switch {
	case v.PersistentVolumeClaim != nil:
		return "claim", v.PersistentVolumeClaim.ClaimName, m.MountPath
	case v.ConfigMap != nil:
		return "ConfigMap", v.ConfigMap.Name, m.MountPath
	case v.Secret != nil:
		return "Secret", v.Secret.SecretName, m.MountPath
	case v.EmptyDir != nil:
		return "emptyDir", v.Name, m.MountPath
	case v.HostPath != nil:
		return "hostPath", v.HostPath.Path, m.MountPath
	}
	return "volume", v.Name, m.MountPath
}

// pathDenied: the program may not read or write a path.
var pathDenied = fromLog("path-permission-denied", "may the container's user not use the path?", ailing, nil,
	func(_ *probes.Facts, f *logFault) blame {
		c := f.container
		file := deniedFile(f)
		b := blame{vars: map[string]string{"file": file, "hint": ""}}
		if file == "" {
			b.vars["file"] = "a path"
		}
		user := "the image's user"
		if u := runAsUser(c); u != nil {
			user = fmt.Sprintf("user %d", *u)
		}
		b.vars["user"] = user
		kind, name, at := volumeKind(f, file)
		fsGroup := "no fsGroup is set"
		if sc := c.pod.Spec.SecurityContext; sc != nil && sc.FSGroup != nil {
			fsGroup = fmt.Sprintf("fsGroup is %d", *sc.FSGroup)
		}
		switch kind {
		case "":
			b.vars["hint"] = fmt.Sprintf(" The path is the image's own: the image must give it to %s, or a volume must be mounted there.", user)
		case "claim", "volume", "hostPath":
			b.vars["hint"] = fmt.Sprintf(" It is on %s %s, mounted at %s; %s, so the volume's files keep their owner.", kind, name, at, fsGroup)
			if fsGroup != "no fsGroup is set" {
				b.vars["hint"] = fmt.Sprintf(" It is on %s %s, mounted at %s; %s.", kind, name, at, fsGroup)
			}
		default:
			b.vars["hint"] = fmt.Sprintf(" It is on %s %s, mounted at %s.", kind, name, at)
		}
		b.found = append(b.found, SawObject("pods", c.pod.Namespace, c.pod.Name, "container %s runs as %s; %s", c.spec.Name, user, fsGroup))
		return b
	}, "permission-denied", "operation-not-permitted")

// fileSystemReadOnly: the program writes where the container may not.
var fileSystemReadOnly = fromLog("file-system-read-only", "is the path on a file system that the container may only read?", ailing, nil,
	func(_ *probes.Facts, f *logFault) blame {
		c := f.container
		file := deniedFile(f)
		b := blame{vars: map[string]string{"file": file, "hint": "", "why": "its file system is mounted read-only"}}
		if file == "" {
			b.vars["file"] = "a path"
		}
		v, m := mountOf(c, file)
		switch {
		case v != nil && (v.ConfigMap != nil || v.Secret != nil || v.Projected != nil):
			b.vars["why"] = fmt.Sprintf("it is on volume %s (mounted at %s), and volumes of ConfigMaps and Secrets are always read-only", v.Name, m.MountPath)
		case v != nil && m.ReadOnly:
			b.vars["why"] = fmt.Sprintf("it is on volume %s, whose mount at %s has readOnly: true", v.Name, m.MountPath)
		case v != nil && v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ReadOnly:
			b.vars["why"] = fmt.Sprintf("it is on claim %s, which the pod mounts with readOnly: true", v.PersistentVolumeClaim.ClaimName)
		case v != nil:
			// The kernel makes a damaged file system read-only.
			b.vars["why"] = fmt.Sprintf("volume %s, mounted at %s, has become read-only, as the kernel does on errors of the disk", v.Name, m.MountPath)
			if v.PersistentVolumeClaim != nil {
				b.subject = Ref{Kind: "PersistentVolumeClaim", Namespace: c.pod.Namespace, Name: v.PersistentVolumeClaim.ClaimName}
			}
		case c.spec.SecurityContext != nil && c.spec.SecurityContext.ReadOnlyRootFilesystem != nil && *c.spec.SecurityContext.ReadOnlyRootFilesystem:
			b.vars["why"] = "the container has readOnlyRootFilesystem: true and no volume is mounted there"
		}
		b.found = append(b.found, SawObject("pods", c.pod.Namespace, c.pod.Name, "container %s: %s", c.spec.Name, b.vars["why"]))
		return b
	}, "read-only-file-system")

// volumeFull: a volume has no space left.
var volumeFull = fromLog("volume-full", "does the program say that a file system has no space left?", ailing, []probes.Any{probes.Claims},
	func(facts *probes.Facts, f *logFault) blame {
		c := f.container
		b := blame{vars: map[string]string{"what": "the container's file system", "size": "", "hint": ""}}
		file := deniedFile(f)
		kind, name, at := volumeKind(f, file)
		if kind == "" && !strings.HasPrefix(file, "/") {
			// Databases name files relative to their data folder: the one claim
			// that is mounted is meant.
			var claims []string
			for _, m := range c.spec.VolumeMounts {
				for _, v := range c.pod.Spec.Volumes {
					if v.Name == m.Name && v.PersistentVolumeClaim != nil {
						claims = append(claims, v.PersistentVolumeClaim.ClaimName)
						at = m.MountPath
					}
				}
			}
			if len(claims) == 1 {
				kind, name = "claim", claims[0]
			}
		}
		if kind != "" {
			b.vars["what"] = fmt.Sprintf("%s %s, mounted at %s,", kind, name, at)
		}
		if kind != "claim" {
			return b
		}
		b.subject = Ref{Kind: "PersistentVolumeClaim", Namespace: c.pod.Namespace, Name: name}
		claims, err := probes.Claims.Of(facts)
		if err != nil {
			return b
		}
		if claim := claims.Get(c.pod.Namespace, name); claim != nil {
			if q, ok := claim.Status.Capacity["storage"]; ok {
				b.vars["size"] = fmt.Sprintf(" It has %s.", q.String())
				b.found = append(b.found, SawObject("persistentvolumeclaims", claim.Namespace, claim.Name, "claim %s has %s", claim.Name, q.String()))
			}
		}
		return b
	}, "disk-full")

var fileRules = []*Rule{pathDenied, fileSystemReadOnly, volumeFull}
