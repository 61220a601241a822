package report

import (
	"io"
	"strings"

	"github.com/charmbracelet/lipgloss"
	"github.com/charmbracelet/x/ansi"
	"github.com/muesli/termenv"
)

// A page is text laid out to a width. All text that it takes is cleaned;
// leads (bullets, guides) are ours.
type page struct {
	b     strings.Builder
	width int
	styles
}

type styles struct {
	plain, bold, dim, bad, good, warn, command lipgloss.Style
}

// newStyles uses the terminal's own sixteen colours, which its theme keeps
// readable; where the background is known, also shades that fit it.
func newStyles(opts Options) styles {
	r := lipgloss.NewRenderer(io.Discard)
	r.SetColorProfile(termenv.Ascii)
	if opts.Color {
		r.SetColorProfile(termenv.ANSI256)
	}
	shade := func(unknown, light, dark string) lipgloss.Style {
		switch {
		case opts.Dark == nil:
			return r.NewStyle().Foreground(lipgloss.Color(unknown))
		case *opts.Dark:
			return r.NewStyle().Foreground(lipgloss.Color(dark))
		}
		return r.NewStyle().Foreground(lipgloss.Color(light))
	}
	return styles{
		plain:   r.NewStyle(),
		bold:    r.NewStyle().Bold(true),
		dim:     r.NewStyle().Faint(true),
		bad:     shade("1", "124", "203").Bold(true),
		good:    shade("2", "28", "114"),
		warn:    shade("5", "130", "215"),
		command: shade("6", "25", "117"),
	}
}

// line writes text after a lead; what doesn't fit goes on beneath it, after
// a lead of rest.
func (p *page) line(lead, rest, text string, style lipgloss.Style) {
	for i, part := range wrap(clean(text), p.width-ansi.StringWidth(lead), p.width-ansi.StringWidth(rest)) {
		if i > 0 {
			lead = rest
		}
		p.put(lead + style.Render(part))
	}
}

func (p *page) put(line string) {
	p.b.WriteString(strings.TrimRight(line, " ") + "\n")
}

func (p *page) blank() {
	if p.b.Len() > 0 && !strings.HasSuffix(p.b.String(), "\n\n") {
		p.b.WriteByte('\n')
	}
}

// cmd writes a command so that it can be copied: it breaks only between words,
// with a backslash, a word that is too long stays whole, and no guide stands
// before the lines that go on.
func (p *page) cmd(indent, text string) {
	blank := strings.Repeat(" ", ansi.StringWidth(indent))
	for i, line := range lines(text) {
		lead := indent + p.dim.Render("$ ")
		if i > 0 {
			lead = indent + p.dim.Render("> ")
		}
		line, comment := cutComment(line)
		for _, part := range continued(line, p.width-len(blank)-6) {
			p.put(lead + p.command.Render(part))
			lead = blank + in2
		}
		if comment != "" {
			p.line(blank+in1+p.dim.Render("# "), blank+in1+p.dim.Render("# "), comment, p.dim)
		}
	}
}

// block writes a text of several lines behind a bar, so that none of them can
// pass for a line of the report. It is code: a line that is too long stays
// whole.
func (p *page) block(indent, text string) {
	for _, line := range lines(text) {
		p.put(indent + p.dim.Render("│ ") + line)
	}
}

// wrap breaks text at spaces into lines of at most width columns, the first of
// at most first; a word that is wider than a line is broken where it must.
func wrap(text string, first, width int) []string {
	var out []string
	line, room := "", max(first, 8)
	for _, word := range strings.Fields(text) {
		if line != "" && ansi.StringWidth(line)+1+ansi.StringWidth(word) <= room {
			line += " " + word
			continue
		}
		if line != "" {
			out = append(out, line)
			room = max(width, 8)
		}
		pieces := hard(word, room)
		if len(pieces) > 1 {
			room = max(width, 8)
		}
		out = append(out, pieces[:len(pieces)-1]...)
		line = pieces[len(pieces)-1]
	}
	return append(out, line)
}

// hard cuts text into pieces of at most width columns, where it can behind a
// mark of punctuation.
func hard(text string, width int) []string {
	width = max(width, 8)
	var out []string
	for ansi.StringWidth(text) > width {
		piece := ansi.Truncate(text, width, "")
		if piece == "" {
			break
		}
		if at := strings.LastIndexAny(piece, "./:,;=_-&?") + 1; at > len(piece)/2 {
			piece = piece[:at]
		}
		out = append(out, piece)
		text = text[len(piece):]
	}
	return append(out, text)
}

// shellWords splits a command at the spaces outside of quotes.
func shellWords(command string) []string {
	var words []string
	var quote rune
	start, last := 0, rune(0)
	for i, r := range command {
		switch {
		case quote != 0:
			if r == quote && (quote == '\'' || last != '\\') {
				quote = 0
			}
		case (r == '\'' || r == '"') && last != '\\':
			quote = r
		case r == ' ' && last != '\\':
			words = append(words, command[start:i])
			start = i + 1
		}
		last = r
	}
	return append(words, command[start:])
}

// cutComment parts a command from the comment behind it.
func cutComment(command string) (line, comment string) {
	at := 0
	for _, word := range shellWords(command) {
		if strings.HasPrefix(word, "#") {
			return strings.TrimRight(command[:at], " "), strings.TrimLeft(command[at:], "# ")
		}
		at += len(word) + 1
	}
	return command, ""
}

// continued breaks a command between words outside of quotes, each line but
// the last ending in a backslash.
func continued(command string, width int) []string {
	words := shellWords(command)
	out := []string{words[0]}
	for i := 1; i < len(words); i++ {
		unit := words[i] // a flag stays with its value
		if strings.HasPrefix(unit, "-") && i+1 < len(words) && !strings.HasPrefix(words[i+1], "-") &&
			ansi.StringWidth(unit)+1+ansi.StringWidth(words[i+1]) <= width {
			i++
			unit += " " + words[i]
		}
		line := &out[len(out)-1]
		if ansi.StringWidth(*line)+1+ansi.StringWidth(unit) <= width {
			*line += " " + unit
			continue
		}
		*line += ` \`
		out = append(out, unit)
	}
	return out
}

// pad fills text with spaces to a number of columns, or cuts it.
func pad(text string, width int) string {
	text = ansi.Truncate(text, width, "…")
	return text + strings.Repeat(" ", width-ansi.StringWidth(text))
}
