package live

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/rest"

	"github.com/pposiraegi/ppodoctor/probes"
)

// serveWith is a cluster that answers each request by a function.
func serveWith(t *testing.T, options Options, answer http.HandlerFunc) *Cluster {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	c, err := NewCluster(&rest.Config{Host: server.URL}, options)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// podPage is the pods numbered from … to, as a page in protobuf.
func podPage(t *testing.T, from, to int, goOn string) []byte {
	t.Helper()
	list := &corev1.PodList{ListMeta: metav1.ListMeta{Continue: goOn}}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	for i := from; i <= to; i++ {
		list.Items = append(list.Items, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprintf("p%03d", i), Labels: map[string]string{"fill": strings.Repeat("x", 1000)}}})
	}
	var page bytes.Buffer
	if err := protobuf.NewSerializer(types(), types()).Encode(list, &page); err != nil {
		t.Fatal(err)
	}
	return page.Bytes()
}

func sendProto(w http.ResponseWriter, page []byte) {
	w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
	w.Write(page)
}

func sendStatus(w http.ResponseWriter, code int, message, goOn string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, ListMeta: metav1.ListMeta{Continue: goOn}, Message: message, Code: int32(code)})
}

// readPods reads all pods; what is wrong comes as a Gap.
func readPods(ctx context.Context, t *testing.T, c *Cluster, doc probes.Document) ([]string, *probes.Gap) {
	t.Helper()
	var names []string
	for pod, err := range probes.Items[corev1.Pod](ctx, c, doc) {
		if err != nil {
			var gap *probes.Gap
			if !errors.As(err, &gap) {
				t.Fatalf("not a gap: %v", err)
			}
			return names, gap
		}
		names = append(names, pod.Name)
	}
	return names, nil
}

func wantPods(t *testing.T, names []string, n int) {
	t.Helper()
	if len(names) != n || !slices.IsSorted(names) || len(slices.Compact(slices.Clone(names))) != n {
		t.Errorf("read %d pods, want %d, each once: %v", len(names), n, names)
	}
}

var allPods = probes.Document{Path: "pods"}

// Each passing fault is overcome, and no object is lost or given twice.
func TestPassingFaults(t *testing.T) {
	for _, test := range []struct {
		name  string
		fault func(w http.ResponseWriter, r *http.Request, page []byte)
		at    int64 // the request that fails
	}{
		{"429", func(w http.ResponseWriter, _ *http.Request, _ []byte) {
			w.Header().Set("Retry-After", "0")
			sendStatus(w, http.StatusTooManyRequests, "slow down", "")
		}, 1},
		{"503", func(w http.ResponseWriter, _ *http.Request, _ []byte) {
			sendStatus(w, http.StatusServiceUnavailable, "etcd", "")
		}, 2},
		{"cut in mid-page", func(w http.ResponseWriter, _ *http.Request, page []byte) {
			w.Header().Set("Content-Length", fmt.Sprint(len(page)))
			w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
			w.Write(page[:len(page)/2])
			panic(http.ErrAbortHandler)
		}, 2},
		{"no answer", func(http.ResponseWriter, *http.Request, []byte) { panic(http.ErrAbortHandler) }, 2},
		{"410 with a way on", func(w http.ResponseWriter, _ *http.Request, _ []byte) {
			sendStatus(w, http.StatusGone, "too old", "fresh")
		}, 2},
		{"410 without", func(w http.ResponseWriter, _ *http.Request, _ []byte) {
			sendStatus(w, http.StatusGone, "too old", "")
		}, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int64
			c := serveWith(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
				page := podPage(t, 1, 30, "more")
				if r.URL.Query().Get("continue") != "" {
					page = podPage(t, 31, 60, "")
				}
				if requests.Add(1) == test.at {
					test.fault(w, r, page)
					return
				}
				sendProto(w, page)
			})
			names, gap := readPods(t.Context(), t, c, allPods)
			if gap != nil {
				t.Fatal(gap)
			}
			wantPods(t, names, 60)
		})
	}
}

