package report

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"

	"github.com/pposiraegi/ppodoctor/diagnose"
)

// mermaid is a flowchart of every cause's chain.
func mermaid(b *bytes.Buffer, dirty *diagnose.Diagnosis, _ Options) error {
	d, err := cleaned(dirty)
	if err != nil {
		return err
	}
	flowchart(b, d.Causes...)
	return nil
}

// flowchart draws the chains; a step of several chains is drawn in each.
func flowchart(b *bytes.Buffer, causes ...diagnose.Cause) {
	b.WriteString("flowchart LR\n")
	for c, cause := range causes {
		for i, s := range cause.Chain {
			label := mermaidText(s.Title) + "<br/>" + mermaidText(s.Subject.String())
			if s.Count > 1 {
				label += fmt.Sprintf("<br/>×%d", s.Count)
			}
			fmt.Fprintf(b, "  c%ds%d[\"%s\"]\n", c+1, i+1, label)
		}
		for _, e := range links(cause.Chain) {
			fmt.Fprintf(b, "  c%ds%d --> c%ds%d\n", c+1, e[0]+1, c+1, e[1]+1)
		}
		if len(cause.Chain) > 0 {
			fmt.Fprintf(b, "  class c%ds1 cause\n", c+1)
		}
	}
	b.WriteString("  classDef cause stroke:#b3261e,stroke-width:3px\n")
}

// mermaidText spells every character that could mean something to Mermaid or
// to HTML as an entity code.
// Source: mermaid.js.org, flowchart syntax, "Entity codes to escape characters".
func mermaidText(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.Is(unicode.M, r) || strings.ContainsRune(" -_./,:", r) {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, "#%d;", r)
		}
	}
	return b.String()
}
