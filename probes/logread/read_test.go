package logread

import (
	"strings"
	"testing"
	"time"

	"github.com/pposiraegi/ppodoctor/knowledge"
)

var now = time.Date(2026, 5, 12, 4, 0, 0, 0, time.UTC)

func signatures(t testing.TB) *knowledge.Signatures {
	t.Helper()
	k, err := knowledge.Load()
	if err != nil {
		t.Fatal(err)
	}
	return k.Signatures
}

func TestRead(t *testing.T) {
	s := signatures(t)
	for name, test := range map[string]struct {
		log      string
		ended    bool
		meaning  string // of the decisive failure; "-" where there must be none
		host     string // with its port
		first    string // part of the first failing entry
		firstAt  string
		frame    string
		count    int
		last     string // the last of the last lines
		failures int
	}{
		"go plain, timestamps of kubectl": {
			log: "2026-05-12T03:11:04.512345678Z 2026/05/12 03:11:04 starting\n" +
				"2026-05-12T03:11:09.512345678Z 2026/05/12 03:11:09 dial tcp: lookup redis-master-0.redis-headless.redis.svc.cluster.local on 10.100.0.10:53: read udp 10.0.3.21:40712->10.100.0.10:53: i/o timeout\n",
			ended: true, meaning: "dns-timeout", host: "redis-master-0.redis-headless.redis.svc.cluster.local:", firstAt: "03:11:09", count: 1,
		},
		"json, the error in its own field": {
			log:     `{"level":"info","ts":"2026-05-12T03:11:01Z","msg":"up"}` + "\n" + strings.Repeat(`{"level":"error","ts":"2026-05-12T03:11:04Z","msg":"query failed","error":"dial tcp 10.0.4.21:5432: connect: connection refused"}`+"\n", 7),
			meaning: "tcp-refused", host: "10.0.4.21:5432", count: 7, failures: 1, firstAt: "03:11:04",
		},
		"logfmt": {
			log:     `level=error ts=2026-05-12T03:11:04.512Z caller=x.go:3 msg="push failed" err="Post \"http://loki:3100/push\": dial tcp: lookup loki on 10.100.0.10:53: no such host"` + "\n",
			meaning: "dns-nxdomain", host: "loki:3100",
		},
		"klog": {
			log:     "I0512 03:11:01.000000       1 main.go:1] starting\nE0512 03:11:04.512000       1 reflector.go:150] failed to list *v1.Pod: Unauthorized\n",
			meaning: "kube-unauthorized", firstAt: "03:11:04",
		},
		"python traceback": {
			log:   "INFO:root:starting\nTraceback (most recent call last):\n  File \"/app/main.py\", line 12, in <module>\n    run()\n  File \"/usr/lib/python3.11/site-packages/psycopg2/__init__.py\", line 122, in connect\n    conn = _connect(dsn)\npsycopg2.OperationalError: connection to server at \"pg\" (172.20.4.4), port 5432 failed: FATAL:  password authentication failed for user \"app\"\n\n",
			ended: true, meaning: "db-credentials", host: "", frame: `File "/app/main.py", line 12, in <module>`, failures: 1,
		},
		"chained python traceback": {
			log:   "Traceback (most recent call last):\n  File \"a.py\", line 1, in x\nsocket.gaierror: [Errno -2] Name or service not known\n\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n  File \"b.py\", line 2, in y\napp.Failed: no catalog\n",
			ended: true, meaning: "dns-nxdomain", failures: 1,
		},
		"java with causes": {
			log:   "2026-05-12 03:11:04.512 ERROR 1 --- [main] o.s.boot.SpringApplication : Application run failed\norg.springframework.beans.factory.BeanCreationException: Error creating bean\n\tat org.springframework.X.y(X.java:1)\nCaused by: java.lang.RuntimeException: x\n\tat com.shop.Db.open(Db.java:7)\n\t... 12 more\nCaused by: java.net.UnknownHostException: orders-db: Name or service not known\n\tat java.base/java.net.Inet.x(Inet.java:1)\n",
			ended: true, meaning: "dns-nxdomain", host: "orders-db:",
		},
		"go panic": {
			log:   "2026/05/12 03:11:01 ok\npanic: runtime error: index out of range [3] with length 3\n\ngoroutine 1 [running]:\nmain.load(...)\n\t/src/app/main.go:12 +0x1d\nmain.main()\n\t/src/app/main.go:4 +0x1d\nexit status 2\n",
			ended: true, meaning: "panic", frame: "main.load(...) /src/app/main.go:12", last: "exit status 2", failures: 1,
		},
		"node error": {
			log:   "node:events:491\n      throw er; // Unhandled 'error' event\n      ^\n\nError: connect ECONNREFUSED 172.20.3.4:6379\n    at TCPConnectWrap.afterConnect [as oncomplete] (node:net:1607:16)\nEmitted 'error' event on Redis instance at:\n    at Socket.x (/app/db.js:4:2) {\n  errno: -111,\n  code: 'ECONNREFUSED'\n}\n\nNode.js v20.11.0\n",
			ended: true, meaning: "tcp-refused", host: "172.20.3.4:6379", frame: "Socket.x (/app/db.js:4:2) {", failures: 1,
		},
		"colours, a handled line is no failure": {
			log:     "\x1b[32mINFO\x1b[0m retried: dial tcp 10.0.4.21:5432: connect: connection refused\n\x1b[32mINFO\x1b[0m ready\n",
			meaning: "-",
		},
		"a refusal at start that is long over": {
			log:     "2026-05-12T03:11:04Z ERROR dial tcp 10.0.4.21:5432: connect: connection refused\n" + strings.Repeat("2026-05-12T03:11:09Z INFO request served\n", 100) + "2026-05-12T03:12:00Z ERROR yaml: line 12: mapping values are not allowed in this context\n",
			ended:   true, // what came last counts
			meaning: "config-invalid", first: "dial tcp",
		},
		"wrapped twice": {
			log:     `{"level":"error","msg":"Reconciler error","error":"rpc error: code = Unavailable desc = connection error: desc = \"transport: Error while dialing: dial tcp: lookup otel-collector: i/o timeout\""}` + "\n",
			meaning: "dns-timeout", host: "otel-collector:",
		},
		"redis": {
			log:     "1:S 12 May 2026 03:11:04.512 * Connecting to MASTER redis-master-0.redis-headless:6379\n1:S 12 May 2026 03:11:04.600 # Unable to connect to MASTER: Resource temporarily unavailable\n",
			meaning: "redis-master-unreachable", firstAt: "03:11:04",
		},
		"an error that nothing knows": {
			log:     "2026-05-12 03:11:04,512 ERROR com.shop.Main - the flux is out of phase\n",
			meaning: "", first: "the flux is out of phase", failures: 1,
		},
		"spring's report": {
			log:   "***************************\nAPPLICATION FAILED TO START\n***************************\n\nDescription:\n\nFailed to configure a DataSource: 'url' attribute is not specified and no embedded datasource could be configured.\n\nAction:\n\nConsider the following:\n",
			ended: true, meaning: "config-missing", failures: 1,
		},
		"healthy": {log: "10.0.1.2 - - [12/May/2026:03:11:04 +0000] \"GET /healthz HTTP/1.1\" 200 2\nlistening on :8080\n", meaning: "-"},
		"empty":   {log: "", meaning: "-"},
	} {
		t.Run(name, func(t *testing.T) {
			x := Read(strings.NewReader(test.log), s, Options{Now: now, Ended: test.ended})
			if test.meaning == "-" {
				if x.Decisive != nil {
					t.Fatalf("decisive is %+v, want none", x.Decisive)
				}
				return
			}
			if x.Decisive == nil {
				t.Fatalf("nothing is decisive: %+v", x)
			}
			d := x.Decisive
			if d.Meaning != test.meaning {
				t.Errorf("means %q, want %q: %s", d.Meaning, test.meaning, d.Text)
			}
			if got := d.Host + ":" + d.Port; test.host != "" && got != test.host {
				t.Errorf("names %q, want %q", got, test.host)
			}
			if !strings.Contains(x.First.Text, test.first) {
				t.Errorf("first is %q, want %q", x.First.Text, test.first)
			}
			if got := d.FirstAt.Format(time.TimeOnly); test.firstAt != "" && got != test.firstAt {
				t.Errorf("first at %s, want %s", got, test.firstAt)
			}
			if test.frame != "" && d.Frame != test.frame {
				t.Errorf("frame %q, want %q", d.Frame, test.frame)
			}
			if test.count != 0 && d.Count != test.count {
				t.Errorf("count %d, want %d", d.Count, test.count)
			}
			if test.failures != 0 && len(x.Failures) != test.failures {
				t.Errorf("%d failures, want %d: %q", len(x.Failures), test.failures, x.Failures[1].Text)
			}
			if test.last != "" && x.Last[len(x.Last)-1] != test.last {
				t.Errorf("last is %q, want %q", x.Last, test.last)
			}
		})
	}
}

