// Package live reads documents from a running cluster. It is the only
// importer of client-go and the AWS SDK, so that the rest builds without them.
package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/pposiraegi/ppodoctor/probes"
)

// Options say what a [Cluster] may read.
type Options struct {
	// AWS answers documents of AWS. Without it they are gaps, for the reason NoAWS.
	AWS   probes.Source
	NoAWS string
	// Name is what the kubeconfig calls the cluster; of an EKS cluster it may
	// hold the ARN.
	Name string
	// NoHelm keeps Secrets from being read at all, those of Helm too.
	NoHelm bool
	// Namespace is where namespaced kinds are read if the whole cluster may
	// not be read. Empty: nowhere.
	Namespace string
	// Clock is the source's clock; the wall clock if nil.
	Clock func() time.Time
	// Progress is told of each document that is being read; it may be called
	// from several goroutines.
	Progress func(Progress)
}

// Progress is how far the reading of a document is.
type Progress struct {
	Document probes.Document
	Objects  int // so far; 0 for logs
	Done     bool
}

// A Cluster is a running cluster as a Source. It only sends GET requests: no
// verb but get and list.
type Cluster struct {
	Options
	base     *url.URL
	client   *http.Client
	requests chan struct{} // bounds the requests in flight
	kinds    discovery
	version  string
	narrowed sync.Map // Document path → *probes.Gap: lists that hold one namespace only
	pages    atomic.Int64
	bytes    atomic.Int64
}

// inFlight is how many requests may run at once. The server's own fairness
// rules do the rest: client-go's limit of 5 a second is not applied.
const inFlight = 8

// NewCluster is the cluster that a client configuration leads to. Nothing is
// read yet.
func NewCluster(config *rest.Config, options Options) (*Cluster, error) {
	config = rest.CopyConfig(config)
	if config.UserAgent == "" {
		config.UserAgent = "ppodoctor"
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("the server's address: %w", err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, explain(err, config.Host)
	}
	return &Cluster{Options: options, base: base, client: client, requests: make(chan struct{}, inFlight)}, nil
}

// Now is the source's clock.
func (c *Cluster) Now() time.Time {
	if c.Clock != nil {
		return c.Clock()
	}
	return time.Now()
}

// Open reads a document. Kubernetes objects arrive page by page while the
// reader goes on, so that none needs to be held.
func (c *Cluster) Open(ctx context.Context, doc probes.Document) (io.ReadCloser, error) {
	switch {
	case doc.IsAWS():
		if c.AWS == nil {
			return nil, &probes.Gap{Document: doc, Reason: probes.NotCaptured, Grant: doc.Grant(), Detail: c.NoAWS}
		}
		return c.AWS.Open(ctx, doc)
	case strings.HasPrefix(doc.Path, "logs/"):
		return c.openLog(ctx, doc)
	case doc.Path == "secrets":
		return c.openReleases(ctx, doc)
	}
	return c.openList(ctx, doc)
}

// NotInstalled reports whether the server is known not to serve a resource.
// It is false as long as the server was not asked.
func (c *Cluster) NotInstalled(resource string) bool { return c.kinds.absent(resource) }

// ClusterMeta is what is known of the cluster itself, and who reads AWS.
func (c *Cluster) ClusterMeta() probes.SnapshotMeta {
	at := Hints(c.Name, "", nil)
	meta := probes.SnapshotMeta{Cluster: at.Cluster, Region: at.Region, Account: at.Account}
	if cloud, ok := c.AWS.(interface{ ClusterMeta() probes.SnapshotMeta }); ok {
		meta = cloud.ClusterMeta()
	}
	meta.KubernetesVersion = c.version
	return meta
}

// Gaps are what was left out of lists that could be read in part only, by
// path: every namespace but one.
func (c *Cluster) Gaps() []*probes.Gap {
	var gaps []*probes.Gap
	c.narrowed.Range(func(_, gap any) bool {
		gaps = append(gaps, gap.(*probes.Gap))
		return true
	})
	slices.SortFunc(gaps, func(a, b *probes.Gap) int { return strings.Compare(a.Document.Path, b.Document.Path) })
	return gaps
}

// Traffic is how many pages of lists were read, and how many bytes after
// decompression in all.
func (c *Cluster) Traffic() (pages, bytes int64) { return c.pages.Load(), c.bytes.Load() }

func (c *Cluster) progress(doc probes.Document, objects int, done bool) {
	if c.Progress != nil {
		c.Progress(Progress{Document: doc, Objects: objects, Done: done})
	}
}

// gap is the Gap for a document that a request could not get.
func gap(ctx context.Context, doc probes.Document, err error) error {
	var known *probes.Gap
	if errors.As(err, &known) {
		return known
	}
	g := &probes.Gap{Document: doc, Reason: probes.Unreadable, Grant: doc.Grant(), Detail: err.Error()}
	var status *statusError
	switch {
	case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		g.Reason, g.Detail = probes.TimedOut, "not read before the deadline"
	case ctx.Err() != nil:
		g.Reason, g.Detail = probes.TimedOut, "interrupted before it was read"
	case errors.As(err, &status) && status.code == http.StatusForbidden:
		g.Reason = probes.Forbidden
	case errors.Is(err, errIdle):
		g.Reason = probes.TimedOut
	}
	return g
}
