package diagnose

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// settingMissing: the program lacks a setting.
var settingMissing = fromLog("setting-missing", "does the log say that a setting is missing, which the container does not have?", ailing, settingNeeds,
	func(facts *probes.Facts, f *logFault) blame {
		key := f.failure.Captures["key"]
		list, err := settings(facts, f.container)
		b := blame{vars: map[string]string{"hint": ""}}
		if key == "" {
			b.vars["key"] = "a setting"
			return b
		}
		if err != nil {
			b.unless = CantTell(err, f.evidence())
			return b
		}
		var names []string
		for _, s := range list {
			names = append(names, s.name)
			if s.name != key {
				continue
			}
			switch {
			case s.secret || s.value != "":
				b.unless = Answered(false, SawObject("pods", f.container.pod.Namespace, f.container.pod.Name, "%s is set", s.name))
			default:
				b.vars["hint"] = fmt.Sprintf(" It is set by %s, and is empty.", s.where())
				if s.from.Kind != "" {
					b.subject = s.from
				}
			}
			return b
		}
		b.found = []Evidence{SawObject("pods", f.container.pod.Namespace, f.container.pod.Name, "container %s has no environment variable %s", f.container.spec.Name, key)}
		if near := nearest(key, names); near != "" {
			i := slices.IndexFunc(list, func(s setting) bool { return s.name == near })
			b.vars["hint"] = fmt.Sprintf(" It has %s (%s).", near, list[i].where())
			if from := list[i].from; from.Kind == "ConfigMap" && list[i].key == near {
				b.subject = from // the whole ConfigMap comes in: there the name is
			}
		}
		return b
	}, "config-missing")

// configFile finds the path of a configuration file in a line.
var configFile = regexp.MustCompile(`(/[\w.@-]+)+/?[\w.-]+\.(?:ya?ml|json|toml|conf|cfg|ini|properties|xml|env|hcl|cnf)\b`)

// configInvalid: the program refuses its configuration.
var configInvalid = fromLog("config-invalid", "does the program say that its configuration is wrong?", ailing, settingNeeds,
	func(facts *probes.Facts, f *logFault) blame {
		b := blame{vars: map[string]string{"place": "its configuration", "hint": ""}}
		file := f.failure.Captures["file"]
		if !strings.HasPrefix(file, "/") {
			file = configFile.FindString(f.failure.Text)
		}
		mounted := mountedSettings(f.container)
		pick := func(m mountedConfig) blame {
			b.subject = m.object
			b.vars["place"] = fmt.Sprintf("%s %s, mounted at %s", m.object.Kind, m.object.Name, m.mount.MountPath)
			b.found = append(b.found, SawObject("pods", f.container.pod.Namespace, f.container.pod.Name, "container %s: %s %s is mounted at %s", f.container.spec.Name, m.object.Kind, m.object.Name, m.mount.MountPath))
			return b
		}
		if file != "" {
			if v, _ := mountOf(f.container, file); v != nil {
				for _, m := range mounted {
					if m.mount.Name == v.Name && (m.mount.MountPath == file || strings.HasPrefix(file, strings.TrimSuffix(m.mount.MountPath, "/")+"/")) {
						return pick(m)
					}
				}
			}
		}
		list, err := settings(facts, f.container)
		if err == nil && len(mounted) > 0 {
			_, err = keysOf(mounted[0].object.Kind, facts)
		}
		if err != nil {
			b.unless = CantTell(err, f.evidence())
			return b
		}
		for _, name := range []string{"key", "reason", "url", "file"} {
			value := strings.TrimLeft(strings.Trim(f.failure.Captures[name], "'\" "), "-")
			if s := holder(list, value); s != nil {
				b.vars["place"] = s.where()
				if s.from.Kind != "" {
					b.subject = s.from
				}
				return b
			}
		}
		// A name of the file without its path, or the only file there is.
		for _, m := range mounted {
			keys, _ := keysOf(m.object.Kind, facts)
			for _, k := range keys[m.object] {
				if strings.Contains(f.failure.Text, k) {
					return pick(m)
				}
			}
		}
		if files := slices.DeleteFunc(mounted, func(m mountedConfig) bool { return m.object.Kind != "ConfigMap" }); len(files) == 1 {
			return pick(files[0])
		}
		return b
	}, "config-invalid", "loki-config-invalid", "datasource-conflict", "kube-field-unknown")

