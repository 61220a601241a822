package report

import (
	"strings"
	"testing"
)

func TestMarkdown(t *testing.T) {
	golden(t, "dns.md", render(t, sample(t, "dns"), "markdown", Options{}))
	golden(t, "compared.md", render(t, sample(t, "compared"), "markdown", Options{}))
	golden(t, "hostile.md", render(t, sample(t, "hostile"), "markdown", Options{}))
	golden(t, "dns.mmd", render(t, sample(t, "dns"), "mermaid", Options{}))
	golden(t, "hostile.mmd", render(t, sample(t, "hostile"), "mermaid", Options{}))
}

func TestMarkdownIsHarmless(t *testing.T) {
	got := render(t, sample(t, "hostile"), "markdown", Options{})
	fence := ""
	for line := range strings.Lines(got) {
		line = strings.TrimSpace(line)
		if ticks := strings.TrimRight(line, "abcdefghijklmnopqrstuvwxyz"); strings.Trim(ticks, "`") == "" && len(ticks) >= 3 {
			switch fence {
			case "":
				fence = ticks
			case ticks:
				fence = ""
			}
			continue
		}
		if fence != "" {
			continue
		}
		for _, bad := range []string{"<img", "<script", "<!channel", " @here", "](javascript"} {
			if strings.Contains(line, bad) && !strings.Contains(line, "`") {
				t.Errorf("%q in %s", bad, line)
			}
		}
	}
	if fence != "" {
		t.Errorf("a fence %q is never closed", fence)
	}
}
