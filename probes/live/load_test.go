//go:build controlplane

package live

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"sigs.k8s.io/yaml"

	"github.com/pposiraegi/ppodoctor/probes"
)

// etcdNames are the resources that the API server keeps under another name.
// Source: k8s.io/kubernetes pkg/kubeapiserver/default_storage_factory_builder.go.
var etcdNames = map[string]string{
	"nodes": "minions", "services": "services/specs", "endpoints": "services/endpoints",
	"ingresses.networking.k8s.io": "ingress", "replicationcontrollers": "controllers",
}

// etcdPrefix is where the API server keeps the objects of a resource.
func etcdPrefix(resource string) string {
	name, ok := etcdNames[resource]
	if !ok {
		var group string
		name, group, _ = strings.Cut(resource, ".")
		if _, known := builtIn()[resource]; !known || group == "apiextensions.k8s.io" {
			name = group + "/" + name
		}
	}
	return "/registry/" + name + "/"
}

// load puts the objects of a snapshot into the cluster, and its logs into the
// kubelet. It returns once the API server serves them.
func (p *controlPlane) load(s *probes.Snapshot) {
	p.t.Helper()
	p.kubelet.logs = func(namespace, pod, container string, previous bool) (io.ReadCloser, error) {
		return s.Open(p.t.Context(), probes.Log(namespace, pod, container, previous))
	}
	stored, counts, kinds := map[string][]byte{}, map[string]int{}, map[string]*custom{}
	defined := map[string]string{} // kind and group → the resource's true name
	for item, err := range probes.Items[custom](p.t.Context(), s, probes.Document{Path: crds}) {
		if err == nil {
			kinds[item.Metadata.Name] = item
			kind, _ := item.Spec["names"].(map[string]any)["kind"].(string)
			defined[kind+"."+item.Spec["group"].(string)] = item.Metadata.Name
		}
	}
	for _, path := range s.Documents() {
		doc := probes.Document{Path: path}
		if doc.IsAWS() || strings.HasPrefix(path, "logs/") || path == crds || path == "secrets" || path == apiServices {
			continue
		}
		for item, err := range probes.Items[map[string]any](p.t.Context(), s, doc) {
			if err != nil {
				p.t.Fatal(err)
			}
			object := *item
			group, _, _ := strings.Cut(object["apiVersion"].(string), "/")
			if name, ok := defined[object["kind"].(string)+"."+group]; ok {
				path = name
			}
			if path == "nodes" {
				p.pointAtKubelet(object)
			}
			metadata := object["metadata"].(map[string]any)
			delete(metadata, "resourceVersion")
			if _, ok := metadata["uid"]; !ok {
				metadata["uid"] = fmt.Sprintf("00000000-0000-4000-8000-%012x", len(stored))
			}
			key := etcdPrefix(path)
			if namespace, _ := metadata["namespace"].(string); namespace != "" {
				key += namespace + "/"
			}
			data, err := json.Marshal(object)
			must(err)
			stored[key+metadata["name"].(string)] = data
			counts[path]++
			if _, ok := builtIn()[path]; !ok && kinds[path] == nil {
				kinds[path] = customFrom(path, object)
			}
		}
	}
	for _, path := range p.loaded {
		p.remove(etcdPrefix(path))
	}
	for _, path := range p.loaded {
		if strings.HasSuffix(path, "webhookconfigurations.admissionregistration.k8s.io") { // they would be called
			p.wait("an empty "+path, func() bool { return p.count(path) == 0 })
		}
	}
	p.loaded = slices.Sorted(maps.Keys(counts))
	p.serve(kinds)
	p.store(stored)
	for path, n := range counts {
		p.wait(path, func() bool { return p.count(path) >= n })
	}
}

// apiServices are the one kind that is not loaded: the API server keeps its
// own, and would send requests to what the loaded ones name.
const apiServices = "apiservices.apiregistration.k8s.io"

const crds = "customresourcedefinitions.apiextensions.k8s.io"

// pointAtKubelet gives a node one more address, the only one that this API
// server uses, where the test's kubelet answers.
func (p *controlPlane) pointAtKubelet(node map[string]any) {
	status, ok := node["status"].(map[string]any)
	if !ok {
		status = map[string]any{}
		node["status"] = status
	}
	addresses, _ := status["addresses"].([]any)
	status["addresses"] = append(addresses, map[string]any{"type": "ExternalDNS", "address": "127.0.0.1"})
	status["daemonEndpoints"] = map[string]any{"kubeletEndpoint": map[string]any{"Port": p.kubelet.port}}
}

