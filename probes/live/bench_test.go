//go:build controlplane

package live

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/pposiraegi/ppodoctor/probes"
)

var (
	benchNodes    = flag.Int("nodes", 1000, "nodes of the generated cluster")
	benchPods     = flag.Int("pods", 10000, "pods of the generated cluster")
	benchCrashing = flag.Int("crashing", 0, "percent of the pods that crash")
	benchRuns     = flag.Int("runs", 5, "runs of each program; the median counts")
)

// asLister, set to a kubeconfig, makes the test binary the bare lister.
const asLister = "PPODOCTOR_LISTER"

func TestMain(m *testing.M) {
	if config := os.Getenv(asLister); config != "" {
		if err := bareLister(config, strings.Fields(os.Getenv("PPODOCTOR_LISTS"))); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	os.Exit(m.Run())
}

// BenchmarkScan measures a scan of a generated cluster beside the floor: a
// client-go lister of the same lists, as many at once, in protobuf and pages
// of 500, that drops each page. Both are processes of their own.
func BenchmarkScan(b *testing.B) {
	cp := startControlPlane(b)
	captured, err := probes.OpenSnapshot("../../testdata/managed-and-karpenter.tar.gz")
	if err != nil {
		b.Fatal(err)
	}
	cp.load(captured)
	generate{*benchNodes, *benchPods, *benchCrashing}.into(cp, captured)
	cp.request(http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", map[string]any{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": map[string]any{"name": "bench"},
		"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
		"subjects": []any{map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "reader"}},
	})
	cp.wait("the rights", func() bool { return cp.may("reader", "pods") })

	bin := filepath.Join(b.TempDir(), "ppodoctor")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", bin, "../../cmd/ppodoctor") // as the Makefile does
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("building: %v\n%s", err, out)
	}
	config := cp.kubeconfig("reader")
	scan := func(config string) *exec.Cmd {
		return exec.Command(bin, "scan", "--kubeconfig", config, "--no-aws", "--timeout", "10m", "-q")
	}
	first := measure(b, scan(config))
	b.Logf("%s", first.output)
	lists := cp.listed("reader")
	lister := func(config string) *exec.Cmd {
		command := exec.Command(os.Args[0])
		command.Env = append(os.Environ(), asLister+"="+config, "PPODOCTOR_LISTS="+strings.Join(lists, " "))
		return command
	}
	var scans, floors []run
	for range *benchRuns {
		floors = append(floors, measure(b, lister(config)))
		scans = append(scans, measure(b, scan(config)))
	}
	relay := startRelay(b, strings.TrimPrefix(cp.server, "https://"))
	text, err := os.ReadFile(config)
	must(err)
	cp.write("kubeconfig-relay", strings.ReplaceAll(string(text), cp.server, "https://"+relay.address))
	wire := func(command *exec.Cmd) int64 {
		relay.bytes.Store(0)
		measure(b, command)
		return relay.bytes.Load()
	}
	floor, ours := median(floors), median(scans)
	floor.wire, ours.wire = wire(lister(cp.path("kubeconfig-relay"))), wire(scan(cp.path("kubeconfig-relay")))
	b.Logf("%d nodes, %d pods, %d %% crashing; %d lists; median of %d runs\n%-10s %s\n%-10s %s\n%-10s %.2f × wall, %.2f × CPU", *benchNodes, *benchPods, *benchCrashing,
		len(lists), *benchRuns, "floor", floor, "scan", ours, "ratio", ours.wall.Seconds()/floor.wall.Seconds(), ours.cpu.Seconds()/floor.cpu.Seconds())
	b.ReportMetric(ours.wall.Seconds()/floor.wall.Seconds(), "×floor")
	b.ReportMetric(float64(ours.rss)/1e6, "MB-peak")

	before := len(cp.audited("reader"))
	one := measure(b, exec.Command(bin, "explain", "pod/"+cp.somePod(), "--kubeconfig", config, "--no-aws", "-q"))
	b.Logf("explain of one pod: %s", one)
	asked := map[string]int{}
	for _, e := range cp.audited("reader")[before:] {
		u, err := url.Parse(e.RequestURI)
		must(err)
		path := u.Path
		if strings.HasSuffix(path, "/log") {
			path = "logs"
		}
		asked[e.Verb+" "+path]++
	}
	for _, what := range slices.Sorted(maps.Keys(asked)) {
		b.Logf("%4d × %s", asked[what], what)
	}
}

