package report

import (
	"fmt"
	"math"
	"time"

	"github.com/pposiraegi/ppodoctor/diagnose"
)

// A plot is the timeline on an axis whose long gaps are shortened: a distance
// is the square root of the time between.
type plot struct {
	Width, Height, Axis float64
	Points              []plotPoint
	Ticks               []plotTick
}

type plotPoint struct {
	X, Y   float64
	Number int
	Kind   string // "change", "symptom", ""
	Label  string
}

type plotTick struct {
	X    float64
	Text string
}

// newPlot lays the moments out over a width. Changes stand above the axis,
// symptoms below; those that would overlap are stacked.
func newPlot(moments []diagnose.Moment, width float64, clock func(time.Time) string) *plot {
	const margin, apart, rise, tick = 34, 22, 22, 64
	place := make([]float64, len(moments))
	for i := range moments {
		if i > 0 {
			place[i] = place[i-1] + math.Sqrt(max(moments[i].At.Sub(moments[i-1].At).Seconds(), 0))
		}
	}
	scale := 0.0
	if last := place[len(place)-1]; last > 0 {
		scale = (width - 2*margin) / last
	}
	p := &plot{Width: width}
	levels := map[bool][]float64{} // per side, the last X of each level
	above, below := 0, 0
	lastTick := math.Inf(-1)
	for i, m := range moments {
		x := margin + place[i]*scale
		down := m.Kind == "symptom"
		level := 0
		for level < len(levels[down]) && x-levels[down][level] < apart {
			level++
		}
		if level == len(levels[down]) {
			levels[down] = append(levels[down], x)
		} else {
			levels[down][level] = x
		}
		y := -float64(rise * (level + 1))
		if down {
			y = float64(rise*(level+1)) + 18
			below = max(below, level+1)
		} else {
			above = max(above, level+1)
		}
		p.Points = append(p.Points, plotPoint{
			X: x, Y: y, Number: i + 1, Kind: m.Kind,
			Label: fmt.Sprintf("%d: %s %s %s", i+1, clock(m.At), m.Subject, m.What),
		})
		if x-lastTick >= tick {
			p.Ticks = append(p.Ticks, plotTick{X: x, Text: clock(m.At)})
			lastTick = x
		}
	}
	p.Axis = float64(rise*above) + 16
	p.Height = p.Axis + 26 + float64(rise*below) + 8
	for i := range p.Points {
		p.Points[i].Y += p.Axis
	}
	return p
}
