// Command screenshots makes the pictures of README.md: what the program shows
// of its demo in a terminal, and the HTML page in a browser.
//
//	go run ./testdata/screenshots bin/ppodoctor
//
// It needs script (util-linux) for a terminal and chromium for the pictures.
package main

import (
	"bytes"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

const (
	folder  = "testdata/screenshots"
	columns = 100
	rows    = 62 // of the text, from the top
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "screenshots:", err)
		os.Exit(1)
	}
}

func run(program string) error {
	dir, err := os.MkdirTemp("", "screenshots")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program, err = filepath.Abs(program)
	if err != nil {
		return err
	}
	scan := exec.Command("script", "-qec", fmt.Sprintf("%s scan --demo --width %d", program, columns), "/dev/null")
	scan.Env = append(os.Environ(), "TERM=xterm-256color", "NO_COLOR=")
	text, _ := scan.Output() // the scan ends with 1, for something is wrong
	if !bytes.Contains(text, []byte("EC2NodeClass")) {
		return fmt.Errorf("no report from %s", scan)
	}
	page := filepath.Join(dir, "text.html")
	if err := os.WriteFile(page, []byte(terminal("$ ppodoctor scan --demo\n"+string(text))), 0o600); err != nil {
		return err
	}
	if err := shoot(dir, page, "text.png", columns*8+58, rows*19+40); err != nil {
		return err
	}
	web, _ := exec.Command(program, "scan", "--demo", "-o", "html").Output()
	page = filepath.Join(dir, "page.html")
	if err := os.WriteFile(page, web, 0o600); err != nil {
		return err
	}
	return shoot(dir, page, "html.png", 1180, 1500)
}

func shoot(dir, page, name string, width, height int) error {
	out, err := exec.Command("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
		"--user-data-dir="+filepath.Join(dir, "profile"), fmt.Sprintf("--window-size=%d,%d", width, height),
		"--screenshot="+filepath.Join(folder, name), "file://"+page).CombinedOutput()
	if err != nil {
		return fmt.Errorf("chromium: %w: %s", err, out)
	}
	return nil
}

var sgr = regexp.MustCompile("\x1b\\[([0-9;]*)m")

// terminal is a page that looks as a dark terminal shows the text.
func terminal(text string) string {
	classes := map[string]string{"1": "b", "2": "d", "31": "red", "32": "green", "35": "magenta", "36": "cyan"}
	var b strings.Builder
	b.WriteString(`<!doctype html><meta charset="utf-8"><style>
body{margin:0;background:#16191f;color:#d7dbe2;padding:20px 24px} pre{margin:0;font:13.3px/19px "DejaVu Sans Mono",monospace}
.b{font-weight:700}.d{opacity:.62}.red{color:#ff7b72}.green{color:#7ee787}.magenta{color:#e2a5ff}.cyan{color:#79c0ff}</style><pre>`)
	lines := strings.Split(strings.ReplaceAll(text, "\r", ""), "\n")
	for _, line := range lines[:min(len(lines), rows)] {
		open, at := 0, 0
		for _, m := range sgr.FindAllStringSubmatchIndex(line, -1) {
			b.WriteString(html.EscapeString(line[at:m[0]]))
			at = m[1]
			if codes := line[m[2]:m[3]]; codes == "" || codes == "0" {
				b.WriteString(strings.Repeat("</span>", open))
				open = 0
			} else {
				var names []string
				for code := range strings.SplitSeq(codes, ";") {
					names = append(names, classes[code])
				}
				fmt.Fprintf(&b, `<span class="%s">`, strings.Join(names, " "))
				open++
			}
		}
		b.WriteString(html.EscapeString(line[at:]) + strings.Repeat("</span>", open) + "\n")
	}
	b.WriteString("</pre>")
	return b.String()
}