// fileMissing: a file that the program needs is not there.
var fileMissing = fromLog("file-missing", "does the program say that a file is not there?", ailing, settingNeeds,
	func(facts *probes.Facts, f *logFault) blame {
		file := f.failure.Captures["file"]
		b := blame{vars: map[string]string{"file": file, "hint": ""}}
		if file == "" {
			b.vars["file"] = "a file"
			return b
		}
		v, m := mountOf(f.container, file)
		if v == nil {
			b.vars["hint"] = fmt.Sprintf(" No volume is mounted there, so it should be in image %s, or a volume's mountPath is wrong.", f.container.spec.Image)
			for _, o := range mountedSettings(f.container) {
				keys, _ := keysOf(o.object.Kind, facts)
				name := file[strings.LastIndex(file, "/")+1:]
				if slices.Contains(keys[o.object], name) {
					b.vars["hint"] = fmt.Sprintf(" %s %s has %s, but is mounted at %s.", o.object.Kind, o.object.Name, name, o.mount.MountPath)
				}
			}
			return b
		}
		b.vars["hint"] = fmt.Sprintf(" Volume %s is mounted at %s.", v.Name, m.MountPath)
		for _, r := range configOf(*v) {
			object := Ref{Kind: r.kind, Namespace: f.container.pod.Namespace, Name: r.name}
			keys, err := keysOf(r.kind, facts)
			if err != nil {
				b.unless = CantTell(err, f.evidence())
				return b
			}
			name := file[strings.LastIndex(file, "/")+1:]
			b.vars["hint"] = fmt.Sprintf(" %s %s, mounted at %s, has the keys %s.", r.kind, r.name, m.MountPath, listed(keys[object]))
			b.found = append(b.found, SawObject(resourceOfKind(r.kind), object.Namespace, object.Name, "%s %s has the keys %s", r.kind, r.name, listed(keys[object])))
			if !slices.Contains(keys[object], name) {
				b.subject = object
			}
		}
		return b
	}, "file-missing")

// programMissing: the program, or a part of it, is not in the image.
var programMissing = fromLog("program-incomplete", "does the log say that a command, module or library is not in the image?", ailing, nil,
	func(_ *probes.Facts, f *logFault) blame {
		what := f.failure.Captures["module"]
		if what == "" {
			what = f.failure.Captures["command"]
		}
		if what == "" {
			what = "a part of the program"
		}
		b := blame{vars: map[string]string{"what": what, "hint": ""}}
		line := strings.Join(slices.Concat(f.container.spec.Command, f.container.spec.Args), " ")
		if strings.Contains(line, what) {
			b.vars["hint"] = fmt.Sprintf(" The workload's command line names it: %s.", line)
			b.found = append(b.found, SawObject("pods", f.container.pod.Namespace, f.container.pod.Name, "container %s runs %q", f.container.spec.Name, line))
		}
		return b
	}, "module-missing", "command-missing")

// imageOfOtherArchitecture: the program is for another processor.
var imageOfOtherArchitecture = fromLog("image-of-other-architecture", "can the node's processor not run the program, while the image is whole?", starting, []probes.Any{probes.Nodes},
	func(facts *probes.Facts, f *logFault) blame {
		c := f.container
		b := blame{vars: map[string]string{"arch": "the node's", "hint": ""}}
		nodes, err := probes.Nodes.Of(facts)
		if err != nil {
			b.unless = CantTell(err, f.evidence())
			return b
		}
		n := nodes.Get("", c.pod.Spec.NodeName)
		if n == nil {
			return b
		}
		b.vars["arch"] = nodeArch(n)
		b.found = append(b.found, SawObject("nodes", "", n.Name, "node %s has architecture %s", n.Name, nodeArch(n)))
		if p, other := runsElsewhere(facts, nodes, c, n); p != nil {
			if nodeArch(other) == nodeArch(n) {
				b.unless = Answered(false, SawObject("pods", p.Namespace, p.Name, "pod %s runs the same image on node %s, which is %s too", p.Name, other.Name, nodeArch(other)))
				return b
			}
			b.vars["hint"] = fmt.Sprintf(" The same image runs on node %s, which is %s.", other.Name, nodeArch(other))
			b.found = append(b.found, SawObject("pods", p.Namespace, p.Name, "pod %s runs the same image on node %s, which is %s", p.Name, other.Name, nodeArch(other)))
		}
		return b
	}, "exec-format")

