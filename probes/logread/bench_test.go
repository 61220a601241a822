package logread

import (
	"strings"
	"testing"
)

// Ten megabytes of JSON of which a tenth are failures.
func BenchmarkRead(b *testing.B) {
	s := signatures(b)
	ok := `{"ts":"2026-09-20T12:12:06.453Z","level":"info","msg":"request","method":"POST","path":"/v1/items","status":200,"ms":44}` + "\n"
	bad := `{"ts":"2026-09-20T12:12:06.453Z","level":"error","msg":"query failed","error":"dial tcp 10.0.4.21:5432: connect: connection refused"}` + "\n"
	unit := strings.Repeat(ok, 9) + bad
	log := strings.Repeat(unit, (10<<20)/len(unit))
	b.SetBytes(int64(len(log)))
	b.ReportAllocs()
	for b.Loop() {
		Read(strings.NewReader(log), s, Options{Now: now})
	}
}
