package diagnose

import (
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// A kindOf is a kind of object, the names that kubectl has for it, and where
// its objects are listed.
type kindOf struct {
	kind  string
	names []string
	probe probes.Any
	list  func(*probes.Facts) ([]metav1.Object, error)
}

// findable are the kinds that `explain` takes, each with the names that
// kubectl has for it.
var findable = []kindOf{
	{"Pod", []string{"po"}, probes.Pods, func(f *probes.Facts) ([]metav1.Object, error) {
		pods, err := probes.Pods.Of(f)
		if err != nil {
			return nil, err
		}
		return asObjects(pods.All()), nil
	}},
	{"Deployment", []string{"deploy"}, probes.Deployments, objectsOf(probes.Deployments)},
	{"ReplicaSet", []string{"rs"}, probes.ReplicaSets, objectsOf(probes.ReplicaSets)},
	{"StatefulSet", []string{"sts"}, probes.StatefulSets, objectsOf(probes.StatefulSets)},
	{"DaemonSet", []string{"ds"}, probes.DaemonSets, objectsOf(probes.DaemonSets)},
	{"Job", nil, probes.Jobs, objectsOf(probes.Jobs)},
	{"CronJob", []string{"cj"}, probes.CronJobs, objectsOf(probes.CronJobs)},
	{"Node", []string{"no"}, probes.Nodes, objectsOf(probes.Nodes)},
	{"Namespace", []string{"ns"}, probes.Namespaces, objectsOf(probes.Namespaces)},
	{"Service", []string{"svc"}, probes.Services, objectsOf(probes.Services)},
	{"PersistentVolumeClaim", []string{"pvc"}, probes.Claims, objectsOf(probes.Claims)},
	{"Ingress", []string{"ing"}, probes.Ingresses, objectsOf(probes.Ingresses)},
	{"HorizontalPodAutoscaler", []string{"hpa"}, probes.Autoscalers, objectsOf(probes.Autoscalers)},
	{"NodePool", nil, probes.NodePools, objectsOf(probes.NodePools)},
	{"NodeClaim", nil, probes.NodeClaims, objectsOf(probes.NodeClaims)},
	{"EC2NodeClass", []string{"ec2nc"}, probes.EC2NodeClasses, objectsOf(probes.EC2NodeClasses)},
	{"Application", []string{"app"}, probes.Applications, objectsOf(probes.Applications)},
	{"ExternalSecret", []string{"es"}, probes.ExternalSecrets, objectsOf(probes.ExternalSecrets)},
	{"ConfigMap", []string{"cm"}, probes.ConfigMaps, objectsOf(probes.ConfigMaps)},
	{"NetworkPolicy", []string{"netpol"}, probes.NetworkPolicies, objectsOf(probes.NetworkPolicies)},
}

func objectsOf[T any](p *probes.Probe[*probes.List[T]]) func(*probes.Facts) ([]metav1.Object, error) {
	return func(f *probes.Facts) ([]metav1.Object, error) {
		list, err := p.Of(f)
		if err != nil {
			return nil, err
		}
		return asObjects(list.All()), nil
	}
}

func asObjects[T any](list []*T) []metav1.Object {
	objects := make([]metav1.Object, len(list))
	for i, o := range list {
		objects[i] = any(o).(metav1.Object)
	}
	return objects
}

// Find is the object that a user means: any kubectl spelling of the kind, in
// the namespace or, if that is empty, in whichever one has it. The error says
// what was looked for and which names are near.
func Find(ctx context.Context, facts *probes.Facts, kind, namespace, name string) (Ref, error) {
	want := strings.ToLower(kind)
	var kinds []string
	for _, k := range findable {
		lower := strings.ToLower(k.kind)
		kinds = append(kinds, lower)
		plurals := []string{lower, lower + "s", lower + "es", strings.TrimSuffix(lower, "y") + "ies"}
		if !slices.Contains(append(plurals, k.names...), want) {
			continue
		}
		facts.Gather(ctx, k.probe)
		objects, err := k.list(facts)
		if err != nil {
			return Ref{}, fmt.Errorf("looking for %s/%s: %w", want, name, err)
		}
		return pick(k.kind, namespace, name, objects)
	}
	return Ref{}, fmt.Errorf("can't explain a %q; the kinds are %s", kind, strings.Join(kinds, ", "))
}

func pick(kind, namespace, name string, objects []metav1.Object) (Ref, error) {
	var found []Ref
	var near []string
	for _, o := range objects {
		r := Ref{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName()}
		switch {
		case namespace != "" && r.Namespace != "" && r.Namespace != namespace:
		case r.Name == name:
			found = append(found, r)
		case len(near) < 3 && (strings.Contains(r.Name, name) || strings.Contains(name, r.Name)):
			near = append(near, r.String())
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return Ref{}, fmt.Errorf("%s/%s is in %d namespaces (%s, %s …): say which with -n", strings.ToLower(kind), name, len(found), found[0].Namespace, found[1].Namespace)
	}
	where := ""
	if namespace != "" {
		where = " in namespace " + namespace
	}
	hint := ""
	if len(near) > 0 {
		hint = "; near: " + strings.Join(near, ", ")
	}
	return Ref{}, fmt.Errorf("no %s named %q%s%s", kind, name, where, hint)
}