// runsElsewhere is a pod that runs the same image content on another node.
func runsElsewhere(facts *probes.Facts, nodes *probes.List[corev1.Node], c container, n *corev1.Node) (*corev1.Pod, *corev1.Node) {
	pods, err := probes.Pods.Of(facts)
	if err != nil {
		return nil, nil
	}
	for _, p := range pods.All() {
		other := nodes.Get("", p.Spec.NodeName)
		if other == nil || other == n {
			continue
		}
		for _, o := range containersOf(p) {
			same := o.spec.Image == c.spec.Image && (o.status.ImageID == c.status.ImageID || c.status.ImageID == "")
			if same && (o.status.Ready || o.status.State.Running != nil) {
				return p, other
			}
		}
	}
	return nil, nil
}

// imageDamagedOnNode: the image runs on other nodes of the same architecture,
// so the copy on this node is damaged.
var imageDamagedOnNode = fromLog("image-damaged-on-node", "does the same image run on another node of the same architecture?", starting, []probes.Any{probes.Nodes},
	func(facts *probes.Facts, f *logFault) blame {
		node := f.container.pod.Spec.NodeName
		b := blame{subject: Ref{Kind: "Node", Name: node}, vars: map[string]string{"arch": "", "other": ""}}
		nodes, err := probes.Nodes.Of(facts)
		if err != nil {
			b.unless = CantTell(err, f.evidence())
			return b
		}
		n := nodes.Get("", node)
		p, other := runsElsewhere(facts, nodes, f.container, n)
		if n == nil || p == nil || nodeArch(other) != nodeArch(n) {
			b.unless = Answered(false)
			return b
		}
		b.vars["arch"], b.vars["other"] = nodeArch(n), other.Name
		b.found = append(b.found, SawObject("pods", p.Namespace, p.Name, "pod %s runs the same image on node %s, which is %s too", p.Name, other.Name, nodeArch(other)))
		return b
	}, "exec-format")

// portInUse: the port is taken.
var portInUse = fromLog("port-in-use", "does the program say that its port is taken?", ailing, nil,
	func(facts *probes.Facts, f *logFault) blame {
		c := f.container
		port := f.failure.Captures["port"]
		if port == "" {
			if i := strings.LastIndex(f.failure.Captures["addr"], ":"); i >= 0 {
				port = f.failure.Captures["addr"][i+1:]
			}
		}
		b := blame{vars: map[string]string{"port": port, "hint": ""}}
		if port == "" {
			b.vars["port"] = "its port"
		}
		// The containers of a pod share one network.
		for _, o := range containersOf(c.pod) {
			if o.spec.Name == c.spec.Name {
				continue
			}
			for _, p := range o.spec.Ports {
				if fmt.Sprint(p.ContainerPort) == port {
					b.vars["hint"] = fmt.Sprintf(" Container %s of the same pod has port %s too; the containers of a pod share one network.", o.spec.Name, port)
					b.found = append(b.found, SawObject("pods", c.pod.Namespace, c.pod.Name, "container %s of pod %s has containerPort %s as well", o.spec.Name, c.pod.Name, port))
					return b
				}
			}
		}
		if others := slices.DeleteFunc(containersOf(c.pod), func(o container) bool { return o.init || o.spec.Name == c.spec.Name }); len(others) > 0 && !c.pod.Spec.HostNetwork {
			b.vars["hint"] = fmt.Sprintf(" The pod's other container %s shares its network.", others[0].spec.Name)
		}
		if c.pod.Spec.HostNetwork {
			b.vars["hint"] = fmt.Sprintf(" The pod has hostNetwork, so it shares the ports of node %s.", c.pod.Spec.NodeName)
			b.found = append(b.found, SawObject("pods", c.pod.Namespace, c.pod.Name, "pod %s has hostNetwork: true", c.pod.Name))
			pods, err := probes.Pods.Of(facts)
			if err != nil {
				return b
			}
			for _, p := range pods.On(c.pod.Spec.NodeName) {
				if p == c.pod || !p.Spec.HostNetwork || probes.Finished(p) {
					continue
				}
				for _, o := range p.Spec.Containers {
					for _, q := range o.Ports {
						if fmt.Sprint(q.ContainerPort) == port {
							b.vars["hint"] = fmt.Sprintf(" Pod %s/%s on node %s has hostNetwork and port %s too.", p.Namespace, p.Name, p.Spec.NodeName, port)
							b.found = append(b.found, SawObject("pods", p.Namespace, p.Name, "pod %s/%s has hostNetwork and port %s", p.Namespace, p.Name, port))
						}
					}
				}
			}
		}
		return b
	}, "port-in-use")

