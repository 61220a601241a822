//go:build controlplane

package live

import (
	"os"
	"testing"

	"github.com/pposiraegi/ppodoctor/probes"
)

func TestX(t *testing.T) {
	p := startControlPlane(t)
	s, err := probes.OpenSnapshot(os.Getenv("SNAP"))
	if err != nil {
		t.Fatal(err)
	}
	p.load(s)
	for _, path := range p.loaded {
		t.Log(path, p.count(path))
	}
}
