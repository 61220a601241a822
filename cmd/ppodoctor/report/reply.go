package report

// JSON is a value as indented JSON in which no character can act on a terminal.
func JSON(v any) ([]byte, error) { return marshal(v) }

// Line is untrusted text made safe to show on one line.
func Line(s string) string { return clean(s) }
