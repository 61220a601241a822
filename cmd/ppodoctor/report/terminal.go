package report

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/term"
)

// Terminal is what can be known of an output without asking it anything: its
// width, whether it shows colours, and its background. A file or a pipe is 80
// columns without colour. NO_COLOR and TERM=dumb switch colour off.
// Sources: no-color.org; rxvt's COLORFGBG.
func Terminal(out *os.File, getenv func(string) string) Options {
	opts := Options{Width: 80}
	if !term.IsTerminal(int(out.Fd())) {
		return opts
	}
	if width, _, err := term.GetSize(int(out.Fd())); err == nil && width > 0 {
		opts.Width = width
	}
	name := getenv("TERM")
	opts.Color = getenv("NO_COLOR") == "" && name != "" && name != "dumb"
	colours := strings.Split(getenv("COLORFGBG"), ";")
	if background, err := strconv.Atoi(colours[len(colours)-1]); err == nil {
		dark := background < 7 || background == 8
		opts.Dark = &dark
	}
	return opts
}