func TestGaps(t *testing.T) {
	forbidden := `pods is forbidden: User "u" cannot list resource "pods"`
	c := serveWith(t, Options{}, func(w http.ResponseWriter, _ *http.Request) { sendStatus(w, http.StatusForbidden, forbidden, "") })
	if _, gap := readPods(t.Context(), t, c, allPods); gap == nil || gap.Reason != probes.Forbidden || gap.Grant != "list pods" || gap.Detail != forbidden {
		t.Errorf("403 is %+v", gap)
	}

	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	c = serveWith(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("continue") == "" {
			sendProto(w, podPage(t, 1, 5, "more"))
			return
		}
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, gap := readPods(ctx, t, c, allPods); gap == nil || gap.Reason != probes.TimedOut || !strings.Contains(gap.Detail, "deadline") {
		t.Errorf("the deadline is %+v", gap)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, interrupt)
	if _, gap := readPods(ctx, t, c, allPods); gap == nil || gap.Reason != probes.TimedOut || !strings.Contains(gap.Detail, "interrupted") {
		t.Errorf("an interrupt is %+v", gap)
	}
	// A hang in one list leaves the others readable: the requests in flight are given back.
	if n := len(c.requests); n != 0 {
		t.Errorf("%d requests are still in flight", n)
	}
}

func discoveryAnswer(w http.ResponseWriter, r *http.Request) bool {
	switch r.URL.Path {
	case "/api":
		fmt.Fprint(w, `{"kind":"APIGroupDiscoveryList","items":[{"metadata":{"name":""},"versions":[{"version":"v1","resources":[{"resource":"pods","responseKind":{"kind":"Pod"},"scope":"Namespaced","verbs":["list"]}]}]}]}`)
	case "/apis":
		fmt.Fprint(w, `{"kind":"APIGroupDiscoveryList","items":[
{"metadata":{"name":"karpenter.sh"},"versions":[{"version":"v1","resources":[{"resource":"nodepools","responseKind":{"kind":"NodePool"},"scope":"Cluster","verbs":["get","list"]}]}]},
{"metadata":{"name":"metrics.k8s.io"},"versions":[{"version":"v1beta1","freshness":"Stale"}]}]}`)
	default:
		return false
	}
	return true
}

func TestKindsFromDiscovery(t *testing.T) {
	c := serveWith(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		if discoveryAnswer(w, r) {
			return
		}
		if r.URL.Path == "/apis/karpenter.sh/v1/nodepools" {
			fmt.Fprint(w, `{"kind":"NodePoolList","apiVersion":"karpenter.sh/v1","items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}],"metadata":{"continue":""}}`)
			return
		}
		sendStatus(w, http.StatusNotFound, "the server could not find the requested resource", "")
	})
	count := func(path string) (int, error) {
		n := 0
		for object, err := range probes.Items[map[string]any](t.Context(), c, probes.Document{Path: path}) {
			if err != nil {
				return n, err
			}
			if (*object)["kind"] == nil {
				t.Errorf("an item of %s has no kind", path)
			}
			n++
		}
		return n, nil
	}
	if n, err := count("nodepools.karpenter.sh"); n != 2 || err != nil {
		t.Errorf("nodepools: %d, %v", n, err)
	}
	if n, err := count("ec2nodeclasses.karpenter.k8s.aws"); n != 0 || err != nil || !c.NotInstalled("ec2nodeclasses.karpenter.k8s.aws") {
		t.Errorf("a kind that isn't served: %d, %v", n, err)
	}
	// A built-in kind that an old server lacks is not served either.
	if n, err := count("endpointslices.discovery.k8s.io"); n != 0 || err != nil {
		t.Errorf("a built-in kind that isn't served: %d, %v", n, err)
	}
	var gap *probes.Gap
	if _, err := count("pods.metrics.k8s.io"); !errors.As(err, &gap) || gap.Reason != probes.Unreadable {
		t.Errorf("a group whose server is down is %v", err)
	}
}

// With the right to one namespace only, that one is read and the rest named.
func TestNarrowed(t *testing.T) {
	c := serveWith(t, Options{Namespace: "a"}, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case discoveryAnswer(w, r):
		case r.URL.Path == "/api/v1/namespaces/a/pods":
			sendProto(w, podPage(t, 1, 3, ""))
		default:
			sendStatus(w, http.StatusForbidden, "forbidden", "")
		}
	})
	names, gap := readPods(t.Context(), t, c, allPods)
	if gap != nil {
		t.Fatal(gap)
	}
	wantPods(t, names, 3)
	if gaps := c.Gaps(); len(gaps) != 1 || gaps[0].Document.Path != "pods" || gaps[0].Reason != probes.Forbidden {
		t.Errorf("the gaps are %v", gaps)
	}
}