// count is how many objects the API server serves.
func (p *controlPlane) count(path string) int {
	c, err := NewCluster(p.config("admin"), Options{})
	must(err)
	n := 0
	for _, err := range probes.Items[countable](p.t.Context(), c, probes.Document{Path: path}) {
		if err != nil {
			return -1
		}
		n++
	}
	return n
}

type countable struct{}

// serve makes the API server serve the custom resources of a snapshot: those
// that it defines, and those that it only holds objects of.
func (p *controlPlane) serve(kinds map[string]*custom) {
	p.t.Helper()
	const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"
	specs := map[string]string{}
	for name, c := range kinds {
		c.APIVersion, c.Kind = "apiextensions.k8s.io/v1", "CustomResourceDefinition"
		for _, v := range c.Spec["versions"].([]any) {
			v := v.(map[string]any)
			v["schema"] = schemaOf(name, v["name"].(string))
		}
		delete(c.Spec, "conversion")
		if group, _ := c.Spec["group"].(string); strings.HasSuffix(group, ".k8s.io") {
			if c.Metadata.Annotations == nil {
				c.Metadata.Annotations = map[string]string{}
			}
			c.Metadata.Annotations["api-approved.kubernetes.io"] = "unapproved, for a test"
		}
		spec, err := json.Marshal([]any{c.Metadata.Annotations, c.Spec})
		must(err)
		specs[name] = string(spec)
	}
	for name, spec := range p.defined { // of an earlier snapshot
		if specs[name] != spec {
			p.request(http.MethodDelete, definitions+name, nil)
			p.wait("the end of "+name, func() bool { return p.gone(name) })
			delete(p.defined, name)
		}
	}
	var names []string
	for name, spec := range specs {
		if p.defined[name] == "" {
			p.wait("the definition of "+name, func() bool { return p.try(http.MethodPost, definitions, kinds[name]) })
			p.defined[name] = spec
			names = append(names, name)
		}
	}
	for _, name := range names {
		p.wait(name, func() bool { return p.count(name) >= 0 && !p.gone(name) })
	}
}

// schemaOf is the schema of a version of a custom resource: the published one
// of Karpenter and of the Gateway API, so that a field that they don't have is
// pruned as it would be in a cluster. Snapshots leave schemas out, so for
// others there is one that takes everything.
func schemaOf(resource, version string) any {
	if s, ok := publishedSchemas()[resource+"/"+version]; ok {
		return s
	}
	return map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}
}

var publishedSchemas = sync.OnceValue(func() map[string]any {
	schemas := map[string]any{}
	files, err := filepath.Glob("../../diagnose/lint/schemas/*.yaml")
	must(err)
	for _, file := range files {
		data, err := os.ReadFile(file)
		must(err)
		for _, document := range bytes.Split(data, []byte("\n---\n")) {
			var c custom
			must(yaml.Unmarshal(document, &c))
			for _, v := range c.Spec["versions"].([]any) {
				v := v.(map[string]any)
				fields := v["schema"].(map[string]any)["openAPIV3Schema"].(map[string]any)["properties"].(map[string]any)
				fields["status"] = map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true} // is left out of the file
				schemas[c.Metadata.Name+"/"+v["name"].(string)] = v["schema"]
			}
		}
	}
	if len(schemas) == 0 {
		panic("no published schemas")
	}
	return schemas
})

// gone reports whether the API server doesn't serve a resource.
func (p *controlPlane) gone(path string) bool {
	c, err := NewCluster(p.config("admin"), Options{})
	must(err)
	_, err = c.kinds.find(p.t.Context(), c, probes.Document{Path: path})
	return err != nil
}

type custom struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name        string            `json:"name"`
		Annotations map[string]string `json:"annotations,omitempty"`
	} `json:"metadata"`
	Spec map[string]any `json:"spec"`
}

// customFrom is a definition for objects that came without one.
func customFrom(path string, object map[string]any) *custom {
	plural, group, _ := strings.Cut(path, ".")
	_, version, _ := strings.Cut(object["apiVersion"].(string), "/")
	kind := object["kind"].(string)
	c := &custom{}
	c.Metadata.Name = path
	scope := "Cluster"
	if object["metadata"].(map[string]any)["namespace"] != nil {
		scope = "Namespaced"
	}
	c.Spec = map[string]any{
		"group": group, "scope": scope, "names": map[string]any{"plural": plural, "kind": kind},
		"versions": []any{map[string]any{"name": version, "served": true, "storage": true, "subresources": map[string]any{"status": map[string]any{}}}},
	}
	return c
}
