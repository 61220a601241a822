package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What a request may take. A request that fails for a passing reason is sent
// again, as long as the deadline of the whole walk allows.
const (
	attempts  = 5
	firstWait = 200 * time.Millisecond
	longWait  = 5 * time.Second
	idleLimit = 20 * time.Second // without a byte
)

var errIdle = errors.New("the server stopped answering")

// A statusError is an answer that is not 200.
type statusError struct {
	code    int
	message string
	status  metav1.Status
	after   time.Duration // what Retry-After asks for
}

func (e *statusError) Error() string { return e.message }

// get sends one GET. The body's reads fail with errIdle if nothing arrives
// for long; closing it frees the place among the requests in flight.
func (c *Cluster) get(ctx context.Context, path string, query url.Values, accept string) (*http.Response, error) {
	select {
	case c.requests <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	done := func() { cancel(nil); <-c.requests }
	target := c.base.JoinPath(path)
	target.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		done()
		return nil, err
	}
	request.Header.Set("Accept", accept)
	idle := time.AfterFunc(idleLimit, func() { cancel(errIdle) })
	response, err := c.client.Do(request)
	if err != nil {
		idle.Stop()
		if errors.Is(context.Cause(ctx), errIdle) {
			err = errIdle
		}
		done()
		return nil, err
	}
	body := &watchedBody{ReadCloser: response.Body, cluster: c, ctx: ctx, idle: idle, done: done}
	response.Body = body
	if response.StatusCode != http.StatusOK {
		defer body.Close()
		return nil, readStatus(response)
	}
	return response, nil
}

type watchedBody struct {
	io.ReadCloser
	cluster *Cluster
	ctx     context.Context
	idle    *time.Timer
	done    func()
}

func (b *watchedBody) Read(p []byte) (int, error) {
	b.idle.Reset(idleLimit)
	n, err := b.ReadCloser.Read(p)
	b.idle.Stop() // the reader may take its time
	b.cluster.bytes.Add(int64(n))
	if err != nil && !errors.Is(err, io.EOF) && errors.Is(context.Cause(b.ctx), errIdle) {
		return n, errIdle
	}
	return n, err
}

func (b *watchedBody) Close() error {
	if b.done == nil {
		return nil
	}
	b.idle.Stop()
	err := b.ReadCloser.Close()
	b.done()
	b.done = nil
	return err
}

func readStatus(response *http.Response) error {
	e := &statusError{code: response.StatusCode}
	body, _ := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	if json.Unmarshal(body, &e.status) == nil && e.status.Kind == "Status" {
		e.message = e.status.Message
	}
	if e.message == "" {
		e.message = fmt.Sprintf("the server answered %s", response.Status)
	}
	if s, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil {
		e.after = time.Duration(s) * time.Second
	}
	return e
}

// passing reports whether an error may be gone at the next try.
func passing(err error) bool {
	var lasting lastingFault
	if errors.As(err, &lasting) {
		return false
	}
	var status *statusError
	if errors.As(err, &status) {
		return status.code == http.StatusTooManyRequests || status.code >= 500 || status.code == http.StatusRequestTimeout
	}
	var network net.Error
	return errors.Is(err, errIdle) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EPIPE) ||
		errors.As(err, &network) && network.Timeout() || strings.Contains(err.Error(), "http2: ") || strings.Contains(err.Error(), "stream error:")
}

// again runs try until it succeeds, fails for good, or the deadline is near.
// A try that got further than the one before starts the count anew.
func again(ctx context.Context, try func() (further bool, err error)) error {
	wait := firstWait
	for n := 1; ; n++ {
		further, err := try()
		if err == nil || ctx.Err() != nil || !passing(err) {
			return err
		}
		if further {
			n, wait = 1, firstWait
		}
		if n == attempts {
			return err
		}
		pause := wait
		var status *statusError
		if errors.As(err, &status) && status.after > 0 {
			pause = min(status.after, longWait)
		}
		wait = min(2*wait, longWait)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}