func TestLogs(t *testing.T) {
	line := strings.Repeat("x", 5000) + "\n"
	c := serveWith(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		switch {
		case q.Get("previous") == "true":
			sendStatus(w, http.StatusBadRequest, `previous terminated container "c" in pod "p" not found`, "")
		case strings.Contains(r.URL.Path, "/down/"):
			sendStatus(w, http.StatusInternalServerError, "Get https://10.0.0.1:10250: dial tcp: i/o timeout", "")
		default:
			var lines int
			fmt.Sscan(q.Get("tailLines"), &lines)
			text := strings.Repeat(line, lines-1) + "the end\n"
			w.Write([]byte(text[:min(len(text), logBytes)])) // as the kubelet cuts
		}
	})
	log, err := c.Open(t.Context(), probes.Log("a", "p", "c", false))
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(log)
	if !bytes.HasSuffix(text, []byte("the end\n")) {
		t.Errorf("the end of a log of long lines is lost; it ends in %q", text[max(0, len(text)-20):])
	}
	var gap *probes.Gap
	if _, err = c.Open(t.Context(), probes.Log("a", "p", "c", true)); !errors.As(err, &gap) || gap.Reason != probes.NotCaptured || gap.Grant != "" {
		t.Errorf("no previous log is %+v", gap)
	}
	if _, err = c.Open(t.Context(), probes.Log("a", "down", "c", false)); !errors.As(err, &gap) || gap.Reason != probes.Unreadable || !strings.Contains(gap.Detail, "10250") {
		t.Errorf("a kubelet that is down is %+v", gap)
	}
}

// Secrets are asked for by Helm's type only, and come without a value.
func TestReleases(t *testing.T) {
	var packed bytes.Buffer
	gz := gzip.NewWriter(&packed)
	fmt.Fprint(gz, `{"name":"web","namespace":"a","version":3,"info":{"status":"failed","description":"timed out"},"chart":{"metadata":{"name":"web","version":"1.2.3"}},"config":{"password":"hunter2"}}`)
	gz.Close()
	c := serveWith(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		if got := r.URL.Query().Get("fieldSelector"); got != "type=helm.sh/release.v1" {
			t.Errorf("Secrets are read with the selector %q", got)
		}
		json.NewEncoder(w).Encode(corev1.SecretList{TypeMeta: metav1.TypeMeta{Kind: "SecretList", APIVersion: "v1"}, Items: []corev1.Secret{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "sh.helm.release.v1.web.v3"}, Type: probes.HelmReleaseType,
			Data: map[string][]byte{"release": []byte(base64.StdEncoding.EncodeToString(packed.Bytes()))},
		}}})
	})
	facts := probes.NewFacts(c)
	facts.Gather(t.Context(), probes.Releases)
	releases, err := probes.Releases.Of(facts)
	if err != nil || len(releases) != 1 || releases[0].Status != "failed" || releases[0].Revision != 3 || releases[0].ChartVersion != "1.2.3" {
		t.Errorf("releases are %+v, %v", releases, err)
	}
	var gap *probes.Gap
	if _, err := c.Open(t.Context(), probes.Document{Path: "secrets"}); !errors.As(err, &gap) {
		t.Errorf("all Secrets can be read: %v", err)
	}
	c.NoHelm = true
	if _, err := c.Open(t.Context(), probes.HelmReleases); !errors.As(err, &gap) {
		t.Errorf("Helm's Secrets are read in spite of NoHelm: %v", err)
	}
}

func TestClusterMeta(t *testing.T) {
	for _, test := range []struct{ name, cluster, region, account string }{
		{"arn:aws:eks:eu-west-1:111122223333:cluster/shop", "shop", "eu-west-1", "111122223333"},
		{"shop.eu-west-1.eksctl.io", "shop", "eu-west-1", ""},
		{"kind-kind", "", "", ""},
	} {
		got := (&Cluster{Options: Options{Name: test.name}}).ClusterMeta()
		if got.Cluster != test.cluster || got.Region != test.region || got.Account != test.account {
			t.Errorf("%s is %+v", test.name, got)
		}
	}
}

// FuzzProtoPage: whatever a server sends, decoding ends in objects or an error.
func FuzzProtoPage(f *testing.F) {
	var page bytes.Buffer
	list := &corev1.PodList{Items: []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "p"}}}}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	if err := protobuf.NewSerializer(types(), types()).Encode(list, &page); err != nil {
		f.Fatal(err)
	}
	f.Add(page.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		p := newProtoPage(bytes.NewReader(data), builtIn()["pods"])
		for {
			if _, err := p.next(); err != nil {
				return
			}
		}
	})
}
