package report

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
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
