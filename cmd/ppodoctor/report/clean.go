package report

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/pposiraegi/ppodoctor/diagnose"
)

// hidden reports whether a rune can change how others are shown: controls
// (escape sequences, C1), bidi overrides, zero-width and other format
// characters, private use, line and paragraph separators.
func hidden(r rune) bool {
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Cs, unicode.Zl, unicode.Zp) ||
		unicode.Is(unicode.Variation_Selector, r)
}

// clean makes untrusted text safe to show on one line: what could act on the
// terminal is spelled out (\x1b, \u202e), a line break is ⏎.
func clean(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case r == '\n':
			b.WriteString(" ⏎ ")
		case r == '\t':
			b.WriteByte(' ')
		case !hidden(r):
			b.WriteRune(r)
		default:
			b.WriteString(spelled(r))
		}
		s = s[size:]
	}
	return strings.TrimSpace(b.String())
}

func spelled(r rune) string {
	switch {
	case r < 0x100:
		return fmt.Sprintf(`\x%02x`, r)
	case r < 0x10000:
		return fmt.Sprintf(`\u%04x`, r)
	}
	return fmt.Sprintf(`\U%08x`, r)
}

// lines are the cleaned lines of a text that is meant to have several, with
// their indentation.
func lines(s string) []string {
	var out []string
	for line := range strings.SplitSeq(strings.TrimRight(s, "\n"), "\n") {
		line = strings.TrimRight(strings.ReplaceAll(line, "\t", "  "), " \r")
		indent := len(line) - len(strings.TrimLeft(line, " "))
		out = append(out, line[:indent]+clean(line))
	}
	return out
}

// cleaned is d with every text made safe to show: one line each, but for the
// commands, manifests and Terraform, which keep theirs.
func cleaned(d *diagnose.Diagnosis) (*diagnose.Diagnosis, error) {
	data, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	var tree any
	if err := json.Unmarshal(data, &tree); err != nil {
		return nil, err
	}
	if data, err = json.Marshal(cleanTree(tree, false)); err != nil {
		return nil, err
	}
	out := new(diagnose.Diagnosis)
	return out, json.Unmarshal(data, out)
}

func cleanTree(v any, several bool) any {
	switch v := v.(type) {
	case string:
		if several {
			return strings.Join(lines(v), "\n")
		}
		return clean(v)
	case []any:
		for i := range v {
			v[i] = cleanTree(v[i], several)
		}
	case map[string]any:
		for key := range v {
			v[key] = cleanTree(v[key], several ||
				key == "terraform" || key == "manifest" || key == "commands" || key == "command" || key == "run")
		}
	}
	return v
}
