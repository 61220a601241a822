package diagnose

import (
	"maps"
	"slices"
)

// sortedKeys are a map's keys in order: no diagnosis depends on Go's map order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
