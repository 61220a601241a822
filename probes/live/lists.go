package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// pageSize is how many objects one request asks for, as kubectl does.
const pageSize = 500

const (
	acceptJSON     = "application/json"
	acceptProtobuf = "application/vnd.kubernetes.protobuf,application/json"
)

func (c *Cluster) openList(ctx context.Context, doc probes.Document) (io.ReadCloser, error) {
	kind, ok := builtIn()[doc.Path]
	if !ok {
		var err error
		if kind, err = c.kinds.find(ctx, c, doc); err != nil {
			return emptyIf(err)
		}
	}
	l := c.newList(ctx, doc, kind)
	if err := l.start(); err != nil {
		l.Close()
		return emptyIf(err)
	}
	if l.kind.typed {
		return l, nil
	}
	return &jsonList{objects: l}, nil
}

// emptyIf makes "not served" the empty list that it is: no object exists of a
// kind that the server doesn't know.
func emptyIf(err error) (io.ReadCloser, error) {
	if errors.Is(err, errNotServed) {
		return io.NopCloser(strings.NewReader("")), nil
	}
	return nil, err
}

// A read is one series of pages: all objects, or those of a namespace, that
// the selectors leave.
type read struct{ namespace, fields, labels string }

// readsOf are the reads that a document takes: one for everything, or one for
// each name that it is narrowed to ("name", "namespace/name", "namespace/").
func readsOf(doc probes.Document) []read {
	if len(doc.Only) == 0 || len(doc.Only) > 50 {
		return []read{{}}
	}
	var reads []read
	for _, only := range doc.Only {
		namespace, name, ok := strings.Cut(only, "/")
		if !ok {
			namespace, name = "", only
		}
		r := read{namespace: namespace}
		if name != "" {
			r.fields = "metadata.name=" + name
		}
		reads = append(reads, r)
	}
	return reads
}

// A list reads the objects of a kind page by page. Its Next gives them
// decoded; what was given once is not given again when a page is read anew.
type list struct {
	cluster *Cluster
	ctx     context.Context
	doc     probes.Document
	kind    served
	reads   []read

	goOn  string // the token of the page being read
	given int
	seen  map[string]bool // "namespace/name" of what the page has given
	after string          // skip up to this one: the list was started anew
	last  string          // the last one given
	page  page            // nil before the first, and after a cut
	body  io.Closer
	next  *request // for the page after this one, made while this one is decoded
	ahead any      // the first object, read by start
	state error
}

// A page is one answer that is being decoded.
type page interface {
	next() (any, error) // io.EOF after the last
	goOn() string       // the token of the next page, valid after io.EOF
}

func (c *Cluster) newList(ctx context.Context, doc probes.Document, kind served) *list {
	return &list{cluster: c, ctx: ctx, doc: doc, kind: kind, reads: readsOf(doc), seen: map[string]bool{}}
}

// start reads up to the first object, so that what can't be read at all is an
// error of Open.
func (l *list) start() error {
	l.ahead, l.state = l.advance()
	if errors.Is(l.state, io.EOF) {
		return nil
	}
	return l.state
}

func (l *list) Read([]byte) (int, error) {
	return 0, errors.New("the objects of a typed list are read with Next")
}

// Close ends the reading.
func (l *list) Close() error {
	l.next.drop()
	l.next = nil
	return l.closePage()
}

func (l *list) closePage() error {
	if l.body == nil {
		return nil
	}
	err := l.body.Close()
	l.body = nil
	return err
}

// Next is the next object, or io.EOF.
func (l *list) Next() (any, error) {
	if l.state != nil {
		return nil, l.state
	}
	object := l.ahead
	if l.ahead = nil; object == nil {
		if object, l.state = l.advance(); l.state != nil {
			return nil, l.state
		}
	}
	return object, nil
}

func (l *list) advance() (any, error) {
	var object any
	err := again(l.ctx, func() (bool, error) {
		before := l.given
		var err error
		object, err = l.step()
		if err != nil && !errors.Is(err, io.EOF) {
			l.Close()
			l.page = nil
		}
		return l.given > before, err
	})
	if errors.Is(err, io.EOF) || errors.Is(err, errNotServed) {
		l.cluster.progress(l.doc, l.given, true)
		return nil, err
	}
	if err != nil {
		return nil, gap(l.ctx, l.doc, err)
	}
	return object, nil
}

// step gives the next object of the page, or turns the page.
func (l *list) step() (any, error) {
	for {
		if l.page == nil {
			if len(l.reads) == 0 {
				return nil, io.EOF
			}
			if err := l.turn(); err != nil {
				return nil, err
			}
			continue
		}
		object, err := l.page.next()
		if err == nil {
			at := keyOf(object)
			if l.seen[at] || l.after != "" && at <= l.after {
				continue // the page is read anew after a cut
			}
			l.seen[at], l.last = true, at
			l.given++
			if goOn := l.page.goOn(); l.next == nil && goOn != "" {
				l.next = l.ask(goOn)
			}
			return object, nil
		}
		if !errors.Is(err, io.EOF) {
			return nil, err
		}
		l.goOn = l.page.goOn()
		l.closePage()
		l.page = nil
		clear(l.seen)
		if l.goOn == "" {
			l.reads, l.after, l.last = l.reads[1:], "", ""
		}
		l.cluster.progress(l.doc, l.given, false)
	}
}