// somePod is one of the generated pods, a crashing one if there are any.
func (p *controlPlane) somePod() string {
	c, err := NewCluster(p.config("admin"), Options{})
	must(err)
	for pod, err := range probes.Items[struct {
		Metadata struct{ Name string }
	}](p.t.Context(), c, probes.Document{Path: "pods"}) {
		must(err)
		if strings.HasPrefix(pod.Metadata.Name, "app-0000-") {
			return pod.Metadata.Name
		}
	}
	p.t.Fatal("no generated pod")
	return ""
}

// listed are the lists that a user has read, each once, in the order of the
// first read.
func (p *controlPlane) listed(user string) []string {
	var lists []string
	for _, e := range p.audited(user) {
		u, err := url.Parse(e.RequestURI)
		must(err)
		if e.Verb == "list" && !slices.Contains(lists, u.Path) {
			q := u.Query()
			q.Del("limit")
			q.Del("continue")
			at := strings.TrimSuffix(u.Path+"?"+q.Encode(), "?")
			if !slices.Contains(lists, at) {
				lists = append(lists, at)
			}
		}
	}
	return lists
}

// bareLister reads lists page by page and keeps nothing.
func bareLister(kubeconfig string, lists []string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	config.ContentConfig = rest.ContentConfig{
		AcceptContentTypes: acceptProtobuf, ContentType: "application/vnd.kubernetes.protobuf",
		NegotiatedSerializer: scheme.Codecs.WithoutConversion(),
	}
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return err
	}
	all, ctx := errgroup.WithContext(context.Background())
	all.SetLimit(inFlight)
	for _, at := range lists {
		all.Go(func() error {
			u, err := url.Parse(at)
			if err != nil {
				return err
			}
			for goOn := ""; ; {
				request := client.Get().AbsPath(u.Path).Param("limit", fmt.Sprint(pageSize))
				for k, v := range u.Query() {
					request.Param(k, v[0])
				}
				if goOn != "" {
					request.Param("continue", goOn)
				}
				data, err := request.Do(ctx).Raw()
				if err != nil {
					return fmt.Errorf("%s: %w", at, err)
				}
				if !bytes.HasPrefix(data, []byte(envelopeMagic)) {
					break // a custom resource: small here, and JSON needs no decoding to be dropped
				}
				page, _, err := scheme.Codecs.UniversalDeserializer().Decode(data, nil, nil)
				if runtime.IsNotRegisteredError(err) {
					break // APIServices: few, and client-go has no type for them
				}
				if err != nil {
					return err
				}
				list, err := meta.ListAccessor(page)
				if err != nil {
					return err
				}
				if goOn = list.GetContinue(); goOn == "" {
					break
				}
			}
			return nil
		})
	}
	return all.Wait()
}

// A run is what a process took.
type run struct {
	wall, cpu time.Duration
	rss, wire int64 // bytes
	output    string
}

func (r run) String() string {
	s := fmt.Sprintf("%6.2f s wall  %6.2f s CPU  %5.0f MB peak", r.wall.Seconds(), r.cpu.Seconds(), float64(r.rss)/1e6)
	if r.wire > 0 {
		s += fmt.Sprintf("  %5.1f MB on the wire", float64(r.wire)/1e6)
	}
	return s
}

func measure(b *testing.B, command *exec.Cmd) run {
	b.Helper()
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	start := time.Now()
	err := command.Run()
	wall := time.Since(start)
	state := command.ProcessState
	told := command.Path != os.Args[0] && state != nil && (state.ExitCode() == 1 || state.ExitCode() == 3) // a scan's findings
	if err != nil && !told {
		b.Fatalf("%v: %v\n%s", command.Args, err, out.String())
	}
	usage := state.SysUsage().(*syscall.Rusage)
	return run{wall: wall, cpu: state.UserTime() + state.SystemTime(), rss: usage.Maxrss * 1024, output: out.String()}
}

// median is the run of the median wall time, with the highest peak of all.
func median(runs []run) run {
	slices.SortFunc(runs, func(a, b run) int { return int(a.wall - b.wall) })
	m := runs[len(runs)/2]
	for _, r := range runs {
		m.rss = max(m.rss, r.rss)
	}
	return m
}

// A relay counts what passes between a client and the server.
type relay struct {
	address string
	bytes   atomic.Int64
}

// Write counts.
func (r *relay) Write(p []byte) (int, error) {
	r.bytes.Add(int64(len(p)))
	return len(p), nil
}

func startRelay(b *testing.B, to string) *relay {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	r := &relay{address: l.Addr().String()}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				client.Close()
				continue
			}
			pipe := func(dst, src net.Conn) {
				io.Copy(io.MultiWriter(dst, r), src)
				dst.Close()
			}
			go pipe(server, client)
			go pipe(client, server)
		}
	}()
	return r
}
