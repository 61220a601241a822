//go:build controlplane

package live

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"github.com/pposiraegi/ppodoctor/probes"
)

// generate grows a captured healthy cluster to a size: nodes and pods are
// copies of its own, in Deployments of perDeployment pods with a Service each.
// Of the copies every crashing-th percent crash.
type generate struct{ nodes, pods, crashing int }

const perDeployment = 50

type object = map[string]any

// into stores the grown cluster; the captured one must be loaded already.
func (g generate) into(p *controlPlane, s *probes.Snapshot) {
	node := first(p, s, "nodes", func(o object) bool { return at(o, "metadata", "labels", "karpenter.sh/nodepool") != nil })
	pod := first(p, s, "pods", func(o object) bool {
		return ownerKind(o) == "ReplicaSet" && at(o, "metadata", "namespace") != "kube-system" && at(o, "status", "phase") == "Running"
	})
	namespace := at(pod, "metadata", "namespace").(string)
	set := first(p, s, "replicasets.apps", func(o object) bool { return at(o, "metadata", "name") == ownerName(pod) })
	deployment := first(p, s, "deployments.apps", func(o object) bool { return at(o, "metadata", "name") == ownerName(set) })

	stored := map[string][]byte{}
	put := func(resource string, o object) {
		key := etcdPrefix(resource)
		if ns, _ := at(o, "metadata", "namespace").(string); ns != "" {
			key += ns + "/"
		}
		data, err := json.Marshal(o)
		must(err)
		stored[key+at(o, "metadata", "name").(string)] = data
		if len(stored) == 2000 {
			p.store(stored)
			clear(stored)
		}
	}
	nodeName := func(i int) string {
		return fmt.Sprintf("ip-10-%d-%d-%d.eu-west-1.compute.internal", 128+i/65000, i/250%256, i%250+2)
	}
	for i := range g.nodes {
		o := copyOf(node)
		name := nodeName(i)
		identify(o, "", name, i)
		at(o, "metadata", "labels").(object)["kubernetes.io/hostname"] = name
		at(o, "spec").(object)["providerID"] = fmt.Sprintf("aws:///eu-west-1a/i-%017x", i)
		for _, address := range at(o, "status", "addresses").([]any) {
			if a := address.(object); a["type"] == "InternalIP" {
				a["address"] = fmt.Sprintf("10.%d.%d.%d", 128+i/65000, i/250%256, i%250+2)
			} else {
				a["address"] = name
			}
		}
		put("nodes", o)
		lease := object{
			"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": object{},
			"spec": object{"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": s.Now().UTC().Format("2006-01-02T15:04:05.000000Z")},
		}
		identify(lease, "kube-node-lease", name, i)
		put("leases.coordination.k8s.io", lease)
	}
	hash := at(pod, "metadata", "labels", "pod-template-hash").(string)
	for d := range (g.pods + perDeployment - 1) / perDeployment {
		app := fmt.Sprintf("app-%04d", d)
		n := min(perDeployment, g.pods-d*perDeployment)
		rename := func(o object, name string, i int) object {
			identify(o, namespace, name, i)
			labels, _ := at(o, "metadata", "labels").(object)
			for k := range labels {
				if k != "pod-template-hash" {
					labels[k] = app
				}
			}
			return o
		}
		dep := rename(copyOf(deployment), app, d)
		scale(dep, n)
		put("deployments.apps", dep)
		rs := rename(copyOf(set), app+"-"+hash, d)
		own(rs, "Deployment", app)
		scale(rs, n)
		put("replicasets.apps", rs)
		for i := range n {
			k := d*perDeployment + i
			o := rename(copyOf(pod), fmt.Sprintf("%s-%s-%05x", app, hash, k), k)
			own(o, "ReplicaSet", app+"-"+hash)
			at(o, "spec").(object)["nodeName"] = nodeName(k % g.nodes)
			ip := fmt.Sprintf("10.%d.%d.%d", k/62500, k/250%250, k%250+2)
			status := at(o, "status").(object)
			status["podIP"], status["podIPs"] = ip, []any{object{"ip": ip}}
			if g.crashing > 0 && k%100 < g.crashing {
				crash(status, s.Now().UTC().Format("2006-01-02T15:04:05Z"))
			}
			put("pods", o)
		}
	}
	p.store(stored)
	p.wait("the grown cluster", func() bool { return p.count("pods") >= g.pods && p.count("nodes") >= g.nodes })
}

