//go:build controlplane

package live

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pposiraegi/ppodoctor/diagnose"
	"github.com/pposiraegi/ppodoctor/probes"
)

const incident = "../../testdata/dns-security-groups"

// program builds the binary, and runs it.
type program struct {
	t    *testing.T
	path string
}

func buildProgram(t *testing.T) program {
	p := program{t, filepath.Join(t.TempDir(), "ppodoctor")}
	if out, err := exec.Command("go", "build", "-o", p.path, "../../cmd/ppodoctor").CombinedOutput(); err != nil {
		t.Fatalf("building: %v\n%s", err, out)
	}
	return p
}

func (p program) run(args ...string) (stdout, stderr string, code int) {
	p.t.Helper()
	command := exec.Command(p.path, args...)
	command.Env = append(os.Environ(), "KUBECONFIG=", "HOME="+p.t.TempDir())
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	return out.String(), errs.String(), command.ProcessState.ExitCode()
}

func (p program) diagnosis(args ...string) *diagnose.Diagnosis {
	p.t.Helper()
	out, errs, code := p.run(append(args, "-o", "json")...)
	var d diagnose.Diagnosis
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		p.t.Fatalf("%v: exit code %d: %v\n%s\n%s", args, code, err, out, errs)
	}
	return &d
}

// TestRights gives a user what `permissions --for rbac` prints, takes each
// right away in turn, and at last all; and reads in the audit log what was done.
func TestRights(t *testing.T) {
	cp, ppodoctor := startControlPlane(t), buildProgram(t)
	s, err := probes.OpenSnapshot(incident)
	if err != nil {
		t.Fatal(err)
	}
	cp.load(s)
	text, errs, code := ppodoctor.run("permissions", "--for", "rbac", "-o", "json")
	if code != 0 {
		t.Fatalf("permissions: %s", errs)
	}
	var role rbacv1.ClusterRole
	must(json.Unmarshal([]byte(text), &role))
	const roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
	cp.request(http.MethodPost, roles, role)
	cp.request(http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", rbacv1.ClusterRoleBinding{
		TypeMeta: metav1.TypeMeta{APIVersion: role.APIVersion, Kind: "ClusterRoleBinding"}, ObjectMeta: role.ObjectMeta,
		RoleRef:  rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: "rbac.authorization.k8s.io", Name: "reader"}},
	})
	cp.wait("the role", func() bool { return cp.may("reader", "pods") })

	full := walk(cp.as(t, "reader", s))
	if diff := cmp.Diff(comparable(walk(cp.as(t, "admin", s))), comparable(full)); diff != "" {
		t.Errorf("the printed rights don't suffice (-admin +reader):\n%s", diff)
	}
	if len(full.Symptoms) == 0 {
		t.Fatal("the incident shows no symptom: the test would compare nothing")
	}

	t.Run("program", func(t *testing.T) {
		config := cp.kubeconfig("reader")
		live := ppodoctor.diagnosis("scan", "--kubeconfig", config, "--no-aws")
		path := filepath.Join(t.TempDir(), "incident.tar.gz")
		if _, errs, code := ppodoctor.run("snapshot", "--kubeconfig", config, "--no-aws", "-o", path); code != 3 {
			t.Errorf("snapshot without AWS: exit code %d, want 3: %s", code, errs)
		}
		replayed := ppodoctor.diagnosis("scan", "--snapshot", path)
		if diff := cmp.Diff(outline(live), outline(replayed)); diff != "" {
			t.Errorf("live and recorded differ:\n%s", diff)
		}
		symptom := live.Symptoms[0].Subject
		focused := ppodoctor.diagnosis("explain", symptom.Namespace+"/"+symptom.Kind+"/"+symptom.Name, "--kubeconfig", config, "--no-aws")
		if focused.Focus == nil || *focused.Focus != symptom {
			t.Errorf("explain looked at %v, not at %v", focused.Focus, symptom)
		}
		for _, c := range []struct {
			args []string
			says string
		}{
			{[]string{"-n", "no-such-namespace"}, `no namespace "no-such-namespace"`},
			{[]string{"--token", "expired"}, "does not accept the credentials"},
			{[]string{"--context", "other"}, "get-contexts"},
		} {
			_, errs, code := ppodoctor.run(append([]string{"scan", "--kubeconfig", config}, c.args...)...)
			if code != 2 || !strings.Contains(errs, c.says) || strings.Count(errs, "\n") != 1 {
				t.Errorf("%v: exit code %d, want 2 and one line with %q: %s", c.args, code, c.says, errs)
			}
		}
	})

	t.Run("audit", func(t *testing.T) {
		requests, releases := cp.audited("reader"), 0
		for _, e := range requests {
			if !slices.Contains([]string{"get", "list", "watch"}, e.Verb) {
				t.Errorf("a request that does not read: %s %s", e.Verb, e.RequestURI)
			}
			if e.ObjectRef != nil && e.ObjectRef.Resource == "secrets" {
				if releases++; !strings.Contains(e.RequestURI, "fieldSelector=type%3Dhelm.sh%2Frelease.v1") {
					t.Errorf("Secrets beyond Helm's: %s", e.RequestURI)
				}
			}
		}
		if len(requests) < 10 {
			t.Errorf("the audit log has only %d requests", len(requests))
		}
		ppodoctor.diagnosis("scan", "--kubeconfig", cp.kubeconfig("reader"), "--no-aws", "--no-helm")
		for _, e := range cp.audited("reader")[len(requests):] {
			if e.ObjectRef != nil && e.ObjectRef.Resource == "secrets" {
				t.Errorf("Secrets in spite of --no-helm: %s", e.RequestURI)
			}
		}
	})

	for i, rule := range role.Rules {
		for _, name := range rule.Resources {
			resource := strings.TrimSuffix(name+"."+rule.APIGroups[0], ".")
			t.Run("without "+resource, func(t *testing.T) {
				less := role
				less.Rules = slices.Clone(role.Rules)
				less.Rules[i].Resources = slices.DeleteFunc(slices.Clone(rule.Resources), func(r string) bool { return r == name })
				if len(less.Rules[i].Resources) == 0 {
					less.Rules = slices.Delete(less.Rules, i, i+1)
				}
				cp.request(http.MethodPut, roles+"/"+role.Name, less)
				cp.wait("the smaller role", func() bool { return !cp.may("reader", resource) })
				flipped(t, full, walk(cp.as(t, "reader", s)), resource)
			})
		}
	}

	t.Run("nothing", func(t *testing.T) {
		d := ppodoctor.diagnosis("scan", "--kubeconfig", cp.kubeconfig("nobody"), "--no-aws")
		if len(d.Causes) > 0 || len(d.Symptoms) > 0 {
			t.Errorf("without any right something is known: %s", d.Verdict)
		}
		for _, grant := range []string{"list pods", "list nodes"} {
			if !slices.ContainsFunc(d.Gaps, func(g diagnose.Gap) bool { return g.Grant == grant && g.Reason == "forbidden" }) {
				t.Errorf("it isn't said that %q is needed: %+v", grant, d.Gaps)
			}
		}
		if _, _, code := ppodoctor.run("scan", "--kubeconfig", cp.kubeconfig("nobody"), "--no-aws"); code != 3 {
			t.Errorf("exit code %d, want 3", code)
		}
	})
}

