// Package report renders a diagnosis for people and for machines. Its input is
// the JSON contract alone, so a report of a saved diagnosis is the same.
package report

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/pposiraegi/ppodoctor/diagnose"
)

// Options say how a person wants the report. Formats for machines ignore them.
type Options struct {
	Width   int   // columns, 60 to 200; 0 is 80
	Color   bool  // the output is a terminal that shows colours
	Dark    *bool // the terminal's background; nil is unknown
	Quiet   bool  // verdict and causes only
	Verbose bool  // every question with its answer
}

type renderer func(*bytes.Buffer, *diagnose.Diagnosis, Options) error

// A Format is one way to write a diagnosis.
type Format struct {
	Name   string
	About  string
	render renderer
}

// Formats are all that [Write] knows, in the order of a help text.
func Formats() []Format {
	return []Format{
		{"text", "for a terminal", text},
		{"json", "the contract with bots; see ppodoctor schema", asJSON},
		{"yaml", "the same as json", asYAML},
		{"markdown", "for a ticket or a postmortem", markdown},
		{"mermaid", "a flowchart of the causes' chains", mermaid},
		{"html", "one page with drawings, to look at or to send", html},
		{"sarif", "SARIF 2.1.0, for code scanning", sarif},
		{"junit", "JUnit XML, for a pipeline", junit},
		{"openmetrics", "metrics, for alerts", openMetrics},
		{"slack", "a Block Kit message", slack},
		{"pagerduty", "an event of the Events API v2 a line", pagerDuty},
	}
}

// Write renders d in a format of [Formats]. Nothing is written before the
// whole report is rendered.
func Write(w io.Writer, d *diagnose.Diagnosis, format string, opts Options) error {
	for _, f := range Formats() {
		if f.Name != format {
			continue
		}
		var page bytes.Buffer
		if err := f.render(&page, d, opts); err != nil {
			return fmt.Errorf("rendering %s: %w", format, err)
		}
		_, err := w.Write(page.Bytes())
		return err
	}
	return UnknownFormat(format)
}

// UnknownFormat is the error for a format that isn't one.
func UnknownFormat(name string) error {
	var names []string
	for _, f := range Formats() {
		names = append(names, f.Name)
	}
	return fmt.Errorf("unknown format %q: use one of %s", name, strings.Join(names, ", "))
}
