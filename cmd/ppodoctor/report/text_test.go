package report

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"

	"github.com/pposiraegi/ppodoctor/diagnose"
)

func TestText(t *testing.T) {
	for _, name := range samples {
		golden(t, name+".txt", render(t, sample(t, name), "text", Options{}))
	}
	golden(t, "dns.quiet.txt", render(t, sample(t, "dns"), "text", Options{Quiet: true}))
	golden(t, "dns.verbose.txt", render(t, sample(t, "dns"), "text", Options{Verbose: true}))
	golden(t, "dns.color.txt", render(t, sample(t, "dns"), "text", Options{Color: true}))
}

func TestTextFitsTheWidth(t *testing.T) {
	for _, name := range samples {
		var code []string // the lines of Terraform and manifests, which stay whole
		for _, c := range slices.Concat(sample(t, name).Causes, sample(t, name).Suspected, sample(t, name).Risks) {
			for _, r := range c.Remedies {
				for _, line := range append(lines(r.Terraform), lines(r.Manifest)...) {
					code = append(code, strings.TrimSpace("│ "+line))
				}
			}
		}
		for _, width := range []int{60, 73, 80, 120, 200} {
			for line := range strings.Lines(render(t, sample(t, name), "text", Options{Width: width, Verbose: true})) {
				line = strings.TrimSuffix(line, "\n")
				if _, isCode := strings.CutPrefix(strings.TrimLeft(line, " "), "│ "); isCode && slices.Contains(code, strings.TrimSpace(line)) {
					continue
				}
				if ansi.StringWidth(line) > width && !unbreakable(line) {
					t.Errorf("%s at %d columns: %d wide: %s", name, width, ansi.StringWidth(line), line)
				}
			}
		}
	}
}

// unbreakable reports a line of a command that holds one long word: cutting
// it would break the command.
func unbreakable(line string) bool {
	line = strings.TrimSuffix(strings.TrimLeft(line, " │$"), ` \`)
	return len(continued(line, 1)) == 1
}

func TestCommandsCanBeCopied(t *testing.T) {
	p := page{width: 60, styles: newStyles(Options{})}
	p.cmd("  ", `kubectl get nodeclaims -l karpenter.sh/nodepool=platform -o wide   # then delete those of the nodepool, one by one`)
	p.cmd("  ", `kubectl patch deployment/coredns -n kube-system -p '{"spec": {"replicas": 2}}' --type merge # "quoted"`)
	want := `  $ kubectl get nodeclaims \
      -l karpenter.sh/nodepool=platform -o wide
    # then delete those of the nodepool, one by one
  $ kubectl patch deployment/coredns -n kube-system \
      -p '{"spec": {"replicas": 2}}' --type merge
    # "quoted"
`
	if got := p.b.String(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestTextAnswersFirst(t *testing.T) {
	first, _, _ := strings.Cut(render(t, sample(t, "dns"), "text", Options{Width: 200}), "\n")
	for _, want := range []string{"✗", "DNS is cut off", "3 workloads", "EC2NodeClass/default"} {
		if !strings.Contains(first, want) {
			t.Errorf("line 1 lacks %q: %s", want, first)
		}
	}
}

// What a cluster's owner wrote must not act on the terminal, nor pass for a
// line of the report.
func TestTextIsHarmless(t *testing.T) {
	got := render(t, sample(t, "hostile"), "text", Options{Verbose: true})
	for _, r := range got {
		if r != '\n' && hidden(r) {
			t.Errorf("shows %U raw", r)
		}
	}
	ours := []string{"✗ ", "CAUSE  ", "UNEXPLAINED  ", "Timeline", "NOT SEEN", "To read next", "  ", "\n"}
	for line := range strings.Lines(got) {
		if !slices.ContainsFunc(ours, func(start string) bool { return strings.HasPrefix(line, start) }) {
			t.Errorf("a forged line: %s", line)
		}
	}
}

// In a large cluster the report stays one that a person reads.
func TestTextOfALargeIncident(t *testing.T) {
	d := sample(t, "suspected")
	for i := range 400 {
		d.Unexplained = append(d.Unexplained, d.Unexplained[0])
		g := d.Gaps[0]
		g.Detail = fmt.Sprintf("fault %d", i)
		d.Gaps = append(d.Gaps, g, d.Gaps[0]) // what says the same is folded
		d.Timeline = append(d.Timeline, d.Timeline[len(d.Timeline)-1])
		c := &d.Suspected[0]
		c.Chain[1].Explains = append(c.Chain[1].Explains, len(c.Chain))
		c.Chain = append(c.Chain, c.Chain[2])
	}
	short := render(t, d, "text", Options{})
	if n := strings.Count(short, "\n"); n > 400 {
		t.Errorf("%d lines", n)
	}
	if n := strings.Count(short, "(--verbose)"); n != 4 {
		t.Errorf("%d places say that there is more, not 4:\n%s", n, short)
	}
	if n := strings.Count(render(t, d, "text", Options{Verbose: true}), "\n"); n < 2000 {
		t.Errorf("--verbose has only %d lines", n)
	}
}

// Several causes are listed before the first of them is told at length.
func TestTextOfSeveralCauses(t *testing.T) {
	d := sample(t, "dns")
	other := d.Causes[0]
	other.Title, other.Subject = "claim data is full", diagnose.Ref{Kind: "PersistentVolumeClaim", Namespace: "store", Name: "data"}
	if strings.Contains(render(t, d, "text", Options{}), "\n  1 ") {
		t.Error("one cause is listed")
	}
	d.Causes = append(d.Causes, other)
	got := render(t, d, "text", Options{Width: 120})
	list := strings.Index(got, "\n  2 claim data is full — PersistentVolumeClaim/store/data (symptoms: ")
	if list < 0 || list > strings.Index(got, "CAUSE 1/2") {
		t.Errorf("the causes are not listed first:\n%s", got)
	}
}
