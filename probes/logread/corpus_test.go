package logread

import (
	"bufio"
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pposiraegi/ppodoctor/knowledge"
)

// A labelled entry and what it means, "-" where it is no failure that a
// signature should name. ⏎ stands for a line break.
type labelled struct{ meaning, text string }

func corpus(t *testing.T, name string) []labelled {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "corpus", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []labelled
	meaning := ""
	for scan := bufio.NewScanner(f); scan.Scan(); {
		if m, ok := strings.CutPrefix(scan.Text(), "== "); ok {
			meaning = m
		} else if scan.Text() != "" {
			all = append(all, labelled{meaning, strings.ReplaceAll(scan.Text(), "⏎", "\n")})
		}
	}
	return all
}

// TestCorpus measures what the signatures and the reader together recognise.
// seen.txt was looked at while the signatures were written. held.txt was
// written apart from them; when a row is mended for one of its lines, that
// line moves to seen.txt.
func TestCorpus(t *testing.T) {
	s := signatures(t)
	for _, part := range []string{"seen.txt", "held.txt"} {
		lines := corpus(t, part)
		var failures, named, right int
		for _, l := range lines {
			got := "-"
			if d := Read(strings.NewReader(l.text+"\n"), s, Options{Now: now, Ended: true}).Decisive; d != nil && d.Signature != nil && d.Signature.Role != knowledge.Weak {
				got = cmp.Or(d.Meaning, "-")
			}
			if l.meaning != "-" {
				failures++
			}
			if got != "-" {
				named++
			}
			if got != l.meaning {
				t.Logf("%s: %s, want %s: %s", part, got, l.meaning, l.text)
			} else if got != "-" {
				right++
			}
		}
		precision, recall := float64(right)/float64(named), float64(right)/float64(failures)
		t.Logf("%s: %d lines, %d failures: precision %.4f, recall %.4f", part, len(lines), failures, precision, recall)
		if precision < 0.99 || recall < 0.95 {
			t.Errorf("%s: precision %.4f and recall %.4f, want 0.99 and 0.95", part, precision, recall)
		}
	}
}
