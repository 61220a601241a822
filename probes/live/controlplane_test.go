//go:build controlplane

package live

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// A controlPlane is a real kube-apiserver on a real etcd, on loopback, with
// RBAC and an audit log, and a kubelet that only serves logs.
type controlPlane struct {
	t       testing.TB
	dir     string
	server  string // of the API server
	etcd    string // of etcd
	kubelet *kubelet
	admin   *http.Client
	defined map[string]string // custom resources, with the definitions' specs
	loaded  []string          // resources of the snapshot that is loaded
}

// binaries is the folder that testdata/controlplane/build.sh filled.
const binaries = "PPODOCTOR_CONTROLPLANE"

func startControlPlane(t testing.TB) *controlPlane {
	bin := os.Getenv(binaries)
	if bin == "" {
		t.Fatalf("%s is not set; run `make test-live`", binaries)
	}
	dir := t.TempDir()
	p := &controlPlane{t: t, dir: dir, kubelet: startKubelet(t), defined: map[string]string{}}
	ports := freePorts(t, 3)
	p.etcd = "http://127.0.0.1:" + ports[0]
	p.server = "https://127.0.0.1:" + ports[2]
	p.run(filepath.Join(bin, "etcd"),
		"--data-dir", filepath.Join(dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", p.etcd, "--advertise-client-urls", p.etcd,
		"--listen-peer-urls", "http://127.0.0.1:"+ports[1], "--initial-advertise-peer-urls", "http://127.0.0.1:"+ports[1],
		"--initial-cluster", "default=http://127.0.0.1:"+ports[1], "--max-txn-ops", "2000", "--max-request-bytes", "33554432",
		"--quota-backend-bytes", "8589934592", "--log-level", "warn")
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(err)
	p.write("sa.key", string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})))
	p.write("tokens.csv", "admin,admin,1,system:masters\nreader,reader,2\nnobody,nobody,3\n")
	p.write("audit.yaml", "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata, users: [reader, nobody]}, {level: None}]\n")
	p.run(filepath.Join(bin, "kube-apiserver"),
		"--etcd-servers", p.etcd, "--secure-port", ports[2], "--bind-address", "127.0.0.1", "--cert-dir", filepath.Join(dir, "certs"),
		"--service-account-issuer", "https://loopback", "--service-account-signing-key-file", p.path("sa.key"), "--service-account-key-file", p.path("sa.key"),
		"--authorization-mode", "RBAC", "--token-auth-file", p.path("tokens.csv"), "--anonymous-auth=false",
		"--audit-policy-file", p.path("audit.yaml"), "--audit-log-path", p.path("audit.log"),
		"--endpoint-reconciler-type", "none", "--kubelet-preferred-address-types", "ExternalDNS", "--service-cluster-ip-range", "172.20.0.0/16", // as EKS has it
		"-v", "0")
	p.admin = p.client("admin")
	p.wait("the API server", func() bool {
		response, err := p.admin.Get(p.server + "/readyz")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	return p
}

func (p *controlPlane) path(name string) string { return filepath.Join(p.dir, name) }

func (p *controlPlane) write(name, text string) {
	if err := os.WriteFile(p.path(name), []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// run starts a program that ends with the test.
func (p *controlPlane) run(program string, args ...string) {
	log, err := os.Create(p.path(filepath.Base(program) + ".log"))
	if err != nil {
		p.t.Fatal(err)
	}
	command := exec.Command(program, args...)
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		command.Process.Kill()
		command.Wait()
		log.Close()
		if p.t.Failed() {
			text, _ := os.ReadFile(log.Name())
			p.t.Logf("the end of %s:\n%s", log.Name(), text[max(0, len(text)-2000):])
		}
	})
}

func (p *controlPlane) wait(what string, ready func() bool) {
	p.t.Helper()
	for end := time.Now().Add(40 * time.Second); !ready(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatalf("%s was not ready within two minutes", what)
		}
	}
}

