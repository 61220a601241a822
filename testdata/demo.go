// Package testdata holds the incidents that the tests diagnose, and gives the
// program the one that it shows as its demo.
package testdata

import (
	"embed"
	"io/fs"
)

//go:embed dns-security-groups
var demo embed.FS

// Demo is the snapshot of the DNS incident.
func Demo() fs.FS {
	sub, err := fs.Sub(demo, "dns-security-groups")
	if err != nil {
		panic(err) // the folder is embedded
	}
	return sub
}
