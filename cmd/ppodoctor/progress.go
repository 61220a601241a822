package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/pposiraegi/ppodoctor/probes/live"
)

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// progress is one line on a terminal that says what is being read. It is gone
// as soon as nothing is.
type progress struct {
	mu      sync.Mutex
	w       io.Writer
	reading map[string]int // objects so far, by document
	last    time.Time
}

func newProgress(w io.Writer) *progress {
	return &progress{w: w, reading: map[string]int{}}
}

// clearLine goes to the start of the line and empties it (ECMA-48, EL).
const clearLine = "\r\x1b[K"

func (p *progress) tell(at live.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reading[at.Document.Path] = at.Objects; at.Done {
		delete(p.reading, at.Document.Path)
	}
	if len(p.reading) == 0 {
		fmt.Fprint(p.w, clearLine)
		return
	}
	if time.Since(p.last) < 100*time.Millisecond {
		return
	}
	p.last = time.Now()
	var parts []string
	for _, path := range slices.Sorted(maps.Keys(p.reading)) {
		if len(parts) == 3 {
			parts = append(parts, fmt.Sprintf("and %d more", len(p.reading)-3))
			break
		}
		if n := p.reading[path]; n > 0 {
			path = fmt.Sprintf("%s (%d)", path, n)
		}
		parts = append(parts, path)
	}
	fmt.Fprint(p.w, clearLine+"reading "+strings.Join(parts, ", "))
}