// portPrivileged: a port below 1024 for a user who is not root.
var portPrivileged = fromLog("port-privileged", "may the container's user not bind the port?", ailing, nil,
	func(_ *probes.Facts, f *logFault) blame {
		user := "a user that is not root"
		if u := runAsUser(f.container); u != nil {
			user = fmt.Sprintf("user %d", *u)
		}
		return blame{vars: map[string]string{"user": user}}
	}, "port-privileged")

// tokenMissing: the service account's token is not mounted.
var tokenMissing = fromLog("service-account-token-not-mounted", "does the program look for the service account's token, which is not mounted?", ailing, []probes.Any{probes.ServiceAccounts},
	func(facts *probes.Facts, f *logFault) blame {
		p := f.container.pod
		b := blame{vars: map[string]string{"account": p.Spec.ServiceAccountName, "hint": ""}}
		if a := p.Spec.AutomountServiceAccountToken; a != nil {
			if !*a {
				b.found = append(b.found, SawObject("pods", p.Namespace, p.Name, "pod %s has automountServiceAccountToken: false", p.Name))
				b.vars["hint"] = " The pod has automountServiceAccountToken: false."
			}
			return b
		}
		accounts, err := probes.ServiceAccounts.Of(facts)
		if err != nil {
			b.unless = CantTell(err, f.evidence())
			return b
		}
		if sa := accounts.Get(p.Namespace, p.Spec.ServiceAccountName); sa != nil && sa.AutomountServiceAccountToken != nil && !*sa.AutomountServiceAccountToken {
			b.subject = Ref{Kind: "ServiceAccount", Namespace: sa.Namespace, Name: sa.Name}
			b.vars["hint"] = fmt.Sprintf(" Service account %s has automountServiceAccountToken: false.", sa.Name)
			b.found = append(b.found, SawObject("serviceaccounts", sa.Namespace, sa.Name, "service account %s has automountServiceAccountToken: false", sa.Name))
		}
		return b
	}, "token-missing")

// tokenLifetime is how long the API server takes an expired token from
// clients that don't read it again; EKS extends it to 90 days, others to a year.
// Source: docs.aws.amazon.com/eks service-accounts; kubernetes --service-account-extend-token-expiration.
const tokenLifetime = 80 * 24 * time.Hour

// tokenExpired: the program has kept the token with which it began.
var tokenExpired = fromLog("service-account-token-expired", "has the program run longer than its token lives, and does the API server not know it any more?", ailing, nil,
	func(facts *probes.Facts, f *logFault) blame {
		c := f.container
		b := blame{vars: map[string]string{"days": ""}}
		r := c.status.State.Running
		if r == nil || facts.Source().Now().Sub(r.StartedAt.Time) < tokenLifetime {
			b.unless = Answered(false)
			return b
		}
		days := fmt.Sprint(int(facts.Source().Now().Sub(r.StartedAt.Time).Hours() / 24))
		b.vars["days"] = days
		b.found = append(b.found, SawObject("pods", c.pod.Namespace, c.pod.Name, "container %s has run for %s days", c.spec.Name, days))
		return b
	}, "kube-unauthorized")

// kernelLimit: a limit or setting of the node is too low for the program.
var kernelLimit = fromLog("kernel-limit-too-low", "does the program say that a limit of the kernel is used up or too low?", ailing, nil, nil,
	"sysctl-too-low", "inotify-limit", "file-limit", "process-limit")

var programRules = []*Rule{
	settingMissing, configInvalid, fileMissing, programMissing, imageOfOtherArchitecture, imageDamagedOnNode, portInUse, portPrivileged,
	tokenMissing, tokenExpired, kernelLimit,
}
