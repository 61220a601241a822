package diagnose

import (
	"encoding/json"
	"strings"
)

// leafFields are the paths of a managedFields set, in order: "spec.replicas".
// List keys are left out: they name an item, not a field.
// Source: sigs.k8s.io/structured-merge-diff fieldpath/serialize.go.
func leafFields(raw []byte) []string {
	var tree map[string]json.RawMessage
	if json.Unmarshal(raw, &tree) != nil {
		return nil
	}
	var paths []string
	seen := map[string]bool{}
	var visit func(prefix string, node map[string]json.RawMessage)
	visit = func(prefix string, node map[string]json.RawMessage) {
		leaf := true
		for _, key := range sortedKeys(node) {
			var below map[string]json.RawMessage
			if key == "." || json.Unmarshal(node[key], &below) != nil {
				continue
			}
			name, isField := strings.CutPrefix(key, "f:")
			path := prefix
			if isField {
				path = strings.TrimPrefix(prefix+"."+name, ".")
			}
			leaf = false
			visit(path, below)
		}
		if leaf && prefix != "" && !seen[prefix] {
			seen[prefix] = true
			paths = append(paths, prefix)
		}
	}
	visit("", tree)
	return paths
}
