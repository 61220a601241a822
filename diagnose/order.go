package diagnose

import (
	"maps"
	"slices"

	"github.com/pposiraegi/ppodoctor/probes"
)

// sortedRefs are the objects that are a map's keys, in order: no diagnosis
// depends on Go's map order.
func sortedRefs[V any](m map[Ref]V) []Ref {
	return slices.SortedFunc(maps.Keys(m), probes.CompareRefs)
}
