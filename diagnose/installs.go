package diagnose

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/pposiraegi/ppodoctor/probes"
)

// A setback is what an installer says of an attempt that failed: Helm in its
// release, Argo CD in an Application, Flux in a HelmRelease. It is the Data of
// the symptoms below.
type setback struct {
	text string
	of   Ref // the object that was refused; zero where only the text knows
	from Evidence
}

// operationTimeout is how long a Helm operation may be under way: the default
// of --timeout is 5 minutes, and hooks may each take as long.
// Source: helm.sh/helm/v3 pkg/cmd/install.go.
const operationTimeout = 10 * time.Minute

// helmWaited recognises a release that was applied and then waited for its
// pods in vain: those are a symptom of their own.
var helmWaited = regexp.MustCompile(`(?i)timed out waiting for the condition|context deadline exceeded|resource not ready|would exceed context deadline`)

// helmReleasePending: a release's newest revision has been under way for so
// long that no Helm can be at work on it.
var helmReleasePending = &Rule{
	ID:    "helm-release-pending",
	Needs: []probes.Any{probes.Releases},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		var found []Suspect
		now := facts.Source().Now()
		for _, r := range newestReleases(facts) {
			if !strings.HasPrefix(r.Status, "pending-") && r.Status != "uninstalling" || now.Sub(r.LastDeployed) < operationTimeout {
				continue
			}
			since := r.LastDeployed
			found = append(found, Suspect{
				Subjects: []Ref{releaseRef(r)}, Data: r, Since: &since,
				Vars:  releaseVars(r),
				Found: []Evidence{sawRelease(r)},
			})
		}
		return found
	},
}

// helmReleaseFailed: the newest revision of a release was refused, and what
// was refused is not there.
var helmReleaseFailed = &Rule{
	ID:    "helm-release-failed",
	Needs: []probes.Any{probes.Releases, probes.FluxReleases},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		var found []Suspect
		for _, r := range newestReleases(facts) {
			if r.Status != "failed" || helmWaited.MatchString(r.Description) {
				continue
			}
			since := r.LastDeployed
			found = append(found, Suspect{
				Subjects: []Ref{releaseRef(r)}, Data: []setback{{text: r.Description, from: sawRelease(r)}}, Since: &since,
				Vars:  releaseVars(r),
				Found: []Evidence{sawRelease(r)},
			})
		}
		list, err := probes.FluxReleases.Of(facts)
		if err != nil {
			return found
		}
		for _, r := range list.All() {
			ref := Ref{Kind: "HelmRelease", Namespace: r.Namespace, Name: r.Name}
			for _, c := range r.Status.Conditions {
				if c.Type != "Ready" || c.Status != "False" || r.Spec.Suspend || slices.Contains(fluxWaits, c.Reason) || helmWaited.MatchString(c.Message) || slices.ContainsFunc(found, func(s Suspect) bool { return s.Subjects[0] == ref }) {
					continue
				}
				e := SawObject("helmreleases.helm.toolkit.fluxcd.io", r.Namespace, r.Name, "HelmRelease %s: Ready=False, %s: %s", r.Name, c.Reason, clip(c.Message, 420))
				found = append(found, Suspect{
					Subjects: []Ref{ref}, Data: []setback{{text: c.Message, from: e}}, Since: &c.LastTransitionTime.Time,
					Vars:  map[string]string{"status": c.Reason, "revision": "its newest", "chart": "its chart", "says": clip(c.Message, 420), "release": r.Name},
					Found: []Evidence{e},
				})
			}
		}
		return found
	},
}

// argocdSyncError: Argo CD can't compare an application with its source, or
// can't apply it.
var argocdSyncError = &Rule{
	ID:    "argocd-sync-error",
	Needs: []probes.Any{probes.Applications},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		list, err := probes.Applications.Of(facts)
		if err != nil {
			return nil
		}
		var found []Suspect
		for _, a := range list.All() {
			refused, since := appSetbacks(a)
			if len(refused) == 0 {
				continue
			}
			s := Suspect{
				Subjects: []Ref{{Kind: "Application", Namespace: a.Namespace, Name: a.Name}}, Data: refused, Since: since,
				Vars: map[string]string{"says": clip(refused[0].text, 420), "sync": cmp.Or(a.Status.Sync.Status, "Unknown")},
			}
			for _, r := range refused[:min(len(refused), maxExamples)] {
				s.Found = append(s.Found, r.from)
			}
			found = append(found, s)
		}
		return found
	},
}

