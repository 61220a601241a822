package live

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/pposiraegi/ppodoctor/probes"
)

// How much of a log is read: its end, by lines and bytes.
const (
	tailLines = 500
	logBytes  = 1 << 20
)

// openLog reads the end of a container's log. The kubelet takes the last
// lines first and then cuts at the byte limit from behind, so a log of very
// long lines is asked for again with fewer: its end is what matters.
func (c *Cluster) openLog(ctx context.Context, doc probes.Document) (io.ReadCloser, error) {
	namespace, pod, container, previous, ok := doc.AsLog()
	if !ok {
		return nil, &probes.Gap{Document: doc, Reason: probes.Unreadable, Detail: "not the path of a log"}
	}
	c.progress(doc, 0, false)
	defer c.progress(doc, 0, true)
	var data []byte
	for lines := tailLines; ; lines /= 5 {
		query := url.Values{
			"container": {container}, "tailLines": {strconv.Itoa(lines)}, "limitBytes": {strconv.Itoa(logBytes)},
		}
		if previous {
			query.Set("previous", "true")
		}
		err := again(ctx, func() (bool, error) {
			var err error
			data, err = c.getAll(ctx, "api/v1/namespaces/"+namespace+"/pods/"+pod+"/log", query)
			return false, kubeletFault(err)
		})
		if err != nil {
			return nil, logGap(ctx, doc, err)
		}
		if len(data) < logBytes || lines <= 5 {
			return io.NopCloser(bytes.NewReader(data)), nil
		}
	}
}

func (c *Cluster) getAll(ctx context.Context, path string, query url.Values) ([]byte, error) {
	response, err := c.get(ctx, path, query, "*/*")
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(io.LimitReader(response.Body, 4*logBytes))
}

// A lastingFault is an error that another try doesn't mend.
type lastingFault struct{ error }

func (f lastingFault) Unwrap() error { return f.error }

// kubeletFault keeps the server's "the kubelet does not answer" (a 500, after
// a wait of its own) from being asked for again and again.
func kubeletFault(err error) error {
	var status *statusError
	if errors.As(err, &status) && status.code >= 500 && status.code != http.StatusServiceUnavailable {
		return lastingFault{err}
	}
	return err
}

// logGap is the Gap of one log. That there is no log, for instance because
// the previous container was removed, is the log's own matter: no right would
// bring it.
func logGap(ctx context.Context, doc probes.Document, err error) error {
	g := gap(ctx, doc, err).(*probes.Gap)
	var status *statusError
	if errors.As(err, &status) && (status.code == http.StatusBadRequest || status.code == http.StatusNotFound) {
		g.Reason, g.Grant = probes.NotCaptured, ""
	}
	return g
}
