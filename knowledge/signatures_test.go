package knowledge

import (
	"strings"
	"testing"
	"testing/fstest"
)

func TestSignatures(t *testing.T) {
	s, err := readSignatures(embedded)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.validate(); err != nil {
		t.Error(err)
	}
	if len(s.ranked) < 150 {
		t.Errorf("%d signatures, want at least 150", len(s.ranked))
	}
	used := map[string]bool{}
	for _, sig := range s.ranked {
		used[sig.Meaning] = true
	}
	for m := range s.Meanings {
		if !used[m] {
			t.Errorf("meaning %s has no signature", m)
		}
	}
}

func TestSignaturesOverlay(t *testing.T) {
	const own = `
meanings: {flux: The flux is out of phase.}
signatures:
- {id: ID, meaning: flux, runtime: shop, role: cause, priority: 99, pattern: 'flux (?P<code>\d+) is out of phase', matches: ['MATCH'], ignores: ['IGNORE'], sources: [ours]}
`
	for _, test := range []struct{ id, match, ignore, fault string }{
		{"flux", "flux 7 is out of phase", "flux is fine", ""},
		{"go-refused", "flux 7 is out of phase", "flux is fine", ""}, // replaces the embedded row
		{"flux", "flux is fine", "x", "does not match"},
		{"flux", "flux 7 is out of phase", "flux 8 is out of phase", "must not match"},
		{"Flux", "flux 7 is out of phase", "x", "kebab-case"},
	} {
		file := strings.NewReplacer("ID", test.id, "MATCH", test.match, "IGNORE", test.ignore).Replace(own)
		s, err := readSignatures(embedded, fstest.MapFS{"signatures.yaml": {Data: []byte(file)}})
		if test.fault != "" {
			if err == nil || !strings.Contains(err.Error(), test.fault) {
				t.Errorf("%v: got %v", test, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if found := s.Match("E flux 12 is out of phase"); len(found) != 1 || found[0].Captures["code"] != "12" || found[0].Signature.ID != test.id {
			t.Errorf("%s: got %v", test.id, found)
		}
	}
}

func BenchmarkReadSignatures(b *testing.B) {
	for b.Loop() {
		if _, err := readSignatures(embedded); err != nil {
			b.Fatal(err)
		}
	}
}

// Ten megabytes of entries of which a tenth are failures.
func BenchmarkMatch(b *testing.B) {
	s, err := readSignatures(embedded)
	if err != nil {
		b.Fatal(err)
	}
	lines := []string{
		`2026-05-12T03:11:04.512Z INFO  worker.consumer - processed batch size=27 took=200ms topic=orders partition=3`,
		`dial tcp: lookup redis-master-0.redis-headless.redis.svc.cluster.local on 10.100.0.10:53: read udp 10.0.3.21:40712->10.100.0.10:53: i/o timeout`,
	}
	var size int64
	for b.Loop() {
		size = 0
		for i := 0; size < 10<<20; i++ {
			line := lines[0]
			if i%10 == 0 {
				line = lines[1]
			}
			s.Match(line)
			size += int64(len(line))
		}
	}
	b.SetBytes(size)
}
