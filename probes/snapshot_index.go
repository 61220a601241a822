package probes

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// addJSON indexes the JSON values of a file. Items of a list are taken one by
// one, so that the file is held once and not several times.
func (s *Snapshot) addJSON(name string, r io.Reader) error {
	decoder := json.NewDecoder(bufio.NewReaderSize(r, 1<<16))
	for first := true; ; first = false {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) && !first {
			return nil
		}
		if err != nil {
			return fmt.Errorf("not JSON: %w", noEOF(err))
		}
		switch token {
		case json.Delim('['):
			if err := decodeItems(decoder, func(raw json.RawMessage) { s.addObject(raw, "", "") }); err != nil {
				return err
			}
		case json.Delim('{'):
			if err := s.addJSONObject(name, decoder); err != nil {
				return err
			}
		default:
			return nil // a bare value holds nothing of ours
		}
	}
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// addJSONObject reads an object whose opening brace is read.
func (s *Snapshot) addJSONObject(name string, decoder *json.Decoder) error {
	fields := map[string]json.RawMessage{}
	var items []json.RawMessage
	hasItems := false
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return fmt.Errorf("not JSON: %w", noEOF(err))
		}
		field, _ := token.(string)
		var raw json.RawMessage
		if field != "items" {
			if err := decoder.Decode(&raw); err != nil {
				return fmt.Errorf("not JSON at %q: %w", field, noEOF(err))
			}
			fields[field] = raw
			continue
		}
		token, err = decoder.Token()
		if err != nil {
			return fmt.Errorf("not JSON at items: %w", noEOF(err))
		}
		switch token {
		case json.Delim('['):
			hasItems = true
			if err := decodeItems(decoder, func(raw json.RawMessage) { items = append(items, raw) }); err != nil {
				return err
			}
		case nil: // "items": null is an empty list
			hasItems = true
		case json.Delim('{'):
			if err := skipObject(decoder); err != nil {
				return err
			}
		}
	}
	if _, err := decoder.Token(); err != nil {
		return fmt.Errorf("not JSON: %w", noEOF(err))
	}
	s.addFields(name, fields, items, hasItems)
	return nil
}

func skipObject(decoder *json.Decoder) error {
	for depth := 1; depth > 0; {
		token, err := decoder.Token()
		if err != nil {
			return fmt.Errorf("not JSON: %w", noEOF(err))
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
	}
	return nil
}

func decodeItems(decoder *json.Decoder, add func(json.RawMessage)) error {
	for n := 0; decoder.More(); n++ {
		var raw json.RawMessage
		if err := decoder.Decode(&raw); err != nil {
			return fmt.Errorf("not JSON at item %d: %w", n, noEOF(err))
		}
		add(raw)
	}
	if _, err := decoder.Token(); err != nil {
		return fmt.Errorf("not JSON: %w", noEOF(err))
	}
	return nil
}

func (s *Snapshot) addYAML(name string, data []byte) error {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		doc, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("not YAML: %w", err)
		}
		if len(bytes.TrimSpace(doc)) == 0 {
			continue
		}
		asJSON, err := yaml.YAMLToJSON(doc)
		if err != nil {
			return fmt.Errorf("not YAML: %w", err)
		}
		if bytes.Equal(asJSON, []byte("null")) {
			continue
		}
		if err := s.addJSON(name, bytes.NewReader(asJSON)); err != nil {
			return err
		}
	}
}

// addFields files one JSON object: a list, a Kubernetes object or what the
// AWS CLI prints. Anything else is none of ours.
func (s *Snapshot) addFields(name string, fields map[string]json.RawMessage, items []json.RawMessage, hasItems bool) {
	kind, apiVersion := text(fields["kind"]), text(fields["apiVersion"])
	switch {
	case hasItems && (kind == "" || strings.HasSuffix(kind, "List")):
		itemKind := strings.TrimSuffix(kind, "List")
		if itemKind != "" {
			s.listed[resourceOf(apiVersion, itemKind)] = true
		} else if len(items) == 0 {
			s.loose = append(s.loose, strings.TrimSuffix(path.Base(name), path.Ext(name)))
		}
		for _, raw := range items {
			s.addObject(raw, apiVersion, itemKind)
		}
	case kind != "" && apiVersion != "":
		raw, err := json.Marshal(fields)
		if err == nil {
			s.addObject(raw, "", "")
		}
	default:
		s.addAWS(name, fields)
	}
}

func text(raw json.RawMessage) string {
	var t string
	if raw == nil || json.Unmarshal(raw, &t) != nil {
		return ""
	}
	return t
}

// addObject files a Kubernetes object; an item of a typed list has its kind
// from the list.
func (s *Snapshot) addObject(raw json.RawMessage, listVersion, listKind string) {
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Namespace       string `json:"namespace"`
			Name            string `json:"name"`
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Items []json.RawMessage `json:"items"`
	}
	if json.Unmarshal(raw, &head) != nil {
		return
	}
	if head.Kind == "" {
		head.APIVersion, head.Kind = listVersion, listKind
	}
	if strings.HasSuffix(head.Kind, "List") && head.Items != nil {
		for _, item := range head.Items {
			s.addObject(item, head.APIVersion, strings.TrimSuffix(head.Kind, "List"))
		}
		return
	}
	if head.Kind == "" || head.Metadata.Name == "" {
		return
	}
	resource := resourceOf(head.APIVersion, head.Kind)
	switch {
	case head.Kind == "Secret" && resource == "secrets":
		raw = slimSecret(raw)
	case head.APIVersion == "events.k8s.io/v1" || head.APIVersion == "events.k8s.io/v1beta1":
		raw = coreEvent(raw)
	}
	if raw == nil {
		return
	}
	s.listed[resource] = true
	s.objects[resource] = append(s.objects[resource], object{
		key: head.Metadata.Namespace + "/" + head.Metadata.Name, version: head.Metadata.ResourceVersion, raw: raw,
	})
}

// coreEvent writes an events.k8s.io Event with the field names of the core
// group's. Source: k8s.io/kubernetes pkg/apis/events/v1/conversion.go.
func coreEvent(raw json.RawMessage) json.RawMessage {
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) != nil {
		return nil
	}
	for from, to := range map[string]string{
		"regarding": "involvedObject", "note": "message", "deprecatedFirstTimestamp": "firstTimestamp",
		"deprecatedLastTimestamp": "lastTimestamp", "deprecatedCount": "count", "deprecatedSource": "source",
		"reportingController": "reportingComponent",
	} {
		if v, ok := fields[from]; ok {
			fields[to] = v
			delete(fields, from)
		}
	}
	out, err := json.Marshal(fields)
	if err != nil {
		return nil
	}
	return out
}

func (s *Snapshot) addAWS(name string, fields map[string]json.RawMessage) {
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		command, ok := awsKeys[key]
		if !ok {
			continue
		}
		if _, named := fields["RoleName"]; !named && slices.Contains(roleless, key) {
			role := path.Base(path.Dir(name))
			if key == "EvaluationResults" && (role == "." || strings.HasPrefix(role, "simulate") || role == "iam" || role == "aws") {
				role = strings.TrimSuffix(path.Base(name), path.Ext(name))
			}
			fields["RoleName"], _ = json.Marshal(role)
		}
		if key == "PolicyVersion" { // it names neither the policy nor the role
			fields["FileName"], _ = json.Marshal(strings.TrimSuffix(path.Base(name), path.Ext(name)))
		}
		raw, err := json.Marshal(fields)
		if err != nil {
			return
		}
		s.aws[command] = append(s.aws[command], raw)
		return
	}
}
