package logread

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// A Level is how serious an entry says that it is.
type Level int

// The levels, least serious first. Entries that don't say are between Info
// and Warn: they are judged by their text.
const (
	Debug Level = iota - 2
	Info
	Unknown
	Warn
	Error
	Fatal
)

func (l Level) String() string {
	return [...]string{"debug", "info", "", "warn", "error", "fatal"}[l+2]
}

var levels = map[string]Level{
	"trace": Debug, "debug": Debug, "dbg": Debug, "verbose": Debug, "fine": Debug, "finer": Debug, "finest": Debug,
	"info": Info, "information": Info, "notice": Info, "note": Info, "log": Info, "inf": Info, "i": Info, "normal": Info, "success": Info,
	"warn": Warn, "warning": Warn, "wrn": Warn, "w": Warn,
	"error": Error, "err": Error, "eror": Error, "severe": Error, "fail": Error, "failure": Error, "e": Error,
	"fatal": Fatal, "critical": Fatal, "crit": Fatal, "emerg": Fatal, "emergency": Fatal, "alert": Fatal, "panic": Fatal, "dpanic": Fatal, "f": Fatal, "ftl": Fatal,
}

// A line is one line of a log, taken apart.
type line struct {
	text   string // what it says, without time and colours
	lead   int    // how much of text is the level
	level  Level
	at     time.Time         // zero where it doesn't say
	fields map[string]string // of JSON and logfmt, nested keys joined by dots
	header bool              // it begins an entry for sure: it has a time, a level or a structure
}

// parse takes a line apart; now tells the year that klog leaves out.
func parse(s string, now time.Time) line {
	at, s := unwrap(s)
	var l line
	switch {
	case strings.HasPrefix(s, "{"):
		if fields, ok := parseJSON(s); ok {
			l = structured(fields)
		}
	case isKlog(s):
		l = parseKlog(s, now)
	case isLogfmt(s):
		l = structured(parseLogfmt(s))
	}
	if l.text == "" && !l.header {
		l = parsePlain(s)
	}
	if l.at.IsZero() {
		l.at = at
	}
	return l
}

// unwrap takes off what the container runtime or kubectl puts before a line:
// `kubectl logs --timestamps`, CRI ("TIME stdout F "), Docker's JSON, and
// `kubectl logs --prefix`.
func unwrap(s string) (time.Time, string) {
	if strings.HasPrefix(s, "[pod/") {
		if _, rest, ok := strings.Cut(s, "] "); ok {
			s = rest
		}
	}
	if strings.HasPrefix(s, `{"log":"`) {
		var docker struct {
			Log    string    `json:"log"`
			Stream string    `json:"stream"`
			Time   time.Time `json:"time"`
		}
		if json.Unmarshal([]byte(s), &docker) == nil && docker.Stream != "" {
			return docker.Time, strings.TrimRight(docker.Log, "\r\n")
		}
	}
	if stamp, rest, ok := strings.Cut(s, " "); ok && len(stamp) >= 20 && strings.HasSuffix(stamp, "Z") && stamp[10] == 'T' {
		if at, err := time.Parse(time.RFC3339Nano, stamp); err == nil {
			for _, stream := range []string{"stdout F ", "stderr F ", "stdout P ", "stderr P "} {
				if inner, ok := strings.CutPrefix(rest, stream); ok {
					return at, inner
				}
			}
			if len(stamp) == len("2026-05-12T03:11:04.512345678Z") {
				return at, rest // only kubectl prints nine digits
			}
		}
	}
	return time.Time{}, s
}

