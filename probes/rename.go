package probes

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
)

// Renamer replaces the words of which private names are made, each by the same
// made-up word everywhere, so that names that belong together (a Deployment and
// its pods, a Service and its host name) still do. Private are the names of
// objects, containers, images and AWS resources; public are numbers, the words
// of Kubernetes and AWS themselves, and the words given. A word that only
// stands within a longer one is not found.
func (r *Recorder) Renamer(key []byte, public []string) (func(string) string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := &privateNames{public: map[string]bool{}, words: map[string]bool{}}
	for _, text := range slices.Concat(publicWords, public) {
		for _, w := range words.FindAllString(text, -1) {
			names.public[strings.ToLower(w)] = true
		}
	}
	for place, file := range r.files {
		if strings.HasSuffix(place, ".json") {
			if err := names.collectFile(file); err != nil {
				return nil, fmt.Errorf("looking for names in %s: %w", place, err)
			}
		}
	}
	meta := r.ClusterMeta()
	names.add(meta.Cluster)
	if meta.Account != "" {
		names.words[meta.Account] = true
	}
	renamed := names.rename(key)
	return func(text string) string {
		return renameable.ReplaceAllStringFunc(text, func(w string) string {
			if to, ok := renamed[strings.ToLower(w)]; ok {
				return to
			}
			if host, ok := strings.CutPrefix(w, "ip-"); ok {
				return "ip-" + strings.ReplaceAll(renameAddress(key, strings.ReplaceAll(host, "-", ".")), ".", "-")
			}
			if strings.Contains(w, ".") {
				return renameAddress(key, w)
			}
			return w
		})
	}, nil
}

// renameable is an address, as it is or as EC2 has it in host names, or a word.
var renameable = regexp.MustCompile(`\bip(?:-\d{1,3}){4}\b|\b\d{1,3}(?:\.\d{1,3}){3}(?:/\d{1,2})?\b|[A-Za-z0-9]+`)

// renameAddress maps an IPv4 address, or a network. Two addresses share as many
// leading bits after as before, so that an address is in the same networks;
// the first eight bits stay, and so do loopback, link-local and 0.0.0.0.
func renameAddress(key []byte, text string) string {
	prefix, err := netip.ParsePrefix(text)
	bare := err != nil
	if bare {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return text
		}
		prefix = netip.PrefixFrom(address, 32)
	}
	from := prefix.Addr().As4()
	if from[0] == 0 || from[0] >= 224 || from[0] == 127 || from[0] == 169 && from[1] == 254 {
		return text
	}
	number := binary.BigEndian.Uint32(from[:])
	to := number
	for bit := 8; bit < prefix.Bits(); bit++ {
		mac := hmac.New(sha256.New, key)
		fmt.Fprintf(mac, "address %d %d", bit, number>>(32-bit))
		to ^= uint32(mac.Sum(nil)[0]&1) << (31 - bit)
	}
	var out [4]byte
	binary.BigEndian.PutUint32(out[:], to)
	if bare {
		return netip.AddrFrom4(out).String()
	}
	return netip.PrefixFrom(netip.AddrFrom4(out), prefix.Bits()).String()
}

var words = regexp.MustCompile(`[A-Za-z0-9]+`)

// publicWords are the words of Kubernetes, AWS and widespread components that
// occur in names and carry meaning for a diagnosis.
var publicWords = []string{
	"kube system default public node lease kubernetes io k8s x aws amazon amazonaws com eks internal compute ec2 cluster local svc",
	"us eu ap sa ca af me il mx cn gov iso west east north south central northeast southeast northwest southwest",
	"docker quay ghcr gcr registry library ecr dkr https http tcp udp linux amd64 arm64 windows spot on demand",
	"large xlarge medium small micro nano metal m5 m6i m6g m7i m7g c5 c6i c6g c7i c7g r5 r6i r6g r7i r7g t3 t4g",
	"master control plane leader election config map root ca crt token admin view edit operator controller webhook agent server client daemon set",
	"sh helm release v1 v2 argoproj istio strimzi coreos cert manager external secrets eksctl alpha beta",
}

type privateNames struct {
	public map[string]bool // in lower case
	words  map[string]bool
}

func (n *privateNames) collectFile(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	decoder := json.NewDecoder(bufio.NewReader(f))
	for {
		var value any
		if err := decoder.Decode(&value); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		n.collect("", "", value)
	}
}

// nameKeys are the fields that hold private names, of Kubernetes and of AWS.
var nameKeys = []string{
	"name", "namespace", "generateName", "app", "image", "host", "clusterName", "nodegroupName", "roleName", "team", "owner",
	"GroupName", "RoleName", "InstanceProfileName", "LaunchTemplateName", "UserName", "PolicyName", "TableName", "LoadBalancerName", "TargetGroupName",
	"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/part-of", "k8s-app",
}

// collect takes the words of names, and learns the fields' own names, which
// are no private words.
func (n *privateNames) collect(parent, key string, value any) {
	switch v := value.(type) {
	case map[string]any:
		for k, inner := range v {
			if !strings.ContainsAny(k, "./") {
				n.public[strings.ToLower(k)] = true
			} else if domain, _, ok := strings.Cut(k, "/"); ok && key != "data" {
				n.add(domain)
			}
			n.collect(key, k, inner)
		}
		if v["Key"] == "Name" || v["Key"] == "eks:cluster-name" { // a tag
			n.collect("", "name", v["Value"])
		}
	case []any:
		for _, inner := range v {
			n.collect(parent, key, inner)
		}
	case string:
		if key == "kind" || key == "apiVersion" {
			for _, w := range words.FindAllString(v, -1) {
				n.public[strings.ToLower(w)] = true
			}
		}
		for _, m := range accountInARN.FindAllStringSubmatch(v, -1) {
			n.words[m[1]] = true
		}
		// Names of variables and ports, and of what a rule or a verb applies
		// to, are public.
		if slices.Contains(nameKeys, key) && parent != "env" && parent != "ports" && parent != "names" {
			n.add(v)
		}
	}
}

// accountInARN is the account in an ARN.
var accountInARN = regexp.MustCompile(`\barn:aws[a-z-]*:[a-z0-9-]+:[a-z0-9-]*:(\d{12}):`)

func (n *privateNames) add(name string) {
	for _, w := range words.FindAllString(name, -1) {
		if len(w) > 2 && strings.Trim(w, "0123456789") != "" {
			n.words[strings.ToLower(w)] = true
		}
	}
}

// rename makes up a word for each private one.
func (n *privateNames) rename(key []byte) map[string]string {
	renamed, taken := map[string]string{}, map[string]bool{}
	for _, w := range slices.Sorted(maps.Keys(n.words)) {
		if n.public[w] {
			continue
		}
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(w))
		code := strings.ToLower(base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString(mac.Sum(nil)))
		if strings.Trim(w, "0123456789") == "" { // an account, which is twelve digits
			renamed[w] = fmt.Sprintf("%012d", binary.BigEndian.Uint64(mac.Sum(nil))%1e12)
			continue
		}
		to := "x" + code[:6]
		for size := 7; taken[to]; size++ {
			to = "x" + code[:size]
		}
		renamed[w], taken[to] = to, true
	}
	return renamed
}