func TestReadIsBounded(t *testing.T) {
	var b strings.Builder
	for i := range 5000 {
		b.WriteString("ERROR failure of kind " + strings.Repeat(string(rune('a'+i%26)), i%200+1) + "\n")
	}
	x := Read(strings.NewReader(b.String()), signatures(t), Options{Now: now})
	if len(x.Failures) > maxFailures || x.Dropped == 0 {
		t.Errorf("%d failures kept, %d dropped", len(x.Failures), x.Dropped)
	}
	cut := Read(strings.NewReader(b.String()), signatures(t), Options{Now: now, Limit: 1000})
	if !cut.Cut || cut.Bytes > maxLine {
		t.Errorf("read %d bytes, cut %v", cut.Bytes, cut.Cut)
	}
}

func FuzzRead(f *testing.F) {
	s := signatures(f)
	for _, seed := range []string{
		"{\"level\":\"error\",\"msg\":\"x\"}\n", "level=error msg=\"a\\\"b\" err=c\n", "E0512 03:11:04.5 1 a.go:1] x\n", "panic: x\n\ngoroutine 1 [running]:\n", "Traceback (most recent call last):\n  File \"a\"\nE: x\n",
		"1:S 12 May 2026 03:11:04.512 # x\n", "[2026-05-12 03:11:04] \x1b[31mERROR\x1b[0m x\n", "{\"log\":\"x\\n\",\"stream\":\"stderr\",\"time\":\"2026-05-12T03:11:04Z\"}\n", "node:net:1\n^\nError: x\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, log string) {
		x := Read(strings.NewReader(log), s, Options{Now: now, Ended: true})
		if len(x.Failures) > maxFailures || len(x.Last) > 3 {
			t.Fatalf("unbounded: %d failures", len(x.Failures))
		}
	})
}

func FuzzFields(f *testing.F) {
	f.Add(`{"a":{"b":[1,2]},"level":30}`)
	f.Add(`a=1 b="c d" level=error =x`)
	f.Fuzz(func(t *testing.T, s string) {
		if fields, ok := parseJSON(s); ok {
			structured(fields)
		}
		if n := len(parseLogfmt(s)); n > maxFields {
			t.Fatalf("%d fields", n)
		}
	})
}