// as is the cluster as a user sees it, with the AWS side of a snapshot.
func (p *controlPlane) as(t *testing.T, user string, s *probes.Snapshot) *Cluster {
	c, err := NewCluster(p.config(user), Options{AWS: s, Clock: s.Now})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// may asks the API server whether a user may read a resource.
func (p *controlPlane) may(user, resource string) bool {
	name, group, _ := strings.Cut(resource, ".")
	name, sub, _ := strings.Cut(name, "/")
	verb := "list"
	if sub != "" {
		verb = "get"
	}
	answer := p.request(http.MethodPost, "/apis/authorization.k8s.io/v1/subjectaccessreviews", map[string]any{
		"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
		"spec": map[string]any{"user": user, "resourceAttributes": map[string]any{"verb": verb, "group": group, "resource": name, "subresource": sub}},
	})
	var review struct{ Status struct{ Allowed bool } }
	must(json.Unmarshal(answer, &review))
	return review.Status.Allowed
}

// flipped fails if a diagnosis with a right less claims what the full one does
// not, or lost something without naming what it lacks.
func flipped(t *testing.T, full, less *diagnose.Diagnosis, resource string) {
	t.Helper()
	fingerprints := func(lists ...[]diagnose.Cause) []string {
		var all []string
		for _, c := range slices.Concat(lists...) {
			all = append(all, c.Fingerprint)
		}
		return all
	}
	known := fingerprints(full.Causes, full.Suspected, full.Risks)
	for _, c := range less.Causes {
		if !slices.Contains(known, c.Fingerprint) {
			t.Errorf("a cause appears when %s is withheld: %s", resource, c.Title)
		}
	}
	named := slices.ContainsFunc(less.Gaps, func(g diagnose.Gap) bool {
		return g.Document == resource || resource == "pods/log" && strings.HasPrefix(g.Document, "logs/")
	})
	if diff := cmp.Diff(outline(full), outline(less)); diff != "" && !named {
		t.Errorf("something changed when %s was withheld, and the gap is not named:\n%s", resource, diff)
	}
}

// outline is what a bot would compare of two diagnoses.
func outline(d *diagnose.Diagnosis) []string {
	var lines []string
	for _, list := range [][]diagnose.Cause{d.Causes, d.Suspected, d.Risks} {
		for _, c := range list {
			lines = append(lines, fmt.Sprintf("%s %s %v", c.Rule, c.Subject, c.Effects))
		}
		lines = append(lines, "–")
	}
	for _, s := range d.Symptoms {
		lines = append(lines, fmt.Sprintf("%s %s %d", s.Rule, s.Subject, s.Count))
	}
	for _, g := range d.Gaps {
		lines = append(lines, g.Document)
	}
	return lines
}