// config is how a user reaches the cluster.
func (p *controlPlane) config(user string) *rest.Config {
	return &rest.Config{Host: p.server, BearerToken: user, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
}

func (p *controlPlane) client(user string) *http.Client {
	client, err := rest.HTTPClientFor(p.config(user))
	if err != nil {
		p.t.Fatal(err)
	}
	return client
}

// kubeconfig writes a kubeconfig for a user.
func (p *controlPlane) kubeconfig(user string) string {
	p.write("kubeconfig-"+user, fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: test, user: {token: %s}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
current-context: test
`, p.server, user))
	return p.path("kubeconfig-" + user)
}

// try reports whether the API server took an object.
func (p *controlPlane) try(method, path string, object any) bool {
	code, _ := p.send(method, path, object)
	return code < 300
}

// request sends an object, or nothing, to the API server as admin.
func (p *controlPlane) request(method, path string, object any) []byte {
	p.t.Helper()
	code, answer := p.send(method, path, object)
	if code >= 300 {
		p.t.Fatalf("%s %s: %d: %s", method, path, code, answer)
	}
	return answer
}

func (p *controlPlane) send(method, path string, object any) (int, []byte) {
	p.t.Helper()
	var body bytes.Buffer
	if object != nil {
		must(json.NewEncoder(&body).Encode(object))
	}
	request, err := http.NewRequest(method, p.server+path, &body)
	must(err)
	request.Header.Set("Content-Type", "application/json")
	response, err := p.admin.Do(request)
	if err != nil {
		p.t.Fatal(err)
	}
	defer response.Body.Close()
	answer, _ := io.ReadAll(response.Body)
	return response.StatusCode, answer
}

// etcdCall uses etcd's gRPC gateway.
func (p *controlPlane) etcdCall(call string, body any) {
	p.t.Helper()
	data, err := json.Marshal(body)
	must(err)
	response, err := http.Post(p.etcd+"/v3/kv/"+call, "application/json", bytes.NewReader(data))
	if err != nil {
		p.t.Fatal(err)
	}
	defer response.Body.Close()
	if answer, _ := io.ReadAll(response.Body); response.StatusCode != http.StatusOK {
		p.t.Fatalf("etcd %s: %s: %s", call, response.Status, answer)
	}
}

// store writes objects as they are, status, UID and times included, which the
// API server would not take from a client. It reads them as its own.
func (p *controlPlane) store(objects map[string][]byte) {
	p.t.Helper()
	type op map[string]any
	var ops []op
	size := 0
	flush := func() {
		if len(ops) > 0 {
			p.etcdCall("txn", op{"success": ops})
		}
		ops, size = nil, 0
	}
	for key, value := range objects {
		ops = append(ops, op{"requestPut": op{"key": base64.StdEncoding.EncodeToString([]byte(key)), "value": base64.StdEncoding.EncodeToString(value)}})
		if size += len(value); len(ops) == 1000 || size > 4<<20 {
			flush()
		}
	}
	flush()
}

// remove deletes all objects under a key.
func (p *controlPlane) remove(prefix string) {
	p.t.Helper()
	end := []byte(prefix)
	end[len(end)-1]++
	p.etcdCall("deleterange", map[string]any{"key": base64.StdEncoding.EncodeToString([]byte(prefix)), "rangeEnd": base64.StdEncoding.EncodeToString(end)})
}

func freePorts(t testing.TB, n int) []string {
	var ports []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports = append(ports, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	}
	return ports
}

// A kubelet serves the logs of every node, as `kubectl logs` gets them.
type kubelet struct {
	port int
	logs func(namespace, pod, container string, previous bool) (io.ReadCloser, error)
}

func startKubelet(t testing.TB) *kubelet {
	k := &kubelet{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
		if len(parts) != 4 || parts[0] != "containerLogs" || k.logs == nil {
			http.NotFound(w, r)
			return
		}
		previous := r.URL.Query().Get("previous") == "true"
		log, err := k.logs(parts[1], parts[2], parts[3], previous)
		if err != nil {
			// The words of the kubelet, pkg/kubelet/kubelet_pods.go.
			what := "container %q in pod %q is not available"
			if previous {
				what = "previous terminated container %q in pod %q not found"
			}
			http.Error(w, fmt.Sprintf(what, parts[3], parts[2]), http.StatusBadRequest)
			return
		}
		defer log.Close()
		text, _ := io.ReadAll(log)
		if n, err := strconv.Atoi(r.URL.Query().Get("tailLines")); err == nil {
			lines := bytes.SplitAfter(text, []byte("\n"))
			text = bytes.Join(lines[max(0, len(lines)-n-1):], nil)
		}
		if n, err := strconv.Atoi(r.URL.Query().Get("limitBytes")); err == nil && n < len(text) {
			text = text[:n]
		}
		w.Write(text)
	}))
	t.Cleanup(server.Close)
	address, err := url.Parse(server.URL)
	must(err)
	k.port, err = strconv.Atoi(address.Port())
	must(err)
	return k
}

// audited are the requests of a user since the log was last emptied.
func (p *controlPlane) audited(user string) []auditEvent {
	p.t.Helper()
	data, err := os.ReadFile(p.path("audit.log"))
	if err != nil {
		p.t.Fatal(err)
	}
	var events []auditEvent
	for line := range bytes.Lines(data) {
		var e auditEvent
		must(json.Unmarshal(line, &e))
		if e.User.Username == user {
			events = append(events, e)
		}
	}
	return events
}

type auditEvent struct {
	Verb       string
	RequestURI string
	User       struct{ Username string }
	ObjectRef  *struct{ Resource, Subresource, APIGroup string }
}
