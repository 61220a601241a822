package probes

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A Secret is what may be known of a Kubernetes Secret: never a value.
type Secret struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Type              string         `json:"type,omitempty"`
	Keys              map[string]int `json:"keys,omitempty"` // key name to size in bytes
	Release           *Release       `json:"release,omitempty"`
	Registries        []string       `json:"registries,omitempty"` // hosts that an image pull secret has credentials for
}

// A Release is the head of a Helm release, as its Secret holds it. Values and
// manifests are left out: they may hold secrets.
type Release struct {
	Name         string    `json:"name"`
	Namespace    string    `json:"namespace"`
	Revision     int       `json:"revision"`
	Status       string    `json:"status"` // deployed, failed, pending-install, pending-upgrade, …
	Description  string    `json:"description"`
	Chart        string    `json:"chart"`
	ChartVersion string    `json:"chartVersion"`
	AppVersion   string    `json:"appVersion"`
	LastDeployed time.Time `json:"lastDeployed"`
}

// HelmReleaseType is the type of the Secrets in which Helm 3 and later keep
// releases. Source: helm.sh/helm pkg/storage/driver/secrets.go.
const HelmReleaseType = "helm.sh/release.v1"

// Secrets are the secrets' names, types and keys. A live cluster is never
// asked for them: there they are a gap.
var Secrets = listing[Secret]("secrets", "names and keys of secrets, never values; from snapshots only")

// slimSecret replaces the values of a Secret by their sizes.
func slimSecret(raw json.RawMessage) json.RawMessage {
	var full struct {
		APIVersion string            `json:"apiVersion"`
		Kind       string            `json:"kind"`
		Metadata   metav1.ObjectMeta `json:"metadata"`
		Type       string            `json:"type"`
		Data       map[string]string `json:"data"`
		StringData map[string]string `json:"stringData"`
		Keys       map[string]int    `json:"keys"`    // already slim: a snapshot of ours
		Release    *Release          `json:"release"` // already slim
		Registries []string          `json:"registries"`
	}
	if json.Unmarshal(raw, &full) != nil {
		return nil
	}
	slim := Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: full.APIVersion, Kind: full.Kind},
		ObjectMeta: full.Metadata, Type: full.Type, Keys: full.Keys, Release: full.Release, Registries: full.Registries,
	}
	// kubectl apply keeps the whole object, values included, in an annotation.
	delete(slim.Annotations, "kubectl.kubernetes.io/last-applied-configuration")
	if slim.Keys == nil {
		slim.Keys = map[string]int{}
	}
	for k, v := range full.Data {
		slim.Keys[k] = base64.StdEncoding.DecodedLen(len(v))
		if decoded, err := base64.StdEncoding.DecodeString(v); err == nil {
			slim.Keys[k] = len(decoded)
			if k == "release" && full.Type == HelmReleaseType {
				slim.Release = DecodeRelease(decoded)
			}
			if hosts := registriesOf(k, decoded); hosts != nil {
				slim.Registries = hosts
			}
		}
	}
	for k, v := range full.StringData {
		slim.Keys[k] = len(v)
		if hosts := registriesOf(k, []byte(v)); hosts != nil {
			slim.Registries = hosts
		}
	}
	if slim.Type == HelmReleaseType && slim.Release == nil {
		slim.Release = labelledRelease(&slim.ObjectMeta)
	}
	out, err := json.Marshal(slim)
	if err != nil {
		return nil
	}
	return out
}

// labelledRelease is what the labels of a release's Secret say of it, where
// its content was taken out; nil where they are not Helm's.
// Source: helm.sh/helm pkg/storage/driver/secrets.go (newSecretsObject).
func labelledRelease(m *metav1.ObjectMeta) *Release {
	revision, err := strconv.Atoi(m.Labels["version"])
	if err != nil || m.Labels["owner"] != "helm" || m.Labels["name"] == "" {
		return nil
	}
	r := &Release{Name: m.Labels["name"], Namespace: m.Namespace, Revision: revision, Status: m.Labels["status"], LastDeployed: m.CreationTimestamp.Time}
	if at, err := strconv.ParseInt(m.Labels["modifiedAt"], 10, 64); err == nil && at > m.CreationTimestamp.Unix() {
		r.LastDeployed = time.Unix(at, 0).UTC()
	}
	return r
}

// registriesOf are the registry hosts that an image pull secret has
// credentials for; nil for any other key.
// Source: kubernetes.io/docs/concepts/configuration/secret, "Docker config Secrets".
func registriesOf(key string, value []byte) []string {
	var hosts map[string]any
	switch key {
	case ".dockerconfigjson":
		var config struct {
			Auths map[string]any `json:"auths"`
		}
		if json.Unmarshal(value, &config) != nil {
			return nil
		}
		hosts = config.Auths
	case ".dockercfg":
		if json.Unmarshal(value, &hosts) != nil {
			return nil
		}
	}
	return slices.Sorted(maps.Keys(hosts))
}

// DecodeRelease reads the head of a release from the data of its Secret
// (base64 of gzip of JSON), or gives nil.
// Source: helm.sh/helm pkg/storage/driver/util.go.
func DecodeRelease(data []byte) *Release {
	packed, err := base64.StdEncoding.DecodeString(string(data))
	if err != nil {
		return nil
	}
	if bytes.HasPrefix(packed, []byte{0x1f, 0x8b}) {
		gz, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			return nil
		}
		if packed, err = io.ReadAll(io.LimitReader(gz, 64<<20)); err != nil {
			return nil
		}
	}
	var full struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
		Version   int    `json:"version"`
		Info      struct {
			Status       string    `json:"status"`
			Description  string    `json:"description"`
			LastDeployed time.Time `json:"last_deployed"`
		} `json:"info"`
		Chart struct {
			Metadata struct {
				Name       string `json:"name"`
				Version    string `json:"version"`
				AppVersion string `json:"appVersion"`
			} `json:"metadata"`
		} `json:"chart"`
	}
	if json.Unmarshal(packed, &full) != nil || full.Name == "" {
		return nil
	}
	meta := full.Chart.Metadata
	return &Release{
		Name: full.Name, Namespace: full.Namespace, Revision: full.Version, Status: full.Info.Status,
		Description: full.Info.Description, LastDeployed: full.Info.LastDeployed,
		Chart: meta.Name, ChartVersion: meta.Version, AppVersion: meta.AppVersion,
	}
}
