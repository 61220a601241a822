package diagnose

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// A setting is one value that a container is configured with.
type setting struct {
	name   string // of the environment variable; "args" for the command line
	value  string // empty where it is not known
	secret bool   // the value is a Secret's and is never read
	from   Ref    // the ConfigMap or Secret; zero where the workload itself says it
	key    string // in from
}

// where is the place of a setting as a person looks for it.
func (s setting) where() string {
	switch {
	case s.from.Kind != "" && s.key != s.name:
		return fmt.Sprintf("env %s from key %s of %s %s", s.name, s.key, s.from.Kind, s.from.Name)
	case s.from.Kind != "":
		return fmt.Sprintf("key %s of %s %s", s.key, s.from.Kind, s.from.Name)
	case s.name == "args":
		return "the command line"
	}
	return "env " + s.name
}

// redactedPrefix begins what stands for a value in a redacted snapshot: equal
// values are equal still, but their text is not known. See [probes.Redactor].
const redactedPrefix = "REDACTED-"

// settingNeeds are the facts that settings reads.
var settingNeeds = []probes.Any{probes.ConfigMaps, probes.Secrets}

// settings are what a container is configured with, in the order of its spec.
// The error says that something that it refers to could not be read.
func settings(facts *probes.Facts, c container) ([]setting, error) {
	maps, mapsErr := probes.ConfigMaps.Of(facts)
	secrets, secretsErr := probes.Secrets.Of(facts)
	var err error
	data := func(name string) map[string]string {
		if mapsErr != nil {
			err = mapsErr
			return nil
		}
		if m := maps.Get(c.pod.Namespace, name); m != nil {
			return m.Data
		}
		return nil
	}
	var list []setting
	for _, e := range c.spec.EnvFrom {
		if r := e.ConfigMapRef; r != nil {
			d := data(r.Name)
			for _, k := range sortedKeys(d) {
				list = append(list, setting{name: e.Prefix + k, value: d[k], from: Ref{Kind: "ConfigMap", Namespace: c.pod.Namespace, Name: r.Name}, key: k})
			}
		}
		if r := e.SecretRef; r != nil && secretsErr != nil {
			err = secretsErr
		} else if r != nil {
			if s := secrets.Get(c.pod.Namespace, r.Name); s != nil {
				for _, k := range sortedKeys(s.Keys) {
					list = append(list, setting{name: e.Prefix + k, secret: true, from: Ref{Kind: "Secret", Namespace: c.pod.Namespace, Name: r.Name}, key: k})
				}
			}
		}
	}
	for _, e := range c.spec.Env {
		s := setting{name: e.Name, value: e.Value}
		if v := e.ValueFrom; v != nil {
			switch {
			case v.ConfigMapKeyRef != nil:
				s.from, s.key = Ref{Kind: "ConfigMap", Namespace: c.pod.Namespace, Name: v.ConfigMapKeyRef.Name}, v.ConfigMapKeyRef.Key
				s.value = data(s.from.Name)[s.key]
			case v.SecretKeyRef != nil:
				s.secret, s.from, s.key = true, Ref{Kind: "Secret", Namespace: c.pod.Namespace, Name: v.SecretKeyRef.Name}, v.SecretKeyRef.Key
			}
		}
		if strings.HasPrefix(s.value, redactedPrefix) {
			s.secret = true
		}
		list = append(list, s)
	}
	if line := strings.Join(slices.Concat(c.spec.Command, c.spec.Args), " "); line != "" {
		list = append(list, setting{name: "args", value: line})
	}
	return list, err
}

// holder is the setting whose value holds the text as a word, or nil.
func holder(list []setting, text string) *setting {
	if len(text) < 2 {
		return nil
	}
	re, err := regexp.Compile(`(^|[^\w-])` + regexp.QuoteMeta(text) + `($|[^\w-])`)
	if err != nil {
		return nil
	}
	for i := range list {
		if re.MatchString(list[i].value) {
			return &list[i]
		}
	}
	return nil
}

// mountedSettings are the ConfigMaps and Secrets that a container mounts as
// files, with where.
func mountedSettings(c container) []mountedConfig {
	var list []mountedConfig
	for _, m := range c.spec.VolumeMounts {
		for _, v := range c.pod.Spec.Volumes {
			if v.Name != m.Name {
				continue
			}
			for _, o := range configOf(v) {
				list = append(list, mountedConfig{Ref{Kind: o.kind, Namespace: c.pod.Namespace, Name: o.name}, m})
			}
		}
	}
	return list
}

// A mountedConfig is a ConfigMap or Secret with its mount in a container.
type mountedConfig struct {
	object Ref
	mount  corev1.VolumeMount
}

// configOf are the ConfigMaps and Secrets of a volume.
func configOf(v corev1.Volume) []reference {
	var list []reference
	if v.ConfigMap != nil {
		list = append(list, reference{kind: "ConfigMap", name: v.ConfigMap.Name})
	}
	if v.Secret != nil {
		list = append(list, reference{kind: "Secret", name: v.Secret.SecretName})
	}
	if v.Projected != nil {
		for _, s := range v.Projected.Sources {
			if s.ConfigMap != nil && s.ConfigMap.Name != "kube-root-ca.crt" {
				list = append(list, reference{kind: "ConfigMap", name: s.ConfigMap.Name})
			}
			if s.Secret != nil {
				list = append(list, reference{kind: "Secret", name: s.Secret.Name})
			}
		}
	}
	return list
}
