// Package userdata reads what an instance is told when it boots to become a
// node: MIME parts, nodeadm's NodeConfig, shell scripts for the AL2 bootstrap,
// Bottlerocket's TOML. It says what in it keeps the kubelet from starting.
package userdata

import (
	"encoding/base64"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// A Family is the kind of image that reads the user data.
type Family string

// The families.
const (
	AL2          Family = "AL2"
	AL2023       Family = "AL2023"
	Bottlerocket Family = "Bottlerocket"
	Windows      Family = "Windows"
	Unknown      Family = ""
)

// A Cluster is what user data says of the cluster to join; fields that it
// leaves out are empty.
type Cluster struct{ Name, Endpoint, CA, CIDR string }

// A Read is user data taken apart.
type Read struct {
	Text     string
	Family   Family   // that it is written for, by its shape
	Cluster  Cluster  // what it says of the cluster
	Problems []string // what keeps a kubelet from starting, in a sentence each
	Taints   bool     // it registers the taint karpenter.sh/unregistered

	hasConfig bool
}

// Plain is user data as text: launch templates have it in base64.
func Plain(data string) string {
	if decoded, err := base64.StdEncoding.DecodeString(strings.TrimSpace(data)); err == nil && len(decoded) > 0 {
		return string(decoded)
	}
	return data
}

// Parse takes user data apart. merged is whether something else (Karpenter,
// EKS) adds what it leaves out, so that a cluster that it does not name is
// none of its faults.
// Sources: awslabs/amazon-eks-ami nodeadm (NodeConfig API, user data provider);
// bottlerocket.dev settings.kubernetes; RFC 2046.
func Parse(data string, merged bool) *Read {
	r := &Read{Text: Plain(data)}
	text := strings.ReplaceAll(r.Text, "\r\n", "\n")
	switch {
	case strings.TrimSpace(text) == "":
	case multipart.MatchString(text):
		r.parts(text)
	case strings.HasPrefix(strings.TrimSpace(text), "Content-Type:"):
		r.problem("it begins with the header of a MIME part, without the header of the whole (MIME-Version, Content-Type: multipart/mixed; boundary=…)")
	default:
		r.part("", text)
	}
	if r.Family == AL2023 && !merged && r.hasConfig {
		for _, f := range []struct{ name, value string }{{"name", r.Cluster.Name}, {"apiServerEndpoint", r.Cluster.Endpoint}, {"certificateAuthority", r.Cluster.CA}, {"cidr", r.Cluster.CIDR}} {
			if f.value == "" {
				r.problem("NodeConfig has no spec.cluster.%s", f.name)
			}
		}
	}
	r.Taints = strings.Contains(text, "karpenter.sh/unregistered")
	return r
}

func (r *Read) problem(format string, args ...any) {
	if p := fmt.Sprintf(format, args...); !slices.Contains(r.Problems, p) {
		r.Problems = append(r.Problems, p)
	}
}

var (
	multipart = regexp.MustCompile(`(?im)^Content-Type:\s*multipart/`)
	boundary  = regexp.MustCompile(`(?i)boundary="?([^"\s;]+)"?`)
	header    = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9-]*:\s`)
)

// parts splits a MIME document by hand: what Go's reader refuses with one
// error, this says where.
func (r *Read) parts(text string) {
	m := boundary.FindStringSubmatch(text)
	if m == nil {
		r.problem("its header Content-Type: multipart names no boundary")
		return
	}
	mark := "--" + m[1]
	var blocks [][]string
	closed := false
	for _, line := range strings.Split(text, "\n") {
		switch trimmed := strings.TrimRight(line, " \t"); {
		case trimmed == mark+"--":
			closed = true
		case trimmed == mark:
			blocks = append(blocks, nil)
		case strings.HasPrefix(strings.TrimSpace(trimmed), mark) && trimmed != strings.TrimSpace(trimmed):
			r.problem("the boundary %s is indented, so that it is none", mark)
		case len(blocks) > 0 && !closed:
			blocks[len(blocks)-1] = append(blocks[len(blocks)-1], line)
		}
	}
	if len(blocks) == 0 {
		r.problem("it has no part: no line is %s, the boundary that its header names", mark)
		return
	}
	if !closed {
		r.problem("its last boundary %s-- is missing", mark)
	}
	for n, block := range blocks {
		kind := ""
		i := 0
		for ; i < len(block) && strings.TrimSpace(block[i]) != ""; i++ {
			if !header.MatchString(block[i]) && !(i > 0 && strings.HasPrefix(block[i], " ")) {
				break
			}
			if k, ok := strings.CutPrefix(strings.ToLower(block[i]), "content-type:"); ok {
				kind = strings.TrimSpace(strings.SplitN(k, ";", 2)[0])
			}
		}
		if i < len(block) && strings.TrimSpace(block[i]) != "" && i > 0 {
			r.problem("part %d (%s) has no empty line between its headers and its body (%q follows at once): MIME takes the body for headers", n+1, kind, strings.TrimSpace(block[i]))
		}
		r.part(kind, strings.Join(block[min(i, len(block)):], "\n"))
	}
}

var (
	toml      = regexp.MustCompile(`(?m)^\s*\[settings(?:\.[\w."-]+)*\]`)
	nodeShape = regexp.MustCompile(`(?im)^\s*apiVersion:\s*["']?node\.eks\.aws`)
	bootstrap = regexp.MustCompile(`/etc/eks/bootstrap\.sh\s+(?:"|')?(?P<name>[\w${}.-]+)`)
	endpoint  = regexp.MustCompile(`--apiserver-endpoint[= ]+["']?(\S+?)["']?(?:\s|$)`)
	authority = regexp.MustCompile(`--b64-cluster-ca[= ]+["']?(\S+?)["']?(?:\s|$)`)
)

// part reads one part, or user data that has none.
func (r *Read) part(kind, text string) {
	trimmed := strings.TrimSpace(text)
	switch {
	case trimmed == "":
	case kind == "application/node.eks.aws" || nodeShape.MatchString(text) && !strings.HasPrefix(trimmed, "#!"):
		r.Family = AL2023
		r.nodeConfig(text)
	case toml.MatchString(text) && !strings.HasPrefix(trimmed, "#!"):
		r.Family = Bottlerocket
		r.bottlerocket(text)
	case strings.HasPrefix(trimmed, "<powershell>"):
		r.Family = Windows
	default:
		if m := bootstrap.FindStringSubmatch(text); m != nil {
			r.Family = AL2
			if !strings.Contains(m[1], "$") {
				r.Cluster.Name = m[1]
			}
			if e := endpoint.FindStringSubmatch(text); e != nil {
				r.Cluster.Endpoint = e[1]
			}
			if c := authority.FindStringSubmatch(text); c != nil {
				r.Cluster.CA = c[1]
			}
		}
		if kind == "text/x-shellscript" && !strings.HasPrefix(trimmed, "#!") {
			r.problem("a shell part does not begin with #!")
		}
	}
}

// The keys of a NodeConfig, in their one spelling.
var (
	topKeys     = []string{"apiVersion", "kind", "metadata", "spec"}
	specKeys    = []string{"cluster", "kubelet", "containerd", "instance", "featureGates", "hybrid"}
	clusterKeys = []string{"name", "apiServerEndpoint", "certificateAuthority", "cidr", "enableOutpost", "id"}
)

func (r *Read) nodeConfig(text string) {
	var object map[string]any
	if err := yaml.Unmarshal([]byte(text), &object); err != nil {
		r.problem("NodeConfig is no YAML: %v", err)
		return
	}
	r.hasConfig = true
	r.keys("", object, topKeys)
	if v, ok := object["apiVersion"].(string); ok && v != "node.eks.aws/v1alpha1" {
		r.problem("NodeConfig has apiVersion %s; nodeadm knows node.eks.aws/v1alpha1", v)
	}
	if v, ok := object["kind"].(string); ok && v != "NodeConfig" {
		r.problem("it has kind %s, and nodeadm knows NodeConfig", v)
	}
	for _, key := range slices.Concat(specKeys, clusterKeys) {
		if _, ok := object[key]; ok && !slices.Contains(topKeys, key) {
			r.problem("%s stands at the top of NodeConfig and not below spec: it is not indented", key)
		}
	}
	spec, _ := object["spec"].(map[string]any)
	if spec == nil {
		if _, ok := object["spec"]; ok {
			r.problem("spec of NodeConfig is empty: what follows it is not indented")
		}
		return
	}
	r.keys("spec.", spec, specKeys)
	for _, key := range clusterKeys {
		if _, ok := spec[key]; ok {
			r.problem("%s stands below spec of NodeConfig and not below spec.cluster: it is not indented", key)
		}
	}
	cluster, _ := spec["cluster"].(map[string]any)
	r.keys("spec.cluster.", cluster, clusterKeys)
	get := func(key string) string { s, _ := cluster[key].(string); return s }
	for field, value := range map[*string]string{&r.Cluster.Name: get("name"), &r.Cluster.Endpoint: get("apiServerEndpoint"), &r.Cluster.CA: get("certificateAuthority"), &r.Cluster.CIDR: get("cidr")} {
		if value != "" {
			*field = value
		}
	}
}

// keys finds keys that differ from a known one in case only: nodeadm takes
// them for unknown and goes on.
func (r *Read) keys(path string, object map[string]any, known []string) {
	for _, key := range sorted(object) {
		for _, k := range known {
			if key != k && strings.EqualFold(key, k) {
				r.problem("NodeConfig has %s%s; the key is %s%s, and case matters", path, key, path, k)
			}
		}
	}
}

func sorted(object map[string]any) []string {
	var keys []string
	for k := range object {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

var setting = regexp.MustCompile(`^\s*["']?([\w.-]+)["']?\s*=\s*(.+?)\s*$`)

func (r *Read) bottlerocket(text string) {
	table := ""
	for n, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		switch {
		case trimmed == "" || strings.HasPrefix(trimmed, "#"):
		case strings.HasPrefix(trimmed, "["):
			table = strings.Trim(trimmed, "[] ")
			if !strings.HasSuffix(trimmed, "]") {
				r.problem("line %d of the TOML opens a table and does not close it: %q", n+1, trimmed)
			}
		default:
			m := setting.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			value := m[2]
			if table == "settings.kubernetes" {
				plain := strings.Trim(value, `"'`)
				switch m[1] {
				case "cluster-name":
					r.Cluster.Name = plain
				case "api-server":
					r.Cluster.Endpoint = plain
				case "cluster-certificate":
					r.Cluster.CA = plain
				case "max-pods":
					if strings.HasPrefix(value, `"`) {
						r.problem("settings.kubernetes.max-pods is the text %s and must be a number", value)
					}
				}
			}
			if (strings.HasPrefix(table, "settings.kubernetes.node-labels") || strings.HasPrefix(table, "settings.kubernetes.node-taints")) && !strings.ContainsAny(value[:1], `"'[`) {
				r.problem("%s of %s is %s and must be a text in quotes: Error PATCHing /settings", m[1], table, value)
			}
		}
	}
}