// clean drops colours and control characters.
func clean(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 && r != '\t' || r == 0x7f }) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == 0x1b && i+1 < len(s) && s[i+1] == '[' {
			for i += 2; i < len(s) && (s[i] < 0x40 || s[i] > 0x7e); i++ {
			}
			continue
		}
		if c >= 0x20 && c != 0x7f || c == '\t' {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// isKlog: I0512 03:11:04.512345       1 file.go:12] message.
func isKlog(s string) bool {
	return len(s) > 22 && strings.IndexByte("IWEF", s[0]) >= 0 && digits(s[1:5]) && s[5] == ' ' && digits(s[6:8]) && s[8] == ':'
}

func parseKlog(s string, now time.Time) line {
	l := line{level: levels[strings.ToLower(s[:1])], header: true, text: s}
	stamp, _, _ := strings.Cut(s[6:], " ")
	if at, err := time.Parse("20060102 15:04:05.999999", strconv.Itoa(now.Year())+s[1:5]+" "+stamp); err == nil {
		if at.After(now.Add(24 * time.Hour)) {
			at = at.AddDate(-1, 0, 0)
		}
		l.at = at
	}
	if _, message, ok := strings.Cut(s, "] "); ok {
		l.text = message
	}
	// Structured klog quotes the error; its inner quotes are escaped.
	if before, quoted, ok := strings.Cut(l.text, ` err="`); ok {
		l.text = before + ` err="` + strings.ReplaceAll(quoted, `\"`, `"`)
	}
	return l
}

// parsePlain finds time and level at the beginning of a line.
func parsePlain(s string) line {
	l := line{text: s}
	at, rest := leadingTime(s)
	l.at, l.header = at, !at.IsZero()
	l.text = strings.TrimLeft(rest, " \t-]:,")
	if level, message, ok := leadingLevel(rest, l.header); ok {
		l.level, l.header, l.lead = level, true, max(0, len(l.text)-len(message))
		if strings.HasPrefix(message, "plugin/kubernetes: ") && strings.Contains(message, "ailed to ") {
			l.level = Error // CoreDNS logs client-go's errors as INFO
		}
		return l
	}
	for _, p := range fatalBeginnings {
		if strings.HasPrefix(l.text, p) {
			l.level = Fatal
		}
	}
	return l
}

// fatalBeginnings begin what a runtime prints when a program ends by itself.
var fatalBeginnings = []string{"panic: ", "fatal error: ", "Traceback (most recent call last)", "Unhandled exception", "Exception in thread", "thread '", "FATAL ERROR:", "PHP Fatal error:"}

// leadingTime reads a time at the beginning of a line, also in brackets.
func leadingTime(s string) (time.Time, string) {
	rest := s
	if i := strings.IndexAny(s, "0123456789"); i > 0 && i <= 4 && strings.ContainsAny(s[:i], "[,") {
		rest = s[i:] // "[2026-…" and Ruby's "E, [2026-…"
	}
	if at, after, ok := redisTime(s); ok {
		return at, after
	}
	if at, after, ok := boostTime(s); ok {
		return at, after
	}
	if len(rest) < 19 || !digits(rest[:4]) || (rest[4] != '-' && rest[4] != '/') || rest[13] != ':' {
		return time.Time{}, s
	}
	day := strings.ReplaceAll(rest[:10], "/", "-")
	clock := rest[11:19]
	end := 19
	if end < len(rest) && (rest[end] == '.' || rest[end] == ',') {
		from := end
		for end++; end < len(rest) && rest[end] >= '0' && rest[end] <= '9'; end++ {
		}
		clock += "." + rest[from+1:end]
	}
	zone := "Z"
	switch tail := rest[end:]; {
	case strings.HasPrefix(tail, "Z"):
		end++
	case len(tail) >= 6 && (tail[0] == '+' || tail[0] == '-') && digits(tail[1:3]) && tail[3] == ':':
		zone, end = tail[:6], end+6
	case len(tail) >= 5 && (tail[0] == '+' || tail[0] == '-') && digits(tail[1:5]):
		zone, end = tail[:3]+":"+tail[3:5], end+5
	case strings.HasPrefix(tail, " UTC"):
		end += 4
	}
	at, err := time.Parse(time.RFC3339Nano, day+"T"+clock+zone)
	if err != nil {
		return time.Time{}, s
	}
	return at.UTC(), rest[end:]
}

// redisTime: 1:S 12 May 2026 03:11:04.512 # message, where # is a warning.
func redisTime(s string) (time.Time, string, bool) {
	parts := strings.SplitN(s, " ", 7)
	if len(parts) < 7 || len(parts[0]) < 3 || !strings.Contains("XCSM", parts[0][len(parts[0])-1:]) || parts[0][len(parts[0])-2] != ':' {
		return time.Time{}, s, false
	}
	at, err := time.Parse("02 Jan 2006 15:04:05.000", strings.Join(parts[1:5], " "))
	if err != nil {
		return time.Time{}, s, false
	}
	mark := map[string]string{"#": "[warning] ", "*": "[notice] ", "-": "[info] ", ".": "[debug] "}[parts[5]]
	return at, mark + parts[6], true
}

// boostTime: [2026-May-12 03:11:04.512345] <info>: message, of C++ programs.
// Source: boostorg/log, the default format of TimeStamp attributes.
func boostTime(s string) (time.Time, string, bool) {
	rest := strings.TrimPrefix(s, "[")
	if len(rest) < 20 || rest[4] != '-' || rest[8] != '-' || rest[11] != ' ' || !digits(rest[:4]) {
		return time.Time{}, s, false
	}
	end := strings.IndexFunc(rest[20:], func(r rune) bool { return r != '.' && (r < '0' || r > '9') }) + 20
	if end < 20 {
		end = len(rest)
	}
	at, err := time.Parse("2006-Jan-02 15:04:05", strings.TrimSuffix(rest[:20], "."))
	if err != nil {
		if at, err = time.Parse("2006-Jan-02 15:04:05.999999", rest[:end]); err != nil {
			return time.Time{}, s, false
		}
	}
	return at, rest[end:], true
}

// leadingLevel finds the level among the first words. In lower case a word
// counts only in brackets, between tabs or before a colon; in upper case
// anywhere before the message.
func leadingLevel(s string, timed bool) (Level, string, bool) {
	const width = 110
	head := s[:min(len(s), width)]
	start := 0
	for n := 0; start < len(head) && n < 12; n++ {
		for start < len(head) && strings.IndexByte(" \t[]()|<>-,;", head[start]) >= 0 {
			start++
		}
		end := start
		for end < len(head) && strings.IndexByte(" \t[]()|<>:,;=", head[end]) < 0 {
			end++
		}
		word := head[start:end]
		level, known := levels[strings.ToLower(word)]
		if known && len(word) > 1 {
			before, after := byte(' '), byte(' ')
			if start > 0 {
				before = head[start-1]
			}
			if end < len(head) {
				after = head[end]
			}
			upper := word == strings.ToUpper(word)
			marked := before == '[' || before == '<' || before == '|' || after == ']' || after == '|' || before == '\t' && after == '\t' || after == ':' && n == 0
			if marked || upper && (n == 0 || timed || n < 4) && after != '=' || timed && n == 0 && after == ' ' {
				if start == 0 && after == ':' {
					return level, s, true // "panic: …" is the message as well
				}
				return level, strings.TrimLeft(s[end:], " \t]:|>-"), true
			}
		}
		if end == start {
			end++
		}
		start = end
	}
	return Unknown, s, false
}

func digits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}
