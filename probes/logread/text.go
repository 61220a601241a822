package logread

import (
	"cmp"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// fold replaces what differs between entries that say the same.
func fold(text string) string {
	s := varying.ReplaceAllString(shorten(telling(text), 240), "#")
	return s
}

var varying = regexp.MustCompile(`[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|0x[0-9a-fA-F]+|\b[0-9a-fA-F]*[0-9][0-9a-fA-F]{7,}\b|[0-9]+(?:\.[0-9]+)*`)

// telling is an entry without its frames: the first line, and of a stack trace
// the last exception and the innermost cause.
func telling(text string) string {
	head, rest, more := strings.Cut(text, "\n")
	if !more {
		return shorten(text, 1200)
	}
	kept := []string{head}
	var said []string
	for s := range strings.SplitSeq(rest, "\n") {
		if !frameLine(s) {
			said = append(said, strings.TrimSpace(s))
		}
	}
	if len(said) > 4 {
		said = append(said[:2], said[len(said)-2:]...)
	}
	for _, s := range said {
		kept = append(kept, shorten(s, 800))
	}
	return shorten(strings.Join(kept, "\n"), 1600)
}

// matched is the part of an entry that signatures are tried on: all that it
// says, and the first of each run of stack frames.
func matched(text string) string {
	const maxFirst, maxOther, maxAll = 6000, 1500, 9000
	head, rest, more := strings.Cut(text, "\n")
	if len(head) > maxFirst {
		head = head[:maxFirst]
	}
	if !more {
		return head
	}
	var b strings.Builder
	b.WriteString(head)
	frames := 0
	for s := range strings.SplitSeq(rest, "\n") {
		if frames++; !frameLine(s) {
			frames = 0
		}
		if frames <= 1 && b.Len() < maxAll {
			b.WriteByte('\n')
			b.WriteString(s[:min(len(s), maxOther)])
		}
	}
	return b.String()
}

// frameLine: a stack frame or a source line in a trace.
func frameLine(s string) bool {
	t := strings.TrimSpace(s)
	return t == "" || strings.HasPrefix(t, "at ") || strings.HasPrefix(t, "File \"") || strings.HasPrefix(t, "... ") || strings.Trim(t, "^~ ") == "" ||
		strings.HasPrefix(t, "goroutine ") || strings.HasPrefix(s, "\t/") || strings.HasPrefix(s, "    ") && !strings.Contains(s, ": ") || goCall.MatchString(t)
}

var goCall = regexp.MustCompile(`^[\w./*()-]+\([^ ]*\)$|^created by `)

func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// objects keeps the fields that name what an entry is about, not its message.
func objects(fields map[string]string) map[string]string {
	var kept map[string]string
	for key, value := range fields {
		last := key[strings.LastIndexByte(key, '.')+1:]
		if value == "" || len(value) > 200 || slices.Contains(messageKeys, key) || slices.Contains(timeKeys, key) || slices.Contains(levelKeys, key) ||
			slices.Contains(stackNames, last) || slices.Contains(errorNames, last) {
			continue
		}
		if kept == nil {
			kept = map[string]string{}
		}
		kept[key] = value
	}
	return kept
}

var (
	inURL    = regexp.MustCompile(`\b(?:https?|grpcs?|rediss?|amqps?|postgres(?:ql)?|mysql|mongodb(?:\+srv)?|kafka|tcp|nats|jdbc:\w+)://(?:[^\s/@"']*@)?([A-Za-z0-9_.-]+|\[[0-9a-fA-F:]+\])(?::(\d{1,5}))?`)
	hostPort = regexp.MustCompile(`(?:^|[\s"'/(=\[>@]|ipv4:)((?:[A-Za-z0-9_](?:[A-Za-z0-9_-]*[A-Za-z0-9_])?\.)*[A-Za-z0-9_-]*[A-Za-z][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*|\d{1,3}(?:\.\d{1,3}){3}):(\d{2,5})\b`)
	// timeOfDay is the first half of a time, which looks like a host with a port.
	timeOfDay = regexp.MustCompile(`^\d{4}-\d\d-\d\d[Tt]\d\d$`)
	dsnHost   = regexp.MustCompile(`(?i)\bhost=([a-z][\w.-]*[\w])`)
	source    = regexp.MustCompile(`\.(?:go|js|ts|mjs|cjs|py|rb|rs|java|kt|php|cs|ex|scala|c|cc|cpp|h)$`)
)

// target is the host and port that an entry could not reach: what the
// signature captured, else the first address in the text.
func target(captures map[string]string, text string) (host, port string) {
	host, port = captures["host"], captures["port"]
	if addr := captures["addr"]; addr != "" && host == "" {
		host = addr
	}
	if host == "" {
		if u, err := url.Parse(captures["url"]); err == nil && u.Hostname() != "" {
			host, port = u.Hostname(), u.Port()
		}
	}
	if _, after, ok := strings.Cut(host, "/"); ok && host != "" {
		if before := strings.TrimSuffix(host, "/"+after); before != "" {
			host = before // "kafka-bootstrap/172.20.9.9"
		}
	}
	head, _, _ := strings.Cut(text, "\n")
	head = shorten(head, 2000)
	if host == "" && captures != nil || host != "" && port == "" {
		for _, m := range inURL.FindAllStringSubmatch(head, 4) {
			if host == "" || strings.EqualFold(m[1], host) {
				host, port = m[1], cmp.Or(m[2], urlPort(m[0]))
				break
			}
		}
	}
	if host == "" && captures != nil || host != "" && port == "" {
		for _, m := range hostPort.FindAllStringSubmatch(head, 6) {
			if !source.MatchString(m[1]) && (host == "" || strings.EqualFold(m[1], host)) {
				host, port = m[1], m[2]
				break
			}
		}
	}
	if host == "" && captures != nil && strings.Contains(text, "\n") {
		for _, m := range hostPort.FindAllStringSubmatch(telling(text), 6) { // gRPC in Python says it on a line of its own
			if !source.MatchString(m[1]) {
				host, port = m[1], m[2]
				break
			}
		}
	}
	if h, p, err := net.SplitHostPort(host); err == nil {
		host, port = h, p
	}
	host = strings.Trim(strings.TrimSuffix(host, "."), "[]'\"`,;()")
	if timeOfDay.MatchString(host) {
		return "", ""
	}
	if m := dsnHost.FindStringSubmatch(head); m != nil && host == "" && captures != nil {
		host = m[1]
	}
	if net.ParseIP(host) != nil {
		host = nameOf(head, host, port)
	}
	return host, port
}

// nameOf is the name by which an address was found, where a DSN or a URL of
// the same port says it; else the address.
func nameOf(head, address, port string) string {
	if m := dsnHost.FindStringSubmatch(head); m != nil {
		return m[1]
	}
	for _, m := range inURL.FindAllStringSubmatch(head, 4) {
		if at := cmp.Or(m[2], urlPort(m[0])); at == port && net.ParseIP(m[1]) == nil {
			return m[1]
		}
	}
	return address
}

// urlPort is the port that a URL without one means; empty if it isn't known.
func urlPort(u string) string {
	return map[string]string{"https": "443", "http": "80"}[u[:strings.IndexByte(u, ':')]]
}

// ownFrame is the first frame of a panic or exception that is the program's
// own, not of its language or a library.
func ownFrame(text string) string {
	frames := strings.Split(text, "\n")
	if len(frames) == 1 {
		return ""
	}
	if strings.Contains(text, "Traceback (most recent call last)") {
		slices.Reverse(frames) // Python has the innermost frame last
	}
	for i, f := range frames {
		t := strings.TrimSpace(f)
		switch {
		case strings.HasPrefix(t, "File \"") && !foreign.MatchString(t):
			return shorten(t, 200)
		case strings.HasPrefix(t, "at ") && !foreign.MatchString(t):
			return shorten(strings.TrimPrefix(t, "at "), 200)
		case strings.HasPrefix(f, "\t/") && i > 0 && !foreign.MatchString(t) && !foreign.MatchString(frames[i-1]):
			place, _, _ := strings.Cut(t, " ")
			return shorten(strings.TrimSpace(frames[i-1])+" "+place, 200)
		}
	}
	return ""
}

// foreign matches frames of runtimes, standard libraries and frameworks.
var foreign = regexp.MustCompile(`site-packages|dist-packages|/lib/python|<frozen |node:|node_modules|internal/|/usr/local/go/|/go/pkg/mod/|/vendor/|` +
	`at (?:java|javax|jdk|sun|com\.sun|kotlin|scala|jakarta|org\.(?:springframework|apache|hibernate|eclipse|jboss|postgresql)|io\.(?:netty|grpc|micrometer)|com\.(?:zaxxer|mysql|fasterxml|google)|reactor|System|Microsoft|Npgsql)\.|at async node|at <anonymous>|^panic\(|^runtime\.|/rustc/|^created by `)
