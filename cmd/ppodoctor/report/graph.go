package report

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/charmbracelet/x/ansi"
	"github.com/dop251/goja"
	"github.com/pposiraegi/ppodoctor/diagnose"
)

//go:embed dagre/dagre.min.js
var dagreSource string

// layoutScript places boxes and routes edges; what goes in and comes out is JSON.
const layoutScript = `(function (input) {
	var it = JSON.parse(input), g = new dagre.graphlib.Graph();
	g.setGraph({rankdir: it.dir, ranksep: 44, nodesep: 18, marginx: 2, marginy: 2});
	it.boxes.forEach(function (b, i) { g.setNode("" + i, {width: b.w, height: b.h}); });
	it.edges.forEach(function (e) { g.setEdge("" + e[0], "" + e[1], {}); });
	dagre.layout(g);
	return JSON.stringify({
		width: g.graph().width, height: g.graph().height,
		boxes: it.boxes.map(function (b, i) { var n = g.node("" + i); return {x: n.x - b.w / 2, y: n.y - b.h / 2, w: b.w, h: b.h}; }),
		lines: it.edges.map(function (e) { return g.edge("" + e[0], "" + e[1]).points; })
	});
})`

type point struct{ X, Y float64 }

type box struct {
	X float64 `json:"x"`
	Y float64 `json:"y"`
	W float64 `json:"w"`
	H float64 `json:"h"`
}

type laidOut struct {
	Width, Height float64
	Boxes         []box
	Lines         [][]point
}

// A layouter runs dagre, a layered graph layout, in a JavaScript engine: 11 MB
// of binary and 40 ms a page, nothing at start. Graphviz as WebAssembly costs
// every command 0.7 s at start, d2 twice the size.
type layouter struct{ run func(string) (string, error) }

func newLayouter() (*layouter, error) {
	vm := goja.New()
	// dagre clones plain data with a function of browsers.
	if _, err := vm.RunString(`var structuredClone = function (v) { return JSON.parse(JSON.stringify(v)); }`); err != nil {
		return nil, err
	}
	if _, err := vm.RunScript("dagre.min.js", dagreSource); err != nil {
		return nil, fmt.Errorf("loading the graph layout: %w", err)
	}
	f, err := vm.RunString(layoutScript)
	if err != nil {
		return nil, fmt.Errorf("loading the graph layout: %w", err)
	}
	l := &layouter{}
	return l, vm.ExportTo(f, &l.run)
}

// lay places boxes in a direction, "LR": left to right.
func (l *layouter) lay(dir string, boxes []box, edges [][2]int) (*laidOut, error) {
	in, err := json.Marshal(map[string]any{"dir": dir, "boxes": boxes, "edges": edges})
	if err != nil {
		return nil, err
	}
	out, err := l.run(string(in))
	if err != nil {
		return nil, fmt.Errorf("laying out the graph: %w", err)
	}
	laid := new(laidOut)
	return laid, json.Unmarshal([]byte(out), laid)
}

// A drawing is a causal graph ready to be put into SVG.
type drawing struct {
	Dir           string
	Width, Height float64
	Nodes         []drawnStep
	Lines         []string // SVG paths
}

type drawnStep struct {
	box
	Step int    // its index in the chain
	Kind string // "cause", "state", "symptom"
	Rows []drawnRow
}

type drawnRow struct {
	Y     float64
	Class string
	Text  string
}

const (
	stepWidth = 244
	titleCols = 27 // columns of a title that fit the width, in any browser's sans-serif
	stepCols  = 31 // columns of the subject, which is in a fixed width
	rowHeight = 17
)

