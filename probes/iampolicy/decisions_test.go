package iampolicy

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestDecisions evaluates each request of testdata/decisions.txt, whose
// decisions are read off the IAM User Guide and not off this program.
func TestDecisions(t *testing.T) {
	data, err := os.ReadFile("testdata/decisions.txt")
	if err != nil {
		t.Fatal(err)
	}
	var title string
	statements := map[string][]string{} // by kind of policy
	version, pairs := version2012, 0
	for n, line := range strings.Split(string(data), "\n") {
		word, rest, _ := strings.Cut(line, " ")
		switch word {
		case "", "#":
		case "==":
			title, version = rest, version2012
			clear(statements)
		case "version":
			version = rest
		case "boundary", "session", "org", "orgunit", "trust":
			effect, columns, _ := strings.Cut(rest, " ")
			statements[word] = append(statements[word], statement(t, effect, columns, word == "trust"))
		case Allow, Deny:
			statements["identity"] = append(statements["identity"], statement(t, word, rest, false))
		case string(Allowed), string(ImplicitDeny), string(ExplicitDeny), string(Undecided):
			pairs++
			policies := func(kind string) []Policy {
				if statements[kind] == nil {
					return nil
				}
				doc := fmt.Sprintf(`{"Version":%q,"Statement":[%s]}`, version, strings.Join(statements[kind], ","))
				p, err := Parse(kind, []byte(doc))
				if err != nil {
					t.Fatalf("line %d: %v", n+1, err)
				}
				return []Policy{p}
			}
			all := Policies{Identity: policies("identity"), Session: policies("session"), Resource: policies("trust")}
			if b := policies("boundary"); b != nil {
				all.Boundary = &b[0]
			}
			for _, level := range []string{"org", "orgunit"} {
				if p := policies(level); p != nil {
					all.Organization = append(all.Organization, p)
				}
			}
			d := Evaluate(request(rest), all)
			if string(d.Effect) != word {
				t.Errorf("line %d: %s: %s\n is %s: %s", n+1, title, line, d.Effect, d.Why())
			}
			if d.Why() == "" || (d.Effect == Undecided) != (len(d.Missing) > 0) {
				t.Errorf("line %d: %s: explained as %q, missing %q", n+1, line, d.Why(), d.Missing)
			}
			addedStatementHelps(t, line, d, all)
		default:
			t.Fatalf("line %d: %q", n+1, line)
		}
	}
	t.Logf("%d requests", pairs)
	if pairs < 300 {
		t.Errorf("%d requests, want at least 300", pairs)
	}
}

// addedStatementHelps adds the proposed statement to the policy that denies;
// that policy must then no longer be the one that does.
func addedStatementHelps(t *testing.T, line string, d Decision, p Policies) {
	t.Helper()
	add, ok := d.StatementToAdd()
	if !ok {
		if d.Effect == ImplicitDeny {
			t.Errorf("%s: no statement proposed", line)
		}
		return
	}
	extra := Policy{Name: "added", Version: version2012, Statements: []Statement{add}}
	switch d.Kind {
	case ByIdentity:
		p.Identity = append(slices.Clone(p.Identity), extra)
	case BySession:
		p.Session = append(slices.Clone(p.Session), extra)
	case ByResource:
		p.Resource = append(slices.Clone(p.Resource), extra)
	case ByBoundary:
		b := *p.Boundary
		b.Statements = append(slices.Clone(b.Statements), add)
		p.Boundary = &b
	case ByOrganization:
		levels := slices.Clone(p.Organization)
		for i := range levels {
			levels[i] = append(slices.Clone(levels[i]), extra)
		}
		p.Organization = levels
	}
	if after := Evaluate(d.Request, p); after.Effect == ImplicitDeny && after.Kind == d.Kind {
		t.Errorf("%s: adding %s leaves it denied: %s", line, add.JSON(), after.Why())
	}
}

func statement(t *testing.T, effect, columns string, trust bool) string {
	t.Helper()
	parts := strings.SplitN(columns, " ", 3)
	s := map[string]any{"Effect": effect}
	list := func(name, text string) {
		text, negated := strings.CutPrefix(text, "!")
		if negated {
			name = "Not" + name
		}
		var all []string
		for one := range strings.SplitSeq(text, ",") {
			if strings.HasPrefix(one, "%20") && len(all) > 0 { // a variable's default
				all[len(all)-1] += "," + decoded(one)
				continue
			}
			all = append(all, decoded(one))
		}
		s[name] = all
	}
	list("Action", parts[0])
	if trust {
		principals := map[string][]string{}
		for one := range strings.SplitSeq(parts[1], ",") {
			kind, name, _ := strings.Cut(one, ":")
			principals[kind] = append(principals[kind], name)
		}
		s["Principal"] = principals
	} else {
		list("Resource", parts[1])
	}
	if len(parts) == 3 {
		s["Condition"] = json.RawMessage(parts[2])
	}
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatalf("%s: %v", columns, err)
	}
	return string(data)
}

func request(text string) Request {
	fields := strings.Fields(text)
	r := Request{Action: fields[0], Resource: strings.TrimPrefix(fields[1], "-"), Context: map[string][]string{}}
	for _, f := range fields[2:] {
		if key, ok := strings.CutPrefix(f, "?"); ok {
			r.Unknown = append(r.Unknown, key)
		} else if who, ok := strings.CutPrefix(f, "@"); ok {
			r.Principal.Type, r.Principal.Name, _ = strings.Cut(who, ":")
		} else {
			key, value, _ := strings.Cut(f, "=")
			r.Context[key] = strings.Split(value, "|")
		}
	}
	return r
}

func decoded(s string) string {
	if d, err := url.PathUnescape(s); err == nil {
		return d
	}
	return s
}
