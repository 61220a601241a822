package knowledge

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
)

// An Installation is what a component needs before it is installed.
type Installation struct {
	ID          string       `json:"id"`
	About       string       `json:"about"`
	Namespaces  []string     `json:"namespaces"` // the first is the usual one
	Controller  string       `json:"controller"` // how its pods are recognised; empty: they aren't
	Kinds       []KindNeeded `json:"kinds"`
	Own         []KindNeeded `json:"own"`         // that it brings itself, and that may be left of an older release
	Storage     bool         `json:"storage"`     // it asks for volumes
	Account     string       `json:"account"`     // its ServiceAccount, if it calls AWS
	Permissions string       `json:"permissions"` // its ID among the permissions, if it is another
	Webhook     int          `json:"webhook"`     // the port of its pods that the API server calls
	Discovers   []string     `json:"discovers"`   // of Discoveries
	Install     string       `json:"install"`
	Sources     []string     `json:"sources"`
}

// A KindNeeded is a custom kind that something else brings.
type KindNeeded struct {
	Name    string `json:"name"` // of the CustomResourceDefinition
	Version string `json:"version"`
	Least   string `json:"least"` // bundle version, if any
	From    string `json:"from"`  // the command that installs it
}

// Discoveries are what components find by tags.
var Discoveries = []string{"nodes", "load-balancers"}

func (k *Knowledge) addInstallations(fsys fs.FS) error {
	var rows []*Installation
	err := readStrict(fsys, "components.yaml", &rows)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // an overlay need not have one
	}
	if err != nil {
		return err
	}
	for _, row := range rows {
		switch {
		case !kebab.MatchString(row.ID), row.About == "", len(row.Namespaces) == 0, row.Install == "", len(row.Sources) == 0:
			return fmt.Errorf("components.yaml: %s needs id, about, namespaces, install and sources", row.ID)
		case slices.ContainsFunc(row.Discovers, func(d string) bool { return !slices.Contains(Discoveries, d) }):
			return fmt.Errorf("components.yaml: %s: discovers must be of %v", row.ID, Discoveries)
		}
		if row.Permissions == "" && row.Account != "" {
			row.Permissions = row.ID
		}
		if row.Account != "" && k.Component(row.Permissions) == nil {
			return fmt.Errorf("components.yaml: %s: there is no %s in permissions.yaml", row.ID, row.Permissions)
		}
		if i := slices.IndexFunc(k.Installations, func(o *Installation) bool { return o.ID == row.ID }); i >= 0 {
			k.Installations[i] = row
			continue
		}
		k.Installations = append(k.Installations, row)
	}
	return nil
}
