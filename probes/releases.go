package probes

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// HelmReleases is the document of the Secrets in which Helm keeps releases;
// of a live cluster it is all that is ever read of Secrets, and there without
// the superseded revisions.
var HelmReleases = Document{Path: "secrets", Only: []string{"type=" + HelmReleaseType}}

// IsHelmReleases reports whether a document asks for Helm's Secrets only.
func (d Document) IsHelmReleases() bool {
	return d.Path == HelmReleases.Path && slices.Equal(d.Only, HelmReleases.Only)
}

// Releases are the heads of all Helm releases, by namespace, name and
// revision.
var Releases = &Probe[[]*Release]{
	Name:  "helm-releases",
	About: "Helm releases with their status, chart and what Helm last said of them; never their values",
	Reads: []Permission{{Verb: "list", Resource: "secrets"}},
	Gather: func(ctx context.Context, src Source, _ *Facts) ([]*Release, error) {
		var releases []*Release
		for secret, err := range Items[Secret](ctx, src, HelmReleases) {
			var gap *Gap
			if errors.As(err, &gap) && gap.Reason == NotCaptured && gap.Detail == notHeld {
				// Few captures hold Secrets, and whether Helm is in use is not
				// known: what failed is then told by what it should have made.
				return nil, nil
			}
			if err != nil {
				return nil, err
			}
			if secret.Type == HelmReleaseType && secret.Release != nil {
				releases = append(releases, secret.Release)
			}
		}
		slices.SortFunc(releases, func(a, b *Release) int {
			return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), cmp.Compare(a.Revision, b.Revision))
		})
		return releases, nil
	},
}

// SlimSecret is what may be known of a Secret: its values become sizes, a
// Helm release its head.
func SlimSecret(s *corev1.Secret) *Secret {
	slim := &Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: s.ObjectMeta, Type: string(s.Type), Keys: map[string]int{},
	}
	delete(slim.Annotations, corev1.LastAppliedConfigAnnotation)
	for k, v := range s.Data {
		slim.Keys[k] = len(v)
	}
	if s.Type == HelmReleaseType {
		slim.Release = DecodeRelease(s.Data["release"])
	}
	return slim
}
