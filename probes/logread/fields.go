package logread

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// What the fields of structured logs are called, most usual first: zap, zerolog,
// logrus, slog, pino, bunyan, log4j's JsonLayout, ECS, serilog, MongoDB, tracing.
var (
	messageKeys = []string{"msg", "message", "fields.message", "event", "@m", "@mt", "log", "body", "short_message", "text", "MESSAGE"}
	levelKeys   = []string{"level", "lvl", "severity", "log.level", "levelname", "@l", "s", "l", "loglevel", "severityText", "level_name"}
	timeKeys    = []string{"ts", "time", "timestamp", "@timestamp", "t", "@t", "t.$date", "date", "datetime", "asctime", "instant"}
	errorNames  = []string{"error", "err", "errors", "exception", "reason", "cause", "detail", "details", "errmsg", "errorMessage", "error_message", "exc", "@x", "failure", "codeName", "response_flags", "upstream_transport_failure_reason", "response_code_details"}
	stackNames  = []string{"stack", "stacktrace", "stack_trace", "exc_info", "backtrace", "traceback", "errorVerbose"}
)

const maxFields = 64

// parseJSON flattens an object; ok is false where the line is none.
func parseJSON(s string) (fields map[string]string, ok bool) {
	var object map[string]any
	decoder := json.NewDecoder(strings.NewReader(s))
	decoder.UseNumber()
	if decoder.Decode(&object) != nil || len(object) == 0 {
		return nil, false
	}
	fields = map[string]string{}
	flatten(fields, "", object, 0)
	return fields, true
}

func flatten(into map[string]string, prefix string, object map[string]any, depth int) {
	for _, key := range slices.Sorted(maps.Keys(object)) {
		if len(into) >= maxFields {
			return
		}
		switch v := object[key].(type) {
		case string:
			into[prefix+key] = v
		case json.Number:
			into[prefix+key] = v.String()
		case bool:
			into[prefix+key] = strconv.FormatBool(v)
		case map[string]any:
			if depth < 3 {
				flatten(into, prefix+key+".", v, depth+1)
			}
		case []any:
			if text, err := json.Marshal(v); err == nil && len(text) < 1000 {
				into[prefix+key] = string(text)
			}
		}
	}
}

// isLogfmt reports whether a line has a level or a message as key=value.
func isLogfmt(s string) bool {
	key, _, ok := strings.Cut(s, "=")
	if !ok || key == "" || strings.ContainsAny(key, " \t[]{}()\"'/:") {
		return false
	}
	for _, k := range []string{"level=", "lvl=", "msg=", "err=", "severity="} {
		if i := strings.Index(s, k); i == 0 || i > 0 && s[i-1] == ' ' {
			return true
		}
	}
	return false
}

func parseLogfmt(s string) map[string]string {
	fields := map[string]string{}
	for s = strings.TrimLeft(s, " "); s != "" && len(fields) < maxFields; s = strings.TrimLeft(s, " ") {
		end := strings.IndexAny(s, "= ")
		if end < 0 || s[end] == ' ' {
			if end < 0 {
				end = len(s) - 1
			}
			s = s[end+1:] // a word without a value
			continue
		}
		key := s[:end]
		var value string
		if value, s = logfmtValue(s[end+1:]); key != "" {
			fields[key] = value
		}
	}
	return fields
}

func logfmtValue(s string) (value, rest string) {
	if !strings.HasPrefix(s, `"`) {
		value, rest, _ = strings.Cut(s, " ")
		return value, rest
	}
	end := 1
	for end < len(s) && s[end] != '"' {
		if s[end] == '\\' {
			end++
		}
		end++
	}
	if end >= len(s) {
		return s[1:], ""
	}
	value, err := strconv.Unquote(s[:end+1])
	if err != nil {
		value = s[1:end]
	}
	return value, s[end+1:]
}

// structured makes a line of fields: its text is the message, then the errors,
// then the stack.
func structured(fields map[string]string) line {
	l := line{fields: fields, header: true}
	l.level = levelOf(first(fields, levelKeys))
	l.at = timeOf(first(fields, timeKeys))
	parts := []string{}
	add := func(text string) {
		text = strings.TrimSpace(text)
		if text != "" && !slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(p, text) }) {
			parts = append(parts, text)
		}
	}
	add(first(fields, messageKeys))
	var stacks []string
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		segments := strings.Split(key, ".")
		name := segments[len(segments)-1]
		switch {
		case slices.Contains(errorNames, name):
			add(fields[key])
		case slices.Contains(stackNames, name):
			stacks = append(stacks, fields[key])
		case len(segments) > 1 && (name == "message" || name == "msg" || name == "type" || name == "code" || name == "name") && slices.Contains(errorNames, segments[len(segments)-2]):
			add(fields[key])
		}
	}
	l.text = strings.Join(parts, ": ")
	if l.text == "" && len(stacks) == 0 {
		for _, key := range slices.Sorted(maps.Keys(fields)) {
			parts = append(parts, key+"="+fields[key])
		}
		l.text = strings.Join(parts, " ")
	}
	for _, s := range stacks {
		l.text += "\n" + strings.TrimSpace(s)
	}
	return l
}

func first(fields map[string]string, keys []string) string {
	for _, k := range keys {
		if v := fields[k]; v != "" {
			return v
		}
	}
	return ""
}

// levelOf reads a level's name, or pino's and bunyan's number.
func levelOf(s string) Level {
	if n, err := strconv.Atoi(s); err == nil {
		switch {
		case n >= 60:
			return Fatal
		case n >= 50:
			return Error
		case n >= 40:
			return Warn
		case n >= 30:
			return Info
		case n >= 10:
			return Debug
		}
		return Unknown
	}
	return levels[strings.ToLower(s)]
}

// timeOf reads a time as text, or as seconds or milliseconds since 1970.
func timeOf(s string) time.Time {
	if n, err := strconv.ParseFloat(s, 64); err == nil {
		switch {
		case n > 1e17 && n < 4e18:
			return time.Unix(0, int64(n)).UTC()
		case n > 1e11 && n < 4e12:
			return time.UnixMilli(int64(n)).UTC()
		case n > 1e8 && n < 4e9:
			return time.UnixMicro(int64(n * 1e6)).UTC()
		}
		return time.Time{}
	}
	at, _ := leadingTime(s)
	return at
}
