package userdata

import (
	"encoding/base64"
	"strings"
	"testing"
)

const config = `apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  cluster:
    name: harbor
    apiServerEndpoint: https://ABC.gr7.eu-central-1.eks.amazonaws.com
    certificateAuthority: Q0E=
    cidr: 172.20.0.0/16
`

func mime(parts ...string) string {
	return "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"BOUNDARY\"\n\n--BOUNDARY\n" + strings.Join(parts, "\n--BOUNDARY\n") + "\n--BOUNDARY--\n"
}

func TestParse(t *testing.T) {
	script := "Content-Type: text/x-shellscript; charset=\"us-ascii\"\n\n#!/bin/bash\necho hello"
	for _, test := range []struct {
		name, text string
		merged     bool
		family     Family
		problem    string // part of one; empty: none
	}{
		{"a NodeConfig", config, false, AL2023, ""},
		{"in base64", base64.StdEncoding.EncodeToString([]byte(config)), false, AL2023, ""},
		{"in a MIME part", mime("Content-Type: application/node.eks.aws\n\n"+config, script), false, AL2023, ""},
		{"with Windows line ends", strings.ReplaceAll(mime("Content-Type: application/node.eks.aws\n\n"+config), "\n", "\r\n"), false, AL2023, ""},
		{"only kubelet settings, merged", "apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec:\n  kubelet:\n    config:\n      maxPods: 40\n", true, AL2023, ""},
		{"no empty line after the part header", mime("Content-Type: text/x-shellscript; charset=\"us-ascii\"\n#!/bin/bash\necho hello", "Content-Type: application/node.eks.aws\n\n"+config), false, AL2023, "no empty line"},
		{"capital keys", strings.NewReplacer("apiVersion", "APIVersion", "kind", "Kind", "spec", "Spec", "cluster", "Cluster", "name:", "Name:").Replace(mime("Content-Type: application/node.eks.aws\n\n" + config)), false, AL2023, "case matters"},
		{"not indented", "apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec:\ncluster:\n  name: harbor\n", true, AL2023, "not indented"},
		{"another version", strings.Replace(config, "v1alpha1", "v1beta1", 1), false, AL2023, "v1beta1"},
		{"no name", strings.Replace(config, "    name: harbor\n", "", 1), false, AL2023, "no spec.cluster.name"},
		{"no boundary of that name", strings.Replace(mime(script), "boundary=\"BOUNDARY\"", "boundary=\"OTHER\"", 1), false, Unknown, "no part"},
		{"the last boundary is missing", strings.TrimSuffix(mime(script), "--BOUNDARY--\n"), false, Unknown, "last boundary"},
		{"an AL2 script", "#!/bin/bash\n/etc/eks/bootstrap.sh harbor --b64-cluster-ca Q0E= --apiserver-endpoint https://x\n", false, AL2, ""},
		{"Bottlerocket", "[settings.kubernetes]\ncluster-name = \"harbor\"\nmax-pods = 40\n[settings.kubernetes.node-labels]\n\"team\" = \"a\"\n", false, Bottlerocket, ""},
		{"Bottlerocket, a label that is no text", "[settings.kubernetes.node-labels]\n\"spot\" = true\n", false, Bottlerocket, "in quotes"},
		{"Bottlerocket, a number in quotes", "[settings.kubernetes]\nmax-pods = \"40\"\n", false, Bottlerocket, "must be a number"},
		{"a plain script", "#!/bin/bash\nyum update -y\n", true, Unknown, ""},
		{"nothing", "", true, Unknown, ""},
	} {
		r := Parse(test.text, test.merged)
		all := strings.Join(r.Problems, "; ")
		if r.Family != test.family {
			t.Errorf("%s: family %q, want %q", test.name, r.Family, test.family)
		}
		if test.problem == "" && all != "" || !strings.Contains(all, test.problem) {
			t.Errorf("%s: problems %q, want %q", test.name, all, test.problem)
		}
	}
	if c := Parse(config, false).Cluster; c.Name != "harbor" || c.CIDR != "172.20.0.0/16" || c.CA != "Q0E=" {
		t.Errorf("the cluster is read as %+v", c)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(config)
	f.Add(mime("Content-Type: text/plain\n\nx"))
	f.Add("[settings.kubernetes]\nmax-pods = \"1\"")
	f.Fuzz(func(_ *testing.T, text string) { Parse(text, false) })
}