// draw lays out the chain of a cause: "LR" for a wide screen, "TB" for a
// narrow one.
func (l *layouter) draw(dir string, c diagnose.Cause, meta func(diagnose.Step) string) (*drawing, error) {
	d := &drawing{Dir: dir}
	boxes := make([]box, len(c.Chain))
	edges := links(c.Chain)
	for i, s := range c.Chain {
		node := drawnStep{Step: i, Kind: "state"}
		if len(s.Explains) == 0 && i > 0 {
			node.Kind = "symptom"
		}
		if i == 0 {
			node.Kind = "cause"
		}
		row := func(class string, texts []string, cols, most int) {
			if len(texts) > most {
				texts = append(texts[:most-1:most-1], ansi.Truncate(strings.Join(texts[most-1:], " "), cols, "…"))
			}
			for _, text := range texts {
				node.Rows = append(node.Rows, drawnRow{Y: 6 + rowHeight*float64(len(node.Rows)+1), Class: class, Text: text})
			}
		}
		row("t", wrap(s.Title, titleCols, titleCols), titleCols, 4)
		row("s", subjectRows(s.Subject), stepCols, 3)
		if m := meta(s); m != "" {
			row("m", []string{m}, stepCols, 1)
		}
		boxes[i] = box{W: stepWidth, H: rowHeight*float64(len(node.Rows)) + 18}
		d.Nodes = append(d.Nodes, node)
	}
	laid := stack(boxes, edges)
	if dir == "LR" {
		var err error
		if laid, err = l.lay(dir, boxes, edges); err != nil {
			return nil, err
		}
	}
	d.Width, d.Height = laid.Width, laid.Height
	for i := range d.Nodes {
		d.Nodes[i].box = laid.Boxes[i]
	}
	for _, points := range laid.Lines {
		d.Lines = append(d.Lines, path(points, dir == "LR"))
	}
	return d, nil
}

// links are the edges of a chain: from each step to what follows from it.
func links(chain []diagnose.Step) [][2]int {
	var edges [][2]int
	for i, s := range chain {
		for _, to := range s.Explains {
			if to >= 0 && to < len(chain) && to != i {
				edges = append(edges, [2]int{i, to})
			}
		}
	}
	return edges
}

// subjectRows breaks a long subject before its name.
func subjectRows(ref diagnose.Ref) []string {
	full := ref.String()
	if ansi.StringWidth(full) <= stepCols {
		return []string{full}
	}
	return append(hard(strings.TrimSuffix(full, ref.Name), stepCols), hard(ref.Name, stepCols)...)
}

// stack is the layout for a narrow screen: a step a row, indented under what
// it follows from.
func stack(boxes []box, edges [][2]int) *laidOut {
	const indent, gap = 22, 14
	laid := &laidOut{Boxes: make([]box, len(boxes)), Lines: make([][]point, len(edges))}
	placed := make([]bool, len(boxes))
	var place func(i, depth int)
	place = func(i, depth int) {
		if placed[i] {
			return
		}
		placed[i] = true
		b := box{X: 2 + indent*float64(min(depth, 4)), Y: laid.Height + 2, W: boxes[i].W, H: boxes[i].H}
		laid.Boxes[i] = b
		laid.Width, laid.Height = max(laid.Width, b.X+b.W+2), b.Y+b.H+gap
		for _, e := range edges {
			if e[0] == i {
				place(e[1], depth+1)
			}
		}
	}
	for i := range boxes {
		place(i, 0)
	}
	for i, e := range edges {
		from, to := laid.Boxes[e[0]], laid.Boxes[e[1]]
		x, y := from.X+indent/2, to.Y+to.H/2
		laid.Lines[i] = []point{{x, from.Y + from.H}, {x, y}, {to.X, y}}
	}
	return laid
}

// path is an SVG path through points; a curved one leaves and arrives level.
func path(points []point, curved bool) string {
	var b strings.Builder
	for i, p := range points {
		switch {
		case i == 0:
			fmt.Fprintf(&b, "M%.1f %.1f", p.X, p.Y)
		case curved:
			from := points[i-1]
			middle := (from.X + p.X) / 2
			fmt.Fprintf(&b, " C%.1f %.1f %.1f %.1f %.1f %.1f", middle, from.Y, middle, p.Y, p.X, p.Y)
		default:
			fmt.Fprintf(&b, " L%.1f %.1f", p.X, p.Y)
		}
	}
	return b.String()
}
