package knowledge

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// A Component is a program in the cluster that calls AWS, with its calls.
type Component struct {
	ID              string   `json:"id"`
	About           string   `json:"about"`           // what it is for: "launches and removes nodes"
	Images          []string `json:"images"`          // parts of the names of its images
	ServiceAccounts []string `json:"serviceAccounts"` // the names that its charts give
	Identity        string   `json:"identity"`        // one of Identities
	Keys            []KeySet `json:"keys"`
	Calls           []*Call  `json:"calls"`
	Sources         []string `json:"sources"`
}

// Identities are whose rights a component uses: a role of its own, the node's
// role, or the node's role where it has none of its own.
var Identities = []string{"role", "node", "role or node"}

// A KeySet is condition keys that a component's requests carry together.
type KeySet struct {
	Name  string              `json:"name"`
	Since string              `json:"since"` // release lines, inclusive
	Until string              `json:"until"`
	Keys  map[string][]string `json:"keys"`
}

// A Call is actions that a component does on the same resources.
type Call struct {
	Actions   []string            `json:"actions"`
	Resources []string            `json:"resources"` // ARN templates, or *
	With      []string            `json:"with"`      // names of key sets
	And       map[string][]string `json:"and"`       // further keys
	Since     string              `json:"since"`
	Until     string              `json:"until"`
	When      string              `json:"when"`   // what must be configured for it
	Blocks    bool                `json:"blocks"` // the component's main work fails without it
	Breaks    string              `json:"breaks"`
	Seen      []string            `json:"seen"` // parts of what is then logged or reported
}

// In reports whether a release makes the call. An unknown release ("") makes
// all of them.
func (c *Call) In(version string) bool { return within(version, c.Since, c.Until) }

func within(version, since, until string) bool {
	v, ok := line(version)
	if !ok {
		return true
	}
	from, hasFrom := line(since)
	to, hasTo := line(until)
	return (!hasFrom || from <= v) && (!hasTo || v <= to)
}

// line is a release line as a number that compares: v1.14 and 1.14.2 are the same.
func line(version string) (int, bool) {
	major, rest, ok := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	minor, _, _ = strings.Cut(minor, "-")
	a, err1 := strconv.Atoi(major)
	b, err2 := strconv.Atoi(minor)
	return a*1000 + b, ok && err1 == nil && err2 == nil
}

// Context are the condition keys of a call in one release, with the values
// filled in. A release that isn't known counts as the latest.
func (k *Component) Context(c *Call, version string, vars map[string]string) map[string][]string {
	context := map[string][]string{}
	put := func(keys map[string][]string) {
		for key, values := range keys {
			filled := make([]string, len(values))
			for i, v := range values {
				filled[i] = Fill(v, vars)
			}
			context[Fill(key, vars)] = filled
		}
	}
	for _, set := range k.Keys { // later sets are of later releases
		if slices.Contains(c.With, set.Name) && within(version, set.Since, set.Until) {
			if _, known := line(version); !known && set.Until != "" {
				continue
			}
			put(set.Keys)
		}
	}
	put(c.And)
	return context
}

// CallsOf are the calls of an action that a release makes.
func (k *Component) CallsOf(action, version string) []*Call {
	var found []*Call
	for _, c := range k.Calls {
		if c.In(version) && slices.ContainsFunc(c.Actions, func(a string) bool { return strings.EqualFold(a, action) }) {
			found = append(found, c)
		}
	}
	return found
}

// Component is the component of that ID, or nil.
func (k *Knowledge) Component(id string) *Component {
	for _, c := range k.Permissions {
		if c.ID == id {
			return c
		}
	}
	return nil
}

// ComponentOf is the component that an image belongs to, or nil.
func (k *Knowledge) ComponentOf(image string) *Component {
	for _, c := range k.Permissions {
		if slices.ContainsFunc(c.Images, func(part string) bool { return strings.Contains(image, part) }) {
			return c
		}
	}
	return nil
}

// addPermissions reads permissions.yaml, if it is there; a component replaces
// the one of the same ID.
func (k *Knowledge) addPermissions(fsys fs.FS) error {
	const file = "permissions.yaml"
	if _, err := fs.Stat(fsys, file); err != nil {
		return nil //nolint:nilerr // an overlay need not have it
	}
	var components []*Component
	if err := readStrict(fsys, file, &components); err != nil {
		return err
	}
	here := map[string]bool{}
	for _, c := range components {
		if err := c.validate(); err != nil {
			return fmt.Errorf("%s: %s: %w", file, c.ID, err)
		}
		if here[c.ID] {
			return fmt.Errorf("%s: %s is there twice", file, c.ID)
		}
		here[c.ID] = true
		if i := slices.IndexFunc(k.Permissions, func(o *Component) bool { return o.ID == c.ID }); i >= 0 {
			k.Permissions[i] = c
		} else {
			k.Permissions = append(k.Permissions, c)
		}
	}
	return nil
}

func (k *Component) validate() error {
	switch {
	case !kebab.MatchString(k.ID):
		return fmt.Errorf("id must be kebab-case")
	case k.About == "":
		return fmt.Errorf("about is missing")
	case !slices.Contains(Identities, k.Identity):
		return fmt.Errorf("identity %q is none of %s", k.Identity, strings.Join(Identities, ", "))
	case len(k.Calls) == 0:
		return fmt.Errorf("it has no calls")
	case len(k.Sources) == 0:
		return fmt.Errorf("it cites no source")
	}
	sets := map[string]bool{}
	for _, s := range k.Keys {
		if s.Name == "" || len(s.Keys) == 0 {
			return fmt.Errorf("a key set needs a name and keys")
		}
		if err := lines(s.Since, s.Until); err != nil {
			return fmt.Errorf("keys %s: %w", s.Name, err)
		}
		sets[s.Name] = true
	}
	used := map[string]bool{}
	for _, c := range k.Calls {
		what := strings.Join(c.Actions, ", ")
		if err := lines(c.Since, c.Until); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if len(c.Actions) == 0 || len(c.Resources) == 0 || c.Breaks == "" {
			return fmt.Errorf("call %q needs actions, resources and breaks", what)
		}
		for _, a := range c.Actions {
			if service, name, ok := strings.Cut(a, ":"); !ok || service == "" || name == "" {
				return fmt.Errorf("%q is no action", a)
			}
		}
		for _, r := range c.Resources {
			if r != "*" && r[0] != '{' && strings.Count(r, ":") < 5 {
				return fmt.Errorf("%s: %q is neither * nor an ARN", what, r)
			}
		}
		for _, w := range c.With {
			if !sets[w] {
				return fmt.Errorf("%s: there is no key set %q", what, w)
			}
			used[w] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(sets)) {
		if !used[name] {
			return fmt.Errorf("no call carries the keys %q", name)
		}
	}
	return nil
}

func lines(since, until string) error {
	for _, v := range []string{since, until} {
		if _, ok := line(v); v != "" && !ok {
			return fmt.Errorf("%q is no release line such as v1.14", v)
		}
	}
	return nil
}