// A request is one for a page that has been sent.
type request struct {
	goOn   string
	answer chan answer
}

type answer struct {
	*http.Response
	err error
}

func (a answer) unpack() (*http.Response, error) { return a.Response, a.err }

// drop lets go of a page that nobody wants any more.
func (r *request) drop() {
	if r == nil {
		return
	}
	go func() {
		if a := <-r.answer; a.err == nil {
			a.Body.Close()
		}
	}()
}

// ask sends for the page at goOn.
func (l *list) ask(goOn string) *request {
	r := l.reads[0]
	query := url.Values{"limit": {strconv.Itoa(pageSize)}}
	if goOn != "" {
		query.Set("continue", goOn)
	}
	if r.fields != "" {
		query.Set("fieldSelector", r.fields)
	}
	if r.labels != "" {
		query.Set("labelSelector", r.labels)
	}
	accept := acceptJSON
	if l.kind.typed {
		accept = acceptProtobuf
	}
	path := l.kind.path(r.namespace)
	sent := &request{goOn: goOn, answer: make(chan answer, 1)}
	go func() {
		response, err := l.cluster.get(l.ctx, path, query, accept)
		sent.answer <- answer{response, err}
	}()
	return sent
}

// turn takes the page at goOn.
func (l *list) turn() error {
	sent := l.next
	if l.next = nil; sent == nil || sent.goOn != l.goOn {
		sent.drop()
		sent = l.ask(l.goOn)
	}
	response, err := (<-sent.answer).unpack()
	if err != nil {
		return l.recover(err)
	}
	l.cluster.pages.Add(1)
	l.body = response.Body
	if strings.HasPrefix(response.Header.Get("Content-Type"), "application/vnd.kubernetes.protobuf") {
		l.page = newProtoPage(response.Body, l.kind)
	} else {
		l.page = &jsonPage{decoder: json.NewDecoder(response.Body), kind: l.kind}
	}
	return nil
}

// recover turns an answer that has a way on into that way.
func (l *list) recover(err error) error {
	var status *statusError
	if !errors.As(err, &status) {
		return err
	}
	switch {
	case status.code == http.StatusGone && l.goOn != "":
		// The token is too old. The server offers one that goes on after the
		// same object, in the present state; without it, start anew and skip.
		if l.goOn = status.status.Continue; l.goOn == "" {
			l.after = l.last
		}
		return nil
	case status.code == http.StatusNotFound && l.given == 0:
		// A built-in kind that this server has in another version, or not at all.
		kind, err := l.cluster.kinds.find(l.ctx, l.cluster, l.doc)
		if err != nil {
			return err
		}
		if kind == l.kind || kind.path("") == l.kind.path("") {
			return fmt.Errorf("the server lists %s, but answers not found", l.doc.Path)
		}
		l.kind = kind
		return nil
	case status.code == http.StatusForbidden && l.cluster.Namespace != "" && l.reads[0].namespace == "" && l.given == 0:
		return l.narrow(err)
	}
	return err
}

// narrow reads one namespace where the whole cluster may not be read, and
// keeps the rest as a gap.
func (l *list) narrow(forbidden error) error {
	kind, err := l.cluster.kinds.find(l.ctx, l.cluster, l.doc)
	if err != nil || !kind.namespaced {
		return forbidden
	}
	l.reads[0].namespace = l.cluster.Namespace
	l.cluster.narrowed.Store(l.doc.Path, &probes.Gap{
		Document: l.doc, Reason: probes.Forbidden, Grant: l.doc.Grant(),
		Detail: "only namespace " + l.cluster.Namespace + " was read: " + forbidden.Error(),
	})
	return nil
}

func keyOf(object any) string {
	if item, ok := object.(jsonItem); ok {
		return item.namespace + "/" + item.name
	}
	m := object.(metav1.Object)
	return m.GetNamespace() + "/" + m.GetName()
}

// A jsonList is a list whose objects have no Go type here: a stream of JSON,
// and no [probes.ObjectReader].
type jsonList struct {
	objects *list
	rest    []byte
}

func (l *jsonList) Read(p []byte) (int, error) {
	if len(l.rest) == 0 {
		object, err := l.objects.Next()
		if err != nil {
			return 0, err
		}
		l.rest = append(object.(jsonItem).raw, '\n')
	}
	n := copy(p, l.rest)
	l.rest = l.rest[n:]
	return n, nil
}

func (l *jsonList) Close() error { return l.objects.Close() }
