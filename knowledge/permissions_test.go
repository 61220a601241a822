package knowledge

import (
	"strings"
	"testing"
	"testing/fstest"
)

func TestPermissionsRefuse(t *testing.T) {
	const good = `[{id: x, about: y, identity: role, calls: [{actions: ["s3:GetObject"], resources: ["*"], breaks: z}], sources: [s]}]`
	for change, says := range map[string]string{
		"":                                     "",
		"id: x|id: X":                          "kebab-case",
		"about: y|about: ''":                   "about is missing",
		"identity: role|identity: pod":         "identity",
		"sources: [s]|sources: []":             "cites no source",
		"breaks: z|brakes: z":                  "unknown field",
		"breaks: z|breaks: z, with: [k]":       `no key set "k"`,
		"breaks: z|breaks: z, since: next":     "no release line",
		`["s3:GetObject"]|[s3]`:                "no action",
		`resources: ["*"]|resources: [bucket]`: "neither * nor an ARN",
		"about: y|about: y, keys: [{name: k, keys: {a: [b]}}]": `no call carries the keys "k"`,
	} {
		from, to, _ := strings.Cut(change, "|")
		text := strings.Replace(good, from, to, 1)
		_, err := Load(fstest.MapFS{"permissions.yaml": {Data: []byte(text)}})
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: error %v, want %q", text, err, says)
		}
	}
}

func TestPermissionsOverlay(t *testing.T) {
	k, err := Load(fstest.MapFS{"permissions.yaml": {Data: []byte(`[{id: loki, about: mine, identity: role, calls: [{actions: ["s3:GetObject"], resources: ["*"], breaks: z}], sources: [s]}]`)}})
	if err != nil {
		t.Fatal(err)
	}
	if c := k.Component("loki"); c.About != "mine" || len(c.Calls) != 1 {
		t.Errorf("the overlay's component is not taken: %+v", c)
	}
	if c := k.ComponentOf("public.ecr.aws/karpenter/controller:1.8.1@sha256:x"); c == nil || c.ID != "karpenter" {
		t.Errorf("karpenter's image is of %v", c)
	}
}
