package live

import (
	"context"
	"io"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// openReleases reads Helm's Secrets and no other: a field selector on the type
// keeps the rest within the server.
func (c *Cluster) openReleases(ctx context.Context, doc probes.Document) (io.ReadCloser, error) {
	switch {
	case c.NoHelm:
		return nil, &probes.Gap{Document: doc, Reason: probes.NotCaptured, Detail: "--no-helm: no Secret was read"}
	case !doc.IsHelmReleases():
		return nil, &probes.Gap{Document: doc, Reason: probes.NotCaptured, Detail: "the Secrets of a running cluster are never read, but for Helm's"}
	}
	l := c.newList(ctx, doc, builtIn()["secrets"])
	// Superseded revisions are history, and each may be a megabyte.
	l.reads = []read{{fields: "type=" + probes.HelmReleaseType, labels: "status!=superseded"}}
	if err := l.start(); err != nil {
		l.Close()
		return nil, err
	}
	return releases{l}, nil
}

// releases slims each Secret as soon as it is decoded.
type releases struct{ *list }

func (r releases) Next() (any, error) {
	object, err := r.list.Next()
	if err != nil {
		return nil, err
	}
	return probes.SlimSecret(object.(*corev1.Secret)), nil
}