func crash(status object, now string) {
	for _, c := range status["containerStatuses"].([]any) {
		c := c.(object)
		c["ready"], c["restartCount"] = false, 9
		c["state"] = object{"waiting": object{"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}}
		c["lastState"] = object{"terminated": object{"exitCode": 1, "reason": "Error", "startedAt": now, "finishedAt": now}}
	}
	for _, c := range status["conditions"].([]any) {
		if c := c.(object); c["type"] == "Ready" || c["type"] == "ContainersReady" {
			c["status"], c["reason"] = "False", "ContainersNotReady"
		}
	}
}

func first(p *controlPlane, s *probes.Snapshot, path string, fits func(object) bool) object {
	for item, err := range probes.Items[object](p.t.Context(), s, probes.Document{Path: path}) {
		if err != nil {
			p.t.Fatal(err)
		}
		if fits(*item) {
			return *item
		}
	}
	p.t.Fatalf("the captured cluster has none of the %s that it is to be grown from", path)
	return nil
}

func at(o object, path ...string) any {
	var value any = o
	for _, k := range path {
		m, ok := value.(object)
		if !ok {
			return nil
		}
		value = m[k]
	}
	return value
}

func ownerKind(o object) any {
	owners, _ := at(o, "metadata", "ownerReferences").([]any)
	if len(owners) == 0 {
		return nil
	}
	return owners[0].(object)["kind"]
}

func ownerName(o object) string {
	return at(o, "metadata", "ownerReferences").([]any)[0].(object)["name"].(string)
}

func own(o object, kind, name string) {
	owner := maps.Clone(at(o, "metadata", "ownerReferences").([]any)[0].(object))
	owner["kind"], owner["name"] = kind, name
	at(o, "metadata").(object)["ownerReferences"] = []any{owner}
}

func identify(o object, namespace, name string, i int) {
	m := at(o, "metadata").(object)
	m["name"], m["uid"] = name, fmt.Sprintf("%08x-%04x-4000-8000-%012x", len(name), len(namespace), i)
	if namespace != "" {
		m["namespace"] = namespace
	}
	delete(m, "resourceVersion")
	if m["generateName"] != nil {
		m["generateName"] = name[:strings.LastIndex(name, "-")+1]
	}
}

func scale(o object, n int) {
	at(o, "spec").(object)["replicas"] = n
	for _, k := range []string{"replicas", "readyReplicas", "availableReplicas", "updatedReplicas", "fullyLabeledReplicas"} {
		if status := at(o, "status").(object); status[k] != nil {
			status[k] = n
		}
	}
	if selector, ok := at(o, "spec", "selector", "matchLabels").(object); ok {
		for k := range selector {
			if k != "pod-template-hash" {
				selector[k] = strings.TrimSuffix(at(o, "metadata", "name").(string), "-"+fmt.Sprint(at(o, "metadata", "labels", "pod-template-hash")))
			}
		}
	}
	if labels, ok := at(o, "spec", "template", "metadata", "labels").(object); ok {
		for k := range labels {
			if selector, ok := at(o, "spec", "selector", "matchLabels").(object); ok && selector[k] != nil {
				labels[k] = selector[k]
			}
		}
	}
}

func copyOf(o object) object {
	data, err := json.Marshal(o)
	must(err)
	var c object
	must(json.Unmarshal(data, &c))
	return c
}