// appSetbacks are what an Application says of errors, single objects first:
// they know which one was refused.
func appSetbacks(a *probes.Application) (list []setback, since *time.Time) {
	saw := func(format string, args ...any) Evidence {
		return SawObject("applications.argoproj.io", a.Namespace, a.Name, "Application %s: "+format, append([]any{a.Name}, args...)...)
	}
	if o := a.Status.OperationState; o != nil && (o.Phase == "Failed" || o.Phase == "Error" || o.Phase == "Running") && a.Status.Sync.Status != "Synced" {
		if o.SyncResult != nil {
			for _, r := range o.SyncResult.Resources {
				if r.Status == "SyncFailed" {
					list = append(list, setback{
						text: r.Message, of: Ref{Kind: r.Kind, Namespace: r.Namespace, Name: r.Name},
						from: saw("%s %s is %s: %s", r.Kind, strings.TrimPrefix(r.Namespace+"/"+r.Name, "/"), r.Status, clip(r.Message, 420)),
					})
				}
			}
		}
		if len(list) == 0 && (o.Phase != "Running" || strings.Contains(o.Message, "failed")) {
			list = append(list, setback{text: o.Message, from: saw("sync %s: %s", o.Phase, clip(o.Message, 420))})
		}
		since = &o.StartedAt.Time
	}
	for _, c := range a.Status.Conditions {
		if strings.HasSuffix(c.Type, "Error") && (c.Type != "SyncError" || len(list) == 0) { // a SyncError repeats the operation
			list = append(list, setback{text: c.Message, from: saw("%s: %s", c.Type, clip(c.Message, 420))})
			if since == nil && c.LastTransitionTime != nil {
				since = &c.LastTransitionTime.Time
			}
		}
	}
	return list, since
}

// newestReleases are the newest revision of each Helm release.
func newestReleases(facts *probes.Facts) []*probes.Release {
	all, err := probes.Releases.Of(facts)
	if err != nil {
		return nil
	}
	var newest []*probes.Release
	for _, r := range all { // by namespace, name and revision
		if last := len(newest) - 1; last >= 0 && newest[last].Namespace == r.Namespace && newest[last].Name == r.Name {
			newest[last] = r
			continue
		}
		newest = append(newest, r)
	}
	return newest
}

func releaseRef(r *probes.Release) Ref {
	return Ref{Kind: "HelmRelease", Namespace: r.Namespace, Name: r.Name}
}

// releaseSecret is where Helm keeps a revision.
// Source: helm.sh/helm/v3 pkg/storage/storage.go (makeKey).
func releaseSecret(r *probes.Release) Ref {
	return Ref{Kind: "Secret", Namespace: r.Namespace, Name: fmt.Sprintf("sh.helm.release.v1.%s.v%d", r.Name, r.Revision)}
}

func sawRelease(r *probes.Release) Evidence {
	says := fmt.Sprintf("Helm release %s, revision %d (%s %s): %s since %s", r.Name, r.Revision, r.Chart, r.ChartVersion, r.Status, stampOf(r.LastDeployed))
	if r.Description != "" {
		says += ": " + clip(r.Description, 420)
	}
	e := Evidence{Says: says, Document: probes.HelmReleases}
	if !r.LastDeployed.IsZero() {
		at := r.LastDeployed
		e.At = &at
	}
	return e
}

func releaseVars(r *probes.Release) map[string]string {
	return map[string]string{
		"release": r.Name, "revision": fmt.Sprint(r.Revision), "status": r.Status, "says": clip(r.Description, 420),
		"chart": strings.TrimSpace(r.Chart + " " + r.ChartVersion), "since": stampOf(r.LastDeployed), "secret": releaseSecret(r).Name,
	}
}

func stampOf(t time.Time) string {
	if t.IsZero() {
		return "an unknown time"
	}
	return t.UTC().Format(time.RFC3339)
}

// helmReleaseStuck: Helm died in the middle of an operation and left its lock,
// the pending revision, behind.
// Source: helm.sh/helm/v3 pkg/action/{upgrade,install}.go, pkg/release/status.go.
var helmReleaseStuck = &Rule{
	ID:       "helm-release-stuck",
	Explains: []*Rule{helmReleasePending},
	Needs:    []probes.Any{probes.Releases},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		all, err := probes.Releases.Of(facts)
		if err != nil {
			return nil
		}
		var found []Suspect
		for _, e := range effects {
			r := e.Data.(*probes.Release)
			vars := releaseVars(r)
			good := 0
			for _, o := range all {
				if o.Namespace == r.Namespace && o.Name == r.Name && o.Revision < r.Revision && (o.Status == "deployed" || o.Status == "superseded") {
					good = o.Revision
				}
			}
			vars["message"] = "another operation (install/upgrade/rollback) is in progress"
			vars["repair"] = fmt.Sprintf("kubectl delete secret %s -n %s", vars["secret"], r.Namespace)
			vars["how"] = "No earlier revision is there to go back to: delete that one Secret, then install again."
			if r.Status == "pending-install" {
				vars["message"] = "cannot re-use a name that is still in use"
			}
			if good > 0 {
				vars["repair"] = fmt.Sprintf("helm rollback %s %d -n %s", r.Name, good, r.Namespace)
				vars["how"] = fmt.Sprintf("Revision %d is the last that was deployed: roll back to it, or delete that one Secret; then upgrade again.", good)
			}
			found = append(found, Suspect{Subjects: []Ref{releaseSecret(r), releaseRef(r)}, Effects: []*Finding{e}, Vars: vars, Data: r})
		}
		return found
	},
	Tests: []Test{{
		Asks:  "has the newest revision, {revision}, been {status} for longer than an operation of Helm takes?",
		Needs: []probes.Any{probes.Releases},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			r := s.Data.(*probes.Release)
			return Answered(true, sawRelease(r), Evidence{
				Says: fmt.Sprintf("that is %s ago; Helm gives up after 5 minutes by default", facts.Source().Now().Sub(r.LastDeployed).Round(time.Minute)), Document: probes.HelmReleases,
			})
		},
	}},
}

var installSymptoms = []*Rule{helmReleasePending, helmReleaseFailed, argocdSyncError}
