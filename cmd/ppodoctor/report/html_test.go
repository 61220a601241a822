package report

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	html5 "golang.org/x/net/html"
)

func TestHTML(t *testing.T) {
	golden(t, "dns.html", render(t, sample(t, "dns"), "html", Options{}))
}

// A page must need no network and run no script but its own.
func TestHTMLIsSelfContained(t *testing.T) {
	for _, name := range samples {
		page := render(t, sample(t, name), "html", Options{})
		scripts := 0
		for z := html5.NewTokenizer(strings.NewReader(page)); z.Next() != html5.ErrorToken; {
			token := z.Token()
			if token.Type == html5.StartTagToken && token.Data == "script" {
				scripts++
			}
			if slices.Contains([]string{"link", "img", "iframe", "object", "embed", "base", "form"}, token.Data) && token.Type != html5.TextToken {
				t.Errorf("%s: a %s", name, token.Data)
			}
			for _, a := range token.Attr {
				if strings.HasPrefix(a.Key, "on") || slices.Contains([]string{"src", "srcset", "style", "action"}, a.Key) ||
					a.Key == "href" && !strings.HasPrefix(a.Val, "#") {
					t.Errorf("%s: %s=%q on %s", name, a.Key, a.Val, token.Data)
				}
			}
		}
		if scripts != 1 {
			t.Errorf("%s: %d scripts", name, scripts)
		}
		for _, r := range page {
			if r != '\n' && hidden(r) {
				t.Errorf("%s: %U raw", name, r)
			}
		}
	}
}

// Every link of the page leads somewhere, and no id is there twice.
func TestHTMLLinks(t *testing.T) {
	page := render(t, sample(t, "dns"), "html", Options{})
	ids := map[string]int{}
	for _, m := range regexp.MustCompile(` id="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		ids[m[1]]++
	}
	for id, n := range ids {
		if n > 1 {
			t.Errorf("id %s is there %d times", id, n)
		}
	}
	for _, m := range regexp.MustCompile(`(?:href="#|aria-labelledby="|url\(#)([^")]*)`).FindAllStringSubmatch(page, -1) {
		if ids[m[1]] == 0 {
			t.Errorf("nothing has the id %s", m[1])
		}
	}
}

// A real browser loads the page without a word on its console: no script
// error, nothing that the page's own policy refused.
func TestHTMLInBrowser(t *testing.T) {
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("no chromium here")
	}
	for _, name := range []string{"dns", "hostile"} {
		dir := t.TempDir()
		file := filepath.Join(dir, name+".html")
		if err := os.WriteFile(file, []byte(render(t, sample(t, name), "html", Options{})), 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
			"--disable-background-networking", "--disable-component-update", "--disable-sync", "--enable-logging=stderr",
			"--user-data-dir="+filepath.Join(dir, "profile"), "--dump-dom", "file://"+file)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		dom, err := cmd.Output()
		if err != nil {
			t.Fatalf("chromium: %v\n%s", err, stderr.String())
		}
		for line := range strings.Lines(stderr.String()) {
			if strings.Contains(line, "CONSOLE") {
				t.Errorf("%s: %s", name, line)
			}
		}
		if !strings.Contains(string(dom), ">copy</button>") {
			t.Errorf("%s: the page's script didn't run", name)
		}
		if strings.Contains(string(dom), "<img") {
			t.Errorf("%s: a name became an element", name)
		}
	}
}
