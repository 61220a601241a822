package live

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/pposiraegi/ppodoctor/probes"
)

// A served kind is where the server has the objects of a resource.
type served struct {
	schema.GroupVersionKind
	resource   string
	namespaced bool // only known where the server was asked
	typed      bool // client-go has a type for it, so protobuf can be asked for
}

// path is where the objects are listed: all, or those of one namespace.
func (k served) path(namespace string) string {
	p := "apis/" + k.Group + "/" + k.Version
	if k.Group == "" {
		p = "api/" + k.Version
	}
	if namespace != "" {
		p += "/namespaces/" + namespace
	}
	return p + "/" + k.resource
}

// types are the kinds that have a Go type.
var types = sync.OnceValue(func() *runtime.Scheme {
	s := runtime.NewScheme()
	must(scheme.AddToScheme(s))
	must(apiextensionsv1.AddToScheme(s))
	return s
})

func must(err error) {
	if err != nil {
		panic(err) // two types of one name: a defect of the build
	}
}

// builtIn are the kinds that have a Go type, by Document path, in their
// newest version.
var builtIn = sync.OnceValue(func() map[string]served {
	kinds := map[string]served{}
	for gvk := range types().AllKnownTypes() {
		if gvk.Version == runtime.APIVersionInternal || !types().Recognizes(gvk.GroupVersion().WithKind(gvk.Kind+"List")) {
			continue
		}
		plural, _ := meta.UnsafeGuessKindToResource(gvk)
		path := plural.GroupResource().String()
		if old, ok := kinds[path]; !ok || version.CompareKubeAwareVersionStrings(gvk.Version, old.Version) > 0 {
			kinds[path] = served{GroupVersionKind: gvk, resource: plural.Resource, typed: true}
		}
	}
	return kinds
})

// discovery is what the server serves. It is asked once, and only if a
// resource is wanted that is not known beforehand.
type discovery struct {
	once   sync.Once
	kinds  map[string]served // by Document path
	broken map[string]string // API groups whose server doesn't answer, with what is known of why
	err    error
	mu     sync.Mutex
	gone   map[string]bool // resources that were asked for and are not served
}

// absent reports whether the resource was asked for and is not served.
func (d *discovery) absent(resource string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.gone[resource]
}

// errNotServed says that the server has no such resource.
var errNotServed = errors.New("not served")

// find asks the server for a resource. It fails with errNotServed if there is
// no such resource, with a Gap if that can't be told.
func (d *discovery) find(ctx context.Context, c *Cluster, doc probes.Document) (served, error) {
	d.once.Do(func() { d.err = d.read(ctx, c) })
	if d.err != nil {
		return served{}, gap(ctx, doc, d.err)
	}
	if kind, ok := d.kinds[doc.Path]; ok {
		return kind, nil
	}
	_, group, _ := strings.Cut(doc.Path, ".")
	if why, ok := d.broken[group]; ok {
		return served{}, &probes.Gap{Document: doc, Reason: probes.Unreadable, Grant: doc.Grant(), Detail: why}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gone == nil {
		d.gone = map[string]bool{}
	}
	d.gone[doc.Path] = true
	return served{}, errNotServed
}

const acceptDiscovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"

func (d *discovery) read(ctx context.Context, c *Cluster) error {
	d.kinds, d.broken = map[string]served{}, map[string]string{}
	for _, root := range []string{"api", "apis"} {
		var groups apidiscoveryv2.APIGroupDiscoveryList
		if err := c.getJSON(ctx, root, acceptDiscovery, &groups); err != nil {
			return err
		}
		if groups.Kind != "APIGroupDiscoveryList" { // a server before 1.27, or a proxy
			return d.readEach(ctx, c)
		}
		for _, g := range groups.Items {
			for _, v := range g.Versions { // the preferred one first
				if v.Freshness == apidiscoveryv2.DiscoveryFreshnessStale {
					d.broken[g.Name] = "the API group " + g.Name + " is registered, but its server does not answer"
				}
				for _, r := range v.Resources {
					if r.ResponseKind != nil {
						d.add(schema.GroupVersionKind{Group: g.Name, Version: v.Version, Kind: r.ResponseKind.Kind}, r.Resource, r.Scope == apidiscoveryv2.ScopeNamespace, slices.Contains(r.Verbs, "list"))
					}
				}
			}
		}
	}
	return nil
}

// readEach asks group by group, as servers before Kubernetes 1.27 want it.
func (d *discovery) readEach(ctx context.Context, c *Cluster) error {
	var groups metav1.APIGroupList
	if err := c.getJSON(ctx, "apis", acceptJSON, &groups); err != nil {
		return err
	}
	groups.Groups = append(groups.Groups, metav1.APIGroup{Versions: []metav1.GroupVersionForDiscovery{{GroupVersion: "v1", Version: "v1"}}})
	for _, g := range groups.Groups {
		slices.SortStableFunc(g.Versions, func(a, b metav1.GroupVersionForDiscovery) int {
			switch g.PreferredVersion.Version {
			case a.Version:
				return -1
			case b.Version:
				return 1
			}
			return 0
		})
		for _, v := range g.Versions {
			root := "apis/" + v.GroupVersion
			if g.Name == "" {
				root = "api/" + v.GroupVersion
			}
			var list metav1.APIResourceList
			if err := c.getJSON(ctx, root, acceptJSON, &list); err != nil {
				if ctx.Err() != nil {
					return err
				}
				d.broken[g.Name] = "the API group " + g.Name + " is registered, but can't be read: " + err.Error()
				continue
			}
			for _, r := range list.APIResources {
				if !strings.Contains(r.Name, "/") {
					d.add(schema.GroupVersionKind{Group: g.Name, Version: v.Version, Kind: r.Kind}, r.Name, r.Namespaced, slices.Contains(r.Verbs, "list"))
				}
			}
		}
	}
	return nil
}

// add files a resource; the version that came first stays, unless client-go
// has a type for this one only.
func (d *discovery) add(gvk schema.GroupVersionKind, resource string, namespaced, lists bool) {
	if !lists {
		return
	}
	path := schema.GroupResource{Group: gvk.Group, Resource: resource}.String()
	typed := types().Recognizes(gvk)
	if old, ok := d.kinds[path]; ok && (old.typed || !typed) {
		return
	}
	d.kinds[path] = served{GroupVersionKind: gvk, resource: resource, namespaced: namespaced, typed: typed}
}

// getJSON reads one JSON value.
func (c *Cluster) getJSON(ctx context.Context, path string, accept string, into any) error {
	return again(ctx, func() (bool, error) { return false, c.getJSONOnce(ctx, path, accept, into) })
}

func (c *Cluster) getJSONOnce(ctx context.Context, path, accept string, into any) error {
	response, err := c.get(ctx, path, nil, accept)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

// Contact talks to the server for the first time. Its error says in one line
// what is wrong and what to do; it isn't tried twice, for somebody waits.
func (c *Cluster) Contact(ctx context.Context) error {
	var v struct{ GitVersion string }
	if err := c.getJSONOnce(ctx, "version", acceptJSON, &v); err != nil {
		var status *statusError
		if errors.As(err, &status) && status.code == http.StatusForbidden {
			return nil // some servers keep the version to themselves
		}
		return explain(err, c.base.String())
	}
	c.version = v.GitVersion
	return nil
}
