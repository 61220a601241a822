package lint

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/json"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"github.com/pposiraegi/ppodoctor/probes"
)

// The CustomResourceDefinitions that come with the program, for files that are
// looked at without a cluster. The module of the Gateway API has no package that
// embeds its own, and Karpenter's comes with its controller, so both are kept
// as data, without what is not needed to judge a manifest.
//
//go:embed schemas/*.yaml
var embedded embed.FS

// Schemas are the custom kinds that manifests are held against.
type Schemas struct {
	byKind  map[string]*apiextensionsv1.CustomResourceDefinition // by group/Kind
	from    map[string]string                                    // where each comes from
	cluster bool                                                 // those of a cluster: a kind that is not among them is not installed
}

// Embedded are the schemas that come with the program.
func Embedded() (*Schemas, error) {
	s := &Schemas{byKind: map[string]*apiextensionsv1.CustomResourceDefinition{}, from: map[string]string{}}
	files, err := fs.Glob(embedded, "schemas/*.yaml")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		data, err := embedded.ReadFile(file)
		if err != nil {
			return nil, err
		}
		first, _, _ := strings.Cut(string(data), "\n")
		from := strings.TrimSuffix(strings.TrimPrefix(first, "# The CustomResourceDefinitions of "), " (Apache License 2.0),")
		from, _, _ = strings.Cut(from, ",")
		for _, document := range bytes.Split(data, []byte("\n---\n")) {
			d := &apiextensionsv1.CustomResourceDefinition{}
			if err := yaml.Unmarshal(document, d); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			s.add(d, from)
		}
	}
	return s, nil
}

func (s *Schemas) add(d *apiextensionsv1.CustomResourceDefinition, from string) {
	key := d.Spec.Group + "/" + d.Spec.Names.Kind
	s.byKind[key], s.from[key] = d, from
}

// Installed puts what a cluster serves in the place of the embedded schemas.
// The error is a *probes.Gap where the cluster's can't be had; then the
// embedded ones stay.
func (s *Schemas) Installed(ctx context.Context, src probes.Source) error {
	var all []*apiextensionsv1.CustomResourceDefinition
	for d, err := range probes.Items[apiextensionsv1.CustomResourceDefinition](ctx, src, probes.Document{Path: "customresourcedefinitions.apiextensions.k8s.io"}) {
		if err != nil {
			return err
		}
		all = append(all, d)
	}
	own := s.byKind
	s.byKind, s.cluster = map[string]*apiextensionsv1.CustomResourceDefinition{}, true
	for _, d := range all {
		key := d.Spec.Group + "/" + d.Spec.Names.Kind
		if known := own[key]; known != nil && !describes(d) {
			// A capture that left the schemas out: which versions are served is its own.
			known = known.DeepCopy()
			for i := range known.Spec.Versions {
				known.Spec.Versions[i].Served = slices.ContainsFunc(d.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
					return v.Name == known.Spec.Versions[i].Name && v.Served
				})
			}
			s.byKind[key] = known
			continue
		}
		s.add(d, "the CustomResourceDefinition "+d.Name+" of the cluster")
	}
	return nil
}

// describes reports whether a definition says anything of its fields.
func describes(d *apiextensionsv1.CustomResourceDefinition) bool {
	return slices.ContainsFunc(d.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
		return v.Schema != nil && v.Schema.OpenAPIV3Schema != nil && len(v.Schema.OpenAPIV3Schema.Properties["spec"].Properties) > 0
	})
}

// versions are those in which a kind is served.
func versions(d *apiextensionsv1.CustomResourceDefinition) []string {
	var served []string
	for _, v := range d.Spec.Versions {
		if v.Served {
			served = append(served, v.Name)
		}
	}
	return served
}

// A flaw is something that a schema has against an object.
type flaw struct {
	path    string // of the field: spec.template.spec.tolerations
	unknown bool   // the field is in no schema: refused if asked strictly, else dropped
	says    string // else: why it is refused
}

// against holds a custom object against its schema, as the API server does when
// it is made: defaults are filled in, unknown fields named, the rest validated,
// and where all is of the right form the schema's rules in CEL are run.
func against(ctx context.Context, d *apiextensionsv1.CustomResourceDefinition, version string, object map[string]any) ([]flaw, error) {
	var schema *apiextensionsv1.JSONSchemaProps
	for _, v := range d.Spec.Versions {
		if v.Name == version && v.Schema != nil {
			schema = v.Schema.OpenAPIV3Schema
		}
	}
	if schema == nil {
		return nil, nil
	}
	internal := &apiextensions.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(schema, internal, nil); err != nil {
		return nil, fmt.Errorf("reading the schema of %s: %w", d.Name, err)
	}
	structural, err := structuralschema.NewStructural(internal)
	if err != nil {
		return nil, fmt.Errorf("reading the schema of %s: %w", d.Name, err)
	}
	validator, _, err := validation.NewSchemaValidator(internal)
	if err != nil {
		return nil, fmt.Errorf("reading the schema of %s: %w", d.Name, err)
	}
	if object, err = asDecoded(object); err != nil {
		return nil, fmt.Errorf("reading %s: %w", d.Spec.Names.Kind, err)
	}
	delete(object, "status") // nobody applies it
	var flaws []flaw
	for _, path := range pruning.PruneWithOptions(object, structural, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}) {
		flaws = append(flaws, flaw{path: path, unknown: true})
	}
	defaulting.Default(object, structural)
	errs := validation.ValidateCustomResource(nil, object, validator)
	if rules := cel.NewValidator(structural, true, celconfig.PerCallLimit); len(errs) == 0 && rules != nil {
		errs, _ = rules.Validate(ctx, nil, structural, object, nil, celconfig.RuntimeCELCostBudget)
	}
	for _, e := range errs {
		flaws = append(flaws, flaw{path: e.Field, says: e.ErrorBody()})
	}
	return flaws, nil
}

// asDecoded is an object as the API server decodes it: with whole numbers as
// such, which rules in CEL insist on.
func asDecoded(object map[string]any) (map[string]any, error) {
	raw, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	var decoded map[string]any
	return decoded, json.Unmarshal(raw, &decoded)
}
