package live

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A wireShape is a structure or a list of EC2's protocol: what its members are
// called on the wire, which differs from their names in the CLI (SecurityGroups
// is securityGroupInfo).
type wireShape struct {
	members map[string]wireMember // by the CLI's name
	element string                // the shape of a list's items
}

type wireMember struct{ name, shape string }

var (
	shapeStart  = regexp.MustCompile(`^func awsEc2query_deserialize(?:Op)?Document(\w+)\(`)
	shapeCase   = regexp.MustCompile(`case strings\.EqualFold\("(\w+)", t\.Name\.Local\):`)
	shapeMember = regexp.MustCompile(`awsEc2query_deserializeDocument(\w+)\(&sv\.(\w+),`)
	shapeItem   = regexp.MustCompile(`awsEc2query_deserializeDocument(\w+)\(&destAddr,`)
	shapeScalar = regexp.MustCompile(`\bsv\.(\w+) = `)
)

// ec2Shapes are read from the SDK's own decoder, so that the server in the
// tests speaks what the SDK expects, without a copy of the API's model here.
var ec2Shapes = sync.OnceValues(func() (map[string]*wireShape, error) {
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", "github.com/aws/aws-sdk-go-v2/service/ec2").Output()
	if err != nil {
		return nil, fmt.Errorf("where is the EC2 client: %w", err)
	}
	file, err := os.Open(filepath.Join(strings.TrimSpace(string(dir)), "deserializers.go"))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	shapes := map[string]*wireShape{}
	var shape *wireShape
	wire := ""
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "func ") {
			if shape = nil; shapeStart.MatchString(line) {
				shape = &wireShape{members: map[string]wireMember{}}
				shapes[shapeStart.FindStringSubmatch(line)[1]] = shape
			}
			continue
		}
		if shape == nil {
			continue
		}
		if m := shapeCase.FindStringSubmatch(line); m != nil {
			wire = m[1]
		} else if m := shapeMember.FindStringSubmatch(line); m != nil {
			shape.members[m[2]] = wireMember{wire, m[1]}
		} else if m := shapeItem.FindStringSubmatch(line); m != nil {
			shape.element = m[1]
		} else if m := shapeScalar.FindStringSubmatch(line); m != nil {
			if _, ok := shape.members[m[1]]; !ok {
				shape.members[m[1]] = wireMember{name: wire}
			}
		}
	}
	return shapes, lines.Err()
})

// ec2XML writes what the CLI prints as EC2 sends it.
func ec2XML(t *testing.T, shape string, value any) string {
	t.Helper()
	shapes, err := ec2Shapes()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	var write func(shape string, value any)
	write = func(shape string, value any) {
		switch v := value.(type) {
		case map[string]any:
			for _, key := range sortedKeys(v) {
				m, ok := shapes[shape].members[key]
				if !ok {
					t.Errorf("EC2's %s has no member %s", shape, key)
					continue
				}
				b.WriteString("<" + m.name + ">")
				write(m.shape, v[key])
				b.WriteString("</" + m.name + ">")
			}
		case []any:
			element := ""
			if s := shapes[shape]; s != nil {
				element = s.element
			}
			for _, item := range v {
				b.WriteString("<item>")
				write(element, item)
				b.WriteString("</item>")
			}
		default:
			b.WriteString(xmlText(v))
		}
	}
	write(shape, value)
	return b.String()
}

// queryXML writes a value as IAM and STS send it: members by their own names.
func queryXML(value any) string {
	var b strings.Builder
	var write func(any)
	write = func(value any) {
		switch v := value.(type) {
		case map[string]any:
			for _, key := range sortedKeys(v) {
				b.WriteString("<" + key + ">")
				write(v[key])
				b.WriteString("</" + key + ">")
			}
		case []any:
			for _, item := range v {
				b.WriteString("<member>")
				write(item)
				b.WriteString("</member>")
			}
		default:
			b.WriteString(xmlText(v))
		}
	}
	write(value)
	return b.String()
}

func xmlText(v any) string {
	text := fmt.Sprint(v)
	if n, ok := v.(json.Number); ok {
		text = n.String()
	}
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(text)
}

func sortedKeys(m map[string]any) []string {
	var keys []string
	for k, v := range m {
		if v != nil {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}
