package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf16"

	"github.com/pposiraegi/ppodoctor/diagnose"
	"go.yaml.in/yaml/v3"
)

// marshal is indented JSON in which no character can act on a terminal: what
// is hidden is escaped, which changes the bytes and not the data.
func marshal(v any) ([]byte, error) {
	return marshalWith(v, func(r rune) string {
		if r < 0x10000 {
			return fmt.Sprintf(`\u%04x`, r)
		}
		high, low := utf16.EncodeRune(r)
		return fmt.Sprintf(`\u%04x\u%04x`, high, low)
	})
}

func marshalWith(v any, escape func(rune) string) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(v); err != nil {
		return nil, err
	}
	return escapeHidden(b.Bytes(), escape), nil
}

// escapeHidden escapes each hidden character but the line break. It is right
// where those stand in double quotes only: JSON, and YAML as asYAML writes it.
func escapeHidden(text []byte, escape func(rune) string) []byte {
	var b bytes.Buffer
	for _, r := range string(text) {
		if r == '\n' || !hidden(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(escape(r))
		}
	}
	return b.Bytes()
}

// asJSON is the diagnosis as it is: design.md §5.
func asJSON(b *bytes.Buffer, d *diagnose.Diagnosis, _ Options) error {
	data, err := marshal(d)
	b.Write(data)
	return err
}

// asYAML is the same document in YAML, keys in the same order.
func asYAML(b *bytes.Buffer, d *diagnose.Diagnosis, _ Options) error {
	data, err := marshalYAML(d)
	b.Write(data)
	return err
}

func marshalYAML(v any) ([]byte, error) {
	escape := func(r rune) string { return fmt.Sprintf(`\U%08x`, r) }
	data, err := marshalWith(v, escape)
	if err != nil {
		return nil, err
	}
	var node yaml.Node
	if err := yaml.Unmarshal(data, &node); err != nil {
		return nil, err
	}
	if err := restyle(&node); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(&node); err != nil {
		return nil, err
	}
	return escapeHidden(out.Bytes(), escape), nil
}

// restyle turns JSON's style into YAML's: blocks for maps and lists, and for
// strings what the encoder finds safe, also for readers of YAML 1.1, to whom
// a bare yes is a truth and 1:30 a number.
func restyle(n *yaml.Node) error {
	style := yaml.Style(0)
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" {
		var safe yaml.Node
		if err := safe.Encode(n.Value); err != nil {
			return err
		}
		style = safe.Style
		if strings.ContainsFunc(n.Value, func(r rune) bool { return r != '\n' && hidden(r) }) {
			style = yaml.DoubleQuotedStyle
		}
	}
	n.Style = style
	for _, child := range n.Content {
		if err := restyle(child); err != nil {
			return err
		}
	}
	return nil
}
