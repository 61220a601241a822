package logread

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"time"
)

// Limits that keep the memory of one log constant.
const (
	maxLine  = 64 << 10 // bytes of a line; the rest is dropped
	maxEntry = 24 << 10 // bytes of an entry with its stack trace
)

// An entry is a line with those that belong to it, such as its stack trace.
type entry struct {
	line
	block block
	blank int // empty lines since the last that isn't
}

// A block is what kind of text goes on over several lines.
type block int

const (
	single     block = iota
	traceback        // Python: indented frames, then the exception
	tracedBack       // Python: the exception was read
	goPanic          // Go: until an entry that begins for sure
	nodeError        // Node.js: source, message, frames, "Node.js v20…"
	report           // Spring Boot's "APPLICATION FAILED TO START"
)

// lines yields each line without its end and colours.
func lines(r io.Reader, limit int64, yield func(string)) (bytes int64, cut bool, err error) {
	reader := bufio.NewReaderSize(r, maxLine)
	for {
		text, err := reader.ReadSlice('\n')
		bytes += int64(len(text))
		if len(text) > 0 {
			yield(clean(strings.TrimRight(string(text), "\r\n")))
		}
		for errors.Is(err, bufio.ErrBufferFull) {
			text, err = reader.ReadSlice('\n')
			bytes += int64(len(text))
		}
		switch {
		case errors.Is(err, io.EOF):
			return bytes, false, nil
		case err != nil:
			return bytes, true, err
		case bytes >= limit:
			return bytes, true, nil
		}
	}
}

// entries joins lines to entries.
func (x *reading) entries(r io.Reader, limit int64) (bytes int64, cut bool, err error) {
	now := x.options.Now
	var current *entry
	flush := func() {
		if current != nil {
			x.entry(current)
		}
		current = nil
	}
	bytes, cut, err = lines(r, limit, func(s string) {
		if strings.TrimSpace(s) == "" {
			if current != nil {
				current.blank++
			}
			return
		}
		x.tail(s)
		_, inner := unwrap(s)
		if current != nil && current.goesOn(inner, now) {
			current.add(inner)
			return
		}
		flush()
		if quiet(s) && !x.signatures.MayMatch(s) {
			x.entry(&entry{line: line{level: Info, at: quietTime(s), header: true}})
			return
		}
		l := parse(s, now)
		current = &entry{line: l, block: beginning(l.text)}
	})
	flush()
	return bytes, cut, err
}

// quiet reports whether a line is JSON of level info or below, most of what
// most programs log: if no signature may match it need not be taken apart.
func quiet(s string) bool {
	if !strings.HasPrefix(s, "{") {
		return false
	}
	for _, level := range [...]string{`"level":"info"`, `"level":"INFO"`, `"level":"debug"`, `"level":"DEBUG"`, `"level":30`, `"severity":"INFO"`} {
		if strings.Contains(s, level) {
			return true
		}
	}
	return false
}

func quietTime(s string) time.Time {
	for _, key := range timeKeys {
		if _, rest, ok := strings.Cut(s, `"`+key+`":"`); ok {
			at, _ := leadingTime(rest)
			return at
		}
	}
	return time.Time{}
}

func (e *entry) add(s string) {
	e.blank = 0
	if e.block == traceback && !indented(s) && !strings.HasPrefix(s, "Traceback") {
		e.block = tracedBack
	} else if e.block == tracedBack && strings.HasPrefix(s, "Traceback") {
		e.block = traceback
	} else if e.block == single {
		e.block = beginning(s)
	}
	if e.level == Unknown {
		e.level = parsePlain(s).level
	}
	// Of an endless trace the lines that say something are kept.
	if len(e.text) < maxEntry/2 || !indented(s) && len(e.text) < maxEntry {
		e.text += "\n" + s
	}
}

func beginning(s string) block {
	switch {
	case strings.HasPrefix(s, "Traceback (most recent call last)"), strings.Contains(s, "\nTraceback (most recent call last)"):
		return traceback
	case strings.HasPrefix(s, "panic: "), strings.HasPrefix(s, "fatal error: "), strings.HasPrefix(s, "goroutine "), strings.HasPrefix(s, "SIGSEGV: "), strings.HasPrefix(s, "runtime: "):
		return goPanic
	case nodeSource(s):
		return nodeError
	case strings.HasPrefix(s, "***********"), s == "APPLICATION FAILED TO START":
		return report
	}
	return single
}

// nodeSource: "node:net:1607", "/app/server.js:10", before the failing source.
func nodeSource(s string) bool {
	i := strings.LastIndexByte(s, ':')
	if i < 0 || !digits(s[i+1:]) || strings.ContainsAny(s, " \t") {
		return false
	}
	file := s[:i]
	return strings.HasPrefix(s, "node:") || strings.HasPrefix(s, "internal/") || strings.HasSuffix(file, "js") || strings.HasSuffix(file, ".ts")
}

func indented(s string) bool { return s != "" && (s[0] == ' ' || s[0] == '\t') }

// goesOn reports whether a line belongs to the entry.
func (e *entry) goesOn(s string, now time.Time) bool {
	if indented(s) {
		return true
	}
	for _, p := range [...]string{"Caused by: ", "Suppressed: ", "caused by: ", "DETAIL: ", "HINT: ", "goroutine ", "(Background on this error", "[SQL: ", "[parameters: ", "--- End of ", "--> "} {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	switch e.block {
	case traceback:
		return true
	case tracedBack:
		return strings.HasPrefix(s, "Traceback") || strings.HasPrefix(s, "During handling of the above") || strings.HasPrefix(s, "The above exception was")
	case goPanic, report:
		return !parse(s, now).header
	case nodeError:
		if strings.HasPrefix(s, "Node.js v") {
			e.block = single
			return true
		}
		return !parse(s, now).header || strings.Contains(s, "Error: ") && !strings.HasPrefix(s, "{")
	}
	return e.blank == 0 && (s == "}" || s == "]" || s == ")" || s == "];")
}
