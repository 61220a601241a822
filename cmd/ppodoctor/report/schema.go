package report

import _ "embed"

// Schema is the JSON Schema (2020-12) of the JSON report. A test generates it
// from the types of package diagnose; changes are additive.
//
//go:embed schema.json
var Schema []byte
